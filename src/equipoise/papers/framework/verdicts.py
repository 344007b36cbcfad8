"""mean(a) < mean(b) by Student's t at the level LEVEL: agree; the reverse: differs; neither: undecided.

There is one rule for every comparison of runs over seeds, so that no verdict is decided by chance or by eye.
If two sides are in truth alike, the rule decides between them with a probability of at most LEVEL, whatever
the number of seeds. One seed decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

Verdict = Literal["agree", "differs", "undecided", "cannot be tried here"]

Values = Sequence[float] | np.ndarray  # one for each seed

NOT_MEASURED = "not measured"
LEVEL = 0.05  # the share of equal pairs that is decided, both ways together


UNDECIDED = "undecided at this size: the numbers say neither yes nor no"


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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Judgement:
        """Read a stored judgement. Older ones have one verdict for both undecided and untried claims."""
        found = cls(**data)
        if data["verdict"] != "not reproducible here":
            return found
        return cls(**{**data, "verdict": "undecided" if found.tried else "cannot be tried here"})


def judged(
    claim: str,
    holds: bool | None,
    *,
    paper: str,
    measured: str,
    tolerance: str,
    reason: str = "",
    because: str | Callable[[], str] = "",
) -> Judgement:
    """Agree or differ, by a test that was applied already and is stated in `tolerance`; None: undecided.

    `reason` is said whatever the verdict, `because` only if the claim differs.
    """
    if holds is None:
        reason = f"{UNDECIDED}. {reason}" if reason else UNDECIDED
        return Judgement(claim, paper, measured, tolerance, "undecided", reason)
    if because and not holds:
        reason = because() if callable(because) else because
    return Judgement(claim, paper, measured, tolerance, "agree" if holds else "differs", reason)


def impossible(claim: str, *, paper: str, reason: str) -> Judgement:
    """What cannot be tried with the data or the machine at hand."""
    return Judgement(claim, paper, NOT_MEASURED, "none", "cannot be tried here", reason)


def overall(judgements: Iterable[Judgement]) -> str:
    """The verdict of an experiment: it differs if one claim does, and agrees if all that were tried do.

    Otherwise it is undecided, as a whole or in part. A claim that cannot be tried decides nothing.
    """
    found = {j.verdict for j in judgements if j.tried}
    if not found:
        return "cannot be tried here"
    if len(found) == 1 or "differs" in found:
        return "differs" if "differs" in found else found.pop()
    return "undecided in part"


# -- comparisons over seeds --------------------------------------------------------------------------------


def below(a: Values, b: Values, level: float = LEVEL) -> bool | None:
    """Whether mean(a) < mean(b); None where the numbers say neither that nor the reverse.

    `a` and `b` hold one number for each seed; if both have equally many, they are paired by seed. The
    difference of the means must exceed its standard error times the quantile of Student's t, two-sided at
    `level`. Without pairs the degrees of freedom are those of the side with fewer seeds, which keeps the
    level for any two spreads. A lost run, NaN or ∞, counts as larger than every number. Lost runs decide only
    if all of one side and none of the other were lost, which has a probability of at most 2/4^n ≤ `level`.
    """
    fewest = min(len(a), len(b))
    if fewest < 2:
        return None
    lost = [sum(not math.isfinite(v) for v in values) for values in (a, b)]
    if any(lost):
        whole = lost in ([len(a), 0], [0, len(b)]) and 2 / 4**fewest <= level
        return lost[1] > 0 if whole else None
    difference = float(np.mean(a) - np.mean(b))
    size = max(abs(float(np.mean(a))), abs(float(np.mean(b))))
    quantile = float(stdtrit(fewest - 1, 1 - level / 2))
    least = max(quantile * (error_of_difference(a, b) or 0.0), 1e-6 * size)  # rounding is no difference
    return None if abs(difference) <= least else difference < 0


BELOW = (
    f"by Student's t, two-sided at {100 * LEVEL:g} %, paired by seed where both have as many; one seed "
    "decides nothing"
)


def falling(groups: Sequence[Sequence[float]]) -> bool | None:
    """Whether the means fall along the groups: the last is below the first, and none is above the one before
    it by more than 2 %. The answer is None if nothing rises, but the fall is too small to tell.

    A fall is judged by `below`. Whether something rises is asked of each step, and from the first group to
    the last, at LEVEL over the number of these questions, so that equal groups are decided at LEVEL at most.
    """
    level = LEVEL / (len(groups) if len(groups) > 2 else 1)
    rises = (below(a, b, level) and not np.mean(b) <= _RIPPLE * np.mean(a) for a, b in pairwise(groups))
    if any(rises) or below(groups[0], groups[-1], level):
        return False
    lost = not np.isfinite(groups[0]).all()  # which is no evidence that the others fell
    return None if lost else below(groups[-1], groups[0]) or None


_RIPPLE = 1.02
FALLING = (
    f"the last below the first, and none above the one before it by over 2 %, {BELOW}; a rise at "
    f"{100 * LEVEL:g} % over the number of comparisons"
)


def all_below(pairs: Sequence[tuple[Values, Values]]) -> bool | None:
    """Whether mean(a) < mean(b) for every pair, by `below`; False if one of them is above.

    The latter is asked at LEVEL over the number of pairs, so that equal pairs are decided at LEVEL at most.
    """
    if any(below(a, b, LEVEL / len(pairs)) is False for a, b in pairs):
        return False
    return True if all(below(a, b) for a, b in pairs) else None


ALL_BELOW = f"{BELOW}; that one is not, at {100 * LEVEL:g} % over the number of comparisons"


def standard_error(values: Values) -> float | None:
    """s/√n, the standard error of the mean of n values; None of a single value."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None


def joint(*errors: float | None) -> float:
    """√(e_1² + e_2² + …), the error of a sum or difference; None, that of one seed, counts as 0."""
    return math.hypot(*(e or 0.0 for e in errors))


def with_error(mean: float, error: float | None, form: str = ".1f") -> str:
    """A mean and its standard error in words; of one seed there is no error."""
    return f"{mean:{form}} (one seed)" if error is None else f"{mean:{form}} ± {error:{form}}"


def error_of_difference(a: Values, b: Values) -> float | None:
    """The standard error of mean(a) − mean(b), by pairs if both have as many seeds; None if one has one."""
    if len(a) == len(b):
        return standard_error(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))
    errors = standard_error(a), standard_error(b)
    return None if None in errors else joint(*errors)
