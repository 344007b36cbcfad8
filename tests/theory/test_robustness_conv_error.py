"""How far a state is from the equilibrium of a ConvOptEq, with its rounding; what is refused by name."""

import copy
import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import equipoise as eq
from conv_networks import CASES, IMAGE, build, drawn
from equipoise.linalg import Interval, gamma
from equipoise.models.zoo import OptEqSegmenter
from equipoise.theory import certified_radius, conv_robustness, lipschitz_bound
from equipoise.theory.conv_robustness import (
    ConvHead,
    ConvNetwork,
    _means,
    _means_norm,
    _resize_norm,
    conv_rounding,
)
from equipoise.theory.conv_wellposed import images_wellposed
from equipoise.theory.families.conv_opteq import ConvOptEqFacts
from equipoise.theory.robustness import certified_outputs

# -- the error of equilibria ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*CASES, "a small step"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_error_of_equilibria_is_never_above_its_bound(case, dtype):
    model = build(**CASES.get(case, {"alpha": 0.01})).to(dtype)
    exact = copy.deepcopy(model).double()
    X = drawn(5, *IMAGE, seed=2).to(dtype)
    rtol = 1e-13 if model.regulariser is None else 1e-12
    truth = exact.solve(X.double(), stop=eq.Stop(rtol=rtol, max_steps=20000)).raise_if_failed().value
    q = images_wellposed(exact).contraction
    for size in (1.0, 1e-3, 1e-7, 1e-10):
        Z = (truth + size * drawn(*truth.shape, seed=6)).to(dtype)
        off = float((Z.double() - truth).norm())
        assert (
            off * (1 - 1e-9) - 1e-11
            <= eq.equilibrium_error(model, X, Z)
            <= (1 + q) / (1 - q) * off * 1.001 + 1e-9
        )
    assert float((truth - exact.solve(X.double()).value).norm()) <= eq.equilibrium_error(
        model, X, exact.solve(X.double()).value
    )
    assert eq.equilibrium_error(model, X, truth) < 1e-9 * float(truth.norm())
    assert eq.equilibrium_error(model, X, torch.full_like(truth, math.nan)) == math.inf


@pytest.mark.parametrize("stride", [1, 2])
def test_the_rounding_of_a_convolution_is_bounded(stride):
    """Against exact rational arithmetic; with cancellation, where the rounding is large beside the result."""
    K, x = drawn(2, 2, 3, 3), drawn(1, 2, 5, 4, seed=1)
    x[0, 1] = x[0, 0] * (1 + 2.0**-40)
    K[:, 1] = -K[:, 0]
    computed = F.conv2d(x, K, stride=stride, padding=1)
    padded = F.pad(x, (1, 1, 1, 1))[0].tolist()
    error = Fraction(0)
    for o in range(2):
        for i in range(computed.shape[2]):
            for j in range(computed.shape[3]):
                exact = sum(
                    Fraction(K[o, c, a, b].item()) * Fraction(padded[c][i * stride + a][j * stride + b])
                    for c in range(2)
                    for a in range(3)
                    for b in range(3)
                )
                error += (exact - Fraction(computed[0, o, i, j].item())) ** 2
    assert 0 < float(error) ** 0.5 <= conv_rounding(K, x).hi < 1e-12


def test_means_and_resizing_have_the_norms_of_their_matrices():
    for size, grid in ((7, 3), (8, 4), (5, 5), (6, 1)):
        P = _means(size, grid)
        image = drawn(1, 1, size, size)
        torch.testing.assert_close(P @ image @ P.T, F.adaptive_avg_pool2d(image, grid))
        truth = float(torch.linalg.matrix_norm(P, ord=2))
        assert truth * (1 - 1e-14) <= _means_norm(P).hi <= truth * (1 + 1e-12)
    for before, after in ((3, 5), (5, 3), (4, 8), (4, 4)):
        eye = torch.eye(before**2, dtype=torch.float64).reshape(-1, 1, before, before)
        R = F.interpolate(eye, (after, after), mode="bilinear", align_corners=False).flatten(1)
        truth = float(torch.linalg.matrix_norm(R, ord=2))
        bound = (_resize_norm(before, after) ** 2).hi
        assert truth * (1 - 1e-14) <= bound <= truth * (1 + 1e-10)
    model = build(pool=3)
    z = drawn(2, *model.state)
    torch.testing.assert_close(z.flatten(1) @ ConvHead(model).A.T + model.head.linear.bias, model.head(z))


