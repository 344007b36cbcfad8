"""Hooks, overridden methods and parametrisations: changes of a model that no theorem knows about.

Certificates, bounds, exports and formulas describe a family by its stored parameters and its own methods.
All of them ask here whether a model still computes what its family says.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules
from torch.nn.utils import parametrize

# Modules before and after the equilibrium: a change to one of them leaves the equation as it is.
OUTSIDE = ("feature_map", "extractor", "scales", "last_norm", "head")
_SOURCES = ("_orig", "_v")  # suffixes of the parameter behind W: of spectral_norm and prune, of weight_norm
# What a subclass may redefine without changing anything that is computed.
_FREE = {"__init__", "__repr__", "__str__", *vars(type("Empty", (), {}))}
_FREE |= {"extra_repr", "described", "config", "settings"}
_FREE |= {"__annotations__", "__annotate__", "__annotate_func__", "__static_attributes__", "__firstlineno__"}
_FREE |= {"__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__qualname__"}
_SEALED: dict[type, dict[str, Any]] = {}  # the members that a family of the library was defined with
# Functions of torch that compute nothing, of which other libraries replace some.
_SIDE = {"load", "save", "compile", "seed", "initial_seed", "manual_seed", "set_printoptions"}
_SIDE |= {"get_num_threads", "set_num_threads", "get_num_interop_threads", "set_num_interop_threads"}
_SIDE |= {"__repr__", "__str__", "__format__", "__dir__"}  # not what copies tensors: a copy is certified
_TORCH = [
    (room, name, getattr(room, name))
    for room in (torch, F, Tensor)
    for name in dir(room)
    if name not in _SIDE and inspect.isroutine(getattr(room, name))
]  # functions and methods, as they were when this was imported
Model = TypeVar("Model", bound=nn.Module)


def altered(model: nn.Module, outside: Collection[str] = OUTSIDE, patched: bool = True) -> str:
    """Why `model(X)` may compute something else than its family with the stored parameters; else empty.

    A weight that is recomputed at each call (torch.nn.utils.spectral_norm, prune, a parametrisation) may
    differ from the one that was certified. A hook may change anything, and so may a method of a subclass, of
    the class or of the instance that replaces that of the family. A subclass that overrides nothing counts as
    its family. So does one that a user derives from an abstract family, which has no methods to keep. The
    parts of the model that are named in `outside` are ignored. `patched` says whether to look for classes
    that were changed after their definition.
    """
    if of_all_modules._global_forward_pre_hooks or of_all_modules._global_forward_hooks:
        return (
            f"a hook around the forward of all modules may change what {type(model).__name__} computes: "
            f"handle.remove() takes it off."
        )
    if patched and (replaced := next(_replaced(), "")):
        return (
            f"the function {replaced} was replaced after equipoise was imported, so that "
            f"{type(model).__name__} may compute something else: the function as it was leaves what can be "
            f"certified."
        )
    for name, module in model.named_modules():
        if name.partition(".")[0] in outside:
            continue
        own = not parametrize.is_parametrized(module)  # torch gives a parametrised module a class of its own
        if own and (changed := list(dict.fromkeys(_overridden(module)))):
            return _of_another_class(name, module, changed)
        what, remedy = _change(module, patched)
        if what:
            where = f"{type(model).__name__}.{name}" if name else type(model).__name__
            return (
                f"{where} has {what}, so that a call may use other weights, or another map, than are known "
                f"here: {remedy} leaves what can be certified."
            )
    return ""


def _change(module: nn.Module, patched: bool) -> tuple[str, str]:
    """What a module has that may change a call, and what takes it off; empty if there is nothing."""
    tensors = [n for n, value in vars(module).items() if isinstance(value, Tensor)]
    if parametrize.is_parametrized(module):
        first = next(iter(vars(module)["_modules"]["parametrizations"]))
        return f"a parametrised weight (parametrizations.{first})", "parametrize.remove_parametrizations(…)"
    if made := [n for n in tensors if any(n + end in module._parameters for end in _SOURCES)]:
        return f"{made[0]} computed at each call", "remove_spectral_norm(…) or prune.remove(…)"
    if tensors:
        remedy = f"nn.Parameter({tensors[0]}) in its place, or del model.{tensors[0]},"
        return f"a tensor {tensors[0]} that is no parameter", remedy
    if module._forward_pre_hooks or module._forward_hooks:
        return "a hook around forward", "handle.remove()"
    kinds = {n: type(p) for n, p in module._parameters.items() if p is not None}
    if loud := [n for n, kind in kinds.items() if kind not in (nn.Parameter, Tensor)]:
        what = f"a parameter {loud[0]} of a class of its own, which may change what torch computes"
        return what, f"nn.Parameter of its numbers in place of {loud[0]}"
    compiled = module._compiled_call_impl
    if compiled and getattr(compiled, "_torchdynamo_orig_callable", None) != module._call_impl:
        return "a compiled call that is not its own", "module._compiled_call_impl = None"
    if own := [n for n in vars(module) if callable(getattr(type(module), n, None))]:
        return f"an attribute {own[0]} in place of its method", f"del model.{own[0]}"
    if patched and (changed := list(dict.fromkeys(_patched(type(module))))):
        return f"a class whose {', '.join(changed)} was changed after its definition", "the class as it was"
    return "", ""


def _of_another_class(name: str, module: nn.Module, changed: list[str]) -> str:
    """Why nothing is known of a module whose class changes methods of its family."""
    kind, family = type(module).__name__, family_of(type(module)).__name__
    what = f"{kind} changes {', '.join(changed)} of {family}: {kind}"
    if name:
        place = re.sub(r"[.]([0-9]+)", r"[\1]", name)
        what = f"{place} is of the class {kind}, which"
    return (
        f"{what} may compute otherwise than {family}, which is known. Take a {family} with its "
        f"parameters (load_state_dict); modules of your own can stand around it."
    )


def family_of(kind: type) -> type:
    """The class of the library, or of torch, that a user's class is derived from; or itself."""
    return next(c for c in kind.__mro__ if _is_library(c.__module__))


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("equipoise", "torch")


