"""The conditions of [gao2022] at work: its starts (§5), its step size and its Table 1 (§7)."""

from __future__ import annotations

import math

import torch

from ...models import ScaledReLU
from ...theory import certify
from ..framework.claims import Outcome, all_of, at_least, at_most, beside, corrected, equal, refuted, register
from ..framework.small import TIGHT, descend, draw, norm, seeded, sigma_min


@register("gao2022.section5.1", "§5.1, (24)-(26)", seventeen=2.0, eighteen=2.0, nineteen=1.0)
@corrected("γ left as it is while the start is multiplied by β = 10⁵: γ₀ = γ(β‖A(0)‖ + 1) is far above 1.")
def section_5_1(
    seed: int = 0, *, seventeen: float = 1.0, eighteen: float = 3.0, nineteen: float = 2.0
) -> Outcome:
    """A large factor β on the start meets (17)-(19): their margins grow as β, β³ and β².

    γ has to fall with β, γ = 1/(2(β‖W(0)‖ + 1)), so that γ₀ stays ½.
    """
    X, margins, gammas = draw(seed, 3, 4), [], []
    for beta in (1e5, 1e6):
        model = ScaledReLU(4, 24, init="section5.1", beta=beta, dtype=torch.float64, generator=seeded(seed))
        certificate = certify(model, X, draw(seed + 1, 3), theorem="gao2022.descent", C=(1.0, 1.0, 1.0))
        margins.append({c.name: c.margin for c in certificate.claims})
        gammas.append(0.5 * (norm(model.A) + 1))  # γ₀ for a γ of ½ that stays
    printed = at_most(gammas[0], 1.0, "γ₀ for a fixed γ")
    slopes = [math.log10(margins[1][name] / margins[0][name]) for name in ("(17)", "(18)", "(19)")]
    expected = (seventeen, eighteen, nineteen)
    found = [equal(s, e, f"exponent {s:.3f}", rtol=1e-2) for s, e in zip(slopes, expected, strict=True)]
    return beside(all_of(*found), printed)


@register("gao2022.section5.2.norm", "§5.2, after (27)", slope=1.0)
@corrected("‖A(0)‖ is printed as O(√m): four times the width makes it four times, not twice, as large.")
def section_5_2_norm(seed: int = 0, *, slope: float = (2 / math.pi) ** 0.5) -> Outcome:
    """‖A(0)‖ ≈ √(2/π) m for half-normal entries, whose mean is √(2/π): printed as O(√m)."""
    small, large = (norm(draw(seed + m, m, m).abs()) for m in (50, 200))
    printed = at_most(large / small, 2 * 1.2, "growth over four times the width")
    return beside(equal(large / 200, slope, "‖A‖/m", rtol=0.03), printed)


@register("gao2022.table1", "Table 1", offset=0.0, tolerance=2e-2)
def table_1(seed: int = 0, *, offset: float = 1.0, tolerance: float = 1e-2) -> Outcome:
    """iterations = ⌈ln(100‖Φ‖_F)/ln(1/γ)⌉ + 1 at the start A = I, for the stop ‖Z^{l+1} − Z^l‖_F ≤ 10⁻²."""
    found = []
    for gamma in (0.1, 0.3, 0.5, 0.8):
        model = ScaledReLU(6, 20, gamma, dtype=torch.float64, generator=seeded(seed))
        X = draw(seed + 1, 40, 6)
        f, Z, count = model.affine_map(X), torch.zeros(40, 20, dtype=torch.float64), 0
        change = math.inf
        while change > 1e-2:
            after = f(Z)
            change, Z, count = (after - Z).norm().item(), after, count + 1
        size = model.injection(X).norm().item()
        found.append(
            equal(count, math.ceil(math.log(size / tolerance) / math.log(1 / gamma)) + offset, "", 0.0)
        )
    return all_of(*found)


