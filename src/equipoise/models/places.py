"""A module called with other tensors in place of its own, each wherever it is registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each once, by the first name it is registered under."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, t in (*module.named_parameters(), *module.named_buffers()):
        found.setdefault(id(t), (name, t))
    return dict(found.values())


def places_of(module: nn.Module) -> dict[str, str]:
    """For every place that holds a tensor, the name that this tensor has in `tensors_of`.

    A place is an attribute of one module, however many names the module itself has. Torch takes two names of
    one module for two places and swaps the new tensor in twice: the second time it saves the new tensor as if
    it were the module's own, which is then lost.
    """
    first = {id(t): name for name, t in tensors_of(module).items()}
    return {
        f"{path}.{name}" if path else name: first[id(t)]
        for path, part in module.named_modules()
        for name, t in (*part._parameters.items(), *part._buffers.items())
        if t is not None
    }


def call_with(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    options: dict[str, Any] | None = None,
    places: Mapping[str, str] | None = None,
) -> Any:
    """module(*args, **options) with these tensors, by the names of `tensors_of`, in place of its own."""
    where = (places or places_of(module)).items()
    put = {place: tensors[name] for place, name in where if name in tensors}
    return torch.func.functional_call(module, put, args, options, tie_weights=False)
