"""What is promised: one picture, plain words, and behind them the certificates with all that was checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import plots
from ..plots.curves import Line
from ..theory import Certificate
from .figures import Drawers, Drawn, Pair, relative
from .opening import VERDICTS
from .reading import RunRecord, part
from .theorems import used
from .words import count, kept, number, percent, rows, typeset

_OF_TRAINING = "The training"
_AS_IT_ENDED = "The network as it ended"
_RESTS = "It rests on: "  # the line of an explanation that the page sets as a list


# -- the picture ---------------------------------------------------------------------------------------------


def promise(record: RunRecord) -> Drawn | None:
    """What was promised of the training, and what happened."""
    if record.certificate is not None and not record.certificate.proved:
        return None
    return _anchored(record) or _rate(record)


def _anchored(record: RunRecord) -> Drawn | None:
    """F at the best readout of the start, its proved descent from checkpoint to checkpoint, and the gap."""
    told = part(record.history, "anchored")
    if not told:
        return None
    start, entries = float(told["F_start"]), [c for c in told["checkpoints"] if isinstance(c, dict)]
    good = [c for c in entries if c.get("accepted")]
    x, bound = [0.0], [start]
    for one in good:
        x += [one["epoch"], one["epoch"]]
        bound += [bound[-1], one["F"][1]]
    last = float(max([c["epoch"] for c in entries], default=1))
    end = min(bound[-1], float(told["F_end"][1]))
    x, bound = [*x, last, last], [*bound, bound[-1], end]
    reached = {0: start} | {int(c["epoch"]): float(c["F"][1]) for c in good}
    refused = [float(c["epoch"]) for c in entries if not c.get("accepted")]
    lines: dict[str, Any] = {
        "F at the start, and at checkpoints kept": Line(reached, dash="none", marks=True)
    }
    if refused:
        height = [float(np.interp(e, x, bound)) for e in refused]
        lines["checkpoints refused and undone"] = Line((refused, height), dash="none", marks=True)
    figure = plots.curves(
        lines,
        x="epoch",
        y="F",
        log_y=True,
        bounds={"proved: F ends below this": (x, bound)},
        levels={"the best readout cannot get below": float(told["F_end_least"])},
    )
    caption = (
        f"F is the loss of all training rows plus a penalty on the size of the weights. It began at "
        f"{number(start, 4)}, with the best readout of the untrained network, and ended at {number(end, 4)}, "
        f"{percent(end / start)} of that. The dashed line can only fall: a checkpoint keeps the weights if F "
        f"is proved to be lower there, and otherwise undoes the steps since the last one "
        f"({len(good)} of {count(len(entries), 'checkpoint')} were kept). At the end no other readout of the "
        f"trained features would lower F by more than {number(float(told['gap']))}."
    )
    alt = f"F falls from {number(start, 4)} to {number(end, 4)} over {count(len(good), 'kept checkpoint')}."
    return Drawn("What was promised, and what happened", figure, caption, alt)


def least_loss(record: RunRecord) -> float:
    """L*, which the promise is about: of the history, or of the metrics of a run that has not ended."""
    for found in (record.history.get("least_loss"), record.last("least_loss")):
        if isinstance(found, int | float):
            return found
    return 0.0


def _rate(record: RunRecord) -> Drawn | None:
    """The loss for which a rate was promised, beside the bound."""
    found, promised = record.series("loss"), record.series("promised")
    measured = None if found is None else relative(found, least_loss(record))
    if measured is None or promised is None:
        return None
    slack = record.series("plain_loss") is not None
    name = "loss with slack" if slack else "loss"
    figure = plots.curves(
        {name: measured},
        x=record.clock,
        y=f"{name} / its first value",
        log_y=True,
        bounds={"promised at most": promised},
    )
    end, steps = float(measured[1][-1]), count(int(measured[0][-1]), record.clock)
    above = _violations(measured, promised)
    caption = (
        f"After {steps} the {name} is {number(end)} of its first value, where at most "
        f"{number(float(promised[1][-1]))} was promised. "
    )
    caption += (
        f"At {count(above, 'step')} it lies above the promise, which must not happen."
        if above
        else "At every step it lies below the promise: the dashed line is a bound, not a forecast, and the "
        "room between the two is what the theorem could not foresee."
    )
    if slack:
        caption += (
            " The slack takes up a part of every target, so the loss of the predictions alone, shown below, "
            "does not fall as far: nothing is promised about it."
        )
    alt = (
        f"The {name} on a logarithmic axis, from 1 to {number(end)} over {steps}, beside the promised bound."
    )
    return Drawn("What was promised, and what happened", figure, caption, alt)


def _violations(measured: Pair, promised: Pair) -> int:
    bound = dict(zip(promised[0].tolist(), promised[1].tolist(), strict=True))
    return sum(
        not y <= bound[x]
        for x, y in zip(measured[0].tolist(), measured[1].tolist(), strict=True)
        if x in bound
    )


PROMISE: Drawers = {"promise": promise}


# -- words ---------------------------------------------------------------------------------------------------


def in_words(record: RunRecord) -> list[tuple[str, list[str]]]:
    """(heading, sentences): what is promised, what it means, what is not promised; nothing if unproved."""
    proved = [c for c in (record.certificate, record.wellposed) if c is not None and c.proved]
    if not proved:
        return []
    statements = [s for c in proved for s in used(c.theorem)]
    distinct = list({s.title: s for s in statements}.values())
    promised = [s.says for s in distinct]
    if words := kept(part(record.history, "anchored")):
        promised.insert(1, words)
    leaves = [distinct[0].leaves]
    if proved[0].kind == "static":
        leaves.append("Training was not certified: nothing is promised about its loss.")
    return [
        ("What is promised", promised),
        ("What it means for you", [s.means for s in distinct]),
        ("What is not promised", leaves),
    ]


# -- certificates --------------------------------------------------------------------------------------------


def certificates(record: RunRecord) -> list[dict[str, Any]]:
    """The certificate of the training, and that of the network as it ended."""
    found = []
    if record.certificate is not None:
        found.append(_certificate(record.certificate, record.last("movement")))
    if record.wellposed is not None and (not record.certificate or record.certificate.kind != "static"):
        found.append(_certificate(record.wellposed, None))
    return found


def _certificate(certificate: Certificate, moved: float | None) -> dict[str, Any]:
    word, mark = VERDICTS[certificate.verdict]
    lines = certificate.explain(moved).splitlines()
    return {
        "word": word,
        "mark": mark,
        "theorem": certificate.theorem,
        "scope": _AS_IT_ENDED if certificate.kind == "static" else _OF_TRAINING,
        "explained": [typeset(line) for line in lines if not line.startswith(_RESTS)],
        "hypotheses": [typeset(words) for words in certificate.hypotheses],
        "needs": [(s.title, s.needs) for s in used(certificate.theorem)[:1]],
        "claims": [_claim(c) for c in certificate.claims],
        "facts": list(rows(_facts(certificate))),
        "proved": certificate.proved,
    }


def _claim(claim: Any) -> dict[str, Any]:
    left, right = claim.sides
    result = "holds" if claim.holds else "fails" if claim.refuted else "open"
    relation = {"<=": "≤", ">=": "≥"}.get(claim.relation, claim.relation)
    return {
        "name": claim.name + (" as printed" if claim.printed else ""),
        "statement": claim.statement,
        "sides": f"{left.replace('-', '−')} {relation} {right.replace('-', '−')}",
        "result": result,
        "mark": "good" if claim.holds else "bad",
        "method": claim.method or "interval arithmetic, rounded outward",
        "remedy": claim.remedy if not claim.holds else "",
    }


def _facts(certificate: Certificate) -> dict[str, Any]:
    facts: dict[str, Any] = {"tier of proof": certificate.tier, "loss": certificate.loss}
    named = {
        "factor per step": certificate.factor,
        "exponent": certificate.exponent,
        "largest step size (exclusive)": certificate.max_step_size,
        "floor of rounding": certificate.floor or None,
    }
    facts |= {name: value for name, value in named.items() if value is not None and math.isfinite(value)}
    facts |= {f"step size of {name}": value for name, value in certificate.step_sizes.items()}
    facts |= {f"constant {name}": _plain(value) for name, value in certificate.constants.items()}
    return facts | {f"SHA-256 of {name}": value for name, value in certificate.fingerprint.items()}


def _plain(value: Any) -> Any:
    """Intervals by their ends; everything else as it is."""
    return f"[{value.lo:.6g}, {value.hi:.6g}]" if hasattr(value, "lo") else value
