"""One equilibrium for every input: each family's reason, its rate, and the error of what was computed."""

import math

import pytest
import torch

import equipoise as eq
from equipoise.linalg import Interval
from equipoise.theory import equilibrium_error
from equipoise.theory.enclosure import contracts
from problems import exact_affine

F64 = torch.float64


def gaussian(norm, n=6, seed=0, symmetric=False):
    """‖W‖ as given; of a symmetric W ⪰ 0 it is λ_max(sym W) too."""
    generator = torch.Generator().manual_seed(seed)
    model = eq.GaussianReLU(3, n, dtype=F64, generator=generator)
    with torch.no_grad():
        if symmetric:
            model.W.copy_(model.W @ model.W.T)
        model.W.mul_(norm / torch.linalg.matrix_norm(model.W, 2))
    return model


def family(name, seed=0, outputs=1):
    settings = {"outputs": outputs, "dtype": F64, "generator": torch.Generator().manual_seed(seed)}
    return {
        "gao2022": lambda: eq.ScaledReLU(3, 6, init="section5.2", **settings),
        "ling2023": lambda: eq.GaussianReLU(3, 6, sigma_w2=0.05, **settings),
        "hieu2022": lambda: eq.Monotone(3, 6, margin=0.3, **settings),
        "hieu2022 bias": lambda: eq.Monotone(3, 6, margin=0.3, bias=True, **settings),
        "kawaguchi2021": lambda: eq.LinearEquilibrium(3, **settings),
    }[name]()


FAMILIES = ["gao2022", "ling2023", "hieu2022", "hieu2022 bias", "kawaguchi2021"]


def margin(W):
    """λ_min(sym(I − W))."""
    return 1 - float(torch.linalg.eigvalsh((W + W.T).detach() / 2)[-1])


def inputs(N=4, seed=1):
    return torch.randn(N, 3, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_proved_by_its_own_reason(name, outputs):
    model = family(name, outputs=outputs)
    cert = eq.certify(model, inputs())
    assert cert.proved, cert.explain()
    assert cert.kind == "static"
    reason = {"gao2022": "γ‖A‖ < 1", "ling2023": "‖W‖ < 1", "kawaguchi2021": "‖γS‖₁ = γ < 1"}
    assert cert.constants["reason"] == reason.get(name, "the monotone margin μ")
    assert cert.constants["reason"] in cert.explain()
    assert cert.constants["error"] < 1e-8


def test_the_resolvent_bound_and_the_rate_of_each_family():
    X = inputs()
    model = family("ling2023")
    q = float(torch.linalg.matrix_norm(model.W.detach(), 2))
    found = eq.certify(model, X).constants
    assert found["rate"] == pytest.approx(q, rel=1e-12)
    assert found["R"] == pytest.approx(1 / margin(model.weight()), rel=1e-12)
    assert found["R"] < 1 / (1 - q)
    model = family("gao2022")
    q = model.gamma * float(torch.linalg.matrix_norm(model.A.detach(), 2))
    found = eq.certify(model, X).constants
    assert found["rate"] == pytest.approx(q, rel=1e-12)
    assert found["R"] == pytest.approx(1 / margin(model.weight()), rel=1e-12)
    assert found["R"] <= 1 / (1 - q) * (1 + 1e-12)
    model = family("kawaguchi2021")
    found = eq.certify(model, X).constants
    assert found["rate"] == pytest.approx(0.8)
    assert found["R"] == pytest.approx(3**0.5 / 0.2)
    model = family("hieu2022")
    found = eq.certify(model, X).constants
    ell = float(torch.linalg.matrix_norm(torch.eye(6) - model.weight().detach(), 2))
    assert found["rate"] == pytest.approx(math.sqrt(1 - (0.3 / ell) ** 2), rel=1e-10)
    assert found["R"] == pytest.approx(1 / 0.3)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_promised_rate_is_kept_by_the_solver(name):
    """Plain iteration (forward-backward splitting for Monotone) comes nearer by the rate at every step."""
    model, X = family(name), inputs()
    found = eq.certify(model, X).constants
    Z = model.equilibrium(X, stop=eq.Stop(rtol=1e-13, max_steps=5000)).detach()
    W, u = model.weight().detach(), model.injection(X).detach()
    z = torch.randn(4, len(W), dtype=F64, generator=torch.Generator().manual_seed(2)).abs()
    p = 1 if name == "kawaguchi2021" else 2
    for _ in range(20):
        before = (z - Z).norm(p=p, dim=1)
        if "hieu2022" in name:
            ell = float(torch.linalg.matrix_norm(torch.eye(6, dtype=F64) - W, 2))
            z = torch.relu(z - 0.3 / ell**2 * (z - z @ W.T - u))
        else:
            z = model.activation(z @ W.T + u)
        assert bool(((z - Z).norm(p=p, dim=1) <= found["rate"] * before + 1e-11).all())


@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-9, 1e-12])
def test_norms_just_below_and_above_1_are_told_apart(distance):
    X = inputs()
    assert eq.certify(gaussian(1 - distance), X).proved
    assert eq.certify(gaussian(1 - distance, symmetric=True), X).proved
    assert eq.certify(gaussian(1 + distance, symmetric=True), X).verdict == "hypotheses_fail"
    assert eq.certify(gaussian(1 + distance), X).constants["reason"] == "λ_max(sym W) < 1"


