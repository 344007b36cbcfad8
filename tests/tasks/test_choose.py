"""Leave-one-out in closed form is leave-one-out by fitting again; the sharpness is the likeliest."""

from __future__ import annotations

import math

import pytest
import torch

from equipoise.recipe import Recipe
from equipoise.solve import Stop
from equipoise.tasks.choose import choose_ridge, choose_sharpness, choose_slack
from equipoise.tasks.fitting import fit


def problem(N: int, m: int, k: int = 2, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)
    Z = draw(N, m)
    return Z, Z @ draw(m, k) / m**0.5 + 0.5 * draw(N, k)


def refitted(Z, Y, slack):
    """Each row predicted by the ridge regression of the others."""
    found = torch.empty_like(Y)
    for i in range(len(Z)):
        rest = torch.arange(len(Z)) != i
        A = Z[rest].T @ Z[rest] + slack * torch.eye(Z.shape[1], dtype=torch.float64)
        found[i] = Z[i] @ torch.linalg.solve(A, Z[rest].T @ Y[rest])
    return found


@pytest.mark.parametrize(("N", "m"), [(12, 20), (20, 20), (25, 7), (2, 5)])
@pytest.mark.parametrize("slack", [1e-3, 1.0, 50.0])
def test_left_out_rows_are_predicted_as_if_fitted_without_them(N, m, slack):
    Z, Y = problem(N, m)
    choice = choose_slack(Z, Y, torch.ones(N, dtype=torch.float64), slack)
    assert choice.slack == slack
    expected = refitted(Z, Y, slack)
    assert torch.allclose(choice.left_out, expected, rtol=1e-6, atol=1e-8)
    assert torch.allclose(choice.errors, (expected - Y).square().sum() / N, rtol=1e-6)


def test_without_slack_too():
    Z, Y = problem(10, 30)
    choice = choose_slack(Z, Y, torch.ones(10, dtype=torch.float64), 0.0)
    limit = torch.stack([Z[i] @ torch.linalg.pinv(Z[r := torch.arange(10) != i]) @ Y[r] for i in range(10)])
    assert torch.allclose(choice.left_out, limit, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("N", "m"), [(12, 40), (25, 7)])
def test_a_weighted_row_is_left_out_with_all_its_weight(N, m):
    Z, Y = problem(N, m)
    weights = torch.arange(1, N + 1).remainder(3).add(1).double()
    root = weights.sqrt()[:, None]
    choice = choose_slack(root * Z, root * Y, weights, 2.0)
    at = torch.repeat_interleave(torch.arange(N), weights.long())
    expected = torch.empty_like(Y)
    for i in range(N):
        rest = at[at != i]
        A = Z[rest].T @ Z[rest] + 2.0 * torch.eye(m, dtype=torch.float64)
        expected[i] = Z[i] @ torch.linalg.solve(A, Z[rest].T @ Y[rest])
    assert torch.allclose(choice.left_out, expected, rtol=1e-6, atol=1e-8)
    error = (weights[:, None] * (expected - Y).square()).sum() / weights.sum()
    assert torch.allclose(choice.errors, error, rtol=1e-6)


def test_the_choice_is_the_largest_slack_that_is_about_as_good_as_the_best():
    Z, Y = problem(40, 60)
    choice = choose_slack(Z, Y, torch.ones(40, dtype=torch.float64))
    at = int((choice.slacks == choice.slack).nonzero())
    best = int(choice.errors.argmin())
    per_row = (refitted(Z, Y, float(choice.slacks[best])) - Y).square().sum(dim=1)
    allowed = choice.errors[best] + per_row.std(correction=0) / 40**0.5
    assert best <= at
    assert choice.errors[at] <= allowed < choice.errors[at + 1]
    assert 0 < choice.slack == choice.to_dict()["slack"]


def test_noise_asks_for_more_slack_than_a_rule():
    Z, _ = problem(60, 80)
    generator = torch.Generator().manual_seed(1)
    rule = Z @ torch.randn(80, 1, dtype=torch.float64, generator=generator)
    noise = torch.randn(60, 1, dtype=torch.float64, generator=generator)
    ones = torch.ones(60, dtype=torch.float64)
    assert choose_slack(Z, noise, ones).slack > 10 * choose_slack(Z, rule, ones).slack


def test_a_slack_is_found_for_targets_that_are_all_zero():
    Z, Y = problem(10, 5)
    assert choose_slack(Z, torch.zeros_like(Y), torch.ones(10, dtype=torch.float64)).slack > 0


