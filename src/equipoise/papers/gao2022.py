"""Z = relu(γZA + relu(XW)): the figures of [gao2022, §7 and Appendix B]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..plots import LIGHT, new_figure
from ..plots.curves import RANGE, draw_band, draw_range, finish
from .experiments import Context, Measured, register
from .gao2022_runs import (
    CALM,
    DATA,
    GAMMAS,
    STEP,
    ended,
    final,
    final_test,
    finals,
    finals_test,
    grid,
    sizes,
)
from .page import Page, number, shared_legend
from .verdicts import BELOW, FALLING, Judgement, below, falling, judged

NORM_DRIFT = 0.25  # "about its initial value": γ‖A(k)‖ within 25 % of γ
RATES = (10.0, 1.0, 0.1)  # ηN of Fig 3


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
        train, test = ([value(runs) for runs in curves.values()] for value in (finals, finals_test))
        drift = max(abs(v / 0.1 - 1) for runs in curves.values() for r in runs for v in r["norm"])
        found += [
            _falling(f"{name}: wider networks train faster", train, curves, "training loss a sample"),
            _falling(f"{name}: wider networks have a lower test loss", test, curves, "test loss a sample"),
            judged(
                f"{name}: γ‖A(k)‖ stays about γ",
                drift <= NORM_DRIFT,
                paper="about its initial value, γ = .1",
                measured=f"at most {drift:.1%} away from γ, over all widths and seeds",
                tolerance=f"within {NORM_DRIFT:.0%} of γ at every epoch measured",
            ),
        ]
    return found


def _falling(claim: str, groups: Sequence[Sequence[float]], labels: Mapping, what: str) -> Judgement:
    shown = ", ".join(
        f"{label}: {number(float(np.mean(g)))}" for label, g in zip(labels, groups, strict=True)
    )
    return judged(
        claim,
        falling(groups),
        paper="falls from each value to the next",
        measured=f"{what} at the end: {shown}",
        tolerance=FALLING,
    )


def draw_curves(measured: Measured, page: Page) -> None:
    """A row of panels a data set: training loss, test loss, γ‖A(k)‖."""
    rows = measured["data"]
    figure, axes = new_figure(len(rows), 3, width=4.3, height=3.0)
    for (name, curves), panels in zip(rows.items(), axes, strict=True):
        for at, (label, runs) in enumerate(curves.items()):
            draw_range(panels[0], _even([_shown(r) for r in runs]), label, at=at)
            k = min(len(r["at"]) for r in runs)
            steps = runs[0]["at"][:k]
            test, norm = (np.array([r[key][:k] for r in runs], dtype=float) for key in ("test_loss", "norm"))
            draw_range(panels[1], np.where(test <= 1e3, test, np.nan), label, x=steps, at=at)
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
        f"{RANGE} γ‖A‖: mean, ± one standard deviation shaded. A curve that ends early was lost: no "
        "equilibrium, or a loss that is not finite. From γ‖A‖ = 1 on no equilibrium is proved; beyond 2 it "
        "is cut off.",
    )
    page.table(
        "final",
        ["data", "run", "seeds", "came to the end", "training loss / N", "test loss / N", "γ‖A‖ at the end"],
        [
            [
                name,
                label,
                len(runs),
                sum(map(ended, runs)),
                _finite(final(runs)),
                _finite(final_test(runs)),
                float(np.mean([r["norm"][-1] for r in runs])),
            ]
            for name, curves in rows.items()
            for label, runs in curves.items()
        ],
        "At the last epoch, means over seeds.",
    )


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "lost"


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
)
def fig1(context: Context) -> Measured:
    return _width(context, context.datasets("mnist"), _seeds(context))


@register(
    "gao2022.fig4",
    "Figure 4: width, on four data sets",
    "On each data set wider networks reach a lower training and test loss, and γ‖A(k)‖ stays about γ.",
    judge=judge_width,
    draw=draw_curves,
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
            _falling(
                f"{name}: training loss falls with γ up to .5",
                [finals(runs) for runs in some.values()],
                some,
                "training loss a sample",
            ),
            _falling(
                f"{name}: test loss falls with γ up to .5",
                [finals_test(runs) for runs in some.values()],
                some,
                "test loss a sample",
            ),
        ]
        lost = [r for r in curves[largest] if not ended(r)]
        best = min(small, key=lambda label: final(curves[label]))
        limit = float(np.mean([r["stable_step"] for r in curves[largest]]))
        found.append(
            judged(
                f"{name}: γ = .8 at η = 1/N has the lowest training loss",
                below(finals(curves[largest]), finals(curves[best])),
                paper="lowest of the four",
                measured=f"{_last(curves[largest])} against {_last(curves[best])} "
                f"of {best}; lost in {len(lost)} of {len(curves[largest])} seeds"
                + (f"; {lost[0]['stopped'].split(' after ')[0]}" if lost and lost[0]["stopped"] else "")
                + f"; at η = {CALM:g}/N it ends at {_last(curves[calm])}",
                tolerance=f"below the least of γ = .1, .3 and .5, {BELOW}; a lost run is above all",
                reason=f"the first steps are stable for η < 2(1−γ)²/‖Φ‖² = {limit:.2f}/N only"
                if lost
                else "",
            )
        )
    return found


def _last(runs: Sequence[Measured]) -> str:
    """The mean of the last losses, in words."""
    value = final(runs)
    return number(value) if math.isfinite(value) else "lost"


@register(
    "gao2022.fig2",
    "Figure 2: γ, on MNIST",
    "A larger γ of .1, .3, .5, .8 gives a lower training and test loss, at m = N and η = 1/N.",
    judge=judge_gamma,
    draw=draw_curves,
)
def fig2(context: Context) -> Measured:
    return _gamma(context, context.datasets("mnist"), _seeds(context))


@register(
    "gao2022.fig6",
    "Figure 6: γ, on four data sets",
    "On each data set a larger γ gives a lower training and test loss.",
    judge=judge_gamma,
    draw=draw_curves,
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
        large, paper, small = curves.values()
        unsteady = [r for r in large if not ended(r) or len(_rises(r["loss"]))]
        worst = max((_rises(r["loss"]) for r in paper), key=len)
        when = f", from {worst[0]} to {worst[-1]} of {len(paper[0]['loss']) - 1}" if len(worst) else ""
        found += [
            judged(
                f"{name}: the loss falls at every epoch for η = 1/N",
                all(map(ended, paper)) and not len(worst),
                paper="consistent descent",
                measured=f"it rose in {len(worst)} epochs of the worst seed{when}; the loss at the end is "
                f"{_last(paper)}",
                tolerance="no epoch of any seed rises by more than 10⁻⁴ of the loss",
                reason="at this step the descent is at the edge of stability" if len(worst) else "",
            ),
            judged(
                f"{name}: at η = 10/N the loss does not fall consistently",
                len(unsteady) == len(large),
                paper="unstable; γ‖A‖ rises fast",
                measured=f"lost or rising in {len(unsteady)} of {len(large)} seeds; γ‖A‖ reached "
                f"{max(max(r['norm']) for r in large):.2f}",
                tolerance="every seed is lost, or rises at an epoch",
            ),
            judged(
                f"{name}: η = 0.1/N is slower than η = 1/N",
                below(finals(paper), finals(small)),
                paper="slower",
                measured=f"{_last(small)} against {_last(paper)}",
                tolerance=f"the mean loss at the end is higher, {BELOW}",
            ),
        ]
    return found


def _rises(loss: Sequence[float | None]) -> np.ndarray:
    """The epochs at which the loss rose by more than 10⁻⁴ of it."""
    values = np.array(loss, dtype=float)
    return np.flatnonzero(values[1:] > (1 + 1e-4) * values[:-1]) + 1


@register(
    "gao2022.fig3",
    "Figure 3: step size, on FashionMNIST",
    "η = 1/N descends consistently, ten times as much does not, a tenth is slower.",
    judge=judge_rate,
    draw=draw_curves,
)
def fig3(context: Context) -> Measured:
    return _rate(context, context.datasets("fashion_mnist"), _seeds(context))


@register(
    "gao2022.fig5",
    "Figure 5: step size, on four data sets",
    "On each data set η = 1/N descends consistently and ten times as much does not.",
    judge=judge_rate,
    draw=draw_curves,
)
def fig5(context: Context) -> Measured:
    return _rate(context, context.datasets(*DATA), _seeds(context))
