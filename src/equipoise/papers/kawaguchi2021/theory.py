"""L(T) → L* from any start, beside linear ResNets: Figures 2a and 2b of [kawaguchi2021]."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from ...data import synthetic
from ...models import LinearEquilibrium
from ...plots.curves import Line, Panel, panels
from ...plots.style import DASHES, power
from ...train import gradient_descent
from ..framework.experiments import Context, Measured, Progress, register
from ..framework.page import Page
from ..framework.small import eye, filled, seeded
from ..framework.verdicts import Judgement, judged

GAMMA, M = 0.8, 10
REACHED = 0.05  # a loss at most 5 % above the least has reached it
STEP = 2e-5  # of the sum over 1000 samples
STILL = 1e-9  # a ResNet is trained on until ‖∇L‖ is this part of its first value,
MOST = 300_000  # or for so many steps


def _data(kind: str, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    X, y = synthetic.negated(n, M, "normal" if kind == "Gaussian" else "uniform", seed=seed)
    return torch.from_numpy(X), torch.from_numpy(y)


def gaussian(n: int) -> tuple[Tensor, Tensor]:
    """n samples x ~ N(0, I) in R^10, and y = −x + .1 N(0, I)."""
    return _data("Gaussian", n)


def record(context: Context, n: int, kind: str = "Gaussian") -> None:
    """What `_data` draws, for the record."""
    x = "N(0, I)" if kind == "Gaussian" else "uniform on [−1, 1]^10"
    name = "synthetic-negated" if kind == "Gaussian" else "synthetic-negated-uniform"
    context.drawn(name, f"{n} samples in R^{M}, x {x}, y = −x + .1 N(0, I), seed 0")


def least(X: Tensor, y: Tensor) -> float:
    """L* of the square loss."""
    return (X @ torch.linalg.lstsq(X, y).solution - y).square().sum().item()


def delm(seed: int | None, outputs: int = M, gamma: float = GAMMA) -> LinearEquilibrium:
    """A start drawn with a seed, or the identity A = B = I."""
    generator = seeded(seed or 0)
    model = LinearEquilibrium(M, outputs, gamma, dtype=torch.float64, generator=generator)
    if seed is None:
        filled(model, A=eye(M), B=eye(M))
    return model


# -- figures 2a and 2b ---------------------------------------------------------------------------------------


def _convergence(context: Context, kind: str) -> Measured:
    n, steps = context.pick(tiny=50, small=1000), context.pick(tiny=20, small=2000)
    step, every = STEP * 1000 / n, max(1, steps // 200)
    starts = {"identity": None, **{f"random {s + 1}": s for s in context.seeds(tiny=1, small=3)}}
    inputs = {"kind": kind, "n": n, "steps": steps, "step": step, "starts": starts}
    record(context, n, kind)

    def train_delm(progress: Progress) -> Measured:
        X, y = _data(kind, n)
        found = {}
        for i, (name, seed) in enumerate(starts.items()):
            found[name] = gradient_descent(delm(seed), X, y, steps, step, measure=0).loss[::every]
            progress((i + 1) / len(starts))
        return {"loss": found, "least": least(X, y), "size": y.square().sum().item()}

    measured = context.unit("kawaguchi2021.delm", f"{kind}-n{n}", inputs, train_delm)
    resnets = [
        _resnet(context, kind, n, depth, rate, steps)
        for depth in context.pick(tiny=(2,), small=(2, 5, 10))
        for rate in context.pick(tiny=(1.0,), small=(0.1, 0.3, 1.0))
    ]
    return {**measured, "resnets": resnets, "kind": kind, "every": every, "steps": steps}


def _resnet(context: Context, kind: str, n: int, depth: int, rate: float, steps: int) -> Measured:
    """One linear ResNet: its losses in the paper's number of steps, and where it comes to rest after them."""
    step, name = rate * STEP * 1000 / n, f"{kind}-depth{depth}-rate{rate:g}-n{n}"
    inputs = {"kind": kind, "n": n, "step": step, "depth": depth}
    within = lambda progress: {"loss": shown(*_data(kind, n), depth, step, steps)}
    beyond = lambda progress: at_rest(*_data(kind, n), depth, step, progress)
    rest = {**inputs, "still": STILL, "most": MOST}
    return {
        "depth": depth,
        "step": step,
        **context.unit("kawaguchi2021.resnet", name, {**inputs, "steps": steps}, within),
        "rest": context.unit("kawaguchi2021.rest", name, rest, beyond),
    }


