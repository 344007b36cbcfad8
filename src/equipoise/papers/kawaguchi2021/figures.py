"""Linear models, DELMs and ReLU networks on a DELM's data: Figures 1 and 4-8 of [kawaguchi2021]."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...plots import new_figure
from ...plots.curves import BAND, draw_band, finish
from ..framework.experiments import Context, Measured, register
from ..framework.page import Page, number, shared_legend
from ..framework.seeds import spread
from ..framework.verdicts import BELOW, Judgement, below, impossible, judged, standard_error, with_error
from .runs import RATES, Kind, chosen, runs, series

LINEAR, DELM = Kind("linear"), Kind("delm")
FIRST, MORE = ("kmnist", "cifar10", "cifar100"), ("mnist", "svhn", "semeion", "fashion_mnist")
ALIKE = 2.0  # "about the same at the start": test losses within a factor 2


def _compare(context: Context, names: Sequence[str], kinds: Sequence[Kind], **size: Any) -> Measured:
    found: Measured = {"data": {}, "size": size}
    for name in names:
        found["data"][name] = {k.label: runs(context, name, k, **size) for k in kinds}
    return found


def _size(context: Context) -> dict[str, Any]:
    """The paper's: 100 + 100 images, 5000 epochs, 5 trials, 6 rates."""
    return {
        "train_rows": context.pick(tiny=20, small=100),
        "test_rows": context.pick(tiny=20, small=100),
        "epochs": context.pick(tiny=2, small=300, medium=5000),
        "trials": len(context.seeds(tiny=2, small=3, medium=5)),
        "rates": context.pick(tiny=RATES[2:4], small=RATES),
    }


def judge_start(measured: Measured, paper: str) -> list[Judgement]:
    found = []
    for name, row in measured["data"].items():
        start = {label: float(np.mean(series(run, "test", 0)[:, 0])) for label, run in row.items()}
        found.append(
            judged(
                f"{name}: all models start at about the same test loss",
                max(start.values()) <= ALIKE * min(start.values()),
                paper=f"{paper}: approximately the same at initial points",
                measured=", ".join(f"{label}: {number(v)}" for label, v in start.items()),
                tolerance=f"within a factor {ALIKE:g} of each other",
            )
        )
    return found


def judge(measured: Measured, paper: str) -> list[Judgement]:
    """`paper`: where it says that DELMs outperform the other models in test errors after training."""
    found = []
    for name, row in measured["data"].items():
        picks = {label: chosen(run) for label, run in row.items()}
        last = {label: _last(run) for label, run in row.items()}
        if not np.isfinite(last["DELM"]).all():
            words = "every rate lost a trial of the DELM"
            found.append(impossible(f"{name}: the DELM has the lowest test loss", paper=paper, reason=words))
            continue
        found += [
            judged(
                f"{name}: the DELM has a lower test loss than the model “{label}”",
                below(last["DELM"], last[label]),
                paper=f"{paper}: outperforms in test errors after training, best rate of each",
                measured=_beside(last["DELM"], last[label], picks[label]["lost"]),
                tolerance=f"mean over trials at the last epoch, each model at its best rate, {BELOW}; one "
                "lost at every rate is above all",
                reason=_fits(row["DELM"], row[label]),
            )
            for label in row
            if label != "DELM"
        ]
    return found


def _last(run: Measured, which: str = "test", rate: int | None = None) -> list[float]:
    """The last losses at a rate, or the best, one a trial; infinite if every rate lost one."""
    at = chosen(run)["best"] if rate is None else rate
    return [math.inf] * len(run[which]) if at is None else series(run, which, at)[:, -1].tolist()


def _fits(delm: Measured, other: Measured) -> str:
    """Where the DELM has the larger test loss: how both fit the training samples."""
    if not below(_last(other), _last(delm)):
        return ""
    ours, theirs = (number(float(np.mean(_last(run, "train")))) for run in (delm, other))
    return f"on the training samples the DELM has a loss of {ours}, the other model of {theirs}"


def _beside(delm: Sequence[float], other: Sequence[float], lost: Sequence[float]) -> str:
    words = f"; lost at η = {', '.join(map(str, lost))}" if lost else ""
    if not np.isfinite(other).all():
        return f"{number(float(np.mean(delm)))}{words}"
    gaps = np.subtract(other, delm).tolist()
    gap = with_error(float(np.mean(gaps)), standard_error(gaps), ".4g")
    return f"{number(float(np.mean(delm)))} against {number(float(np.mean(other)))}: {gap} more{words}"


