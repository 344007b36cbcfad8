"""[hieu2022, ch. 3]: both sides of every condition, the promises watched, the printed theorem refuted."""

import math

import pytest
import torch

import equipoise as eq
from equipoise.theory.hieu2022 import certified_start

F64 = torch.float64
TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)
LABELS = {"flow": ("(3.8)", "(3.9)"), "descent": ("(3.16)", "(3.17)", "(3.18)")}
RADII = {"A": 0.2, "B": 0.3, "U": 0.5, "u": 0.7}


def problem(N=3, d=4, n=8, seed=0, margin=0.6, **more):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, d, dtype=F64, generator=generator)
    y = torch.randn(N, dtype=F64, generator=generator)
    return eq.Monotone(d, n, margin=margin, dtype=F64, generator=generator, **more), X, y


def certified(kind, seed=0, N=1):
    """A start that the theorem certifies, with a rate that shows within some hundred steps."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.linalg.qr(torch.randn(N + 1, N, dtype=F64, generator=generator)).Q.T.contiguous()
    y = torch.randn(N, dtype=F64, generator=generator)
    model = eq.Monotone(N + 1, 6 * N, margin=1.0, dtype=F64, generator=generator)
    with torch.no_grad():
        model.A.mul_(0.3)
        model.B.mul_(0.3)
    radii = certified_start(model, X, y, kind=kind)
    return model, X, y, radii


def counterexample():
    """n = d = N = 1, A = B = 0, U = X = 1, u = 0, y = .002, μ = .01."""
    model = eq.Monotone(1, 1, margin=0.01, dtype=F64)
    with torch.no_grad():
        for name, value in (("A", 0.0), ("B", 0.0), ("U", 1.0), ("u", 0.0)):
            getattr(model, name).fill_(value)
    return model, torch.ones(1, 1, dtype=F64), torch.tensor([0.002], dtype=F64)


COUNTER_RADII = {"A": 1e-3, "B": 1.0, "U": 1.0, "u": 0.5}


def size(M):
    return float(torch.linalg.matrix_norm(M, 2)) if M.ndim == 2 else float(M.norm())


def by_hand(model, X, y, R):
    """Both sides of every condition and the steps, in plain floats; "printed" as the thesis has them."""
    with torch.no_grad():
        Z = model.equilibrium(X, stop=TIGHT)
        r, x, mu = float((Z @ model.u - y).norm()), float(X.norm()), model.margin
        a, U, u = size(model.A) + R["A"], size(model.U) + R["U"], size(model.u) + R["u"]
    l0 = float(torch.linalg.svdvals(Z)[len(X) - 1])
    worst = max(
        2 * U * u * a / (mu**2 * R["A"]), 2 * U * u / (mu**2 * R["B"]), u / (mu * R["U"]), U / (mu * R["u"])
    )
    c11 = x**2 * ((u**2 + U**2) / mu**2 + 4 * u**2 * U**2 * (1 + a**2) / mu**4)
    c12 = x**2 * u**2 * U**2 * a**2 / (4 * mu**4)
    c13 = c11 - x**2 * U**2 / mu**2
    curvature = u**2 + 4 * (u * U * a) ** 2 + 4 * (u * U) ** 2 + U**2
    return {
        "lambda0": l0,
        "movement": 1 / (2 * l0**2 * float(Z.norm())),  # times the right side of (3.9) or (3.17)
        "(3.8)": (l0**2, 4 * x * r * worst),
        "(3.9)": (l0**3, 8 * x**2 * r * u / mu**2 * (4 * ((U * a) ** 2 + U**2) / mu**2 + 1)),
        "(3.16)": (l0**2, 8 * x * r * worst),
        "(3.17)": (l0**3, 16 * x**2 * r * u / mu**2 * (1 + (6 * (U * a) ** 2 + 4 * U**2) / mu**2)),
        "(3.18)": (l0**2, 16 * c13),
        "step": min(4 / l0**2, 1 / (32 * c12), l0**2 / (25 * c11**2)),
        "curvature step": l0**2 / (25 * c11**2),
        "printed (3.17)": (l0**3, 8 * x**2 * r * u * (1 + 6 * (U * a) ** 2 + 4 * U**2)),
        "printed (3.18)": (l0**2, 20 * x**2 * curvature),
        "printed step": min(
            4 / l0**2, 1 / (x**2 * curvature), 1 / (2 * x * l0 * U * u * a), 1 / (6 * l0**2 * u**2 * a**2)
        ),
    }


@pytest.mark.parametrize("kind", ["flow", "descent"])
@pytest.mark.parametrize("margin", [0.1, 0.6, 3.0])
@pytest.mark.parametrize("tall", list(RADII))
def test_both_sides_of_every_condition(kind, margin, tall):
    model, X, y = problem(margin=margin)
    radii = RADII | {tall: RADII[tall] / 1000}  # so that each term of the maximum has its turn
    found = eq.certify(model, X, y, theorem=f"hieu2022.{kind}", radii=radii)
    wanted = by_hand(model, X, y, radii)
    for label in LABELS[kind]:
        assert found[label].lhs == pytest.approx(wanted[label][0], rel=1e-7)
        assert found[label].rhs == pytest.approx(wanted[label][1], rel=1e-7)
    spectrum = wanted["(3.17)" if kind == "descent" else "(3.9)"][1]
    assert found.movement == pytest.approx(wanted["movement"] * spectrum, rel=1e-6)
    if kind == "descent":
        assert found.max_step_size == pytest.approx(wanted["step"], rel=1e-7)
        assert found.exponent == pytest.approx(wanted["lambda0"] ** 2 / 4, rel=1e-7)
    else:
        assert found.exponent == pytest.approx(wanted["lambda0"] ** 2 / 2, rel=1e-7)


def test_only_one_bound_of_the_repaired_step_ever_binds():
    """As λ₀² ≤ C₁₁ and 16 C₁₂ ≤ C₁₁, it is λ₀²/(25 C₁₁²); the others are kept for the reader."""
    for seed in range(10):
        model, X, y = problem(seed=seed, margin=[0.1, 1.0, 5.0][seed % 3])
        cert = eq.certify(model, X, y, theorem="hieu2022.descent", radii=RADII)
        wanted = by_hand(model, X, y, RADII)
        assert wanted["step"] == wanted["curvature step"]
        assert cert.max_step_size == pytest.approx(wanted["step"], rel=1e-6)


@pytest.mark.parametrize("wide", [1.0, 10.0])
@pytest.mark.parametrize("margin", [0.02, 0.6, 3.0])
def test_the_printed_conditions_are_shown_beside_the_repaired_ones(margin, wide):
    model, X, y = problem(margin=margin)
    radii = RADII | {"A": wide * RADII["A"], "u": wide * RADII["u"]}
    cert = eq.certify(model, X, y, theorem="hieu2022.descent", radii=radii, printed=True)
    wanted = by_hand(model, X, y, radii)
    printed = {c.name: c for c in cert.claims if c.printed}
    assert set(printed) == {"(3.17)", "(3.18)", "step size"}
    for label in ("(3.17)", "(3.18)"):
        assert printed[label].lhs == pytest.approx(wanted[f"printed {label}"][0], rel=1e-7)
        assert printed[label].rhs == pytest.approx(wanted[f"printed {label}"][1], rel=1e-7)
    assert printed["step size"].lhs == pytest.approx(wanted["printed step"], rel=1e-6)
    assert cert.explain().count("As printed") == 3
    flow = eq.certify(model, X, y, theorem="hieu2022.flow", printed=True)
    assert "As printed, the conditions are the same." in flow.explain()


@pytest.mark.parametrize(("R_A", "R_u"), [(1e-3, 0.5), (2.0, 2.0)])
def test_the_printed_step(R_A, R_u):
    """4/λ₀² for small radii, 1/(6λ₀²ū²ā²) for large ones."""
    model, X, y = counterexample()
    radii = COUNTER_RADII | {"A": R_A, "u": R_u}
    cert = eq.certify(model, X, y, theorem="hieu2022.descent", radii=radii, printed=True)
    printed = next(c for c in cert.claims if c.printed and c.name == "step size")
    assert printed.lhs == pytest.approx(by_hand(model, X, y, radii)["printed step"], rel=1e-9)
    assert printed.lhs == pytest.approx(4e-4 if R_A < 1 else 1 / (6e4 * R_A**2 * R_u**2), rel=1e-9)


def test_the_printed_theorem_is_false():
    """Every printed condition holds, the printed step is taken, and the loss grows ninefold a step."""
    model, X, y = counterexample()
    cert = eq.certify(model, X, y, theorem="hieu2022.descent", radii=COUNTER_RADII, printed=True)
    printed = {c.name: c for c in cert.claims if c.printed}
    assert cert["(3.16)"].holds  # right as printed
    assert all(c.holds for c in printed.values())
    step = printed["step size"].lhs
    assert step == pytest.approx(4e-4, rel=1e-9)
    history = eq.gradient_descent(model, X, y, steps=3, step_size=4e-4, stop=TIGHT)
    assert history.loss[1] / history.loss[0] == pytest.approx(9, rel=1e-6)
    assert history.loss[2] / history.loss[1] > 8
    assert history.loss[3] > 500 * history.loss[0]


def test_the_repaired_theorem_refuses_the_counterexample():
    model, X, y = counterexample()
    cert = eq.certify(model, X, y, theorem="hieu2022.descent", radii=COUNTER_RADII)
    assert cert.verdict == "hypotheses_fail"
    assert not cert["(3.18)"].holds
    assert "(3.18) fails" in cert.explain()
    assert cert.bound(1) == math.inf


def test_the_repaired_theorem_never_allows_the_diverging_step():
    """With other radii it may speak of the same network, but of steps under which the loss does fall."""
    model, X, y = counterexample()
    cert = eq.certify(model, X, y, theorem="hieu2022.descent")
    assert cert.max_step_size < 2e-4 / 2  # 2/λ² = 2e-4 is where descent turns unstable
    if cert.proved:
        assert not eq.gradient_descent(model, X, y, steps=100, step_size=cert).violations()


def test_the_printed_curvature_condition_can_never_hold_with_mu_restored():
    """λ₀² ≤ ‖X‖_F²‖U‖²/(μ²N): (3.18) with 20 C₁₁ contradicts it, whatever the network."""
    for seed in range(20):
        model, X, _ = problem(seed=seed, margin=[0.1, 1.0, 5.0][seed % 3])
        lambda0 = float(torch.linalg.svdvals(model.equilibrium(X).detach())[len(X) - 1])
        most = float(X.norm()) * size(model.U.detach()) / model.margin
        assert lambda0**2 * len(X) <= most**2 < 20 * most**2


@pytest.mark.parametrize("kind", ["flow", "descent"])
@pytest.mark.parametrize("seed", range(3))
def test_chosen_radii_beat_those_of_the_closed_form(kind, seed):
    model, X, y, radii = certified(kind, seed)
    worst = lambda c: min(c[label].margin for label in LABELS[kind])
    given = eq.certify(model, X, y, theorem=f"hieu2022.{kind}", radii=radii)
    chosen = eq.certify(model, X, y, theorem=f"hieu2022.{kind}")
    assert given.proved, given.explain()
    assert worst(chosen) > worst(given)
    assert worst(chosen) > worst(eq.certify(model, X, y, theorem=f"hieu2022.{kind}", radii=RADII))
    best = chosen.constants["radii"]
    for name in best:
        for factor in (0.5, 2.0):
            other = eq.certify(
                model, X, y, theorem=f"hieu2022.{kind}", radii=best | {name: factor * best[name]}
            )
            assert worst(other) <= worst(chosen) * (1 + 1e-3)


@pytest.mark.parametrize("kind", ["flow", "descent"])
@pytest.mark.parametrize("N", [1, 2, 4])
def test_the_certified_start_is_certified(kind, N):
    for seed in range(4):
        model, X, y, radii = certified(kind, seed, N)
        assert eq.certify(model, X, y, theorem=f"hieu2022.{kind}", radii=radii).proved


@pytest.mark.parametrize(
    ("kind", "seed", "N"), [("flow", 0, 1), ("flow", 1, 2), ("descent", 0, 1), ("descent", 1, 1)]
)
def test_every_promise_is_kept(kind, seed, N):
    model, X, y, radii = certified(kind, seed, N)
    cert = eq.certify(model, X, y, theorem=f"hieu2022.{kind}", radii=radii)
    assert cert.proved, cert.explain()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    before, losses = model.equilibrium(X).detach(), []
    # The flow by Euler's steps, each a small part of what the fastest mode takes.
    kernel = eq.tangent_kernel(model, X).total
    step = cert.step_size if kind == "descent" else 0.01 / float(torch.linalg.eigvalsh(kernel)[-1])
    for _ in range(6):
        history = eq.gradient_descent(model, X, y, steps=50, step_size=step)
        losses += history.loss[1 if losses else 0 :].tolist()
        for name, first in start.items():
            assert size(getattr(model, name).detach() - first) <= radii[name]
        Z = model.equilibrium(X).detach()
        assert float(torch.linalg.svdvals(Z)[N - 1]) >= cert.constants["lambda0"] / 2
        assert float((Z - before).norm()) <= cert.movement * float(before.norm())
    assert len(losses) == 301
    times = [k if kind == "descent" else k * step for k in range(301)]
    assert all(seen <= cert.bound(t) * losses[0] for t, seen in zip(times, losses, strict=True))
    assert losses[-1] < 0.99 * losses[0]


def test_a_network_with_a_bias_or_another_family_is_refused():
    model, X, y = problem(bias=True)
    assert "without bias" in eq.certify(model, X, y, theorem="hieu2022.flow").explain()
    other = eq.GaussianReLU(4, 8, dtype=F64)
    assert "about Monotone. Got GaussianReLU" in eq.certify(other, X, y, theorem="hieu2022.descent").explain()


def test_ordinary_starts_are_refused_with_the_remedy():
    model, X, y = problem()
    for kind in ("flow", "descent"):
        cert = eq.certify(model, X, y, theorem=f"hieu2022.{kind}")
        assert cert.verdict == "hypotheses_fail"
        assert "certified_start" in cert.explain()
        assert all(cert[label].margin < 1 for label in LABELS[kind][:1])


def test_radii_must_be_given_for_every_block():
    for radii in ({"A": 1.0}, RADII | {"W": 1.0}, RADII | {"u": 0.0}, RADII | {"u": math.nan}):
        with pytest.raises(ValueError, match="radii must give"):
            eq.theory.hieu2022.Flow(radii=radii)


def test_too_narrow_a_network_is_refused():
    model, X, y = problem(N=5, n=3)
    cert = eq.certify(model, X, y, theorem="hieu2022.descent")
    assert cert.verdict == "hypotheses_fail"
    assert "a width of at least 5" in cert.explain()
