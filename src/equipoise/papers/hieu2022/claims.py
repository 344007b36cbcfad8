"""Z = relu(Z Wᵀ + X Uᵀ),  W = (1−μ)I − AᵀA + B − Bᵀ,  ŷ = Z u: the claims of [hieu2022], chapter 3."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...kernels import tangent_kernel
from ...models import Monotone
from ...theory import certify
from ...theory.hieu2022 import certified_start
from ..framework.claims import Outcome, all_of, at_least, at_most, beside, corrected, equal, refuted, register
from ..framework.small import TIGHT, descend, draw, eye, filled, follow, norm, seeded, sigma_min, vec


def _build(A: Tensor, B: Tensor, U: Tensor, u: Tensor, margin: float) -> Monotone:
    n, d = U.shape
    return filled(Monotone(d, n, margin, dtype=torch.float64), A=A, B=B, U=U, u=u)


def _random(seed: int, N: int = 3, d: int = 3, n: int = 4) -> tuple[Monotone, Tensor, Tensor]:
    return (
        Monotone(d, n, 0.5, dtype=torch.float64, generator=seeded(seed)),
        draw(seed + 1, N, d),
        draw(seed + 2, N),
    )


def _scalar(a: float, U: float, u: float, margin: float = 0.5) -> Monotone:
    """One unit: z = Ux/(μ + a²) for Ux > 0."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return _build(a * one, 0 * one, U * one, u * one[0], margin)


ONE = torch.ones(1, 1, dtype=torch.float64)


def _commutation(n: int) -> Tensor:
    """K vec(M) = vec(Mᵀ)."""
    return torch.stack([vec(unit.reshape(n, n)) for unit in eye(n * n)])


