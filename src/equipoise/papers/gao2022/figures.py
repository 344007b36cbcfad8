"""Z = relu(γZA + relu(XW)): the figures of [gao2022, §7 and Appendix B]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...plots.curves import BAND, Panel, panels
from ..framework.experiments import Context, Measured, register
from ..framework.page import Page, number
from ..framework.seeds import apart, compared, even, shown, spread
from ..framework.verdicts import BELOW, FALLING, Judgement, below, falling, judged
from .runs import CALM, DATA, GAMMAS, STEP, ended, finals, finals_test, grid, learned, rises, sizes

Curves = Mapping[str, Sequence[Measured]]  # runs of all seeds by label

NORM_DRIFT = 0.25  # "about its initial value": γ‖A(k)‖ within 25 % of γ
RATES = (10.0, 1.0, 0.1)  # ηN of Fig 3
WIDER = "§7.1, Figures 1 and 4: "
LARGER = "§7.2, Figures 2 and 6: "
LATE = 0.1  # the last share of the epochs: a loss that rises there has not settled


# -- judging -------------------------------------------------------------------------------------------------


def _judge_width(measured: Measured) -> list[Judgement]:
    found = []
    for name, curves in measured["data"].items():
        drift, worst, at = max(
            (abs(v / 0.1 - 1), finals([r])[0], k)
            for runs in curves.values()
            for r in runs
            for k, v in zip(r["at"], r["norm"], strict=True)
        )
        end = f"whose training loss is {shown([worst])} a sample at the end"
        where = f"at epoch {at}, in a run {end if np.isfinite(worst) else 'that was lost'}"
        words = f"{WIDER}better convergence rates as m becomes larger"
        test_words = f"{WIDER}lower test loss as m becomes larger"
        found += [
            _falling(f"{name}: wider networks train faster", curves, words),
            _falling(f"{name}: wider networks have a lower test loss", curves, test_words, test=True),
            judged(
                f"{name}: γ‖A(k)‖ stays about γ",
                drift <= NORM_DRIFT,
                paper=f"{WIDER}changed throughout, but approximately equal to their initialization, γ = .1",
                measured=f"at most {drift:.1%} away from γ, over all widths and seeds",
                tolerance=f"within {NORM_DRIFT:.0%} of γ at every epoch measured",
                because=f"A moves as long as there is an error to fit: it was furthest away {where}",
            ),
        ]
    return found


def _falling(claim: str, curves: Curves, paper: str, test: bool = False) -> Judgement:
    value, what = (finals_test, "test loss") if test else (finals, "training loss")
    groups = {label: value(runs) for label, runs in curves.items()}
    return judged(
        claim,
        falling(list(groups.values())),
        paper=paper,
        measured=f"{what} a sample at the end: {compared(groups)}{_idle(curves)}",
        tolerance=FALLING,
        because=lambda: _why(curves, test),
    )


def _idle(curves: Curves) -> str:
    """Words that say how many runs came to the end without learning."""
    some = {label: sum(ended(r) and not learned(r) for r in runs) for label, runs in curves.items()}
    words = ", ".join(f"{n} of {len(curves[label])} at {label}" for label, n in some.items() if n)
    return f"; came to the end with a loss no lower than the first: {words}" if words else ""


def _why(curves: Curves, test: bool) -> str:
    """Why a loss does not fall from curve to curve, as far as the curves show it."""
    lost = [label for label, runs in curves.items() if not all(map(ended, runs))]
    if lost:
        return f"runs were lost at {', '.join(lost)}"
    found = [rises(r["loss"]) for runs in curves.values() for r in runs]
    if test:
        falls = not any(map(len, found)) and falling([finals(runs) for runs in curves.values()])
        every = "the training loss falls, at every epoch and from each to the next"
        return f"{every}: it is the test samples' own" if falls else ""
    epochs = len(next(iter(curves.values()))[0]["loss"]) - 1
    late = sum(bool((at > epochs - LATE * epochs).any()) for at in found)
    if 2 * late <= len(found):
        return ""
    return (
        f"at η = 1/N the descent is at the edge of stability: in {late} of {len(found)} runs the training "
        f"loss rose within the last {LATE:.0%} of the epochs, and the last is a moment of that"
    )


def _judge_gamma(measured: Measured) -> list[Judgement]:
    found = []
    for name, curves in measured["data"].items():
        *small, largest, calm = curves
        some = {label: curves[label] for label in small}
        words = f"{LARGER}lower training loss by relatively larger γ"
        test_words = f"{LARGER}the test loss is also lower when γ becomes larger"
        bad = [r for r in curves[largest] if not learned(r)]
        stopped = f"; {bad[0]['stopped'].split(' after ')[0]}" if bad and bad[0]["stopped"] else ""
        limit = float(np.mean([r["stable_step"] for r in curves[largest]]))
        unstable = f"the first steps are stable for η < 2(1−γ)²/‖Φ‖² = {limit:.2f}/N only"
        ours, other = finals(curves[largest]), finals(curves[small[-1]])
        trained = [v if learned(r) else np.inf for v, r in zip(ours, curves[largest], strict=True)]
        lower = below(trained, other)
        found += [
            _falling(f"{name}: training loss falls with γ up to .5", some, words),
            _falling(f"{name}: test loss falls with γ up to .5", some, test_words, test=True),
            judged(
                f"{name}: γ = .8 at η = 1/N has a lower training loss than γ = .5",
                lower,
                paper=words,
                measured=f"{shown(ours)} against {shown(other)} of {small[-1]}{apart(ours, other)}"
                f"{_idle({largest: curves[largest]})}{stopped}; at η = {CALM:g}/N it ends at "
                f"{shown(finals(curves[calm]))}",
                tolerance=f"below it, {BELOW}; a run that is lost or does not learn is above all",
                reason=unstable if not lower and (bad or limit < STEP) else "",
            ),
        ]
    return found


def _judge_rate(measured: Measured) -> list[Judgement]:
    found = []
    for name, curves in measured["data"].items():
        large, paper, _ = curves.values()
        rose = [bool(len(rises(r["loss"]))) for r in large]
        lost, idle = (sum(ended(r) == there and not learned(r) for r in large) for there in (False, True))
        worst = max((rises(r["loss"]) for r in paper), key=len)
        when = f", from {worst[0]} to {worst[-1]} of {len(paper[0]['loss']) - 1}" if len(worst) else ""
        found += [
            judged(
                f"{name}: the loss falls at every epoch for η = 1/N",
                all(map(learned, paper)) and not len(worst),
                paper="§7: η = 1/N ensures consistent descent in the loss function",
                measured=f"it rose in {len(worst)} epochs of the worst seed{when}; the loss at the end is "
                f"{shown(finals(paper))}",
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


# -- drawing -------------------------------------------------------------------------------------------------


def _draw_curves(measured: Measured, page: Page) -> None:
    rows = measured["data"]
    by_measure = zip(*(_panels(name, curves) for name, curves in rows.items()), strict=True)
    words = (
        f"{BAND} A curve that ends early was lost, in one seed or more: no equilibrium, or a loss that is "
        "not finite. A test curve also ends where test samples have no equilibrium. From γ‖A‖ = 1 on no "
        "equilibrium is proved; beyond 2 it is cut off."
    )
    for key, some in zip(("training", "test", "norm"), by_measure, strict=True):
        page.figure(key, panels(*some, one_legend=True), words)
    page.table(
        "final",
        [_row(name, label, runs) for name, curves in rows.items() for label, runs in curves.items()],
        "At the last epoch: mean and standard deviation over the seeds that came to it, whether they learned "
        "(their loss ends below their first) or not, and of test losses those whose test samples all have an "
        "equilibrium there; how many, where not all.",
    )


def _panels(name: str, curves: Curves) -> list[Panel]:
    """Training loss, test loss and γ‖A(k)‖ of one data set; what ran away is cut off."""

    def along(runs: Sequence[Measured], key: str, most: float) -> tuple[list[int], np.ndarray]:
        values = even([r[key] for r in runs])
        return runs[0]["at"][: values.shape[1]], np.where(values <= most, values, np.nan)

    def losses(runs: Sequence[Measured]) -> np.ndarray:
        each = even([r["loss"] for r in runs]) / [[r["N"]] for r in runs]
        return np.where(each <= 1e3 * each[:, :1], each, np.nan)

    train = {label: losses(runs) for label, runs in curves.items()}
    test = {label: along(runs, "test_loss", 1e3) for label, runs in curves.items()}
    size = {label: along(runs, "norm", 2.0) for label, runs in curves.items()}
    large = max(v for runs in curves.values() for r in runs for v in r["norm"]) > 0.6
    return [
        Panel(train, "epoch", "training loss / N", name, log_y=True),
        Panel(test, "epoch", "test loss / N", name, log_y=True),
        Panel(size, "epoch", "γ‖A(k)‖", name, rules={"": 1.0} if large else None),
    ]


def _row(name: str, label: str, runs: Sequence[Measured]) -> Measured:
    there, fine = sum(map(ended, runs)), sum(map(learned, runs))
    row: Measured = {"data": name, "run": label, "seeds": len(runs)}
    row |= {"learned": fine, "did not learn": there - fine, "lost": len(runs) - there}
    norms = [r["norm"][-1] if ended(r) else np.inf for r in runs]
    ends = {"training loss / N": finals(runs), "test loss / N": finals_test(runs), "γ‖A‖": norms}
    for what, values in ends.items():
        mean, deviation = spread(values)
        kept = int(np.isfinite(values).sum())
        partial = mean is not None and kept < len(values)
        row[what] = f"{number(mean)}, {kept} of {len(values)} seeds" if partial else mean
        row[f"± sd of {what}"] = deviation
    return row


# -- the experiments -----------------------------------------------------------------------------------------


def _widths(context: Context) -> dict[str, dict[str, int]]:
    runs = {f"m = {m}": {"width": m} for m in sizes(context)["widths"]}
    if context.settings.scale == "medium" and context.settings.seeds is None:
        runs["m = 300"]["seeds"] = 5
    return runs


@register("gao2022.fig1", "Figure 1: width, on MNIST", _judge_width, _draw_curves)
def fig1(context: Context) -> Measured:
    """Wider networks reach a lower training and test loss in the same epochs, and γ‖A(k)‖ stays about γ."""
    return grid(context, ["mnist"], _widths(context))


@register("gao2022.fig4", "Figure 4: width, on four data sets", _judge_width, _draw_curves)
def fig4(context: Context) -> Measured:
    """On each data set wider networks reach a lower training and test loss, and γ‖A(k)‖ stays about γ."""
    return grid(context, DATA, _widths(context))


_GAMMAS = {f"γ = {g:g}": {"gamma": g} for g in GAMMAS}
_GAMMAS[f"γ = 0.8, η = {CALM:g}/N"] = {"gamma": 0.8, "step": CALM}


@register("gao2022.fig2", "Figure 2: γ, on MNIST", _judge_gamma, _draw_curves)
def fig2(context: Context) -> Measured:
    """A larger γ of .1, .3, .5, .8 gives a lower training and test loss, at m = N = 1000."""
    return grid(context, ["mnist"], _GAMMAS)


@register("gao2022.fig6", "Figure 6: γ, on four data sets", _judge_gamma, _draw_curves)
def fig6(context: Context) -> Measured:
    """On each data set a larger γ gives a lower training and test loss."""
    return grid(context, DATA, _GAMMAS)


_RATES = {f"η = {step:g}/N": {"step": step} for step in RATES}


@register("gao2022.fig3", "Figure 3: step size, on FashionMNIST", _judge_rate, _draw_curves)
def fig3(context: Context) -> Measured:
    """η = 1/N descends consistently, and ten times as much does not."""
    return grid(context, ["fashion_mnist"], _RATES)


@register("gao2022.fig5", "Figure 5: step size, on four data sets", _judge_rate, _draw_curves)
def fig5(context: Context) -> Measured:
    """On each data set η = 1/N descends consistently and ten times as much does not."""
    return grid(context, DATA, _RATES)
