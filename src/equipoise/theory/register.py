"""Which facts are known of which family: the register that `@facts_of(Family)` writes and theorems read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from ..models.altered import family_of

if TYPE_CHECKING:
    from .facts import Facts

_REGISTER: dict[type[nn.Module], type[Facts]] = {}
Kind = TypeVar("Kind", bound="type[Facts]")


def facts_of(family: type[nn.Module]) -> Callable[[Kind], Kind]:
    """Register a class of Facts as what is known of a family, and of the classes derived from it.

    The facts of the library's own families stay what they are.
    """

    def register(kind: Kind) -> Kind:
        if family in _REGISTER and family_of(family) is family and family_of(kind) is not kind:
            raise ValueError(
                f"facts of {family.__name__} are known already. Register {kind.__name__} for a family of "
                f"your own, which may be derived from it."
            )
        _REGISTER[family] = kind
        return kind

    return register


def find_facts(model: object) -> Facts | None:
    """The facts of a model's class, or of the nearest class it is derived from; None where there are none."""
    kind = next((c for c in type(model).__mro__ if c in _REGISTER), None)
    return None if kind is None else _REGISTER[kind](model)


def facts(model: object) -> Facts:
    """The facts of a model; a TypeError that names the families that have some, where it has none."""
    found = find_facts(model)
    if found is None:
        raise unknown(model)
    return found


def is_about(model: object, family: str) -> bool:
    """Whether the theorems about a family, given by its name, speak of this model."""
    found = find_facts(model)
    return found is not None and found.family == family


def family_in(paper: str) -> str:
    """The name of the family that the theorems of a paper are about."""
    return next(kind.family for kind in _REGISTER.values() if kind.paper == paper)


def has_own_facts(model: object) -> bool:
    """Whether facts are registered for the model's own class, and not only for one it is derived from."""
    return type(model) in _REGISTER


def unknown(model: object) -> TypeError:
    """The error for a model of which nothing is known, which lists the families of which something is."""
    roots = {f: kind for f, kind in _REGISTER.items() if _is_root(kind)}
    affine = [f for f, kind in roots.items() if kind.affine and not inspect.isabstract(f)]
    others = [f for f, kind in roots.items() if not kind.affine]
    measured = [f for f in others if roots[f].has_error]
    rest = [f for f in others if not roots[f].has_error]
    return TypeError(
        f"this is known of the affine families {_listed(affine)}; 'wellposed' and equilibrium_error also of "
        f"{_listed(measured)}, 'wellposed' of {_listed(rest)}. Got {type(model).__name__} instead: "
        f"diagnose(layer) measures any other."
    )


def _is_root(kind: type[Facts]) -> bool:
    """Whether these facts are not a variation of those of another family."""
    return not any(other is not kind and issubclass(kind, other) for other in _REGISTER.values())


def _listed(families: list[type[nn.Module]]) -> str:
    *most, last = [f.__name__ for f in families]
    return f"{', '.join(most)} and {last}" if most else last
