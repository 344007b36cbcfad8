"""Z = relu(γ Z A + relu(X W)),  ŷ = Z b: the claims of [gao2022]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...kernels import tangent_kernel
from ...models import ScaledReLU
from ...theory import certify
from ..framework.claims import Outcome, all_of, at_least, at_most, beside, corrected, equal, register
from ..framework.small import TIGHT, descend, draw, eye, filled, follow, norm, seeded, sigma_min, vec


def _model(W: Tensor, A: Tensor, b: Tensor, gamma: float) -> ScaledReLU:
    d, m = W.shape
    return filled(ScaledReLU(d, m, gamma, dtype=torch.float64), W=W, A=A, b=b)


def _random(
    seed: int, N: int = 4, d: int = 3, m: int = 5, gamma: float = 0.5
) -> tuple[ScaledReLU, Tensor, Tensor]:
    """A well-posed model with ‖A‖ = 1.6, inputs and targets."""
    A = draw(seed, m, m)
    A = 1.6 * A / norm(A)
    return _model(draw(seed + 1, d, m), A, draw(seed + 2, m), gamma), draw(seed + 3, N, d), draw(seed + 4, N)


def _kronecker(model: ScaledReLU, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Z, and D, E, Q of Lemma 3.2 at size Nm."""
    Z, Phi = model.equilibrium(X, stop=TIGHT).detach(), model.injection(X).detach()
    D = torch.diag(vec((model.gamma * Z @ model.A.detach() + Phi > 0).double()))
    E = torch.diag(vec((X @ model.W.detach() > 0).double()))
    Q = eye(len(D)) - model.gamma * D @ torch.kron(model.A.detach().T.contiguous(), eye(len(X)))
    return Z, D, E, Q


