"""How the training went: what was measured over time, beside what was promised."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import plots
from ..plots.curves import draw, finish
from ..plots.style import single
from ..tasks.raw import HELD_OUT
from .figures import Drawers, Drawn, Pair, over_time, relative
from .reading import RunRecord, part
from .words import count, number, percent


def least_loss(record: RunRecord) -> float:
    """L*, which the promise is about: of the history, or of the metrics of a run that has not ended."""
    for found in (record.history.get("least_loss"), record.last("least_loss")):
        if isinstance(found, int | float):
            return found
    return 0.0


def measured_on(record: RunRecord) -> tuple[str, str]:
    """What the test series of a run are of: its test rows, or those held out to say when to stop."""
    if part(record.fitted, "validation").get("method") == HELD_OUT:
        return "held out", "rows held out of the training, which said when to stop"
    return "test", "rows the training never saw"


def loss(record: RunRecord) -> Drawn | None:
    found = record.series("loss")
    if found is None:
        return None
    least = least_loss(record)
    measured = relative(found, least)
    if measured is None:
        return None
    lines: dict[str, Any] = {"training": measured}
    plain = record.series("plain_loss")
    if plain is not None and (shown := relative(plain)):
        lines["predictions alone"] = shown
    tested = over_time(record, "test_loss")
    name, rows = measured_on(record)
    if tested is not None and (shown := relative(tested)):
        lines[name] = shown
    promised = record.series("promised")
    bounds = {} if promised is None else {"promised at most": promised}
    figure = plots.curves(lines, x=record.clock, y="loss / its first value", log_y=True, bounds=bounds)
    end = measured[1][-1]
    steps = count(int(found[0][-1]), record.clock)
    says = [f"After {steps} the training loss is {number(float(end))} of its first value"]
    if not np.isfinite(end):
        says = [f"After {steps} the training loss is no longer finite: the run has diverged"]
    if promised is not None:
        above = _violations(measured, promised)
        says[0] += f", where at most {number(float(promised[1][-1]))} was promised"
        says.append(
            "At every step it lies below the promise: the dashed line is a bound, not a forecast, and the "
            "room between the two is what the theorem could not foresee"
            if not above
            else f"At {count(above, 'step')} it lies above the promise, which must not happen"
        )
    if "predictions alone" in lines:
        says.append(
            "The promise is about the loss with slack; what the predictions alone leave over levels off, "
            "since the slack keeps them from fitting every target"
        )
    if name in lines:
        says.append(f"The {name} loss is of {rows}: look for where it stops following the training loss")
    alt = f"Training loss on a logarithmic axis, from 1 to {number(float(end))} over {steps}"
    alt += ", beside the promised bound." if bounds else "."
    return Drawn("Loss against the promise" if bounds else "Loss", figure, ". ".join(says) + ".", alt)


def _violations(measured: Pair, promised: Pair) -> int:
    bound = dict(zip(promised[0].tolist(), promised[1].tolist(), strict=True))
    return sum(
        not y <= bound[x]
        for x, y in zip(measured[0].tolist(), measured[1].tolist(), strict=True)
        if x in bound
    )


def _sparse(found: Pair) -> str:
    """A warning about lines between few points."""
    return f" Measured {len(found[0])} times only; the line joins them." if len(found[0]) < 5 else ""


def accuracy(record: RunRecord) -> Drawn | None:
    name, rows = measured_on(record)
    found = {
        name: over_time(record, key) for name, key in ((name, "test_accuracy"), ("training", "accuracy"))
    }
    lines: dict[str, Any] = {name: pair for name, pair in found.items() if pair is not None}
    if not lines:
        return None
    figure = plots.curves(lines, x=record.clock, y="share classified right")
    _, y = next(iter(lines.values()))
    caption = (
        f"It ends at {percent(float(y[-1]))}; its best is {percent(float(np.nanmax(y)))}. No theorem speaks "
        f"of this: it is measured on {rows}."
    )
    return Drawn(
        "Accuracy on the way",
        figure,
        caption,
        f"Accuracy ({name}) from {percent(float(y[0]))} to {percent(float(y[-1]))}.",
    )


def explained(record: RunRecord) -> Drawn | None:
    found = over_time(record, "test_r2")
    if found is None:
        return None
    name, rows = measured_on(record)
    figure = plots.curves({name: found}, x=record.clock, y=f"R², {name}")
    end = float(found[1][-1])
    caption = (
        f"The share of the targets' variation that is explained, on {rows}: "
        f"{number(end)} at the end, {number(float(np.nanmax(found[1])))} at best. The mean alone would "
        f"reach 0."
    )
    return Drawn("Explained on the way", figure, caption, f"R² over time, {number(end)} at the end.")


def contraction(record: RunRecord) -> Drawn | None:
    found = over_time(record, "contraction")
    if found is None:
        return None
    figure = plots.curves(
        {"factor": found}, x=record.clock, y="contraction factor q", levels={"limit 1": 1.0}
    )
    top = float(np.nanmax(found[1]))
    caption = (
        f"By how much one step of plain iteration shortens the distance to the equilibrium. Below 1 the "
        f"equilibrium exists, is the only one, and is found by iterating; its largest value here is "
        f"{number(top, 4)}. The nearer to 1, the more iterations a solve takes.{_sparse(found)}"
    )
    return Drawn(
        "Contraction factor", figure, caption, f"Contraction factor over time, at most {number(top, 4)}."
    )


def sigma(record: RunRecord) -> Drawn | None:
    found = over_time(record, "sigma_min")
    if found is None:
        return None
    constants = record.certificate.constants if record.certificate is not None else {}
    level = float(constants.get("sigma_floor") or 0.0)
    levels = {"promised at least": level} if level > 0 else {}
    figure = plots.curves(
        {"measured": found}, x=record.clock, y="σ_min of the features", log_y=True, levels=levels
    )
    caption = (
        f"How independent the features of the training rows are: the smallest singular value of Z"
        f"{', with the columns of the slack,' if constants.get('slack') else ''} is what the rate rests on. "
        f"It goes from {number(float(found[1][0]))} to {number(float(found[1][-1]))}"
    )
    caption += (
        f" and is not allowed below the dotted floor, {number(level)}: a hidden update that would "
        f"take it there is refused."
        if levels
        else ". Near 0 some rows look alike to the readout, and fitting them apart gets slow."
    )
    caption += _sparse(found)
    return Drawn(
        "Conditioning of the features",
        figure,
        caption,
        f"σ_min from {number(float(found[1][0]))} to {number(float(found[1][-1]))}.",
    )


def movement(record: RunRecord) -> Drawn | None:
    found = over_time(record, "movement")
    if found is None:
        return None
    certified = record.certificate.movement if record.certificate and record.certificate.proved else None
    levels = {"certified at most": certified} if certified else {}
    figure = plots.curves({"measured": found}, x=record.clock, y="‖Z − Z(0)‖ / ‖Z(0)‖", levels=levels)
    end = float(found[1][-1])
    caption = (
        f"How far the equilibria have moved from where they started, as a share of their size: {number(end)} "
        f"at the end. "
        + (
            "So little means that the readout was fitted to features that stayed as they were drawn."
            if end < 1e-3
            else "A curve that rises means that the hidden layer learns, and is not only read out."
        )
        + _sparse(found)
    )
    return Drawn(
        "Movement of the hidden layer",
        figure,
        caption,
        f"Relative movement of the equilibria, {number(end)} at the end.",
    )


def hidden(record: RunRecord) -> Drawn | None:
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


def rate(record: RunRecord) -> Drawn | None:
    found = over_time(record, "learning_rate")
    if found is None or np.nanmax(found[1]) == np.nanmin(found[1]):
        return None
    figure = plots.curves({"rate": found}, x=record.clock, y="learning rate", log_y=True)
    caption = "The step size of the optimiser, as its schedule set it."
    return Drawn("Learning rate", figure, caption, "Learning rate over time.")


def slack(record: RunRecord) -> Drawn | None:
    found = part(record.fitted, "validation")
    tried, errors, chosen = found.get("slacks"), found.get("errors"), found.get("slack")
    if not tried or not errors or not chosen:
        return None
    nearest = int(np.abs(np.log(np.array(tried) / chosen)).argmin())
    lines: dict[str, Any] = {"tried": (tried, errors), "chosen": ([chosen], [errors[nearest]])}
    figure = plots.curves(lines, x="slack λ", y="leave-one-out error", log_x=True, log_y=True)
    caption = (
        f"The slack λ = {number(float(chosen))} lets the readout miss a little of every target. It was "
        f"chosen where predicting each training row from all the others errs least: to the left noise is "
        f"fitted, to the right too little is. A flat valley means that the choice hardly matters."
    )
    return Drawn(
        "Choice of the slack", figure, caption, f"Error over slack, least at {number(float(chosen))}."
    )


TRAINING: Drawers = {
    "loss": loss,
    "accuracy": accuracy,
    "explained": explained,
    "contraction": contraction,
    "sigma": sigma,
    "movement": movement,
    "hidden": hidden,
    "solver": solver,
    "rate": rate,
    "slack": slack,
}
