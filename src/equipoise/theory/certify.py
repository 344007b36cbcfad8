"""certify(model, X, y, theorem=…): what is guaranteed about this network, on this data, now."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from . import gao2022, hieu2022, kawaguchi2021, ling2023
from .certificate import Certificate
from .instance import Instance
from .safeguarded import Safeguarded
from .two_timescale import TwoTimescale
from .wellposed import WellPosed


@runtime_checkable
class Theorem(Protocol):
    """A frozen dataclass of its free constants, with `prove(instance)`."""

    name: ClassVar[str]
    needs_targets: ClassVar[bool]

    def prove(self, instance: Instance) -> Certificate: ...


_KNOWN: tuple[type[Theorem], ...] = (
    WellPosed,
    TwoTimescale,
    Safeguarded,
    gao2022.Flow,
    gao2022.Descent,
    ling2023.Descent,
    hieu2022.Flow,
    hieu2022.Descent,
    kawaguchi2021.Theorem1,
)
THEOREMS: dict[str, type[Theorem]] = {t.name: t for t in _KNOWN}


def make_theorem(name: str, **constants: Any) -> Theorem:
    """A theorem by name; unknown names and constants are errors that list the valid ones."""
    if name not in THEOREMS:
        near = difflib.get_close_matches(name, THEOREMS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"theorem must be one of {', '.join(sorted(THEOREMS))}. Got {name!r} instead.{hint}")
    kind = THEOREMS[name]
    valid = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(constants) - set(valid))
    if unknown:
        raise TypeError(
            f"{name} takes {', '.join(valid) or 'no constants'}. Got {', '.join(unknown)} instead."
        )
    return kind(**constants)


def certify(
    model: nn.Module,
    X: Tensor,
    y: Tensor | None = None,
    theorem: str | Theorem = "wellposed",
    **constants: Any,
) -> Certificate:
    """The verdict of a theorem on a network and its data.

    Args:
        model: one of the affine families.
        X, y: the data the theorem speaks of, (N, d) and like the network's output.
        theorem: its name, such as "gao2022.descent", or an object such as `theory.gao2022.Descent(C=…)`.
        constants: the theorem's free constants, when it is given by name; those left out are optimised.
    """
    if isinstance(theorem, str):
        theorem = make_theorem(theorem, **constants)
    elif constants:
        raise TypeError(
            f"constants go into the theorem object: {type(theorem).__name__}({', '.join(constants)}=…)."
        )
    if not isinstance(theorem, Theorem):
        raise TypeError(f"theorem must be a name or a theorem object. Got {type(theorem).__name__} instead.")
    if theorem.needs_targets and y is None:
        raise ValueError(f"{theorem.name} is about a loss: y is required.")
    return theorem.prove(Instance(model, X, y if theorem.needs_targets else None))  # type: ignore[arg-type]
