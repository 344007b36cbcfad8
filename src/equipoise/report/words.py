"""Numbers, times and nested values as a reader wants them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..plots.style import power

_MOST = 40  # entries of a list that are written out


def number(value: Any, digits: int = 3) -> str:
    """0.0123, 1 797, 3.2·10⁻⁷; anything else in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "—" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}").replace("-", "−")
    if not math.isfinite(value):
        return "not finite" if math.isnan(value) else "∞" if value > 0 else "−∞"
    return power(float(f"{value:.{digits}g}"))


RIVALS = {  # simpler models that a network is compared with, by their name in the findings
    "constant": "one answer for all rows",
    "linear": "a linear model",
    "frozen": "the same network with its hidden layer untrained",
}


def rivals(baselines: Mapping[str, Any]) -> dict[str, float]:
    """The scores of simpler models that are known."""
    known = {name: baselines.get(name) for name in RIVALS}
    return {n: float(v) for n, v in known.items() if isinstance(v, int | float) and math.isfinite(v)}


def no_better(value: float, baselines: Mapping[str, Any]) -> str:
    """The best of the simpler models where the network is no better than it; else nothing."""
    known = rivals(baselines)
    best = max(known, key=lambda name: known[name], default="")
    return RIVALS[best] if best and value <= known[best] else ""


def simpler(name: str, baselines: Mapping[str, Any]) -> str:
    """What simpler models reach on the same rows."""
    known = rivals(baselines)
    if not {"constant", "linear"} <= set(known):
        return ""
    if name == "accuracy":
        says = (
            f"On the same rows a linear model is right for {percent(known['linear'])}, and always answering "
            f"the most frequent class for {percent(known['constant'])}."
        )
    elif known["linear"] > 0:
        says = f"On the same rows a linear model explains {percent(known['linear'])}."
    else:
        says = "On the same rows a linear model explains none of it."
    if "frozen" in known:
        says += f" The same network reaches {percent(known['frozen'])} if its hidden layer is not trained."
    return says


def beside(name: str, value: float, baselines: Mapping[str, Any]) -> str:
    """What simpler models reach on the same rows, and whether the network is any better."""
    says, rival = simpler(name, baselines), no_better(value, baselines)
    return f"{says} Here the network is no better than {rival}." if says and rival else says


def kept(told: Mapping[str, Any]) -> str:
    """What an anchored run kept of its training, from its history; empty if that does not say."""
    checks, F, gap = told.get("checkpoints"), told.get("F_end"), told.get("gap")
    if not isinstance(checks, list) or not isinstance(F, list) or not isinstance(gap, int | float) or not F:
        return ""
    good = sum(isinstance(c, dict) and bool(c.get("accepted")) for c in checks)
    return (
        f"{good} of {len(checks)} checkpoints were kept. F ended at {number(F[-1], 6)}, and no other readout "
        f"of the trained features lowers it by more than {number(gap)}."
    )


def percent(value: Any) -> str:
    """97.8 %."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return number(value)
    return f"{100 * value:.1f}\N{NARROW NO-BREAK SPACE}%".replace("-", "−")


def typeset(text: str) -> str:
    """A program's sentence for a reader: 1.6e-14 as 1.6·10⁻¹⁴, 8.3e-01 as 0.83, ^k as ᵏ."""
    powers = re.sub(r"\b\d+(?:\.\d+)?e[+-]\d+\b", lambda m: power(float(m[0])), text)
    return powers.replace("^k", "ᵏ")


def moment(stamp: str) -> str:
    """2026-11-16T04:08:04+00:00 as 2026-11-16 04:08:04 UTC; anything else as it is."""
    return re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\+00:00$", r"\1 \2 UTC", stamp)


def duration(seconds: float) -> str:
    """0.8 s, 42 s, 3 min 5 s, 2 h 10 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def held(found: dict[str, Any]) -> str:
    """What was proved of robust training, in a sentence."""
    norm = {"l2": "Euclidean length at most", "linf": "at most"}[found["norm"]]
    each = " in each entry" if found["norm"] == "linf" else ""
    said = (
        f"{percent(found['proved'])} of {count(found['rows'], 'test row')} are proved to keep the right "
        f"answer under every change of {norm} {number(found['epsilon'])}{each}; "
        f"{percent(found['right'])} are right as they are"
    )
    return said + (f", and {percent(found['refuted'])} can be broken." if "refuted" in found else ".")


def count(n: int, one: str, many: str | None = None) -> str:
    """1 step, 200 steps."""
    return f"{number(n)} {one if n == 1 else many or one + 's'}"


def rows(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, value) of every leaf of a nested mapping, the names joined; long lists are cut short."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from rows(inner, f"{prefix} · {key}" if prefix else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value):
        for i, inner in enumerate(value[:_MOST]):
            yield from rows(inner, f"{prefix} · {i + 1}")
        if len(value) > _MOST:
            yield prefix, f"… and {len(value) - _MOST} more"
    else:
        yield prefix, leaf(value)


def leaf(value: Any) -> str:
    """A value that is not a table, as text."""
    if isinstance(value, list | tuple):
        shown = ", ".join(leaf(v) for v in value[:_MOST])
        more = f" … and {len(value) - _MOST} more" if len(value) > _MOST else ""
        return f"{shown}{more}" if value else "none"
    if isinstance(value, float):
        return number(value, 6)
    if value is None or value == "":
        return "—"
    return number(value) if isinstance(value, bool) else str(value)
