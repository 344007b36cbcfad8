"""Z = γ Z Sᵀ + Φ,  S = softmax of each column of A,  ŷ = Z Bᵀ: the claims of [kawaguchi2021]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...kernels import tangent_kernel
from ...losses import Logistic
from ...models import LinearEquilibrium
from ...models.affine.linear import d_operator
from ..framework.claims import Outcome, all_of, at_least, at_most, beside, corrected, equal, register
from ..framework.small import descend, draw, eye, filled, norm, vec


def _build(A: Tensor, B: Tensor, gamma: float = 0.8) -> LinearEquilibrium:
    k, m = B.shape
    return filled(LinearEquilibrium(m, k, gamma, dtype=torch.float64), A=A, B=B)


def _random(seed: int, N: int = 6, m: int = 4, k: int = 1) -> tuple[LinearEquilibrium, Tensor, Tensor]:
    return _build(draw(seed, m, m), draw(seed + 1, k, m)), draw(seed + 2, N, m), draw(seed + 3, N, k)


def _parts(model: LinearEquilibrium) -> tuple[Tensor, Tensor, Tensor]:
    """S, Umat and M = B Umat⁻¹."""
    S, U = torch.softmax(model.A.detach(), dim=0), model.umat().detach()
    return S, U, torch.linalg.solve(U, model.B.detach(), left=False)


def _softmax_jacobian(s: Tensor) -> Tensor:
    return torch.diag(s) - torch.outer(s, s)


def _one_norm(M: Tensor) -> float:
    """‖M‖₁, the largest column sum."""
    return M.abs().sum(dim=0).max().item()


@register("kawaguchi2021.proposition1", "Proposition 1", factor=0.97)
def proposition_1(seed: int = 0, *, factor: float = 1.0) -> Outcome:
    """‖z^(l+1) − z^(l)‖₁ ≤ γ^l ‖φ‖₁, whatever A is: the layers converge; attained by φ ≥ 0."""
    model, Phi, _ = _random(seed)
    found = []
    for phi in (Phi, Phi.abs()):
        f, Z = model.affine_map(phi), torch.zeros_like(phi)
        for l in range(12):
            after = f(Z)
            bound = (factor * model.gamma) ** l * phi.abs().sum(dim=1)
            found.append(at_most(((after - Z).abs().sum(dim=1) / bound).max().item(), 1.0, rtol=1e-7))
            Z = after
    return all_of(*found)


@register("kawaguchi2021.norm", "Appendix A.5", scale=0.98)
def one_norm(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖γS‖₁ = γ for every A, since the columns of S sum to 1."""
    model, _, _ = _random(seed)
    big = _build(30 * model.A.detach(), model.B.detach())
    found = [equal(_one_norm(m.weight().detach()), scale * m.gamma) for m in (model, big)]
    return all_of(*found)


