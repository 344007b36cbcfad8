"""A run that is broken off goes on from its checkpoint and ends at the same bits as one without a break."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.train import Trainer
from equipoise.train.checkpoint import Checkpoints

F64 = torch.float64


class Cell(nn.Module):
    def __init__(self, m: int) -> None:
        super().__init__()
        self.W = nn.Parameter(0.3 * torch.randn(m, m) / m**0.5)
        self.drop = eq.SharedDropout(0.3)

    def forward(self, z, x):
        return self.drop(torch.tanh(z @ self.W.T + x))


def dropout_network(seed=0):
    """Chance inside and outside of the equilibrium layer, batch statistics, single precision."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), eq.Equilibrium(Cell(8)), nn.Dropout(0.2), nn.Linear(8, 3)
    )


def affine(seed=0):
    return eq.GaussianReLU(
        5, 16, outputs=3, dtype=torch.float32, generator=torch.Generator().manual_seed(seed)
    )


def data(N=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, 5, generator=generator)
    return X, (X @ torch.randn(5, 3, generator=generator)).argmax(dim=1)


OPTIONS = {
    "momentum": {"optimiser": "sgd", "rate": 0.05, "momentum": 0.9, "schedule": "poly"},
    "adam": {"optimiser": "adam", "rate": 0.01, "weight_decay": 1e-3, "schedule": "cosine", "clip": 1.0},
    "rmsprop": {"optimiser": "rmsprop", "rate": 0.003, "schedule": "step"},
    "factory": {"optimiser": lambda p: torch.optim.Adamax(p, lr=0.01)},
}


class Break(KeyboardInterrupt):
    pass


def run(build, options, directory=None, breaks_at=None, told=None, **more):
    """One call of fit; `breaks_at` a step, inside of an epoch, or ("epoch", k) at its end."""

    def progress(step, loss):
        if step == breaks_at:
            raise Break

    def record(facts):
        if told is not None:
            told.append({k: v for k, v in facts.items() if k != "seconds"})
        if breaks_at == ("epoch", facts["epoch"]):
            raise Break

    model, (X, y), validation = build(), data(), data(12, seed=1)
    trainer = Trainer(model, epochs=5, batch_size=8, seed=3, **options, **more)
    checkpoints = None if directory is None else Checkpoints(directory)
    history = trainer.fit(
        X, y, validation=validation, checkpoints=checkpoints, record=record, progress=progress, measure=2
    )
    return model, history


def same(one, other):
    """Equal bits of weights and of all that was measured."""
    (model, history), (model2, history2) = one, other
    for (name, t), t2 in zip(model.state_dict().items(), model2.state_dict().values(), strict=True):
        assert torch.equal(t, t2), name
    ours, theirs = history.to_dict(), history2.to_dict()
    for name in ours:
        if name != "seconds":
            assert ours[name] == theirs[name], name


@pytest.mark.parametrize("breaks_at", [3, 11, ("epoch", 0), ("epoch", 2)], ids=str)
@pytest.mark.parametrize("optimiser", ["momentum", "adam"])
@pytest.mark.parametrize("build", [dropout_network, affine])
def test_a_broken_run_ends_at_the_same_bits(build, optimiser, breaks_at, tmp_path):
    options, told, told_again = OPTIONS[optimiser], [], []
    whole = run(build, options, told=told)
    with pytest.raises(Break):
        run(build, options, tmp_path, breaks_at, told=told_again)
    torch.manual_seed(12345)  # chance outside of the run must not matter
    resumed = run(build, options, tmp_path, told=told_again)
    same(whole, resumed)
    assert told_again == told  # nothing is told twice, and nothing left out


@pytest.mark.parametrize("optimiser", ["rmsprop", "factory"])
def test_other_optimisers_come_back_too(optimiser, tmp_path):
    whole = run(affine, OPTIONS[optimiser])
    with pytest.raises(Break):
        run(affine, OPTIONS[optimiser], tmp_path, 10)
    same(whole, run(affine, OPTIONS[optimiser], tmp_path))