@pytest.mark.parametrize("k", [1, 4])
def test_the_sharpness_is_the_likeliest(k):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(200, k, dtype=torch.float64, generator=generator)
    logits = torch.cat([torch.zeros_like(outputs), outputs], dim=1) if k == 1 else outputs
    own = torch.multinomial((3 * logits).softmax(dim=1), 1, generator=generator)[:, 0]  # drawn at s = 3
    weights = torch.rand(200, dtype=torch.float64, generator=generator)
    s = choose_sharpness(outputs, own, weights)

    classes = logits.shape[1]
    epsilon = 1 / (float(weights.sum()) / classes + 2)
    believed = torch.nn.functional.one_hot(own, classes).double() * (1 - epsilon * classes / (classes - 1))
    believed = believed + epsilon / (classes - 1)
    assert torch.allclose(believed.sum(dim=1), torch.ones(200).double())

    def surprise(s: float) -> float:
        return -float((weights[:, None] * believed * (s * logits).log_softmax(dim=1)).sum())

    assert 1.5 < s < 6
    assert surprise(s) <= min(surprise(s * 1.001), surprise(s / 1.001))


def test_outputs_that_mislead_get_the_least_sharpness():
    outputs = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]], dtype=torch.float64)
    assert choose_sharpness(outputs, torch.tensor([0, 0, 1, 1]), torch.ones(4).double()) == 2.0**-4


def test_outputs_that_are_always_right_are_believed_as_far_as_there_are_rows():
    outputs = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]], dtype=torch.float64)
    s = choose_sharpness(outputs, torch.tensor([1, 1, 0, 0]), torch.ones(4).double())
    assert 1 / (1 + math.exp(-s)) == pytest.approx(3 / 4, rel=1e-5)


# -- the penalty of anchored training ----------------------------------------------------------------------


def drawn(N: int, classes: int):
    generator = torch.Generator().manual_seed(classes)
    X = torch.randn(N, 3, generator=generator)
    y = X[:, 0] + 0.3 * torch.randn(N, generator=generator)
    return X, y if classes == 1 else torch.bucketize(y, torch.linspace(-0.5, 0.5, classes - 1))


@pytest.mark.parametrize(("loss", "classes"), [("half_square", 1), ("logistic", 2), ("cross_entropy", 3)])
def test_a_penalty_is_judged_by_the_expansion_of_the_loss_at_no_readout(loss, classes):
    recipe = Recipe(loss=loss, width=20, ridge=3.0).resolved(40)
    X, y = drawn(40, classes)
    model = recipe.build(3, 1 if classes == 2 else classes)
    B = 2.0 * y - 1 if classes == 2 else y
    choice = choose_ridge(model, X, B, None, recipe)
    assert 0.949 == choice.ridges.min() <= choice.ridge <= choice.ridges.max() == 9.49
    Z = model.solve(X, stop=Stop(rtol=1e-6)).value.double()
    Z = torch.cat([Z, torch.ones(40, 1, dtype=torch.float64)], dim=1)
    Y = torch.nn.functional.one_hot(y).double() if classes == 3 else B.double()[:, None]
    Y = Y - Y.mean(dim=0)
    curvature = {1: 1.0, 2: 0.25, 3: 1 / 3}[classes]  # of the loss in the direction of an output, at 0
    errors = [(refitted(Z, Y, float(r) / curvature) - Y).square().sum() / 40 for r in choice.ridges]
    assert torch.allclose(choice.errors, torch.stack(errors), rtol=2e-2)
    assert choice.ridge == float(choice.ridges[choice.errors.argmin()])


def test_a_row_of_weight_two_is_two_rows_when_a_penalty_is_chosen():
    recipe = Recipe(loss="half_square", width=20, ridge=3.0).resolved(30, "regression")
    X, y = drawn(30, 1)
    model, weights = recipe.build(3, 1), torch.arange(30).remainder(3).add(1).double()
    choice = choose_ridge(model, X, y, weights, recipe)
    at = torch.repeat_interleave(torch.arange(30), weights.long())
    Z = model.solve(X, stop=Stop(rtol=1e-6)).value.double()
    Z = torch.cat([Z, torch.ones(30, 1, dtype=torch.float64)], dim=1)
    Y = (y - y[at].mean()).double()
    for ridge, error in zip(choice.ridges, choice.errors, strict=True):
        squares = torch.zeros(30, dtype=torch.float64)
        for i in range(30):
            rest = at[at != i]
            A = Z[rest].T @ Z[rest] + ridge * torch.eye(21, dtype=torch.float64)
            squares[i] = (Z[i] @ torch.linalg.solve(A, Z[rest].T @ Y[rest]) - Y[i]).square()
        assert float(error) == pytest.approx(float((weights * squares).sum() / weights.sum()), rel=2e-2)


def test_no_penalty_is_chosen_where_it_was_given_or_cannot_be():
    X, y = drawn(60, 1)
    rows, numbers = X.double().numpy(), y.double().numpy()
    few = {"width": 8, "epochs": 1}
    assert fit(rows, numbers, "regression", Recipe(ridge=2.5, **few)).recipe.ridge == 2.5
    found = fit(rows, numbers, "regression", Recipe(**few))
    assert found.recipe.ridge == found.validation["ridge"] == found.certificate.options["ridge"]
    assert fit(rows, numbers, "regression", Recipe(certified=False, **few)).recipe.ridge is None
    hinge = fit(rows, (numbers > 0).astype(int), "classification", Recipe(loss="hinge", **few))
    assert hinge.recipe.ridge == 6.0
    assert hinge.validation == {}
