"""[ling2023, Theorem 1]: the two sides of Condition 1, the promise watched, Assumption 1 refused."""

import math

import pytest
import torch

import equipoise as eq

F64 = torch.float64
LABELS = ("(7)", "(8)", "(9)")


def problem(N=4, d=6, m=30, seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, d, dtype=F64, generator=generator)
    y = torch.randn(N, dtype=F64, generator=generator)
    model = eq.GaussianReLU(d, m, dtype=F64, generator=generator, **more)
    return model, d**0.5 * X / X.norm(dim=1, keepdim=True), y


def feasible(seed=0, start="zero_readout"):
    """Two orthogonal rows of norm √10, m = 400, |y| = .05, σ_w² = .001: where Condition 1 holds."""
    generator = torch.Generator().manual_seed(seed)
    X = 10**0.5 * torch.linalg.qr(torch.randn(10, 2, dtype=F64, generator=generator)).Q.T.contiguous()
    model = eq.GaussianReLU(10, 400, sigma_w2=0.001, start=start, dtype=F64, generator=generator)
    return model, X, torch.tensor([0.05, -0.05], dtype=F64)


def size(M):
    return float(torch.linalg.matrix_norm(M, 2)) if M.ndim == 2 else float(M.norm())


def by_hand(model, X, y, delta):
    """Both sides of (7)-(9) and the step of (10), in plain floats."""
    with torch.no_grad():
        Z = model.equilibrium(X, stop=eq.Stop(rtol=1e-13, max_steps=5000))
        r, x = float((Z @ model.a - y).norm()), float(X.norm())
        w, u, a = (size(p) + delta for p in (model.W, model.U, model.a))
    l0 = float(torch.linalg.eigvalsh(Z @ Z.T)[0])
    cw, cu, ca = u * a / (1 - w) ** 2, a / (1 - w), u / (1 - w)
    return {
        "(7)": (l0, 4 / delta * max(cw, cu, ca) * x * r),
        "(8)": (l0**1.5, 4 * (2 + math.sqrt(2)) / a * (cw**2 + cu**2) * x**2 * r),
        "(9)": (l0, 8 * (cw**2 + cu**2) * x**2),
        "(10)": min(2 / l0, 2 * (cw**2 + cu**2) / ((cw**2 + cu**2 + ca**2) ** 2 * x**2)),
        "movement": 4 / l0 / a * (cw**2 + cu**2) * x**2 * r / float(Z.norm()),
    }


@pytest.mark.parametrize("delta", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("start", ["assumption1", "zero_readout"])
def test_both_sides_of_every_condition(delta, start):
    model, X, y = problem(sigma_w2=0.02, start=start)
    found, wanted = eq.certify(model, X, y, theorem="ling2023", delta=delta), by_hand(model, X, y, delta)
    for label in LABELS:
        assert found[label].lhs == pytest.approx(wanted[label][0], rel=1e-8)
        assert found[label].rhs == pytest.approx(wanted[label][1], rel=1e-8)
    assert found.max_step_size == pytest.approx(wanted["(10)"], rel=1e-8)
    assert found.exponent == pytest.approx(wanted["(7)"][0] / 2, rel=1e-8)
    assert found.movement == pytest.approx(wanted["movement"], rel=1e-8)
    assert found["‖W‖+δ < 1"].lhs == pytest.approx(size(model.W.detach()) + delta, rel=1e-12)


def test_the_printed_condition_has_4_where_the_proof_needs_8():
    model, X, y = feasible()
    cert = eq.certify(model, X, y, theorem="ling2023", delta=0.078, printed=True)
    (printed,) = (c for c in cert.claims if c.printed)
    assert printed.name == "(9)"
    assert printed.rhs == pytest.approx(cert["(9)"].rhs / 2, rel=1e-12)
    assert printed.lhs == cert["(9)"].lhs
    # Between the two, the paper says yes and the proof does not.
    between = eq.certify(model, X, y, theorem="ling2023", delta=0.095, printed=True)
    assert next(c for c in between.claims if c.printed).holds
    assert between["(9)"].refuted
    assert not between.proved
    assert not any(c.printed for c in eq.certify(model, X, y, theorem="ling2023").claims)


@pytest.mark.parametrize("seed", range(3))
def test_the_chosen_radius_beats_fixed_ones(seed):
    model, X, y = problem(seed=seed, sigma_w2=0.01, start="zero_readout")
    worst = lambda c: min(c[label].margin for label in LABELS)
    chosen = worst(eq.certify(model, X, y, theorem="ling2023"))
    for delta in (1e-3, 1e-2, 0.05, 0.1, 0.2, 0.4):
        assert chosen >= worst(eq.certify(model, X, y, theorem="ling2023", delta=delta)) * (1 - 1e-6)


def test_the_feasible_instance_is_proved_in_most_draws():
    proved = [eq.certify(*feasible(seed), theorem="ling2023", delta=0.078).proved for seed in range(10)]
    assert 7 <= sum(proved)
    assert sum(eq.certify(*feasible(seed), theorem="ling2023").proved for seed in range(5)) >= sum(proved[:5])


def test_descent_keeps_every_promise():
    model, X, y = feasible()
    cert = eq.certify(model, X, y, theorem="ling2023", delta=0.078)
    assert cert.proved, cert.explain()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    before, losses = model.equilibrium(X).detach(), []
    for _ in range(6):
        history = eq.gradient_descent(model, X, y, steps=25, step_size=cert.step_size)
        losses += history.loss[1 if losses else 0 :].tolist()
        for name, first in start.items():
            assert size(getattr(model, name).detach() - first) <= 0.078
        assert size(model.W.detach()) < 1
        Z = model.equilibrium(X).detach()
        assert float(torch.linalg.eigvalsh(Z @ Z.T)[0]) >= cert.constants["lambda0"] / 2
        assert 0 < float((Z - before).norm()) <= cert.movement * float(before.norm())
    assert len(losses) == 151
    assert all(seen <= cert.bound(k) * losses[0] for k, seen in enumerate(losses))
    assert losses[-1] < 0.75 * losses[0]
    # The PL inequality ‖∇L‖² ≥ λ₀ L, at the end.
    loss = 0.5 * (model(X) - y).square().sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert sum(float(g.square().sum()) for g in gradients) >= cert.constants["lambda0"] * loss.item()


@pytest.mark.parametrize("width", [20, 100, 400])
@pytest.mark.parametrize("N", [2, 5])
def test_condition_1_is_refused_under_assumption_1_at_every_width(width, N):
    """(9) needs ‖a(0)‖ + δ ≤ (1 − ρ_w)/(2√N), but a ~ N(0, 1/m) has norm 1."""
    for seed in range(2):
        model, X, y = problem(N=N, d=10, m=width, seed=seed, sigma_w2=0.001)
        cert = eq.certify(model, X, 1e-6 * y, theorem="ling2023")
        assert not cert.proved
        assert cert["(9)"].refuted
        assert "start='zero_readout'" in cert.explain()
        for delta in (1e-9, 1e-3, 0.1, 0.5):
            assert eq.certify(model, X, 1e-6 * y, theorem="ling2023", delta=delta)["(9)"].refuted


def test_a_radius_without_room_proves_nothing():
    model, X, y = feasible()
    for delta in (0.95, 2.0, 1 - size(model.W.detach())):
        cert = eq.certify(model, X, y, theorem="ling2023", delta=delta)
        assert not cert.proved
        assert not cert["‖W‖+δ < 1"].holds
        assert not cert["(7)"].holds
    for delta in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="delta must be > 0"):
            eq.certify(model, X, y, theorem="ling2023", delta=delta)


