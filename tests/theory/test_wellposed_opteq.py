"""The `wellposed` certificate of OptEq and DeepOptEq: strict, and sound in floating point."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.linalg import Interval
from equipoise.models.proximal import DeepOptEq, OptEq
from equipoise.models.proximal.properties import (
    L1,
    GradientStep,
    GroupLasso,
    Property,
    Proximal,
    differentiable,
)
from equipoise.solve import Activation, half_squared_norm, inverse_norm
from equipoise.theory import equilibrium_error, facts
from equipoise.theory.certificate import Certificate


def draw(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer(size=0.9, mu=1.0, n=6, m=4, activation="relu", seed=0, **options):
    model = OptEq(3, m, n, mu, activation=activation, dtype=torch.float64, **options)
    with torch.no_grad():
        W = draw(seed, n, m)
        model.W.copy_(size * model.proximal_norm * W / torch.linalg.matrix_norm(W, 2))
        model.b.copy_(draw(seed + 1, n))
    return model, draw(seed + 2, 5, 3)


def deep(sizes=(0.9, 0.8), alpha=0.5, activation="relu", seed=0, **options):
    model = DeepOptEq(3, 4, [5] * len(sizes), alpha, activation=activation, dtype=torch.float64, **options)
    with torch.no_grad():
        for l, (block, size) in enumerate(zip(model.layers, sizes, strict=True)):
            W = draw(seed + l, 5, 4)
            block.W.copy_(size * W / torch.linalg.matrix_norm(W, 2))
            block.b.copy_(draw(seed + 10 + l, 5))
    return model, draw(seed + 2, 5, 3)


def test_one_layer_is_proved_below_mu_and_never_at_it():
    model, X = layer(mu=2.0)
    certificate = eq.certify(model, X, theorem="wellposed")
    assert certificate.proved
    claim = certificate["L_σ‖W‖² < μ"]
    assert claim.lhs == pytest.approx(0.81 * 2, rel=1e-12)
    assert claim.rhs == 2.0
    assert claim.relation == "<"
    assert certificate.constants["rate"] == pytest.approx(0.81, rel=1e-12)
    assert certificate.constants["R"] == pytest.approx(1 / 0.19, rel=1e-10)
    assert certificate.constants["error"] < 1e-10
    assert "exactly one equilibrium" in certificate.explain()
    for mu in (1.0, 4.0):
        with torch.no_grad():  # ‖W‖² = μ exactly: a diagonal of powers of two
            model.mu = mu
            model.W.zero_()
            model.W.fill_diagonal_(mu**0.5)
        assert not eq.certify(model, X).proved
        with torch.no_grad():
            model.W.mul_(1 - 1e-9)
        assert eq.certify(model, X).proved
        with torch.no_grad():
            model.W.mul_(1 + 1e-6)
        refused = eq.certify(model, X)
        assert refused.verdict == "hypotheses_fail"
        assert "project_(0.99)" in refused.explain()


def test_deep_networks_need_one_strict_norm():
    model, X = deep((1.0, 0.9), alpha=1.0)
    model.project_()
    certificate = eq.certify(model, X)
    assert certificate.proved
    assert certificate.constants["rate"] == pytest.approx(0.81, rel=1e-9)
    both, X = deep((1.0, 1.0))
    assert not eq.certify(both, X).proved
    assert not eq.certify(both.project_(), X).proved
    assert eq.certify(both.project_(0.99), X).proved
    # One layer above 1 may be made good by another: the product is what counts.
    mixed, X = deep((1.05, 0.5), alpha=1.0)
    assert eq.certify(mixed, X).proved
    worse, X = deep((1.5, 0.9), alpha=0.5)
    assert eq.certify(worse, X).verdict == "hypotheses_fail"


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.sampled_from([0.3, 0.9, 1.0, 1.1]), min_size=1, max_size=3),
    alpha=st.sampled_from([0.2, 0.7, 1.0]),
    activation=st.sampled_from(["relu", "tanh", "softplus", "hardtanh"]),
)
def test_the_rate_bounds_every_pair_and_the_error_every_guess(seed, sizes, alpha, activation):
    model, X = deep(sizes, alpha, activation, seed)
    certificate = eq.certify(model, X)
    q = model.contraction()
    assert certificate.proved == (q is not None and q < 1 - 1e-12) or abs((q or 1.0) - 1) < 1e-9
    if not certificate.proved:
        return
    injections, weights = model.injections(X), model.weights()
    x, y = draw(seed + 50, 2, 5, 4)
    moved = (model.T(x, injections, weights) - model.T(y, injections, weights)).norm(dim=1)
    assert (moved <= certificate.constants["rate"] * (x - y).norm(dim=1) * (1 + 1e-12)).all()
    stop = eq.Stop(rtol=1e-15, atol=1e-15, max_steps=20000)
    exact = model.solve(X, stop=stop).value
    for size in (1e-9, 1e-3, 1.0):
        guess = exact + size * draw(seed + 60, 5, 4)
        error = eq.theory.equilibrium_error(model, X, guess)
        true = (guess - exact).norm().item()
        assert true - 1e-11 <= error <= 3 * true / (1 - certificate.constants["rate"]) + 1e-11


def test_the_error_covers_the_rounding_of_single_precision_weights():
    model, X = layer()
    single = OptEq(3, 4, 6, dtype=torch.float32)
    single.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    certificate = eq.certify(single, X.float())
    assert certificate.proved
    assert certificate.constants["error"] < 1e-10  # of the float64 solve, with the stored weights
    Z = single.equilibrium(X.float()).detach()
    error = eq.theory.equilibrium_error(single, X.float(), Z)
    exact = _double(single).solve(X.float().double(), stop=eq.Stop(rtol=1e-14, max_steps=9999)).value
    assert (Z.double() - exact).norm() <= error < 1e-2


def _double(model):
    twin = OptEq(3, 4, 6, dtype=torch.float64)
    twin.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    return twin


def test_parameterised_weights_and_properties_are_covered():
    model, X = layer(bound=0.8)
    with torch.no_grad():
        model.W.mul_(100)
    certificate = eq.certify(model, X)
    assert certificate.proved
    assert certificate.constants["rate"] == pytest.approx(0.64, rel=1e-9)
    for regulariser in (L1(0.1), GroupLasso(0.1, 2)):
        model, X = layer(regulariser=regulariser)
        certificate = eq.certify(model, X)
        assert certificate.proved
        assert certificate.constants["error"] < 1e-10
    model, X = layer(regulariser=GradientStep(inverse_norm()))
    assert eq.certify(model, X).verdict == "hypotheses_fail"


def test_a_step_that_cancels_is_charged_for_what_it_cancels():
    model, X = layer(0.1, regulariser=GradientStep(half_squared_norm(), 1.0))  # z − z = 0 for every z
    before = model.layer_map(torch.zeros(5, 4, dtype=torch.float64), model.injection(X), model.W)
    error = equilibrium_error(model, X, torch.zeros(5, 4))
    assert error >= 200 * 2**-53 * before.norm().item() > 0


def test_an_extractor_is_a_hypothesis():
    model, X = deep(feature_map=torch.tanh)
    words = "features of X, as computed, are taken as exact"
    assert any(words in one for one in eq.certify(model, X).hypotheses)
    assert not any(words in one for one in eq.certify(*deep()).hypotheses)


def test_what_cannot_be_trusted_is_never_proved():
    model, X = layer()
    for broken in (math.nan, math.inf):
        bad = X.clone()
        bad[2, 0] = broken
        certificate = eq.certify(model, bad)
        assert certificate.verdict == "hypotheses_fail"
        assert "X holds NaN or infinity in row 2" in certificate.obstacle
        assert equilibrium_error(model, bad, torch.zeros(5, 4, dtype=torch.float64)) == math.inf
    with torch.no_grad():
        model.b[0] = math.nan
    assert "b holds NaN" in eq.certify(model, X).obstacle

    class Other(OptEq):
        def layer_map(self, z, c, W):
            return 2 * super().layer_map(z, c, W)

    other = Other(3, 4, 6, dtype=torch.float64)
    assert "Other may compute otherwise than OptEq" in eq.certify(other, X).obstacle
    assert "load_state_dict" in eq.certify(other, X).obstacle
    with pytest.raises(ValueError, match="at least one row"):
        eq.certify(layer()[0], X[:0])
    with pytest.raises(TypeError, match="known of the affine families"):
        eq.certify(layer()[0], X, torch.zeros(5, dtype=torch.float64), theorem="two_timescale")
    with pytest.raises(ValueError, match=r"Z must be \(5, 4\)"):
        eq.theory.equilibrium_error(layer()[0], X, X)


def test_certificates_are_written_read_and_verified(tmp_path):
    model, X = deep()
    certificate = eq.certify(model, X)
    again = Certificate.load(certificate.save(tmp_path / "c.json"))
    assert again.to_dict() == certificate.to_dict()
    assert again.verify(model, X).proved
    with torch.no_grad():
        model.layers[0].W.mul_(0.5)
    with pytest.raises(ValueError, match="about other weights"):
        again.verify(model, X)


def test_the_rigorous_tier_agrees():
    pytest.importorskip("flint")
    for model, X in (layer(), deep()):
        plain, rigorous = eq.certify(model, X), eq.certify(model, X, tier="rigorous")
        assert rigorous.proved
        assert rigorous.tier == "rigorous"
        assert rigorous.constants["rate"] == pytest.approx(plain.constants["rate"], rel=1e-9)


def test_a_declared_slope_enters_the_claim():
    steep = Activation("steep", lambda p: 3 * torch.tanh(p), lambda p: 3 / torch.cosh(p) ** 2, lipschitz=3.0)
    model, _ = layer(size=0.9, mu=1.0, activation=steep)
    claim, q = facts(model).contraction(lambda W: eq.linalg.singular_bounds(W).norm, "")
    assert claim.holds
    assert q.hi == pytest.approx(0.81, rel=1e-9)
    assert torch.linalg.matrix_norm(model.W, 2).item() == pytest.approx(0.9 / 3**0.5)


class Triple(Property):
    def __call__(self, z):
        return 3 * z


class Shrunk(Proximal):
    def __call__(self, z):
        return z / 3

    def value(self, z):
        return z.square().sum(dim=1)


def test_a_property_of_ones_own_is_not_presumed_nonexpansive():
    model, X = layer(regulariser=Triple())
    found = eq.certify(model, X)
    assert not found.proved
    assert "not known to be nonexpansive" in found.obstacle
    with pytest.raises(ValueError, match="not known to be nonexpansive"):
        model.check_wellposed()


def test_what_is_declared_of_a_property_is_a_hypothesis():
    believed = lambda **options: [h for h in eq.certify(*layer(**options)).hypotheses if "as declared" in h]
    assert believed(regulariser=L1(0.1)) == []
    assert believed(regulariser=Shrunk()) == ["Shrunk() is nonexpansive, as declared"]
    R = differentiable(lambda z: -z.square().sum(1), lipschitz=0.1, convex=True, name="R")  # a lie
    assert believed(regulariser=GradientStep(R)) == [
        "R is convex and ∇R has the Lipschitz constant 0.1, as declared"
    ]


def test_a_model_that_returns_no_equilibrium_has_that_said():
    of_equilibria = lambda model, X: [h for h in eq.certify(model, X).hypotheses if "of equilibria" in h]
    model, X = layer()
    assert of_equilibria(model, X) == []
    model, X = layer(gradient=2)
    assert "returns the last iterate of Unrolled(steps=2" in of_equilibria(model, X)[0]
    model, X = layer(gradient=5, solver=eq.SAM())
    assert "returns iterates of SAM" in of_equilibria(model, X)[0]


def test_stacked_blocks_are_certified_as_the_deep_network_is():
    model, X = deep()
    blocks = model.multi_block()
    of_deep, of_blocks = eq.certify(model, X), eq.certify(blocks, X)
    assert of_blocks.proved
    assert of_blocks.constants["rate"] == of_deep.constants["rate"]
    assert "2 steps of plain iteration bring the iterate nearer" in of_blocks.promise
    rate = of_blocks.constants["rate"]
    c, W = blocks.injections(X), blocks.weights()
    a, b = draw(1, len(X), blocks.state_size), draw(2, len(X), blocks.state_size)
    after = [blocks.T(blocks.T(z, c, W), c, W) for z in (a, b)]
    assert ((after[0] - after[1]).norm(dim=1) <= rate * (a - b).norm(dim=1)).all()
    Z = blocks.equilibrium(X)
    tight = model.equilibrium(X, stop=eq.Stop(rtol=1e-14, atol=1e-14, max_steps=9999))
    assert (Z - tight).norm() <= eq.equilibrium_error(blocks, X, Z) < 1e-5


def test_data_that_are_no_rows_are_refused():
    model, X = layer()
    with pytest.raises(TypeError, match=r"X must be a tensor, one row for each sample\. Got list"):
        eq.certify(model, [1, 2])
    with pytest.raises(ValueError, match="X must be"):
        eq.certify(model, X[:, 1:], tier="rigorous")


@pytest.mark.parametrize("seed", range(5))
def test_weights_scaled_to_the_limit_itself_are_never_proved(seed):
    model, X = layer(size=3.0, n=40, m=30, seed=seed, bound=1.0)  # ‖W‖ = 1 but for rounding
    for dtype in (torch.float64, torch.float32):
        assert eq.certify(model.to(dtype), X.to(dtype)).verdict == "inconclusive"
    plain, _ = layer(size=1 - 1e-15, n=40, m=30, seed=seed)
    as_if = facts(plain).contraction(lambda W: Interval(1 - 1e-15), "exact")[0]
    plain.bound = 1.0  # the same norm, of weights that were scaled
    assert as_if.holds
    assert not facts(plain).contraction(lambda W: Interval(1 - 1e-15), "exact")[0].holds


def test_what_is_proved_of_scaled_weights_holds_of_the_float32_numbers_in_use():
    model = OptEq(1, 1, 1, bound=1 - 1e-8)  # 1 − 1e-8 is 1 in float32
    with torch.no_grad():
        model.W.fill_(3.0)
        model.U.fill_(1.0)
    x = torch.ones(1, 1)
    W = float(model.weight().detach())
    assert W < 1
    assert eq.certify(model, x).proved
    found = model.solve(x)
    assert found.converged.all()
    assert abs(float(found.value) - W / (1 - W * W)) <= equilibrium_error(
        model, x, found.value
    )  # z = W(Wz + 1)
    for seed in range(20):
        for bound in (1 - 1e-8, 1 - 3e-7, 1 - 1e-13, 0.9):
            model = OptEq(3, 5, 8, bound=bound, generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                model.W.mul_(5.0)
            certificate = eq.certify(model, draw(seed, 2, 3).float(), tier="float64")
            norm = float(torch.linalg.matrix_norm(model.weight().detach().double(), 2))
            assert certificate.proved
            assert norm**2 <= certificate.constants["rate"] < 1
            assert eq.lipschitz_bound(model) < math.inf


def test_equilibria_are_those_of_the_float32_weights():
    model = OptEq(3, 5, 8, bound=0.9, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        model.W.mul_(5.0)
        model.b.copy_(draw(4, 8).float())
    same = OptEq(3, 5, 8, dtype=torch.float64)
    same.load_state_dict({**model.state_dict(), "W": model.weight().detach()})
    X = draw(5, 6, 3).float()
    Z = same.solve(X.double(), stop=eq.Stop(rtol=1e-14)).value
    assert equilibrium_error(model, X, Z) < 1e-11  # the scaled weights of float64 are 1e-6 off
    assert eq.certify(model, X).constants["error"] < 1e-10
