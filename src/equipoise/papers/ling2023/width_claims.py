"""K = Q(cos θ)/(1 − σ_w²): what [ling2023] claims about the Gram matrix at its Gaussian start (§4)."""

from __future__ import annotations

import math

import torch
from scipy.integrate import quad
from scipy.special import eval_hermitenorm
from torch import Tensor

from ...kernels import population_gram, population_lambda_min
from ...kernels.population import dual_relu
from ...models import GaussianReLU
from ..framework.claims import Outcome, all_of, at_least, at_most, beside, corrected, equal, register
from ..framework.small import draw, eye, seeded, sigma_min

S2 = 0.08  # σ_w²


def _rows(seed: int, n: int = 4, d: int = 6) -> Tensor:
    X = draw(seed, n, d)
    return d**0.5 * X / X.norm(dim=1, keepdim=True)


def _definition(X: Tensor, depth: int) -> list[Tensor]:
    """K^(0), …, K^(depth) of Definition 1, by the homogeneity of ReLU."""
    C, K = X @ X.T / X.shape[1], torch.zeros(len(X), len(X), dtype=torch.float64)
    found = [K]
    for _ in range(depth):
        diagonal = S2 * K.diagonal()[0] + 1
        K = diagonal * dual_relu(((S2 * K + C) / diagonal).clamp(-1, 1))
        found.append(K)
    return found


def _layers(seed: int, m: int, X: Tensor, depth: int, s2: float = S2) -> list[Tensor]:
    """Z^(0), …, Z^(depth), (n, m)."""
    model = GaussianReLU(X.shape[1], m, s2, dtype=torch.float64, generator=seeded(seed))
    f = model.affine_map(X)
    Z = [torch.zeros(len(X), m, dtype=torch.float64)]
    for _ in range(depth):
        Z.append(f(Z[-1]))
    return Z


