"""mIoU = mean_c n_cc/(Σ_j n_cj + Σ_i n_ic − n_cc): segmentation by OptEq and by an FCN, and its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import counts, positive_finite
from ..images.parts import parameters_of
from ..proximal.conv_opteq import ConvOptEq
from .cnn import PlainCNN, cnn_of_size


class OptEqSegmenter(ConvOptEq):
    """z = f_L∘…∘f_1(z) with c_l = N(U_l⋆g(x) + b_l),  ŷ = resize(V⋆N(z) + v)    [xie2021, §5.3].

    N is a batch norm, in training by the statistics of the batch. It follows every convolution of g and of
    the injections and precedes the head. The loop has none, so that each f_l remains a proximal map. Without
    N the bounded layers learn slowly, and so does the head from a small state. Arguments as for `ConvOptEq`.
    """

    def __init__(
        self,
        inputs: Sequence[int],
        state: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        task: str = "segmentation",
        **options: Any,
    ) -> None:
        super().__init__(inputs, state, hidden, outputs, task=_of_pixels(task), **options)
        _normalise(self.extractor)
        self.scales = nn.ModuleList(_norm(len(layer.b), layer.b) for layer in self.layers)
        self.last_norm = _norm(state, self.layers[0].b)

    def injection(self, x: Tensor) -> tuple[Tensor, ...]:
        """c_l = N(U_l⋆g(x) + b_l)."""
        return tuple(N(c) for N, c in zip(self.scales, super().injection(x), strict=True))

    def readout(self, z: Tensor) -> Tensor:
        """ŷ = resize(V⋆N(z) + v), (N, k, H, W)."""
        return self.head(self.last_norm(z))


class FCN(PlainCNN):
    """h_0 = g(x),  h_l = relu(N(K_l⋆h_{l−1} + b_l)),  ŷ = resize(V⋆N(h_L) + v).

    A fully convolutional network. N is a batch norm, which follows the convolutions of g too. Arguments as
    for `PlainCNN`.
    """

    def __init__(
        self,
        inputs: Sequence[int],
        hidden: Sequence[int],
        outputs: int,
        *,
        task: str = "segmentation",
        **options: Any,
    ) -> None:
        super().__init__(inputs, hidden, outputs, task=_of_pixels(task), **options)
        _normalise(self.extractor)
        _normalise(self.body)
        self.last_norm = _norm((self.extractor.channels, *self.hidden)[-1], next(self.parameters()))

    def forward(self, x: Tensor) -> Tensor:
        """ŷ, (N, k, H, W)."""
        return self.head(self.last_norm(self.last_layer(x)))


def opteq_segmenter(
    inputs: Sequence[int], state: int, hidden: Sequence[int], classes: int, **options: Any
) -> OptEqSegmenter:
    """A deep OptEq as backbone, then a 1×1 convolution, bilinear to the image    [xie2021, §5.3]."""
    return OptEqSegmenter(inputs, state, hidden, classes, **options)


def fcn_like(model: ConvOptEq, generator: torch.Generator | None = None) -> PlainCNN:
    """A plain network with the extractor, the task, the pooling and about the parameters of an OptEq.

    For the L layers it has L + 1 convolutions, each used once. If the OptEq has norms, so does the network;
    they are not counted.
    """
    config = model.config()
    options = {key: config[key] for key in ("features", "extractor", "pool", "task")}
    like = next(model.parameters())
    placed: dict[str, Any] = {"dtype": like.dtype, "device": like.device, "generator": generator}
    norms = sum(parameters_of(m) for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    size, layers = parameters_of(model) - norms, len(config["hidden"]) + 1
    if not norms:
        return cnn_of_size(size, layers, model.inputs, model.outputs, **options, **placed)
    plain = cnn_of_size(size, layers, model.inputs, model.outputs, **options, device="meta")
    return FCN(model.inputs, plain.hidden, model.outputs, **options, **placed)


def _of_pixels(task: str) -> str:
    if task != "segmentation":
        raise ValueError(
            f"task must be 'segmentation' here. Got {task!r} instead: use ConvOptEq or PlainCNN."
        )
    return task


def _norm(channels: int, like: Tensor) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, dtype=like.dtype, device=like.device)


def _normalise(stack: nn.Sequential) -> None:
    """Put a batch norm behind every convolution."""
    for i in reversed(range(len(stack))):
        layer = stack[i]
        if isinstance(layer, nn.Conv2d):
            stack.insert(i + 1, _norm(layer.out_channels, layer.weight))


def poly(
    optimiser: torch.optim.Optimizer, total: int, power: float = 0.9
) -> torch.optim.lr_scheduler.LambdaLR:
    """The learning rate times (1 − i/total)^power after i steps    [xie2021, §5.3]."""
    (total,) = counts(total=total)
    positive_finite(power=power)
    return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: max(0.0, 1 - i / total) ** power)


@dataclass(frozen=True)
class Scores:
    """Scores from n_ij, the number of pixels of class i that were called j. Absent classes do not count."""

    confusion: Tensor  # (k, k) int64, rows are the truth

    @classmethod
    def of(cls, predicted: Tensor, truth: Tensor, classes: int, ignore: int | None = 255) -> Scores:
        """From class images (N, H, W); pixels whose truth is `ignore` are left out."""
        (classes,) = counts(classes=classes)
        for name, values in (("predicted", predicted), ("truth", truth)):
            if values.is_floating_point() or values.is_complex():
                raise TypeError(
                    f"{name} must hold classes, integers. Got {values.dtype} instead: the classes of outputs "
                    f"(N, k, H, W) are outputs.argmax(1)."
                )
        if predicted.shape != truth.shape:
            raise ValueError(
                f"predicted must be {tuple(truth.shape)} like the truth. Got {tuple(predicted.shape)}."
            )
        keep = torch.ones_like(truth, dtype=torch.bool) if ignore is None else truth != ignore
        t, p = truth[keep].long(), predicted[keep].long()
        for name, values in (("truth", t), ("predicted", p)):
            if values.numel() and not (0 <= int(values.min()) and int(values.max()) < classes):
                least, most = int(values.min()), int(values.max())
                raise ValueError(f"{name} must hold classes 0 … {classes - 1}. Got {least} … {most}.")
        return cls(torch.bincount(t * classes + p, minlength=classes**2).reshape(classes, classes))

    def __add__(self, other: Scores) -> Scores:
        if self.confusion.shape != other.confusion.shape:
            raise ValueError(
                f"scores must be of the same classes to be added. Got {len(self.confusion)} and "
                f"{len(other.confusion)} classes."
            )
        return Scores(self.confusion + other.confusion)

    @property
    def iou(self) -> Tensor:
        """n_ii / (Σ_j n_ij + Σ_j n_ji − n_ii) of every class, NaN where there is none of it."""
        n = self.confusion.double()
        return n.diagonal() / (n.sum(0) + n.sum(1) - n.diagonal())

    @property
    def miou(self) -> float:
        """The mean of `iou`."""
        return float(self.iou.nanmean())

    @property
    def macc(self) -> float:
        """The mean over classes that occur of n_ii / Σ_j n_ij."""
        n = self.confusion.double()
        return float((n.diagonal() / n.sum(1)).nanmean())

    @property
    def aacc(self) -> float:
        """Σ_i n_ii / Σ_ij n_ij: the share of pixels that are right."""
        return float(self.confusion.diagonal().sum().double() / self.confusion.sum())
