"""Radii of smoothed classifiers, against a linear one whose smoothed answer is known exactly."""

import math

import pytest
import torch
from scipy.stats import binom, norm
from torch import nn

import equipoise as eq
from equipoise.theory.verify import smoothed_predictions
from equipoise.theory.verify.smoothing import least_probability


class Halved(nn.Module):
    """z = z/2 + x, so that z = 2x."""

    def forward(self, z, x):
        return z / 2 + x


def sides(z):
    """Class 1 where the first entry is positive: smoothing leaves it as it is, with the radius |x₀|."""
    return torch.stack([-z[:, 0], z[:, 0]], dim=1)


def layer(**how):
    return eq.Equilibrium(Halved(), **how).eval()


@pytest.mark.parametrize("draws", [1, 7, 60])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.93])
def test_the_lower_end_is_above_the_truth_no_more_often_than_it_may_be(draws, p):
    alpha = 0.05
    wrong = [k for k in range(draws + 1) if least_probability(k, draws, alpha) > p]
    assert binom.pmf(wrong, draws, p).sum() <= alpha


def test_radii_of_a_linear_classifier_are_false_no_more_often_than_alpha():
    """The true radius is |x₀|, the true probability Φ(|x₀|/σ): 400 rows, α = 0.1."""
    x0, sigma, alpha, rows = 0.1, 0.5, 0.1, 400
    X = torch.full((rows, 1), x0, dtype=torch.float64)
    found = smoothed_predictions(
        layer(), X, sigma=sigma, head=sides, draws=60, selection=20, alpha=alpha, seed=3
    )
    false = (found.probability > norm.cdf(x0 / sigma)) & (found.classes == 1)
    false |= (found.probability > norm.cdf(-x0 / sigma)) & (found.classes == 0)
    assert torch.equal(found.radius > x0, (found.radius > x0) & false)  # a radius is false only if p is
    assert binom.sf(int(false.sum()) - 1, rows, alpha) > 1e-3
    assert 0 < int(found.abstained.sum()) < rows


def test_a_row_far_from_the_border_gets_the_radius_of_its_counts():
    found = smoothed_predictions(layer(), torch.tensor([[9.0], [-9.0]]), sigma=0.5, head=sides, draws=200)
    assert found.classes.tolist() == [1, 0]
    expected = 0.5 * norm.ppf(0.001 ** (1 / 200))  # all hits: the lower end is α^(1/n)
    assert found.radius.tolist() == pytest.approx([expected] * 2, rel=1e-6)
    assert (found.radius <= expected).all()


def test_solves_that_fail_count_against_the_class():
    failing = layer(stop=eq.Stop(rtol=1e-6, max_steps=1), solver=eq.Picard())
    found = smoothed_predictions(failing, torch.tensor([[9.0]]), sigma=0.5, head=sides, draws=50)
    assert found.abstained.all()
    assert found.radius.item() == 0


def test_rows_without_a_clear_class_are_abstained_from():
    found = smoothed_predictions(layer(), torch.zeros(3, 1), sigma=1.0, head=sides, draws=100)
    assert found.abstained.all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sigma": 0.0}, "sigma must be"),
        ({"sigma": math.inf}, "sigma must be"),
        ({"alpha": 1.0}, "alpha must be"),
        ({"draws": 0}, "draws must be"),
        ({"selection": True}, "selection must be"),
    ],
)
def test_what_cannot_be_asked_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        smoothed_predictions(layer(), torch.zeros(1, 1), head=sides, **{"sigma": 1.0} | change)


def test_a_model_in_training_is_refused():
    with pytest.raises(ValueError, match="eval"):
        smoothed_predictions(layer().train(), torch.zeros(1, 1), sigma=1.0, head=sides)


def test_scores_of_one_output_name_no_class():
    """The largest of one score is always the first, so that every row would be certified for class 0."""
    model = eq.GaussianReLU(inputs=3, width=8).eval()
    with pytest.raises(ValueError, match="two classes or more"):
        smoothed_predictions(model, torch.randn(2, 3), sigma=0.1, draws=10, selection=5)


def test_rows_are_needed():
    model = eq.GaussianReLU(inputs=3, width=8, outputs=2).eval()
    with pytest.raises(ValueError, match="at least one row"):
        smoothed_predictions(model, torch.randn(0, 3), sigma=0.1)


class Averaged(nn.Module):
    def forward(self, z, x):
        return 0.3 * z + x.mean(dim=0, keepdim=True) + 0 * x


def test_copies_that_average_their_noise_away_are_refused():
    """Of 1,000 copies all were of the first class, and 2.5 was said where .7 is true."""
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    alone = eq.Equilibrium(Averaged()).eval()
    with pytest.raises(ValueError, match="mixes samples"):
        smoothed_predictions(alone, x, sigma=1.0)
    head = lambda z: z.mean(dim=0, keepdim=True).expand_as(z)
    with pytest.raises(ValueError, match="the head"):
        smoothed_predictions(eq.Equilibrium(Halved()).eval(), x, sigma=1.0, head=head)
