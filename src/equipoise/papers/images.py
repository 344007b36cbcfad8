"""From a named data set to the X and y of the papers' experiments, as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..data import Dataset, prepare


@dataclass(frozen=True)
class Split:
    """Training and test rows."""

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
) -> Split:
    """Classes 0 and 1, grey, side × side, rows of one norm, targets 0 and 1  [gao2022, §7], [ling2023, §5]"""
    used, unseen = room(dataset, per_class)
    drawn = prepare.two_classes(dataset, per_class=used, seed=seed, test_per_class=unseen)

    def rows(images: np.ndarray) -> Tensor:
        grey = prepare.grey(images)
        small = prepare.resize(grey, side) if grey.shape[1] != side else grey
        return torch.from_numpy(prepare.unit_norm(prepare.flatten(small), norm)).to(dtype)

    labels = lambda y: torch.from_numpy(prepare.zero_one(y)).to(dtype)
    return Split(rows(drawn.x_train), labels(drawn.y_train), rows(drawn.x_test), labels(drawn.y_test))
