"""Linear models, DELMs and ReLU networks on a DELM's data: Figures 1 and 4-8 of [kawaguchi2021]."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...plots.curves import BAND, Line, Panel, panels
from ..framework.experiments import Context, Measured, register
from ..framework.page import Page, number
from ..framework.seeds import in_columns, mean_error
from ..framework.verdicts import BELOW, Judgement, below, impossible, judged
from .runs import RATES, Kind, chosen, runs, series

LINEAR, DELM = Kind("linear"), Kind("delm")
FIRST, MORE = ("kmnist", "cifar10", "cifar100"), ("mnist", "svhn", "semeion", "fashion_mnist")
ALIKE = 2.0  # "about the same at the start": test losses within a factor 2


def _compare(context: Context, names: Sequence[str], kinds: Sequence[Kind], **size: Any) -> Measured:
    data = {name: {k.label: runs(context, name, k, **size) for k in kinds} for name in names}
    return {"data": data, "size": size}


def _size(context: Context) -> dict[str, Any]:
    """The paper's: 100 + 100 images, 5000 epochs, 5 trials, 6 rates."""
    return {
        "train_rows": context.pick(tiny=20, small=100),
        "test_rows": context.pick(tiny=20, small=100),
        "epochs": context.pick(tiny=2, small=300, medium=5000),
        "trials": len(context.seeds(tiny=2, small=3, medium=5)),
        "rates": context.pick(tiny=RATES[2:4], small=RATES),
    }


def _judge(paper: str, alike: bool = False) -> Callable[[Measured], list[Judgement]]:
    """Judge a figure: do DELMs outperform the others and, where the paper says so, do all start alike?"""

    def judge(measured: Measured) -> list[Judgement]:
        rows = measured["data"].items()
        starts = [_starts(name, row, paper) for name, row in rows] if alike else []
        return starts + [found for name, row in rows for found in _ends(name, row, paper)]

    return judge


def _starts(name: str, row: Measured, paper: str) -> Judgement:
    start = {label: float(np.mean(series(run, "test", 0)[:, 0])) for label, run in row.items()}
    return judged(
        f"{name}: all models start at about the same test loss",
        max(start.values()) <= ALIKE * min(start.values()),
        paper=f"{paper}: approximately the same at initial points",
        measured=", ".join(f"{label}: {number(v)}" for label, v in start.items()),
        tolerance=f"within a factor {ALIKE:g} of each other",
    )


def _ends(name: str, row: Measured, paper: str) -> list[Judgement]:
    last = {label: _last(run) for label, run in row.items()}
    if not np.isfinite(last["DELM"]).all():
        claim, words = f"{name}: the DELM has the lowest test loss", "every rate lost a trial of the DELM"
        return [impossible(claim, paper=paper, reason=words)]
    return [
        judged(
            f"{name}: the DELM has a lower test loss than the model “{label}”",
            below(last["DELM"], last[label]),
            paper=f"{paper}: outperforms in test errors after training, best rate of each",
            measured=_beside(last["DELM"], last[label], chosen(row[label])["lost"]),
            tolerance=f"mean over trials at the last epoch, each model at its best rate, {BELOW}; one "
            "lost at every rate is above all",
            because=partial(_fits, row["DELM"], row[label]),
        )
        for label in row
        if label != "DELM"
    ]


def _last(run: Measured, which: str = "test", rate: int | None = None) -> list[float]:
    """The last loss of each trial at a rate, by default the best; infinite if every rate lost a trial."""
    at = chosen(run)["best"] if rate is None else rate
    return [math.inf] * len(run[which]) if at is None else series(run, which, at)[:, -1].tolist()


def _fits(delm: Measured, other: Measured) -> str:
    """How both fit the training samples, to explain a larger test loss of the DELM."""
    ours, theirs = (number(float(np.mean(_last(run, "train")))) for run in (delm, other))
    return f"on the training samples the DELM has a loss of {ours}, the other model of {theirs}"


def _beside(delm: Sequence[float], other: Sequence[float], lost: Sequence[float]) -> str:
    words = f"; lost at η = {', '.join(map(str, lost))}" if lost else ""
    ours = number(float(np.mean(delm)))
    if not np.isfinite(other).all():
        return f"{ours}{words}"
    more = mean_error(np.subtract(other, delm), ".4g")
    return f"{ours} against {number(float(np.mean(other)))}: {more} more{words}"


