"""The claims registry: what five papers assert, each beside a small program that checks it.

    claims("gao2022")              every claim of a paper
    claim("gao2022.lemma4.3")      one claim: its statement, its verdict, its constants
    run("gao2022.lemma4.3")        the check, with the paper's constants
    run("gao2022.lemma4.3", scale=0.9)   … and with another constant, under which it must not hold

A check is a function that takes a seed and the constants of the statement as keywords, with the paper's
values as defaults. Its docstring is the statement, equation first.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from rich.markup import escape
from rich.table import Table

from ...checks import one_of

Verdict = Literal["holds", "holds corrected", "fails as printed"]
PAPERS = ("kawaguchi2021", "gao2022", "ling2023", "hieu2022", "xie2021")


@dataclass(frozen=True)
class Outcome:
    """What a check measured against what the statement allows.

    `holds` speaks of the registered statement, the corrected one where the paper's is wrong; `printed` says
    whether the paper's own version held on the instance, and is None where the two are the same. `margin` is
    at least 1 where the statement holds.
    """

    holds: bool
    measured: float
    bound: float
    margin: float
    detail: str = ""
    printed: bool | None = None


@dataclass(frozen=True)
class PaperClaim:
    """One statement of a paper and its check.

    `verdict` is "holds", "holds corrected" (a small repair makes it true: `statement` is the repaired one) or
    "fails as printed" (it is false, and what holds instead is another statement); for the last two
    `counterexample` says where the printed one fails. `sensitive_to` gives, for constants of the statement, a
    wrong value under which the check does not hold.
    """

    key: str
    paper: str
    label: str
    statement: str
    verdict: Verdict
    check: Check
    counterexample: str = ""
    sensitive_to: Mapping[str, float] = field(default_factory=dict)

    @property
    def constants(self) -> dict[str, float]:
        """The constants of the statement, with the values that make it true."""
        return {
            name: p.default
            for name, p in inspect.signature(self.check).parameters.items()
            if p.kind is p.KEYWORD_ONLY
        }

    def run(self, seed: int = 0, **constants: float) -> Outcome:
        """Check the statement on the instance of a seed, with the paper's constants or others."""
        unknown = sorted(set(constants) - set(self.constants))
        if unknown:
            raise TypeError(
                f"{self.key} has the constants {sorted(self.constants)}. Got {', '.join(unknown)} instead."
            )
        return self.check(seed, **constants)

    def agrees(self, outcome: Outcome) -> bool:
        """Whether an outcome is the one the verdict announces."""
        return outcome.holds and outcome.printed is (None if self.verdict == "holds" else False)


Check = Callable[..., Outcome]
Entry = TypeVar("Entry")
_REGISTRY: dict[str, PaperClaim] = {}


def register(key: str, label: str, **sensitive_to: float) -> Callable[[Check], Check]:
    """Enter a check into the registry; its docstring is the statement.

    It stands above `corrected` or `refuted`, where the paper's own statement does not hold.
    """

    def enter(check: Check) -> Check:
        paper, statement = key.split(".")[0], inspect.getdoc(check) or ""
        printed: tuple[Verdict, str] = getattr(check, "printed", ("holds", ""))
        verdict, counterexample = printed
        entry = PaperClaim(key, paper, label, statement, verdict, check, counterexample, dict(sensitive_to))
        if paper not in PAPERS or not statement or key in _REGISTRY:
            raise ValueError(f"{key}: a claim needs a paper, a statement and a key of its own.")
        if not sensitive_to or set(sensitive_to) - set(entry.constants):
            raise ValueError(f"{key}: sensitive_to must name constants of the check. Got {sensitive_to}.")
        if verdict != "holds" and not counterexample:
            raise ValueError(f"{key}: a verdict other than 'holds' needs a counterexample.")
        _REGISTRY[key] = entry
        return check

    return enter


def corrected(counterexample: str) -> Callable[[Check], Check]:
    """Mark a check of a repaired statement; the counterexample says where the printed one fails."""
    return _printed("holds corrected", counterexample)


def refuted(counterexample: str) -> Callable[[Check], Check]:
    """Mark a check of what holds instead; the counterexample says where the printed statement fails."""
    return _printed("fails as printed", counterexample)


