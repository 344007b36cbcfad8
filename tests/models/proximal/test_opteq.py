import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from contracts.model import TIGHT
from contracts.proximal import ProximalContract
from equipoise.models.proximal import OptEq
from equipoise.models.proximal.properties import L1
from equipoise.solve import Activation
from equipoise.solve.activation import clamp, leaky_relu


class TestOptEq(ProximalContract):
    family = OptEq
    sizes = {"hidden": 8, "mu": 1.5}  # noqa: RUF012
    equation = "z = (α/μ) Wᵀσ(W z + U x + b) + (1 − α) z"
    curved = "W"
    learning_rate = 0.003


class TestSkipTanh(ProximalContract):
    family = OptEq
    sizes = {"hidden": 5, "mu": 0.7}  # noqa: RUF012
    options = {"alpha": 0.5, "activation": "tanh"}  # noqa: RUF012
    equation = TestOptEq.equation
    curved = "W"


class TestRegularised(ProximalContract):
    """With a property appended: the tangent kernel then goes by Jacobians."""

    family = OptEq
    sizes = {"hidden": 7}  # noqa: RUF012
    options = {"activation": "softplus", "regulariser": L1(0.01)}  # noqa: RUF012
    equation = TestOptEq.equation
    curved = "W"
    learning_rate = 0.003
    loss_falls_to = 0.9


def build(activation="relu", n=6, m=4, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    model = OptEq(3, m, n, activation=activation, dtype=torch.float64, generator=generator, **options)
    with torch.no_grad():
        model.b.copy_(torch.randn(n, dtype=torch.float64, generator=generator))
    return model, torch.randn(5, 3, dtype=torch.float64, generator=generator)


def test_the_start_has_the_stated_norms_and_shapes():
    model = OptEq(3, 40, 50, mu=4.0, outputs=2, dtype=torch.float64)
    assert torch.linalg.matrix_norm(model.W, 2).item() == pytest.approx(0.9 * 2, rel=1e-12)
    assert model.b.abs().max() == 0
    assert [tuple(p.shape) for p in (model.W, model.U, model.b, model.V)] == [
        (50, 40),
        (50, 3),
        (50,),
        (40, 2),
    ]
    assert list(dict(model.named_parameters())) == ["W", "U", "b", "V"]
    assert OptEq(3, 4, 5).V.shape == (4,)
    assert OptEq(3, 4, 5).V.dtype == torch.float32


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_the_skip_changes_the_path_and_not_the_equilibrium(alpha):
    model, X = build()
    want = model.equilibrium(X, stop=TIGHT)
    model.alpha = alpha
    torch.testing.assert_close(model.equilibrium(X, stop=TIGHT), want, rtol=0, atol=1e-11)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 7),
    m=st.integers(1, 7),
    activation=st.sampled_from(
        ["relu", "tanh", "softplus", "leaky_relu", "hardtanh", "identity", "softshrink"]
    ),
)
def test_a_layer_is_firmly_nonexpansive_up_to_the_limit_of_its_norm(seed, n, m, activation):
    model, X = build(activation, n, m, seed, mu=1.7)
    with torch.no_grad():
        model.W.mul_(model.proximal_norm / torch.linalg.matrix_norm(model.W, 2))
    (phi,) = model.potentials(X)
    generator = torch.Generator().manual_seed(seed + 1)
    x, y = 3 * torch.randn(2, 5, m, dtype=torch.float64, generator=generator)
    change = phi.map(x) - phi.map(y)
    assert ((change * (x - y)).sum(dim=1) >= change.square().sum(dim=1) - 1e-12).all()


def test_activations_of_a_user_are_held_to_what_they_declare():
    steep = Activation("steep", lambda p: 2 * torch.tanh(p), lambda p: 2 / torch.cosh(p) ** 2, lipschitz=2.0)
    model, X = build(steep)
    assert model.proximal_norm == pytest.approx(0.5**0.5)
    assert torch.linalg.matrix_norm(model.W, 2).item() == pytest.approx(0.9 * 0.5**0.5)
    assert eq.certify(model, X).proved
    assert "as declared" in eq.certify(model, X).hypotheses[1]
    lying = Activation("steep", steep.value, steep.slope, lipschitz=1.0)
    with pytest.raises(
        ValueError, match=r"slopes in \[0, 1\], as it declares. Got slopes of steep from .* to 2"
    ):
        build(lying)
    gelu = Activation("gelu", torch.nn.functional.gelu, lambda p: p, lipschitz=1.2)
    with pytest.raises(ValueError, match="monotone"):
        build(gelu)
    with pytest.raises(ValueError, match="finite and > 0"):
        build(Activation("flat", torch.zeros_like, torch.zeros_like, lipschitz=0.0))


