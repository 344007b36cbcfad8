"""certify(model, X, y, theorem=…): what is guaranteed about this network, on this data, now."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import nn

from ..checks import one_of
from ..models.altered import tied
from . import gao2022, hieu2022, kawaguchi2021, ling2023
from .anchored import Anchored
from .certificate import Certificate, fingerprint
from .instance import Instance
from .register import facts
from .safeguarded import Safeguarded
from .streams import as_data
from .two_timescale import TwoTimescale
from .verification import sealed
from .wellposed import WellPosed


@runtime_checkable
class Theorem(Protocol):
    """A frozen dataclass of its free constants, with `prove(instance)`."""

    name: ClassVar[str]
    needs_targets: ClassVar[bool]

    def prove(self, instance: Instance) -> Certificate:
        """The verdict on an instance."""


_KNOWN: tuple[type[Theorem], ...] = (
    WellPosed,
    TwoTimescale,
    Safeguarded,
    Anchored,
    gao2022.Flow,
    gao2022.Descent,
    ling2023.Descent,
    hieu2022.Flow,
    hieu2022.Descent,
    kawaguchi2021.Theorem1,
)
THEOREMS: dict[str, type[Theorem]] = {t.name: t for t in _KNOWN}
TIERS = ("float64", "rigorous")
_IN_BALLS = tuple(t for t in _KNOWN if t not in (TwoTimescale, Safeguarded, Anchored))


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


def constants_of(certificate: Certificate) -> dict[str, Any]:
    """The keywords that certify once more what a certificate says: those given, and those it chose."""
    one_of("the theorem", certificate.theorem, sorted(THEOREMS))
    names = [f.name for f in dataclasses.fields(THEOREMS[certificate.theorem])]  # type: ignore[arg-type]
    chosen = {
        n: v for n, v in certificate.constants.items() if n in names and n != "printed" and v is not None
    }
    return {**chosen, **certificate.options}


def certify(
    model: nn.Module,
    X: Any,
    y: Any = None,
    theorem: str | Theorem = "wellposed",
    *,
    tier: str = "float64",
    **constants: Any,
) -> Certificate:
    """The verdict of a theorem on a network and its data.

    Args:
        model: one of the affine families; for "wellposed" and "anchored" also OptEq, ConvOptEq, ConvMonotone
            and the like; for "wellposed" also an Equilibrium of a cell made of known parts.
        X, y: the data that the theorem is about, (N, d) and like the output of the network. For "anchored" X
            may be an array that is mapped from a file, or a Dataset of pairs (x, y) without y; it is read in
            blocks.
        theorem: its name, such as "gao2022.descent", or an object such as `theory.gao2022.Descent(C=…)`.
        tier: "float64", which trusts conventional float64 products; or "rigorous", which computes products in
            ball arithmetic instead (it needs the extra `rigorous` and is slow beyond a few hundred rows).
        constants: the free constants of a theorem that is given by name; those that are left out are
            optimised.
    """
    one_of("tier", tier, TIERS)
    if isinstance(theorem, str):
        theorem = make_theorem(theorem, **constants)
    elif constants:
        raise TypeError(
            f"constants go into the theorem object: {type(theorem).__name__}({', '.join(constants)}=…)."
        )
    if not isinstance(theorem, Theorem):
        raise TypeError(f"theorem must be a name or a theorem object. Got {type(theorem).__name__} instead.")
    if tier == "rigorous" and not isinstance(theorem, _IN_BALLS):
        known = ", ".join(t.name for t in _IN_BALLS)
        raise ValueError(f"the tier 'rigorous' is known for {known}. Got {theorem.name} instead.")
    if isinstance(theorem, Anchored):
        X, y = as_data(X, y)
    if theorem.needs_targets and y is None:
        raise ValueError(f"{theorem.name} is about a loss: y is required.")
    return sealed(_verdict(theorem, model, X, y, tier), model)


def _verdict(theorem: Theorem, model: nn.Module, X: Any, y: Any, tier: str) -> Certificate:
    if theorem.needs_targets and (why := tied(model)):
        return Certificate(theorem.name, (), obstacle=why, fingerprint=fingerprint(model, X, y))
    if isinstance(theorem, Anchored):  # of every family whose facts say what its readout reads
        return theorem.prove_of(model, X, y)
    return facts(model).prove(theorem, X, y, tier)
