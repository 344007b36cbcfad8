"""Free training: the steps are the optimiser's own, what is recorded is true, and a failure ends well."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.linalg import norm_upper
from equipoise.train import Projection, Trainer
from equipoise.train.schedules import Cosine, Steps

F64 = torch.float64
TIGHT = eq.Stop(rtol=1e-12, max_steps=2000)


def numbers(N=40, d=5, k=1, seed=0):
    """Targets that a network can learn."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, d, dtype=F64, generator=generator)
    W = torch.randn(d, k, dtype=F64, generator=generator)
    y = torch.tanh(X @ W)
    return X, y[:, 0] if k == 1 else y


def classes(N=60, d=5, k=3, seed=0):
    X, scores = numbers(N, d, k, seed)
    return X, scores.argmax(dim=1)


def plain(d=5, k=3, seed=0, dropout=0.0):
    torch.manual_seed(seed)
    layers = [nn.Linear(d, 12, dtype=F64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(12, k, dtype=F64)]
    return nn.Sequential(*layers)


class Cell(nn.Module):
    def __init__(self, m: int) -> None:
        super().__init__()
        self.W = nn.Parameter(0.3 * torch.randn(m, m, dtype=F64) / m**0.5)
        self.drop = eq.SharedDropout(0.2)

    def forward(self, z, x):
        return self.drop(torch.tanh(z @ self.W.T + x))


def layered(d=5, k=3, seed=0):
    """An equilibrium layer, with dropout inside, in a Sequential."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(d, 8, dtype=F64), eq.Equilibrium(Cell(8)), nn.Dropout(0.1), nn.Linear(8, k, dtype=F64)
    )


# -- the steps -----------------------------------------------------------------------------------------------


def by_hand(model, X, y, make, epochs, size, factors, seed, loss, clip=None):
    """The same by a plain loop."""
    optimiser = make(model.parameters())
    rate, step, losses = optimiser.param_groups[0]["lr"], 0, []
    for epoch in range(epochs):
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        total = 0.0
        for rows in order.split(size):
            optimiser.param_groups[0]["lr"] = rate * factors(step)
            optimiser.zero_grad()
            value = loss(model(X[rows]), y[rows]).sum() / len(rows)
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()
            total, step = total + float(value.detach()) * len(rows), step + 1
        losses.append(total / len(X))
    return losses


@pytest.mark.parametrize(
    ("options", "make"),
    [
        ({"optimiser": "sgd", "rate": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            {"optimiser": "sgd", "rate": 0.05, "momentum": 0.9, "weight_decay": 1e-2},
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2),
        ),
        ({"optimiser": "adam", "rate": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01)),
        (
            {"optimiser": lambda p: torch.optim.NAdam(p, lr=0.02)},
            lambda p: torch.optim.NAdam(p, lr=0.02),
        ),
    ],
    ids=["sgd", "momentum", "adam", "factory"],
)
def test_the_steps_are_those_of_the_optimiser(options, make):
    X, y = classes()
    model = plain()
    twin = copy.deepcopy(model)
    schedule = Cosine(floor=0.1)
    trainer = Trainer(model, schedule=schedule, batch_size=16, epochs=3, seed=7, clip=0.5, **options)
    history = trainer.fit(X, y)
    each = nn.CrossEntropyLoss(reduction="none")
    steps = 3 * 4
    expected = by_hand(twin, X, y, make, 3, 16, lambda s: schedule.factor(s, steps), 7, each, clip=0.5)
    np.testing.assert_allclose(history.loss[1:], expected, rtol=1e-12)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


def test_full_batch_steps_are_gradient_descent():
    X, y = numbers(N=8)
    model = eq.GaussianReLU(5, 12, dtype=F64, generator=torch.Generator().manual_seed(0))
    twin = copy.deepcopy(model)
    Trainer(model, batch_size=None, epochs=5, rate=8 * 1e-3).fit(X, y)
    eq.gradient_descent(twin, X, y, steps=5, step_size=1e-3)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["linear", "scaled", "gaussian", "monotone", "plain", "layered"])
def test_every_kind_of_network_learns(name):
    k = 2
    X, y = numbers(k=k, N=60)
    options = {"outputs": k, "dtype": F64, "generator": torch.Generator().manual_seed(0)}
    model = {
        "linear": lambda: eq.LinearEquilibrium(5, **options),
        "scaled": lambda: eq.ScaledReLU(5, 20, **options),
        "gaussian": lambda: eq.GaussianReLU(5, 20, **options),
        "monotone": lambda: eq.Monotone(5, 20, **options),
        "plain": lambda: plain(k=k),
        "layered": lambda: layered(k=k),
    }[name]()
    rate = 0.1 if name == "linear" else 0.02  # which starts far away
    trainer = Trainer(model, optimiser="adam", rate=rate, batch_size=20, epochs=12, schedule="cosine")
    before = trainer.evaluate(X, y)
    history = trainer.fit(X, y, validation=(X, y))
    assert not history.stopped
    assert history.loss[0] == pytest.approx(before["loss"], rel=1e-6)
    assert history.loss[-1] < 0.5 * history.loss[0]
    after = trainer.evaluate(X, y)
    assert after["loss"] == pytest.approx(history.test_loss[12], rel=1e-9)
    assert after["r2"] == pytest.approx(history.test_r2[12], rel=1e-9)
    assert 0.4 < after["r2"] <= 1
    assert history.loss_name.startswith("mean ")


@pytest.mark.parametrize(
    "loss", ["logistic", "hinge", "cross_entropy", "square", eq.losses.Logistic(tau=0.01)]
)
def test_every_loss_learns_two_classes(loss):
    X, y = classes(k=2)
    k = 2 if loss == "cross_entropy" else 1
    if k == 1:
        y = y.to(F64)[:, None] if loss != "hinge" else 2 * y.to(F64)[:, None] - 1
    model = plain(k=k)
    trainer = Trainer(model, loss, optimiser="adam", rate=0.02, epochs=30, batch_size=20)
    history = trainer.fit(X, y, validation=(X, y))
    assert history.test_accuracy[30] > 0.9
    yhat = model(X).detach()
    if loss == "cross_entropy":
        expected = (yhat.argmax(dim=1) == y).double().mean()
    else:
        middle = {"square": 0.5}.get(loss, 0.0)
        expected = ((yhat > middle) == (y > (0 if loss == "hinge" else 0.5))).double().mean()
    assert trainer.evaluate(X, y)["accuracy"] == pytest.approx(float(expected))


def test_sample_weights_count_as_repeated_samples():
    X, y = numbers(N=6)
    weight = torch.tensor([1.0, 2.0, 1.0, 0.0, 3.0, 1.0])
    rows = torch.repeat_interleave(torch.arange(6), weight.long())
    one, two = plain(k=1), plain(k=1)
    Trainer(one, batch_size=None, epochs=4, rate=0.1).fit(X, y[:, None], sample_weight=weight)
    # Weights are scaled to a mean of 1: Σ w ℓ/(N w̄) is the mean over the repeated samples.
    Trainer(two, batch_size=None, epochs=4, rate=0.1).fit(X[rows], y[rows, None])
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
    for wrong in (-weight, weight[:3], 0 * weight):
        with pytest.raises(ValueError, match="sample_weight must be"):
            Trainer(one).fit(X, y[:, None], sample_weight=wrong)


# -- what is recorded ----------------------------------------------------------------------------------------


def test_records_tell_what_happened():
    X, y = numbers(N=30, k=2)
    model = eq.GaussianReLU(5, 40, outputs=2, dtype=F64, generator=torch.Generator().manual_seed(0))
    told, steps = [], []
    trainer = Trainer(model, epochs=4, batch_size=8, rate=0.1, schedule=Steps(at=(0.5,), decay=0.1))
    state = torch.get_rng_state()
    history = trainer.fit(
        X, y, validation=(X, y), measure=2, record=told.append, progress=lambda k, v: steps.append((k, v))
    )
    assert torch.equal(torch.get_rng_state(), state)  # chance outside is as it was
    assert [t["epoch"] for t in told] == [0, 1, 2, 3, 4]
    assert [t["step"] for t in told] == [0, 4, 8, 12, 16]
    assert [t["loss"] for t in told] == history.loss.tolist()
    assert [k for k, _ in steps] == list(range(1, 17))
    assert np.mean([v for _, v in steps[:3]]) * 24 / 30 + steps[3][1] * 6 / 30 == pytest.approx(
        told[1]["loss"]
    )
    np.testing.assert_allclose([t["learning_rate"] for t in told], [0.1, 0.1, 0.1, 0.01, 0.01])
    np.testing.assert_allclose(history.times, np.cumsum([0, 0.4, 0.4, 0.04, 0.04]))
    assert sorted(history.sigma_min) == sorted(history.movement) == [0, 2, 4]
    assert history.movement[0] == 0 < history.movement[4]
    assert history.contraction[4] == pytest.approx(
        float(torch.linalg.matrix_norm(model.W.detach(), ord=2)), rel=1e-8
    )
    assert all(t["test_loss"] == history.test_loss[t["epoch"]] for t in told)
    assert history.forward_steps.dtype.kind == "i"
    assert (history.forward_steps > 0).all()
    assert history.adjoint_steps[0] == 0 < history.adjoint_steps[1]


def test_warm_starts_save_solver_steps_and_change_little():
    X, y = numbers(N=30, k=2)
    ends, steps = [], []
    for warm in (False, True, "extrapolate"):
        model = eq.GaussianReLU(5, 40, outputs=2, dtype=F64, generator=torch.Generator().manual_seed(0))
        trainer = Trainer(model, epochs=8, batch_size=10, rate=0.01, warm_start=warm)
        history = trainer.fit(X, y)
        ends.append(model.W.detach())
        steps.append(history.forward_steps[-1])
    assert steps[1] < steps[0]
    assert steps[2] < steps[0]
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-6)


# -- early ends ----------------------------------------------------------------------------------------------


def test_early_stopping_leaves_the_best_weights():
    X, y = numbers(N=24, k=2)
    X_val, y_val = (
        torch.randn(20, 5, dtype=F64, generator=torch.Generator().manual_seed(5)),
        numbers(20, k=2)[1],
    )
    model = plain(k=2)
    trainer = Trainer(model, optimiser="adam", rate=0.05, epochs=200, batch_size=8, patience=4)
    history = trainer.fit(X, y, validation=(X_val, y_val))
    assert history.steps < 200
    assert "no better loss for 4 epochs" in history.stopped
    assert history.advice == ""
    assert history.best == min(history.test_loss, key=history.test_loss.get) == history.steps - 4
    assert trainer.evaluate(X_val, y_val)["loss"] == pytest.approx(history.test_loss[history.best], rel=1e-12)


def test_a_run_that_diverges_ends_at_the_last_good_weights():
    X, y = numbers(N=20)
    model = nn.Linear(5, 1, dtype=F64)
    seen = []
    keep = lambda told: seen.append(copy.deepcopy(model.state_dict()))
    history = Trainer(model, rate=50.0, epochs=50, batch_size=5).fit(X, y[:, None], record=keep)
    assert history.stopped
    assert "grown" in history.stopped or "not finite" in history.stopped
    assert "a smaller rate (it was 50, try 5), clip=1.0" in history.advice
    assert any(all(torch.equal(t, model.state_dict()[n]) for n, t in weights.items()) for weights in seen)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_a_loss_that_is_not_finite_ends_the_run():
    X, y = numbers(N=20)
    model = nn.Linear(5, 1, dtype=F64)
    start = copy.deepcopy(model.state_dict())
    explode = lambda yhat, y: (yhat - y).square().sum(dim=1) * (float("nan") if len(yhat) == 4 else 1.0)
    history = Trainer(model, explode, epochs=5, batch_size=8).fit(X, y[:, None])
    assert history.stopped.startswith("epoch 1, step 2: the loss or its gradient is not finite")
    assert history.steps == 0
    assert all(torch.equal(t, start[n]) for n, t in model.state_dict().items())


@pytest.mark.parametrize("projection", [False, True])
def test_a_lost_equilibrium_ends_the_run_and_a_projection_prevents_it(projection):
    X, y = numbers(N=20)
    model = eq.GaussianReLU(5, 15, dtype=F64, generator=torch.Generator().manual_seed(0))
    trainer = Trainer(
        model, epochs=20, batch_size=10, rate=0.5, clip=5.0, projection=projection and Projection(0.9)
    )
    told = []
    history = trainer.fit(X, 30 + y, record=told.append)
    if projection:
        assert not history.stopped
        assert sum(t["projections"] for t in told) > 0
        assert norm_upper(model.W) <= 0.9
    else:
        assert "no equilibrium of row" in history.stopped
        assert "projection=True" in history.advice
        model(X)  # the last good weights have equilibria
        assert history.steps > 0


def test_a_start_without_equilibria_is_told():
    X, y = numbers(N=20)
    model = eq.GaussianReLU(5, 15, dtype=F64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.W.copy_(3 * torch.eye(15))
    history = Trainer(model, epochs=2).fit(X, y)
    assert "no equilibrium at the start" in history.stopped
    assert history.advice


# -- what is refused -----------------------------------------------------------------------------------------


def test_wrong_options_are_named():
    model = plain()
    for options, words in (
        ({"optimiser": "lion"}, "optimiser must be one of 'sgd'"),
        ({"optimiser": "adam", "momentum": 0.9}, "adam takes no momentum"),
        ({"optimiser": torch.optim.Adam, "rate": 0.1}, "belong in the factory"),
        ({"rate": -1.0}, "rate must be"),
        ({"momentum": 1.0}, "momentum must lie"),
        ({"weight_decay": float("nan")}, "weight_decay must be"),
        ({"schedule": "exponential"}, "schedule must be one of"),
        ({"batch_size": 0}, "batch_size must be an integer ≥ 1"),
        ({"epochs": 1.5}, "epochs must be an integer ≥ 0"),
        ({"patience": 0}, "patience must be"),
        ({"clip": 0.0}, "clip must be"),
        ({"warm_start": "yes"}, "warm_start must be"),
    ):
        with pytest.raises(ValueError, match=words):
            Trainer(model, **options)
    with pytest.raises(TypeError, match="LBFGS"):
        Trainer(model, optimiser=torch.optim.LBFGS)
    with pytest.raises(TypeError, match="projection must be"):
        Trainer(model, projection=0.9)
    with pytest.raises(TypeError, match=r"nn\.Module"):
        Trainer(lambda x: x)
    with pytest.raises(ValueError, match="no parameter to train"):
        Trainer(plain().requires_grad_(False))


def test_wrong_data_are_named():
    X, y = classes()
    trainer = Trainer(plain(), epochs=1)
    bad = X.clone()
    bad[17, 2] = float("inf")
    high = y.clone()
    high[4] = 3
    for data, words in (
        ((bad, y), "X must be finite. Got NaN or infinity in row 17"),
        ((X, y[:-1]), "the same number of rows, and at least one. Got 60 and 59"),
        ((X[:0], y[:0]), "Got 0 and 0"),
        ((X, high), "Got 3 in row"),
    ):
        with pytest.raises(ValueError, match=words):
            trainer.fit(*data)
    with pytest.raises(ValueError, match="must be one of 'cross_entropy', 'hinge', 'square'"):
        Trainer(plain(), "absolute").fit(X, y)
    with pytest.raises(ValueError, match="one number for each sample"):
        Trainer(plain(), nn.CrossEntropyLoss()).fit(X, y)
    with pytest.raises(ValueError, match="every must be"):
        trainer.fit(X, y, every=0)


def test_zero_epochs_measure_the_start():
    X, y = classes()
    model = plain()
    before = copy.deepcopy(model.state_dict())
    history = Trainer(model, epochs=0).fit(X, y, validation=(X, y))
    assert history.steps == 0
    assert 0 in history.test_accuracy
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_the_layout_of_the_rows_in_memory_changes_no_bit():
    X, y = numbers(N=120, d=10)
    found = []
    for rows in (X, X.T.contiguous().T):
        model = eq.GaussianReLU(10, 64, dtype=F64, generator=torch.Generator().manual_seed(0))
        trainer = Trainer(model, "half_square", epochs=2, batch_size=None)
        trainer.fit(rows, y)
        found.append((trainer.predict(rows), [p.detach() for p in model.parameters()]))
    (one, weights), (other, others) = found
    assert torch.equal(one, other)
    assert all(torch.equal(p, q) for p, q in zip(weights, others, strict=True))