def descent(X: Tensor, y: Tensor, depth: int, step: float) -> Iterator[tuple[float, float]]:
    """L = ‖X Π(I + W_l)ᵀ − y‖² and ‖∇L‖ of a linear ResNet along full-batch descent from W = 0.

    X = QR leaves L = ‖R Π(I + W_l)ᵀ − Qᵀy‖² + what no M fits: the steps are the same, of m rows.
    """
    Q, R = np.linalg.qr(X.numpy())
    target = Q.T @ y.numpy()
    unfit = float(np.square(y.numpy() - Q @ target).sum())
    W, gradient = np.zeros((depth, M, M)), np.empty((depth, M, M))
    while True:
        h = [R]
        for V in W:
            h.append(h[-1] + h[-1] @ V.T)
        adjoint = 2 * (h[-1] - target)
        loss = float(np.square(adjoint).sum()) / 4 + unfit
        for l in reversed(range(depth)):
            gradient[l] = adjoint.T @ h[l]
            adjoint = adjoint + adjoint @ W[l]
        yield loss, float(np.linalg.norm(gradient))
        if not loss < 1e12:
            return  # lost
        W -= step * gradient


def shown(X: Tensor, y: Tensor, depth: int, step: float, steps: int) -> list[float]:
    """The losses of a figure: about 200 of those of `steps` steps; a run that is lost ends in NaN."""
    losses = [loss for loss, _ in islice(descent(X, y, depth, step), steps + 1)]
    return losses[:: max(1, steps // 200)] + [math.nan] * (len(losses) <= steps)


def at_rest(X: Tensor, y: Tensor, depth: int, step: float, progress: Progress) -> Measured:
    """Where descent ends: at a stationary point, up to rounding, or after `MOST` steps."""
    first = math.nan
    for k, (loss, size) in enumerate(islice(descent(X, y, depth, step), MOST + 1)):  # noqa: B007
        first = size if k == 0 else first
        if size <= STILL * first:
            break
        if k % 1000 == 0:
            progress(k / MOST)
    return {"loss": loss if loss < 1e12 else math.nan, "steps": k, "gradient": size / first}


def _judge_convergence(measured: Measured) -> list[Judgement]:
    star, kind, steps, runs = (measured[key] for key in ("least", "kind", "steps", "resnets"))
    early = sum(_reached(r["loss"][-1], star) for r in runs)
    there = [r for r in runs if _reached(r["rest"]["loss"], star)]
    stuck = [r for r in runs if r not in there and _still(r)]
    stays = kind == "Gaussian"
    words = "converges to a value above it" if stays else "converges to it"
    figure = "§4, Figure 2a" if stays else "§4, Figure 2b"
    reaches = None if bool(there) == bool(stuck) else bool(there)
    taken = [r["rest"]["steps"] for r in there]
    when = f", after {min(taken)} to {max(taken)} steps" if taken else ""
    plateau = "what looks like an end is a plateau: the same runs leave it when trained on"
    return [
        judged(
            f"{kind} data: the DELM reaches the least loss from every start",
            all(_reached(loss[-1], star) for loss in measured["loss"].values()),
            paper=f"{figure}: from the identity and three random starts",
            measured=", ".join(f"{name}: {_above(loss[-1], star)}" for name, loss in measured["loss"].items())
            + f"; L* = {star:.6g}",
            tolerance=f"at most {REACHED:.0%} above L* after {steps} steps",
        ),
        judged(
            f"{kind} data: a linear ResNet started at the identity {words}",
            None if reaches is None else reaches != stays,
            paper=f"{figure}: {words}, in a figure of 2000 steps; depth and step size are not stated",
            measured=f"of {len(runs)} combinations of depth and step size {early} are at it after {steps} "
            f"steps, and {len(there)} when trained on{when}; {len(stuck)} come to rest above it",
            tolerance=f"at it: at most {REACHED:.0%} above L*; trained on: until ‖∇L‖ ≤ {STILL:g} of its "
            f"first value, or {MOST} steps; decided if some come to rest, and all of those alike",
            because=lambda: plateau if stays and early < len(there) else "",
        ),
    ]


def _reached(loss: float | None, star: float) -> bool:
    return loss is not None and loss <= (1 + REACHED) * star


def _still(run: Measured) -> bool:
    return run["rest"]["loss"] is not None and run["rest"]["gradient"] <= STILL


def _above(loss: float | None, star: float) -> str:
    if loss is None:
        return "lost"
    gap = loss / star - 1
    return f"{100 * gap:.2g} % above L*" if gap > 1e-12 else "at L* to rounding"


def _draw_convergence(measured: Measured, page: Page) -> None:
    """Left: a colour and dash for each start; right: a colour for each depth, a dash for each step size."""
    star, every, runs = measured["least"], measured["every"], measured["resnets"]
    depths, steps = (sorted({r[key] for r in runs}) for key in ("depth", "step"))

    def line(loss: list[float], at: int | None = None, dash: int | None = None) -> Line:
        look = None if dash is None else DASHES[dash]
        return Line((np.arange(len(loss)) * every, loss), at, look, marks=False)

    left = {name: line(loss) for name, loss in measured["loss"].items()}
    right = {_name(r): line(r["loss"], depths.index(r["depth"]), steps.index(r["step"])) for r in runs}
    panel = lambda lines: Panel(
        lines, "step", "training loss", log_y=True, rules={"least loss L*": star}, above=True
    )
    page.figure(
        "losses",
        panels(panel(left), panel(right), height=3.6),
        f"{measured['kind']} data, y = −x + .1 noise in R¹⁰: DELMs by start (left), linear ResNets (right; "
        "one colour for each depth, one dash for each step size).",
    )
    ends = [(name, loss[-1], None) for name, loss in measured["loss"].items()]
    ends += [(_name(r), r["loss"][-1], r["rest"]) for r in runs]
    page.table(
        "final",
        [
            {
                "model": name,
                f"loss after {measured['steps']} steps": loss,
                f"after {measured['steps']} steps, beside L*": _above(loss, star),
                "trained on: loss": rest and rest["loss"],
                "trained on: beside L*": rest and _above(rest["loss"], star),
                "trained on: steps": rest and rest["steps"],
                "‖∇L‖ / first": rest and rest["gradient"],
            }
            for name, loss, rest in ends
        ],
        f"L* = {star:.6g}. ResNets are trained on until the gradient vanishes, or for {MOST} steps.",
    )


def _name(run: Measured) -> str:
    step = power(float(f"{run['step']:.3g}"))
    return f"depth {run['depth']}, η = {step}"


@register(
    "kawaguchi2021.fig2a", "Figure 2a: convergence on Gaussian data", _judge_convergence, _draw_convergence
)
def fig2a(context: Context) -> Measured:
    """DELMs reach the global minimum from every start; a linear ResNet from the identity converges to a
    suboptimal value."""
    return _convergence(context, "Gaussian")


@register(
    "kawaguchi2021.fig2b", "Figure 2b: convergence on uniform data", _judge_convergence, _draw_convergence
)
def fig2b(context: Context) -> Measured:
    """DELMs reach the global minimum from every start; a linear ResNet from the identity reaches it too."""
    return _convergence(context, "uniform")
