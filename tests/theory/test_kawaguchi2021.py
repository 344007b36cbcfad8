"""[kawaguchi2021, Theorem 1, Corollaries 1 and 2]: the exponent, the promise watched, what is refused."""

import math

import pytest
import torch

import equipoise as eq

F64 = torch.float64


def problem(N=12, m=4, k=1, seed=0, gamma=0.8, **more):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, m, dtype=F64, generator=generator)
    y = torch.randn(N, k, dtype=F64, generator=generator)
    return eq.LinearEquilibrium(m, outputs=k, gamma=gamma, dtype=F64, generator=generator, **more), X, y


def labels(N, seed=0):
    return (torch.rand(N, 1, generator=torch.Generator().manual_seed(seed)) < 0.5).to(F64)


@pytest.mark.parametrize(("N", "m"), [(12, 4), (4, 12), (6, 6)])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("gamma", [0.1, 0.8, 0.99])
def test_the_exponent_of_the_square_loss(N, m, k, gamma):
    """4σ²/(m(1+γ)²), with σ the min(N, m)-th singular value."""
    model, X, y = problem(N, m, k, gamma=gamma)
    cert = eq.certify(model, X, y, theorem="kawaguchi2021")
    assert cert.proved, cert.explain()
    sigma = float(torch.linalg.svdvals(X)[-1])
    assert cert.exponent == pytest.approx(4 * sigma**2 / (m * (1 + gamma) ** 2), rel=1e-8)
    assert cert.exponent <= 4 * sigma**2 / (m * (1 + gamma) ** 2)
    assert cert.constants["kappa"] == pytest.approx(2 * sigma**2, rel=1e-8)
    assert cert.loss == "square"
    assert cert.kind == "flow"


@pytest.mark.parametrize("tau", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("radius", [None, 1e4, 3.0])
def test_the_exponent_of_the_logistic_loss(tau, radius):
    model, X, _ = problem()
    with torch.no_grad():
        model.B.mul_(0.01)
    cert = eq.certify(model, X, labels(12), theorem="kawaguchi2021", loss="logistic", tau=tau, radius=radius)
    c = math.inf if radius is None else radius * float(X.abs().sum(dim=1).max())
    rho = 1 / (2 + 2 * math.cosh(c)) if c < 700 else 0.0  # p(1 − p) at q = c
    kappa = (2 * tau + rho) * float(torch.linalg.svdvals(X)[-1]) ** 2
    assert cert.constants["kappa"] == pytest.approx(kappa, rel=1e-8, abs=1e-300)
    assert cert.exponent == pytest.approx(2 * kappa / (4 * 1.8**2), rel=1e-8, abs=1e-300)
    assert cert.proved == (kappa > 0)
    if not cert.proved:
        assert "κ > 0" in cert.explain()
        assert "tau > 0" in cert.explain()
    assert any("along the whole path" in h for h in cert.hypotheses) == (radius is not None)


def test_the_exponent_bounds_the_spectrum_of_d():
    """λ_min(D) ≥ 1/(m(1+γ)²), of which the start-dependent bound is the sharper form."""
    for seed in range(10):
        model, X, y = problem(seed=seed)
        cert = eq.certify(model, X, y, theorem="kawaguchi2021")
        assert eq.models.affine.linear.d_operator(model).lambda_min() >= cert.constants["lambda_T"]


@pytest.mark.parametrize(("N", "k", "gamma"), [(12, 1, 0.8), (12, 2, 0.5), (3, 1, 0.8)])
def test_the_flow_keeps_its_promise(N, k, gamma):
    model, X, y = problem(N, 4, k, gamma=gamma)
    cert = eq.certify(model, X, y, theorem="kawaguchi2021")
    M = torch.linalg.lstsq(X, y, driver="gelsd").solution
    least = float((X @ M - y).square().sum())
    kernel = eq.tangent_kernel(model, X).total.reshape(N * k, N * k)
    step = 0.005 / float(torch.linalg.eigvalsh(kernel)[-1])
    history = eq.gradient_descent(model, X, y, steps=600, step_size=step)
    gap = history.loss - least
    assert all(gap[j] <= cert.bound(j * step) * gap[0] for j in range(601))
    assert gap[-1] < 0.6 * gap[0]


def test_the_flow_of_the_regularised_logistic_loss_keeps_its_promise():
    model, X, _ = problem()
    y, loss = labels(12), eq.losses.Logistic(tau=0.1)
    cert = eq.certify(model, X, y, theorem="kawaguchi2021", loss="logistic", tau=0.1)
    M = torch.zeros(4, 1, dtype=F64, requires_grad=True)  # Newton's method for L*
    for _ in range(30):
        gradient = torch.autograd.functional.jacobian(lambda M: loss(X @ M, y), M).flatten()
        hessian = torch.autograd.functional.hessian(lambda M: loss(X @ M, y), M).reshape(4, 4)
        M = (M - torch.linalg.solve(hessian, gradient)[:, None]).detach()
    least = float(loss(X @ M, y))
    history = eq.gradient_descent(model, X, y, steps=600, step_size=2e-4, loss=loss)
    gap = history.loss - least
    assert (gap > 0).all()
    assert all(gap[j] <= cert.bound(j * 2e-4) * gap[0] for j in range(601))
    assert gap[-1] < 0.9 * gap[0]


def test_dependent_features_are_refused():
    model, X, y = problem()
    X[:, 3] = X[:, 0] + X[:, 1]
    cert = eq.certify(model, X, y, theorem="kawaguchi2021")
    assert not cert.proved
    assert not cert["σ_min(Φ) > 0"].holds
    assert "depend on others" in cert.explain()
    zero = eq.certify(model, 0 * X, y, theorem="kawaguchi2021")
    assert zero.verdict == "hypotheses_fail"


def test_a_start_outside_the_radius_is_refused():
    model, X, _ = problem()
    limit = float(model.B.detach().abs().sum(dim=0).max()) / 0.2  # ‖B₀‖₁/(1 − γ)
    inside, outside = (
        eq.certify(model, X, labels(12), theorem="kawaguchi2021", loss="logistic", radius=limit * s)
        for s in (1.001, 0.999)
    )
    assert inside["‖B₀‖₁ < (1−γ)R"].holds
    assert outside["‖B₀‖₁ < (1−γ)R"].refuted
    assert outside.verdict == "hypotheses_fail"


def test_wrong_labels_are_refused_by_row():
    model, X, _ = problem()
    y = labels(12)
    y[7] = -1
    cert = eq.certify(model, X, y, theorem="kawaguchi2021", loss="logistic", tau=0.1)
    assert cert.verdict == "hypotheses_fail"
    assert "Got y = -1 in row 7" in cert.explain()


def test_wrong_options_are_errors():
    theorem = eq.theory.kawaguchi2021.Theorem1
    with pytest.raises(ValueError, match="loss must be one of"):
        theorem(loss="hinge")
    for tau in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="tau must be"):
            theorem(loss="logistic", tau=tau)
    for radius in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="radius must be"):
            theorem(loss="logistic", radius=radius)
    with pytest.raises(ValueError, match="belong to the logistic loss"):
        theorem(tau=0.1)


