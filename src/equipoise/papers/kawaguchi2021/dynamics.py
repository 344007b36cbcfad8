"""L(T) − L* ≤ e^{−2κλ_T T}(L(0) − L*), dM/dt = V/δ: Figures 2c and 3, Theorem 2 and Appendix B of
[kawaguchi2021]."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...losses import Logistic, Loss, Square
from ...models import LinearEquilibrium
from ...models.affine.linear import d_operator
from ...plots.curves import Line, Panel, panels
from ...theory.trust_region import resolvent_limit, trust_region
from ...train import gradient_descent
from ..framework.experiments import Context, Measured, Progress, register
from ..framework.page import Page, number
from ..framework.small import filled, norm, seeded
from ..framework.verdicts import Judgement, judged
from .theory import M, delm, gaussian, least, record

TAU = 0.05  # of the logistic loss
LOSSES = ("square", "logistic")


# -- figures 2c and 3: the bounds ----------------------------------------------------------------------------


def _bounded(
    model: LinearEquilibrium, X: Tensor, y: Tensor, loss: Loss, star: float, inputs: Measured
) -> Measured:
    """Gap to L* along small steps, beside e^{−2κλ_T T} with λ_T of this path and with 1/(m(1+γ)²)."""
    kappa, steps, step = loss.pl_constant(X), inputs["steps"], inputs["step"]
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


def _judge_bounds(measured: Measured, bound: str, figure: str) -> list[Judgement]:
    """Judge both bounds; `bound` names their place in the paper, `figure` what it says of them.

    gap ≤ bound + nεL(0): a sum of n terms is known up to nε/2 of itself, L − L* up to nεL(0)."""
    gap, dep, ind = (np.array(measured[k], dtype=float) for k in ("gap", "dependent", "independent"))
    floor = measured["terms"] * float(np.finfo(float).eps) * (gap[0] + measured["least"])
    above = sum(int(np.sum(gap > limit * (1 + 1e-6) + floor)) for limit in (dep, ind))
    return [
        judged(
            "the loss stays below both bounds",
            above == 0,
            paper=f"{bound}: upper bounds of the trajectory",
            measured=f"{above} of {2 * len(gap)} comparisons fail",
            tolerance="gap ≤ bound at every step measured, up to 10⁻⁶ of it and the rounding of the loss, "
            f"{measured['terms']}·ε·L(0) = {floor:.1e}: a sum of n terms is known up to nε/2 of itself",
        ),
        judged(
            "the bound with λ_T of the path is the tighter one",
            measured["lambda"] > measured["lambda_fixed"] and bool((dep <= ind).all()),
            paper=figure,
            measured=f"λ_T = {number(measured['lambda'])} against 1/(m(1+γ)²) = "
            f"{number(measured['lambda_fixed'])}; at the end gap {number(float(gap[-1]))}, bounds "
            f"{number(float(dep[-1]))} and {number(float(ind[-1]))}",
            tolerance="a larger λ_T, and at most the other bound at every step",
        ),
    ]


def _judge_fig2c(measured: Measured) -> list[Judgement]:
    figure = "§4, Figure 2c: a faster and more accurate convergence rate"
    return _judge_bounds(measured, "Corollary 1, Figure 2c", figure)


def _judge_fig3(measured: Measured) -> list[Judgement]:
    figure = "D.2, Figure 3: demonstrates a faster convergence rate"
    without, kappa = measured["without_tau"], measured["kappa"]
    return [
        *_judge_bounds(measured, "Corollary 2, Figure 3", figure),
        judged(
            "with R = ∞ the bound does not decrease without the penalty τq², and does with it",
            without == 0 < kappa,
            paper="Corollary 2, proof in A.4: for (R, τ) = (∞, 0) it holds trivially, for ρ(∞) = 0",
            measured=f"κ = {number(without)} at τ = 0, {number(kappa)} at τ = {TAU}",
            tolerance="κ = 0 for τ = 0, and κ > 0 for the τ of the figure",
        ),
    ]


def _draw_bounds(measured: Measured, page: Page) -> None:
    star, at = measured["least"], np.maximum(measured["at"], 0.7)
    above = lambda key: Line((at, star + np.array(measured[key], dtype=float)), marks=False)
    lines = {
        "trajectory": above("gap"),
        "bound, λ of the path": above("dependent"),
        "bound, 1/(m(1+γ)²)": above("independent"),
    }
    scales: dict[str, Any] = {"log_x": True, "log_y": True, "above": True}
    figure = panels(Panel(lines, "step", "training loss", rules={"least loss L*": star}, **scales))
    page.figure(
        "bounds", figure, "Small steps of descent stand for the flow; λ of the path is λ_T of the paper."
    )


@register(
    "kawaguchi2021.fig2c",
    "Figure 2c: the trajectory and its bounds",
    _judge_fig2c,
    _draw_bounds,
    least="tiny",
)
def fig2c(context: Context) -> Measured:
    """The bound of Corollary 1 holds along training, and is closer with λ_T of the path."""
    n, steps = context.pick(tiny=50, small=1000), context.pick(tiny=50, small=3000, medium=100_000)
    inputs = {"n": n, "steps": steps, "step": 2e-6 * 1000 / n}
    record(context, n)

    def compute(progress: Progress) -> Measured:
        X, y = gaussian(n)
        return _bounded(delm(0), X, y, Square(), least(X, y), inputs)

    return context.unit("kawaguchi2021.bounds", f"square-{steps}", inputs, compute) | {"terms": n * M}


@register(
    "kawaguchi2021.fig3", "Figure 3: logistic loss and its bounds", _judge_fig3, _draw_bounds, least="tiny"
)
def fig3(context: Context) -> Measured:
    """The bound of Corollary 2 holds along training, and is closer with λ_T of the path."""
    n, steps = context.pick(tiny=20, small=50), context.pick(tiny=50, small=3000, medium=100_000)
    inputs = {"n": n, "steps": steps, "step": 1e-4, "tau": TAU}
    words = f"{n} samples x ~ N(0, I) in R^{M}, seed 0; y 0 or 1 with probability ½, seed 1"
    context.drawn("synthetic-normal", words)

    def compute(progress: Progress) -> Measured:
        X, _ = gaussian(n)
        y = (torch.rand(n, 1, generator=seeded(1)) < 0.5).double()
        loss = Logistic(tau=TAU)
        found = _bounded(delm(0, outputs=1), X, y, loss, _newton(X, y, loss), inputs)
        return {**found, "without_tau": Logistic(tau=0.0).pl_constant(X)}

    return context.unit("kawaguchi2021.bounds", f"logistic-{steps}", inputs, compute) | {"terms": n}


def _newton(X: Tensor, y: Tensor, loss: Loss) -> float:
    """min L₀ of a smooth strictly convex loss."""
    w = torch.zeros(X.shape[1], 1, dtype=torch.float64)
    for _ in range(50):
        q = X @ w
        hessian = X.T @ (loss.second_derivative(q, y) * X)
        w = w - torch.linalg.solve(hessian, X.T @ loss.gradient(q, y))
    return loss(X @ w, y).item()


# -- theorem 2 and appendix B --------------------------------------------------------------------------------


def _judge_theorem2(measured: Measured) -> list[Judgement]:
    rows = measured["rows"]
    kkt, velocity, beaten = (max(r[key] for r in rows) for key in ("kkt", "velocity", "beaten"))
    return [
        judged(
            "gradient flow moves M to the minimiser of the trust-region problem",
            kkt <= 1e-8,
            paper="Theorem 2, (13): dM/dt = V/δ, V in argmin",
            measured=f"KKT residual at most {kkt:.1e} at {len(rows)} moments of two losses",
            tolerance="at most 10⁻⁸ of ‖∇L₀‖",
        ),
        judged(
            "dM/dt is the velocity of the weights' flow",
            velocity <= 1e-4,
            paper="Theorem 2, (13)",
            measured=f"relative difference to a small step of A and B at most {velocity:.1e}",
            tolerance="at most 10⁻⁴",
        ),
        judged(
            "no other point of the trust region has a lower model value",
            beaten == 0,
            paper="Theorem 2, (13): V in argmin",
            measured=f"{beaten} of 200 random points of the region at each moment",
            tolerance="none",
        ),
    ]


def _draw_theorem2(measured: Measured, page: Page) -> None:
    def panel(key: str, words: str) -> Panel:
        rows = {loss: [r for r in measured["rows"] if r["loss"] == loss] for loss in LOSSES}
        lines = {loss: ([r["step"] for r in some], [r[key] for r in some]) for loss, some in rows.items()}
        return Panel(lines, "step", words, log_y=True)

    figure = panels(panel("kkt", "KKT residual"), panel("radius", "radius of the trust region"))
    page.figure("trust-region", figure, "Along a run of descent; the residual is relative to ‖∇L₀‖.")


@register(
    "kawaguchi2021.theorem2",
    "Theorem 2: the dynamics as a trust-region Newton method",
    _judge_theorem2,
    _draw_theorem2,
    least="tiny",
)
def theorem2(context: Context) -> Measured:
    """At every moment gradient flow of a DELM moves M to the solution of a trust-region problem."""
    n, steps = context.pick(tiny=20, small=100), context.pick(tiny=20, small=1000)
    x = f"{n} samples x ~ N(0, I) in R^{M}, seed 0; w ~ N(0, I), seed 2"
    context.drawn("synthetic-normal", f"{x}; y = x·w, or 1 where x·w > 0, else 0")

    def compute(progress: Progress) -> Measured:
        X, _ = gaussian(n)
        w = torch.randn(M, 1, dtype=torch.float64, generator=seeded(2))
        rows = []
        for loss, y in ((Square(), X @ w), (Logistic(tau=0.01), (X @ w > 0).double())):
            model, every = delm(0, outputs=1), max(1, steps // 10)
            for k in range(0, steps + 1, every):
                rows.append({"loss": loss.name, "step": k, **_moment(model, X, y, loss)})
                gradient_descent(model, X, y, every, 1e-4, loss=loss, measure=0)
        return {"rows": rows}

    return context.unit("kawaguchi2021.theorem2", f"n{n}", {"n": n, "steps": steps}, compute)


def _moment(model: LinearEquilibrium, X: Tensor, y: Tensor, loss: Loss) -> Measured:
    region = trust_region(model, X, y, loss=loss)
    value, h = loss(model(X), y), 1e-7
    gradients = torch.autograd.grad(value, [model.A, model.B])
    moved = filled(delm(0, outputs=1), A=model.A - h * gradients[0], B=model.B - h * gradients[1])
    with torch.no_grad():
        speed = (moved.predictor() - model.predictor())[0] / h
        v = torch.randn(200, M, dtype=torch.float64, generator=seeded(0))
        v *= region.radius / ((v @ region.G) * v).sum(dim=1, keepdim=True).sqrt()
        best = region.model(region.V)
        beaten = int((region.model(v) < best - 1e-12 * best.abs()).sum())
    off = (speed - region.velocity).norm() / region.velocity.norm()
    return {"kkt": region.kkt_residual, "velocity": off, "beaten": beaten, "radius": region.radius}


def _judge_appendix_b(measured: Measured) -> list[Judgement]:
    (right, at_last), (printed, last) = (
        (measured[key][0], measured[key][-1]) for key in ("right", "printed")
    )
    return [
        judged(
            "(I − γS)⁻¹ = 11ᵀ/(m(1−γ)) + a rest that is bounded as γ → 1",
            last <= 1.5 * printed,
            paper="Appendix B: V = P₁r/(1−γ) + g, P₁ = 11ᵀ/m, with ‖g‖ < c for all γ",
            measured=f"norm of the rest {number(printed)} → {number(last)}",
            tolerance="from γ = .9 to 1 − 10⁻⁵ it grows by at most a half",
            because=lambda: (
                "right only for a doubly stochastic S; otherwise the rest grows as 1/(1 − γ), and π1ᵀ "
                f"with Sπ = π must stand for 11ᵀ/m: that rest goes from {number(right)} to {number(at_last)}"
            ),
        ),
    ]


def _draw_appendix_b(measured: Measured, page: Page) -> None:
    names = {"rest of π1ᵀ/(1−γ)": "right", "rest of 11ᵀ/(m(1−γ))": "printed"}
    lines = {name: (measured["depth"], measured[key]) for name, key in names.items()}
    figure = panels(Panel(lines, "1/(1 − γ)", "operator norm", log_x=True, log_y=True))
    page.figure("rest", figure, "What is left of (I − γS)⁻¹ beside its growing part.")


@register(
    "kawaguchi2021.appendixB",
    "Appendix B: the implicit bias of infinite depth",
    _judge_appendix_b,
    _draw_appendix_b,
    least="tiny",
)
def appendix_b(context: Context) -> Measured:
    """As γ → 1 the direction of the dynamics is 11ᵀ/m of the error over 1 − γ, plus a bounded rest."""
    found: Measured = {"depth": [], "right": [], "printed": []}
    for power in range(1, 6):
        gamma = 1 - 10.0**-power
        model = delm(0, gamma=gamma)
        with torch.no_grad():
            model.A.mul_(3)
        leading, rest = resolvent_limit(model)
        flat = torch.full_like(leading, 1 / (M * (1 - gamma)))
        found["depth"].append(10.0**power)
        found["right"].append(norm(rest))
        found["printed"].append(norm(leading + rest - flat))
    return found
