"""Losses of certified margins: the constants agree with the proved ones, and training raises the radii."""

import pytest
import torch

import equipoise as eq
from equipoise.theory import pairwise_lipschitz
from equipoise.train.robust import CertifiedBox, CertifiedMargin, box_margins, pair_constants


def _model(seed=0, d=4, n=10, k=3):
    generator = torch.Generator().manual_seed(seed)
    return eq.Monotone(d, n, 1.0, k, bias=True, output_bias=True, dtype=torch.float64, generator=generator)


def _data(N=90, d=4, k=3, seed=1):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(N) % k
    centres = torch.randn(k, d, dtype=torch.float64, generator=g)
    return centres[y] + 0.3 * torch.randn(N, d, dtype=torch.float64, generator=g), y


@pytest.mark.parametrize("model", [_model(), eq.GaussianReLU(4, 10, outputs=3, dtype=torch.float64)])
def test_the_constants_are_those_that_are_proved(model):
    found, proved = pair_constants(model).detach(), pairwise_lipschitz(model)
    apart = ~torch.eye(3, dtype=torch.bool)
    assert bool((proved[apart] <= found[apart] * (1 + 1e-9)).all())  # which may be another bound's
    assert float((found[apart] / proved[apart]).max()) < 1.2


def test_the_loss_is_the_cross_entropy_of_the_worst_case_and_differentiable():
    model, (X, y) = _model(), _data()
    loss, yhat = CertifiedMargin(model, 0.1), model(X)
    moved = yhat + 0.1 * pair_constants(model)[y]
    expected = torch.nn.functional.cross_entropy(moved, y, reduction="none")
    torch.testing.assert_close(loss.each(yhat, y), expected)
    assert bool((loss.each(yhat, y) >= eq.train.objective.CrossEntropy().each(yhat, y)).all())
    loss.each(model(X), y).mean().backward()
    step, at = 1e-6, model.U.grad[0, 0].item()
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            model.U[0, 0] += sign * step
        values.append(float(loss.each(model(X), y).mean().detach()))
        with torch.no_grad():
            model.U[0, 0] -= sign * step
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(at, rel=1e-4)


def test_training_for_margins_certifies_more_than_training_without():
    (X, y), shares = _data(), {}
    for robust in (False, True):
        model = _model()
        loss = CertifiedMargin(model, 0.8) if robust else None
        eq.Trainer(model, loss, optimiser="adam", rate=0.02, epochs=25, batch_size=30).fit(X, y)
        shares[robust] = eq.certified_radius(model, X, y).share(0.6)
    assert shares[True] > shares[False] + 0.05


def test_margins_of_boxes_are_below_those_of_their_inputs_and_exact_without_a_box():
    model, (X, y) = _model(), _data(20)
    with torch.no_grad():
        model.A.mul_(0.1)
        model.B.mul_(0.1)
        yhat = model(X, stop=eq.Stop(rtol=1e-12))
        clean = yhat.gather(1, y[:, None]) - yhat
        inside = (-9.0, 9.0)
        torch.testing.assert_close(box_margins(model, X, y, 0.0, inside), clean, atol=1e-3, rtol=1e-3)
        bounds = box_margins(model, X, y, 0.05, inside)
        for seed in range(10):
            delta = torch.rand(X.shape, dtype=X.dtype, generator=torch.Generator().manual_seed(seed)).round()
            moved = model(X + 0.05 * (2 * delta - 1), stop=eq.Stop(rtol=1e-12))
            assert bool((bounds <= moved.gather(1, y[:, None]) - moved + 1e-3).all())


def test_what_robust_training_does_not_know_is_refused():
    with pytest.raises(TypeError, match=r"Ux \+ b"):
        CertifiedMargin(eq.ScaledReLU(3, 4, outputs=2), 0.1)
    with pytest.raises(TypeError, match="Got LinearEquilibrium"):
        CertifiedMargin(eq.LinearEquilibrium(3, outputs=2), 0.1)
    with pytest.raises(ValueError, match="> 0"):
        CertifiedMargin(_model(), 0.0)
    with pytest.raises(ValueError, match="≥ 2"):
        CertifiedMargin(eq.Monotone(3, 4), 0.1)


def test_the_loss_of_boxes_defends_at_once_what_it_learns_and_raises_epsilon_slowly():
    model, (X, y) = _model(), _data()
    yhat, loss = model(X), CertifiedBox(model, 0.1, (-9.0, 9.0))
    plain = torch.nn.functional.cross_entropy(yhat, y, reduction="none")
    torch.testing.assert_close(loss.each(yhat, y), plain)  # without inputs
    for share, epsilon in ((0.0, 0.0), (0.25, 0.05), (0.5, 0.1), (1.0, 0.1)):
        worst = -box_margins(model, X, y, epsilon, (-9.0, 9.0))
        expected = (plain + torch.nn.functional.cross_entropy(worst, y, reduction="none")) / 2
        torch.testing.assert_close(loss.near(X, share).each(yhat, y), expected)
    indicators = torch.eye(3, dtype=torch.float64)[y]
    torch.testing.assert_close(loss.near(X, 1.0).each(yhat, indicators), loss.near(X, 1.0).each(yhat, y))
    with pytest.raises(ValueError, match="indicators"):
        loss.each(yhat, indicators / 2)
    with pytest.raises(ValueError, match="epsilon must be"):
        CertifiedBox(model, -0.1)


def test_training_for_boxes_proves_more_of_them_than_training_without():
    (X, y), shares = _data(), {}
    for robust in (False, True):
        model = _model()
        loss = CertifiedBox(model, 0.35, (-9.0, 9.0)) if robust else None
        eq.Trainer(model, loss, optimiser="adam", rate=0.02, epochs=25, batch_size=30).fit(X, y)
        found = eq.verify_predictions(model, X, y, epsilon=0.3, box=(-9.0, 9.0), nodes=20)
        shares[robust] = float(found.proved.double().mean())
    assert shares[True] > shares[False] + 0.05
