"""mean(a) < mean(b) by two standard errors: agree; the reverse: differs; neither: not decided here.

One rule for every comparison of runs over seeds, so that no verdict is decided by chance or by eye.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

Verdict = Literal["agree", "differs", "not reproducible here"]

NOT_MEASURED = "not measured"
ONE_SEED = 0.05  # of the larger value: what a difference must be where there is no error to compare it with


@dataclass(frozen=True)
class Judgement:
    """One claim of the paper, in our words, beside what was measured."""

    claim: str
    paper: str  # what the paper reports
    measured: str
    tolerance: str  # the test that was applied to the numbers
    verdict: Verdict
    reason: str = ""

    @property
    def tried(self) -> bool:
        """Whether there are numbers; they may leave the claim undecided."""
        return self.measured != NOT_MEASURED

    @property
    def undecided(self) -> bool:
        return self.tried and self.verdict == "not reproducible here"


def judged(
    claim: str, holds: bool | None, *, paper: str, measured: str, tolerance: str, reason: str = ""
) -> Judgement:
    """Agree or differ, by a test that was applied already and is stated in `tolerance`; None: undecided."""
    if holds is None:
        words = "undecided at this size: the numbers say neither yes nor no"
        reason = f"{words}. {reason}" if reason else words
        return Judgement(claim, paper, measured, tolerance, "not reproducible here", reason)
    return Judgement(claim, paper, measured, tolerance, "agree" if holds else "differs", reason)


def impossible(claim: str, *, paper: str, reason: str) -> Judgement:
    """What cannot be tried with the data or the machine at hand."""
    return Judgement(claim, paper, NOT_MEASURED, "none", "not reproducible here", reason)


def overall(judgements: Iterable[Judgement]) -> Verdict:
    """differs if one claim does, agree if every claim that was tried does, else not reproducible here.

    One that cannot be tried decides nothing; one that is undecided was tried, and does not agree.
    """
    found = {j.verdict for j in judgements if j.tried}
    if "differs" in found:
        return "differs"
    return "agree" if found == {"agree"} else "not reproducible here"


# -- comparisons over seeds --------------------------------------------------------------------------------


def below(a: Sequence[float], b: Sequence[float], margin: float = ONE_SEED) -> bool | None:
    """Whether mean(a) < mean(b); None where the numbers say neither that nor the reverse.

    `a` and `b` hold one number a seed, paired by seed where there are as many. The difference of the means
    must exceed two of its standard errors or, of one seed each, `margin` of the larger. A run that was lost,
    NaN or ∞, is larger than every number.
    """
    lost = [not np.isfinite(values).all() for values in (a, b)]
    if any(lost):
        return None if all(lost) else lost[1]
    difference = float(np.mean(a) - np.mean(b))
    size = max(abs(float(np.mean(a))), abs(float(np.mean(b))))
    error = error_of_difference(a, b)
    least = margin * size if error is None else max(2 * error, 1e-6 * size)  # rounding is no difference
    return None if abs(difference) <= least else difference < 0


BELOW = (
    "by more than two standard errors of the difference, paired by seed where both have as many; "
    f"of one seed, by {100 * ONE_SEED:g} %"
)


def falling(groups: Sequence[Sequence[float]], margin: float = ONE_SEED) -> bool | None:
    """Whether the means fall along the groups, `below` deciding: the last is below the first, and none is
    above the one before it, by more than 2 %. None where nothing rises, and the fall is too small to tell."""
    rises = (below(a, b, margin) and not np.mean(b) <= _RIPPLE * np.mean(a) for a, b in pairwise(groups))
    if any(rises) or below(groups[0], groups[-1], margin):
        return False
    lost = not np.isfinite(groups[0]).all()  # which is no evidence that the others fell
    return None if lost else below(groups[-1], groups[0], margin)


_RIPPLE = 1.02
FALLING = f"the last below the first, and none above the one before it by over 2 %, {BELOW}"


def every(found: Iterable[bool | None]) -> bool | None:
    """False if one is, None if one is and none is False, else True."""
    return min(found, key=(False, None, True).index)


def standard_error(values: Sequence[float]) -> float | None:
    """s/√n, of the mean of n values. One value has none: it is None, and adds 0 to a tolerance."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None


def joint(*errors: float | None) -> float:
    """√(e_1² + e_2² + …), the error of a sum or difference; None, that of one seed, counts as 0."""
    return math.hypot(*(e or 0.0 for e in errors))


def with_error(mean: float, error: float | None, form: str = ".1f") -> str:
    return f"{mean:{form}} (one seed)" if error is None else f"{mean:{form}} ± {error:{form}}"


def error_of_difference(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Of paired seeds that of their differences; one seed beside several is taken to spread like them."""
    if len(a) == len(b):
        return standard_error(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))
    errors = [
        standard_error(values) if len(values) > 1 else float(np.std(other, ddof=1))
        for values, other in ((a, b), (b, a))
    ]
    return joint(*errors)