def test_a_target_of_the_wrong_shape_is_told_the_right_one():
    model, X, y = problem()
    with pytest.raises(ValueError, match=r"\(12, 1\) like the network's output.*Try y\[:, None\]"):
        eq.certify(model, X, y[:, 0], theorem="kawaguchi2021")


def test_other_networks_are_refused():
    _, X, y = problem()
    cert = eq.certify(eq.GaussianReLU(4, 4, dtype=F64), X, y[:, 0], theorem="kawaguchi2021")
    assert "about LinearEquilibrium. Got GaussianReLU" in cert.explain()


def test_features_are_certified_as_computed_and_must_not_be_trained():
    square = lambda x: torch.cat([x, x.square()], dim=1)
    model = eq.LinearEquilibrium(8, feature_map=square, dtype=F64)
    _, X, y = problem()
    cert = eq.certify(model, X, y, theorem="kawaguchi2021")
    assert cert.proved
    assert cert.constants["sigma_min"] == pytest.approx(float(torch.linalg.svdvals(square(X))[-1]), rel=1e-8)
    assert any("φ(X)" in h for h in cert.hypotheses)
    trained = eq.LinearEquilibrium(8, feature_map=torch.nn.Linear(4, 8, dtype=F64), dtype=F64)
    assert "not trained" in eq.certify(trained, X, y, theorem="kawaguchi2021").explain()
    trained.feature_map.requires_grad_(False)
    assert eq.certify(trained, X[:4], y[:4], theorem="kawaguchi2021").proved
    broken = eq.LinearEquilibrium(4, feature_map=lambda x: x.log(), dtype=F64)
    cert = eq.certify(broken, X, y, theorem="kawaguchi2021")
    assert "feature_map(X) holds NaN or infinity in row" in cert.explain()


def test_the_paper_prints_these_bounds_rightly():
    model, X, y = problem()
    assert (
        "As printed, the bounds are the same"
        in eq.certify(model, X, y, theorem="kawaguchi2021", printed=True).explain()
    )
