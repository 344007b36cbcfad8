"""z^K = K steps of T_R∘T or of SAM,  α × R: the grid of [xie2021, Tables 1a and 3], dense, on 8 × 8 digits.

The paper trains five convolutions on CIFAR10 for 200 epochs. Here a DeepOptEq of two layers on 64 features
stands for it, trained as there: SGD at rate .1 (halved twice), momentum, weight decay 3e-4, batches of 128,
K = 20 unrolled steps, ‖W_l‖ ≤ 1 by projection. What is compared is α and R, not the paper's accuracies.

    for row in run("small", seeds=3): print(row)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data import load
from ...models.proximal import DeepOptEq
from ...models.proximal.properties import L1, GradientStep, SquaredL2
from ...plots import new_figure
from ...plots.curves import BAND, draw_band, finish
from ...plots.style import legend
from ...solve import SAM, decorrelation, half_squared_norm, inverse_norm
from ..framework.experiments import Context, Measured, register
from ..framework.page import Page, number
from ..framework.verdicts import (
    ALL_BELOW,
    BELOW,
    FALLING,
    LEVEL,
    Judgement,
    all_below,
    below,
    falling,
    judged,
    standard_error,
    with_error,
)

ALPHAS = (0.01, 0.1, 0.4, 0.8, 1.0)
STATE, HIDDEN, STEPS = 64, [64, 64], 20
CHANNELS = 8  # the state as 8 channels at 8 positions, which the decorrelation sets against each other
EPOCHS = {"tiny": 1, "small": 6, "medium": 40, "paper": 200}  # of 1437 training samples, tiny of 640
DECORRELATION = ("SAM decorrelation, not convex", "decorrelation layer, not convex")

# What each column adds to the network; those of SAM choose among equilibria, the others append a layer.
COLUMNS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "SAM ½‖z‖²": lambda: {"solver": SAM(half_squared_norm())},
    "SAM 1/(‖z‖²+1), not convex": lambda: {"solver": SAM(inverse_norm(1.0))},
    DECORRELATION[0]: lambda: {"solver": SAM(decorrelation(CHANNELS))},
    "prox .05‖z‖₁": lambda: {"regulariser": L1(0.05)},
    "prox .1‖z‖²": lambda: {"regulariser": SquaredL2(0.1)},
    DECORRELATION[1]: lambda: {"regulariser": GradientStep(decorrelation(CHANNELS))},
}
# As R by SAM and as h, a layer: the same kind of regularisation, to be compared.
PAIRS = {"SAM ½‖z‖²": "prox .1‖z‖²", DECORRELATION[0]: DECORRELATION[1]}
# The layers of Table 1a by λ, and what each makes small: its mean over the entries of z^K.
SWEEPS: dict[str, tuple[Callable[[float], Any], tuple[float, ...], str]] = {
    "λ‖z‖₁": (L1, (0.01, 0.15, 0.5), "|z|"),
    "λ‖z‖²": (SquaredL2, (0.01, 1.0, 10.0), "z²"),
}
CIFAR10 = {0.01: 58.4, 0.1: 56.8, 0.4: 86.9, 0.8: 87.4, 1.0: 87.2}  # Table 3, without a regulariser
NORMS = {"λ‖z‖₁": "> 5, .81, .34", "λ‖z‖²": "> 10, 1.56, .82"}  # Table 1a
POOR = {0.01: "far outperformed", 0.1: "a poor result"}
FAR = 5.0  # points of accuracy
IN_FULL = "a layer acts in full at every iteration, the step of the network α times"


# -- training ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One cell of the grid: accuracies on the test part over the seeds."""

    alpha: float
    column: str
    accuracies: tuple[float, ...]
    residual: (
        float  # ‖T(z^K) − z^K‖/‖T(z^K)‖, mean over samples and seeds: how far K steps are from a fixed point
    )
    zeros: float  # share of entries of z^K that are exactly 0
    norm: float  # ‖z^K‖, mean over samples and seeds
    parameters: int

    @property
    def mean(self) -> float:
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None for one seed."""
        return standard_error(self.accuracies)

    def __str__(self) -> str:
        score = with_error(100 * self.mean, None if self.error is None else 100 * self.error)
        return (
            f"α = {self.alpha:<4g} {self.column:<32} {score} %   "
            f"residual {self.residual:.1e}, ‖z‖ {self.norm:.2f}, zeros {100 * self.zeros:.0f} %"
        )


def run(
    scale: str = "small",
    seeds: int = 3,
    alphas: Sequence[float] = ALPHAS,
    columns: Sequence[str] | None = None,
    progress: Callable[[Row], None] | None = None,
) -> list[Row]:
    """The grid, a row a cell. `scale` sets the epochs: tiny 1, small 6, medium 40, paper 200."""
    if scale not in EPOCHS:
        raise ValueError(f"scale must be one of {', '.join(EPOCHS)}. Got {scale!r} instead.")
    unknown = sorted(set(columns or ()) - set(COLUMNS))
    if unknown:
        raise ValueError(f"columns must be among {', '.join(COLUMNS)}. Got {', '.join(unknown)} instead.")
    data, rows = _digits(640 if scale == "tiny" else None), []
    for alpha in alphas:
        for column in columns or tuple(COLUMNS):
            cells = [_train(alpha, COLUMNS[column](), seed, EPOCHS[scale], data) for seed in range(seeds)]
            mean = lambda name, cells=cells: sum(c[name] for c in cells) / len(cells)
            row = Row(
                alpha,
                column,
                tuple(c["accuracy"] for c in cells),
                mean("residual"),
                mean("zeros"),
                mean("norm"),
                int(cells[0]["parameters"]),
            )
            rows.append(row)
            if progress is not None:
                progress(row)
    return rows


def sweep(kind: str, weight: float, scale: str, seeds: int) -> Measured:
    """With λ = `weight` at α = 1: the mean over the entries of z^K of what λ makes small, and accuracies."""
    layer, _, small = SWEEPS[kind]
    data = _digits(640 if scale == "tiny" else None)
    cells = [_train(1.0, {"regulariser": layer(weight)}, s, EPOCHS[scale], data) for s in range(seeds)]
    return {"sizes": [c[small] for c in cells], "accuracies": [c["accuracy"] for c in cells]}


def build(alpha: float, how: dict[str, Any], seed: int) -> DeepOptEq:
    """The network of one cell with what its column adds, trained by K = 20 unrolled steps."""
    return DeepOptEq(
        64,
        STATE,
        HIDDEN,
        alpha,
        outputs=10,
        gradient=STEPS,
        on_failure="accept",  # z^K is the state whatever its residual, which is reported
        generator=torch.Generator().manual_seed(seed),
        **how,
    )


def _digits(most: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features in [0, 1] less their training mean, and labels; the first `most` training samples."""
    data = load("digits")
    X, X_test = (torch.as_tensor(x).flatten(1).float() / 16 for x in (data.x_train, data.x_test))
    mean = X.mean(dim=0)
    return (
        (X - mean)[:most],
        torch.as_tensor(data.y_train)[:most],
        X_test - mean,
        torch.as_tensor(data.y_test),
    )