@pytest.mark.parametrize(
    "name", ["softplus", "relu", "hardtanh", "leaky_relu(0.1)", "clamp(-1, 1)", "clamp(x"]
)
def test_an_activation_does_not_borrow_the_name_of_another(name):
    half = Activation(name, lambda p: 0.5 * torch.tanh(p), lambda p: 0.5 * (1 - torch.tanh(p) ** 2))
    with pytest.raises(ValueError, match=r"is (the name of another activation|not the name of any clamp)"):
        build(half)
    build(clamp(-1 / 3, 1e6 / 7))  # a name that rounds


def test_a_file_keeps_what_is_known_by_name_and_asks_for_what_is_a_function(tmp_path):
    path = tmp_path / "m.safetensors"
    own = leaky_relu(0.3)
    model, X = build(own)
    model.save(path)
    with pytest.raises(ValueError, match=r"pass your own to load\(path, activation=…\)"):
        eq.load(path)
    assert torch.equal(eq.load(path, activation=own)(X), model(X))

    model, X = build(gradient=15, solver=eq.SAM(rho=0.5, c=0.1), regulariser=L1(0.2), bound=0.8)
    model.save(path)
    twin = eq.load(path)
    assert torch.equal(twin(X), model(X))
    assert twin.gradient == eq.Unrolled(15)
    assert twin.method.solver.rho == 0.5
    assert twin.bound == 0.8

    model, X = build(stop=eq.Stop(rtol=1e-3, max_steps=77))
    model.save(path)
    assert eq.load(path).method.stop == eq.Stop(rtol=1e-3, max_steps=77)
    assert torch.equal(eq.load(path)(X), model(X))
    with pytest.raises(TypeError, match="stop must be a Stop such as"):
        build(stop=1e-6)

    model, X = build(gradient=15, solver=eq.SAM(eq.solve.inverse_norm(0.5)))
    model.save(path)
    with pytest.raises(TypeError, match=r"pass such a SAM to load\(path, solver=…\)"):
        eq.load(path)
    assert torch.equal(eq.load(path, solver=model.method.solver)(X), model(X))

    model, X = build(gradient=eq.Unrolled(4, eq.Picard(damping=0.5)), on_failure="accept")
    model.save(path)
    assert torch.equal(eq.load(path, on_failure="accept")(X), model(X))

    model, X = build(solver=[eq.SAM(), eq.Picard()])
    model.save(path)
    with pytest.raises(TypeError, match=r"pass such a SAM to load\(path, solver=…\)"):
        eq.load(path)


def test_weights_that_are_too_large_are_named_when_a_solve_fails():
    model, X = build()
    with torch.no_grad():
        model.W.mul_(5)
    with pytest.raises(
        eq.EquilibriumError, match=r"√\(L_σ/μ\)‖W_l‖ must be ≤ 1 .* Got 4\.5: project_\(0\.99\)"
    ):
        model(X)
    assert model.contraction() is None
    with pytest.raises(ValueError, match="mu must be a finite number > 0"):
        build(mu=0.0)
    with pytest.raises(ValueError, match="hidden must be an integer ≥ 1"):
        build(n=0)
    with pytest.raises(ValueError, match=r"bound must lie in \(0, 1\]"):
        build(bound=1.5)


def test_implicit_against_unrolled_gradients_as_the_paper_trains():
    """K = 400 to rounding, K = 20 as near as the contraction takes it."""
    model, X = build()
    with torch.no_grad():
        model.W.mul_(0.5**0.5 / torch.linalg.matrix_norm(model.W, 2))  # contraction ½
    exact = torch.autograd.grad(model(X, stop=TIGHT).sum(), list(model.parameters()))
    for K, bound in ((400, 1e-13), (20, 1e-4)):
        unrolled = model(X, gradient=eq.Unrolled(K), on_failure="accept").sum()
        for a, b in zip(exact, torch.autograd.grad(unrolled, list(model.parameters())), strict=True):
            assert (a - b).abs().max() < bound
