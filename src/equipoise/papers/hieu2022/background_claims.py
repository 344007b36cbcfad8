"""Descent, PL, monotone operators and weight tying: the claims of [hieu2022], chapter 2 and Appendix B."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...kernels import tangent_kernel
from ...models import Monotone
from ...models.repeated import Repeat
from ...models.zoo import ReLUNetwork, weight_tied
from ..framework.claims import Outcome, all_of, at_least, at_most, beside, corrected, equal, register
from ..framework.small import TIGHT, descend, draw, eye, norm, seeded


def _symmetric_least(M: Tensor) -> float:
    return torch.linalg.eigvalsh((M + M.T) / 2)[0].item()


def _rotation(margin: float, side: float) -> Tensor:
    """M with ⟨x, Mx⟩ = μ‖x‖² and ‖Mx‖² = (μ² + s²)‖x‖² for every x."""
    return torch.tensor([[margin, side], [-side, margin]], dtype=torch.float64)


@register("hieu2022.lemma2.3.2", "Lemma 2.3.2", number=1.9)
def lemma_2_3_2(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """⟨Wx, x⟩ ≥ m‖x‖² for every x iff W + Wᵀ ⪰ 2mI: the modulus is attained at an eigenvector."""
    W = draw(seed, 4, 4)
    values, vectors = torch.linalg.eigh(W + W.T)
    x = vectors[:, 0]
    return equal(x @ W @ x, values[0] / number)


@register("hieu2022.proposition1", "Proposition 1", half=1.0)
def proposition_1(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """sym(I − W) ⪰ mI iff W = (1−m)I − AᵀA + B − Bᵀ: A = (sym(I−W) − mI)^½ and B = ½ skew(W)."""
    m, W = 0.3, draw(seed, 4, 4)
    W = W + (_symmetric_least(eye(4) - W) - m) * eye(4)  # now sym(I − W) ⪰ mI, and no more
    values, vectors = torch.linalg.eigh((eye(4) - W + eye(4) - W.T) / 2 - m * eye(4))
    A = vectors @ torch.diag(values.clamp_min(0).sqrt()) @ vectors.T
    B = half * (W - W.T) / 2
    F, G = draw(seed + 1, 4, 4), draw(seed + 2, 4, 4)
    free = (1 - m) * eye(4) - F.T @ F + G - G.T
    return all_of(
        equal((1 - m) * eye(4) - A.T @ A + B - B.T, W, "only if", rtol=1e-7),
        at_least(_symmetric_least(eye(4) - free), m, "if"),
    )


@register("hieu2022.proposition2", "Proposition 2", half=0.55)
def proposition_2(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """L(θ) − L(θ − η∇L) ≥ (η/2)‖∇L‖² for η ≤ 1/L, attained at η = 1/L along the stiffest direction."""
    values, vectors = torch.linalg.eigh((F := draw(seed, 4, 6)) @ F.T)
    H, L = F @ F.T, values[-1].item()
    found = []
    for x in (vectors[:, -1], draw(seed + 1, 4)):
        g = H @ x
        after = x - g / L
        found.append(at_least(x @ H @ x / 2 - after @ H @ after / 2, half / L * (g @ g).item()))
    return all_of(*found)


@register("hieu2022.lemma2.5.2", "Lemma 2.5.2", gradient=0.95, distance=1.05)
def lemma_2_5_2(seed: int = 0, *, gradient: float = 1.0, distance: float = 1.0) -> Outcome:
    """‖∇f‖²/(2μ) ≥ f − f* ≥ (μ/2)‖w − w*‖² for a μ-strongly convex f, both attained by a quadratic."""
    values, vectors = torch.linalg.eigh((F := draw(seed, 4, 6)) @ F.T)
    H, mu = F @ F.T, values[0].item()
    found = []
    for w in (vectors[:, 0], draw(seed + 1, 4)):
        f = (w @ H @ w / 2).item()
        found.append(at_least(gradient * (H @ w).square().sum().item() / (2 * mu), f))
        found.append(at_least(f, distance * mu / 2 * w.square().sum().item()))
    return all_of(*found)


@register("hieu2022.theorem2.5.3", "Theorem 2.5.3", rate=2.2)
def theorem_2_5_3(seed: int = 0, *, rate: float = 1.0) -> Outcome:
    """L(θ_t) − L* ≤ (1 − μ/L)^t (L(θ₀) − L*) for a μ-strongly convex, L-smooth function and steps 1/L."""
    H = torch.diag(torch.tensor([1.0, 4.0, 10.0], dtype=torch.float64))
    found = []
    for x in (eye(3)[0], draw(seed, 3)):
        start = (x @ H @ x).item()
        for t in range(1, 6):
            x = x - H @ x / 10
            found.append(at_most((x @ H @ x).item(), (1 - rate / 10) ** t * start))
    return all_of(*found)


@register("hieu2022.theorem2.5.4", "Theorem 2.5.4 with Definition 2.5.3", number=1.0)
@corrected(
    "½ax² with a = L/5: PL with μ = 2a by Definition 2.5.3, a step leaves (1 − a/L)² > 1 − 2a/L of it."
)
def theorem_2_5_4(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """f(θ_t) − f* ≤ (1 − μ/(2L))^t (f(θ₀) − f*) where ‖∇f‖² ≥ μ(f − f*) and the step is 1/L.

    Printed with μ/L, which belongs to the definition ½‖∇f‖² ≥ μ(f − f*).
    """
    a, L = 1.0, 5.0
    mu, left = 2 * a, (1 - a / L) ** 2
    right = at_most(left, 1 - mu / (number * L), "share left by a step")
    return beside(right, at_most(left, 1 - mu / L, "share left by a step"))


@register("hieu2022.path_length", "§2.6.1, trajectory length", number=1.9)
def path_length(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """‖θ(k) − θ(0)‖ ≤ 2√(L(θ(0))/μ) where ‖∇L‖² ≥ μL along the way; attained by a quadratic."""
    found = []
    for x in (torch.tensor([1.0, 0.0], dtype=torch.float64), draw(seed, 2)):
        H = torch.diag(torch.tensor([0.5, 2.0], dtype=torch.float64))
        mu, start, loss, length = 2 * 0.5, x, (x @ H @ x / 2).item(), 0.0
        for _ in range(300):
            step = 0.1 * H @ x
            x, length = x - step, length + step.norm().item()
        found.append(at_most(length, number * math.sqrt(loss / mu), "length of the path"))
        found.append(at_most((x - start).norm().item(), number * math.sqrt(loss / mu), "distance"))
    return all_of(*found)


@register("hieu2022.theorem2.6.4", "Theorem 2.6.4", number=2.1)
def theorem_2_6_4(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """λ_min(K) ≥ μ gives ‖∇L‖² ≥ 2μL, twice the μ-PL* of the theorem; attained in the weakest direction."""
    model, X = Monotone(3, 4, dtype=torch.float64, generator=seeded(seed)), draw(seed + 1, 3, 3)
    values, vectors = torch.linalg.eigh(tangent_kernel(model, X).total)
    prediction, found = model(X, stop=TIGHT).detach(), []
    for target in (draw(seed + 2, 3), prediction - vectors[:, 0]):
        loss = (model(X, stop=TIGHT) - target).square().sum() / 2
        size = descend(loss, [model.A, model.B, model.U, model.u], 0.0)
        found.append(at_least(size**2, number * values[0].item() * loss.item(), rtol=1e-6))
    return all_of(*found)


@register("hieu2022.proposition3", "Proposition 3", number=2.2)
def proposition_3(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """‖I − α(I − W)‖ ≤ √(1 − 2αμ + α²ℓ²), attained by a rotation and stretching I − W."""
    free = eye(4) - Monotone(2, 4, 0.5, dtype=torch.float64, generator=seeded(seed)).weight().detach()
    found = []
    for M, mu in ((_rotation(0.5, 1.5), 0.5), (free, 0.5)):
        l = norm(M)
        for alpha in (0.5 * mu / l**2, mu / l**2, 1.9 * mu / l**2):
            bound = math.sqrt(1 - number * alpha * mu + (alpha * l) ** 2)
            found.append(at_most(norm(eye(len(M)) - alpha * M), bound))
    return all_of(*found)


@register("hieu2022.forward_backward", "(3.5), the interval of α", number=2.1)
@corrected("a rotation and stretching I − W at α = 2μ/ℓ², the closed end: the factor is exactly 1.")
def forward_backward(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """Forward-backward contracts for α ∈ (0, 2μ/ℓ²), an open interval: printed closed."""
    M, mu = _rotation(0.5, 1.5), 0.5
    l = norm(M)
    factor = lambda alpha: norm(eye(2) - alpha * M)
    inside = at_most(factor(0.99 * number * mu / l**2), 1 - 1e-6, "just inside")
    at_the_end = factor(2 * mu / l**2)
    return beside(inside, Outcome(at_the_end < 1 - 1e-12, at_the_end, 1.0, 1.0, "at the end"))


@register("hieu2022.peaceman_rachford", "§2.3.3, Peaceman-Rachford", reflection=1.8)
def peaceman_rachford(seed: int = 0, *, reflection: float = 2.0) -> Outcome:
    """h = 2z − q,  ẑ = (I + α(I−W))⁻¹(h + αUx),  q = 2ẑ − h,  z = relu(q) converges for every α > 0.

    Where plain iteration cycles too: one unit with W = −3.5.
    """
    W, b = torch.tensor([[-3.5]], dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64)
    cycle = [0.0]
    for _ in range(8):
        cycle.append(max(0.0, -3.5 * cycle[-1] + 1))
    model = Monotone(2, 4, 0.5, dtype=torch.float64, generator=seeded(seed))
    X = draw(seed + 1, 3, 2)
    problems = [(W, b, b / 4.5)]
    problems.append(
        (model.weight().detach(), X @ model.U.detach().T, model.equilibrium(X, stop=TIGHT).detach())
    )
    found = [at_least(abs(cycle[-1] - cycle[-2]), 0.5, "plain iteration cycles")]
    for W, b, Z in problems:
        for alpha in (0.1, 1.0, 10.0):
            inverse = torch.linalg.inv(eye(len(W)) + alpha * (eye(len(W)) - W)).T
            z = q = torch.zeros_like(b)
            for _ in range(800):
                h = reflection * z - (reflection - 1) * q
                q = reflection * ((h + alpha * b) @ inverse) - (reflection - 1) * h
                z = q.relu()
            found.append(equal(z, Z, f"α = {alpha:g}", rtol=1e-6))
    return all_of(*found)


@register("hieu2022.theoremB.0.1", "Theorem B.0.1", offset=-1.0)
def theorem_b_0_1(seed: int = 0, *, offset: float = 0.0) -> Outcome:
    """z̃ ← relu(W_z z̃ + W_x x + b̃), repeated as often as the network is deep, is that network."""
    network = ReLUNetwork(3, 5, 2, depth=4, dtype=torch.float64, generator=seeded(seed))
    x = draw(seed, 4, 3)
    tied = weight_tied(network)
    state = Repeat(tied.cell, int(tied.depth + offset), (tied.width,))(x)
    return equal(tied.readout(state[:, -tied.cell.last :]), network(x))