@register("gao2022.stability", "§7.3", number=2.1)
def stability(seed: int = 0, *, number: float = 2.0) -> Outcome:
    """η < 2(1−γ)²/‖Φ‖² is where the first steps of descent stop growing, from A = I and b = 0.

    There Z = Φ/(1−γ) and H = ZZᵀ, so that r ← (I − ηZZᵀ) r: any larger η lets the loss rise at once.
    """
    model = ScaledReLU(4, 9, 0.5, dtype=torch.float64, generator=seeded(seed))
    X = draw(seed + 1, 5, 4)
    Phi = model.injection(X).detach()
    y = torch.linalg.svd(Phi).U[:, 0]
    growth = []
    for share in (0.99, 1.01):
        model.b.data.zero_()
        step = share * number * (1 - model.gamma) ** 2 / norm(Phi) ** 2
        descend((model(X, stop=TIGHT) - y).square().sum() / 2, [model.b], step)
        growth.append((model(X, stop=TIGHT) - y).norm().item())
    return all_of(at_most(growth[0], 1.0, "just below"), at_least(growth[1], 1.0, "just above"))


@register("gao2022.step_size", "§5, η = O(1/N)", number=150.0)
@refuted("ten unit rows, α₀ just large enough for (19): Theorem 4.4 allows η < 1/N by a factor above 10³.")
def step_size(seed: int = 0, *, number: float = 128.0) -> Outcome:
    """η ≤ (1−γ₀)²/(128 B λ₃² N³) is forced by (19) and (20) for unit rows: η = 1/N does not follow.

    α₀² ≤ ‖Z‖_F²/N ≤ λ₁²/(1−γ₀)², so (19) asks λ₁² ≥ 16 B λ₃² N and (20) then leaves that. Evaluated with
    every condition attained.
    """
    N, gamma0, B, l3 = 10, 0.5, 2.0, 1.0
    l1_squared = 16 * B * l3**2 * N
    Q2 = B * l3**2 * N / (1 - gamma0) ** 2
    Q1 = (B * l3**2 + l1_squared) * N / (1 - gamma0) ** 2
    allowed = 2 * Q2 / Q1**2  # (20)
    bound = (1 - gamma0) ** 2 / (number * B * l3**2 * N**3)
    below = at_most(allowed, bound, "η allowed by (20)")
    return beside(below, at_least(allowed, 1 / N, "η allowed against 1/N"))


@register("gao2022.conditions", "§7, the start of the experiments", seventeen=4.0, eighteen=8.0, nineteen=8.0)
@refuted("N = m = 30, γ = .1, unit rows: each of (17)-(19) fails by more than a factor 100.")
def conditions(
    seed: int = 0, *, seventeen: float = 8.0, eighteen: float = 16.0, nineteen: float = 16.0
) -> Outcome:
    """α₀² ≥ 8λ₀‖X‖_F r₀/(1−γ₀),  α₀³ ≥ 16Bλ₃‖X‖_F²r₀/(1−γ₀)²,  α₀² ≥ 16Bλ₃²‖X‖_F²/(1−γ₀)²: not met.

    The start of the experiments is A = I, b = 0 and W ~ N(0, 1/m). The margins, worked out here with C = 1,
    are those of the certificate.
    """
    model = ScaledReLU(40, 30, 0.1, dtype=torch.float64, generator=seeded(seed))
    X = torch.nn.functional.normalize(draw(seed + 1, 30, 40))
    y = draw(seed + 2, 30).sign()
    alpha, x, r = sigma_min(model.equilibrium(X, stop=TIGHT)), X.norm().item(), y.norm().item()
    l1, l2, l3 = norm(model.W) + 1, norm(model.A) + 1, 1.0
    g = model.gamma * l2
    B, l0 = 1 + (g / (1 - g) * l1 / l2) ** 2, max(l1, g * l1 * l3 / ((1 - g) * l2), l3)
    margins = [
        alpha**2 * (1 - g) / (seventeen * l0 * x * r),
        alpha**3 * (1 - g) ** 2 / (eighteen * B * l3 * x**2 * r),
        alpha**2 * (1 - g) ** 2 / (nineteen * B * l3**2 * x**2),
    ]
    certificate = certify(model, X, y, theorem="gao2022.descent", C=(1.0, 1.0, 1.0))
    found = {c.name: c.margin for c in certificate.claims}
    same = [equal(m, found[f"({17 + i})"], f"({17 + i})", rtol=1e-4) for i, m in enumerate(margins)]
    below = at_most(max(margins), 1e-2, "largest margin")
    return beside(all_of(*same, below), at_least(max(margins), 1.0, "largest margin"))