def _draw(measured: Measured, page: Page) -> None:
    """A row of panels for each data set: test and training losses, at the best and the worst rate."""
    grid, table = [], []
    for name, row in measured["data"].items():
        lines: dict[str, dict[str, Any]] = {"test": {}, "train": {}}
        for at, (label, run) in enumerate(row.items()):
            pick = chosen(run)
            kinds = ("best", "worst") if label in ("linear", "DELM") else ("best",)
            for which in (kind for kind in kinds if pick[kind] is not None):
                for key, of in lines.items():
                    values = (run["at"], series(run, key, pick[which]))
                    of[f"{label}, {which} η"] = Line(values, at if which == "best" else at + 5)
                about = {"data": name, "model": label, "rate": which, "η": run["rates"][pick[which]]}
                for key, words in (("train", "training loss"), ("test", "test loss")):
                    about |= in_columns(words, _last(run, key, pick[which]))
                lost = ", ".join(map(str, pick["lost"])) or "none"
                table.append({**about, "rates at which a trial was lost": lost})
        for key, words in (("test", "test loss"), ("train", "training loss")):
            grid.append(Panel(lines[key], "epoch", words, name, log_y=True))
    page.figure("losses", panels(*grid, one_legend=True), BAND.replace("seed", "trial"))
    page.table("final", table, "At the last epoch: mean and standard deviation over trials.")
    page.note("Left open by the paper: the loss is the mean over a mini-batch, pixels lie in [0, 1], grey.")


# -- the experiments -----------------------------------------------------------------------------------------


def _dnns(*depths: int, bias: bool = True) -> list[Kind]:
    return [Kind("dnn", depth, bias) for depth in depths]


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


@register(
    "kawaguchi2021.fig1",
    "Figure 1: linear, DELM and DNN, three data sets",
    _judge("§2.2, Figure 1", alike=True),
    _draw,
    minutes=2,
)
def fig1(context: Context) -> Measured:
    """All models start alike; after training the DELM has a lower test loss than linear models and DNNs."""
    return _compare(context, context.datasets(*FIRST), [LINEAR, DELM, *_dnns(2, 3, 4)], **_size(context))


@register(
    "kawaguchi2021.fig4",
    "Figure 4: four more data sets",
    _judge("D.2, Figure 4", alike=True),
    _draw,
    minutes=2,
)
def fig4(context: Context) -> Measured:
    """All models start alike; after training the DELM has a lower test loss than linear models and DNNs."""
    return _compare(context, context.datasets(*MORE), [LINEAR, DELM, *_dnns(2, 3, 4)], **_size(context))


@register("kawaguchi2021.fig5", "Figure 5: DNNs without bias", _judge("D.2, Figure 5"), _draw)
def fig5(context: Context) -> Measured:
    """Without bias terms, too, the DELM has a lower test loss than DNNs of depth 2, 3 and 4."""
    names = context.datasets(*FIRST, *MORE)[: context.pick(tiny=1, small=2, paper=7)]
    return _compare(context, names, [DELM, *_dnns(2, 3, 4, bias=False)], **_size(context))


@register("kawaguchi2021.fig6", "Figure 6: deep DNNs", _judge("D.2, Figure 6"), _draw)
def fig6(context: Context) -> Measured:
    """The DELM has a lower test loss than DNNs of depth 10, 100 and 200."""
    return _deep(context, bias=True)


@register("kawaguchi2021.fig7", "Figure 7: deep DNNs without bias", _judge("D.2, Figure 7"), _draw)
def fig7(context: Context) -> Measured:
    """The DELM has a lower test loss than DNNs of depth 10, 100 and 200."""
    return _deep(context, bias=False)


@register("kawaguchi2021.fig8", "Figure 8: all samples of a data set", _judge("D.2, Figure 8"), _draw)
def fig8(context: Context) -> Measured:
    """With all samples, too, the DELM has a lower test loss than linear models and DNNs."""
    names = context.datasets(*MORE, *FIRST)[: context.pick(tiny=1, small=1, medium=2, paper=7)]
    size = {
        "train_rows": context.pick(tiny=70, small=2000, medium=6000, paper=60000),
        "test_rows": context.pick(tiny=20, small=1000, medium=2000, paper=26032),
        "epochs": context.pick(tiny=1, small=8, medium=30, paper=100),
        "trials": len(context.seeds(tiny=1, small=3)),
        "rates": context.pick(tiny=RATES[2:3], small=RATES),
    }
    return _compare(context, names, [LINEAR, DELM, *_dnns(2, 3, 4)], **size)