@register("ling2023.eq11", "(11)", half=0.55)
def equation_11(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """E[relu(u) relu(v)] = ½Q(x) for unit normals of correlation x,  Q(x) = (√(1−x²) + (π − arccos x)x)/π."""
    x = torch.rand(1, generator=seeded(seed)).double().item() * 2 - 1
    angle = math.acos(x)
    product = lambda t: math.cos(t) * math.cos(t - angle)
    expected = quad(product, angle - math.pi / 2, math.pi / 2)[0] / math.pi  # in polar coordinates, E r² = 2
    return equal(expected, half * dual_relu(torch.tensor([x], dtype=torch.float64)), rtol=1e-6)


@register("ling2023.lemma6", "Lemma 6", scale=1.02)
def lemma_6(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """λ_min(A∘B) ≥ min_i B_ii λ_min(A) for A, B ⪰ 0, attained by A = I."""
    B, F = (M @ M.T for M in (draw(seed, 5, 5), draw(seed + 1, 5, 7)))
    least = lambda M: torch.linalg.eigvalsh(M)[0].item()
    low = scale * B.diagonal().min().item()
    return all_of(at_least(least(eye(5) * B), low, "A = I"), at_least(least(F * B), low * least(F), "random"))


@register("ling2023.lemma7", "Lemma 7", normaliser=2.0)
def lemma_7(seed: int = 0, *, normaliser: float = 1.0) -> Outcome:
    """Q(x) = Σ_r μ_r² x^r,  μ_r = ∫ relu(t) h_r(t) e^{−t²/2}/√π dt, with infinitely many μ_r ≠ 0."""
    x, total, even = 0.3, 0.0, []
    for r in range(13):
        weight = lambda t, r=r: t * eval_hermitenorm(r, t) * math.exp(-t * t / 2)
        mu = quad(weight, 0, 12)[0] / math.sqrt(normaliser * math.pi * math.factorial(r))
        total += mu**2 * x**r
        even += [mu**2] if r % 2 == 0 else []
    expected = dual_relu(torch.tensor([x], dtype=torch.float64))
    return all_of(equal(total, expected, "the series", rtol=1e-7), at_least(min(even), 1e-6, "even μ_r²"))


@register("ling2023.lemma3", "Lemma 3, (12)-(13)", lag=1.0)
@corrected("cos θ^(l) with K_ij^(l−1) in the denominator: off by several percent for rows at a right angle.")
def lemma_3(seed: int = 0, *, lag: float = 0.0) -> Outcome:
    """K^(l) = ρ^(l) Q(cos θ^(l)),  cos θ^(l) = (1 − 1/ρ^(l)) Q(cos θ^(l−1)) + C/ρ^(l).

    Printed with ρ^(l−1), and with K_ij for K_ii in the definition of the cosine.
    """
    X = _rows(seed)
    C, K = X @ X.T / X.shape[1], _definition(X, 3)
    rho = lambda l: (1 - S2**l) / (1 - S2)
    cos = C
    for l in (2, 3):
        at = rho(l - lag)
        cos = (1 - 1 / at) * dual_relu(cos.clamp(-1, 1)) + C / at
    right = all_of(
        equal(rho(3) * dual_relu(cos.clamp(-1, 1)), K[3], "the recursion"),
        equal(population_gram(X, S2, depth=3), K[3], "population_gram"),
    )
    printed = (S2 * K[2] + C) / (S2 * K[2] + 1)
    return beside(right, equal(rho(3) * dual_relu(printed.clamp(-1, 1)), K[3], "K_ij below", rtol=1e-4))


@register("ling2023.lemma3.rho", "Lemma 3", power=1.0)
def lemma_3_rho(seed: int = 0, *, power: float = 2.0) -> Outcome:
    """K_ii^(l) = ρ^(l) = (1 − σ_w^{2l})/(1 − σ_w²)."""
    K = _definition(_rows(seed), 6)
    return all_of(
        *(
            equal(K[l].diagonal().mean(), (1 - S2 ** (power * l / 2)) / (1 - S2 ** (power / 2)))
            for l in range(1, 7)
        )
    )


@register("ling2023.theorem3.rate", "Theorem 3 (i)", scale=0.95)
def theorem_3_rate(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """|K_ij^(l) − K_ij^(l−1)| ≤ (2l − 1)σ_w^{2(l−1)}, attained at l = 1 on the diagonal."""
    K = _definition(_rows(seed), 6)
    change = lambda l: (K[l] - K[l - 1]).abs().max().item()
    return all_of(*(at_most(change(l), scale * (2 * l - 1) * S2 ** (l - 1)) for l in range(1, 7)))


@register("ling2023.theorem3.limit", "Theorem 3, (14)", weight=0.9)
def theorem_3_limit(seed: int = 0, *, weight: float = 1.0) -> Outcome:
    """K = Q(cos θ)/(1 − σ_w²),  cos θ = σ_w²Q(cos θ) + (1 − σ_w²)C: the limit of K^(l)."""
    X = _rows(seed)
    C, s2 = X @ X.T / X.shape[1], weight * S2
    cos = C.clamp(-1, 1)
    for _ in range(60):
        cos = (s2 * dual_relu(cos) + (1 - s2) * C).clamp(-1, 1)
    limit = dual_relu(cos) / (1 - s2)
    return all_of(
        equal(limit, _definition(X, 40)[-1], "the recursion"), equal(limit, population_gram(X, S2), "library")
    )


@register("ling2023.lambda_star", "Theorem 3 (ii)", value=0.7265)
def lambda_star(seed: int = 0, *, value: float = 0.726424415621) -> Outcome:
    """λ* = λ_min(K) > 0 where no two rows are parallel: 0.726424415621 for orthogonal rows and σ_w² = .08.

    Two equal rows make it 0.
    """
    orthogonal = 6**0.5 * torch.linalg.qr(draw(seed, 6, 6)).Q[:4]
    X = _rows(seed)
    return all_of(
        equal(population_lambda_min(orthogonal, S2), value, "orthogonal rows", rtol=1e-10),
        at_least(population_lambda_min(X, S2), 1e-3, "random rows"),
        at_most(abs(population_lambda_min(torch.cat([X, X[:1]]), S2)), 1e-12, "a row twice"),
    )


@register("ling2023.theorem2", "Theorem 2", share=1.5)
def theorem_2(seed: int = 0, *, share: float = 0.5) -> Outcome:
    """λ₀ = λ_min(ZZᵀ) ≥ mλ*/2 at a wide start, with high probability: here nine draws of ten."""
    X = 8**0.5 * eye(8)[:2]
    floor = share * 200 * population_lambda_min(X, S2)
    least = sorted(sigma_min(_layers(seed + 100 * k, 200, X, 25)[-1]) ** 2 for k in range(10))
    return at_least(least[1], floor, "λ₀, the second least of ten draws")


@register("ling2023.theorem4", "Theorem 4", edge=0.7)
def theorem_4(seed: int = 0, *, edge: float = 2 * 2**0.5) -> Outcome:
    """‖G − G^(l)‖_F/m falls at least as (2√2σ_w)^l in the depth l."""
    Z = _layers(seed, 200, _rows(seed), 40)
    G = [z @ z.T for z in Z]
    error = [(G[-1] - g).norm().item() / 200 for g in G[:8]]
    return at_most((error[7] / error[2]) ** 0.2, edge * S2**0.5, "factor a layer")


@register("ling2023.theorem5", "Theorem 5", slope=-1.0)
@corrected(
    "m = 40 and l = 20: the difference stays where it was at l = 5, the printed bound has fallen to 10⁻⁷."
)
def theorem_5(seed: int = 0, *, slope: float = -0.5) -> Outcome:
    """‖G^(l)/m − K^(l)‖_F falls as m^{−½} at a fixed depth; at a fixed width it does not fall with l.

    Printed as ≤ n(2√2σ_w)^l, with a probability that is void for such l.
    """
    X, s2, depth = _rows(seed, n=3), 0.02, 5
    K = population_gram(X, s2, depth=depth)
    error = lambda m, l, k, K: ((Z := _layers(seed + 100 * k, m, X, l, s2)[-1]) @ Z.T / m - K).norm().item()
    small, large = (sum(error(m, depth, k, K) for k in range(12)) / 12 for m in (20, 500))
    printed = at_most(error(40, 20, 0, population_gram(X, s2, depth=20)), 3 * (8 * s2) ** 10, "l = 20")
    measured = math.log(large / small) / math.log(500 / 20)
    return beside(equal(measured, slope, f"exponent {measured:.2f}", rtol=0.35), printed)


@register("ling2023.lemma4", "Lemma 4", extra=2.0, variance=1.5)
@corrected("M as constructed has 2(l−1) + 1 + 1 + d columns, which is 2l + d.")
def lemma_4(seed: int = 0, *, extra: float = 0.0, variance: float = 2.0) -> Outcome:
    """G_ij^(l+1) = relu(Mh)ᵀ relu(Mh'),  hᵀh' = σ_w²G_ij^(l)/m + x_iᵀx_j/d, M of 2l + d columns, N(0, 2).

    Fresh randomness: W is seen through an orthonormal basis of the layers so far. Printed as 2l + d + 2.
    """
    m, l, X = 400, 3, _rows(seed, n=2)
    d = X.shape[1]
    model = GaussianReLU(d, m, S2, dtype=torch.float64, generator=seeded(seed))
    W, U = model.W.detach(), model.U.detach()
    Z = _layers(seed, m, X, l + 1)
    V = torch.linalg.qr(torch.cat(Z[1:l]).T).Q  # (m, 2(l−1))
    p, q = (z - V @ (V.T @ z) for z in Z[l])
    across = q - (p @ q) / (p @ p) * p
    basis = torch.cat([V, (p / p.norm())[:, None], (across / across.norm())[:, None]], dim=1)
    M = torch.cat([(m / S2) ** 0.5 * W @ basis, d**0.5 * U], dim=1)
    h, h2 = (torch.cat([(S2 / m) ** 0.5 * basis.T @ z, x / d**0.5]) for z, x in zip(Z[l], X, strict=True))
    right = all_of(
        equal((M @ h).relu() @ (M @ h2).relu(), Z[l + 1][0] @ Z[l + 1][1], "G^(l+1)"),
        equal(h @ h2, S2 / m * Z[l][0] @ Z[l][1] + X[0] @ X[1] / d, "hᵀh'"),
        equal(M.square().mean(), variance, "variance", rtol=0.1),
        equal(float(M.shape[1]), 2 * l + d + extra, "columns", rtol=0.0),
    )
    return beside(right, equal(float(M.shape[1]), 2.0 * l + d + 2, "columns", rtol=0.0))
