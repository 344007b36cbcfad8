"""z = norm(relu(z + norm(g(x) + W₂⋆norm(relu(W₁⋆z))))): the residual block of [hieu2022, (4.1)]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...differentiate.method import Solvers
from ...solve import Anderson
from ..checks import all_counts, counts, positive_finite
from ..images.model import ImageModel
from ..images.parts import ClassHead, Extractor, Maker, head_for


class ResidualCell(nn.Module):
    """f(z, c) = norm₃(relu(z + norm₂(c + W₂⋆norm₁(relu(W₁⋆z))))): group norms, no biases.

    W₁ (n, m, 3, 3), W₂ (m, n, 3, 3). Nothing proves that it has a fixed point; the scale of W₁ does not
    matter to f, since norm₁ takes it out again (but for its ε).
    """

    def __init__(self, channels: int, hidden: int, groups: int, std: float, make: Maker) -> None:
        super().__init__()
        self.conv1 = make.conv(channels, hidden, bias=False, std=std)
        self.conv2 = make.conv(hidden, channels, bias=False, std=std)
        self.norm1 = make.norm(groups, hidden)
        self.norm2 = make.norm(groups, channels)
        self.norm3 = make.norm(groups, channels)

    def forward(self, z: Tensor, c: Tensor) -> Tensor:
        """f(z, c), (N, m, h, w)."""
        h = self.norm1(torch.relu(self.conv1(z)))
        return self.norm3(torch.relu(z + self.norm2(c + self.conv2(h))))


class ResidualConv(ImageModel):
    """z = norm(relu(z + norm(g(x) + W₂⋆norm(relu(W₁⋆z))))),  ŷ = head(z).    [hieu2022, (4.1)]

    Args:
        inputs: (channels, height, width) of an image.
        channels, hidden: of z and of the inner layer (`channels` by default).
        groups: of the group norms; it divides both.
        extractor: strides of the 3×3 convolutions of g, as for `ConvOptEq`; g has `channels` channels.
        std: of the weights at the start. With std 1 the solver does not come near an equilibrium; with .01
            it does in a few steps [hieu2022, 4.1.1].
        solver, gradient, stop, on_failure: as for `Equilibrium`; Anderson with a memory of 5 by default.

    No theorem says that an equilibrium exists: the status of each image tells, and `on_failure` decides.
    """

    settings = ("inputs", "channels", "hidden", "outputs", "groups", "std", "pool", "task")
    described = "z = norm(relu(z + norm(g(x) + W₂⋆norm(relu(W₁⋆z))))); z {0.state}, k={0.outputs}"

    def __init__(
        self,
        inputs: Sequence[int],
        channels: int = 48,
        hidden: int | None = None,
        outputs: int = 10,
        *,
        groups: int = 8,
        extractor: Sequence[int] = (1,),
        std: float = 0.01,
        pool: int = 4,
        task: str = "classification",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        **how: Any,
    ) -> None:
        super().__init__(inputs, outputs, **how)
        hidden = channels if hidden is None else hidden
        channels, hidden, groups, pool = counts(channels=channels, hidden=hidden, groups=groups, pool=pool)
        if channels % groups or hidden % groups:
            raise ValueError(
                f"groups must divide channels and hidden. Got groups={groups} for {channels} and {hidden}."
            )
        strides = all_counts("extractor", extractor)
        if not strides:
            raise ValueError("extractor must hold a stride: g(x) must have the channels of the state.")
        positive_finite(std=std)
        make = Maker(dtype, device, generator)
        self.channels = channels
        self.hidden, self.groups, self.std, self.pool, self.task = hidden, groups, float(std), pool, task
        self.extractor = Extractor(self.inputs, channels, strides, make)
        self.cell = ResidualCell(channels, hidden, groups, std, make)
        self.state = (channels, *self.extractor.size)
        self.head = head_for(task, channels, self.extractor.size, self.inputs, outputs, pool, make)
        if isinstance(self.head, ClassHead) and self.head.grid == (1, 1) and channels == groups:
            raise ValueError(
                f"groups must be < channels where z is averaged over one place: the mean of a group of one "
                f"channel is the same for every image. Got {groups} groups of {channels} channels: take "
                f"fewer, or pool ≥ 2."
            )

    def default_solver_chain(self) -> Solvers:
        """Anderson with a memory of 5."""
        return Anderson(memory=5)

    def injection(self, x: Tensor) -> tuple[Tensor, ...]:
        """g(x)."""
        return (self.extractor(x),)
