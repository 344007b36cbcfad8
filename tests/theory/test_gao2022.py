"""[gao2022, Theorems 4.2, 4.4]: both sides of every condition, the promise watched, the paper's setting."""

import math
from dataclasses import replace

import pytest
import torch

import equipoise as eq
from equipoise.data import load, prepare
from equipoise.data.errors import DataError

F64 = torch.float64
CONDITIONS = {"flow": ["(14)", "(15)"], "descent": ["(17)", "(18)", "(19)"]}


def problem(N=4, d=6, m=20, seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, d, dtype=F64, generator=generator)
    y = torch.randn(N, dtype=F64, generator=generator)
    model = eq.ScaledReLU(d, m, **{"init": "section5.2", "dtype": F64, "generator": generator, **more})
    return model, X / X.norm(dim=1, keepdim=True), y


def certified(seed=0, N=1, d=3, m=50):
    """The least vacuous instance there is: few orthogonal samples, small targets, β = 1."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.linalg.qr(torch.randn(d, N, dtype=F64, generator=generator)).Q.T.contiguous()
    y = 1e-4 * torch.randn(N, dtype=F64, generator=generator)
    model = eq.ScaledReLU(d, m, init="section5.1", dtype=F64, generator=generator)
    return model, X, y


def size(M):
    return float(torch.linalg.matrix_norm(M, 2)) if M.ndim == 2 else float(M.norm())


def by_hand(model, X, y, C):
    """Both sides of (14)-(20), in plain floats."""
    with torch.no_grad():
        Z = model.closed_form(X)
        r, x = float((Z @ model.b - y).norm()), float(X.norm())
        W, A, b = (size(p) for p in (model.W, model.A, model.b))
    a0 = float(torch.linalg.eigvalsh(Z @ Z.T)[0]) ** 0.5
    l1, l2, l3 = W + C[0], A + C[1], b + C[2]
    g0 = model.gamma * l2
    bracket = 1 + g0**2 / (1 - g0) ** 2 * l1**2 / l2**2
    l0 = max(l1 / C[2], g0 * l1 * l3 / ((1 - g0) * C[1] * l2), l3 / C[0])
    bar = bracket * (bracket * l1**-2 + l3**-2) ** -2
    return {
        "(14)": (a0**2, 4 / (1 - g0) * l0 * x * r),
        "(15)": (a0**3, bracket * 8 * l3 / (1 - g0) ** 2 * x**2 * r),
        "(17)": (a0**2, 8 / (1 - g0) * l0 * x * r),
        "(18)": (a0**3, bracket * 16 * l3 / (1 - g0) ** 2 * x**2 * r),
        "(19)": (a0**2, bracket * 16 * l3**2 / (1 - g0) ** 2 * x**2),
        "(20)": min(4 / a0**2, 2 * (1 - g0) ** 2 * bar * l1**-4 * l3**-2 * x**-2),  # as printed
        "γ₀ < 1": g0,
        "movement": bracket * 8 * l3 / (1 - g0) ** 2 * x**2 * r / a0**2 / float(Z.norm()),  # of descent
    }


@pytest.mark.parametrize("kind", ["flow", "descent"])
@pytest.mark.parametrize("C", [(1.0, 1.0, 1.0), (0.3, 0.01, 2.0), (2.0, 0.5, 0.1)])
@pytest.mark.parametrize("start", ["section5.1", "section5.2", "experiments"])
def test_both_sides_of_every_condition(kind, C, start):
    model, X, y = problem(init=start, **({"gamma": 0.3} if start == "experiments" else {}))
    found, wanted = eq.certify(model, X, y, theorem=f"gao2022.{kind}", C=C), by_hand(model, X, y, C)
    for label in CONDITIONS[kind]:
        assert found[label].lhs == pytest.approx(wanted[label][0], rel=1e-8)
        assert found[label].rhs == pytest.approx(wanted[label][1], rel=1e-8)
        assert found[label].relation == ">="
    assert found["γ₀ < 1"].lhs == pytest.approx(wanted["γ₀ < 1"], rel=1e-12)
    a0 = wanted["(14)"][0] ** 0.5
    if kind == "descent":
        assert found.max_step_size == pytest.approx(wanted["(20)"], rel=1e-8)
        assert found.exponent == pytest.approx(a0**2 / 4, rel=1e-8)
        assert found.movement == pytest.approx(wanted["movement"], rel=1e-8)
    else:
        assert found.movement == pytest.approx(wanted["movement"] / 2, rel=1e-8)
        assert found.exponent == pytest.approx(a0**2 / 2, rel=1e-8)
        assert found.max_step_size is None


def test_the_sides_are_rounded_outward():
    model, X, y = problem()
    C = (1.0, 1.0, 1.0)
    found, wanted = eq.certify(model, X, y, theorem="gao2022.descent", C=C), by_hand(model, X, y, C)
    for label in CONDITIONS["descent"]:
        assert found[label].left.lo <= wanted[label][0] * (1 + 1e-11)
        assert found[label].left.hi >= wanted[label][0] * (1 - 1e-11)
        assert found[label].right.lo <= wanted[label][1] <= found[label].right.hi * (1 + 1e-14)


@pytest.mark.parametrize("kind", ["flow", "descent"])
@pytest.mark.parametrize("seed", range(3))
def test_chosen_constants_beat_fixed_ones(kind, seed):
    model, X, y = problem(seed=seed, init="section5.1", beta=30.0)
    worst = lambda c: min(c[label].margin for label in CONDITIONS[kind])
    chosen = eq.certify(model, X, y, theorem=f"gao2022.{kind}")
    for C in [(1.0, 1.0, 1.0), (0.1, 0.1, 0.1), (10.0, 1.0, 1.0), (1.0, 1.0, 10.0), (30.0, 10.0, 5.0)]:
        assert worst(chosen) > worst(eq.certify(model, X, y, theorem=f"gao2022.{kind}", C=C))
    again = eq.certify(model, X, y, theorem=f"gao2022.{kind}", C=tuple(chosen.constants["C"]))
    assert again.claims == chosen.claims


@pytest.mark.parametrize(("seed", "N"), [(0, 1), (1, 1), (2, 2)])
def test_descent_keeps_every_promise(seed, N):
    model, X, y = certified(seed=seed, N=N, d=2 + N)
    cert = eq.certify(model, X, y, theorem="gao2022.descent", C=(0.01, 0.1, 0.1))
    assert cert.proved, cert.explain()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    before, losses = model.equilibrium(X).detach(), []
    for _ in range(6):
        history = eq.gradient_descent(model, X, y, steps=50, step_size=cert.step_size)
        losses += history.loss[1 if losses else 0 :].tolist()
        for name, radius in zip(("W", "A", "b"), cert.constants["C"], strict=True):
            assert size(getattr(model, name).detach() - start[name]) <= radius
        Z = model.equilibrium(X).detach()
        assert float(torch.linalg.svdvals(Z)[N - 1]) >= cert.constants["alpha0"] / 2
        assert float((Z - before).norm()) <= cert.movement * float(before.norm())
        assert size(model.A.detach()) * model.gamma < 1
    assert len(losses) == 301
    assert all(seen <= cert.bound(k) * losses[0] for k, seen in enumerate(losses))
    assert losses[-1] < 0.999 * losses[0]  # it did move
    assert float((Z - before).norm()) > 0
    assert cert.explain().startswith("The readout is fitted, the hidden layer is effectively fixed")


def test_a_section_5_1_start_with_a_large_beta_is_certified():
    model, X, y = problem(N=10, d=20, m=80, init="section5.1", beta=2000.0)
    for theorem in ("gao2022.flow", "gao2022.descent"):
        cert = eq.certify(model, X, y, theorem=theorem, C=(1.0, 1.0, 1.0))
        assert cert.proved, cert.explain()
    assert cert.max_step_size < 1e-12
    assert "vacuous" in cert.explain()
    history = eq.gradient_descent(model, X, y, steps=100, step_size=cert)
    assert not history.violations()


def test_flow_keeps_its_promise():
    model, X, y = certified()
    cert = eq.certify(model, X, y, theorem="gao2022.flow", C=(0.01, 0.1, 0.1))
    assert cert.proved, cert.explain()
    assert any("kinks" in h for h in cert.hypotheses)
    step = 2e-3 * cert.efold
    history = eq.gradient_descent(model, X, y, steps=300, step_size=step)
    assert all(seen <= cert.bound(k * step) for k, seen in enumerate(history.relative_loss))
    assert history.relative_loss[-1] < 0.5


def test_gamma_0_of_1_or_more_proves_nothing():
    model, X, y = certified()
    for C2 in (2.0 / model.gamma, 1 / model.gamma - size(model.A.detach())):
        cert = eq.certify(model, X, y, theorem="gao2022.descent", C=(0.01, C2, 0.1))
        assert not cert.proved
        assert not cert["γ₀ < 1"].holds
        assert not cert["(17)"].holds
        assert "a smaller γ or C₂" in cert.explain()


def test_weights_that_do_not_contract_are_refused_at_once():
    model, X, y = problem()
    model.gamma = 0.999
    with torch.no_grad():
        model.A.mul_(2 / size(model.A))
    cert = eq.certify(model, X, y, theorem="gao2022.descent")
    assert cert.verdict == "hypotheses_fail"
    assert [c.name for c in cert.claims] == ["γ‖A‖ < 1"]
    assert "fails by a factor 2" in cert.explain()


def test_too_narrow_a_network_is_refused():
    model, X, y = problem(N=6, m=4, init="section5.1", beta=1e6)
    cert = eq.certify(model, X, y, theorem="gao2022.descent")
    assert cert.verdict == "hypotheses_fail"
    assert cert["(17)"].lhs == 0
    assert "a width of at least 6" in cert.explain()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda X: X[2].copy_(X[1]), "row 1 and row 2, which are equal"),
        (lambda X: X[3].zero_(), "row 3, which is zero"),
        (lambda X: X.zero_(), "row 0, which is zero"),
        (lambda X: X[2].copy_(3 * X[1]), "nearly repeat others"),
    ],
)
def test_dependent_samples_are_refused_by_name(spoil, words):
    model, X, y = problem(init="section5.1", beta=1e6)
    spoil(X)
    cert = eq.certify(model, X, y, theorem="gao2022.descent")
    assert not cert.proved
    assert not cert["σ_min(Z) > 0"].holds
    assert words in cert.explain()


def test_other_networks_are_refused():
    _, X, y = problem()
    for other in (eq.GaussianReLU(6, 20, dtype=F64), eq.Monotone(6, 20, dtype=F64)):
        cert = eq.certify(other, X, y, theorem="gao2022.descent")
        assert cert.verdict == "hypotheses_fail"
        assert f"about ScaledReLU. Got {type(other).__name__}" in cert.explain()
    two = eq.ScaledReLU(6, 20, outputs=2, dtype=F64)
    cert = eq.certify(two, X, torch.stack([y, y], 1), theorem="gao2022.flow")
    assert "about one output. Got 2" in cert.explain()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused_by_name(bad):
    for where in ("X", "y", "b"):
        model, X, y = certified()
        with torch.no_grad():
            {"X": X[0], "y": y, "b": model.b}[where][0] = bad
        cert = eq.certify(model, X, y, theorem="gao2022.descent")
        assert cert.verdict == "hypotheses_fail"
        assert f"{where} holds NaN or infinity" in cert.explain()
        assert where == "b" or "in row 0" in cert.explain()


def test_constants_must_be_three_numbers_above_0():
    for C in [(1.0, 1.0), (1.0, 0.0, 1.0), (1.0, -1.0, 1.0), (1.0, math.nan, 1.0)]:
        with pytest.raises(ValueError, match="three numbers > 0"):
            eq.theory.gao2022.Descent(C=C)


def test_the_paper_prints_these_conditions_rightly():
    model, X, y = certified()
    cert = eq.certify(model, X, y, theorem="gao2022.descent", printed=True)
    assert "As printed, the conditions are the same." in cert.explain()


def test_single_precision_weights_are_certified_as_the_numbers_they_are():
    model, X, y = certified()
    narrow = eq.ScaledReLU(3, 50, gamma=model.gamma, init="experiments", dtype=torch.float32)
    narrow.load_state_dict({name: p.float() for name, p in model.state_dict().items()})
    wide = eq.ScaledReLU(3, 50, gamma=model.gamma, init="experiments", dtype=F64)
    wide.load_state_dict(narrow.state_dict())
    one, two = (
        eq.certify(m, X.float().to(dtype), y.float().to(dtype), theorem="gao2022.descent", C=(0.01, 0.1, 0.1))
        for m, dtype in ((narrow, torch.float32), (wide, F64))
    )
    assert one.proved
    assert one.claims == two.claims
    assert one.floor > two.floor  # of a run in float32, the rest of the same numbers
    same = {"fingerprint": {}, "floor": 0.0, "constants": {}}
    assert replace(one, **same) == replace(two, **same)
    assert all(
        one.constants[name] == two.constants[name] for name in ("C", "alpha0", "gamma0", "lambda0", "B")
    )


def test_relu_at_zero_does_not_matter_to_the_proof():
    """The bounds hold for every 0/1 choice of the slope at a tie, of which a diagonal A(0) has many."""
    model, X, y = certified()
    other = eq.ScaledReLU(3, 50, gamma=model.gamma, relu_at_zero=1, dtype=F64)
    other.load_state_dict(model.state_dict())
    cert = eq.certify(other, X, y, theorem="gao2022.descent", C=(0.01, 0.1, 0.1))
    assert cert.proved
    history = eq.gradient_descent(other, X, y, steps=100, step_size=cert)
    assert not history.violations()


# -- the paper's own setting ---------------------------------------------------------------------------------


def test_the_papers_setting_at_a_tenth_of_its_size_is_far_from_certified():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(100, 60, dtype=F64, generator=generator)
    X /= X.norm(dim=1, keepdim=True)
    y = (torch.rand(100, generator=generator) < 0.5).to(F64)
    model = eq.ScaledReLU(60, 100, gamma=0.1, dtype=F64, generator=generator)
    cert = eq.certify(model, X, y, theorem="gao2022.descent", C=(1.0, 1.0, 1.0))
    assert cert.verdict == "hypotheses_fail"
    assert all(cert[label].margin < 1e-5 for label in CONDITIONS["descent"])
    assert cert.max_step_size < 1e-2 / 100  # "η = 1/N follows from Theorem 4.4" is false
    assert not eq.certify(model, X, y, theorem="gao2022.descent").proved


def test_condition_19_forces_steps_far_below_1_over_N():
    """η ≤ (1−γ₀)²/(128 B λ₃² N³) for unit-norm data, wherever (19) holds."""
    for N in (2, 3, 4):
        model, X, y = problem(N=N, init="section5.1", beta=3000.0)
        cert = eq.certify(model, X, y, theorem="gao2022.descent", C=(1.0, 1.0, 1.0))
        assert cert["(19)"].holds
        g0, B = cert.constants["gamma0"], cert.constants["B"]
        assert cert.max_step_size <= (1 - g0) ** 2 / (128 * B * N**3)


@pytest.mark.slow
def test_the_papers_setting_at_full_size():
    try:
        images = prepare.two_classes(load("mnist", download=False))
    except DataError as error:
        pytest.skip(str(error))
    X = torch.from_numpy(images.x_train.reshape(1000, -1)).to(F64)
    X /= X.norm(dim=1, keepdim=True)
    y = torch.from_numpy(images.y_train).to(F64)
    model = eq.ScaledReLU(784, 1000, gamma=0.1, dtype=F64, generator=torch.Generator().manual_seed(0))
    cert = eq.certify(model, X, y, theorem="gao2022.descent", C=(1.0, 1.0, 1.0))
    assert cert.verdict == "hypotheses_fail"
    for label, expected in (("(17)", 1e-12), ("(18)", 8e-18), ("(19)", 1e-12)):
        assert expected / 1e3 < cert[label].margin < expected * 1e1
    assert cert.max_step_size == pytest.approx(1.6e-5, rel=0.1)
    assert not eq.certify(model, X, y, theorem="gao2022.descent").proved