@pytest.mark.parametrize("warm_start", [False, True, "extrapolate"])
def test_warm_starts_are_part_of_the_run(warm_start, tmp_path):
    more = {"warm_start": warm_start, "patience": 2}
    whole = run(affine, OPTIONS["adam"], **more)
    with pytest.raises(Break):
        run(affine, OPTIONS["adam"], tmp_path, 7, **more)
    same(whole, run(affine, OPTIONS["adam"], tmp_path, **more))


def test_after_a_kill_the_run_goes_on_from_the_last_epoch_saved(tmp_path):
    """A kill saves nothing: the rest of the epoch is done again, and comes out the same."""

    class Killed(BaseException):
        pass

    def kill(step, loss):
        if step == 10:
            raise Killed

    options, (X, y) = OPTIONS["momentum"], data()
    whole = run(dropout_network, options)
    with pytest.raises(Killed):
        Trainer(dropout_network(), epochs=5, batch_size=8, seed=3, **options).fit(
            X, y, data(12, seed=1), checkpoints=Checkpoints(tmp_path), progress=kill, measure=2
        )
    assert Checkpoints(tmp_path).latest().step == 8
    same(whole, run(dropout_network, options, tmp_path))


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = run(affine, OPTIONS["adam"], tmp_path)
    told = []
    again = run(affine, OPTIONS["adam"], tmp_path, told=told)
    same(first, again)
    assert told == []


def test_a_run_that_failed_stays_failed(tmp_path):
    X, y = data()
    y = torch.nn.functional.one_hot(y, 3).float()
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        trainer = Trainer(model, rate=100.0, epochs=20, batch_size=8)
        ends.append((model, trainer.fit(X, y, checkpoints=Checkpoints(tmp_path))))
    assert ends[0][1].stopped
    assert ends[0][1].advice
    same(*ends)


def test_more_epochs_go_on_where_the_schedule_allows(tmp_path):
    X, y = data()
    ends = []
    for epochs in ((2, 4), (4,)):
        where = Checkpoints(tmp_path / str(len(epochs)))
        for e in epochs:
            model = affine()
            history = Trainer(model, epochs=e, batch_size=8, rate=0.05).fit(
                X, y, checkpoints=where, measure=0
            )
        ends.append((model, history))
    same(*ends)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    X, y = data()
    options = {"epochs": 2, "batch_size": 8}
    Trainer(affine(), **options).fit(X, y, checkpoints=Checkpoints(tmp_path))
    for fit, words in (
        (lambda: Trainer(affine(), **options).fit(2 * X, y, checkpoints=Checkpoints(tmp_path)), "other X"),
        (
            lambda: Trainer(affine(), epochs=2, batch_size=4).fit(X, y, checkpoints=Checkpoints(tmp_path)),
            "other batch_size",
        ),
        (
            lambda: Trainer(affine(), **options, rate=0.3, seed=1).fit(
                X, y, checkpoints=Checkpoints(tmp_path)
            ),
            "other optimiser, seed",
        ),
        (
            lambda: Trainer(eq.ScaledReLU(X.shape[1], 5, gamma=0.3, dtype=X.dtype), **options).fit(
                X, y, checkpoints=Checkpoints(tmp_path)
            ),
            "other network",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            fit()


def test_numbers_that_an_optimiser_keeps_in_its_groups_come_back(tmp_path):
    class Slowing(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                group["weight_decay"] = 0.9 * group["weight_decay"] + 0.01

    options = {"optimiser": lambda p: Slowing(p, lr=0.05)}
    whole = run(affine, options)
    with pytest.raises(Break):
        run(affine, options, tmp_path, 10)
    same(whole, run(affine, options, tmp_path))


def test_an_optimiser_whose_memory_no_checkpoint_holds_is_named(tmp_path):
    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["past"] = [1, 2, 3]

    X, y = data()
    trainer = Trainer(affine(), optimiser=lambda p: Odd(p, lr=0.1), epochs=1)
    with pytest.raises(ValueError, match="Odd keeps 'past', a list"):
        trainer.fit(X, y, checkpoints=Checkpoints(tmp_path))


def test_the_order_of_samples_follows_from_the_seed_alone():
    X, y = data()
    first = [run_with_seed(X, y, seed) for seed in (0, 0, 1)]
    assert np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])


def run_with_seed(X, y, seed):
    model = copy.deepcopy(affine())
    return Trainer(model, epochs=2, batch_size=8, seed=seed).fit(X, y).loss