def draw(measured: Measured, page: Page) -> None:
    rows = measured["data"]
    figure, axes = new_figure(len(rows), 2, width=5.4, height=3.2)
    table = []
    for (name, row), panels in zip(rows.items(), axes, strict=True):
        for at, (label, run) in enumerate(row.items()):
            pick = chosen(run)
            for which in ("best", "worst") if label in ("linear", "DELM") else ("best",):
                if pick[which] is None:
                    continue
                rate = run["rates"][pick[which]]
                words = f"{label}, {which} η"
                for panel, key in zip(panels, ("test", "train"), strict=True):
                    values = series(run, key, pick[which])
                    draw_band(
                        panel, values, words, x=run["at"], at=at if which == "best" else at + 5, log=True
                    )
                last = [v for key in ("train", "test") for v in spread(_last(run, key, pick[which]))]
                lost = ", ".join(map(str, pick["lost"])) or "none"
                table.append([name, label, which, rate, *last, lost])
        finish(figure, panels[0], x="epoch", y="test loss", title=name, log_y=True)
        finish(figure, panels[1], x="epoch", y="training loss", title=name, log_y=True)
    shared_legend(figure, axes[0])
    page.figure("losses", figure, BAND.replace("seed", "trial"))
    columns = [
        "data",
        "model",
        "rate",
        "η",
        "training loss",
        "± sd of training loss",
        "test loss",
        "± sd of test loss",
        "rates at which a trial was lost",
    ]
    page.table("final", columns, table, "At the last epoch: mean and standard deviation over trials.")
    page.note("Left open by the paper: the loss is the mean over a mini-batch, pixels lie in [0, 1], grey.")


def _dnns(*depths: int, bias: bool = True) -> list[Kind]:
    return [Kind("dnn", depth, bias) for depth in depths]


_CLAIM = "All models start alike; after training the DELM has a lower test loss than linear models and DNNs."
_IN = {1: "§2.2, Figure 1", 4: "D.2, Figure 4"}  # where both are said


def _judge_both(number: int) -> Callable[[Measured], list[Judgement]]:
    return lambda measured: [*judge_start(measured, _IN[number]), *judge(measured, _IN[number])]


def _judge(number: int) -> Callable[[Measured], list[Judgement]]:
    return lambda measured: judge(measured, f"D.2, Figure {number}")


@register(
    "kawaguchi2021.fig1",
    "Figure 1: linear, DELM and DNN, three data sets",
    _CLAIM,
    judge=_judge_both(1),
    draw=draw,
    least="small",
    minutes=2,
)
def fig1(context: Context) -> Measured:
    return _compare(context, context.datasets(*FIRST), [LINEAR, DELM, *_dnns(2, 3, 4)], **_size(context))


@register(
    "kawaguchi2021.fig4",
    "Figure 4: four more data sets",
    _CLAIM,
    judge=_judge_both(4),
    draw=draw,
    least="small",
    minutes=2,
)
def fig4(context: Context) -> Measured:
    return _compare(context, context.datasets(*MORE), [LINEAR, DELM, *_dnns(2, 3, 4)], **_size(context))


@register(
    "kawaguchi2021.fig5",
    "Figure 5: DNNs without bias",
    "Without bias terms, too, the DELM has a lower test loss than DNNs of depth 2, 3 and 4.",
    judge=_judge(5),
    draw=draw,
    least="small",
)
def fig5(context: Context) -> Measured:
    names = context.datasets(*FIRST, *MORE)[: context.pick(tiny=1, small=2, paper=7)]
    return _compare(context, names, [DELM, *_dnns(2, 3, 4, bias=False)], **_size(context))


def _deep(context: Context, bias: bool) -> Measured:
    names = context.datasets(*FIRST, *MORE)[: context.pick(tiny=1, small=1, medium=2, paper=7)]
    size = {
        **_size(context),
        "epochs": context.pick(tiny=1, small=30, medium=500, paper=5000),
        "trials": len(context.seeds(tiny=1, small=3, medium=3, paper=5)),
        "rates": context.pick(tiny=RATES[2:3], small=RATES[::2], paper=RATES),
    }
    depths = context.pick(tiny=(10,), small=(10, 100, 200))
    return _compare(context, names, [DELM, *_dnns(*depths, bias=bias)], **size)


_DEEP = "The DELM has a lower test loss than DNNs of depth 10, 100 and 200."


@register("kawaguchi2021.fig6", "Figure 6: deep DNNs", _DEEP, judge=_judge(6), draw=draw, least="small")
def fig6(context: Context) -> Measured:
    return _deep(context, bias=True)


@register(
    "kawaguchi2021.fig7", "Figure 7: deep DNNs without bias", _DEEP, judge=_judge(7), draw=draw, least="small"
)
def fig7(context: Context) -> Measured:
    return _deep(context, bias=False)


@register(
    "kawaguchi2021.fig8",
    "Figure 8: all samples of a data set",
    "With all samples, too, the DELM has a lower test loss than linear models and DNNs.",
    judge=_judge(8),
    draw=draw,
    least="small",
)
def fig8(context: Context) -> Measured:
    names = context.datasets(*MORE, *FIRST)[: context.pick(tiny=1, small=1, medium=2, paper=7)]
    size = {
        "train_rows": context.pick(tiny=70, small=2000, medium=6000, paper=60000),
        "test_rows": context.pick(tiny=20, small=1000, medium=2000, paper=26032),
        "epochs": context.pick(tiny=1, small=8, medium=30, paper=100),
        "trials": len(context.seeds(tiny=1, small=3)),
        "rates": context.pick(tiny=RATES[2:3], small=RATES),
    }
    return _compare(context, names, [LINEAR, DELM, *_dnns(2, 3, 4)], **size)
