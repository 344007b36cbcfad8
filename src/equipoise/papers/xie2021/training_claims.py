"""Regularised features, sequential averaging, training and convolutions: further claims of [xie2021]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...linalg import conv_norm_upper
from ..framework.claims import Outcome, all_of, at_least, at_most, beside, corrected, equal, refuted, register
from ..framework.small import draw, eye, norm


@register("xie2021.regularise", "§4.1", two=1.0)
@corrected("a quadratic φ and R = λ‖·‖² or λ‖·‖₁: the minimiser of φ + R is another point.")
def regularise(seed: int = 0, *, two: float = 2.0) -> Outcome:
    """z = prox_R(prox_φ(z)) minimises φ + M_R, the Moreau envelope of R, at y = prox_φ(z): printed φ + R.

    R = λ‖·‖²: z/(1 + 2λ), ∇M_R(y) = 2λy/(1 + 2λ). R = λ‖·‖₁: soft thresholding, ∇M_R(y) = clip(y, ±λ).
    """
    F, c, weight = draw(seed, 4, 4), 3 * draw(seed + 1, 4), 0.4
    H = F @ F.T / 4 + eye(4)
    inner = lambda z: torch.linalg.solve(eye(4) + H, z + c)  # prox of φ = ½zᵀHz − cᵀz
    square = lambda z: z / (1 + two * weight)
    soft = lambda z: z.sign() * (z.abs() - weight).relu()
    points = []
    for prox in (square, soft):
        z = c
        for _ in range(200):
            z = prox(inner(z))
        points.append(inner(z))
    y, s = points
    right = all_of(
        equal(c - H @ y, 2 * weight / (1 + 2 * weight) * y, "λ‖·‖²"),
        equal(c - H @ s, s.clamp(-weight, weight), "λ‖·‖₁"),
    )
    return beside(right, equal(c - H @ y, 2 * weight * y, "∇φ + ∇R", rtol=1e-3))


@register("xie2021.lemma9", "Lemma 9", lower=0.27, upper=1.1)
def lemma_9(seed: int = 0, *, lower: float = 0.25, upper: float = 0.5) -> Outcome:
    """¼‖x − y‖ ≤ ‖S(x) − S(y)‖ ≤ (1 − γλ/2)‖x − y‖,  S(x) = x − γ(∇l(x) + λx), γ = 1/(2L), λ ≤ L/2.

    The lower bound is attained where l has curvature L and λ = L/2; where l is flat the factor is 1 − γλ.
    """
    L = 2.0
    gamma, weight, found = 1 / (2 * L), L / 2, []
    for curvature in (0.0, 0.7 * L, L):
        x, y = draw(seed, 2, 3)
        S = lambda v, k=curvature: v - gamma * (k * v + weight * v)
        ratio = ((S(x) - S(y)).norm() / (x - y).norm()).item()
        found += [at_least(ratio, lower), at_most(ratio, 1 - upper * gamma * weight)]
    return all_of(*found)


@register("xie2021.theorem4", "Theorem 4", rho=0.5)
def theorem_4(seed: int = 0, *, rho: float = 0.34) -> Outcome:
    """z^k = β_k[(1 − γλ_k)z − γ∇R(z)] + (1 − β_k)T(z) → argmin R over Fix T,  β_k = η/k^ρ, λ_k = η/k^c.

    ρ + 2c < 1, γ = 1/(2L_z). Fix T a line, R = ½‖z − r‖² with r beside it: the error falls as k^{−ρ}, slowly.
    """
    c, gamma, eta = 0.32, 0.5, 0.5  # L_z = 1
    along, across = draw(seed, 2).tolist()
    errors = {}
    for k in range(1, 20001):
        beta, weight = eta / k**0.34, eta / k**c
        keep = beta * (1 - gamma * weight - gamma)
        along, across = (keep + 1 - beta) * along, keep * across + beta * gamma
        if k in (2000, 20000):
            errors[k] = math.hypot(along, across)
    measured = math.log10(errors[2000] / errors[20000])
    found = equal(measured, rho, f"exponent {measured:.3f}", rtol=0.05)
    return all_of(at_most(errors[20000], 0.05, "distance to the selected point"), found)


def _equilibria(W: Tensor, U: Tensor, b: Tensor, X: Tensor, mu: float) -> Tensor:
    """Rows z_i = μ⁻¹Wᵀσ(Wz_i + Ux_i + b), unrolled until it has converged, differentiable."""
    Z = torch.zeros(len(X), W.shape[1], dtype=torch.float64)
    for _ in range(60):
        Z = _sigma(Z @ W.T + X @ U.T + b) @ W / mu
    return Z


def _sigma(t: Tensor) -> Tensor:
    """Smooth, with slopes in (½, 1]."""
    return (t + torch.tanh(t)) / 2


def _slope(t: Tensor) -> Tensor:
    return 1 - torch.tanh(t) ** 2 / 2


def _network(seed: int, N: int = 3) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor, float]:
    """(W, U, b) with ‖W‖² = μ/2, readout a, inputs."""
    W, mu = draw(seed, 4, 3), 1.5
    W = (0.5 * mu) ** 0.5 * W / norm(W)
    return (W, draw(seed + 1, 4, 2), draw(seed + 2, 4)), draw(seed + 3, 3), draw(seed + 4, N, 2), mu


def _jacobians(weights: tuple[Tensor, Tensor, Tensor], a: Tensor, X: Tensor, mu: float) -> list[Tensor]:
    """∂ŷ/∂W, ∂ŷ/∂U, ∂ŷ/∂b by automatic differentiation, (N, parameters)."""
    predict = lambda W, U, b: _equilibria(W, U, b, X, mu) @ a
    return [J.flatten(1) for J in torch.autograd.functional.jacobian(predict, weights)]


@register("xie2021.kernel", "Appendix G, tangent kernel", cross=0.0)
def kernel(seed: int = 0, *, cross: float = 1.0) -> Outcome:
    """K_W = HHᵀ∘wwᵀ/μ² + C + Cᵀ + QQᵀ∘ZZᵀ,  K_U = QQᵀ∘XXᵀ,  K_b = QQᵀ, by the adjoints of one layer.

    w_i = (I − WᵀD_iW/μ)⁻¹a,  Q = D∘(wWᵀ)/μ,  H = σ(WZ + c),  C = HQᵀ∘wZᵀ/μ.
    """
    weights, a, X, mu = _network(seed)
    W, U, b = weights
    Z = _equilibria(W, U, b, X, mu)
    pre = Z @ W.T + X @ U.T + b
    H, D = _sigma(pre), _slope(pre)
    w = torch.stack([torch.linalg.solve(eye(3) - W.T @ (d[:, None] * W) / mu, a) for d in D])
    Q = D * (w @ W.T) / mu
    C = (H @ Q.T) * (w @ Z.T) / mu
    blocks = [
        (H @ H.T) * (w @ w.T) / mu**2 + cross * (C + C.T) + (Q @ Q.T) * (Z @ Z.T),
        (Q @ Q.T) * (X @ X.T),
        Q @ Q.T,
    ]
    found = _jacobians(weights, a, X, mu)
    return all_of(*(equal(K, J @ J.T, name) for K, J, name in zip(blocks, found, "WUb", strict=True)))


@register("xie2021.theorem5", "Theorem 5, Lemma 16", number=2.1)
@refuted("the same input twice, with residuals 1 and −1: the gradient is 0 and the loss is not.")
def theorem_5(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """‖∇ℓ‖² ≥ 2λ_min(JJᵀ)ℓ is what holds, and λ_min(JJᵀ) = 0 where an input stands twice.

    Lemma 16 promises ‖∇ℓ‖² ≥ K²Lα²κ²σ_m²Nσ_min(W_{L+1})²‖r‖² > 0 for every residual r; evaluated with K = 1.
    """
    weights, a, X, mu = _network(seed)
    J = torch.cat(_jacobians(weights, a, X, mu), dim=1)
    values, vectors = torch.linalg.eigh(J @ J.T)
    found = []
    for r in (vectors[:, 0], draw(seed + 8, 3)):
        loss = (r @ r).item() / 2
        found.append(at_least((J.T @ r).square().sum().item(), number * values[0].item() * loss, rtol=1e-7))
    twice = torch.cat([X[:1], X[:1]])
    J = torch.cat(_jacobians(weights, a, twice, mu), dim=1)
    r = torch.tensor([1.0, -1.0], dtype=torch.float64)
    promised = 0.25 * torch.linalg.svdvals(weights[0])[-1].item() ** 2 * 2 * (a @ a).item() * 2
    return beside(all_of(*found), at_least((J.T @ r).square().sum().item(), promised, "‖∇ℓ‖²"))


@register("xie2021.convolution", "§5, ‖W_l‖ ≤ 1 for convolutions", grid=-6.0)
def convolution(seed: int = 0, *, grid: float = 2.0) -> Outcome:
    """‖conv‖ ≤ max over an n × n grid of frequencies of the largest singular value of the symbol, n ≥ H + 2.

    The norm of the reshaped kernel is no bound: a 3 × 3 box that reads 1 has norm near 3.
    """
    side, found = 8, []
    wave = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    wave[0, 0, 1, 0], wave[0, 0, 1, 2] = (
        1.0,
        -1.0,
    )  # its symbol 2i sin ω peaks between the points of a coarse grid
    box = torch.full((1, 1, 3, 3), 1 / 3, dtype=torch.float64)
    for K in (draw(seed, 3, 2, 3, 3), wave, box):
        channels = K.shape[1]
        inputs = eye(channels * side**2).reshape(-1, channels, side, side)
        truth = norm(torch.nn.functional.conv2d(inputs, K, padding=1).flatten(1))
        n = side + int(grid)
        angles = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
        waves = torch.exp(1j * torch.outer(angles, torch.arange(3, dtype=torch.float64)))  # (n, 3)
        symbol = torch.einsum("oikl,pk,ql->pqoi", K.to(waves.dtype), waves, waves)
        bound = torch.linalg.matrix_norm(symbol, 2).max().item()
        found.append(at_most(truth, bound, "symbol"))
        found.append(at_most(truth, conv_norm_upper(K, (side, side), padding=1), "conv_norm_upper"))
    reshaped = norm(box.flatten(1))
    return all_of(*found, at_least(truth, 2.5 * reshaped, "box against its reshaped kernel"))
