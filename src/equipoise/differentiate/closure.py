"""Find tensors that a cell reads without having been given them, and refuse those whose gradient is lost."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from .equation import Equation

_EMPTY = types.CellType()  # a variable of a closure that has no value yet


def closed_over(cell: Any, which: Callable[[Tensor], bool]) -> list[str]:
    """The names of tensors that meet `which`, or modules with such parameters, that are not registered."""

    def tracked(value: Any) -> bool:
        if isinstance(value, nn.Module):
            return any(which(p) for p in value.parameters())
        return isinstance(value, Tensor) and which(value)

    return list(dict.fromkeys(f"`{name}`" for name, value in _held(cell) if tracked(value)))


def _held(cell: Any) -> Iterator[tuple[str, Any]]:
    """What a cell may read besides its arguments: closure, globals, bound arguments, plain attributes."""
    if isinstance(cell, functools.partial):
        yield from ((f"argument {i}", value) for i, value in enumerate(cell.args))
        yield from cell.keywords.items()
        yield from _held(cell.func)
        return
    owner = getattr(cell, "__self__", cell)  # of a bound method
    if isinstance(owner, nn.Module):
        for path, module in owner.named_modules():
            plain = ((k, v) for k, v in vars(module).items() if isinstance(v, Tensor))
            yield from ((f"{path}.{name}" if path else name, value) for name, value in plain)
        if owner is not cell:  # the module is not the cell, so its parameters are held too
            yield type(owner).__name__, owner
    elif not inspect.isroutine(owner):
        yield from getattr(owner, "__dict__", {}).items()
    call = getattr(cell, "forward", None) or (cell if inspect.isroutine(cell) else type(cell).__call__)
    function = inspect.unwrap(getattr(call, "__func__", call))
    if inspect.isfunction(function):
        code, known = function.__code__, function.__globals__
        yield from ((name, known[name]) for name in code.co_names if name in known)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        yield from ((name, held.cell_contents) for name, held in cells if held != _EMPTY)


def refuse_closed_over(equation: Equation, start: Tensor, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors that f reads without having been given them: a transform loses their derivative."""
    level = torch._C._functorch.maybe_get_level
    with torch.no_grad():
        reached = level(equation(start, *tensors))
    given = max(level(t) for t in (start, *tensors))
    if reached > given or closed_over(getattr(equation, "cell", None), differentiated):
        raise RuntimeError(closed_over_message(equation, "under a torch.func transform or forward mode"))


def closed_over_message(equation: Equation, when: str) -> str:
    """Which tensors the cell closes over, why that is refused, and what to do."""
    names = closed_over(getattr(equation, "cell", None), differentiated)
    return (
        f"the cell closes over {', '.join(names) or 'a tensor'}, which only first-order eager gradients can "
        f"reach, and was used {when}. Make it a parameter of an nn.Module cell or an input of the layer, or "
        f"detach it."
    )


def differentiated(t: Tensor) -> bool:
    """Whether some derivative of t may be asked for: in eager reverse or forward mode, or by a transform."""
    if torch._C._functorch.is_functorch_wrapped_tensor(t) or (t.requires_grad and torch.is_grad_enabled()):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(t, level=0).tangent is not None
