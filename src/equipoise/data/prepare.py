"""From a data set to the X and y of a paper's experiment: pure functions, each one step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from equipoise.data.dataset import Array, Dataset, Provenance
from equipoise.data.errors import DataError, some

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601 weights of red, green and blue


def two_classes(
    dataset: Dataset,
    classes: tuple[int, int] = (0, 1),
    per_class: int = 500,
    seed: int = 0,
    test_per_class: int = 500,
) -> Dataset:
    """Random samples of two classes, relabelled 0 and 1 in the given order    [gao2022, §7], [ling2023, §5]

    Training samples are drawn from the training part. Unseen test samples are drawn from the test part and,
    where that holds too few, from the training samples not drawn; the provenance says how many.
    """
    if not dataset.classes:
        raise DataError(f"{dataset.name} is a regression: it has no classes")
    if len(classes) != 2 or classes[0] == classes[1]:
        raise DataError(f"classes must be two different labels; got {classes}")
    last = len(dataset.classes) - 1
    if not all(0 <= label <= last for label in classes):
        raise DataError(f"classes must be labels of {dataset.name}, 0 … {last}; got {classes}")
    if per_class < 1 or test_per_class < 0:
        raise DataError(
            f"each class needs at least 1 training and 0 test samples; got {per_class}, {test_per_class}"
        )
    rng = np.random.default_rng(seed)
    train, test, notes = [], [], []
    for label in classes:
        seen, unseen = (
            rng.permutation(np.flatnonzero(y == label)) for y in (dataset.y_train, dataset.y_test)
        )
        borrowed = max(0, test_per_class - len(unseen))
        if per_class + borrowed > len(seen):
            raise DataError(
                f"{dataset.name} has {len(seen)} training and {len(unseen)} test samples of class {label}; "
                f"{per_class} for training and {test_per_class} unseen were asked for"
            )
        train.append(dataset.x_train[seen[:per_class]])
        test += [dataset.x_test[unseen[:test_per_class]], dataset.x_train[seen[per_class:][:borrowed]]]
        if borrowed:
            notes.append(f"{borrowed} unseen samples of class {label} taken from the training part")
    i, j = rng.permutation(2 * per_class), rng.permutation(2 * test_per_class)
    drawn = f"classes {classes}: {per_class} training and {test_per_class} test samples each, seed {seed}"
    return replace(
        dataset,
        x_train=np.concatenate(train)[i],
        y_train=np.repeat([0, 1], per_class)[i],
        x_test=np.concatenate(test)[j],
        y_test=np.repeat([0, 1], test_per_class)[j],
        classes=(dataset.classes[classes[0]], dataset.classes[classes[1]]),
        provenance=_within(dataset, "; ".join([drawn, *notes])),
    )


def subsample(dataset: Dataset, train: int = 100, test: int = 100, seed: int = 0) -> Dataset:
    """`train` random training and `test` random test samples of all classes    [kawaguchi2021, App. D]"""
    for part, asked, there in (("training", train, dataset.x_train), ("test", test, dataset.x_test)):
        if not 0 <= asked <= len(there):
            raise DataError(f"{dataset.name} has {len(there)} {part} samples; {asked} were asked for")
    rng = np.random.default_rng(seed)
    i, j = rng.permutation(len(dataset.x_train))[:train], rng.permutation(len(dataset.x_test))[:test]
    return replace(
        dataset,
        x_train=dataset.x_train[i],
        y_train=dataset.y_train[i],
        x_test=dataset.x_test[j],
        y_test=dataset.y_test[j],
        provenance=_within(dataset, f"{train} training and {test} test samples, seed {seed}"),
    )


def _within(dataset: Dataset, what: str) -> Provenance:
    before = dataset.provenance.subset
    return replace(dataset.provenance, subset=f"{what}; drawn from a {before}" if before else what)


def grey(images: Array) -> Array:
    """0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), N × H × W float64; grey images keep their values"""
    if images.ndim == 4 and images.shape[3] == 3:
        return images.astype(np.float64) @ np.array(LUMA)
    if images.ndim == 3:
        return images.astype(np.float64)
    raise DataError(f"images must be N × H × W or N × H × W × 3; got shape {images.shape}")


def resize(images: Array, size: int) -> Array:
    """size × size pixels, float64, by bilinear interpolation (pixel centres; antialiased when shrinking)"""
    if images.ndim not in (3, 4):
        raise DataError(f"images must be N × H × W or N × H × W × C; got shape {images.shape}")
    if size < 1:
        raise DataError(f"size must be at least 1; got {size}")
    planes = images.astype(np.float64)
    planes = planes[:, None] if images.ndim == 3 else planes.transpose(0, 3, 1, 2)  # (N, C, H, W)
    small = torch.nn.functional.interpolate(
        torch.from_numpy(np.ascontiguousarray(planes)), (size, size), mode="bilinear", antialias=True
    ).numpy()
    return small[:, 0] if images.ndim == 3 else np.ascontiguousarray(small.transpose(0, 2, 3, 1))


def flatten(images: Array) -> Array:
    """One row for each sample, (N, pixels), float64."""
    if images.ndim < 2:
        raise DataError(f"a batch of samples is required; got shape {images.shape}")
    return images.reshape(len(images), -1).astype(np.float64)


def unit_norm(X: Array, norm: float | Literal["sqrt_d"] = 1.0) -> Array:
    """x_i ↦ norm · x_i / ‖x_i‖; "sqrt_d" is √d, the radius of [ling2023]"""
    X = _rows(X)
    radius = math.sqrt(X.shape[1]) if norm == "sqrt_d" else norm
    if isinstance(radius, str) or not 0 < radius < math.inf:
        raise DataError(f"norm must be a positive number or 'sqrt_d'; got {norm!r}")
    largest = np.abs(X).max(axis=1, keepdims=True)  # divided out first: squares neither overflow nor vanish
    _no_rows(largest[:, 0] == 0, "is zero and has no direction: remove it")
    X = X / largest
    return X * (radius / np.linalg.norm(X, axis=1, keepdims=True))


def random_projection(X: Array, features: int = 150, seed: int = 0) -> Array:
    """x ↦ R x, R (features, pixels) with entries N(0, 1)/√features    [kawaguchi2021, App. D]

    R depends on the seed and the number of columns alone, so training and test rows projected with one seed
    meet the same R.
    """
    X = _rows(X)
    if features < 1:
        raise DataError(f"features must be at least 1; got {features}")
    R = np.random.default_rng(seed).standard_normal((features, X.shape[1])) / math.sqrt(features)
    return X @ R.T  # (N, features)


def teacher_targets(X: Array, gamma: float = 0.8, seed: int = 0) -> Array:
    """y = B* z*(x; A*) + N(0, 1), with z* = γ softmax_columns(A*) z* + x    [kawaguchi2021, App. D]

    A* (m, m) and B* (1, m) are standard normal, m the columns of X; returns (N, 1). Pass training and test
    rows together, then divide: one teacher labels both, and no noise is used twice.
    """
    X = _rows(X)
    if not 0 < gamma < 1:
        raise DataError(f"gamma must lie in (0, 1), where the equilibrium exists; got {gamma}")
    rng, m = np.random.default_rng(seed), X.shape[1]
    A, B = rng.standard_normal((m, m)), rng.standard_normal((1, m))
    E = np.exp(A - A.max(axis=0))
    S = E / E.sum(axis=0)  # columns sum to 1
    Z = np.linalg.solve(np.eye(m) - gamma * S, X.T).T  # (N, m) = X (I − γS)⁻ᵀ
    return Z @ B.T + rng.standard_normal((len(X), 1))


def zero_one(y: Array, classes: tuple[int, int] = (0, 1)) -> Array:
    """0 for the first class, 1 for the second, (N,) float64"""
    _labels(y, classes)
    return (y == classes[1]).astype(np.float64)


def one_hot(y: Array, classes: int) -> Array:
    """Row i is the unit vector of class y_i, (N, classes) float64"""
    _labels(y, range(classes))
    return np.eye(classes)[y.astype(np.intp)]


def _rows(X: Array) -> Array:
    if X.ndim != 2 or 0 in X.shape:
        raise DataError(f"a matrix (N, d) is required; got shape {X.shape} (images: flatten them first)")
    X = X.astype(np.float64)
    _no_rows(np.logical_not(np.isfinite(X).all(axis=1)), "holds NaN or infinity: remove or repair it")
    return X


def _labels(y: Array, classes: Sequence[int]) -> None:
    if y.ndim != 1:
        raise DataError(f"labels must be of shape (N,); got {y.shape}")
    _no_rows(~np.isin(y, list(classes)), f"has a label outside {list(classes)}")


def _no_rows(bad: Array, what: str) -> None:
    if bad.any():
        rows = [f"row {i}" for i in np.flatnonzero(bad)]
        raise DataError(f"{rows[0]} {what}" + (f"; so with {some(rows[1:], 9)}" if len(rows) > 1 else ""))
