"""X (N, d) and z⁰ (N, m): what an OptEq model is called with, checked."""

from __future__ import annotations

import torch
from torch import Tensor

from ...solve import Solution
from ..checks import refuse_nonfinite


def check_rows(X: Tensor, inputs: int, like: Tensor) -> None:
    """X must be (N, d), finite, and of the parameters' dtype and device."""
    if X.ndim != 2 or X.shape[1] != inputs:
        hint = " A single sample is X[None]." if X.ndim == 1 else ""
        raise ValueError(
            f"X must be (N, {inputs}), a row a sample. Got shape {tuple(X.shape)} instead.{hint}"
        )
    if X.dtype != like.dtype or X.device != like.device:
        raise ValueError(
            f"X must be {like.dtype} on {like.device} like the parameters. "
            f"Got {X.dtype} on {X.device} instead: X.to(…) or model.to(…) makes them agree."
        )
    refuse_nonfinite("X", X)


def checked_start(start: Tensor | Solution | None, shape: tuple[int, int], like: Tensor) -> Tensor:
    """z⁰, detached: zero if none is given; else of this shape, and of the parameters' dtype and device."""
    value = start.value if isinstance(start, Solution) else start
    if value is None:
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"start must be {shape}, {shape[0]} rows like X. Got {got} instead.")
    if value.dtype != like.dtype or value.device != like.device:
        raise ValueError(
            f"start must be {like.dtype} on {like.device} like the parameters. "
            f"Got {value.dtype} on {value.device} instead."
        )
    return value.detach()
