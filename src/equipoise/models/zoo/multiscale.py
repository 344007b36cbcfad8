"""(z_1, …, z_n) = f((z_1, …, z_n), g(x)): an equilibrium over several resolutions    [hieu2022, 4.2.2].

The multiscale deep equilibrium model: no pyramid is built, all resolutions are solved for together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...checks import one_of
from ...differentiate.method import Solvers
from ...solve import Anderson
from ..checks import all_counts, counts, positive_finite
from ..images.model import ImageModel
from ..images.parts import TASKS, Extractor, Maker, PixelHead, reduced


class Block(nn.Module):
    """h = norm(relu(z + norm(c + W₂⋆norm(relu(W₁⋆z))))): a residual block at one resolution."""

    def __init__(self, channels: int, groups: int, std: float, make: Maker) -> None:
        super().__init__()
        self.conv1 = make.conv(channels, channels, bias=False, std=std)
        self.conv2 = make.conv(channels, channels, bias=False, std=std)
        self.norms = nn.ModuleList(make.norm(groups, channels) for _ in range(3))

    def forward(self, z: Tensor, c: Tensor) -> Tensor:
        """h, of the shape of z."""
        h = self.norms[0](torch.relu(self.conv1(z)))
        return self.norms[2](torch.relu(z + self.norms[1](c + self.conv2(h))))


class Up(nn.Module):
    """From a coarser resolution to a finer one: a 1×1 convolution, then the nearest pixel."""

    def __init__(self, before: int, after: int, size: tuple[int, int], std: float, make: Maker) -> None:
        super().__init__()
        self.size = size
        self.conv = make.conv(before, after, kernel=1, bias=False, std=std)

    def forward(self, h: Tensor) -> Tensor:
        """h at the finer resolution."""
        return F.interpolate(self.conv(h), self.size, mode="nearest")


def down(before: int, after: int, levels: int, std: float | None, make: Maker) -> nn.Sequential:
    """From a finer resolution to a coarser one: 3×3 convolutions of stride 2, relu between them."""
    layers: list[nn.Module] = []
    for level in range(levels):
        last = level == levels - 1
        layers += [make.conv(before, after if last else before, stride=2, bias=False, std=std)]
        layers += [] if last else [nn.ReLU()]
    return nn.Sequential(*layers)


class MultiscaleCell(nn.Module):
    """f(z, c)_i = norm(relu(Σ_j fuse_ij(h_j))),  h_j = block_j(z_j, c_j).

    z = (z_1, …, z_n), z_i of shape (N, m_i, H/2^{i−1}, W/2^{i−1}), and c alike. fuse_ii is the identity,
    fuse_ij goes up for i < j and down for i > j, so that every step combines all resolutions in each of them.
    There are no norms between resolutions: they would undo the small start of the weights, from which
    equilibria are found.
    """

    def __init__(
        self, size: tuple[int, int], channels: Sequence[int], groups: int, std: float, make: Maker
    ) -> None:
        super().__init__()
        self.sizes = [size]
        for _ in channels[1:]:
            self.sizes.append(reduced(self.sizes[-1], 2))
        self.blocks = nn.ModuleList(Block(m, groups, std, make) for m in channels)

        def fuse(j: int, i: int) -> nn.Module:  # from resolution j to i, which is finer where i < j
            if i < j:
                return Up(channels[j], channels[i], self.sizes[i], std, make)
            return down(channels[j], channels[i], i - j, std, make) if i > j else nn.Identity()

        each = range(len(channels))
        self.fuse = nn.ModuleList(nn.ModuleList(fuse(j, i) for j in each) for i in each)
        self.norms = nn.ModuleList(make.norm(groups, m) for m in channels)

    def forward(self, z: tuple[Tensor, ...], *c: Tensor) -> tuple[Tensor, ...]:
        """f(z, c), a tensor for each resolution."""
        h = [block(*parts) for block, *parts in zip(self.blocks, z, c, strict=True)]
        return tuple(self.norms[i](torch.relu(self._fused(i, h))) for i in range(len(h)))

    def _fused(self, i: int, h: Sequence[Tensor]) -> Tensor:
        """Σ_j fuse_ij(h_j)."""
        return torch.stack([self.fuse[i][j](part) for j, part in enumerate(h)]).sum(dim=0)  # type: ignore[index]


class MultiscaleDEQ(ImageModel):
    """z_i = norm(relu(Σ_j fuse_ij(block_j(z_j, c_j(x))))) for every resolution i,  ŷ = head(z_1, …, z_n).

    c_1(x) = g(x), and c_j(x) are strided convolutions of it.

    Args:
        inputs: (channels, height, width) of an image.
        channels: of each resolution, the finest first; each next one is half as high and wide.
        groups: of the group norms; it divides all channels, for classification into groups of 2 or more.
        extractor: strides of the 3×3 convolutions of g, as for `ConvOptEq`: the finest resolution is g(x)'s.
        std: of the cell's weights at the start.
        task: "classification" (the means of every resolution, then linear), or "segmentation" (all
            resolutions resized to the finest, a 1×1 convolution, bilinear to the size of the image).
        solver, gradient, stop, on_failure: as for `Equilibrium`; Anderson with a memory of 5 by default.

    No theorem says that an equilibrium exists: the status of each image tells, and `on_failure` decides.
    """

    settings = ("inputs", "channels", "outputs", "groups", "std", "task")
    described = "z_i = norm(relu(Σ_j fuse_ij(block_j(z_j, c_j(x))))); z {0.state}, k={0.outputs}"

    def __init__(
        self,
        inputs: Sequence[int],
        channels: Sequence[int] = (16, 32),
        outputs: int = 10,
        *,
        groups: int = 4,
        extractor: Sequence[int] = (1,),
        std: float = 0.01,
        task: str = "classification",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        **how: Any,
    ) -> None:
        super().__init__(inputs, outputs, **how)
        (groups,) = counts(groups=groups)
        positive_finite(std=std)
        self.channels = all_counts("channels", channels)
        if not self.channels or any(m % groups for m in self.channels):
            raise ValueError(f"channels must be multiples of groups={groups}, one or more. Got {channels!r}.")
        strides = all_counts("extractor", extractor)
        if not strides:
            raise ValueError("extractor must hold a stride: g(x) must have the channels of the finest state.")
        one_of("task", task, TASKS)
        if task == "classification" and any(m < 2 * groups for m in self.channels):
            raise ValueError(
                f"channels must be ≥ 2·groups = {2 * groups} for classification: the mean of a group of one "
                f"channel is the same for every image. Got {channels!r} instead."
            )
        make = Maker(dtype, device, generator)
        self.groups, self.std, self.task = groups, float(std), task
        self.extractor = Extractor(self.inputs, self.channels[0], strides, make)
        self.cell = MultiscaleCell(self.extractor.size, self.channels, groups, std, make)
        self.inject = nn.ModuleList(
            down(self.channels[0], m, j, None, make) for j, m in enumerate(self.channels) if j > 0
        )
        self.state = [(m, *size) for m, size in zip(self.channels, self.cell.sizes, strict=True)]
        total = sum(self.channels)
        self.head = (
            make.linear(total, outputs)
            if task == "classification"
            else PixelHead(total, self.inputs[1:], outputs, make)
        )

    def default_solver_chain(self) -> Solvers:
        """Anderson with a memory of 5."""
        return Anderson(memory=5)

    def injection(self, x: Tensor) -> tuple[Tensor, ...]:
        """g(x), and strided convolutions of it for the coarser resolutions."""
        g = self.extractor(x)
        return (g, *(coarser(g) for coarser in self.inject))

    def readout(self, z: tuple[Tensor, ...]) -> Tensor:
        """ŷ from all resolutions together."""
        if self.task == "classification":
            return self.head(torch.cat([part.mean(dim=(2, 3)) for part in z], dim=1))  # (N, k)
        finest = z[0].shape[2:]
        same = [z[0], *(F.interpolate(part, finest, mode="bilinear", align_corners=False) for part in z[1:])]
        return self.head(torch.cat(same, dim=1))  # (N, k, H, W)