def _overridden(module: nn.Module) -> Iterator[str]:
    """The members that a user's class, derived from a family, defines in place of the family's own."""
    family = family_of(type(module))
    if inspect.isabstract(family) or family in (nn.Module, object):
        return
    known = {*dir(family), *vars(module), *module._parameters, *module._buffers, *module._modules}
    for kind in type(module).__mro__:
        if kind is family:
            return
        yield from (name for name in vars(kind) if name in known and name not in _FREE)


def seal(kind: type) -> None:
    """Remember the members that a class of the library, and those it derives from, were defined with."""
    for c in kind.__mro__:
        if _is_library(c.__module__) and c.__module__.startswith("equipoise"):
            _SEALED.setdefault(c, dict(vars(c)))


def _patched(kind: type) -> Iterator[str]:
    """The members of classes of the library and of torch that somebody else has replaced."""
    for c in kind.__mro__:
        if not _is_library(c.__module__):
            continue
        before = _SEALED.get(c)
        for name, value in vars(c).items():
            if name in _FREE:
                continue
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            foreign = inspect.isfunction(function) and not _is_library(function.__module__ or "")
            if foreign or (before is not None and before.get(name, _SEALED) is not value):
                yield name


def _replaced() -> Iterator[str]:
    """The functions of torch that somebody else has replaced; torch itself wraps some when it compiles."""
    for room, name, before in _TORCH:
        now = getattr(room, name, None)
        if now is not before and not _is_library(getattr(now, "__module__", None) or "torch"):
            yield f"{room.__name__}.{name}"


def tied(model: nn.Module) -> str:
    """Which parameters share memory, so that a step of one moves the other; empty if none do.

    A theorem about training moves each of them by its own rule. Statements about a network as it stands hold
    with ties too.
    """
    places: dict[int, list[tuple[str, Tensor]]] = {}
    for name, own in model.named_parameters(remove_duplicate=False):
        places.setdefault(own.untyped_storage().data_ptr(), []).append((name, own.detach()))
    for group in places.values():
        if len(group) == 1 and group[0][1].is_contiguous():
            continue
        length = max(p.untyped_storage().nbytes() // p.element_size() for _, p in group)
        owner = torch.full((length,), -1)
        for i, (name, p) in enumerate(group):
            cells = owner.as_strided(p.shape, p.stride(), p.storage_offset())
            other = group[int(cells.max())][0] if bool((cells >= 0).any()) else ""
            cells.fill_(i)
            if not p.is_contiguous() and int((owner == i).sum()) < p.numel():
                other = other or name
            if other:
                return (
                    f"{type(model).__name__}.{name} and {other} share memory: a step of one moves the other, "
                    f"and the theorem moves each by its own rule. nn.Parameter({name}.detach().clone()) in "
                    f"its place unties them."
                )
    return ""


def double(model: Model, device: torch.device) -> Model:
    """A copy in float64, the exact values of the stored numbers.

    Weights that are computed at each call are copied as numbers: torch copies no tensor that has a graph.
    """
    computed = [t for module in model.modules() for t in vars(module).values() if isinstance(t, Tensor)]
    twin = copy.deepcopy(model, {id(t): t.detach().to(device).double() for t in computed})
    return twin.to(device).double().requires_grad_(False)