@pytest.mark.parametrize("sigma_w2", [0.15, 0.2, 0.24])
def test_maps_that_do_not_contract_are_well_posed_where_they_are_monotone(sigma_w2):
    """‖W‖ is about 2√2 σ_w and λ_max(sym W) about 2σ_w: between σ_w² = ⅛ and ¼ only the latter is below 1."""
    generator = torch.Generator().manual_seed(0)
    model = eq.GaussianReLU(3, 60, sigma_w2=0.1, dtype=F64, generator=generator)
    with torch.no_grad():
        model.W.mul_(math.sqrt(sigma_w2 / 0.1))
    X = inputs()
    mu = margin(model.weight())
    assert float(torch.linalg.matrix_norm(model.W.detach(), 2)) > 1 > 1 - mu
    cert = eq.certify(model, X)
    assert cert.proved
    assert cert.constants["R"] == pytest.approx(1 / mu, rel=1e-10)
    Z = model.equilibrium(X, stop=eq.Stop(rtol=1e-13, max_steps=5000)).detach()
    W, u = model.weight().detach(), model.injection(X).detach()
    ell = float(torch.linalg.matrix_norm(torch.eye(60, dtype=F64) - W, 2))
    z = torch.zeros_like(Z)
    for _ in range(10):  # the promised rate is that of forward-backward splitting with the step μ/ℓ²
        before = (z - Z).norm(dim=1)
        z = torch.relu(z - mu / ell**2 * (z - z @ W.T - u))
        assert bool(((z - Z).norm(dim=1) <= cert.constants["rate"] * before + 1e-11).all())
    rough = Z + 1e-3
    assert float((rough - Z).norm()) <= equilibrium_error(model, X, rough) <= 200 * float((rough - Z).norm())


def test_theorems_that_need_a_contraction_say_so():
    model = gaussian(1.2)
    scaled = eq.ScaledReLU(3, 6, gamma=0.5, dtype=F64)
    with torch.no_grad():
        scaled.A.copy_(2 * model.W.T)
    for network, theorem, name in ((model, "ling2023", "‖W‖ < 1"), (scaled, "gao2022.descent", "γ‖A‖ < 1")):
        assert eq.certify(network, inputs()).constants["reason"] == "λ_max(sym W) < 1"
        cert = eq.certify(network, inputs(), torch.ones(4, dtype=F64), theorem=theorem)
        assert cert.verdict == "hypotheses_fail"
        assert cert.claim(name).refuted


def test_a_norm_of_exactly_1_is_not_proved():
    for W in (torch.eye(6), torch.eye(6).flip(0), torch.diag(torch.tensor([1.0, 0, 0, 0, 0, 0]))):
        model = gaussian(0.5)
        with torch.no_grad():
            model.W.copy_(W)
        cert = eq.certify(model, inputs())
        assert not cert.proved
        assert "‖W‖ < 1" in cert.explain()
        assert "Try a smaller W" in cert.explain()