def _jacobians(model: ScaledReLU, X: Tensor, gamma_power: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Z, M and Π of (11)-(13): the derivatives of ŷ in b, A, W."""
    Z, D, E, Q = _kronecker(model, X)
    left = torch.kron(model.b.detach()[None], eye(len(X))) @ torch.linalg.solve(Q, D)  # (bᵀ⊗I) Q⁻¹ D
    M = model.gamma**gamma_power * left @ torch.kron(eye(model.width), Z)
    return Z, M, left @ E @ torch.kron(eye(model.width), X)


@register("gao2022.lemma3.1.contraction", "Lemma 3.1", factor=0.95)
def lemma_3_1_contraction(seed: int = 0, *, factor: float = 1.0) -> Outcome:
    """‖Z^{l+1} − Z^l‖_F ≤ γ₀^l ‖Φ‖_F with γ₀ = γ‖A‖ < 1: the layers converge to one equilibrium.

    Attained by A = ‖A‖ I; checked there and for a random A.
    """
    found = []
    for diagonal in (True, False):
        model, X, _ = _random(seed)
        if diagonal:
            filled(model, A=1.6 * eye(model.width))
        f = model.affine_map(X)
        Z, q = torch.zeros(len(X), model.width, dtype=X.dtype), factor * model.gamma * 1.6
        for l in range(12):
            after = f(Z)
            bound = q**l * model.injection(X).norm().item()
            found.append(at_most((after - Z).norm().item(), bound, rtol=1e-7))
            Z = after
    return all_of(*found)


@register("gao2022.lemma3.1.size", "Lemma 3.1", scale=0.97)
def lemma_3_1_size(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖Z‖_F ≤ ‖Φ‖_F/(1 − γ₀), attained by A = ‖A‖ I."""
    model, X, _ = _random(seed)
    free = model.equilibrium(X, stop=TIGHT).norm().item()
    filled(model, A=1.6 * eye(model.width))
    bound = scale * model.injection(X).norm().item() / (1 - model.gamma * 1.6)
    attained = model.equilibrium(X, stop=TIGHT).norm().item()
    return all_of(at_most(free, bound, "random A"), at_most(attained, bound, "A = ‖A‖ I", rtol=1e-6))


@register("gao2022.lemma3.2.invertible", "Lemma 3.2, (6)", scale=1.02)
@corrected("A = ‖A‖ I with every unit active: Q = (1 − γ₀) I, whose least eigenvalue is not above 1 − γ₀.")
def lemma_3_2_invertible(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """σ_min(I − γ D (Aᵀ⊗I)) ≥ 1 − γ₀: printed for λ_min, and with a strict sign."""
    model, X, _ = _random(seed)
    free = sigma_min(_kronecker(model, X)[3])
    filled(model, A=1.6 * eye(model.width), W=model.W.abs())
    Q, bound = _kronecker(model, X.abs())[3], 1 - model.gamma * 1.6
    least = torch.linalg.eigvalsh((Q + Q.T) / 2)[0].item()
    strict = Outcome(least > bound * (1 + 1e-9), least, bound, least / bound, "λ_min > 1 − γ₀")
    attained = at_least(sigma_min(Q), scale * bound, "σ_min, attained")
    return beside(all_of(at_least(free, scale * bound, "random A"), attained), strict)


@register("gao2022.lemma3.2.gradients", "Lemma 3.2, (7)-(9)", gamma_power=0.0)
def lemma_3_2_gradients(seed: int = 0, *, gamma_power: float = 1.0) -> Outcome:
    """∇W = [DE(I⊗X)]ᵀQ⁻ᵀ(bᵀ⊗I)ᵀr,  ∇A = γ[D(I⊗Z)]ᵀQ⁻ᵀ(bᵀ⊗I)ᵀr,  ∇b = Zᵀr, as automatic differentiation."""
    model, X, y = _random(seed)
    loss = (model(X, stop=TIGHT) - y).square().sum() / 2
    gW, gA, gb = torch.autograd.grad(loss, [model.W, model.A, model.b])
    Z, M, Pi = _jacobians(model, X, gamma_power)
    r = (Z @ model.b - y).detach()
    return all_of(equal(Pi.T @ r, vec(gW), "∇W"), equal(M.T @ r, vec(gA), "∇A"), equal(Z.T @ r, gb, "∇b"))


@register("gao2022.lemma4.1.kernel", "Lemma 4.1, (10)-(13)", gamma_power=1.5)
def lemma_4_1_kernel(seed: int = 0, *, gamma_power: float = 1.0) -> Outcome:
    """dŷ/dt = −H r,  H = ZZᵀ + MMᵀ + ΠΠᵀ, along the gradient flow; H is the tangent kernel."""
    model, X, y = _random(seed)
    parameters = [model.W, model.A, model.b]
    r = (model(X, stop=TIGHT) - y).detach()
    gradients = torch.autograd.grad((model(X, stop=TIGHT) - y).square().sum() / 2, parameters)
    ends, h = [], 1e-5
    for sign in (-1, 1):
        with torch.no_grad():
            W, A, b = (p - sign * h * g for p, g in zip(parameters, gradients, strict=True))
        ends.append(_model(W, A, b, model.gamma)(X, stop=TIGHT).detach())
    H = sum(J @ J.T for J in _jacobians(model, X, gamma_power))
    assert isinstance(H, Tensor)
    slope = (ends[1] - ends[0]) / (2 * h)
    kernel = tangent_kernel(model, X).total
    return all_of(equal(slope, -H @ r, "dŷ/dt", rtol=1e-5), equal(kernel, H, "tangent kernel"))


@register("gao2022.lemma4.1.rate", "after Lemma 4.1", rate=2.1)
def lemma_4_1_rate(seed: int = 0, *, rate: float = 2.0) -> Outcome:
    """L(t) ≤ e^{−2λ₀t} L(0) where λ_min(H) ≥ λ₀: printed without the 2, which is true and half as much.

    One sample and a small residual keep H constant, so that the 2 is sharp.
    """
    model, X, _ = _random(seed, N=1)
    y = model(X, stop=TIGHT).detach() - 1e-6
    losses, kernels, h = [], [], 0.0
    for _ in range(8):
        loss = (model(X, stop=TIGHT) - y).square().sum() / 2
        losses.append(loss.item())
        kernels.append(tangent_kernel(model, X).total.item())
        h = h or 1e-3 / kernels[0]
        descend(loss, [model.W, model.A, model.b], h)
    measured = -math.log(losses[-1] / losses[0]) / (7 * h * min(kernels))
    return at_least(measured, rate, "exponent in units of λ₀", rtol=1e-2)


def _contrary(seed: int) -> tuple[ScaledReLU, Tensor]:
    """A = −‖A‖ I with every unit active: Q = (1 + γ₀) I, the far end of its spectrum."""
    X = draw(seed, 3, 4).abs() + eye(4)[:3]
    return _model(draw(seed + 1, 4, 5).abs(), -1.6 * eye(5), draw(seed + 2, 5), 0.5), X


_CONTRARY = "A = −‖A‖ I with every unit active: Q = (1 + γ₀) I, and the printed 1/(1 − γ₀) is too much."


@register("gao2022.sigma_min.M", "after Lemma 4.1", scale=1.05)
@corrected(_CONTRARY)
def bound_on_M(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """σ_min(M) ≥ γ‖b‖ min D σ_min(Z)/(1 + γ₀): printed with 1/(1 − γ₀)."""
    model, X = _contrary(seed)
    Z, M, _ = _jacobians(model, X)
    top = model.gamma * model.b.norm().item() * sigma_min(Z)
    right = at_least(sigma_min(M), scale * top / (1 + 0.8), "1/(1 + γ₀)", rtol=1e-6)
    return beside(right, at_least(sigma_min(M), top / (1 - 0.8), "1/(1 − γ₀)"))


@register("gao2022.sigma_min.Pi", "after Lemma 4.1", scale=1.05)
@corrected(_CONTRARY)
def bound_on_Pi(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """σ_min(Π) ≥ ‖b‖ min D min E σ_min(X)/(1 + γ₀): printed with 1/(1 − γ₀)."""
    model, X = _contrary(seed)
    Pi = _jacobians(model, X)[2]
    top = model.b.norm().item() * sigma_min(X)
    right = at_least(sigma_min(Pi), scale * top / (1 + 0.8), "1/(1 + γ₀)", rtol=1e-6)
    return beside(right, at_least(sigma_min(Pi), top / (1 - 0.8), "1/(1 − γ₀)"))


def _certified(seed: int, theorem: str) -> tuple[ScaledReLU, Tensor, Tensor, float, float]:
    """A start of §5.1 that meets the conditions, y along the weakest direction of Z, α₀ and the step."""
    model = ScaledReLU(4, 24, init="section5.1", beta=3e3, dtype=torch.float64, generator=seeded(seed))
    X = draw(seed, 3, 4)
    left, values, _ = torch.linalg.svd(model.equilibrium(X, stop=TIGHT).detach(), full_matrices=False)
    y = left[:, -1].clone()
    found = certify(model, X, y, theorem=theorem, C=(1.0, 1.0, 1.0))
    if found.verdict != "proved":
        raise AssertionError(f"the instance should meet the conditions: {found.explain()}")
    return model, X, y, values[-1].item(), float(found.step_size or 0.0)


@register("gao2022.theorem4.2", "Theorem 4.2, (14)-(15)", rate=2.1, share=1.01)
def theorem_4_2(seed: int = 0, *, rate: float = 0.5, share: float = 0.5) -> Outcome:
    """L(t) ≤ e^{−α₀²t/2} L(0) and σ_min(Z(t)) ≥ α₀/2 under gradient flow, where (14) and (15) hold.

    Followed by explicit steps of a fiftieth of the time scale 1/α₀², on a certified start.
    """
    model, X, y, alpha, _ = _certified(seed, "gao2022.flow")
    h, steps = 0.02 / alpha**2, 25
    losses, least = follow(model, X, y, h, steps)
    measured = -math.log(losses[-1] / losses[0]) / (alpha**2 * h * steps)
    return all_of(
        at_least(measured, rate, "exponent in units of α₀²"), at_least(min(least), share * alpha, "σ_min(Z)")
    )


@register("gao2022.theorem4.4", "Theorem 4.4, (17)-(20)", rate=2.1, share=1.01)
def theorem_4_4(seed: int = 0, *, rate: float = 0.25, share: float = 0.5) -> Outcome:
    """L(k) ≤ (1 − ηα₀²/4)^k L(0) and σ_min(Z(k)) ≥ α₀/2 under descent, where (17)-(20) hold."""
    model, X, y, alpha, eta = _certified(seed, "gao2022.descent")
    steps = 15
    losses, least = follow(model, X, y, eta, steps)
    fallen = (losses[0] - losses[-1]) / losses[0]
    promised = -math.expm1(steps * math.log1p(-rate * eta * alpha**2))
    return all_of(
        at_least(fallen, promised, "relative fall of the loss", rtol=1e-3),
        at_least(min(least), share * alpha, "σ_min(Z)"),
    )


@register("gao2022.lemma4.3", "Lemma 4.3, (16)", weight=0.97, injection=0.97)
def lemma_4_3(seed: int = 0, *, weight: float = 1.0, injection: float = 1.0) -> Outcome:
    """‖Z_a − Z_b‖_F ≤ ‖X‖_F/(1−γ₀) [γ₀/(1−γ₀) λ₁/λ₂ ‖A_a − A_b‖ + ‖W_a − W_b‖].

    Printed for the operator norm; the proof gives Frobenius. Attained, as the difference goes to 0, by one
    unit and one sample, in A alone and in W alone; checked for random pairs too.
    """

    def compare(a: ScaledReLU, b: ScaledReLU, X: Tensor, detail: str) -> Outcome:
        l1 = max(norm(a.W), norm(b.W))
        l2 = max(norm(a.A), norm(b.A))
        g = a.gamma * l2
        change = (a.equilibrium(X, stop=TIGHT) - b.equilibrium(X, stop=TIGHT)).norm().item()
        inside = weight * g / (1 - g) * l1 / l2 * norm(a.A - b.A) + injection * norm(a.W - b.W)
        return at_most(change, X.norm().item() / (1 - g) * inside, detail, rtol=1e-6)

    one = torch.ones(1, 1, dtype=torch.float64)
    unit = lambda w, a: _model(w * one, a * one, one[0], 0.5)
    (free, X, _), (other, _, _) = _random(seed), _random(seed + 10)
    return all_of(
        compare(unit(2.0, 1.2), unit(2.0, 1.2 - 1e-4), one, "in A alone"),
        compare(unit(2.0, 1.2), unit(1.5, 1.2), one, "in W alone"),
        compare(free, other, X, "random"),
    )


@register("gao2022.eq38", "(38)", scale=0.98)
@corrected("X = I and W a rotation by 45°: ‖relu(XW)‖ = 1.144 > 1 = ‖W‖‖X‖.")
def equation_38(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖relu(XW)‖_F ≤ ‖W‖ ‖X‖_F: printed for operator norms."""
    R = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / 2**0.5
    printed = at_most(norm(R.relu()), norm(R), "operator norms")
    X = draw(seed, 4, 3).abs()  # W = I: nothing is cut off, and the bound is attained
    W = draw(seed + 1, 3, 5)
    free = at_most((X @ W).relu().norm().item(), scale * norm(W) * X.norm().item(), "random")
    return beside(all_of(at_most(X.relu().norm().item(), scale * X.norm().item(), "attained"), free), printed)


@register("gao2022.gradient_bounds", "(36)-(42)", scale=0.98)
def gradient_bounds(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖∇b‖ ≤ λ₁‖X‖_F‖r‖/(1−γ₀),  ‖∇W‖ ≤ λ₃‖X‖_F‖r‖/(1−γ₀),  ‖∇A‖ ≤ γ₀λ₁λ₃‖X‖_F‖r‖/((1−γ₀)²λ₂).

    All three are attained by one unit and one sample.
    """
    one = torch.ones(1, 1, dtype=torch.float64)
    found = []
    instances = [(_model(2 * one, 1.2 * one, 3 * one[0], 0.5), one, one[0]), _random(seed)]
    for model, X, y in instances:
        r = model(X, stop=TIGHT) - y
        gW, gA, gb = torch.autograd.grad(r.square().sum() / 2, [model.W, model.A, model.b])
        l1, l2, l3 = norm(model.W), norm(model.A), model.b.norm().item()
        g, size = model.gamma * l2, scale * X.norm().item() * r.norm().item()
        found += [
            at_most(gb.norm().item(), l1 * size / (1 - g), rtol=1e-6),
            at_most(gW.norm().item(), l3 * size / (1 - g), rtol=1e-6),
            at_most(gA.norm().item(), g * l1 * l3 * size / ((1 - g) ** 2 * l2), rtol=1e-6),
        ]
    return all_of(*found)


@register("gao2022.lemma5.1", "Lemma 5.1", factor=0.9)
def lemma_5_1(seed: int = 0, *, factor: float = 1.0) -> Outcome:
    """Z = Φ (I − γA)⁻¹ where A ≥ 0 entrywise and γ‖A‖ < 1."""
    model, X, _ = _random(seed)
    A = model.A.detach().abs()
    A = 1.6 * A / norm(A)
    model = _model(model.W, A, model.b, model.gamma)
    inverse = torch.linalg.inv(eye(model.width) - factor * model.gamma * A)
    return equal(model.injection(X) @ inverse, model.equilibrium(X, stop=TIGHT))


@register("gao2022.alpha0", "after Lemma 5.1", scale=1.02)
def alpha_0(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """σ_min(Z) ≥ σ_min(Φ)/(1 + γ₀) where A ≥ 0; attained by A = [[0,1],[1,0]] and Φ = I."""
    swap = eye(2).flip(0)
    Z = _model(eye(2), 1.6 * swap, eye(2)[0], 0.5).equilibrium(eye(2), stop=TIGHT)
    return at_least(sigma_min(Z), scale / (1 + 0.8), "A a swap, Φ = I", rtol=1e-6)
