"""Z = relu(Z Wᵀ + X Uᵀ),  ŷ = Z a: what [ling2023] claims about gradients and training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...kernels import tangent_kernel
from ...models import GaussianReLU
from ...theory import certify
from ..framework.claims import Outcome, all_of, at_least, at_most, beside, corrected, equal, refuted, register
from ..framework.small import TIGHT, descend, draw, eye, filled, norm, seeded, sigma_min, vec


def _build(W: Tensor, U: Tensor, a: Tensor) -> GaussianReLU:
    m, d = U.shape
    return filled(GaussianReLU(d, m, dtype=torch.float64), W=W, U=U, a=a)


def _random(seed: int, n: int = 4, d: int = 3, m: int = 6) -> tuple[GaussianReLU, Tensor, Tensor]:
    """A model with ‖W‖ = 0.8, inputs and targets."""
    W = draw(seed, m, m)
    model = _build(0.8 * W / norm(W), draw(seed + 1, m, d), draw(seed + 2, m))
    return model, draw(seed + 3, n, d), draw(seed + 4, n)


def _scalar(w: float, u: float, a: float) -> GaussianReLU:
    """One unit: z = ux/(1 − w) for ux > 0, where norm bounds are attained."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return _build(w * one, u * one, a * one[0])


def _resolvent(model: GaussianReLU, X: Tensor) -> tuple[Tensor, Tensor]:
    """Z (m, n) with samples in columns, as the paper prints, and R = (I_n⊗aᵀ) J⁻¹ D, (n, mn)."""
    Z = model.equilibrium(X, stop=TIGHT).detach().T.contiguous()
    W, n = model.W.detach(), len(X)
    D = torch.diag(vec((W @ Z + model.U.detach() @ X.T > 0).double()))
    J = eye(len(D)) - D @ torch.kron(eye(n), W)
    return Z, torch.kron(eye(n), model.a.detach()[None]) @ torch.linalg.solve(J, D)


@register("ling2023.lemma1", "Lemma 1", edge=1.4)
@corrected("2√2σ_w is the edge of the spectrum: about one draw in seven lies above it, whatever m is.")
def lemma_1(seed: int = 0, *, edge: float = 2.0) -> Outcome:
    """P(‖W‖ > √2σ_w(2 + ε)) ≤ e^{−ε²m/2} for W_ij ~ N(0, 2σ_w²/m): printed with ε = 0 and e^{−Ω(m)}."""
    eps, m, draws = 0.5, 24, 400
    sizes = torch.linalg.matrix_norm(draw(seed, draws, m, m) / m**0.5, 2)  # ‖W‖ in units of √2σ_w
    above = (sizes > edge + eps).double().mean().item()
    right = at_most(above, math.exp(-(eps**2) * m / 2), "share above √2σ_w(2 + ε)")
    return beside(right, at_most((sizes > 2).double().mean().item(), 0.03, "share above 2√2σ_w"))