# -- refusals ------------------------------------------------------------------------------------------------


def test_what_is_not_known_is_refused_by_name():
    X = drawn(3, *IMAGE)
    with pytest.raises(ValueError, match="local=True is known for affine families only"):
        certified_radius(build(), X, local=True)
    for wrong in (X[..., 1:], X[0], X.flatten(1)):
        with pytest.raises(ValueError, match=r"x must be \(N, 2, 5, 6\)"):
            certified_radius(build(), wrong)
    with pytest.raises(TypeError, match="x must be a tensor of images"):
        certified_radius(build(), X.tolist())
    with pytest.raises(ValueError, match=r"must be torch\.float64"):
        certified_radius(build(), X.to(torch.complex128))
    with pytest.raises(ValueError, match="at least one image"):
        certified_radius(build(), X[:0])
    with pytest.raises(
        ValueError, match=r"Z must be \(3, 3, 5, 6\), one state for each image\. Got \(3, 90\)"
    ):
        eq.equilibrium_error(build(), X, drawn(3, 90))
    with pytest.raises(ValueError, match="the one class of an image"):
        certified_radius(build(task="segmentation"), X)
    with pytest.raises(ValueError, match=r"Got BatchNorm2d as extractor\.1 instead"):
        lipschitz_bound(OptEqSegmenter(IMAGE, 3, (4,), 2))
    with pytest.raises(TypeError, match=r"the affine families, OptEq and ConvOptEq\. Got ResidualConv"):
        lipschitz_bound(eq.ResidualConv(IMAGE, 8))

    class Other(eq.ConvOptEq):
        pass

    other = build()
    other.__class__ = Other
    assert lipschitz_bound(other) == math.inf
    assert "Other may compute otherwise" in certified_radius(other, X).uncertified[0]


def test_a_part_that_was_exchanged_is_refused_by_name():
    reflecting, normed, hooked, pixels, pruned = (
        build(task=t) for t in ["classification"] * 3 + ["segmentation"] * 2
    )
    reflecting.extractor[0].padding_mode = "reflect"
    with pytest.raises(ValueError, match=r"padding_mode='reflect' as extractor\.0"):
        lipschitz_bound(reflecting)
    normed.extractor.append(nn.GroupNorm(2, 4).double())
    with pytest.raises(ValueError, match=r"GroupNorm as extractor\.2"):
        eq.equilibrium_error(normed, drawn(1, *IMAGE), drawn(1, *normed.state))
    hooked.head.register_forward_hook(lambda *_: None)
    assert lipschitz_bound(hooked) == math.inf
    pixels.head.conv = nn.Conv2d(3, 3, 3, padding=1).double()
    with pytest.raises(ValueError, match=r"a kernel of size \(3, 3\) as head\.conv"):
        lipschitz_bound(pixels)
    nn.utils.parametrizations.spectral_norm(pruned.layers[0], "W")
    with pytest.raises(ValueError, match=r"ParametrizedConvLayer as layers\.0"):
        lipschitz_bound(pruned)


@pytest.mark.parametrize("normalise", [False, True])
@torch.no_grad()
def test_certified_outputs_are_as_near_as_they_say(normalise):
    """Scores are outputs times an s that is known within 2⁻³⁰: that was not in the error of the outputs."""
    model, X = build(pool=2, normalise=normalise), drawn(6, *IMAGE, seed=9)
    model.head.linear.weight.mul_(100)
    outputs, error = certified_outputs(model, X)
    truth = model.readout(
        model.solve(X, stop=eq.Stop(rtol=1e-14, atol=0.0, max_steps=5000), on_failure="accept").value
    )
    off = (outputs - truth).abs().amax(dim=1)
    assert (off <= error).all()
    assert (error <= 1e-6 * truth.abs().amax()).all()


