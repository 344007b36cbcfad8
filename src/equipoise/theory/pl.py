"""‖∇L‖² ≥ μ(L − L*): why descent reaches the least loss, as checks [hieu2022, §2.5-2.6].

    PL   ‖∇L‖² ≥ μ(L − L*)          PL*   ‖∇L‖² ≥ μL, on a set        (the thesis' μ is twice the usual one)
    uniform conditioning             λ_min(K(θ)) ≥ λ on a ball; then PL* with μ = 2λ there, for L = ½‖r‖²
    path length                      Σ‖θ(i+1) − θ(i)‖ ≤ 2√(L(0)/μ) / (1 − ηβ/2), under PL*, L β-smooth, ηβ < 2

The kernel holds the block of the readout, K ⪰ ZZᵀ, so λ_min(K) ≥ σ_min(Z)² is sound without a formula for the
rest. Weights within ρ of the start (all parameters together, Frobenius) move the equilibria by at most R√K ρ,
with R and K of `geometry`, and σ_min(Z) by no more.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..checks import nonnegative, positive
from ..linalg import Interval, frobenius, gamma, maximum
from ..models.affine import AffineFamily
from .claim import Claim
from .enclosure import product_rounding
from .instance import Instance

SOUND = "a-posteriori bounds on an SVD, less the error of the equilibria"


# -- one point -----------------------------------------------------------------------------------------------


def pl(gradient: Interval, loss: Interval, mu: Interval | float, least: Interval | float = 0.0) -> Claim:
    """‖∇L‖² ≥ μ(L − L*), from ‖∇L‖, L and L*    [hieu2022, Definition 2.5.3]."""
    return Claim(
        "PL",
        "the gradient is large wherever the loss is above its least",
        gradient**2,
        ">=",
        Interval(mu) * maximum(loss - least, 0.0),
        "both sides as given",
    )


def pl_star(gradient: Interval, loss: Interval, mu: Interval | float) -> Claim:
    """‖∇L‖² ≥ μL, from ‖∇L‖ and L    [hieu2022, Definition 2.6.1]."""
    return Claim(
        "PL*",
        "the gradient is large wherever the loss is",
        gradient**2,
        ">=",
        Interval(mu) * loss,
        "both sides as given",
    )


def readout_gradient(instance: Instance, scale: float = 1.0) -> Interval:
    """‖∇_a L‖ = scale·‖Zᵀr‖ at the true equilibria; scale is 1 for ½‖r‖² and 2 for ‖r‖².

    The whole gradient is no smaller.
    """
    model, Z, y, e = instance.model, instance.Z, instance.y, instance.equilibria.error
    if y is None:
        raise ValueError("y is required: this is about a loss.")
    a = model.readout_weight
    r = model.readout(Z) - y
    r_error = frobenius(a) * e + product_rounding(Z, a) + gamma(4) * (frobenius(y) + frobenius(r))
    off = e * (frobenius(r) + r_error) + frobenius(Z) * r_error + product_rounding(Z.T, r)
    return scale * maximum(frobenius(Z.T @ r) + Interval.within(off.hi), 0.0)


# -- a ball --------------------------------------------------------------------------------------------------


def uniform_conditioning(model: AffineFamily, X: Tensor, radius: float, mu: float | None = None) -> Claim:
    """λ_min(K(θ)) ≥ μ for every θ within `radius` of the weights, proved    [hieu2022, Definition 2.6.2].

    Without `mu`, that λ_min(K) > 0 there. The left side is (σ_min(Z) − R√K·radius)², a lower bound; features
    φ of the linear family are held fixed.
    """
    _check_ball(radius, mu)
    instance = Instance(model, X)
    least = Interval(0.0, math.inf)
    if not instance.obstacle and all(c.holds for c in instance.enclosure.unique):
        moved = _movement(instance, radius)
        if moved is not None:
            s = maximum(Interval(instance.sigma_N.lo) - moved, 0.0)
            least = Interval((s**2).lo, math.inf)
    wider = f"a width of at least {instance.N}, or slack" if instance.N > instance.model.width else ""
    return Claim(
        "uniform conditioning",
        f"the least eigenvalue of the tangent kernel, wherever the weights are within {radius:g} of these"
        + (f" ({instance.obstacle})" if instance.obstacle else ""),
        least,
        ">" if mu is None else ">=",
        Interval(0.0 if mu is None else mu),
        SOUND + " and their movement over the ball",
        remedy=wider or "a smaller radius",
    )


def _movement(instance: Instance, radius: float) -> Interval | None:
    """≥ ‖Z(θ) − Z‖_F over the ball; None where the ball reaches weights that may have no equilibrium."""
    at = instance.facts.geometry(instance)
    delta = at.moved(radius)
    if not delta.hi < at.room:
        return None
    R, K, _ = at.ball(delta, Interval(instance.equilibria.spectrum.norm.hi))
    return Interval((R * K.sqrt() * radius).hi)


def _check_ball(radius: float, mu: float | None) -> None:
    nonnegative("radius", radius)
    positive("mu", 1.0 if mu is None else mu)


# -- a path --------------------------------------------------------------------------------------------------


def path_length(
    length: Interval | float,
    loss: Interval | float,
    mu: Interval | float,
    *,
    step_size: float = 0.0,
    smoothness: float = 0.0,
    printed: bool = False,
) -> Claim:
    """Σ‖θ(i+1) − θ(i)‖ ≤ 2√(L(0)/μ) / (1 − ηβ/2), given PL* with μ and β-smoothness along the path.

    Since L⁺ ≤ L − η(1 − ηβ/2)‖∇L‖² and ‖∇L‖ ≥ √(μL), a step η‖∇L‖ takes at least (1 − ηβ/2)√μ/2 of itself
    off √L. `step_size=0` is the flow. The thesis prints 2√(L(0)/μ) for η ≤ 1/β too (`printed=True`), and
    refers for a proof elsewhere.
    """
    slowed = 1 - Interval(step_size) * smoothness / 2
    if not (step_size >= 0 and smoothness >= 0 and slowed.lo > 0):
        raise ValueError(
            f"step_size·smoothness must lie in [0, 2): beyond, descent may not descend. "
            f"Got {step_size}·{smoothness} instead."
        )
    flow = 2 * (Interval(loss) / Interval(mu)).sqrt()
    return Claim(
        "path length",
        "the weights travel no further than the loss at the start allows",
        Interval(length),
        "<=",
        flow if printed else flow / slowed,
        "both sides as given",
        printed=printed,
    )
