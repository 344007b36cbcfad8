"""In which dtype a map computes under autocast, which computes products in a lower one except in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

Method = TypeVar("Method", bound=Callable[..., Any])


def compute_dtype(z: Tensor) -> torch.dtype:
    """The dtype that limits the residual: under autocast the lower one, unless z is float64, which stays."""
    kind = z.device.type
    lowered = z.dtype != torch.float64 and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if lowered else z.dtype


def full_precision(z: Tensor) -> AbstractContextManager[None]:
    """A context in which products are computed in the dtype of z, with autocast or without."""
    kind = z.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def unlowered(method: Method) -> Method:
    """Keep autocast away from a method of a family: it computes in the dtype of its parameters."""

    @functools.wraps(method)
    def inner(self: Any, *args: Any, **kwargs: Any) -> Any:
        with full_precision(self.readout_weight):
            return method(self, *args, **kwargs)

    return inner  # type: ignore[return-value]
