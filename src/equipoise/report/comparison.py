"""Runs side by side on one page: scores, what was asked differently, losses in one plot, certificates."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import plots
from .figures import Drawn, Pair, gather, relative
from .opening import VERDICTS, best_score, data_name, family, shown_score
from .page import REFRESH, filled, publish
from .reading import RunRecord, part, read
from .results import SCORES
from .training import of_predictions
from .words import count, duration, leaf, rivals, rows, typeset

MOST = 10  # runs whose lines can be told apart
Records = Mapping[str, RunRecord]


def compare(runs: Sequence[str | Path], target: str | Path) -> Path:
    """Write the page that sets two to ten runs side by side, from nothing but their files."""
    if not 2 <= len(runs) <= MOST:
        raise ValueError(f"two to {MOST} runs can be set side by side. Got {len(runs)} instead.")
    paths = [Path(run) for run in runs]
    names = _names(paths)
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    records = {name: read(path) for name, path in zip(names, paths, strict=True)}
    links = {
        name: os.path.relpath(path / "report.html", target.parent)
        for name, path in zip(names, paths, strict=True)
        if (path / "report.html").exists()
    }
    return publish(target, render(records, links))


def render(records: Records, links: Mapping[str, str] | None = None) -> str:
    """The page of some records; `links` lead to the reports of the runs."""
    drawers = {"losses": lambda _: losses(records), "progress": lambda _: progress(records)}
    return filled(
        "comparison.html",
        title=f"{len(records)} runs side by side",
        refresh=REFRESH if any(r.running for r in records.values()) else 0,
        lead=_lead(records),
        cautions=_cautions(records),
        scores=[_scores(name, record) for name, record in records.items()],
        links=dict(links or {}),
        options=differing(records),
        figures=gather(next(iter(records.values())), drawers, scale=1.0),
        certificates=[_certified(name, record) for name, record in records.items()],
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        raise ValueError("the runs must be different ones. One of them was given twice.")
    few = next(k for k in range(1, 1 + max(map(len, parts))) if len({p[-k:] for p in parts}) == len(parts))
    return ["/".join(p[-few:]) for p in parts]


# -- words and tables ----------------------------------------------------------------------------------------


def _judged_on(record: RunRecord) -> tuple[Any, ...]:
    """What a score was measured on: runs that agree in it are judged on the same rows."""
    best = best_score(record)
    names = ("name", "sha256", "split", "subset", "rows", "test_rows")
    return tuple(str(record.data.get(name)) for name in names), best and (best[0], best[2], best[3])


def _lead(records: Records) -> str:
    scored = {name: best for name, record in records.items() if (best := best_score(record)) is not None}
    if len(scored) < 2 or len({_judged_on(records[name]) for name in scored}) > 1:
        return ""
    top = max(scored, key=lambda name: scored[name][1])
    kind, value, n, where = scored[top]
    equal = [name for name in scored if scored[name][1] == value]
    words = SCORES[kind] if kind == "r2" else SCORES[kind].lower()
    said = f"{shown_score(kind, value)} on {count(n, f'{where} row')}"
    if len(equal) > 1:
        return f"The best {words}, {said}, is that of {' and of '.join(equal)}."
    return f"{top} has the best {words}, {said}."


def _cautions(records: Records) -> list[str]:
    """What must be known before the numbers are compared."""
    says = []
    if len({_judged_on(r)[0] for r in records.values()}) > 1:
        says.append(
            "These runs were not trained and tested on the same rows: their scores cannot be compared."
        )
    for name, record in records.items():
        if (state := record.status.get("state", "of unknown state")) != "finished":
            says.append(f"{name} is {state}: this page shows what it has measured until then.")
        says += [f"{name}: {why}" for why in record.damaged.values()]
    return says


def _scores(name: str, record: RunRecord) -> dict[str, str]:
    known = part(record.findings, "scores")
    best = best_score(record)
    kind = best[0] if best else "accuracy"
    beside = rivals(part(record.findings, "baselines"))
    seconds = part(record.status, "results").get("seconds")
    certificate = record.certificate or record.wellposed
    return {
        "Run": name,
        "Data": data_name(record),
        "Network": f"{family(record)[0] or '—'}, {part(record.findings, 'model').get('width', '—')} units",
        f"{SCORES[kind]}, test": shown_score(kind, part(known, "test").get(kind)),
        "training": shown_score(kind, part(known, "training").get(kind)),
        "linear model": shown_score(kind, beside.get("linear")),
        "Guarantee": "None" if certificate is None else VERDICTS[certificate.verdict][0],
        "Time": duration(seconds) if isinstance(seconds, int | float) else "—",
    }


def differing(records: Records) -> list[dict[str, str]]:
    """The options in which the runs differ, one row for each."""
    asked = {
        name: dict(rows({"data": part(record.config, "data"), "recipe": record.recipe}))
        for name, record in records.items()
    }
    every = list(dict.fromkeys(option for options in asked.values() for option in options))
    table = []
    for option in every:
        values = {name: options.get(option, "—") for name, options in asked.items()}
        if len(set(values.values())) > 1:
            table.append({"Option": option.split(" · ", 1)[-1], **values})
    return table


def _certified(name: str, record: RunRecord) -> dict[str, Any]:
    told: list[dict[str, str]] = []
    for certificate in (record.certificate, record.wellposed):
        if certificate is not None and certificate.theorem not in [t["theorem"] for t in told]:
            word, mark = VERDICTS[certificate.verdict]
            promise = typeset(certificate.promise).replace("_", "-") if certificate.proved else ""
            promise = promise[:1].upper() + promise[1:]
            told.append({"word": word, "mark": mark, "theorem": certificate.theorem, "promise": promise})
    return {"name": leaf(name), "told": told}


# -- figures -------------------------------------------------------------------------------------------------


def _over(records: Records, series: Mapping[str, Pair]) -> tuple[dict[str, Pair], str]:
    """The series over epochs or steps, or over the share of the training if the runs count differently."""
    clocks = {records[name].clock for name in series}
    if len(clocks) == 1:
        return dict(series), clocks.pop()
    return {n: (x / max(float(x[-1]), 1.0), y) for n, (x, y) in series.items()}, "share of the training"


def losses(records: Records) -> Drawn | None:
    """The loss of the predictions of every run, as shares of the first if the losses are of several kinds."""
    found = {n: pair for n, r in records.items() if (pair := of_predictions(r)) is not None}
    one = len({(r.history.get("loss_name"), r.clock) for n, r in records.items() if n in found}) == 1
    if not one or "step" in {records[n].clock for n in found}:
        found = {n: share for n, pair in found.items() if (share := relative(pair)) is not None}
        one = False
    if not found:
        return None
    lines, x = _over(records, found)
    y = "training loss" if one else "training loss / its first value"
    figure = plots.curves(lines, x=x, y=y, log_y=True, above=True)
    caption = "The loss of the predictions on the training rows, without slack and penalties."
    if not one:
        caption += (
            " The runs do not measure the same loss, so each is shown as a share of its own first value."
        )
    return Drawn("Training losses", figure, caption, _ends(lines))


def _ends(lines: Mapping[str, Pair]) -> str:
    return "; ".join(f"{name} ends at {float(y[-1]):.3g}" for name, (_, y) in lines.items()) + "."


def progress(records: Records) -> Drawn | None:
    """The test score of every run during its training."""
    kinds = {
        kind: {
            n: s for n, r in records.items() if (s := r.series(kind)) is not None and np.isfinite(s[1]).any()
        }
        for kind in ("test_accuracy", "test_r2")
    }
    kind = max(kinds, key=lambda k: len(kinds[k]))
    if not kinds[kind]:
        return None
    lines, x = _over(records, kinds[kind])
    y = "share classified right" if kind == "test_accuracy" else "R²"
    figure = plots.curves(lines, x=x, y=y, above=True)
    caption = "On rows that the training never saw, measured as it went."
    return Drawn("Scores during training", figure, caption, _ends(lines))
