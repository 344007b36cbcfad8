"""How good the answers are: scores beside simpler models', errors, calibration, inputs that matter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import plots
from .figures import Drawers, Drawn
from .opening import best_score, shown_score
from .reading import RunRecord, part
from .words import count, held, number, percent, rivals

SCORES = {"accuracy": "Accuracy", "r2": "R²", "rmse": "RMS error", "mae": "Mean |error|"}
_MODELS = {
    "linear": "Linear model",
    "constant": "One answer for all rows",
    "frozen": "Hidden layer untrained",
}
_SHOWN = 12  # inputs
_MATTERS = 2.0  # an input is said to matter if its drop is more than this many of its standard errors


def scores(record: RunRecord) -> list[dict[str, str]]:
    """The scores of the network on test and training rows, and those of simpler models."""
    table: list[dict[str, str]] = []
    known = part(record.findings, "scores")
    for name in sorted(known, key=lambda n: n != "test"):
        if isinstance(found := known[name], dict):
            told = {
                SCORES.get(k, str(k)): shown_score(k, v) if k in ("accuracy", "r2") else number(v)
                for k, v in found.items()
                if k != "rows"
            }
            table.append({"Model": "This network", "Rows": f"{number(found.get('rows'))} {name}", **told})
    best, beside = best_score(record), rivals(part(record.findings, "baselines"))
    if best is not None and table:
        column, blank = SCORES[best[0]], dict.fromkeys(table[0], "")
        table[1:1] = [
            {**blank, "Model": words, "Rows": table[0]["Rows"], column: shown_score(best[0], beside[name])}
            for name, words in _MODELS.items()
            if name in beside
        ]
    return table


def robust(record: RunRecord) -> str:
    """What is proved of answers near test rows, after training for it."""
    found = part(record.findings, "robust")
    return held(found) if found else ""


def coverage(record: RunRecord) -> tuple[str, list[dict[str, str]]]:
    """What was asked of sets or intervals and what test rows show, in words; and by class, as a table."""
    found = part(record.findings, "coverage")
    if not found:
        return "", []
    classes = "by class" in found
    what, unit = ("set", "classes") if classes else ("interval", "units of the target")
    low, high = found["likely"]
    usual = low <= found["covered"] <= high
    said = (
        f"A new row's {what} holds the truth with a probability of at least {percent(found['asked'])}, on "
        f"average over rows like these: {count(found['calibrating'], 'row')} that were not trained on "
        f"decided how large {'a set' if classes else 'an interval'} must be. "
        f"Of {count(found['rows'], 'test row')}, {percent(found['covered'])} are covered, "
        f"by {what}s of {number(found['size'])} {unit} on average. "
        f"Chance alone puts this share between {percent(low)} and {percent(high)} in 19 of 20 cases"
        + (". " if usual else ", and it lies outside: the test rows may be unlike the others. ")
        + ("Nothing is promised of a class by itself." if classes else "")
    )
    table = [
        {
            "Class": row["class"],
            "Test rows": number(row["rows"]),
            "Covered": percent(row["covered"]),
            "Classes in a set": number(row["size"]),
        }
        for row in found.get("by class", ())
    ]
    return said.strip(), table


def doubt(record: RunRecord) -> str:
    """A warning if the difference in accuracy to the linear model could be chance."""
    best, linear = best_score(record), rivals(part(record.findings, "baselines")).get("linear")
    if best is None or linear is None or best[0] != "accuracy" or best[2] < 1:
        return ""
    p, n = best[1], best[2]
    error = math.sqrt((p * (1 - p) + linear * (1 - linear)) / n)
    if abs(p - linear) >= 2 * error:
        return ""
    return (
        f"On {count(n, 'row')} a difference of {percent(abs(p - linear))} from the linear model may be "
        f"chance: it is below two standard errors, {percent(2 * error)}."
    )


def confusion(record: RunRecord) -> Drawn | None:
    """Which classes are taken for which."""
    found = part(record.findings, "confusion")
    if not found:
        return None
    counts = np.array(found["counts"])
    figure = plots.confusion(counts, found["names"])
    wrong = int(counts.sum() - np.trace(counts))
    caption = (
        f"Each row is a true class and each column an answer of the network, for "
        f"{number(int(counts.sum()))} {found['part']} samples. Right answers lie on the diagonal; "
        f"{count(wrong, 'answer is', 'answers are')} wrong."
    )
    off = counts - np.diag(np.diag(counts))
    if off.max(initial=0) > 1:
        i, j = np.unravel_index(int(off.argmax()), off.shape)
        answered = f"answer {found['names'][j]} where {found['names'][i]} is true"
        caption += f" The most frequent mistake is to {answered} ({count(int(off[i, j]), 'time')})."
    alt = f"Confusion matrix of {len(counts)} classes, {wrong} errors."
    return Drawn("Right and wrong answers", figure, caption, alt)


def residuals(record: RunRecord) -> Drawn | None:
    """What the predictions of numbers miss."""
    found = part(record.findings, "residuals")
    if not found:
        return None
    figure = plots.residuals({name: (f["target"], f["predicted"]) for name, f in found.items()})
    last = list(found)[-1]
    off = np.array(found[last]["target"], dtype=float) - np.array(found[last]["predicted"], dtype=float)
    caption = (
        f"What remains of each target when its prediction is subtracted, in the target's own unit. It "
        f"should look like noise around the line at 0: a slope, a bend or a funnel is structure that the "
        f"network has missed. The dashed lines stand at the root mean square of the {last} rows; half of "
        f"these are off by less than {number(float(np.median(np.abs(off))))}."
    )
    return Drawn("What the predictions miss", figure, caption, "Residuals against predictions.")


def reliability(record: RunRecord) -> Drawn | None:
    """Whether the probabilities of the answers mean what they say."""
    found = part(record.findings, "calibration")
    if not found:
        return None
    bins, error = found["bins"], float(found["ece"])
    said = sum(b["count"] * b["said"] for b in bins) / sum(b["count"] for b in bins)
    right = sum(b["count"] * b["right"] for b in bins) / sum(b["count"] for b in bins)
    leaning = "less sure than it could be" if said < right else "too sure of itself"
    caption = (
        f"Each bar collects the {found['part']} rows whose answers were given with about the same "
        f"probability, and shows how many of them are right. A bar that ends at the dashed line can be taken "
        f"at its word; one of few rows tells little. On average the two differ by {percent(error)} (the "
        f"expected calibration error). On the whole the network is {leaning}: it is {percent(said)} sure, "
        f"and {percent(right)} of its answers are right."
    )
    alt = f"Reliability diagram of {len(bins)} ranges, expected calibration error {percent(error)}."
    return Drawn("Can the probabilities be trusted?", plots.reliability(bins), caption, alt)


def important(record: RunRecord) -> Drawn | None:
    """Which inputs the answers depend on."""
    found = part(record.findings, "importance")
    if not found:
        return None
    return _pictured(found) if "grid" in found else _listed(record, found)


def _listed(record: RunRecord, found: dict[str, Any]) -> Drawn:
    drops, spread = np.array(found["drops"], dtype=float), np.array(found["spread"], dtype=float)
    names = record.data.get("features")
    named = names if isinstance(names, list) and len(names) == len(drops) else range(1, len(drops) + 1)
    words = [str(name) if named is names else f"column {name}" for name in named]
    order = np.argsort(-drops, kind="stable")[:_SHOWN]
    whiskers = spread[order].tolist() if len(spread) == len(drops) else []
    score = "accuracy" if record.findings.get("kind") == "classification" else "R²"
    figure = plots.ranked({words[i]: float(drops[i]) for i in order}, spread=whiskers, x=f"loss of {score}")
    error = spread / math.sqrt(found["repeats"]) if len(spread) == len(drops) else np.zeros(len(drops))
    idle = int((drops <= _MATTERS * error).sum())
    top = words[order[0]]
    caption = (
        f"How much {score} is lost on {count(int(found['rows']), found['part'] + ' row')} when a column is "
        f"shuffled, so that it no longer tells anything. "
    )
    if drops[order[0]] > _MATTERS * error[order[0]]:
        caption += f"The answers depend most on {top}. "
    if idle:
        cost = "costs" if idle == 1 else "cost"
        caption += f"{idle} of {count(len(drops), 'column')} {cost} nothing that can be told from chance. "
    caption += "Columns that say the same can replace each other, so that each may seem to matter little."
    return Drawn("Inputs that matter most", figure, caption, f"Bars of {len(order)} inputs, {top} first.")


def _pictured(found: dict[str, Any]) -> Drawn:
    grid = np.array(found["rises"], dtype=float).reshape(found["grid"])
    i, j = np.unravel_index(int(grid.argmax()), grid.shape)
    caption = (
        f"The darker a patch, the more the answers depend on it: if its pixels are exchanged between images, "
        f"the network becomes less sure of the right answer "
        f"({count(int(found['rows']), found['part'] + ' row')}). White patches make no difference."
    )
    alt = f"Importance of {grid.shape[0]} × {grid.shape[1]} patches, largest in row {i + 1}, column {j + 1}."
    return Drawn("Where the network looks", plots.patches(grid), caption, alt)


RESULTS: Drawers = {
    "confusion": confusion,
    "residuals": residuals,
    "reliability": reliability,
    "importance": important,
}
