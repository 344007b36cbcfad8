"""sweep.html: every configuration and trial of a sweep in a table, and one picture of them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from .. import plots
from ..tasks.sweep import Sweep, ranked
from .opening import shown_score
from .page import filled, publish

_STATES = {"early": "stopped early", "waiting": "not begun yet"}


def write_page(sweep: Sweep, best: dict[str, Any] | None = None) -> Path:
    """The page of a sweep as it stands; `best` is what the refitted run came to."""
    outcomes = [sweep.outcome(trial) for trial in sweep.trials]
    table = ranked(outcomes)
    kind = next((one["score_name"] for one in outcomes if "score_name" in one), "accuracy")
    words = "accuracy" if kind == "accuracy" else "R²"
    shown = [one for one in table if one["score"] > -float("inf")]
    figure = plots.parallel(
        [one["options"] for one in shown], [one["score"] for one in shown], f"{words}, validation"
    )
    said = "; ".join(f"{_options(one)}: {shown_score(kind, one['score'])}" for one in shown)
    page = filled(
        "sweep.html",
        name=sweep.path.name,
        data=str(sweep.data["source"]).rsplit("/", 1)[-1],
        sizes=(len(sweep.configurations), len(sweep.trials)),
        share=f"{100 * sweep.data['validation']:g} %",
        words=words,
        columns=sweep.open,
        spread=any(one["spread"] is not None for one in table),
        configurations=[
            {**one, "score": shown_score(kind, one["score"]) if one in shown else "–"}
            | {"spread": "" if one["spread"] is None else f"± {shown_score(kind, one['spread'])}"}
            for one in table
        ],
        trials=[
            {**one, "state": _STATES.get(one["state"], one["state"])}
            | {"score": "–" if one["score"] is None else shown_score(kind, one["score"])}
            | {"page": (sweep.path / "trials" / one["trial"] / "report.html").exists()}
            for one in outcomes
        ],
        figure=Markup(plots.inline_svg(figure, "fig-sweep", f"{words} by configuration", said)),
        best=best
        and {**best, "shown": shown_score(kind, best["score"]) if best["score"] is not None else "–"},
    )
    return publish(sweep.path / "sweep.html", page)


def _options(one: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in one["options"].items()) or "as given"
