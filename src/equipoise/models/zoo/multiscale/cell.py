"""z_i ← norm(relu(Σ_j fuse_ij(block_j(z_j, c_j)))): one step of a state that lives at several resolutions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...images.parts import Maker, reduced


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
    fuse_ij goes up for i < j and down for i > j, so that each resolution hears of all the others in every
    step. There are no norms between resolutions: they would undo the small start of the weights, from which
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
        self.fuse = nn.ModuleList(
            nn.ModuleList(
                nn.Identity()
                if i == j
                else down(channels[j], channels[i], i - j, std, make)
                if i > j
                else Up(channels[j], channels[i], self.sizes[i], std, make)
                for j in range(len(channels))
            )
            for i in range(len(channels))
        )
        self.norms = nn.ModuleList(make.norm(groups, m) for m in channels)

    def forward(self, z: tuple[Tensor, ...], *c: Tensor) -> tuple[Tensor, ...]:
        """f(z, c), a tensor for each resolution."""
        h = [block(*parts) for block, *parts in zip(self.blocks, z, c, strict=True)]
        return tuple(self.norms[i](torch.relu(self._fused(i, h))) for i in range(len(h)))

    def _fused(self, i: int, h: Sequence[Tensor]) -> Tensor:
        """Σ_j fuse_ij(h_j)."""
        return torch.stack([self.fuse[i][j](part) for j, part in enumerate(h)]).sum(dim=0)  # type: ignore[index]
