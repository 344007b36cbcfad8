"""From a named data set to the X and y of the papers' experiments, as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data import Dataset, prepare

Images = tuple[Tensor, Tensor, Tensor, Tensor]  # x, y, x_test, y_test


@dataclass(frozen=True)
class TwoClasses:
    """Training and test rows of classes 0 and 1."""

    X: Tensor  # (N, d)
    y: Tensor  # (N,) or (N, k)
    X_test: Tensor
    y_test: Tensor


def room(dataset: Dataset, per_class: int) -> tuple[int, int]:
    """How many of classes 0 and 1 can be had to train and to test: `per_class` each, or what there is."""
    train, test = (min(int(np.sum(y == c)) for c in (0, 1)) for y in (dataset.y_train, dataset.y_test))
    used = min(per_class, train * 4 // 5 if test < per_class else train)
    return used, min(per_class, test + train - used)


def two_classes(
    dataset: Dataset,
    per_class: int,
    seed: int,
    *,
    side: int = 28,
    norm: float | Literal["sqrt_d"] = 1.0,
    dtype: torch.dtype = torch.float32,
) -> TwoClasses:
    """Classes 0 and 1, grey, side × side, rows of one norm, targets 0 and 1  [gao2022, §7], [ling2023, §5]"""
    used, unseen = room(dataset, per_class)
    drawn = prepare.two_classes(dataset, per_class=used, seed=seed, test_per_class=unseen)

    def rows(images: np.ndarray) -> Tensor:
        grey = prepare.grey(images)
        small = prepare.resize(grey, side) if grey.shape[1] != side else grey
        return torch.from_numpy(prepare.unit_norm(prepare.flatten(small), norm)).to(dtype)

    labels = lambda y: torch.from_numpy(prepare.zero_one(y)).to(dtype)
    return TwoClasses(rows(drawn.x_train), labels(drawn.y_train), rows(drawn.x_test), labels(drawn.y_test))


def two_classes_in_words(
    dataset: Dataset,
    per_class: int,
    *,
    side: int = 28,
    norm: float | Literal["sqrt_d"] = 1.0,
    seed: str = "the seed of the run",
    test: bool = True,
) -> str:
    """What `two_classes` takes and makes of it; without `test`, where the test samples are not used."""
    used, unseen = room(dataset, per_class)
    borrowed = [max(0, unseen - int(np.sum(dataset.y_test == c))) for c in (0, 1)]
    first, second = (
        f"{c}" if name == str(c) else f"{c} ({name})" for c, name in enumerate(dataset.classes[:2])
    )
    counted = f"{used} training and {unseen} test" if test else f"{used} training"
    words = f"classes {first} and {second}: {counted} samples of each, drawn by {seed}"
    if test and any(borrowed):
        words += f", {borrowed[0]} and {borrowed[1]} test samples from the training part that is left"
    radius = "√d" if norm == "sqrt_d" else f"{norm:g}"
    return f"{words}; grey, {side} × {side} pixels, rows of norm {radius}, targets 0 and 1"


def images(dataset: Dataset, train: int, test: int, seed: int, shrink: int = 1) -> Images:
    """`train` and `test` random images, (N, C, H, W) float32, each channel of mean 0 and variance 1."""
    rng = np.random.default_rng(seed)
    i = rng.permutation(len(dataset.x_train))[:train]
    j = rng.permutation(len(dataset.x_test))[:test]

    def pixels(x: np.ndarray) -> Tensor:
        t = torch.from_numpy(x).float() / float(dataset.x_train.max())
        t = t[:, None] if t.ndim == 3 else t.permute(0, 3, 1, 2)
        return F.avg_pool2d(t, shrink) if shrink > 1 else t.contiguous()

    x, x_test = pixels(dataset.x_train[i]), pixels(dataset.x_test[j])
    mean, std = x.mean(dim=(0, 2, 3), keepdim=True), x.std(dim=(0, 2, 3), keepdim=True)
    labels = (torch.from_numpy(part).long() for part in (dataset.y_train[i], dataset.y_test[j]))
    y, y_test = labels
    return (x - mean) / std, y, (x_test - mean) / std, y_test


def images_in_words(dataset: Dataset, train: int, test: int, shrink: int = 1) -> str:
    """What `images` takes and makes of it."""
    train, test = min(train, len(dataset.x_train)), min(test, len(dataset.x_test))
    words = f"{train} training and {test} test images of all classes, drawn by the seed of the run; "
    words += f"means over {shrink} × {shrink} pixels, " if shrink > 1 else ""
    return f"{words}each channel of mean 0 and variance 1 over the training images"


def augmented(x: Tensor, generator: torch.Generator, most: int = 3) -> Tensor:
    """Mirror each image with probability ½, and move all of them by the same 0 … `most` pixels."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5
    x = F.pad(torch.where(mirrored, x.flip(3), x), [most] * 4)
    top, left = torch.randint(2 * most + 1, (2,), generator=generator).tolist()
    return x[:, :, top : x.shape[2] - 2 * most + top, left : x.shape[3] - 2 * most + left].contiguous()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, batch: int = 500) -> float:
    """The share of images classified right."""
    right = [
        (model(a).argmax(1) == b).sum().item() for a, b in zip(x.split(batch), y.split(batch), strict=True)
    ]
    return sum(right) / len(y)
