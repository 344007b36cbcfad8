"""How the training went: what was measured over time, beside what was promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import plots
from ..plots.curves import draw, finish
from ..plots.style import single
from ..tasks.raw import HELD_OUT
from ..theory import Certificate
from .figures import Drawers, Drawn, Pair, over_time, relative
from .opening import LOSSES
from .reading import RunRecord, part
from .words import count, number, percent

LOWEST = -0.5  # of an R² that is drawn: what an untrained network has may be far below all others


def measured_on(record: RunRecord) -> tuple[str, str]:
    """On which rows a run measured its test series: test rows, or those held out to say when to stop."""
    if part(record.fitted, "validation").get("method") == HELD_OUT:
        return "held out", "rows held out of the training, which said when to stop"
    return "test", "rows the training never saw"


def of_predictions(record: RunRecord) -> Pair | None:
    """The loss of the predictions on the training rows, without slack, from where training began."""
    found = record.series("plain_loss") or record.series("loss")
    anchored = record.certificate is not None and record.certificate.kind == "anchored"
    if found is not None and anchored and len(found[0]) > 1:
        return found[0][1:], found[1][1:]  # training does not begin at the best readout, the first
    return found


def loss(record: RunRecord) -> Drawn | None:
    """The loss of the predictions over time, on the rows trained on and on others."""
    found = of_predictions(record)
    if found is None:
        return None
    anchored = part(record.history, "anchored")
    lines: dict[str, Any] = {"training": found}
    tested = over_time(record, "test_loss")
    name, rows = measured_on(record)
    if tested is not None:
        lines[name] = tested
    y = f"{LOSSES.get(str(anchored.get('loss')), 'loss')} per row" if record.clock == "epoch" else "loss"
    if record.clock == "step":  # sums over as many rows as each part has
        lines = {n: shown for n, pair in lines.items() if (shown := relative(pair)) is not None}
        y = "loss / its first value"
    if not lines:
        return None
    figure = plots.curves(lines, x=record.clock, y=y, log_y=True)
    end, steps = float(found[1][-1]), count(int(found[0][-1]), record.clock)
    if not np.isfinite(end):
        says = [f"After {steps} the training loss is no longer finite: the run has diverged"]
    elif y == "loss / its first value" and found[1][0] > 0:
        says = [
            f"After {steps} the loss of the predictions is {number(end / float(found[1][0]))} of the first"
        ]
    elif record.clock == "epoch":
        says = [
            f"In the last of {steps} the loss of the predictions was {number(end)} on average over the "
            f"batches of training rows, each measured before its step"
        ]
    else:
        says = [f"After {steps} the loss of the predictions is {number(end)} on the training rows"]
    if name in lines:
        says.append(
            f"The {name} loss is that of {rows}: where it rises while the training loss falls, the network "
            f"overfits"
        )
    alt = f"Loss of the predictions on a logarithmic axis, {number(end)} after {steps}."
    return Drawn("Loss of the predictions", figure, ". ".join(says) + ".", alt)


def scores(record: RunRecord) -> Drawn | None:
    """The share classified right, or R², over time."""
    name, rows = measured_on(record)
    lines: dict[str, Any] = {
        part: found
        for part, key in ((name, "test_accuracy"), (name, "test_r2"), ("training", "accuracy"))
        if (found := over_time(record, key)) is not None
    }
    if not lines:
        return None
    numbers = over_time(record, "test_r2") is not None
    y = "R²" if numbers else "share classified right"
    _, values = next(iter(lines.values()))
    said = number if numbers else percent
    end, best, least = (said(float(v)) for v in (values[-1], np.nanmax(values), np.nanmin(values)))
    caption = f"It ends at {end}; its best is {best}. No theorem promises this: it is measured on {rows}."
    if numbers and np.nanmin(values) < LOWEST < values[-1]:
        lines = {part: (x, np.where(v < LOWEST, np.nan, v)) for part, (x, v) in lines.items()}
        caption += f" Values below {number(LOWEST)} are not drawn; the lowest is {least}."
    figure = plots.curves(lines, x=record.clock, y=y)
    return Drawn("Score during training", figure, caption, f"{y} ({name}), {end} at the end.")


@dataclass(frozen=True)
class Course:
    """What is measured at chosen steps: drawn if that was often enough, and otherwise listed."""

    series: str
    title: str
    y: str
    caption: str
    level: Callable[[Certificate], tuple[str, float] | None] = lambda certificate: None
    log_y: bool = False

    def __call__(self, record: RunRecord) -> Drawn | None:
        found = over_time(record, self.series)
        if found is None:
            return None
        level = None if record.certificate is None else self.level(record.certificate)
        levels = {} if level is None else dict([level])
        figure = plots.curves({"": found}, x=record.clock, y=self.y, log_y=self.log_y, levels=levels)
        ends = f"from {number(float(found[1][0]), 4)} to {number(float(found[1][-1]), 4)}"
        return Drawn(self.title, figure, f"{self.caption} It goes {ends}.", f"{self.title}, {ends}.")


def _floor(certificate: Certificate) -> tuple[str, float] | None:
    level = float(certificate.constants.get("sigma_floor") or 0.0)
    return ("promised at least", level) if level > 0 else None


COURSES = {
    "contraction": Course(
        "contraction",
        "Contraction factor",
        "contraction factor q",
        "By how much one step of plain iteration shortens the distance to the equilibrium. Below 1 there is "
        "exactly one, and iterating finds it; the nearer to 1, the more iterations a solve takes.",
        lambda certificate: ("limit 1", 1.0),
    ),
    "sigma": Course(
        "sigma_min",
        "Conditioning of the features",
        "σ_min of the features",
        "How independent the features of the training rows are: their smallest singular value, which a "
        "promised rate rests on. Near 0 some rows look alike to the readout, and fitting them apart gets "
        "slow; a hidden update that would take it below a promised floor is refused.",
        _floor,
        log_y=True,
    ),
    "movement": Course(
        "movement",
        "Movement of the hidden layer",
        "‖Z − Z(0)‖ / ‖Z(0)‖",
        "How far the equilibria have moved from where they started, as a share of their size. Near 0 the "
        "readout was fitted to features that stayed as they were drawn; where it rises, the hidden layer "
        "learns.",
        lambda c: ("certified at most", c.movement) if c.proved and c.movement else None,
    ),
}


def ends(record: RunRecord) -> list[tuple[str, str]]:
    """The values of what was measured too seldom to be drawn."""
    told = []
    for course in COURSES.values():
        found = record.series(course.series)
        if found is not None and over_time(record, course.series) is None:
            values = [number(float(v)) for v in found[1] if np.isfinite(v)]
            told += [(course.title, " → ".join(values))] if values else []
    return told


def hidden(record: RunRecord) -> Drawn | None:
    """The hidden steps that were proved safe."""
    found = record.series("hidden", of="accepted")
    if found is None:
        return None
    x, y = found
    x = x + (x[0] == 0)  # the first update leads to step 1
    figure, ax = single()
    draw(ax, (x, y), "accepted", dash="none", marks=True, log=True)
    finish(figure, ax, x=record.clock, y="hidden step size", log_y=True)
    taken = int((y > 0).sum())
    verified = record.series("verified", of="accepted")
    caption = (
        f"Each mark is a hidden update that was proved safe and accepted: {number(taken)} of "
        f"{count(len(y), record.clock)}. Where none stands, the readout moved alone. The size is found as "
        f"the run goes, as large as the checks let pass."
    )
    if verified is not None:
        proved = int(np.nansum(verified[1]))
        caption += f" The promised progress was proved at {count(proved, 'step')}" + (
            "." if proved == len(y) else "; at the others, near rounding level, it was measured."
        )
    return Drawn(
        "Accepted hidden steps",
        figure,
        caption,
        f"Accepted hidden step sizes, {taken} of {len(y)}, on a logarithmic axis.",
    )


def solver(record: RunRecord) -> Drawn | None:
    """The iterations of the solver over time."""
    found = {
        "equilibria": over_time(record, "forward_steps"),
        "gradients": over_time(record, "adjoint_steps"),
    }
    lines: dict[str, Any] = {  # 0 stands for no solve, as of the gradients before the first step
        n: (p[0], np.where(p[1] > 0, p[1], np.nan))
        for n, p in found.items()
        if p is not None and (p[1] > 0).sum() > 1
    }
    if not lines:
        return None
    figure = plots.curves(lines, x=record.clock, y="solver iterations")
    most = max(float(np.nanmax(p[1])) for p in lines.values())
    caption = (
        f"What a solve costs: iterations until the equation holds, for the equilibria and for the adjoint "
        f"equation behind the gradients; {number(int(most))} at most. A steady rise is the first sign of a "
        f"network on its way to losing its equilibria."
    )
    return Drawn("Work of the solver", figure, caption, f"Solver iterations, at most {number(int(most))}.")


def penalty(record: RunRecord) -> Drawn | None:
    """How the penalty of the readout, which safeguarded training calls slack, was chosen."""
    found = part(record.fitted, "validation")
    anchored = "ridges" in found
    names = ("ridges", "ridge_errors", "ridge") if anchored else ("slacks", "errors", "slack")
    tried, errors, chosen = map(found.get, names)
    if not tried or not errors or not chosen:
        return None
    nearest = int(np.abs(np.log(np.array(tried) / chosen)).argmin())
    lines: dict[str, Any] = {"tried": (tried, errors), "chosen": ([chosen], [errors[nearest]])}
    what = "penalty" if anchored else "slack"
    figure = plots.curves(lines, x=f"{what} λ", y="leave-one-out error", log_x=True, log_y=True)
    value = number(float(chosen))
    if anchored:
        does = f"The penalty λ = {value} keeps the readout small. Of those tried it is the one that predicts"
        best = "best from the features of the untrained hidden layer"
    else:
        does = (
            f"The slack λ = {value} lets the readout miss a little of every target. Of those tried it is the "
            f"largest that predicts"
        )
        best = "as well as the best one does, up to a standard error"
    caption = (
        f"{does} each training row from all the others {best}: with less {what} noise is fitted, with more "
        f"too little is."
    )
    return Drawn(f"Choice of the {what}", figure, caption, f"Error over {what}; chosen is {value}.")


TRAINING: Drawers = {"loss": loss, "scores": scores}
FURTHER: Drawers = {**COURSES, "hidden": hidden, "solver": solver, "slack": penalty}