@torch.no_grad()
def test_outputs_whose_scale_is_not_known_have_no_error_bound():
    model = build(pool=2, normalise=True)
    Z = 1e-9 * drawn(2, *model.state, seed=3)
    assert ConvHead(model).scores(Z, Interval(1.0)).excess == math.inf
    assert ConvHead(model).scores(Z, Interval(0.0)).excess < 1e-8


# -- terms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", [False, True])
@torch.no_grad()
def test_every_rounding_of_a_head_counts(normalise):
    model = build(pool=2, normalise=normalise)
    head, Z = ConvHead(model), drawn(2, *model.state, seed=3)
    size, n, means = float(Z.flatten(1).norm(dim=1).max()), head.V.shape[1], head.means.hi
    assert head.error.hi == pytest.approx(gamma(n + 4 + 8) * float(head.V.norm()) * means, rel=1e-9, abs=0.0)
    for error in (0.0, 0.25):
        y, off, scale, _ = head.scores(Z, Interval(error))
        s, s_off = torch.ones(2, dtype=Z.dtype), 0.0
        if normalise:
            M = (head.rows @ Z @ head.columns.T).flatten(1)
            c = M - M.mean(dim=1, keepdim=True)
            s = (c.square().mean(dim=1) + 1e-5).sqrt()
            rounding = means * gamma(sum(Z.shape[2:]) + 8) * size
            rounding += gamma(n + 8) * (float(M.norm(dim=1).max()) + float(c.norm(dim=1).max()))
            s_off = means / math.sqrt(n) * error + rounding / math.sqrt(n) + gamma(n + 8) * float(s.max())
        weight = float(head.A.norm(dim=1).max()) + head.error.hi
        one = weight * error + head.error.hi * size + gamma(head.A.shape[1] + 4) * size * weight
        one += float(head.v.abs().max()) * (s_off + gamma(4) * float(s.max())) + gamma(4) * float(
            y.abs().max()
        )
        assert off == pytest.approx(2 * one, rel=1e-6, abs=0.0)
        assert bool((scale >= s + s_off * (1 - 1e-9)).all())


def test_the_error_of_scores_is_that_of_the_worst_images(monkeypatch):
    network, X = ConvNetwork(build()), drawn(3, *IMAGE)
    X[1] *= 100
    monkeypatch.setattr(conv_robustness, "AT_ONCE", 1)
    alone = [network.scores(x[None])[1] for x in X]
    assert network.scores(X)[1] == max(alone) > 10 * min(alone)


def test_nothing_is_proved_of_a_map_that_may_keep_distances(monkeypatch):
    frame = {"theorem": "wellposed", "hypotheses": (), "tier": "float64", "fingerprint": {}}
    asked = "equipoise.theory.families.conv_opteq.images_wellposed"
    for q, proved in ((1 - 2.0**-53, True), (1.0, False)):
        monkeypatch.setattr(asked, lambda model, q=q: SimpleNamespace(contraction=q))
        assert ConvOptEqFacts(None).reason(frame).proved == proved


def test_the_rate_of_splitting_is_that_of_its_step():
    """√(1 − (2α − α²λ)μ) at α = 1/λ is √(1 − αμ)."""
    model = eq.ConvMonotone(IMAGE, 3, margin=0.5, dtype=torch.float64)
    known = eq.certify(model, drawn(1, *IMAGE), theorem="wellposed").constants
    assert known["rate"] == pytest.approx(math.sqrt(1 - 0.5 * known["step_size"]), rel=1e-12, abs=0.0)
    assert known["rate"] < 1
