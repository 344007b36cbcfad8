"""Hooks, parametrisations, attributes: what torch lets a user change in a module, and no theorem knows of."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

# Modules before and behind the equilibrium, whose own changes leave its equation what it is.
OUTSIDE = ("feature_map", "extractor", "scales", "last_norm", "head")
_SOURCES = ("_orig", "_v")  # of spectral_norm and prune, of weight_norm: the parameter that W is computed of
Model = TypeVar("Model", bound=nn.Module)


def altered(model: nn.Module, outside: Collection[str] = OUTSIDE) -> str:
    """Why `model(X)` may compute otherwise than the stored parameters say; empty if nothing does.

    A weight that is recomputed at each call (torch.nn.utils.spectral_norm, prune, a parametrisation) may be
    another one than was certified, and a hook may change anything. The parts of the model that are named in
    `outside` are passed over.
    """
    for name, module in model.named_modules():
        if name.partition(".")[0] in outside:
            continue
        where = f"{type(model).__name__}.{name}" if name else type(model).__name__
        tensors = [n for n, value in vars(module).items() if isinstance(value, Tensor)]
        if parametrize.is_parametrized(module):
            what, remedy = "a parametrised weight", "parametrize.remove_parametrizations(…)"
        elif made := [n for n in tensors if any(n + end in module._parameters for end in _SOURCES)]:
            what, remedy = f"{made[0]} computed at each call", "remove_spectral_norm(…) or prune.remove(…)"
        elif tensors:
            what = f"a tensor {tensors[0]} that is no parameter"
            remedy = f"nn.Parameter({tensors[0]}) in its place, or del model.{tensors[0]},"
        elif module._forward_pre_hooks or module._forward_hooks:
            what, remedy = "a hook around forward", "handle.remove()"
        elif own := [n for n in vars(module) if callable(getattr(type(module), n, None))]:
            what, remedy = f"an attribute {own[0]} in place of its method", f"del model.{own[0]}"
        else:
            continue
        return (
            f"{where} has {what}, so that a call may use other weights, or another map, than are known here: "
            f"{remedy} leaves what can be certified."
        )
    return ""


def double(model: Model, device: torch.device) -> Model:
    """A copy in float64, the exact values of the stored numbers.

    Weights that are computed at each call are copied as they are: torch copies none that has a gradient.
    """
    computed = [t for module in model.modules() for t in vars(module).values() if isinstance(t, Tensor)]
    twin = copy.deepcopy(model, {id(t): t.detach().to(device).double() for t in computed})
    return twin.to(device).double().requires_grad_(False)