def _printed(verdict: Verdict, counterexample: str) -> Callable[[Check], Check]:
    def mark(check: Check) -> Check:
        check.__dict__["printed"] = (verdict, counterexample)
        return check

    return mark


def entries(registry: Mapping[str, Entry], paper: str | None) -> list[Entry]:
    """All that a registry holds, or what it holds of one paper, in the order of the papers."""
    chosen = PAPERS if paper is None else (paper,)
    one_of("paper", chosen[0], PAPERS)
    return [entry for name in chosen for key, entry in registry.items() if key.split(".")[0] == name]


def look_up(registry: Mapping[str, Entry], key: str, what: str, advice: str) -> Entry:
    """The entry of that key; a KeyError names those close to it, or gives the advice."""
    if key in registry:
        return registry[key]
    close = difflib.get_close_matches(key, registry, n=5, cutoff=0.5)
    advice = f"Close to it: {', '.join(close)}." if close else advice
    raise KeyError(f"no {what} {key!r} is registered. {advice}")


def claims(paper: str | None = None) -> list[PaperClaim]:
    """Every registered claim, or those of one paper, in the order of the papers."""
    return entries(_REGISTRY, paper)


def claim(key: str) -> PaperClaim:
    """The claim of that key."""
    return look_up(_REGISTRY, key, "claim", "papers.claims() lists the keys.")


def run(key: str, seed: int = 0, **constants: float) -> Outcome:
    """Check one claim, with the paper's constants unless others are given."""
    return claim(key).run(seed, **constants)


def table(paper: str | None = None, measure: bool = False) -> Table:
    """The claims as a table for rich; `measure` runs each check and adds what it found."""
    columns = ["claim", "in the paper", "verdict", "statement"]
    shown = Table(
        *columns, *(["measured", "bound", "agrees"] if measure else []), title=paper or "five papers"
    )
    for entry in claims(paper):
        row = [entry.key, entry.label, entry.verdict, entry.statement.splitlines()[0]]
        if measure:
            outcome = entry.run()
            row += [
                f"{outcome.measured:.4g}",
                f"{outcome.bound:.4g}",
                "yes" if entry.agrees(outcome) else "NO",
            ]
        shown.add_row(*(escape(cell) for cell in row))  # [ and ] are mathematics here
    return shown


# -- outcomes ---------------------------------------------------------------------------------------------


def at_most(measured: float, bound: float, detail: str = "", rtol: float = 1e-9) -> Outcome:
    """measured ≤ bound, up to rounding."""
    measured, bound = float(measured), float(bound)
    margin = bound / measured if measured > 0 else float("inf")
    return Outcome(measured <= bound + rtol * abs(bound), measured, bound, margin, detail)


def at_least(measured: float, bound: float, detail: str = "", rtol: float = 1e-9) -> Outcome:
    """measured ≥ bound, up to rounding."""
    measured, bound = float(measured), float(bound)
    margin = measured / bound if bound > 0 else float("inf")
    return Outcome(measured >= bound - rtol * abs(bound), measured, bound, margin, detail)


def equal(measured: Any, expected: Any, detail: str = "", rtol: float = 1e-8) -> Outcome:
    """measured = expected: the largest difference is at most rtol of the largest entry."""
    a, b = (torch.as_tensor(v, dtype=torch.float64).detach() for v in (measured, expected))
    scale = max(b.abs().max().item(), a.abs().max().item(), 1e-300)
    return at_most((a - b).abs().max().item() / scale, rtol, detail or "relative difference", rtol=0.0)


def all_of(*outcomes: Outcome) -> Outcome:
    """Every one of them; the numbers are those of the tightest."""
    worst = min(outcomes, key=lambda o: (o.holds, o.margin))
    return replace(worst, detail="; ".join(o.detail for o in outcomes if o.detail))


def beside(statement: Outcome, printed: Outcome) -> Outcome:
    """The statement that holds, beside the paper's own on the same instance."""
    detail = f"{statement.detail}; printed: {printed.detail} {printed.measured:.4g} vs {printed.bound:.4g}"
    return replace(statement, detail=detail, printed=printed.holds)
