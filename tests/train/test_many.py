"""Runs that train together end where each ends alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import equipoise as eq

TIGHT = eq.Stop(rtol=1e-12, max_steps=3000)
RATES = [1e-4, 5e-4, 1e-3, 2e-3]
FAMILIES = {
    "gaussian": lambda g, k: eq.GaussianReLU(6, 15, outputs=k, dtype=torch.float64, generator=g),
    "scaled": lambda g, k: eq.ScaledReLU(6, 15, outputs=k, gamma=0.3, dtype=torch.float64, generator=g),
    "linear": lambda g, k: eq.LinearEquilibrium(6, outputs=k, dtype=torch.float64, generator=g),
}


def runs(name, outputs=1):
    return [FAMILIES[name](torch.Generator().manual_seed(seed), outputs) for seed in range(len(RATES))]


def data(model, n=7):
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(n, 6, dtype=torch.float64, generator=generator)
    return X, torch.randn(model(X).shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_together_as_alone(name, outputs):
    models = runs(name, outputs)
    X, y = data(models[0])
    X_test, y_test = X + 0.1, y
    alone = [copy.deepcopy(m) for m in models]
    expected = [
        eq.gradient_descent(m, X, y, 15, rate, stop=TIGHT, X_test=X_test, y_test=y_test)
        for m, rate in zip(alone, RATES, strict=True)
    ]
    got = eq.train_many(models, X, y, 15, RATES, stop=TIGHT, X_test=X_test, y_test=y_test)
    for one, other, model, reference in zip(got, expected, models, alone, strict=True):
        np.testing.assert_allclose(one.loss, other.loss, rtol=1e-8)
        assert one.test_loss[15] == pytest.approx(other.test_loss[15], rel=1e-6)
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-10)


def test_ties_of_a_diagonal_start_read_as_a_model_reads_them():
    # ScaledReLU with A = I: pre-activations tie at 0 wherever x·W ≤ 0, warm starts included.
    models = runs("scaled")
    X, y = data(models[0])
    with torch.no_grad():
        for model in models:
            model.b.normal_(generator=torch.Generator().manual_seed(1))
    expected = [eq.gradient_descent(copy.deepcopy(m), X, y, 3, 1e-3, stop=TIGHT).loss for m in models]
    got = eq.train_many(models, X, y, 3, 1e-3, stop=TIGHT)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one.loss, other, rtol=1e-8)


def test_momentum_and_mini_batches_are_those_of_sgd():
    models = runs("linear")
    X, y = data(models[0])
    reference = copy.deepcopy(models[2])
    optimiser = torch.optim.SGD(reference.parameters(), lr=RATES[2], momentum=0.8)
    generator = torch.Generator().manual_seed(3)
    order: list[int] = []
    for _ in range(9):
        if not order:
            order = torch.randperm(7, generator=generator).tolist()
        rows, order = order[:3], order[3:]
        optimiser.zero_grad()
        (reference(X[rows]) - y[rows]).square().sum().backward()
        optimiser.step()
    eq.train_many(
        models, X, y, 9, RATES, momentum=0.8, batch_size=3, generator=torch.Generator().manual_seed(3)
    )
    for p, q in zip(models[2].parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_a_run_that_diverges_does_not_disturb_the_others():
    models = runs("gaussian")
    X, y = data(models[0])
    good = eq.train_many([copy.deepcopy(models[0])], X, y, 30, 1e-3)[0]
    both = eq.train_many([models[0], models[1]], X, y, 30, [1e-3, 1e3])
    np.testing.assert_allclose(both[0].loss, good.loss, rtol=1e-6)
    assert "not finite" in both[1].stopped
    assert both[1].steps < 30


def test_data_of_their_own():
    models = runs("gaussian")
    X, y = data(models[0])
    Xs = torch.stack([X * (1 + 0.1 * i) for i in range(4)])
    ys = torch.stack([y * (i + 1) for i in range(4)])
    expected = [
        eq.gradient_descent(copy.deepcopy(m), x, t, 5, 1e-4, stop=TIGHT).loss
        for m, x, t in zip(models, Xs, ys, strict=True)
    ]
    got = eq.train_many(models, Xs, ys, 5, 1e-4, stop=TIGHT)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one.loss, other, rtol=1e-8)


def test_bad_use_is_refused():
    models = runs("gaussian")
    X, y = data(models[0])
    with pytest.raises(ValueError, match="at least one"):
        eq.train_many([], X, y, 1, 1e-3)
    with pytest.raises(ValueError, match="alike"):
        eq.train_many([models[0], eq.GaussianReLU(6, 16, dtype=torch.float64)], X, y, 1, 1e-3)
    with pytest.raises(TypeError, match="Monotone"):
        eq.train_many([eq.Monotone(6, 5, dtype=torch.float64)], X, y, 1, 1e-3)
    with pytest.raises(ValueError, match="X must be"):
        eq.train_many(models, X, y[:3], 1, 1e-3)
    with pytest.raises(ValueError, match="momentum"):
        eq.train_many(models, X, y, 1, 1e-3, momentum=1.0)
    with pytest.raises(ValueError, match="batch_size"):
        eq.train_many(models, X, y, 1, 1e-3, batch_size=100)
    with pytest.raises(ValueError, match="step_sizes"):
        eq.train_many(models, X, y, 1, -1.0)
