"""What the image models are made of: seeded convolutions, an extractor g(x), heads for classes and pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...differentiate.equation import under_transform
from ..checks import as_count, refuse_nonfinite
from ..draws import Draws

TASKS = ("classification", "segmentation")
Image = tuple[int, int, int]  # channels, height, width
_PATCHES = 1 << 18  # numbers: 2 MB in float64, a second-level cache
_Layer = TypeVar("_Layer", nn.Conv2d, nn.Linear)


class Maker(Draws):
    """Draws the layers of networks of images."""

    def conv(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        bias: bool = True,
        std: float | None = None,
    ) -> nn.Conv2d:
        """A convolution that keeps the size at stride 1; He start unless `std` is given, biases zero."""
        layer = nn.utils.skip_init(
            nn.Conv2d,
            inputs,
            outputs,
            kernel,
            stride=stride,
            padding=kernel // 2,
            bias=bias,
            dtype=self.dtype,
            device=self.device or "cpu",
        )
        return self._fill(layer, (2 / (inputs * kernel**2)) ** 0.5 if std is None else std)

    def linear(self, inputs: int, outputs: int) -> nn.Linear:
        """A linear layer whose weights have variance 1/inputs; biases zero."""
        layer = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=self.dtype, device=self.device or "cpu")
        return self._fill(layer, inputs**-0.5)

    def norm(self, groups: int, channels: int) -> nn.GroupNorm:
        """A group norm with `groups` groups."""
        return nn.GroupNorm(groups, channels, dtype=self.dtype, device=self.device)

    def _fill(self, layer: _Layer, std: float) -> _Layer:
        with torch.no_grad():
            layer.weight.copy_(self.normal(*layer.weight.shape, std=std))
            if layer.bias is not None:
                layer.bias.zero_()
        return layer


class Extractor(nn.Sequential):
    """g(x) = relu(K_d ⋆ … relu(K_1 ⋆ x)): 3×3 convolutions, each with its stride; `size` is that of g(x)."""

    def __init__(self, inputs: Image, channels: int, strides: Sequence[int], make: Maker) -> None:
        layers: list[nn.Module] = []
        before, size = inputs[0], inputs[1:]
        self.patches = 0  # numbers that torch writes out for one image before it multiplies
        for stride in strides:
            layers += [make.conv(before, channels, stride=stride), nn.ReLU()]
            size = reduced(size, stride)
            self.patches, before = max(self.patches, 9 * before * math.prod(size)), channels
        super().__init__(*layers)
        self.channels, self.size = before, size

    def forward(self, x: Tensor) -> Tensor:
        """g(x), (N, F, h, w)."""
        return _by_parts(super().forward, x, self.patches)

    @property
    def strides(self) -> list[int]:
        """The stride of every convolution."""
        return [m.stride[0] for m in self if isinstance(m, nn.Conv2d)]


class ClassHead(nn.Module):
    """ŷ = V pool(z) + v, with z averaged over a grid of `pool` × `pool` places.

    `normalise` brings the means of each image to mean 0 and variance 1 first: a state whose layers are
    bounded is small, and a linear layer learns slowly from it.
    """

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        outputs: int,
        pool: int,
        make: Maker,
        normalise: bool = True,
    ) -> None:
        super().__init__()
        self.grid, self.normalise = (min(pool, size[0]), min(pool, size[1])), normalise
        self.linear = make.linear(channels * self.grid[0] * self.grid[1], outputs)

    def forward(self, z: Tensor) -> Tensor:
        """ŷ, (N, k)."""
        means = F.adaptive_avg_pool2d(z, self.grid).flatten(1)
        return self.linear(F.layer_norm(means, means.shape[1:]) if self.normalise else means)  # (N, k)


class PixelHead(nn.Module):
    """ŷ = resize(V ⋆ z + v): a 1×1 convolution, bilinear to the size of the image."""

    def __init__(self, channels: int, image: tuple[int, int], outputs: int, make: Maker) -> None:
        super().__init__()
        self.image = image
        self.conv = make.conv(channels, outputs, kernel=1, std=channels**-0.5)

    def forward(self, z: Tensor) -> Tensor:
        """ŷ, (N, k, H, W)."""
        y = self.conv(z)
        if y.shape[2:] == self.image:
            return y
        return F.interpolate(y, self.image, mode="bilinear", align_corners=False)  # (N, k, H, W)


def head_for(
    task: str,
    channels: int,
    size: tuple[int, int],
    inputs: Image,
    outputs: int,
    pool: int,
    make: Maker,
    normalise: bool = True,
) -> ClassHead | PixelHead:
    """The head of a task: of classes, or of pixels."""
    if task == "classification":
        return ClassHead(channels, size, outputs, pool, make, normalise)
    if task == "segmentation":
        return PixelHead(channels, inputs[1:], outputs, make)
    raise ValueError(f"task must be one of {', '.join(map(repr, TASKS))}. Got {task!r} instead.")


def reduced(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """The size after a convolution with an odd kernel, padded by half of it."""
    return (size[0] - 1) // stride + 1, (size[1] - 1) // stride + 1


def checked_image(inputs: Sequence[int]) -> Image:
    """`inputs`, which must be (channels, height, width)."""
    sizes = tuple(map(as_count, inputs)) if isinstance(inputs, Sequence) else ()
    if len(sizes) != 3 or 0 in sizes:
        raise ValueError(f"inputs must be (channels, height, width), integers ≥ 1. Got {inputs!r} instead.")
    return sizes


def images_of(inputs: Image, x: Tensor, like: Tensor) -> Tensor:
    """`x`, which must be a batch of finite images of the size, the dtype and the device of a model.

    Under autocast, whose convolutions cast them, images and parameters may be of any dtypes up to float32.
    """
    shape = ", ".join(map(str, inputs))
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor of images, (N, {shape}). Got {type(x).__name__} instead.")
    if tuple(x.shape[1:]) != inputs:
        hint = " A single image is x[None]." if tuple(x.shape) == inputs else ""
        raise ValueError(f"x must be (N, {shape}). Got shape {tuple(x.shape)} instead.{hint}")
    if x.device != like.device or not (x.dtype == like.dtype or _autocast(x, like)):
        raise ValueError(
            f"x must be {like.dtype} on {like.device} like the parameters. Got {x.dtype} on {x.device} "
            f"instead: x.to(…) or model.to(…) makes them agree."
        )
    refuse_nonfinite("x", x)
    return x


def _autocast(*tensors: Tensor) -> bool:
    """Whether autocast brings them to one dtype: it leaves float64 and integers as they are."""
    kind = tensors[0].device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return False
    return all(t.dtype in (torch.float16, torch.bfloat16, torch.float32) for t in tensors)


def with_channels_last(images: Tensor) -> Tensor:
    """The same images with the channels of a pixel next to each other in memory, where that is faster.

    Convolutions in float32 then take from a third to nine tenths of the time, the less the larger the images.
    Those in float64 are no faster, and a transform of torch.func hides how its tensors lie in memory.
    """
    if images.ndim != 4 or images.dtype == torch.float64 or under_transform():
        return images
    if images.shape[1] == 1:  # of which `contiguous` sees no need for another layout
        return images.clone(memory_format=torch.channels_last)
    return images.contiguous(memory_format=torch.channels_last)


def convolved(
    images: Tensor, kernel: Tensor, bias: Tensor | None = None, stride: int = 1, padding: int = 0
) -> Tensor:
    """The convolution of a batch of images, a few images at a time in float64.

    There torch writes out the patches of all images before it multiplies them, and fresh memory for that
    takes five times as long as the products.
    """
    patches = math.prod(images.shape[1:]) * math.prod(kernel.shape[2:]) // stride**2
    return _by_parts(lambda some: F.conv2d(some, kernel, bias, stride, padding), images, patches)


def _by_parts(f: Callable[[Tensor], Tensor], images: Tensor, patches: int) -> Tensor:
    some = max(1, _PATCHES // max(1, patches))
    if images.dtype != torch.float64 or some >= len(images) or under_transform():
        return f(images)
    return torch.cat([f(part) for part in images.split(some)])


def added(p: Tensor, c: Tensor) -> Tensor:
    """p + c in the memory of p, which is not needed any more; a new tensor where it cannot hold the sum."""
    return p + c if p.dtype != c.dtype or under_transform() else p.add_(c)


def transposed_kernel(kernel: Tensor) -> Tensor:
    """The kernel of Kᵀ⋆ as a convolution, if K is odd and has stride 1: faster than a transposed one."""
    return kernel.flip(2, 3).transpose(0, 1).contiguous()


def parameters_of(model: nn.Module) -> int:
    """How many numbers a model learns."""
    return sum(p.numel() for p in model.parameters())
