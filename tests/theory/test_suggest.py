"""What would make a theorem hold: the change is proved, is the smallest, and says when all is vacuous."""

import math

import pytest
import torch

import equipoise as eq
from equipoise.theory.suggest import suggest

F64 = torch.float64


def data(N=4, d=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, d, dtype=F64, generator=generator)
    return X / X.norm(dim=1, keepdim=True), torch.randn(N, dtype=F64, generator=generator)


def network(family, d=6, m=30, seed=1, **more):
    return family(d, m, dtype=F64, generator=torch.Generator().manual_seed(seed), **more)


def proved_by_its_certificate(found, X):
    """The certificate belongs to the changed network, and is proved of it again."""
    assert found.holds
    assert found.certificate.proved
    return found.certificate.verify(found.model, X, found.y).proved


@pytest.mark.parametrize("kind", ["flow", "descent"])
@pytest.mark.parametrize(("seed", "start"), [(0, "experiments"), (1, "section5.1"), (2, "section5.2")])
def test_the_smallest_beta_of_gao2022(kind, seed, start):
    model, (X, y) = network(eq.ScaledReLU, seed=seed, init=start), data(seed=seed)
    found = suggest(model, X, y, f"gao2022.{kind}")
    assert proved_by_its_certificate(found, X)
    beta, changed = found.changes["beta"], found.model
    with torch.no_grad():
        assert torch.allclose(changed.W, beta * model.W)
        norm = float(torch.linalg.matrix_norm(changed.W, 2))
        assert torch.allclose(changed.A, norm * torch.eye(30, dtype=F64))
        assert not changed.b.any()
    assert changed.gamma == pytest.approx(1 / (2 * (norm + 1)))
    assert found.certificate.constants["gamma0"] == pytest.approx(0.5)
    # Smallest: with 3 % less, a condition fails.
    less = network(eq.ScaledReLU, gamma=1 / (2 * (0.97 * norm + 1)))
    with torch.no_grad():
        less.W.copy_(0.97 * changed.W)
        less.A.copy_(0.97 * changed.A)
        less.b.zero_()
    assert not eq.certify(less, X, y, theorem=f"gao2022.{kind}", C=(1.0, 1.0, 1.0)).proved
    assert f"beta = {beta:.4g}" in str(found)


def test_the_vacuity_of_gao2022_is_seen_at_once():
    """[gao2022, §5.1] for N = 10, m = 80: β about 6.6e2, η about 1e-13."""
    X, y = data(N=10, d=20)
    model = network(eq.ScaledReLU, d=20, m=80, init="section5.1")
    found = suggest(model, X, y, "gao2022.descent")
    assert 100 < found.changes["beta"] < 5e3
    assert found.step_size < 1e-11
    assert found.efold > 1e6
    assert found.vacuous
    assert "true, and of no practical use" in str(found)
    assert "For comparison: theorem='safeguarded' promises an e-fold in" in str(found)
    assert f"{found.efold:.3g} steps of size {found.step_size:.3g}" in str(found)
    flow = suggest(model, X, y, "gao2022.flow")
    assert not flow.vacuous
    assert flow.step_size is None
    assert f"in the time {flow.efold:.3g}" in str(flow)


def test_what_cannot_be_mended_is_said():
    X, y = data()
    X[2] = X[1]
    found = suggest(network(eq.ScaledReLU), X, y, "gao2022.descent")
    assert not found.holds
    assert found.step_size is None
    assert found.efold == math.inf
    assert "No change was found" in str(found)
    assert "row 1 and row 2, which are equal" in str(found)
    assert "theorem='safeguarded' with slack=" in str(found)
    narrow = suggest(network(eq.ScaledReLU, m=3), X, y, "gao2022.descent")
    assert "a width of at least 4" in str(narrow)


