"""`certify(ConvOptEq, images)`: proved only where plain iteration contracts, at the rate that is promised."""

from fractions import Fraction

import mpmath
import pytest
import torch

import equipoise as eq
from equipoise.linalg import Interval
from equipoise.models.proximal import ConvOptEq
from equipoise.models.proximal.properties import L1, GradientStep, differentiable
from equipoise.models.zoo import OptEqSegmenter
from equipoise.solve import Activation
from equipoise.theory.conv_wellposed import images_wellposed
from equipoise.theory.families.conv_monotone import _norms
from equipoise.theory.xie2021 import selection

IMAGE = (2, 5, 6)


def model(**options):
    made = {"alpha": 1.0, "limit": 0.9, "norm": 0.9, "dtype": torch.float64} | options
    generator = torch.Generator().manual_seed(0)
    return ConvOptEq(IMAGE, 3, (4, 5), 2, generator=generator, **made)


def images(n=3, seed=1):
    return torch.randn(n, *IMAGE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_the_rate_is_proved_and_kept(alpha):
    net, x = model(alpha=alpha), images()
    found = eq.certify(net, x)
    assert found.proved
    rate = found.constants["rate"]
    expected = Fraction(1)
    for norm in net.norms():
        expected *= 1 - Fraction(alpha) + Fraction(alpha) * Fraction(norm) ** 2
    assert expected <= Fraction(rate) <= expected * (1 + Fraction(1, 10**12))
    assert found.constants["R"] == pytest.approx(1 / (1 - rate), rel=1e-12)

    c, weights = net.injection(x), net.shared()
    f = lambda z: net.cell(z, *c, *weights)
    a, b = (torch.randn(3, *net.state, dtype=torch.float64) for _ in range(2))
    for _ in range(8):  # not down to rounding
        before, a, b = (a - b).flatten(1).norm(dim=1), f(a), f(b)
        assert ((a - b).flatten(1).norm(dim=1) <= rate * before * (1 + 1e-9)).all()


def test_kernels_too_large_are_never_certified():
    net = model(limit=1.0, norm=1.0)
    with torch.no_grad():
        net.layers[0].W.mul_(1.5)
        net.layers[1].W.mul_(1.5)
    found = eq.certify(net, images())
    assert not found.proved
    (claim,) = found.claims
    assert "project_()" in claim.remedy
    assert claim.left.hi >= 1
    net.limit = 0.95
    net.project_()
    assert eq.certify(net, images()).proved


def test_what_cannot_be_judged_is_said():
    x = images()
    concave = GradientStep(differentiable(lambda z: -z.square().sum(1), lipschitz=2.0, convex=False))
    assert "not known to be nonexpansive" in eq.certify(model(regulariser=concave), x).obstacle
    assert eq.certify(model(regulariser=L1(0.1)), x).proved
    bad = x.clone()
    bad[1, 0, 0, 0] = float("nan")
    assert "row 1" in eq.certify(model(), bad).obstacle
    broken = model()
    with torch.no_grad():
        broken.layers[0].b[0] = float("inf")
    assert "layers.0.b" in eq.certify(broken, x).obstacle

    class Other(ConvOptEq):
        pass

    other = model()
    other.__class__ = Other
    assert "Other may compute otherwise than ConvOptEq" in eq.certify(other, x).obstacle
    assert "load_state_dict" in eq.certify(other, x).obstacle
    with pytest.raises(ValueError, match="knows no convolution"):
        eq.certify(model(), x, tier="rigorous")
    with pytest.raises(ValueError, match="at least one image"):
        eq.certify(model(), x[:0])
    for wrong in (x[..., 1:], x[0], x.flatten(1)):
        with pytest.raises(ValueError, match=r"X must be images, \(N, 2, 5, 6\)"):
            eq.certify(model(), wrong)


def test_a_segmenter_has_the_layers_and_so_the_certificate():
    net = OptEqSegmenter(IMAGE, 3, (4,), 2, norm=0.9, dtype=torch.float64)
    found = eq.certify(net.eval(), images())
    assert found.proved
    assert found.constants["rate"] == images_wellposed(net).contraction


def test_batch_norms_in_training_make_an_image_depend_on_those_beside_it():
    net, x = OptEqSegmenter(IMAGE, 3, (4,), 2, norm=0.9, dtype=torch.float64), images()
    moved = lambda: (net.equilibrium(x)[0] - net.equilibrium(x[:2])[0]).abs().max()
    assert moved() > 1e-3
    assert any("is that in its batch" in h for h in eq.certify(net, x).hypotheses)
    net.eval()
    assert moved() < 1e-7
    assert not any("batch" in h for h in eq.certify(net, x).hypotheses)
    net.scales[0].running_var[1] = -1.0
    found = eq.certify(net, x)
    assert found.verdict == "hypotheses_fail"
    assert "scales.0.running_var must be ≥ 0, as variances are, and holds -1" in found.obstacle


@pytest.mark.parametrize("behind", ["head", "last_norm"])
def test_batch_norms_behind_the_equilibrium_leave_it_what_it_is(behind):
    if behind == "head":
        net = model()
        net.head = torch.nn.Sequential(torch.nn.BatchNorm2d(3, dtype=torch.float64), net.head)
        norm = net.head[0]
    else:
        net = OptEqSegmenter(IMAGE, 3, (4,), 2, norm=0.9, dtype=torch.float64).eval()
        norm = net.last_norm.train()
    x = images()
    torch.testing.assert_close(net.equilibrium(x)[:2], net.equilibrium(x[:2]), rtol=0, atol=1e-7)
    norm.running_var[0] = -1.0
    found = eq.certify(net, x)
    assert found.proved
    assert not any("batch" in h for h in found.hypotheses)


def test_no_step_is_promised_where_norms_overflow():
    net, x = eq.ConvMonotone(IMAGE, 3, dtype=torch.float64), images()
    assert "splitting with α = " in eq.certify(net, x).promise
    with torch.no_grad():
        net.A.fill_(1e200)
    found = eq.certify(net, x)
    assert found.proved
    assert found.promise == "every image has exactly one equilibrium (sym(I−W) ⪰ μI)."


def test_the_rate_of_forward_backward_splitting_is_rounded_up():
    """ρ² ≥ 1 − (2α − α²λ)μ with λ = (√(μ + a²) + k/√μ)², in 60 digits."""
    net = eq.ConvMonotone(IMAGE, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = eq.certify(net, images()).constants
    with mpmath.workdps(60):
        a, k = (mpmath.mpf(norm.hi) for norm in _norms(net))
        mu, alpha, rate = mpmath.mpf(net.margin), mpmath.mpf(found["step_size"]), mpmath.mpf(found["rate"])
        curvature = (mpmath.sqrt(mu + a**2) + k / mpmath.sqrt(mu)) ** 2
        assert rate**2 >= 1 - (2 * alpha - alpha**2 * curvature) * mu


def test_sam_on_images_has_its_hypotheses_checked():
    net = model(limit=1.0, norm=1.0)
    assert selection(net, eq.SAM()).promised
    with torch.no_grad():
        net.layers[1].W.mul_(1.5)
    (missing,) = selection(net, eq.SAM()).missing
    assert missing.startswith("‖W‖ of layer 2 is not ≤ √(μ/L_σ) = 1 but 1.")


def test_what_is_declared_of_an_activation_is_a_hypothesis():
    half = lambda t: torch.tanh(t / 2)
    slope = lambda t: (1 - torch.tanh(t / 2).square()) / 2
    own = Activation("half_tanh", half, slope, lipschitz=1.0)
    assert any("as declared" in h for h in eq.certify(model(activation=own), images()).hypotheses)
    assert not any("as declared" in h for h in eq.certify(model(), images()).hypotheses)


def test_a_certificate_is_about_these_weights_and_images():
    net, x = model(), images()
    one, other = eq.certify(net, x), eq.certify(net, x + 1)
    assert one.fingerprint["weights"] == other.fingerprint["weights"]
    assert one.fingerprint["X"] != other.fingerprint["X"]
    assert isinstance(one.claims[0].left, Interval)