def test_the_reason_is_strict():
    one = contracts(Interval(1.0))
    assert not one.holds
    assert one.refuted
    assert contracts(Interval(math.nextafter(1, 0))).holds


def test_a_small_spectral_radius_is_not_a_contraction():
    model = gaussian(0.5)
    with torch.no_grad():
        model.W.zero_()[0, 1] = 2.0  # nilpotent
    assert eq.certify(model, inputs()).verdict == "hypotheses_fail"


def test_gamma_counts():
    generator = torch.Generator().manual_seed(0)
    model = eq.ScaledReLU(3, 6, gamma=0.5, dtype=F64, generator=generator)
    with torch.no_grad():
        model.A.copy_(2 * torch.eye(6))
    assert not eq.certify(model, inputs()).proved
    model.gamma = math.nextafter(0.5, 0)
    assert not eq.certify(model, inputs()).proved  # true, but below what an SVD's residual can show
    model.gamma = 0.4999999
    assert eq.certify(model, inputs()).proved


def test_monotone_networks_are_well_posed_whatever_their_norm():
    model = family("hieu2022")
    with torch.no_grad():
        model.B.mul_(100)
    assert float(torch.linalg.matrix_norm(model.weight().detach(), 2)) > 50
    assert eq.certify(model, inputs()).proved


def test_single_precision_networks_and_uneven_layouts():
    wide = gaussian(0.9)
    narrow = eq.GaussianReLU(3, 6, dtype=torch.float32)
    narrow.load_state_dict({name: p.float() for name, p in wide.state_dict().items()})
    X = inputs()
    assert eq.certify(narrow, X.float()).proved
    spread = torch.zeros(8, 6, dtype=F64)[::2, ::2]
    spread.copy_(X)
    assert not spread.is_contiguous()
    assert eq.certify(wide, spread).claims == eq.certify(wide, X).claims
    assert eq.certify(wide, spread).fingerprint == eq.certify(wide, X).fingerprint


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_and_data_that_are_not_finite_are_never_proved(bad):
    for name in FAMILIES:
        for parameter, _ in family(name).named_parameters():
            model = family(name)
            with torch.no_grad():
                getattr(model, parameter).view(-1)[0] = bad
            cert = eq.certify(model, inputs())
            assert cert.verdict == "hypotheses_fail"
            assert f"{parameter} holds NaN or infinity" in cert.explain()
        X = inputs()
        X[2, 1] = bad
        assert "X holds NaN or infinity in row 2" in eq.certify(family(name), X).explain()


def test_weights_that_overflow_are_refused_with_words():
    model = family("hieu2022")
    with torch.no_grad():
        model.A.mul_(1e200)
    assert "W(θ) overflows" in eq.certify(model, inputs()).explain()
    model = family("ling2023")
    assert "u(X; θ) overflows" in eq.certify(model, 1e308 * inputs()).explain()


def test_a_family_that_computes_something_else_is_refused():
    class Doubled(eq.GaussianReLU):
        def weight(self):
            return 2 * self.W

    class Renamed(eq.GaussianReLU):
        pass

    X = inputs()
    cert = eq.certify(Doubled(3, 6, sigma_w2=0.05, dtype=F64), X)
    assert cert.verdict == "hypotheses_fail"
    assert "Doubled changes weight of GaussianReLU" in cert.explain()
    assert eq.certify(Renamed(3, 6, sigma_w2=0.05, dtype=F64), X).proved
    model = family("ling2023")
    model.readout = lambda Z: Z.sum(dim=1)
    assert "an attribute readout in place of its method" in eq.certify(model, X).explain()
    model = torch.nn.utils.parametrizations.weight_norm(family("ling2023"), "W")
    assert "a parametrised weight (parametrizations.W)" in eq.certify(model, X).explain()


def test_a_family_without_a_reason_is_an_error():
    class New(eq.models.affine.AffineFamily):
        readout_name = "a"

        def __init__(self):
            super().__init__(3, 6, 1)
            self.a = torch.nn.Parameter(torch.zeros(6))

        weight = injection = pullback = gram = check_wellposed = config = lambda self, *_: None

    with pytest.raises(TypeError, match=r"weight\(\) of New must be .* Got NoneType instead"):
        eq.certify(New(), inputs())
    image = torch.zeros(1, 1, 4, 4)
    words = r"ConvOptEq and Equilibrium, 'wellposed' of ConvMonotone\. Got ResidualConv instead"
    with pytest.raises(TypeError, match=words):
        eq.certify(eq.ResidualConv((1, 4, 4), 8, groups=2), image)