@register("ling2023.lemma2", "Lemma 2, (3)", half=1.0)
@corrected("R = (a⊗I_n)J⁻¹D multiplies an mn × n matrix by an mn × mn one.")
def lemma_2(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """vec ∇W = (Z⊗I)Rᵀr,  vec ∇U = (X⊗I)Rᵀr,  ∇a = Zr,  R = (I_n⊗aᵀ)J⁻¹D, for the loss ½‖r‖²."""
    model, X, y = _random(seed)
    r = model(X, stop=TIGHT) - y
    gW, gU, ga = torch.autograd.grad(half * r.square().sum(), [model.W, model.U, model.a])
    Z, R = _resolvent(model, X)
    m, r = model.width, r.detach()
    pulled = R.T @ r
    right = all_of(
        equal(torch.kron(Z, eye(m)) @ pulled, vec(gW), "∇W"),
        equal(torch.kron(X.T.contiguous(), eye(m)) @ pulled, vec(gU), "∇U"),
        equal(Z @ r, ga, "∇a"),
    )
    printed = torch.kron(model.a.detach()[:, None], eye(len(X)))
    return beside(right, equal(float(printed.shape[1]), float(R.shape[1]), "columns against rows", 0.0))


@register("ling2023.kernel", "after (4)", inputs=0.9)
def kernel(seed: int = 0, *, inputs: float = 1.0) -> Outcome:
    """H = G + R(G⊗I)Rᵀ + R(XᵀX⊗I)Rᵀ = G + (G + XXᵀ)∘VVᵀ, the tangent kernel."""
    model, X, _ = _random(seed)
    Z, R = _resolvent(model, X)
    G, m = Z.T @ Z, model.width
    H = G + R @ torch.kron(G, eye(m)) @ R.T + inputs * R @ torch.kron(X @ X.T, eye(m)) @ R.T
    return equal(tangent_kernel(model, X).total, H)


@register("ling2023.eq4", "(4)", number=2.1)
def equation_4(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """‖∇L‖² = rᵀHr ≥ 2λ_min(H) L, attained by a residual along the weakest direction of H."""
    model, X, y = _random(seed)
    found = []
    values, vectors = torch.linalg.eigh(tangent_kernel(model, X).total)
    prediction = model(X, stop=TIGHT).detach()
    for target in (y, prediction - vectors[:, 0]):
        loss = (model(X, stop=TIGHT) - target).square().sum() / 2
        size = descend(loss, [model.W, model.U, model.a], 0.0)
        found.append(at_least(size**2, number * values[0].item() * loss.item(), rtol=1e-6))
    return all_of(*found)


@register("ling2023.eq5", "(5)", number=2.1)
def equation_5(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """‖∇L‖² ≥ 2λ_τ L,  λ_τ = λ_min(ZZᵀ) ≤ λ_min(H); attained by a = 0, where H = ZZᵀ."""
    model, X, y = _random(seed, m=15)
    found = []
    for zero in (False, True):
        if zero:
            model.a.data.zero_()
        values, vectors = torch.linalg.eigh((Z := model.equilibrium(X, stop=TIGHT).detach()) @ Z.T)
        target = vectors[:, 0] if zero else y
        loss = (model(X, stop=TIGHT) - target).square().sum() / 2
        size = descend(loss, [model.W, model.U, model.a], 0.0)
        found.append(at_least(size**2, number * values[0].item() * loss.item(), rtol=1e-6))
    return all_of(*found)


def _constants(model: GaussianReLU) -> tuple[float, float, float, float]:
    """c_w, c_u, c_a, ρ_a with δ = 0."""
    w, u, a = norm(model.W), norm(model.U), model.a.detach().norm().item()
    return u * a / (1 - w) ** 2, a / (1 - w), u / (1 - w), a


@register("ling2023.lemma8.sizes", "Lemma 8, (15)-(16)", scale=0.98)
def lemma_8_sizes(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖Z‖_F ≤ c_a‖X‖_F,  ‖∇W‖_F ≤ c_w‖X‖_F‖r‖,  ‖∇U‖_F ≤ c_u‖X‖_F‖r‖,  ‖∇a‖ ≤ c_a‖X‖_F‖r‖.

    All attained by one unit and one sample.
    """
    found = []
    one = torch.ones(1, 1, dtype=torch.float64)
    for model, X, y in ((_scalar(0.8, 2.0, 3.0), one, one[0]), _random(seed)):
        c_w, c_u, c_a, _ = _constants(model)
        Z = model.equilibrium(X, stop=TIGHT)
        r = Z @ model.a - y
        gradients = torch.autograd.grad(r.square().sum() / 2, [model.W, model.U, model.a])
        size = scale * X.norm().item()
        found.append(at_most(Z.norm().item(), c_a * size, rtol=1e-6))
        for g, c in zip(gradients, (c_w, c_u, c_a), strict=True):
            found.append(at_most(g.norm().item(), c * size * r.norm().item(), rtol=1e-6))
    return all_of(*found)


@register("ling2023.lemma8.changes", "Lemma 8, (17)-(18)", weight=0.97, injection=0.97, readout=0.97)
def lemma_8_changes(
    seed: int = 0, *, weight: float = 1.0, injection: float = 1.0, readout: float = 1.0
) -> Outcome:
    """‖ΔZ‖_F ≤ ρ_a⁻¹(c_w‖ΔW‖ + c_u‖ΔU‖)‖X‖_F,  ‖Δŷ‖ ≤ (c_w‖ΔW‖ + c_u‖ΔU‖ + c_a‖Δa‖)‖X‖_F.

    Attained, as the change goes to 0, by one unit moved in W, in U, or in a alone.
    """

    def compare(p: GaussianReLU, q: GaussianReLU, X: Tensor) -> list[Outcome]:
        ends = [_constants(p), _constants(q)]
        w, u, a = max(norm(p.W), norm(q.W)), max(norm(p.U), norm(q.U)), max(e[3] for e in ends)
        c_w, c_u, c_a = u * a / (1 - w) ** 2, a / (1 - w), u / (1 - w)
        moved = weight * c_w * norm(p.W - q.W) + injection * c_u * norm(p.U - q.U)
        dZ = (p.equilibrium(X, stop=TIGHT) - q.equilibrium(X, stop=TIGHT)).norm().item()
        dy = (p(X, stop=TIGHT) - q(X, stop=TIGHT)).norm().item()
        last = readout * c_a * (p.a - q.a).norm().item()
        size = X.norm().item()
        return [
            at_most(dZ, moved / a * size, "ΔZ", rtol=1e-6),
            at_most(dy, (moved + last) * size, "Δŷ", rtol=1e-6),
        ]

    one, at = torch.ones(1, 1, dtype=torch.float64), _scalar(0.5, 2.0, 3.0)
    (free, X, _), (other, _, _) = _random(seed), _random(seed + 10)
    return all_of(
        *compare(at, _scalar(0.5 - 1e-4, 2.0, 3.0), one),
        *compare(at, _scalar(0.5, 1.5, 3.0), one),
        *compare(at, _scalar(0.5, 2.0, 2.0), one),
        *compare(free, other, X),
    )


@register("ling2023.theorem1", "Theorem 1", rate=2.1, share=1.01, pl=2.1)
def theorem_1(seed: int = 0, *, rate: float = 0.5, share: float = 0.5, pl: float = 1.0) -> Outcome:
    """L(τ) ≤ (1 − ηλ₀/2)^τ L(0),  λ_τ ≥ λ₀/2,  ‖∇L‖² ≥ λ₀L, where Condition 1 (with 8 in (9)) holds.

    A feasible instance: two orthogonal rows, a(0) = 0, small targets along the weakest direction of Z(0).
    """
    model = GaussianReLU(10, 60, 0.001, start="zero_readout", dtype=torch.float64, generator=seeded(seed))
    X = eye(10)[:2] * 10**0.5
    left, values, _ = torch.linalg.svd(model.equilibrium(X, stop=TIGHT).detach(), full_matrices=False)
    y, lambda0 = 1e-3 * left[:, -1], values[-1].item() ** 2
    found = certify(model, X, y, theorem="ling2023")
    if found.verdict != "proved":
        raise AssertionError(f"the instance should meet Condition 1: {found.explain()}")
    eta, steps, losses, outcomes = float(found.step_size or 0.0), 12, [], []
    for _ in range(steps + 1):
        Z = model.equilibrium(X, stop=TIGHT)
        loss = (Z @ model.a - y).square().sum() / 2
        losses.append(loss.item())
        outcomes.append(at_least(sigma_min(Z) ** 2, share * lambda0, "λ_τ"))
        size = descend(loss, [model.W, model.U, model.a], eta)
        outcomes.append(at_least(size**2, pl * lambda0 * loss.item(), "PL"))
    fallen = 1 - losses[-1] / losses[0]
    promised = -math.expm1(steps * math.log1p(-rate * eta * lambda0))
    return all_of(at_least(fallen, promised, "relative fall of the loss", rtol=1e-2), *outcomes)


@register("ling2023.eq8", "(8), part (2) of the proof of Theorem 1", number=13.0)
def equation_8(seed: int = 0, *, number: float = 4 * (2 + 2**0.5)) -> Outcome:
    """(4/λ₀)E ≤ (1 − 1/√2)√λ₀ is λ₀^{3/2} ≥ 4(2+√2)E,  E = ρ_a⁻¹(c_w² + c_u²)‖X‖_F²‖r(0)‖: then λ_τ ≥ λ₀/2.

    ‖Z(τ) − Z(0)‖_F ≤ (4/λ₀)E; with equality throughout, λ_τ is λ₀/2 exactly.
    """
    E = draw(seed, 1).abs().item()
    lambda0 = (number * E) ** (2 / 3)
    return at_least((lambda0**0.5 - 4 * E / lambda0) ** 2, lambda0 / 2, "λ_τ at worst")


@register("ling2023.eq9", "(9), last line of the proof of Theorem 1", number=7.0)
@corrected("λ₀ = 4C₂, as (9) is printed: the last line promises 1 − ηλ₀/2 and has 1 − η·0.")
def equation_9(seed: int = 0, *, number: float = 8.0) -> Outcome:
    """λ₀ − 4C₂ ≥ λ₀/2 needs λ₀ ≥ 8C₂,  C₂ = (c_w² + c_u²)‖X‖_F²: printed with 4."""
    C2 = draw(seed, 1).abs().item()
    right = at_least(number * C2 - 4 * C2, number * C2 / 2, "λ₀ = 8C₂")
    return beside(right, at_least(4 * C2 - 4 * C2, 4 * C2 / 2, "λ₀ = 4C₂"))


@register("ling2023.condition1", "Condition 1 under Assumption 1", number=2.1)
@refuted("a ~ N(0, I/m) has norm 1 and exceeds 1/(2√n) at every width, so that (9) fails for every δ.")
def condition_1(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """(9), even with its printed 4, forces ‖a(0)‖ + δ ≤ (1 − ρ_w)/(2√n); attained by one unit with u → ∞.

    λ₀ ≤ ‖Z‖_F²/n ≤ c_a²‖X‖_F²/n, while (9) asks for 4c_w²‖X‖_F² = 4c_a²‖X‖_F² ρ_a²/(1 − ρ_w)².
    """
    w, u = 0.3, 1e4
    # one unit, one sample: u²/(1−w)² = 4a²(u²/(1−w)⁴ + 1/(1−w)²), solved for a
    critical = (u**2 / (1 - w) ** 2 / (4 * (u**2 / (1 - w) ** 4 + 1 / (1 - w) ** 2))) ** 0.5
    right = equal(critical, (1 - w) / number, "largest ‖a‖", rtol=1e-6)
    worst = 0.0
    for m in (50, 200):
        model = GaussianReLU(10, m, 0.001, dtype=torch.float64, generator=seeded(seed))
        X = eye(10)[:2] * 10**0.5
        lambda0 = sigma_min(model.equilibrium(X)) ** 2
        for delta in (1e-4, 1e-2, 0.1, 0.5):
            w, u, a = (norm(p.reshape(len(p), -1)) + delta for p in (model.W, model.U, model.a))
            both = (u * a / (1 - w) ** 2) ** 2 + (a / (1 - w)) ** 2
            worst = max(worst, lambda0 / (4 * both * X.square().sum().item()))
    return beside(right, at_least(worst, 1.0, "best margin of (9)"))