def _resolvent(model: Monotone, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Z (n, N) with samples in columns, as the thesis prints, Q = I − D(I⊗W), and D."""
    Z = model.equilibrium(X, stop=TIGHT).detach().T.contiguous()
    W = model.weight().detach()
    D = torch.diag(vec((W @ Z + model.U.detach() @ X.T > 0).double()))
    return Z, eye(len(D)) - D @ torch.kron(eye(len(X)), W), D


def _features(model: Monotone, X: Tensor, symmetric: float = 1.0, skew: float = 1.0) -> dict[str, Tensor]:
    """The derivatives of vec Z by A, B and U: Q⁻¹D[Zᵀ⊗I]P_A, Q⁻¹D[Zᵀ⊗I]P_B and Q⁻¹D[Xᵀ⊗I]."""
    Z, Q, D = _resolvent(model, X)
    n, left = model.width, torch.linalg.solve(Q, D)
    by_weight, K = left @ torch.kron(Z.T.contiguous(), eye(n)), _commutation(n)
    P_A = -(eye(n * n) + symmetric * K) @ torch.kron(eye(n), model.A.detach().T.contiguous())
    return {
        "A": by_weight @ P_A,
        "B": by_weight @ (eye(n * n) - skew * K),
        "U": left @ torch.kron(X, eye(n)),
    }


def _jacobians(model: Monotone, X: Tensor, skew: float = 1.0) -> dict[str, Tensor]:
    """The derivatives of ŷ = (I_N⊗uᵀ) vec Z by A, B, U and u."""
    read = torch.kron(eye(len(X)), model.u.detach()[None])
    hidden = {name: read @ J for name, J in _features(model, X, skew=skew).items()}
    return hidden | {"u": model.equilibrium(X, stop=TIGHT).detach()}


@register("hieu2022.lemma3.2.2", "Lemmas 3.2.1-3.2.2", symmetric=-1.0, skew=0.0)
def lemma_3_2_2(seed: int = 0, *, symmetric: float = 1.0, skew: float = 1.0) -> Outcome:
    """∂Z/∂A = Q⁻¹D[Zᵀ⊗I]P_A,  P_A = −(I + K)(I⊗Aᵀ),  P_B = I − K,  ∂Z/∂U = Q⁻¹D[Xᵀ⊗I], K vec(M) = vec(Mᵀ)."""
    model, X, _ = _random(seed)
    formula = _features(model, X, symmetric, skew)
    rows = [
        torch.autograd.grad(z, [model.A, model.B, model.U], retain_graph=True)
        for z in model.equilibrium(X, stop=TIGHT).flatten()  # samples in rows: vec of the columns
    ]
    found = (torch.stack([vec(g) for g in column]) for column in zip(*rows, strict=True))
    return all_of(*(equal(J, formula[k], f"∂Z/∂{k}", rtol=1e-6) for k, J in zip("ABU", found, strict=True)))


_ORDER = "(uᵀ⊗I_N) in place of (I_N⊗uᵀ): it sums other entries of vec Z than ŷ = Zᵀu does."


@register("hieu2022.lemma3.2.3", "Lemma 3.2.3", half=1.0)
@corrected(_ORDER)
def lemma_3_2_3(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """∇L = rᵀ(I_N⊗uᵀ) ∂vec Z for A, B and U,  ∇u = Zr, for the loss ½‖r‖²: printed with (uᵀ⊗I_N)."""
    model, X, y = _random(seed)
    r = model(X, stop=TIGHT) - y
    gradients = torch.autograd.grad(half * r.square().sum(), [model.A, model.B, model.U, model.u])
    J, r = _jacobians(model, X), r.detach()
    right = all_of(
        *(
            equal(J[k].T @ r, vec(g) if g.ndim == 2 else g, f"∇{k}", rtol=1e-6)
            for k, g in zip("ABUu", gradients, strict=True)
        )
    )
    other = torch.kron(model.u.detach()[None], eye(len(X))) @ _features(model, X)["U"]
    return beside(right, equal(other.T @ r, vec(gradients[2]), "∇U", rtol=1e-3))


@register("hieu2022.proposition4", "Proposition 4, (3.7)", skew=0.5)
@corrected(_ORDER)
def proposition_4(seed: int = 0, *, skew: float = 1.0) -> Outcome:
    """dŷ/dt = −K r,  K = J_AJ_Aᵀ + J_BJ_Bᵀ + J_UJ_Uᵀ + ZᵀZ,  J = (I_N⊗uᵀ)Q⁻¹D[…]: the tangent kernel."""
    model, X, _ = _random(seed)
    J = _jacobians(model, X, skew)
    found = tangent_kernel(model, X)
    right = all_of(*(equal(found.blocks[k], J[k] @ J[k].T, f"K_{k}", rtol=1e-6) for k in J))
    printed = torch.kron(model.u.detach()[None], eye(len(X))) @ _features(model, X)["U"]
    return beside(right, equal(found.blocks["U"], printed @ printed.T, "K_U", rtol=1e-3))


@register("hieu2022.kernel_blocks", "Proposition 4, K_A and K_B", cross=1.0)
def kernel_blocks(seed: int = 0, *, cross: float = 2.0) -> Outcome:
    """K_B = 2PPᵀ∘ZZᵀ − 2C∘Cᵀ,  K_A = PaPaᵀ∘ZZᵀ + PaZaᵀ∘Cᵀ + ZaPaᵀ∘C + ZaZaᵀ∘PPᵀ, with C = PZᵀ."""
    model, X, _ = _random(seed)
    Z = model.equilibrium(X, stop=TIGHT).detach()
    P, A = model.adjoint(Z, X, stop=TIGHT), model.A.detach()
    J = _jacobians(model, X)
    C, Pa, Za = P @ Z.T, P @ A.T, Z @ A.T
    K_B = 2 * (P @ P.T) * (Z @ Z.T) - cross * C * C.T
    K_A = (Pa @ Pa.T) * (Z @ Z.T) + (Za @ Za.T) * (P @ P.T)
    K_A += cross / 2 * ((Pa @ Za.T) * C.T + (Za @ Pa.T) * C)
    return all_of(
        equal(K_B, J["B"] @ J["B"].T, "K_B", rtol=1e-6), equal(K_A, J["A"] @ J["A"].T, "K_A", rtol=1e-6)
    )


@register("hieu2022.lemma3.3.2", "Lemma 3.3.2", scale=0.97)
@corrected("two units, the second inactive, B − Bᵀ = 10 off the diagonal: ‖(I⊗uᵀ)Q⁻¹‖ is ten times ‖u‖/μ.")
def lemma_3_3_2(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖(I_N⊗uᵀ) Q⁻¹D‖ ≤ ‖u‖/μ, attained where A = 0: printed without the D, and false."""
    found = []
    B, U = torch.tensor([[0.0, 10.0], [0.0, 0.0]], dtype=torch.float64), torch.tensor([[1.0], [-1.0]])
    attained = _build(torch.zeros(2, 2), B, U, torch.tensor([1.0, 0.0]), 0.5)
    printed = 0.0
    for model, X in ((attained, ONE), _random(seed)[:2]):
        _, Q, D = _resolvent(model, X)
        left = torch.kron(eye(len(X)), model.u.detach()[None])
        bound = model.u.detach().norm().item() / model.margin
        found.append(at_most(norm(left @ torch.linalg.solve(Q, D)), scale * bound, "with D"))
        printed = max(printed, norm(left @ torch.linalg.inv(Q)) / bound)
    return beside(all_of(*found), at_most(printed, 1.0, "without D"))


@register("hieu2022.lemma3.3.3", "Lemma 3.3.3", scale=0.97)
def lemma_3_3_3(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖Z‖_F ≤ ‖X‖_F‖U‖/μ, attained by A = B = 0, U = I and X ≥ 0."""
    model, X, _ = _random(seed)
    free = at_most(
        model.equilibrium(X, stop=TIGHT).norm().item(),
        scale * X.norm().item() * norm(model.U) / 0.5,
        "random",
    )
    plain = _build(torch.zeros(3, 3), torch.zeros(3, 3), eye(3), torch.zeros(3), 0.5)
    attained = plain.equilibrium(X.abs(), stop=TIGHT).norm().item()
    return all_of(at_most(attained, scale * X.norm().item() / 0.5, "attained", rtol=1e-6), free)


@register("hieu2022.lemma3.3.4", "Lemma 3.3.4, (3.15)", weight=0.97, injection=0.97, readout=0.97)
def lemma_3_3_4(
    seed: int = 0, *, weight: float = 1.0, injection: float = 1.0, readout: float = 1.0
) -> Outcome:
    """‖ΔZ‖_F ≤ ‖X‖_F(‖ΔU‖/μ + ‖ΔW‖‖U‖/μ²),  ‖Δŷ‖ ≤ ‖u‖‖ΔZ‖ bound + ‖X‖_F‖U‖‖Δu‖/μ.

    Attained, as the change goes to 0, by one unit with A = 0 moved in U, in W, or in u alone.
    """

    def compare(p: Monotone, q: Monotone, X: Tensor) -> list[Outcome]:
        mu, size = p.margin, X.norm().item()
        moved = injection * norm(p.U - q.U) / mu
        moved += weight * norm(p.weight() - q.weight()) * norm(q.U) / mu**2
        last = readout * norm(q.U) * (p.u - q.u).norm().item() / mu
        dZ = (p.equilibrium(X, stop=TIGHT) - q.equilibrium(X, stop=TIGHT)).norm().item()
        dy = (p(X, stop=TIGHT) - q(X, stop=TIGHT)).norm().item()
        return [
            at_most(dZ, size * moved, "ΔZ", rtol=1e-3),
            at_most(dy, size * (p.u.norm().item() * moved + last), "Δŷ", rtol=1e-3),
        ]

    at = _scalar(0.0, 2.0, 3.0)
    (free, X, _), (other, _, _) = _random(seed), _random(seed + 10)
    return all_of(
        *compare(at, _scalar(0.0, 1.5, 3.0), ONE),
        *compare(at, _scalar(0.01, 2.0, 3.0), ONE),
        *compare(at, _scalar(0.0, 2.0, 2.0), ONE),
        *compare(free, other, X),
    )


@register("hieu2022.lemma3.3.6", "Lemma 3.3.6", product=1.9, skew=1.9)
def lemma_3_3_6(seed: int = 0, *, product: float = 2.0, skew: float = 2.0) -> Outcome:
    """‖ΔW‖ ≤ 2‖A‖‖ΔA‖ + ‖ΔA‖² + 2‖ΔB‖, attained by A and ΔA multiples of I, and by a skew ΔB."""
    A, B = draw(seed, 3, 3), draw(seed + 1, 3, 3)
    zero = torch.zeros(3, 3, dtype=torch.float64)
    turn = torch.zeros(3, 3, dtype=torch.float64)
    turn[0, 1], turn[1, 0] = 1.0, -1.0
    found = []
    for at, dA, dB in ((2 * eye(3), 0.1 * eye(3), zero), (A, zero, turn), (A, draw(seed + 2, 3, 3), B)):
        W = lambda A, B: -A.T @ A + B - B.T
        bound = product * norm(at) * norm(dA) + norm(dA) ** 2 + skew * norm(dB)
        found.append(at_most(norm(W(at + dA, dB) - W(at, zero)), bound))
    return all_of(*found)


@register("hieu2022.lemma3.3.7", "Lemma 3.3.7", scale=0.98)
def lemma_3_3_7(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖∇U‖_F ≤ ‖X‖_F‖r‖‖u‖/μ,  ‖∇u‖ ≤ ‖X‖_F‖r‖‖U‖/μ,  ‖∇A‖_F ≤ 2‖X‖_F‖r‖‖U‖‖u‖‖A‖/μ²,  ∇B without ‖A‖.

    All but the last are attained by one unit as A goes to 0.
    """
    found = []
    for model, X, y in ((_scalar(1e-3, 2.0, 3.0), ONE, ONE[0]), _random(seed)):
        r = model(X, stop=TIGHT) - y
        gA, gB, gU, gu = torch.autograd.grad(r.square().sum() / 2, [model.A, model.B, model.U, model.u])
        a, U, u, mu = norm(model.A), norm(model.U), model.u.detach().norm().item(), model.margin
        size = scale * X.norm().item() * r.norm().item()
        found += [
            at_most(gU.norm().item(), size * u / mu, rtol=1e-4),
            at_most(gu.norm().item(), size * U / mu, rtol=1e-4),
            at_most(gA.norm().item(), 2 * size * U * u * a / mu**2, rtol=1e-4),
            at_most(gB.norm().item(), 2 * size * U * u / mu**2, rtol=1e-4),
        ]
    return all_of(*found)


def _follow(seed: int, kind: str) -> tuple[float, float]:
    """A certified start trained for a few steps: the exponent in units of λ₀², and the least σ_N(Z)/λ₀."""
    model, X, _ = _random(seed, N=2, d=4, n=10)
    left = torch.linalg.svd(model.equilibrium(X, stop=TIGHT).detach(), full_matrices=False).U
    y = 0.1 * left[:, -1].clone()
    radii = certified_start(model, X, y, kind="flow" if kind == "flow" else "descent")
    found = certify(model, X, y, theorem=f"hieu2022.{kind}", radii=radii)
    if found.verdict != "proved":
        raise AssertionError(f"the instance should meet the conditions: {found.explain()}")
    lambda0 = sigma_min(model.equilibrium(X, stop=TIGHT))
    h = 0.02 / lambda0**2 if kind == "flow" else float(found.step_size or 0.0)
    steps = 12
    losses, least = follow(model, X, y, h, steps)
    exponent = -math.log1p(losses[-1] / losses[0] - 1) / (h * steps * lambda0**2)
    return exponent, min(least) / lambda0


@register("hieu2022.theorem3.3.1", "Theorem 3.3.1, (3.8)-(3.9)", rate=2.1, share=1.01)
def theorem_3_3_1(seed: int = 0, *, rate: float = 0.5, share: float = 0.5) -> Outcome:
    """L(t) ≤ e^{−λ₀²t/2} L(0) and σ_N(Z(t)) ≥ λ₀/2 under gradient flow, where Condition 1 holds.

    Followed by explicit steps of a fiftieth of the time scale 1/λ₀², on a certified start.
    """
    exponent, least = _follow(seed, "flow")
    return all_of(at_least(exponent, rate, "exponent in units of λ₀²"), at_least(least, share, "σ_N(Z)/λ₀"))


@register("hieu2022.eq3.17", "(3.17), Proposition 6", number=15.0)
@corrected("μ = ½: λ₀ as printed (3.17) allows leaves room for ‖Z(k) − Z(0)‖ above λ₀/2.")
def equation_3_17(seed: int = 0, *, number: float = 16.0) -> Outcome:
    """λ₀³ ≥ 16‖X‖_F²r₀(ū/μ²)[1 + (6Ū²ā² + 4Ū²)/μ²] gives ‖Z(k) − Z(0)‖_F ≤ λ₀/2: printed with 8 and no μ.

    From ‖ΔU‖ ≤ 8‖X‖_F r₀ū/(μλ₀²), ‖ΔW‖ ≤ 16(3ā² + 2)‖X‖_F r₀Ūū/(μ²λ₀²) and Lemma 3.3.4, with equality.
    """
    X, r, a, U, u = (draw(seed, 5).abs() + 0.1).tolist()
    mu = 0.5

    def moved(lambda0: float) -> float:
        dU = 8 * X * r * u / (mu * lambda0**2)
        dW = 16 * (3 * a**2 + 2) * X * r * U * u / (mu**2 * lambda0**2)
        return X * (dU / mu + dW * U / mu**2)

    least = (number * X**2 * r * u / mu**2 * (1 + (6 * (U * a) ** 2 + 4 * U**2) / mu**2)) ** (1 / 3)
    printed = (8 * X**2 * r * u * (1 + 6 * (U * a) ** 2 + 4 * U**2)) ** (1 / 3)
    right = at_most(moved(least), least / 2, "‖ΔZ‖_F")
    return beside(right, at_most(moved(printed), printed / 2, "‖ΔZ‖_F"))


@register("hieu2022.eq3.18", "(3.18)", scale=0.95)
@refuted(
    "A = B = 0 and U = X = I, where λ₀ is largest: with its powers of μ restored, (3.18) has margin 1/(20N)."
)
def equation_3_18(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """λ₀² ≤ ‖X‖_F²‖U‖²/(μ²N), attained: (3.18), which needs 20 Ū²‖X‖_F²/μ² at least, can never hold."""
    plain = _build(torch.zeros(3, 3), torch.zeros(3, 3), eye(3), torch.zeros(3), 0.5)
    found, best = [], 0.0
    for model, X in ((plain, eye(3)), _random(seed)[:2]):
        lambda0 = sigma_min(model.equilibrium(X, stop=TIGHT))
        top = X.square().sum().item() * norm(model.U) ** 2 / model.margin**2
        found.append(at_most(lambda0**2, scale * top / len(X), "λ₀²", rtol=1e-6))
        best = max(best, lambda0**2 / (20 * top))
    return beside(all_of(*found), at_least(best, 1.0, "best margin of (3.18)"))


@register("hieu2022.theorem3.3.5", "Theorem 3.3.5", eta=1e-4)
@refuted("n = d = N = 1, A = B = 0, U = X = 1, u = 0, y = .002, μ = .01, R = (10⁻³, 1, 1, ½), η = 4·10⁻⁴.")
def theorem_3_3_5(seed: int = 0, *, eta: float = 4e-4) -> Outcome:
    """L(1) = 9 L(0) where (3.16)-(3.18) and the step size hold as printed: r ← (1 − ηz²) r, z = 1/μ = 100.

    Condition 2 repaired allows no such step.
    """
    model, y = _scalar(0.0, 1.0, 0.0, margin=0.01), torch.tensor([0.002], dtype=torch.float64)
    l0, r0, mu, a, U, u = 100.0, 0.002, 0.01, 1e-3, 2.0, 0.5
    top = max(2 * U * u * a / (mu**2 * 1e-3), 2 * U * u / mu**2, u / mu, U / (mu * 0.5))
    C = u**2 + 4 * (u * U * a) ** 2 + 4 * (u * U) ** 2 + U**2
    conditions = [
        at_least(l0**2, 8 * r0 * top, "(3.16)"),
        at_least(l0**3, 8 * r0 * u * (1 + 6 * (U * a) ** 2 + 4 * U**2), "(3.17)"),
        at_least(l0**2, 20 * C, "(3.18)"),
        at_most(eta, min(4 / l0**2, 1 / C, 1 / (2 * l0 * U * u * a), 1 / (6 * (l0 * u * a) ** 2)), "η"),
    ]
    loss = (model(ONE, stop=TIGHT) - y).square().sum() / 2
    before = loss.item()
    descend(loss, [model.A, model.B, model.U, model.u], eta)
    after = ((model(ONE, stop=TIGHT) - y).square().sum() / 2).item()
    grown = equal(after / before, 9.0, f"L(1)/L(0) = {after / before:.3f}", rtol=1e-3)
    return beside(all_of(*conditions, grown), at_most(after / before, 1 - eta * l0**2 / 4, "L(1)/L(0)"))


@register("hieu2022.condition2", "Condition 2, repaired", rate=2.1, share=1.01)
@corrected("the instance of hieu2022.theorem3.3.5 meets it as printed, and its loss grows.")
def condition_2(seed: int = 0, *, rate: float = 0.25, share: float = 0.5) -> Outcome:
    """L(k+1) ≤ (1 − ηλ₀²/4) L(k) under (3.16), (3.17) with its powers of μ, λ₀² ≥ 16C₁₃, and a smaller η."""
    exponent, least = _follow(seed, "descent")
    right = all_of(
        at_least(exponent, rate, "exponent in units of ηλ₀²", rtol=1e-3), at_least(least, share, "σ_N(Z)/λ₀")
    )
    return replace(right, printed=theorem_3_3_5(seed).printed)
