"""L(T) − L* ≤ e^{−2κλ_T T}(L(0) − L*) from any start: Figures 2 and 3 of [kawaguchi2021]."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..data import synthetic
from ..losses import Logistic, Loss, Square
from ..models import LinearEquilibrium, LinearResNet
from ..models.linear import d_operator
from ..plots import new_figure
from ..plots.curves import draw, finish
from ..plots.style import legend
from ..train import gradient_descent
from .experiments import Context, Measured, Progress, register
from .page import Page, number
from .verdicts import Judgement, judged

GAMMA, M = 0.8, 10
REACHED = 0.05  # a loss at most 5 % above the least has reached it
STEP = 2e-5  # of the sum over 1000 samples


def _data(kind: str, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    X, y = synthetic.negated(n, M, "normal" if kind == "Gaussian" else "uniform", seed=seed)
    return torch.from_numpy(X), torch.from_numpy(y)


def gaussian(n: int) -> tuple[Tensor, Tensor]:
    return _data("Gaussian", n)


def least(X: Tensor, y: Tensor) -> float:
    """L* of the square loss."""
    return (X @ torch.linalg.lstsq(X, y).solution - y).square().sum().item()


def delm(seed: int | None, outputs: int = M, gamma: float = GAMMA) -> LinearEquilibrium:
    """A start drawn with a seed, or the identity A = B = I."""
    generator = torch.Generator().manual_seed(seed or 0)
    model = LinearEquilibrium(M, outputs, gamma, dtype=torch.float64, generator=generator)
    if seed is None:
        with torch.no_grad():
            model.A.copy_(torch.eye(M, dtype=torch.float64))
            model.B.copy_(torch.eye(M, dtype=torch.float64))
    return model


# -- figures 2a and 2b ---------------------------------------------------------------------------------------


def _convergence(context: Context, kind: str) -> Measured:
    n = context.pick(tiny=50, small=1000)
    steps = context.pick(tiny=20, small=2000)
    step = STEP * 1000 / n
    starts = {"identity": None, **{f"random {s + 1}": s for s in context.seeds(tiny=1, small=3)}}
    depths = context.pick(tiny=(2,), small=(2, 5, 10))
    rates = context.pick(tiny=(1.0,), small=(0.1, 0.3, 1.0))
    inputs = {"kind": kind, "n": n, "steps": steps, "step": step, "starts": starts}

    def train_delm(progress: Progress) -> Measured:
        X, y = _data(kind, n)
        found = {}
        for i, (name, seed) in enumerate(starts.items()):
            found[name] = gradient_descent(delm(seed), X, y, steps, step, measure=0).loss[
                :: max(1, steps // 200)
            ]
            progress((i + 1) / len(starts))
        return {"loss": found, "least": least(X, y), "size": y.square().sum().item()}

    measured = context.unit("kawaguchi2021.delm", f"{kind}-n{n}", inputs, train_delm)
    resnets = {}
    for depth in depths:
        for rate in rates:
            inputs = {"kind": kind, "n": n, "steps": steps, "step": step * rate, "depth": depth}
            compute = lambda progress, depth=depth, rate=rate: {
                "loss": _resnet(*_data(kind, n), depth, step * rate, steps, progress)
            }
            run = context.unit(
                "kawaguchi2021.resnet", f"{kind}-depth{depth}-rate{rate:g}-n{n}", inputs, compute
            )
            resnets[f"depth {depth}, η = {step * rate:.1e}"] = run["loss"]
    return {**measured, "resnets": resnets, "kind": kind, "every": max(1, steps // 200), "steps": steps}


def _resnet(X: Tensor, y: Tensor, depth: int, step: float, steps: int, progress: Progress) -> list[float]:
    """Full-batch descent of a linear ResNet from the identity."""
    model, losses, every = LinearResNet(M, depth=depth, dtype=torch.float64), [], max(1, steps // 200)
    parameters = list(model.parameters())
    for k in range(steps + 1):
        loss = (model(X) - y).square().sum()
        if k % every == 0:
            losses.append(loss.item())
            progress(k / steps)
        if not math.isfinite(loss.item()) or loss.item() > 1e12:
            break
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.data.sub_(step * g)
    return losses


def judge_convergence(measured: Measured) -> list[Judgement]:
    star, kind = measured["least"], measured["kind"]
    gaps = {name: loss[-1] / star - 1 for name, loss in measured["loss"].items()}
    reached = [name for name, loss in measured["resnets"].items() if _reached(loss, star)]
    total = len(measured["resnets"])
    contrast = "stays above it" if kind == "Gaussian" else "reaches it"
    share = len(reached) / total
    agrees = share <= 0.25 if kind == "Gaussian" else share >= 0.75
    return [
        judged(
            f"{kind} data: the DELM reaches the least loss from every start",
            max(gaps.values()) <= REACHED,
            paper="from the identity and three random starts",
            measured=", ".join(f"{name}: {100 * gap:.2g} % above L*" for name, gap in gaps.items()),
            tolerance=f"at most {REACHED:.0%} above L* after {measured['steps']} steps",
        ),
        judged(
            f"{kind} data: a linear ResNet started at the identity {contrast}",
            agrees,
            paper=contrast,
            measured=f"{len(reached)} of {total} combinations of depth and step size reach it"
            + (f": {', '.join(reached)}" if reached else ""),
            tolerance="at most a quarter of them"
            if kind == "Gaussian"
            else "at least three quarters of them",
            reason="" if agrees else "it depends on depth and step size, not on the data alone",
        ),
    ]


def _reached(loss: list[float | None], star: float) -> bool:
    return loss[-1] is not None and loss[-1] <= (1 + REACHED) * star


def draw_convergence(measured: Measured, page: Page) -> None:
    figure, axes = new_figure(1, 2, width=5.2, height=3.6)
    star, every = measured["least"], measured["every"]
    for ax, curves in zip(axes[0], (measured["loss"], measured["resnets"]), strict=True):
        for at, (name, loss) in enumerate(curves.items()):
            draw(ax, (np.arange(len(loss)) * every, loss), name, at=at, marks=False, log=True)
        ax.axhline(star, color="#55606e", linewidth=1, label="least loss L*")
        finish(figure, ax, x="step", y="training loss", log_y=True)
        legend(ax, above=True)
    words = (
        f"{measured['kind']} data, y = −x + .1 noise in R^10: DELMs by start (left), linear ResNets (right)."
    )
    page.figure("losses", figure, words)
    page.table(
        "final",
        ["model", "last loss", "above L*"],
        [
            [name, loss[-1], f"{100 * (loss[-1] / star - 1):.2g} %" if loss[-1] is not None else "lost"]
            for name, loss in {**measured["loss"], **measured["resnets"]}.items()
        ],
        f"L* = {star:.6g}.",
    )


_FIG2 = "DELMs reach the global minimum from every start; a linear ResNet from the identity "


@register(
    "kawaguchi2021.fig2a",
    "Figure 2a: convergence on Gaussian data",
    _FIG2 + "stays at a suboptimal value.",
    judge=judge_convergence,
    draw=draw_convergence,
)
def fig2a(context: Context) -> Measured:
    return _convergence(context, "Gaussian")


@register(
    "kawaguchi2021.fig2b",
    "Figure 2b: convergence on uniform data",
    _FIG2 + "reaches it too on these data.",
    judge=judge_convergence,
    draw=draw_convergence,
)
def fig2b(context: Context) -> Measured:
    return _convergence(context, "uniform")


# -- figures 2c and 3: the bounds ----------------------------------------------------------------------------


def _bounded(
    model: LinearEquilibrium, X: Tensor, y: Tensor, loss: Loss, star: float, step: float, steps: int
) -> Measured:
    """Gap to L* along small steps, beside e^{−2κλ_T T} with λ_T of this path and with 1/(m(1+γ)²)."""
    kappa = loss.pl_constant(X)
    moments = sorted({0, steps, *np.geomspace(1, steps, 60).round().astype(int).tolist()})
    smallest, rows = math.inf, []

    def look(k: int, value: float) -> None:
        nonlocal smallest
        if k in moments:
            smallest = min(smallest, d_operator(model).lambda_min())
            rows.append((k, value - star, smallest))

    gradient_descent(model, X, y, steps, step, loss=loss, measure=0, progress=look)
    at, gap, lambdas = (np.array(column) for column in zip(*rows, strict=True))
    time, first = at * step, gap[0]
    fixed = 1 / (M * (1 + model.gamma) ** 2)
    return {
        "at": at,
        "gap": gap,
        "dependent": first * np.exp(-2 * kappa * lambdas[-1] * time),
        "independent": first * np.exp(-2 * kappa * fixed * time),
        "lambda": lambdas[-1],
        "lambda_fixed": fixed,
        "kappa": kappa,
        "least": star,
    }


def judge_bounds(measured: Measured) -> list[Judgement]:
    gap, dep, ind = (np.array(measured[k], dtype=float) for k in ("gap", "dependent", "independent"))
    above = int(np.sum(gap > dep * (1 + 1e-6)) + np.sum(gap > ind * (1 + 1e-6)))
    return [
        judged(
            "the loss stays below both bounds",
            above == 0,
            paper="both lie above the trajectory",
            measured=f"{above} of {2 * len(gap)} comparisons fail",
            tolerance="gap ≤ bound at every step measured, up to 10⁻⁶",
        ),
        judged(
            "the bound with λ_T of the path is the tighter one",
            measured["lambda"] > measured["lambda_fixed"] and bool((dep <= ind).all()),
            paper="faster and more accurate",
            measured=f"λ_T = {number(measured['lambda'])} against 1/(m(1+γ)²) = "
            f"{number(measured['lambda_fixed'])}; at the end gap {number(float(gap[-1]))}, bounds "
            f"{number(float(dep[-1]))} and {number(float(ind[-1]))}",
            tolerance="a larger λ_T, and at most the other bound at every step",
        ),
    ]


def draw_bounds(measured: Measured, page: Page) -> None:
    figure, axes = new_figure(1, 1)
    ax, at = axes[0, 0], np.maximum(measured["at"], 0.7)
    star = measured["least"]
    for i, (key, name) in enumerate(
        (
            ("gap", "trajectory"),
            ("dependent", "bound, λ_T of the path"),
            ("independent", "bound, 1/(m(1+γ)²)"),
        )
    ):
        draw(ax, (at, star + np.array(measured[key], dtype=float)), name, at=i, marks=False, log=True)
    ax.axhline(star, color="#55606e", linewidth=1, label="least loss L*")
    finish(figure, ax, x="step", y="training loss", log_x=True, log_y=True)
    page.figure("bounds", figure, "Small steps of descent stand for the flow.")


@register(
    "kawaguchi2021.fig2c",
    "Figure 2c: the trajectory and its bounds",
    "The bound of Corollary 1 holds along training, and is closer with λ_T of the path.",
    judge=judge_bounds,
    draw=draw_bounds,
)
def fig2c(context: Context) -> Measured:
    n, steps = context.pick(tiny=50, small=1000), context.pick(tiny=50, small=3000, medium=100_000)
    step = 2e-6 * 1000 / n

    def compute(progress: Progress) -> Measured:
        X, y = _data("Gaussian", n)
        return _bounded(delm(0), X, y, Square(), least(X, y), step, steps)

    return context.unit(
        "kawaguchi2021.bounds", f"square-{steps}", {"n": n, "steps": steps, "step": step}, compute
    )


TAU = 0.05  # of the logistic loss


@register(
    "kawaguchi2021.fig3",
    "Figure 3: logistic loss and its bounds",
    "The bound of Corollary 2 holds along training, and is closer with λ_T of the path.",
    judge=lambda measured: [*judge_bounds(measured), *judge_tau(measured)],
    draw=draw_bounds,
)
def fig3(context: Context) -> Measured:
    n, steps = context.pick(tiny=20, small=50), context.pick(tiny=50, small=3000, medium=100_000)
    inputs = {"n": n, "steps": steps, "step": 1e-4, "tau": TAU}

    def compute(progress: Progress) -> Measured:
        X, _ = _data("Gaussian", n)
        y = (torch.rand(n, 1, generator=torch.Generator().manual_seed(1)) < 0.5).double()
        loss = Logistic(tau=TAU)
        found = _bounded(delm(0, outputs=1), X, y, loss, _newton(X, y, loss), 1e-4, steps)
        return {**found, "without_tau": Logistic(tau=0.0).pl_constant(X)}

    return context.unit("kawaguchi2021.bounds", f"logistic-{steps}", inputs, compute)


def judge_tau(measured: Measured) -> list[Judgement]:
    return [
        judged(
            "with R = ∞ the bound says something without the penalty τq², too",
            measured["without_tau"] > 0,
            paper="τ ≥ 0 is allowed",
            measured=f"κ = {number(measured['without_tau'])}; with τ = {TAU} {number(measured['kappa'])}",
            tolerance="κ > 0 for τ = 0",
            reason="ρ(R) vanishes as R → ∞: with τ = 0 the promise is e^0",
        )
    ]


def _newton(X: Tensor, y: Tensor, loss: Loss) -> float:
    """min L₀ of a smooth strictly convex loss."""
    w = torch.zeros(X.shape[1], 1, dtype=torch.float64)
    for _ in range(50):
        q = X @ w
        hessian = X.T @ (loss.second_derivative(q, y) * X)
        w = w - torch.linalg.solve(hessian, X.T @ loss.gradient(q, y))
    return loss(X @ w, y).item()
