"""Which entries of an equilibrium are 0, and which are merely small: relu'(0) is meant for the former alone.

An iterate does not tell. An entry that is 0 at the equilibrium may decay to 0 and never be there, and one
that is not may still be 0 exactly, at the end of a chain of units that the solve ended before. At a kink the
gradient follows either.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_ROUNDS = 100
_STILL = 1e-3  # the relative change below which an entry has come to rest: its sign is what counts


def settle(f: Callable[[Tensor], Tensor], z: Tensor, near: Tensor) -> Tensor:
    """z, with the entries that `near` marks where f puts them, from 0 and with the others as they are.

    `near` marks entries that are 0 within the error of z. They are taken as 0 all at once; what f then moves
    away from 0 is not 0, and returns to its value in z if it has one there. So it goes on until f agrees.
    An entry that is 0 at the equilibrium stays at 0 exactly, and since the equilibrium is unique, no other
    does. Where no agreement is reached z is left as it is.
    """
    now = z.masked_fill(near, 0.0)
    for _ in range(_ROUNDS):
        image = f(now)
        new = torch.where(near, torch.where((image != 0) & (z != 0), z, image), z)
        agreed = torch.equal(new != 0, now != 0) and bool(((new - now).abs() <= _STILL * new.abs()).all())
        if agreed:
            return new
        now = new
    return z