def test_the_states_of_stacked_blocks_are_told_from_their_equilibria():
    deep = eq.DeepOptEq(3, 4, [5, 6], dtype=F64, generator=torch.Generator().manual_seed(0))
    stacked, X = deep.multi_block(), inputs()
    with pytest.raises(ValueError, match=r"Z must be \(4, 4\).* A stacked state is no Z: give equilibrium"):
        eq.equilibrium_error(stacked, X, stacked.solve(X).value)
    assert eq.equilibrium_error(stacked, X, stacked.equilibrium(X)) < 1e-4


# -- the error of what was computed --------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 1e3])
def test_the_error_bound_holds_and_is_of_the_right_size(name, scale):
    for seed in range(3):
        model, X = family(name, seed), inputs(seed=seed + 1)
        W, u = model.weight().detach(), model.injection(X).detach()
        if name == "kawaguchi2021":
            Z = torch.linalg.solve(torch.eye(3, dtype=F64) - W, u.T).T
        else:
            Z = exact_affine(W, u)
        noise = torch.randn(Z.shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
        bound, error = equilibrium_error(model, X, Z + scale * noise), scale * float(noise.norm())
        assert bound >= error
        assert bound <= 1e3 * error


def test_the_obvious_shortcut_for_monotone_networks_is_false():
    """‖z − f(z)‖/μ is not a bound of ‖z − z*‖: relu may hide a coordinate; ours is one."""
    worst = 0.0
    for seed in (26, 51, 193, 1258):
        generator = torch.Generator().manual_seed(seed)
        mu = 10 ** float(torch.empty(1).uniform_(-2, 0, generator=generator))
        model = eq.Monotone(2, 3, margin=mu, dtype=F64, generator=generator)
        X = torch.randn(2, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            model.B.mul_(10 ** float(torch.empty(1).uniform_(-1, 1, generator=generator)))
            model.A.mul_(float(torch.rand(1, generator=generator)))
        W, u = model.weight().detach(), model.injection(X).detach()
        exact = exact_affine(W, u)
        noise = torch.randn(2, 3, dtype=F64, generator=generator)
        Z = exact + noise * 10 ** float(torch.empty(1).uniform_(-2, 1, generator=generator))
        for row in range(2):
            z, x = Z[row : row + 1], X[row : row + 1]
            error = float((z - exact[row]).norm())
            shortcut = float((z - torch.relu(z @ W.T + u[row])).norm()) / mu
            worst = max(worst, error / shortcut)
            assert equilibrium_error(model, x, z) >= error
    assert worst > 1.3


def test_nothing_is_said_of_equilibria_that_may_not_be_unique():
    X, Z = inputs(), torch.zeros(4, 6, dtype=F64)
    assert equilibrium_error(gaussian(1.1, symmetric=True), X, Z) == math.inf
    assert equilibrium_error(gaussian(1.1), X, Z) < math.inf
    assert equilibrium_error(gaussian(0.9), X, torch.full_like(Z, math.nan)) == math.inf
    assert equilibrium_error(gaussian(0.9), math.nan * X, Z) == math.inf
    with pytest.raises(ValueError, match=r"Z must be \(4, 6\)"):
        equilibrium_error(gaussian(0.9), X, Z.T)


def test_slow_contractions_are_solved_all_the_same():
    """‖W‖ = 1 − 1e-6 with a positive leading vector: plain iteration would need millions of steps."""
    model = gaussian(0.5)
    with torch.no_grad():
        model.W.fill_((1 - 1e-6) / 6)
        model.U.abs_()
    X = inputs().abs()
    cert = eq.certify(model, X)
    assert cert.proved
    Z = torch.linalg.solve(torch.eye(6, dtype=F64) - model.W.detach(), model.injection(X).detach().T).T
    assert float(Z.norm()) > 1e5
    assert cert.constants["error"] < 1e-3 * float(Z.norm())
