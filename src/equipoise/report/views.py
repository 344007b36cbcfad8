"""Figures and words of what was seen around a network: the loss on a slice, the way of the solver."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ..explore import Measured, Survey
from ..plots import contours, curves, surface, trajectories
from ..plots.curves import draw, finish
from ..plots.plane import MOST_PATHS
from ..plots.style import FINE, scale_axis, single
from ..plots.surfaces import profile
from .words import number, percent

_FEW = 25  # solver steps that are marked one by one


def survey_facts(found: Survey) -> dict[str, str]:
    """What a survey found, in words by name."""
    centre, sharpness = found.centre, found.sharpness
    return {
        "loss here": centre.reason or f"{number(centre.loss, 4)} ({described(found.loss)})",
        "at most twice that": f"on {percent(found.share_below_twice)} of the slice",
        "no loss to show": f"{percent(float(found.slice.masked.mean()))} of the points "
        + ", ".join(f"({count} {reason})" for reason, count in found.slice.reasons.items()),
        "λ_max of the Hessian": f"about {number(sharpness.value, 4)} (an estimate, from below; "
        f"Lanczos residual {number(sharpness.residual, 1)})",
        **({} if found.way is None else _path_facts(found.way.to_dict())),
    }


def _path_facts(way: dict[str, Any]) -> dict[str, str]:
    first, second = (percent(share) for share in way["shares"])
    same = "bit for bit"
    if way["departure"]:
        same = f"up to a relative {number(way['departure'], 1)}, as sums in another order make it"
    moments = way["moments"]
    return {
        "path": f"{len(moments)} moments, {way['unit']} 0 to {moments[-1]}; the training was repeated and "
        f"reached the run's weights {same}",
        "plane": f"holds {percent(way['share'])} of the path's variance ({first} and {second}); the loss is "
        "that of its own points",
    }


def described(loss: Measured) -> str:
    """Which loss is measured, over how many rows, and what the run calls it."""
    some = f"{len(loss.X)} rows" if len(loss.X) == loss.of else f"{len(loss.X)} of {loss.of} rows"
    logged = "" if loss.logged == "loss" else f"; the run's {loss.logged}, without slack"
    return f"{loss.name}, {'mean' if loss.mean else 'sum'} over {some}{logged}"


def draw_survey(survey: Survey, between_runs: bool) -> dict[str, Figure]:
    """Contours and a surface of a plane, a profile of a line, or the contours around a training's path."""
    found, name, way = survey.slice, survey.loss.words, survey.way
    positive = bool((found.loss[~found.masked] > 0).all()) and not found.masked.all()
    words: dict[str, Any] = {"name": name, "log": positive, "masked": "no loss to show"}
    if found.t is None:
        x = "from this network (0) to the other (1)" if between_runs else "along the direction, from 0 here"
        return {"line": profile(found.s, found.loss, x=x, **words)}
    seen = found.s, found.t, found.loss
    if way is not None:
        first, second = (f"{100 * share:.1f} %" for share in way.shares)
        words |= {"x": f"first component of the path ({first})", "y": f"second component ({second})"}
        words |= {"name": f"{name} of the plane's points", "paths": {"training, ○ to ●": way.coordinates}}
        return {"path": contours(*seen, **words)}
    here = {"trained network": (0.0, 0.0)}
    return {"contours": contours(*seen, marks=here, **words), "surface": surface(*seen, **words)}


def draw_trajectory(content: dict[str, Any]) -> dict[str, Figure]:
    """The paths in their plane, the residuals over the solver's steps, and those steps over the training."""
    count, residuals = len(content["paths"]), content["residuals"]
    named = count <= MOST_PATHS
    title = "" if named else f"{count} rows"
    paths = trajectories(
        {f"row {i}": path for i, path in enumerate(content["paths"])},
        arrows=(content["s"], content["t"], content["arrows"]),
        shares=content["shares"],
        x="first component",
        y="second component",
        title=title,
    )
    figure, ax = single()
    marks = named and max(map(len, residuals)) <= _FEW
    for i, r in enumerate(residuals):
        draw(ax, r, f"row {i}" if named else "", at=i if named else 0, marks=marks, log=True)
    for line in () if named else ax.get_lines():
        line.set(linewidth=FINE, alpha=0.6)
    finish(figure, ax, x="solver step", y="‖f(z) − z‖ / ‖z‖", title=title, log_y=True)
    scale_axis(ax, "x", log=False, integers=True)
    figures = {"paths": paths, "residuals": figure}
    if content["forward_steps"]:
        over = curves({"": content["forward_steps"]}, x=content["unit"], y="solver steps of the forward pass")
        scale_axis(over.axes[0], "y", log=False, integers=True)
        figures["training"] = over
    return figures
