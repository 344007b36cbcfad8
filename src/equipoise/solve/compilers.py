"""Keep `torch.compile` away from solves: the data decide when their loops end, which no graph can express."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

NOT_EXPORTED = (
    "a network that holds an equilibrium layer cannot be exported, since its solver takes as many steps as "
    "the data ask for. Export eq.unroll(layer, …), a fixed number of steps, in its place."
)


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, wrapped so that the compiler skips it and everything that it calls.

    This is `torch.compiler.disable` without the seconds that importing the compiler takes: it is used only
    once the compiler has been imported by somebody else.
    """
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(
                sys.modules["torch._dynamo"].disable(function, wrapping=False, reason=NOT_EXPORTED)
            )
        return disabled[0](*args, **kwargs)

    return inner
