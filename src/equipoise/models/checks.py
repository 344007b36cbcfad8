"""What a constructor or a call must be given: each check says what was required and what came."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..differentiate.equation import under_transform
from ..solve import Solution


def refuse_nonfinite(name: str, T: Tensor) -> None:
    """A ValueError that names the rows of T (N, …) with NaN or infinity.

    Under a transform or a compiler and on the meta device there are no numbers to look at: nothing is
    checked.
    """
    if torch.compiler.is_compiling() or T.is_meta or under_transform():
        return
    if bool(torch.isfinite(T.sum())):  # one pass; an overflow goes on to the rows
        return
    bad = torch.nonzero(~torch.isfinite(T).flatten(1).all(dim=1)).flatten().tolist()
    if not bad:
        return
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    rows = ", ".join(f"row {i}" for i in bad[:5])
    raise ValueError(f"{name} must be finite. Got NaN or infinity in {rows}{more}.")


def slope_at_zero(value: float) -> float:
    """relu'(0) as chosen: 0 or 1."""
    if value not in (0, 1):
        raise ValueError(f"relu_at_zero must be 0 or 1, the slope of relu at a tie. Got {value!r} instead.")
    return value


def as_count(value: Any) -> int:
    """An integer ≥ 1 of any library as Python's own; 0 for anything else."""
    try:
        return 0 if isinstance(value, bool) else max(operator.index(value), 0)
    except TypeError:
        return 0


def count(name: str, value: Any) -> int:
    """`value` as Python's own int; it must be an integer ≥ 1, of any library."""
    if not (whole := as_count(value)):
        raise ValueError(f"{name} must be an integer ≥ 1. Got {value!r} instead.")
    return whole


def counts(**numbers: int) -> tuple[int, ...]:
    """The numbers, which must be integers ≥ 1, in the order in which they came."""
    return tuple(count(name, value) for name, value in numbers.items())


def odd(**numbers: int) -> tuple[int, ...]:
    """The numbers, which must be odd integers ≥ 1: a convolution with an odd kernel keeps the size."""
    for name, value in zip(numbers, counts(**numbers), strict=True):
        if value % 2 == 0:
            raise ValueError(
                f"{name} must be odd, so that a convolution keeps the size. Got {value} instead."
            )
    return counts(**numbers)


def all_counts(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """`values` as a tuple, which must be a sequence of integers ≥ 1."""
    numbers = tuple(map(as_count, values)) if isinstance(values, Sequence) else (0,)
    if 0 in numbers:
        raise ValueError(f"{name} must be a sequence of integers ≥ 1. Got {values!r} instead.")
    return numbers


def positive_finite(**numbers: float) -> None:
    """Raise a ValueError unless every number is positive and finite."""
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be > 0 and finite. Got {value!r} instead.")


def finite_matrix(name: str, M: Tensor) -> None:
    """A ValueError that names the first entry of M (n, m) that is NaN or infinite."""
    if not bool(torch.isfinite(M).all()):
        i, j = torch.nonzero(~torch.isfinite(M))[0].tolist()
        raise ValueError(f"{name} must be finite. Got {M[i, j].item()} at [{i}, {j}] instead.")


# -- what a model is called with -------------------------------------------------------------------------


def check_rows(X: Tensor, inputs: int, like: Tensor) -> None:
    """X must be (N, d), finite, and of the parameters' dtype and device."""
    if not isinstance(X, Tensor):
        raise TypeError(f"X must be a tensor, (N, {inputs}). Got {type(X).__name__} instead.")
    if X.ndim != 2 or X.shape[1] != inputs:
        hint = " A single sample is X[None]." if X.ndim == 1 else ""
        raise ValueError(
            f"X must be (N, {inputs}), one row for each sample. Got shape {tuple(X.shape)} instead.{hint}"
        )
    same_place("X", X, like)
    refuse_nonfinite("X", X)


def same_place(name: str, X: Tensor, like: Tensor) -> None:
    """Raise a ValueError unless X has the dtype and the device of the parameters."""
    if X.dtype != like.dtype or X.device != like.device:
        raise ValueError(
            f"{name} must be {like.dtype} on {like.device} like the parameters. "
            f"Got {X.dtype} on {X.device} instead: {name}.to(…) or model.to(…) makes them agree."
        )


def given_start(start: Any, shape: tuple[int, ...], name: str = "start") -> Tensor | None:
    """The state that a start holds, detached, which must be of this shape; None where there is none."""
    value = start.value if isinstance(start, Solution) else start
    if value is None:
        return None
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be {shape}, {shape[0]} rows like X. Got {got} instead.")
    return value.detach()


# -- feature maps ----------------------------------------------------------------------------------------


def checked_map(feature_map: Any, features: int) -> Any:
    """`feature_map`, which must be callable or None."""
    if feature_map is not None and not callable(feature_map):
        raise TypeError(
            f"feature_map must be a function from X to (N, {features}). Got {feature_map!r} instead; a "
            f"file holds its name alone, so pass it to load(path, feature_map=…)."
        )
    return feature_map


def features_of(feature_map: Callable[[Tensor], Tensor], X: Tensor, features: int) -> Tensor:
    """φ(X), which must be (N, features) and finite."""
    Phi = feature_map(X)
    if tuple(Phi.shape) != (len(X), features):
        raise ValueError(
            f"feature_map must return {(len(X), features)}, one row for each sample. "
            f"Got shape {tuple(Phi.shape)} instead."
        )
    refuse_nonfinite("feature_map(X)", Phi)
    return Phi


def name_of(function: Any) -> str:
    """What a file keeps of a function: its name, or that of its class."""
    return getattr(function, "__name__", type(function).__name__)
