"""Random changes of images: they are moved by up to two pixels, or mirrored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..checks import one_of

REACH = 2  # pixels to each side


def shifts(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to `REACH` pixels along both sides; its border is repeated where it moved in."""
    n, _, height, width = x.shape
    by = torch.randint(-REACH, REACH + 1, (2, n, 1), generator=generator)
    rows, columns = (
        (torch.arange(size) + move).clamp(0, size - 1).to(x.device)
        for size, move in zip((height, width), by, strict=True)
    )
    each = torch.arange(n, device=x.device)[:, None, None]
    return x[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def flips(x: Tensor, generator: torch.Generator) -> Tensor:
    """About half of the images with left and right exchanged."""
    chosen = torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5
    return torch.where(chosen.to(x.device), x.flip(3), x)


AUGMENTATIONS = {"shifts": shifts, "flips": flips}


def named(augment: str | None) -> tuple[str, ...]:
    """The names in "shifts,flips"; a ValueError names one that is not known."""
    names = () if augment is None else tuple(augment.split(","))
    for name in names:
        one_of("augment", name, AUGMENTATIONS)
    return names


def augmented(x: Tensor, names: Sequence[str], seed: int) -> Tensor:
    """Images (N, C, H, W) changed by each of the named augmentations, as the seed decides."""
    if names and x.ndim != 4:
        raise ValueError(f"augment is for images, (N, C, H, W). Got shape {tuple(x.shape)} instead.")
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        x = AUGMENTATIONS[name](x, generator)
    return x