def _train(
    alpha: float, how: dict[str, Any], seed: int, epochs: int, data: tuple[Tensor, Tensor, Tensor, Tensor]
) -> dict[str, float]:
    X, y, X_test, y_test = data
    model, order = build(alpha, how, seed), torch.Generator().manual_seed(1000 + seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=3e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [epochs // 2 + 1, 3 * epochs // 4 + 1], 0.5)
    for _ in range(epochs):
        for rows in torch.randperm(len(X), generator=order).split(128):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(X[rows]), y[rows]).backward()
            optimiser.step()
            model.project_()
        schedule.step()
    with torch.no_grad():
        Z = model.equilibrium(X_test)
        solution = model.last.forward
        assert solution is not None
        return {
            "accuracy": float((model.readout(Z).argmax(dim=1) == y_test).float().mean()),
            "residual": float(solution.relative_residual.mean()),
            "zeros": float((Z == 0).float().mean()),
            "norm": float(Z.norm(dim=1).mean()),
            "|z|": float(Z.abs().mean()),
            "z²": float(Z.square().mean()),
            "parameters": sum(p.numel() for p in model.parameters()),
        }


# -- the experiment ------------------------------------------------------------------------------------------


@register(
    "xie2021.table3",
    "Tables 1a and 3: α × regularisation, dense networks on digits",
    "α ≥ .4 is safe, α = .01 and .1 fall far behind; regularising the features makes them small and improves "
    "the accuracy, as a layer more than by SAM, and most by decorrelation.",
    judge=lambda measured: judge_table3(measured),
    draw=lambda measured, page: draw_table3(measured, page),
    least="small",
    minutes=2,
)
def table3(context: Context) -> Measured:
    seeds, scale = len(context.seeds(tiny=1, small=3)), context.settings.scale
    rows = "the first 640 training samples" if scale == "tiny" else "all training samples"
    context.load("digits", f"{rows} and all test samples; pixels in [0, 1] less their training means")
    found: Measured = {"cells": {}, "sweeps": {}}
    for alpha in context.pick(tiny=(0.1, 1.0), small=ALPHAS):
        for i, column in enumerate(COLUMNS):
            inputs = {"alpha": alpha, "column": column, "seeds": seeds, "scale": scale}
            compute = lambda progress, a=alpha, c=column: asdict(run(scale, seeds, [a], [c])[0])
            unit = context.unit("xie2021.digits", f"alpha{alpha:g}-{i}", inputs, compute)
            found["cells"].setdefault(f"{alpha:g}", {})[column] = unit
    for i, (kind, (_, weights, _)) in enumerate(SWEEPS.items()):
        for weight in weights:
            inputs = {"kind": kind, "weight": weight, "seeds": seeds, "scale": scale}
            compute = lambda progress, k=kind, w=weight: sweep(k, w, scale, seeds)
            unit = context.unit("xie2021.digits", f"sweep{i}-{weight:g}", inputs, compute)
            found["sweeps"].setdefault(kind, {})[f"{weight:g}"] = unit
    return found


def _percent(cell: Measured) -> np.ndarray:
    """Accuracies by seed."""
    return 100 * np.array(cell["accuracies"])


def _below(a: np.ndarray, b: np.ndarray, level: float = LEVEL) -> bool | None:
    return below(a.tolist(), b.tolist(), level)


def _shown(values: Sequence[float] | np.ndarray, form: str = ".1f") -> str:
    return with_error(float(np.mean(values)), standard_error(list(values)), form)


def judge_table3(measured: Measured) -> list[Judgement]:
    cells = measured["cells"]
    plain = {float(a): _percent(row["none"]) for a, row in cells.items()}
    best = max(plain.values(), key=np.mean)
    columns = list(next(iter(cells.values())))
    overall = {c: np.mean([_percent(row[c]) for row in cells.values()], axis=0) for c in columns}
    others = [c for c in columns if c != "none"]
    appended = [c for c in others if not c.startswith("SAM")]
    better = np.mean([_percent(r[c]) > _percent(r["none"]) for r in cells.values() for c in others], axis=0)
    gains = ", ".join(f"{c} {np.mean(overall[c] - overall['none']):+.1f}" for c in others)
    by_sam, by_layer = (np.mean([overall[c] for c in part], axis=0) for part in (PAIRS, PAIRS.values()))
    sizes = ", ".join(f"{number(row['none']['norm'])} at α = {a}" for a, row in cells.items())
    improves = _below(np.full_like(better, 0.5), better)
    layers = _below(by_sam, by_layer)
    rivals = {
        ours: [c for c in others if c.startswith(kind) and c != ours]
        for ours, kind in zip(DECORRELATION, ("SAM", "prox"), strict=True)
    }
    pairs = [(ours, c) for ours, some in rivals.items() for c in some]
    against = {(ours, c): _below(overall[c], overall[ours], LEVEL / len(pairs)) for ours, c in pairs}
    wins = all_below([(overall[c].tolist(), overall[ours].tolist()) for ours, c in pairs])
    safe = all_below([((best - FAR).tolist(), v.tolist()) for a, v in plain.items() if a >= 0.4])
    return [
        judged(
            "α ≥ .4 is a safe choice",
            safe,
            paper="A.1, Table 3: a safe choice; "
            + ", ".join(f"α = {a:g}: {v:g}" for a, v in CIFAR10.items())
            + " % (CIFAR10)",
            measured=", ".join(f"α = {a:g}: {_shown(v)}" for a, v in plain.items()) + " % (digits)",
            tolerance=f"each above the best less {FAR:g} points, {ALL_BELOW}",
        ),
        *(_far(a, values, plain[1.0], sizes) for a, values in plain.items() if a < 0.4),
        judged(
            "regularising the features improves the accuracy",
            improves,
            paper="A.1, Table 3: both R and h improve classification, in 19 of 25 cells",
            measured=f"in {_shown(100 * better, '.0f')} % of the {len(cells) * len(others)} cells; mean gain "
            f"over all α, in points: {gains}",
            tolerance=f"in more than half of the cells of a seed, {BELOW}",
            reason=_in_full("change by layers", cells, appended, ["none"]) if improves is False else "",
        ),
        judged(
            "as a layer, h, a regulariser improves more than by SAM, as R",
            layers,
            paper="A.1, Table 3: h more than R of the same type (means 78.8 and 78.6 %)",
            measured=f"{_shown(by_layer)} against {_shown(by_sam)} %, over all α, of ‖z‖² and decorrelation",
            tolerance=f"a higher mean accuracy, {BELOW}",
            reason=_in_full("layer less SAM", cells, list(PAIRS.values()), list(PAIRS))
            if layers is False
            else "",
        ),
        judged(
            "decorrelation is the best regulariser overall",
            wins,
            paper="A.1, Table 3: better overall than the other types, as R (means 79.1, 78.7 and 78.2 %) "
            "and as h (79.1 and 78.5 %)",
            measured="over all α: " + ", ".join(f"{c}: {_shown(overall[c])} %" for c in others),
            tolerance=f"as R above the other R, as h above the other h, each {ALL_BELOW}",
            reason="; ".join(
                f"{ours} less {c} {_in_words(_by_alpha(cells, [ours], [c]))}"
                for (ours, c), better in against.items()
                if better is False
            ),
        ),
        *(j for kind, row in measured["sweeps"].items() for j in _by_weight(kind, row, plain[1.0])),
    ]


def _by_alpha(cells: Measured, more: Sequence[str], less: Sequence[str]) -> dict[float, float]:
    """How much better some columns are than others, in points by α."""
    mean = lambda row, names: float(np.mean([_percent(row[c]) for c in names]))
    return {float(a): mean(row, more) - mean(row, less) for a, row in cells.items()}


def _in_words(gains: dict[float, float]) -> str:
    return "in points: " + ", ".join(f"{gain:+.1f} at α = {a:g}" for a, gain in gains.items())


def _in_full(what: str, cells: Measured, layers: Sequence[str], others: Sequence[str]) -> str:
    """That a layer is too much for small α; nothing where layers lose no more there than at larger ones."""
    gains = _by_alpha(cells, layers, others)
    small, large = (float(np.mean([g for a, g in gains.items() if (a < 0.4) is b])) for b in (True, False))
    return f"{IN_FULL}: {what} {_in_words(gains)}" if small < min(0.0, large) else ""


def _far(alpha: float, values: np.ndarray, one: np.ndarray, sizes: str) -> Judgement:
    behind = _below(values, one - FAR)
    return judged(
        f"α = {alpha:g} is far behind α = 1",
        behind,
        paper=f"A.1, Table 3: {POOR[alpha]}, {CIFAR10[alpha] - CIFAR10[1.0]:+.1f} points",
        measured=f"{np.mean(values - one):+.1f} points",
        tolerance=f"more than {FAR:g} points behind, {BELOW}",
        reason="" if behind else f"mean ‖z‖ that {STEPS} unrolled steps arrive at: {sizes}",
    )


def _by_weight(kind: str, row: dict[str, Measured], plain: np.ndarray) -> list[Judgement]:
    """Of a sweep over λ: what it makes small falls, and some λ improves on none."""
    accuracies = {weight: _percent(cell) for weight, cell in row.items()}
    best = max(accuracies, key=lambda weight: float(np.mean(accuracies[weight])))
    return [
        judged(
            f"features get smaller as λ grows, with {kind}",
            falling([cell["sizes"] for cell in row.values()]),
            paper=f"§5.1, Table 1a: {NORMS[kind]} at λ = {', '.join(row)}",
            measured=f"mean {SWEEPS[kind][2]} at α = 1: "
            + ", ".join(f"{_shown(cell['sizes'], '.3g')} at λ = {w}" for w, cell in row.items()),
            tolerance=FALLING,
        ),
        judged(
            f"a suitable λ improves the accuracy, with {kind}",
            _below(plain, accuracies[best]),
            paper="§5.1, Table 1a: 87.7 and 87.6 % at the second of three λ, 87.2 % without",
            measured=f"at λ = {best}, the best of {', '.join(row)}: {_shown(accuracies[best])} %, "
            f"without: {_shown(plain)} %",
            tolerance=f"higher, {BELOW}",
        ),
    ]


def draw_table3(measured: Measured, page: Page) -> None:
    cells, sweeps = measured["cells"], measured["sweeps"]
    columns = list(next(iter(cells.values())))
    figure, axes = new_figure(1, 1, width=6.4, height=4.6)
    for at, column in enumerate(columns):
        scores = np.stack([_percent(row[column]) for row in cells.values()], axis=1)  # (seeds, α)
        draw_band(axes[0, 0], scores, column, x=[float(a) for a in cells], at=at)
    finish(figure, axes[0, 0], x="α", y="test accuracy, %", log_x=True)
    legend(axes[0, 0], above=True)
    page.figure("accuracy", figure, f"Digits. {BAND}")
    rows = [[f"α = {a}", *(_shown(_percent(row[c])) for c in columns)] for a, row in cells.items()]
    page.table("accuracy", ["", *columns], rows, "Test accuracy in %, ± standard error over seeds.")
    figure, axes = new_figure(1, len(sweeps), width=4.2, height=3.2)
    for at, (ax, (kind, row)) in enumerate(zip(axes[0], sweeps.items(), strict=True)):
        sizes = np.array([cell["sizes"] for cell in row.values()]).T  # (seeds, λ)
        draw_band(ax, sizes, x=[float(w) for w in row], at=at, log=True)
        finish(figure, ax, x="λ", y=f"mean {SWEEPS[kind][2]}", title=f"with {kind}", log_x=True, log_y=True)
    page.figure("sizes", figure, f"The size of the features by λ, at α = 1, mean over entries. {BAND}")
    page.table(
        "sizes",
        ["layer", "λ", "mean |z| or z²", "test accuracy, %"],
        [
            [f"prox of {kind}", w, _shown(cell["sizes"], ".3g"), _shown(_percent(cell))]
            for kind, row in sweeps.items()
            for w, cell in row.items()
        ],
        "What each layer makes small, and the accuracy, at α = 1: ± standard error over seeds.",
    )