@register("kawaguchi2021.inverse", "Appendix A.1", scale=0.98)
def inverse_norm(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖(I − γS)⁻¹‖₁ = 1/(1 − γ), exactly and for every A: each column of the inverse sums to it."""
    model, _, _ = _random(seed)
    inverse = torch.linalg.inv(_parts(model)[1])
    value = scale / (1 - model.gamma)
    columns = equal(inverse.sum(dim=0), value * torch.ones(model.width), "column sums")
    return all_of(equal(_one_norm(inverse), value), columns)


@register("kawaguchi2021.radius", "Theorem 1, ‖B‖₁ < (1 − γ)R", scale=0.98)
def radius(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖B(I − γS)⁻¹‖₁ ≤ ‖B‖₁/(1 − γ): the hypothesis on B keeps M in the radius; attained by B = 1ᵀ."""
    model, _, _ = _random(seed, k=2)
    flat = _build(model.A.detach(), torch.ones(1, model.width))
    return all_of(
        *(
            at_most(_one_norm(_parts(m)[2]), scale * _one_norm(m.B.detach()) / (1 - m.gamma))
            for m in (flat, model)
        )
    )


@register("kawaguchi2021.softmax", "Appendix A.1, J_k", half=0.45)
def softmax_jacobian(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """∂s_k/∂a_k = J_k = diag(s_k) − s_k s_kᵀ,  ‖J_k‖ ≤ ½, attained by s_k = (½, ½)."""
    a = draw(seed, 5)
    J = _softmax_jacobian(torch.softmax(a, dim=0))
    derivative = torch.autograd.functional.jacobian(lambda a: torch.softmax(a, dim=0), a)
    pair = norm(_softmax_jacobian(torch.tensor([0.5, 0.5], dtype=torch.float64)))
    return all_of(equal(J, derivative, "∂s/∂a"), at_most(pair, half, "‖J‖"), at_most(norm(J), half, "‖J‖"))


@register("kawaguchi2021.gradients", "Appendix A.1", gamma_power=2.0, correction=0.9)
def gradients(seed: int = 0, *, gamma_power: float = 1.0, correction: float = 1.0) -> Outcome:
    """∇B = g Umat⁻ᵀ,  ∇A = γ(T − S diag(1ᵀT)),  T = S∘(Mᵀ g Umat⁻ᵀ),  g = ∇L₀(M).

    The columns of ∇A sum to 0, so that those of A keep their sums in training.
    """
    model, Phi, Y = _random(seed, k=2)
    unrolled, W = torch.zeros_like(Phi), model.weight()
    for _ in range(200):
        unrolled = unrolled @ W.T + Phi
    loss = (unrolled @ model.B.T - Y).square().sum()
    gA, gB = torch.autograd.grad(loss, [model.A, model.B])
    S, U, M = _parts(model)
    g = 2 * (Phi @ M.T - Y).T @ Phi
    Q = torch.linalg.solve(U.T, g, left=False)
    T = S * (M.T @ Q)
    formula = model.gamma**gamma_power * (T - correction * S * T.sum(dim=0))
    drift = formula.sum(dim=0).abs().max().item() / formula.abs().max().item()
    return all_of(equal(Q, gB, "∇B"), equal(formula, gA, "∇A"), at_most(drift, 1e-12, "column sums of ∇A"))


def _formed(model: LinearEquilibrium, gamma_power: float = 2.0) -> Tensor:
    """D of (8), km × km."""
    S, U, M = _parts(model)
    inverse = torch.linalg.inv(U)
    total = torch.zeros(M.numel(), M.numel(), dtype=torch.float64)
    for row, s in zip(inverse, S.T, strict=True):
        J = _softmax_jacobian(s)
        inner = eye(len(M)) + model.gamma**gamma_power * M @ J @ J.T @ M.T
        total += torch.kron(torch.outer(row, row), inner)
    return total


@register("kawaguchi2021.theorem1.D", "Theorem 1, (8)", gamma_power=1.0)
def theorem_1_d(seed: int = 0, *, gamma_power: float = 2.0) -> Outcome:
    """d vec(M)/dt = −D vec(∇L₀(M)),  D = Σ_k (Umat⁻ᵀ)_·k(Umat⁻¹)_k· ⊗ (I + γ²MJ_kJ_kᵀMᵀ), along the flow."""
    model, Phi, Y = _random(seed, k=2)
    gA, gB = torch.autograd.grad((model(Phi) - Y).square().sum(), [model.A, model.B])
    h, ends = 1e-6, []
    for sign in (-1, 1):
        ends.append(_parts(_build(model.A - sign * h * gA, model.B - sign * h * gB))[2])
    slope = vec((ends[1] - ends[0]) / (2 * h))
    g = 2 * (Phi @ _parts(model)[2].T - Y).T @ Phi
    D = _formed(model, gamma_power)
    return all_of(
        equal(slope, -D @ vec(g), "dM/dt", rtol=1e-5),
        equal(D @ vec(g), vec(d_operator(model)(g)), "d_operator"),
    )


@register("kawaguchi2021.theorem1.lambda", "Theorem 1, λ_T ≥ 1/(m(1+γ)²)", power=0.5)
def theorem_1_lambda(seed: int = 0, *, power: float = 1.0) -> Outcome:
    """λ_min(D) ≥ 1/(m(1+γ)²) for every A and B; with every column of S near e₁ it is within a factor 4."""
    model, _, _ = _random(seed, k=2)
    A = torch.zeros(100, 100, dtype=torch.float64)
    A[0] = 60.0
    wide = _build(A, torch.zeros(1, 100), 0.99)
    return all_of(
        *(
            at_least(d_operator(m).lambda_min(), 1 / (m.width**power * (1 + m.gamma) ** 2))
            for m in (model, wide)
        )
    )


@register("kawaguchi2021.theorem1", "Theorem 1, (7)", rate=2.2)
def theorem_1(seed: int = 0, *, rate: float = 2.0) -> Outcome:
    """L(T) − L* ≤ (L(0) − L*) e^{−2κλ_T T} under gradient flow, κ = 2σ_min(Φ)² for the square loss.

    Sharp for one feature, where D = (1−γ)⁻² is constant. Followed by small explicit steps.
    """
    found = []
    for m in (1, 3):
        model, Phi, Y = _random(seed, m=m)
        best = (Phi @ torch.linalg.lstsq(Phi, Y).solution - Y).square().sum().item()
        kappa = 2 * torch.linalg.svdvals(Phi)[-1].item() ** 2
        h = 2e-3 / (norm(Phi) ** 2 * norm(torch.linalg.inv(_parts(model)[1])) ** 2 * (1 + norm(model.B) ** 2))
        gaps, least, steps = [], math.inf, 60
        for _ in range(steps + 1):
            loss = (model(Phi) - Y).square().sum()
            gaps.append(loss.item() - best)
            least = min(least, d_operator(model).lambda_min())
            descend(loss, [model.A, model.B], h)
        promised = math.exp(-rate * kappa * least * steps * h)
        found.append(at_most(gaps[-1] / gaps[0], promised, f"m = {m}", rtol=1e-3))
    return all_of(*found)


@register("kawaguchi2021.corollary1", "Corollary 1", number=2.1)
def corollary_1(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """½‖∇L₀(M)‖_F² ≥ κ(L₀(M) − L₀*),  κ = 2σ_min(Φ)², for L₀ = ‖ΦMᵀ − Y‖_F²; σ_min is the min(N, m)-th.

    Attained along the weakest direction, for N > m and for N < m.
    """
    found = []
    for N, m in ((6, 4), (3, 5)):
        Phi, Y = draw(seed, N, m), draw(seed + 1, N, 1)
        _, values, V = torch.linalg.svd(Phi, full_matrices=False)
        best = torch.linalg.lstsq(Phi, Y, driver="gelsd").solution
        floor = (Phi @ best - Y).square().sum()
        for M in (best + V[-1:].T, draw(seed + 2, m, 1)):
            r = Phi @ M - Y
            half = (2 * Phi.T @ r).square().sum().item() / 2
            gap = (r.square().sum() - floor).item()
            found.append(at_least(half, number * values[-1].item() ** 2 * gap, rtol=1e-7))
    return all_of(*found)


@register("kawaguchi2021.corollary2", "Corollary 2", tau=3.0, curvature=1.3)
def corollary_2(seed: int = 0, *, tau: float = 2.0, curvature: float = 1.0) -> Outcome:
    """½‖∇L₀‖² ≥ κ(L₀ − L₀*),  κ = (2τ + ρ(R))σ_min(Φ)²,  ρ(R) = e^{−c}/(1 + e^{−c})²,  c = R max‖φ_i‖₁.

    Logistic loss with τq². Near the minimiser of one sample, with R its own size, it is attained.
    """
    weight, phi = 0.05, 1.5
    loss, y = Logistic(tau=weight), torch.ones(1, 1, dtype=torch.float64)
    value = lambda w: loss(phi * w, y).item()
    w = torch.zeros(1, 1, dtype=torch.float64)
    for _ in range(60):  # Newton
        w = w - loss.gradient(phi * w, y) * phi / (loss.curvature(phi * w, y) * phi**2)
    c = w.abs().item() * phi
    rho = math.exp(-c) / (1 + math.exp(-c)) ** 2
    kappa = (tau * weight + curvature * rho) * phi**2
    found = []
    for share in (0.98, 0.5, -0.9):
        at = share * w
        half = (loss.gradient(phi * at, y) * phi).square().sum().item() / 2
        found.append(at_least(half, kappa * (value(at) - value(w)), rtol=1e-6))
    return all_of(*found)


@register("kawaguchi2021.kernel", "Appendix A.1, tangent kernel", gamma_power=1.0)
def kernel(seed: int = 0, *, gamma_power: float = 2.0) -> Outcome:
    """K = ZZᵀ + γ² Z diag(‖J_jᵀMᵀ‖²) Zᵀ for one output: how ŷ moves along the flow."""
    model, Phi, _ = _random(seed)
    S, U, M = _parts(model)
    Z = torch.linalg.solve(U.T, Phi, left=False)
    sizes = torch.stack([(_softmax_jacobian(s).T @ M.T).square().sum() for s in S.T])
    formula = Z @ Z.T + model.gamma**gamma_power * (Z * sizes) @ Z.T
    weights = (model.A.detach(), model.B.detach())
    predict = lambda A, B: (
        Phi @ torch.linalg.solve(eye(4) - model.gamma * torch.softmax(A, 0), B, left=False)[0]
    )
    JA, JB = torch.autograd.functional.jacobian(predict, weights)
    jacobian = torch.cat([JA.flatten(1), JB.flatten(1)], dim=1)
    return all_of(
        equal(formula, jacobian @ jacobian.T, "JJᵀ"), equal(formula, tangent_kernel(model, Phi).total)
    )


def _trust_region(seed: int, share: float) -> tuple[Tensor, ...]:
    """g, H = ∇²L₀, G, V = δ dM/dt and δ = share·δ̄ of Theorem 2, for the square loss."""
    model, Phi, Y = _random(seed)
    S, U, M = _parts(model)
    sizes = torch.stack([(_softmax_jacobian(s).T @ M.T).square().sum() for s in S.T])
    weights = torch.diag(1 + model.gamma**2 * sizes)  # S_t
    Z = torch.linalg.solve(U.T, Phi, left=False)
    F, H = 2 * Z.T @ Z, 2 * Phi.T @ Phi
    bar = 1 / torch.linalg.eigvalsh(weights.sqrt() @ F @ weights.sqrt())[-1]
    delta = share * bar
    G = U @ (torch.linalg.inv(weights) - delta * F) @ U.T
    g = (2 * (Phi @ M.T - Y).T @ Phi)[0]
    V = -delta * d_operator(model)(g[None])[0]
    return g, H, G, V, delta


@register("kawaguchi2021.theorem2", "Theorem 2, (13)", half=0.6)
def theorem_2(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """g + Hv + 2λGv = 0 at v = δ dM/dt,  λ = 1/(2δ): the flow is a step in a trust region.

    It minimises the quadratic model of L₀ over ‖v‖_G ≤ ‖δ dM/dt‖_G: the residual of the KKT system is 0,
    and no point of the trust region has a lower model value.
    """
    g, H, G, V, delta = _trust_region(seed, 0.5)
    stationary = equal(g + H @ V, -2 * half / delta * G @ V, "stationarity")
    value = lambda v: (g @ v + v @ H @ v / 2).item()
    size = (V @ G @ V).sqrt()
    others = [value(size * v / (v @ G @ v).sqrt()) for v in draw(seed + 9, 50, len(V))]
    return all_of(stationary, at_least(min(others) - value(V), 0.0, "model value elsewhere"))


@register("kawaguchi2021.theorem2.delta", "Theorem 2, δ̄", scale=1.05)
def theorem_2_delta(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """G = Umat(S⁻¹ − δF)Umatᵀ ≻ 0 exactly for δ < δ̄ = 1/λ_max(S^½FS^½)."""
    least = [torch.linalg.eigvalsh(_trust_region(seed, scale * share)[2])[0].item() for share in (0.98, 1.02)]
    return all_of(at_least(least[0], 0.0, "just below"), at_most(least[1], 0.0, "just above"))


@register("kawaguchi2021.appendixB", "Appendix B", scale=0.99)
@corrected("any S that is not doubly stochastic: the rest of (I − γS)⁻¹ − 11ᵀ/(m(1−γ)) grows like 1/(1−γ).")
def appendix_b(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """(I − γS)⁻¹ = π1ᵀ/(1−γ) + a term that stays bounded as γ → 1,  Sπ = π, 1ᵀπ = 1: printed with 11ᵀ/m."""
    S = torch.softmax(draw(seed, 4, 4), dim=0)
    values, vectors = torch.linalg.eig(S)
    pi = vectors[:, values.real.argmax()].real
    right = scale * torch.outer(pi / pi.sum(), torch.ones(4, dtype=torch.float64))
    rest = lambda P, gamma: norm(torch.linalg.inv(eye(4) - gamma * S) - P / (1 - gamma))
    grows = lambda P: rest(P, 0.9999) / rest(P, 0.99)
    flat = torch.full((4, 4), 0.25, dtype=torch.float64)
    return beside(at_most(grows(right), 1.2, "growth of the rest"), at_most(grows(flat), 1.2, "growth"))