@pytest.mark.parametrize("seed", range(3))
def test_small_targets_or_a_large_width_for_ling2023(seed):
    model, (X, y) = network(eq.GaussianReLU, seed=seed), data(seed=seed)
    found = suggest(model, X, y, "ling2023")
    assert proved_by_its_certificate(found, X)
    assert found.changes["a"] == 0
    assert not found.model.a.any()
    scale = found.changes["target_scale"]
    assert torch.allclose(found.y, scale * y)
    assert found.alternatives["width"] == math.ceil(30 / scale**2)
    assert "a(0) = 0" in str(found)
    assert "rule of thumb" in str(found)
    # The largest scale: with 5 % more, no δ will do.
    assert not eq.certify(found.model, X, 1.05 * found.y, theorem="ling2023").proved
    assert torch.equal(model.W, found.model.W)
    assert model.a.any()  # the network itself is left alone


def test_the_width_for_ling2023_is_of_the_right_order():
    """Where √m says that a width is enough, a network of twice that width is proved."""
    generator = torch.Generator().manual_seed(0)
    X = 10**0.5 * torch.linalg.qr(torch.randn(10, 2, dtype=F64, generator=generator)).Q.T.contiguous()
    y = torch.tensor([0.05, -0.05], dtype=F64)
    narrow = eq.GaussianReLU(10, 100, sigma_w2=0.001, dtype=F64, generator=generator)
    found = suggest(narrow, X, y, "ling2023")
    width = found.alternatives["width"]
    assert 100 < width < 1000
    wide = eq.GaussianReLU(
        10, 2 * width, sigma_w2=0.001, start="zero_readout", dtype=F64, generator=generator
    )
    assert eq.certify(wide, X, y, theorem="ling2023").proved


def test_a_zero_readout_alone_can_be_enough_for_ling2023():
    generator = torch.Generator().manual_seed(0)
    X = 10**0.5 * torch.linalg.qr(torch.randn(10, 2, dtype=F64, generator=generator)).Q.T.contiguous()
    y = torch.tensor([0.01, -0.01], dtype=F64)
    model = eq.GaussianReLU(10, 400, sigma_w2=0.001, dtype=F64, generator=generator)
    found = suggest(model, X, y, "ling2023")
    assert proved_by_its_certificate(found, X)
    assert set(found.changes) == {"a", "delta"}
    assert torch.equal(found.y, y)
    assert not found.vacuous


@pytest.mark.parametrize("kind", ["flow", "descent"])
def test_the_certified_start_of_hieu2022(kind):
    model, (X, y) = network(eq.Monotone, m=12), data()
    found = suggest(model, X, y, f"hieu2022.{kind}")
    assert proved_by_its_certificate(found, X)
    assert torch.allclose(found.model.U, found.changes["U"] * model.U)
    assert not found.model.u.any()
    assert f"certified_start(model, X, y, kind='{kind}')" in str(found)
    assert found.certificate.constants["radii"] == found.changes["radii"]
    refused = suggest(model, X, 0 * y, f"hieu2022.{kind}")
    assert refused.holds or "y must not be zero" in str(refused)
    narrow = suggest(network(eq.Monotone, m=3), X, y, f"hieu2022.{kind}")
    assert "N = 4 and n = 3" in str(narrow)


def test_tau_for_kawaguchi2021():
    X, y = data(N=12, d=4)
    labels = (y > 0).to(F64)[:, None]
    model = eq.LinearEquilibrium(4, dtype=F64, generator=torch.Generator().manual_seed(0))
    found = suggest(model, X, labels, "kawaguchi2021", loss="logistic")
    assert proved_by_its_certificate(found, X)
    assert found.changes["tau"] == 0.01
    assert "inversely proportional to tau" in str(found)
    outside = suggest(model, X, labels, eq.theory.kawaguchi2021.Theorem1("logistic", tau=0.5, radius=1e-3))
    assert outside.changes["tau"] == 0.5
    assert outside.holds
    X[:, 3] = X[:, 0]
    assert "full rank" in str(suggest(model, X, labels, "kawaguchi2021", loss="logistic"))
    assert "full rank" in str(suggest(model, X, y[:, None], "kawaguchi2021"))


