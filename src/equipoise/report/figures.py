"""The figures of a report: each with a title, a drawing, and a caption that says what to look for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from .. import plots
from ..plots.curves import draw, finish
from ..plots.style import single
from .reading import Record, part
from .words import count, number, percent

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Shown:
    """A figure in the page."""

    identifier: str
    title: str
    svg: Markup
    caption: str


@dataclass(frozen=True)
class Drawn:
    """A figure and its words: `alt` says what is seen, for those who do not see it."""

    figure: Figure
    caption: str
    alt: str


Drawers = Mapping[str, tuple[str, Callable[[Record], Drawn | None]]]


def gather(record: Record, drawers: Drawers) -> list[Shown]:
    """The figures that a record has numbers for, in order; numbers that make no figure count as none."""
    shown = []
    for identifier, (title, draw_one) in drawers.items():
        try:
            drawn = draw_one(record)
        except (KeyError, IndexError, TypeError, ValueError):
            drawn = None
        if drawn is not None:
            svg = Markup(plots.inline_svg(drawn.figure, f"fig-{identifier}", title, drawn.alt))
            shown.append(Shown(f"fig-{identifier}", title, svg, drawn.caption))
    return shown


# -- training ------------------------------------------------------------------------------------------------


def relative(pair: Pair, least: float = 0.0) -> Pair | None:
    """(L − L*)/(L(0) − L*) of a series; None if it starts at L*."""
    x, y = pair
    first = y[0] - least
    return (x, (y - least) / first) if first > 0 and np.isfinite(first) else None


def loss(record: Record) -> Drawn | None:
    found = record.series("loss")
    if found is None:
        return None
    least = record.history.get("least_loss") or 0.0
    measured = relative(found, least)
    if measured is None:
        return None
    lines: dict[str, Any] = {"training": measured}
    plain = record.series("plain_loss")
    if plain is not None and (shown := relative(plain)):
        lines["predictions alone"] = shown
    tested = record.series("test_loss")
    if tested is not None and (shown := relative(tested)):
        lines["test"] = shown
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
            "The promise is about the loss with slack; what the predictions alone leave over levels off "
            "where fitting harder would mean fitting noise"
        )
    if "test" in lines:
        says.append("The test loss was never trained on: look for where it stops following the training loss")
    alt = f"Training loss on a logarithmic axis, from 1 to {number(float(end))} over {steps}"
    return Drawn(figure, ". ".join(says) + ".", alt + (", below the promised bound." if bounds else "."))


def _violations(measured: Pair, promised: Pair) -> int:
    bound = dict(zip(promised[0].tolist(), promised[1].tolist(), strict=True))
    return sum(
        not y <= bound[x]
        for x, y in zip(measured[0].tolist(), measured[1].tolist(), strict=True)
        if x in bound
    )


def accuracy(record: Record) -> Drawn | None:
    found = {name: record.series(key) for name, key in (("test", "test_accuracy"), ("training", "accuracy"))}
    lines: dict[str, Any] = {name: pair for name, pair in found.items() if pair is not None}
    if not lines or max(len(pair[0]) for pair in lines.values()) < 2:
        return None
    figure = plots.curves(lines, x=record.clock, y="share classified right")
    _, y = next(iter(lines.values()))
    caption = (
        f"It ends at {percent(float(y[-1]))}; its best is {percent(float(np.nanmax(y)))}. No theorem speaks "
        f"of this: it is measured on rows the training never saw."
    )
    return Drawn(figure, caption, f"Test accuracy from {percent(float(y[0]))} to {percent(float(y[-1]))}.")


def contraction(record: Record) -> Drawn | None:
    found = record.series("contraction")
    if found is None:
        return None
    figure = plots.curves(
        {"factor": found}, x=record.clock, y="contraction factor q", levels={"limit 1": 1.0}
    )
    top = float(np.nanmax(found[1]))
    caption = (
        f"By how much one step of plain iteration shortens the distance to the equilibrium. Below 1 the "
        f"equilibrium exists, is the only one, and is found by iterating; its largest value here is "
        f"{number(top, 4)}. The nearer to 1, the more iterations a solve takes."
    )
    return Drawn(figure, caption, f"Contraction factor over time, at most {number(top, 4)}.")


def sigma(record: Record) -> Drawn | None:
    found = record.series("sigma_min")
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
    return Drawn(
        figure, caption, f"σ_min from {number(float(found[1][0]))} to {number(float(found[1][-1]))}."
    )


def movement(record: Record) -> Drawn | None:
    found = record.series("movement")
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
    )
    return Drawn(figure, caption, f"Relative movement of the equilibria, {number(end)} at the end.")


def hidden(record: Record) -> Drawn | None:
    found = record.series("hidden", of="accepted")
    if found is None or not len(found[0]):
        return None
    x, y = found
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
    return Drawn(figure, caption, f"Accepted hidden step sizes, {taken} of {len(y)}, on a logarithmic axis.")


def solver(record: Record) -> Drawn | None:
    found = {"equilibria": record.series("forward_steps"), "gradients": record.series("adjoint_steps")}
    lines: dict[str, Any] = {  # 0 stands for no solve, as of the gradients before the first step
        n: (p[0], np.where(p[1] > 0, p[1], np.nan)) for n, p in found.items() if p is not None and p[1].any()
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
    return Drawn(figure, caption, f"Solver iterations, at most {number(int(most))}.")


def rate(record: Record) -> Drawn | None:
    found = record.series("learning_rate")
    if found is None or len(found[0]) < 2 or np.nanmax(found[1]) == np.nanmin(found[1]):
        return None
    figure = plots.curves({"rate": found}, x=record.clock, y="learning rate", log_y=True)
    caption = "The step size of the optimiser, as its schedule set it."
    return Drawn(figure, caption, "Learning rate over time.")


TRAINING = {
    "loss": ("Loss against the promise", loss),
    "accuracy": ("Accuracy on the way", accuracy),
    "contraction": ("Contraction factor", contraction),
    "sigma": ("Conditioning of the features", sigma),
    "movement": ("Movement of the hidden layer", movement),
    "hidden": ("Accepted hidden steps", hidden),
    "solver": ("Work of the solver", solver),
    "rate": ("Learning rate", rate),
}


# -- the network ---------------------------------------------------------------------------------------------


def confusion(record: Record) -> Drawn | None:
    found = part(record.findings, "confusion")
    if not found:
        return None
    counts = np.array(found["counts"])
    figure = plots.confusion(counts, found["names"])
    wrong = int(counts.sum() - np.trace(counts))
    caption = (
        f"Rows are what the {number(int(counts.sum()))} {found['part']} samples are, columns what the "
        f"network said. Right answers lie on the diagonal, and {number(wrong)} beside it."
    )
    if wrong:
        off = counts - np.diag(np.diag(counts))
        i, j = np.unravel_index(int(off.argmax()), off.shape)
        caption += f" Most often, {found['names'][i]} was taken for {found['names'][j]} ({int(off[i, j])})."
    return Drawn(figure, caption, f"Confusion matrix of {len(counts)} classes, {wrong} errors.")


def residuals(record: Record) -> Drawn | None:
    found = part(record.findings, "residuals")
    if not found:
        return None
    figure = plots.residuals({name: (f["target"], f["predicted"]) for name, f in found.items()})
    caption = (
        "What is left of the targets after the prediction, in the targets' own unit. It should look like "
        "noise around the line at 0: a slope, a bend or a funnel is structure that the network has missed. "
        f"The dashed lines stand at the root mean square of the {list(found)[-1]} rows."
    )
    return Drawn(figure, caption, "Residuals against predictions.")


def equilibria(record: Record) -> Drawn | None:
    found = part(record.findings, "plane")
    if not found:
        return None
    shares = found["shares"]
    if "labels" in found:
        figure = plots.plane(found["points"], found["labels"], found["names"], shares=shares)
        look = (
            "Classes that lie apart here are easy for the readout; names stand at the middle of their class."
        )
    else:
        figure = plots.coloured_plane(found["points"], found["targets"], shares=shares)
        look = (
            "Marks show the target in four equally full ranges: an order among them is what the readout uses."
        )
    caption = (
        f"Where the hidden layer comes to rest for {count(len(found['points']), 'training row')}, seen in "
        f"the two directions in which it varies most ({percent(sum(shares))} of all variation). {look}"
    )
    return Drawn(figure, caption, f"Scatter of {len(found['points'])} equilibria in their principal plane.")


def kernel(record: Record) -> Drawn | None:
    found = part(record.findings, "kernel")
    if not found:
        return None
    spectrum = found["spectrum"]
    figure = plots.spectrum({"tangent kernel": (spectrum["ranks"], spectrum["values"])})
    values = np.array(spectrum["values"], dtype=float)
    positive = values[values > 0]
    shares = ", ".join(f"{name} {percent(share)}" for name, share in found["shares"].items())
    rows = count(found["rows"], "training row")
    outputs = f" and {count(found['outputs'], 'output')}" if found["outputs"] > 1 else ""
    caption = (
        f"How fast gradient training can change the predictions of {rows}{outputs}, direction by direction: "
        f"a component of the residual decays at the rate of its eigenvalue, so a long fall to the right "
        f"means fine detail that is learned late or never."
    )
    if positive.size:
        caption += f" The largest is {number(float(positive[0] / positive[-1]))} times the smallest shown."
    caption += f" By weights, the kernel comes from {shares}."
    return Drawn(figure, caption, f"Eigenvalues of the tangent kernel, {spectrum['size']} of them.")


def weights(record: Record) -> Drawn | None:
    found = part(record.findings, "weights")
    if not found:
        return None
    named = {
        ("W of the equation" if name == "effective" else name): (s["ranks"], s["values"])
        for name, s in found.items()
    }
    figure = plots.spectrum(named, y="singular value", levels={"1": 1.0})
    top = float(found["effective"]["values"][0]) if found.get("effective", {}).get("values") else None
    caption = (
        "Singular values of the weights, largest first. The first of the weight W that the equilibrium "
        "equation uses is its norm: below the dotted line at 1, iteration contracts"
    )
    caption += f"; here it is {number(top, 4)}." if top is not None else "."
    if top is not None and top >= 1:
        caption += (
            " Above it, uniqueness rests on another reason than contraction, such as monotonicity: see the "
            "certificate."
        )
    return Drawn(figure, caption, f"Singular values of {', '.join(named)}.")


NETWORK = {
    "confusion": ("Right and wrong answers", confusion),
    "residuals": ("What is left over", residuals),
    "equilibria": ("The equilibria in a plane", equilibria),
    "kernel": ("Spectrum of the tangent kernel", kernel),
    "weights": ("Spectra of the weights", weights),
}
