"""The cross entropy of samples and of pixels, and the scores beside it."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.models.zoo import OptEqSegmenter
from equipoise.train.objective import CrossEntropy, as_objective, scores

LOSS = CrossEntropy()


def drawn(N=5, k=3, H=4, W=6):
    g = torch.Generator().manual_seed(0)
    return torch.randn(N, k, H, W, dtype=torch.float64, generator=g), torch.randint(
        0, k, (N, H, W), generator=g
    )


def test_pixels_count_alike_and_those_without_a_label_not_at_all():
    yhat, y = drawn()
    y[0, :2], y[3] = 255, 255  # half of one image, all of another
    found = LOSS.each(yhat, y)
    for i in range(5):
        want = 0.0 if i == 3 else float(cross_entropy(yhat[i : i + 1], y[i : i + 1], ignore_index=255))
        assert float(found[i]) == pytest.approx(want, rel=1e-12)
    used = y != 255
    right = (yhat.argmax(dim=1) == y)[used].double().mean()
    assert scores(LOSS, yhat, y)["accuracy"] == pytest.approx(float(right), rel=1e-12)


def test_probabilities_of_pixels():
    yhat, y = drawn()
    sure = torch.nn.functional.one_hot(y, 3).movedim(-1, 1).double()
    torch.testing.assert_close(LOSS.each(yhat, sure), LOSS.each(yhat, y))
    assert scores(LOSS, yhat, sure) == scores(LOSS, yhat, y)


def test_labels_that_do_not_fit_are_named():
    yhat, y = drawn()
    y[2, 1, 3] = 3
    with pytest.raises(ValueError, match=r"y must lie in 0…2, .* Got 3 in row 2, pixel \(1, 3\)"):
        LOSS.each(yhat, y)
    with pytest.raises(
        ValueError, match=r"y must be \(5, 4, 6\), one label for each pixel\. Got shape \(5, 6, 4\)"
    ):
        LOSS.each(yhat, y.mT)
    with pytest.raises(ValueError, match=r"\(N, k\) or \(N, k, H, W\)\. Got shape \(5, 3, 4\)"):
        LOSS.each(yhat[..., 0], y[..., 0])
    with pytest.raises(ValueError, match=r"one of the network's 3 outputs\. Got 255 in row 0"):
        LOSS.each(yhat[..., 0, 0], torch.full((5,), 255))
    with pytest.raises(ValueError, match=r"y must be \(5,\), one label for each row\. Got shape \(5, 4, 6\)"):
        LOSS.each(yhat[..., 0, 0], y)


@pytest.mark.parametrize(("loss", "off"), [("logistic", 0.0), ("smoothed_hinge", -1.0)])
def test_one_output_is_right_where_its_sign_is_that_of_the_class(loss, off):
    y, yhat = torch.tensor([[off], [1.0], [1.0]]), torch.tensor([[-2.0], [0.5], [-0.1]])
    assert scores(as_objective(loss, None, y), yhat, y)["accuracy"] == pytest.approx(2 / 3)


def test_a_segmenter_is_trained_and_kept_well_posed():
    g = torch.Generator().manual_seed(1)
    y = torch.randint(0, 2, (24, 3, 3), generator=g).repeat_interleave(2, 1).repeat_interleave(2, 2)
    X = y[:, None].double() + 0.3 * torch.randn(24, 1, 6, 6, dtype=torch.float64, generator=g)
    model = OptEqSegmenter((1, 6, 6), 4, (4,), 2, dtype=torch.float64, generator=g)
    trainer = eq.Trainer(model, epochs=8, batch_size=8, rate=0.1, momentum=0.9, schedule="poly")
    history = trainer.fit(X, y, (X, y))
    assert history.loss_name == "mean cross_entropy"
    assert history.test_accuracy[8] > 0.85 > history.test_accuracy[0]
    assert eq.certify(model, X).proved
