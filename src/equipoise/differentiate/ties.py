"""Which entries of an equilibrium are exactly 0, and which are merely small: only the former take relu'(0).

An iterate does not tell. An entry that is 0 at the equilibrium may decay towards 0 without reaching it, and
an entry that is not 0 there may still be exactly 0 in the iterate, at the end of a chain of units that the
solve has not yet reached. In both cases the gradient would take the wrong slope.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_ROUNDS = 100
_STILL = 1e-3  # the relative change below which an entry has come to rest: its sign is what counts


def settle(f: Callable[..., Tensor], z: Tensor, near: Tensor, by_rows: bool = False) -> Tensor:
    """z, with exact zeros among the entries marked by `near` and all others as they are.

    `near` marks entries that are 0 within the error of z. All of them are set to 0. Those that f then moves
    away from 0 are not 0 and get back their value in z, if it is not 0. This is repeated until f agrees. An
    entry that is 0 at the equilibrium stays exactly 0, and since the equilibrium is unique, no other does. A
    row on which no agreement is reached is left as it is.

    `by_rows`: z is (N, m) and `f(now, rows)` is f on some of its rows. Those that agree leave the next round.
    """
    out, rows = z.clone(), torch.arange(len(z), device=z.device)
    now = z.masked_fill(near, 0.0)
    for _ in range(_ROUNDS):
        image = f(now, rows) if by_rows else f(now)
        new = torch.where(near, torch.where((image != 0) & (z != 0), z, image), z)
        still = ((new != 0) == (now != 0)) & ((new - now).abs() <= _STILL * new.abs())
        agreed = still.all(dim=1) if by_rows else still.all().expand(len(z))
        if bool(agreed.any()):
            out[rows[agreed]] = new[agreed]
            left = ~agreed
            if not bool(left.any()):
                break
            new, z, near, rows = new[left], z[left], near[left], rows[left]
        now = new
    return out