def test_weights_of_norm_1_are_refused_at_once():
    model, X, y = feasible()
    with torch.no_grad():
        model.W.copy_(torch.eye(400))
    cert = eq.certify(model, X, y, theorem="ling2023")
    assert not cert.proved
    assert [c.name for c in cert.claims] == ["‖W‖ < 1"]
    with torch.no_grad():
        model.W.mul_(1.5)
    assert eq.certify(model, X, y, theorem="ling2023").verdict == "hypotheses_fail"


def test_duplicates_and_narrow_networks_are_refused():
    model, X, y = feasible()
    cert = eq.certify(model, X[[0, 1, 0]], y[[0, 1, 0]], theorem="ling2023")
    assert "row 0 and row 2, which are equal" in cert.explain()
    assert not cert.proved
    narrow = eq.GaussianReLU(10, 1, sigma_w2=0.001, start="zero_readout", dtype=F64)
    cert = eq.certify(narrow, X, y, theorem="ling2023")
    assert cert.verdict == "hypotheses_fail"
    assert "a width of at least 2" in cert.explain()


def test_other_networks_and_losses_are_refused():
    _, X, y = feasible()
    cert = eq.certify(eq.ScaledReLU(10, 20, dtype=F64), X, y, theorem="ling2023")
    assert "about GaussianReLU. Got ScaledReLU" in cert.explain()
    two = eq.GaussianReLU(10, 20, outputs=2, dtype=F64)
    assert "one output" in eq.certify(two, X, torch.stack([y, y], 1), theorem="ling2023").explain()


@pytest.mark.slow
def test_the_papers_setting_at_full_size():
    """n = d = 1000, m = 2000, σ_w² = .08: margins of (7)-(9) about 3e-9, 7e-11, 2e-9, and λ₀ < mλ*/2."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(1000, 1000, dtype=F64, generator=generator)
    X *= 1000**0.5 / X.norm(dim=1, keepdim=True)
    y = torch.randn(1000, dtype=F64, generator=generator)
    model = eq.GaussianReLU(1000, 2000, dtype=F64, generator=generator)
    cert = eq.certify(model, X, y, theorem="ling2023")
    assert cert.verdict == "hypotheses_fail"
    for label, expected in (("(7)", 3e-9), ("(8)", 7e-11), ("(9)", 2e-9)):
        assert expected / 100 < cert[label].margin < expected * 100
    assert cert.constants["lambda0"] == pytest.approx(61, rel=0.3)
    assert cert.constants["lambda0"] < 2000 * eq.population_lambda_min(X, sigma_w2=0.08) / 2
