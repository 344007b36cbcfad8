"""h_l = relu(K_l⋆h_{l−1} + b_l),  ŷ = head(h_L): the plain networks that image models are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import all_counts, counts
from ..images.parts import Extractor, Maker, checked_image, head_for, images_of, parameters_of
from ..saving import Saved

WIDEST = 2048  # layer that `cnn_of_size` tries


class PlainCNN(Saved):
    """h_0 = g(x),  h_l = relu(K_l⋆h_{l−1} + b_l),  ŷ = head(h_L): 3×3 kernels, no weight used twice.

    With task="segmentation" it is a fully convolutional network (FCN). Arguments as for `ConvOptEq`.
    """

    settings = ("inputs", "hidden", "outputs", "features", "pool", "task")
    described = "h_l = relu(K_l⋆h_(l−1) + b_l), hidden={0.hidden}, k={0.outputs}"

    def __init__(
        self,
        inputs: Sequence[int],
        hidden: Sequence[int],
        outputs: int = 10,
        *,
        features: int = 16,
        extractor: Sequence[int] = (1,),
        pool: int = 4,
        task: str = "classification",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        outputs, features, pool = counts(outputs=outputs, features=features, pool=pool)
        make = Maker(dtype, device, generator)
        self.inputs, self.outputs, self.pool, self.task = checked_image(inputs), outputs, pool, task
        self.hidden = all_counts("hidden", hidden)
        self.extractor = Extractor(self.inputs, features, all_counts("extractor", extractor), make)
        layers: list[nn.Module] = []
        self.features = before = self.extractor.channels
        for channels in self.hidden:
            layers += [make.conv(before, channels), nn.ReLU()]
            before = channels
        self.body = nn.Sequential(*layers)
        self.head = head_for(task, before, self.extractor.size, self.inputs, outputs, pool, make)

    def last_layer(self, x: Tensor) -> Tensor:
        """h_L, (N, channels, h, w)."""
        return self.body(self.extractor(images_of(self.inputs, x, next(self.parameters()))))

    def forward(self, x: Tensor) -> Tensor:
        """ŷ = head(h_L)."""
        return self.head(self.last_layer(x))

    def config(self) -> dict[str, Any]:
        """The settings, and the strides of g."""
        return super().config() | {"extractor": self.extractor.strides}


def cnn_of_size(
    parameters: int, layers: int, inputs: Sequence[int], outputs: int, **options: Any
) -> PlainCNN:
    """The PlainCNN whose number of parameters is nearest to `parameters`: layers of one width but the last.

    The last is at least half and at most twice as wide as the others, which are at most WIDEST = 2048 wide.
    """
    parameters, layers = counts(parameters=parameters, layers=layers)
    placed = {name: options.pop(name, None) for name in ("generator", "device")}

    def count(*hidden: int) -> int:
        return parameters_of(PlainCNN(inputs, hidden, outputs, **options, device="meta"))

    most = count(*(WIDEST,) * (layers - 1), 2 * WIDEST)
    if parameters > most:
        raise ValueError(
            f"parameters must be ≤ {most} for layers={layers}, each at most {WIDEST} wide. Got {parameters} "
            f"instead: take more layers."
        )
    best, gap = (1,) * layers, float("inf")
    doublings = (2**k for k in range(WIDEST.bit_length()))
    least = next(w for w in doublings if count(*(2 * w,) * layers) >= parameters)
    for width in range(max(1, least // 2), WIDEST + 1):
        front, low, high = (width,) * (layers - 1), (width + 1) // 2, 2 * width
        one, two = count(*front, 1), count(*front, 2)  # affine in the width of the last
        last = min(max(1 + round((parameters - one) / (two - one)), low), high)
        miss = one + (last - 1) * (two - one) - parameters
        if abs(miss) < gap:
            best, gap = (*front, last), abs(miss)
        if last == low and miss > 0:  # wider ones have more
            break
    return PlainCNN(inputs, best, outputs, **options, **placed)
