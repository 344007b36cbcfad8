"""Z = relu(γZA + relu(XW)): the figures of [gao2022, §7 and Appendix B]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...plots import LIGHT, new_figure
from ...plots.curves import BAND, draw_band, finish
from ..framework.experiments import Context, Measured, register
from ..framework.page import Page, number, shared_legend
from ..framework.seeds import apart, compared, shown, spread
from ..framework.verdicts import BELOW, FALLING, Judgement, below, falling, judged
from .runs import (
    CALM,
    DATA,
    GAMMAS,
    STEP,
    ended,
    finals,
    finals_test,
    grid,
    learned,
    rises,
    sizes,
)

NORM_DRIFT = 0.25  # "about its initial value": γ‖A(k)‖ within 25 % of γ
RATES = (10.0, 1.0, 0.1)  # ηN of Fig 3
WIDER = (
    "§7.1, Figures 1 and 4: better convergence rates as m becomes larger",
    "§7.1, Figures 1 and 4: lower test loss as m becomes larger",
)
LARGER = (
    "§7.2, Figures 2 and 6: lower training loss by relatively larger γ",
    "§7.2, Figures 2 and 6: the test loss is also lower when γ becomes larger",
)
LATE = 0.1  # of the epochs: a loss that rises there is still unsteady at the last


def _seeds(context: Context) -> int:
    return len(context.seeds(tiny=1, small=3, medium=1, paper=5))


# -- figures 1 and 4: width ----------------------------------------------------------------------------------


def _width(context: Context, names: Sequence[str], seeds: int) -> Measured:
    size = sizes(context)
    runs = [
        {"label": f"m = {m}", "width": m, "gamma": 0.1, "step": STEP, "epochs": size["epochs"]}
        for m in size["widths"]
    ]
    if context.settings.scale == "medium" and context.settings.seeds is None:
        runs[1]["seeds"] = 5  # of m = 300
    return grid(context, names, runs, seeds)


def judge_width(measured: Measured) -> list[Judgement]:
    found = []
    for name, curves in measured["data"].items():
        drift, worst, at = max(
            (abs(v / 0.1 - 1), finals([r])[0], k)
            for runs in curves.values()
            for r in runs
            for k, v in zip(r["at"], r["norm"], strict=True)
        )
        found += [
            _falling(f"{name}: wider networks train faster", curves, WIDER[0]),
            _falling(f"{name}: wider networks have a lower test loss", curves, WIDER[1], test=True),
            judged(
                f"{name}: γ‖A(k)‖ stays about γ",
                drift <= NORM_DRIFT,
                paper="§7.1, Figures 1 and 4: changed throughout, but approximately equal to their "
                "initialization, γ = .1",
                measured=f"at most {drift:.1%} away from γ, over all widths and seeds",
                tolerance=f"within {NORM_DRIFT:.0%} of γ at every epoch measured",
                reason=""
                if drift <= NORM_DRIFT
                else f"A moves as long as there is an error to fit: it was furthest away at epoch {at}, in a "
                + (
                    f"run whose training loss is {shown([worst])} a sample at the end"
                    if np.isfinite(worst)
                    else "run that was lost"
                ),
            ),
        ]
    return found


def _falling(
    claim: str, curves: Mapping[str, Sequence[Measured]], paper: str, test: bool = False
) -> Judgement:
    value, what = (finals_test, "test loss") if test else (finals, "training loss")
    groups = {label: value(runs) for label, runs in curves.items()}
    falls = falling(list(groups.values()))
    return judged(
        claim,
        falls,
        paper=paper,
        measured=f"{what} a sample at the end: {compared(groups)}{_idle(curves)}",
        tolerance=FALLING,
        reason=_why(curves, test) if falls is False else "",
    )


def _idle(curves: Mapping[str, Sequence[Measured]]) -> str:
    """Which runs came to the end without learning."""
    some = {label: sum(ended(r) and not learned(r) for r in runs) for label, runs in curves.items()}
    words = ", ".join(f"{n} of {len(curves[label])} at {label}" for label, n in some.items() if n)
    return f"; came to the end with a loss no lower than the first: {words}" if words else ""


def _why(curves: Mapping[str, Sequence[Measured]], test: bool) -> str:
    """Why a loss does not fall from curve to curve, as far as the curves say."""
    lost = [label for label, runs in curves.items() if not all(map(ended, runs))]
    if lost:
        return f"runs were lost at {', '.join(lost)}"
    found = [rises(r["loss"]) for runs in curves.values() for r in runs]
    if test:
        falls = not any(map(len, found)) and falling([finals(runs) for runs in curves.values()])
        words = (
            "the training loss falls, at every epoch and from each to the next: it is the test samples' own"
        )
        return words if falls else ""
    epochs = len(next(iter(curves.values()))[0]["loss"]) - 1
    late = sum(bool((at > epochs - LATE * epochs).any()) for at in found)
    if 2 * late <= len(found):
        return ""
    return (
        f"at η = 1/N the descent is at the edge of stability: in {late} of {len(found)} runs the training "
        f"loss rose within the last {LATE:.0%} of the epochs, and the last is a moment of that"
    )


def draw_curves(measured: Measured, page: Page) -> None:
    """A row of panels a data set: training loss, test loss, γ‖A(k)‖."""
    rows = measured["data"]
    figure, axes = new_figure(len(rows), 3, width=4.3, height=3.0)
    for (name, curves), panels in zip(rows.items(), axes, strict=True):
        for at, (label, runs) in enumerate(curves.items()):
            draw_band(panels[0], _even([_shown(r) for r in runs]), label, at=at, log=True)
            k = min(len(r["at"]) for r in runs)
            steps = runs[0]["at"][:k]
            test, norm = (np.array([r[key][:k] for r in runs], dtype=float) for key in ("test_loss", "norm"))
            draw_band(panels[1], np.where(test <= 1e3, test, np.nan), label, x=steps, at=at, log=True)
            draw_band(panels[2], np.where(norm <= 2.0, norm, np.nan), label, x=steps, at=at)
        finish(figure, panels[0], x="epoch", y="training loss / N", title=name, log_y=True)
        finish(figure, panels[1], x="epoch", y="test loss / N", title=name, log_y=True)
        finish(figure, panels[2], x="epoch", y="γ‖A(k)‖", title=name)
        if max(v for runs in curves.values() for r in runs for v in r["norm"]) > 0.6:
            panels[2].axhline(1.0, color=LIGHT.soft, linewidth=0.8)  # beyond it nothing is proved
    shared_legend(figure, axes[0])
    page.figure(
        "curves",
        figure,
        f"{BAND} A curve that ends early was lost, in one seed or more: no equilibrium, or a loss that is "
        "not finite. A test curve also ends where test samples have no equilibrium. From γ‖A‖ = 1 on no "
        "equilibrium is proved; beyond 2 it is cut off.",
    )
    columns = ["data", "run", "seeds", "learned", "did not learn", "lost"]
    for name in ("training loss / N", "test loss / N", "γ‖A‖"):
        columns += [name, f"± sd of {name}"]
    page.table(
        "final",
        columns,
        [[name, label, *_row(runs)] for name, curves in rows.items() for label, runs in curves.items()],
        "At the last epoch: mean and standard deviation over the seeds that came to it, whether they learned "
        "(their loss ends below their first) or not, and of test losses those whose test samples all have an "
        "equilibrium there; how many, where not all.",
    )


def _row(runs: Sequence[Measured]) -> list[float | int | str | None]:
    there = [r for r in runs if ended(r)]
    fine = sum(map(learned, runs))
    values = (finals(runs), finals_test(runs), [r["norm"][-1] if ended(r) else np.inf for r in runs])
    moments = [cell for some in values for cell in _moments(some)]
    return [len(runs), fine, len(there) - fine, len(runs) - len(there), *moments]


def _moments(values: Sequence[float]) -> tuple[float | str | None, float | None]:
    """Mean and standard deviation; the mean with how many values are behind it, where not all."""
    mean, deviation = spread(values)
    kept = int(np.isfinite(values).sum())
    partial = mean is not None and kept < len(values)
    return f"{number(mean)}, {kept} of {len(values)} seeds" if partial else mean, deviation


def _shown(run: Measured) -> np.ndarray:
    """Training loss a sample, as far as it makes a picture: a loss that ran away is cut off."""
    loss = np.array(run["loss"], dtype=float) / run["N"]
    return np.where(loss <= 1e3 * loss[0], loss, np.nan)


def _even(curves: Sequence[np.ndarray]) -> np.ndarray:
    """Curves of one length, (R, K): those that ended early are cut where the first of them ended."""
    k = min(len(c) for c in curves)
    return np.stack([c[:k] for c in curves])


@register(
    "gao2022.fig1",
    "Figure 1: width, on MNIST",
    "Wider networks reach a lower training and test loss in the same epochs, and γ‖A(k)‖ stays about γ.",
    judge=judge_width,
    draw=draw_curves,
    least="small",
)
def fig1(context: Context) -> Measured:
    return _width(context, context.datasets("mnist"), _seeds(context))


@register(
    "gao2022.fig4",
    "Figure 4: width, on four data sets",
    "On each data set wider networks reach a lower training and test loss, and γ‖A(k)‖ stays about γ.",
    judge=judge_width,
    draw=draw_curves,
    least="small",
)
def fig4(context: Context) -> Measured:
    return _width(context, context.datasets(*DATA), _seeds(context))


# -- figures 2 and 6: γ --------------------------------------------------------------------------------------


def _gamma(context: Context, names: Sequence[str], seeds: int) -> Measured:
    size = sizes(context)
    common = {"width": size["width"], "epochs": size["epochs"]}
    runs = [{"label": f"γ = {g:g}", "gamma": g, "step": STEP, **common} for g in GAMMAS]
    runs.append({"label": f"γ = 0.8, η = {CALM:g}/N", "gamma": 0.8, "step": CALM, **common})
    return grid(context, names, runs, seeds)


def judge_gamma(measured: Measured) -> list[Judgement]:
    found = []
    for name, curves in measured["data"].items():
        labels = list(curves)
        small, largest, calm = labels[:3], labels[3], labels[4]
        some = {label: curves[label] for label in small}
        found += [
            _falling(f"{name}: training loss falls with γ up to .5", some, LARGER[0]),
            _falling(f"{name}: test loss falls with γ up to .5", some, LARGER[1], test=True),
        ]
        bad = [r for r in curves[largest] if not learned(r)]
        limit = float(np.mean([r["stable_step"] for r in curves[largest]]))
        ours, other = finals(curves[largest]), finals(curves[small[-1]])
        trained = [v if learned(r) else np.inf for v, r in zip(ours, curves[largest], strict=True)]
        lower = below(trained, other)
        found.append(
            judged(
                f"{name}: γ = .8 at η = 1/N has a lower training loss than γ = .5",
                lower,
                paper=LARGER[0],
                measured=f"{shown(ours)} against {shown(other)} of {small[-1]}{apart(ours, other)}"
                + _idle({largest: curves[largest]})
                + (f"; {bad[0]['stopped'].split(' after ')[0]}" if bad and bad[0]["stopped"] else "")
                + f"; at η = {CALM:g}/N it ends at {shown(finals(curves[calm]))}",
                tolerance=f"below it, {BELOW}; a run that is lost or does not learn is above all",
                reason=""
                if lower
                else f"the first steps are stable for η < 2(1−γ)²/‖Φ‖² = {limit:.2f}/N only"
                if bad or limit < STEP
                else "",
            )
        )
    return found


@register(
    "gao2022.fig2",
    "Figure 2: γ, on MNIST",
    "A larger γ of .1, .3, .5, .8 gives a lower training and test loss, at m = N = 1000.",
    judge=judge_gamma,
    draw=draw_curves,
    least="small",
)
def fig2(context: Context) -> Measured:
    return _gamma(context, context.datasets("mnist"), _seeds(context))


@register(
    "gao2022.fig6",
    "Figure 6: γ, on four data sets",
    "On each data set a larger γ gives a lower training and test loss.",
    judge=judge_gamma,
    draw=draw_curves,
    least="small",
)
def fig6(context: Context) -> Measured:
    return _gamma(context, context.datasets(*DATA), _seeds(context))


# -- figures 3 and 5: η --------------------------------------------------------------------------------------


def _rate(context: Context, names: Sequence[str], seeds: int) -> Measured:
    size = sizes(context)
    runs = [
        {
            "label": f"η = {s:g}/N",
            "gamma": 0.1,
            "step": s,
            "width": size["width"],
            "epochs": size["epochs"],
        }
        for s in RATES
    ]
    return grid(context, names, runs, seeds)


def judge_rate(measured: Measured) -> list[Judgement]:
    found = []
    for name, curves in measured["data"].items():
        large, paper, _ = curves.values()
        rose = [bool(len(rises(r["loss"]))) for r in large]
        lost, idle = (
            sum(1 for r in large if ended(r) == there and not learned(r)) for there in (False, True)
        )
        worst = max((rises(r["loss"]) for r in paper), key=len)
        when = f", from {worst[0]} to {worst[-1]} of {len(paper[0]['loss']) - 1}" if len(worst) else ""
        ours = finals(paper)
        found += [
            judged(
                f"{name}: the loss falls at every epoch for η = 1/N",
                all(map(learned, paper)) and not len(worst),
                paper="§7: η = 1/N ensures consistent descent in the loss function",
                measured=f"it rose in {len(worst)} epochs of the worst seed{when}; the loss at the end is "
                f"{shown(ours)}",
                tolerance="no epoch of any seed rises by more than 10⁻⁴ of the loss",
                reason="at this step the descent is at the edge of stability" if len(worst) else "",
            ),
            judged(
                f"{name}: at η = 10/N the loss does not fall consistently",
                all(up or not learned(r) for up, r in zip(rose, large, strict=True)),
                paper="§7.3, Figures 3 and 5: does not consistently decrease at a larger step; γ‖A‖ raises "
                "fast to a relatively large value",
                measured=f"of {len(large)} seeds {lost} were lost, {idle} came to the end with a loss no "
                f"lower than the first; in {sum(rose)} the loss rose at an epoch; the loss at the end: "
                f"{shown(finals(large))}; γ‖A‖ reached {max(max(r['norm']) for r in large):.2f}",
                tolerance="every seed is lost, does not learn, or rises at an epoch",
            ),
        ]
    return found


@register(
    "gao2022.fig3",
    "Figure 3: step size, on FashionMNIST",
    "η = 1/N descends consistently, and ten times as much does not.",
    judge=judge_rate,
    draw=draw_curves,
    least="small",
)
def fig3(context: Context) -> Measured:
    return _rate(context, context.datasets("fashion_mnist"), _seeds(context))


@register(
    "gao2022.fig5",
    "Figure 5: step size, on four data sets",
    "On each data set η = 1/N descends consistently and ten times as much does not.",
    judge=judge_rate,
    draw=draw_curves,
    least="small",
)
def fig5(context: Context) -> Measured:
    return _rate(context, context.datasets(*DATA), _seeds(context))