@pytest.mark.parametrize("theorem", ["two_timescale", "safeguarded"])
def test_slack_where_the_network_is_too_narrow(theorem):
    model, (X, y) = network(eq.GaussianReLU, m=3), data()
    assert not eq.certify(model, X, y, theorem=theorem).proved
    found = suggest(model, X, y, theorem)
    assert proved_by_its_certificate(found, X)
    with torch.no_grad():
        size = float(torch.linalg.matrix_norm(model.equilibrium(X), 2)) ** 2
    assert found.changes["slack"] == pytest.approx(1e-3 * size, rel=0.06)
    assert found.alternatives["width"] == 4
    assert isinstance(found.step_size, dict)
    assert "readout" in str(found)


@pytest.mark.parametrize("theorem", ["wellposed", "ling2023", "two_timescale", "safeguarded"])
def test_weights_that_do_not_contract_are_scaled(theorem):
    model, (X, y) = network(eq.GaussianReLU), data()
    with torch.no_grad():
        model.W.mul_(3 / torch.linalg.matrix_norm(model.W, 2))
    found = suggest(model, X, y, theorem)
    assert proved_by_its_certificate(found, X)
    target = 0.9 if theorem == "wellposed" else 0.5
    assert found.changes["W"] == pytest.approx(target / 3)
    assert float(torch.linalg.matrix_norm(found.model.W.detach(), 2)) == pytest.approx(target)
    assert f"so that ‖W‖ = {target:g}" in str(found)
    assert float(torch.linalg.matrix_norm(model.W.detach(), 2)) == pytest.approx(3)


def test_gamma_is_what_is_scaled_in_gao2022():
    model, (X, _) = network(eq.ScaledReLU), data()
    with torch.no_grad():
        model.A.mul_(7)
    found = suggest(model, X)
    assert proved_by_its_certificate(found, X)
    assert found.model.gamma == found.changes["gamma"] == pytest.approx(0.9 / 7)


def test_what_holds_is_left_as_it_is():
    model, (X, y) = network(eq.GaussianReLU), data()
    for theorem in ("wellposed", "two_timescale", "safeguarded"):
        found = suggest(model, X, y, theorem)
        assert found.holds
        assert found.model is model
        assert not found.changes
        assert "holds as it stands" in str(found)
        assert not found.vacuous


def test_what_no_change_can_mend():
    model, (X, y) = network(eq.GaussianReLU), data()
    found = suggest(model, X, y, "gao2022.descent")
    assert "about ScaledReLU. Got GaussianReLU" in str(found)
    assert not found.holds
    X[1, 0] = math.nan
    assert "NaN or infinity in row 1" in str(suggest(model, X, y, "ling2023"))
    zero = suggest(model, torch.zeros_like(X), y, "safeguarded")
    assert not zero.holds
    assert "nothing to read out" in str(zero)


def test_options_are_those_of_certify():
    model, (X, y) = network(eq.GaussianReLU), data()
    with pytest.raises(ValueError, match="Did you mean"):
        suggest(model, X, y, "ling2022")
    with pytest.raises(TypeError, match="constants go into the theorem object"):
        suggest(model, X, y, eq.theory.ling2023.Descent(), delta=0.1)
    with pytest.raises(ValueError, match="y is required"):
        suggest(model, X, theorem="ling2023")


def test_single_precision_networks_get_suggestions_in_single_precision():
    X, y = data()
    model = eq.ScaledReLU(6, 30, generator=torch.Generator().manual_seed(0))
    found = suggest(model, X.float(), y.float(), "gao2022.descent")
    assert found.model.W.dtype == torch.float32
    assert proved_by_its_certificate(found, X.float())
