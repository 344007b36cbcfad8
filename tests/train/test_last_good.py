"""Whatever ends a run, the model holds the last good weights."""

from __future__ import annotations

import copy

import pytest
import torch

import equipoise as eq
from certifiable import FAMILIES, instance
from equipoise.train.descent import DescentRun
from equipoise.train.guarded_run import GuardedRun


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(model, expected):
    return all(torch.equal(p, expected[name]) for name, p in model.named_parameters())


def finite(model):
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_updates_that_overflow_are_left_out(family):
    """Tried, shrunk and left out: the readout learns alone, and keeps the promise."""
    model, X, y = instance(family)
    huge = lambda g: {n: torch.full_like(t, 1e308) for n, t in g.items()}
    history = eq.safeguarded_descent(model, X, y, 5, hidden_step=1e300, direction=huge)
    assert finite(model)
    assert not history.violations()
    assert history.loss[-1] < history.loss[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("where", ["_try", "_equilibria", "_gradients", "_residual"])
def test_a_safeguarded_step_that_fails_half_way_is_not_seen(where, error, monkeypatch):
    model, X, y = instance("ling2023")
    certificate = eq.certify(model, X, y, theorem="safeguarded")
    expected, inside, work = [], [], getattr(GuardedRun, where)

    def broken(self, *args):
        if len(expected) == 3:  # in the third step, once the hidden weights were changed
            inside.append(weights(self.model))
            with torch.no_grad():
                for p in self.hidden.values():
                    p.fill_(torch.inf)
            raise error
        return work(self, *args)

    monkeypatch.setattr(GuardedRun, where, broken)
    seen = lambda k, loss: expected.append(k)
    after = []
    step = GuardedRun.step

    def counted(self):
        taken = step(self)
        after.append(weights(self.model))
        return taken

    monkeypatch.setattr(GuardedRun, "step", counted)
    with pytest.raises(error):
        eq.safeguarded_descent(model, X, y, 10, certificate, progress=seen)
    assert inside
    assert len(after) == 2
    assert same(model, after[-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_descent_that_diverges_leaves_the_last_weights_with_a_finite_loss(family):
    model, X, y = instance(family)
    start = copy.deepcopy(model)
    history = eq.gradient_descent(model, X, y, 200, 1e3)
    assert history.stopped
    assert finite(model)
    found = [k for k, value in enumerate(history.loss) if value < torch.inf]
    eq.gradient_descent(start, X, y, found[-1], 1e3)
    assert same(model, weights(start))


def test_a_descent_step_that_fails_half_way_is_undone(monkeypatch):
    model, X, y = instance("ling2023")
    start = copy.deepcopy(model)
    step, calls = DescentRun.step, []

    def broken(self):
        calls.append(1)
        if len(calls) == 3:
            with torch.no_grad():
                self.model.W.fill_(torch.nan)
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(DescentRun, "step", broken)
    with pytest.raises(KeyboardInterrupt):
        eq.gradient_descent(model, X, y, 10, 1e-3)
    monkeypatch.undo()
    eq.gradient_descent(start, X, y, 2, 1e-3)
    assert same(model, weights(start))


def test_a_flow_that_is_interrupted_leaves_what_it_reached():
    model, X, y = instance("ling2023")
    start = weights(model)

    def progress(t, loss):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        eq.gradient_flow(model, X, y, 1e-3, progress=progress)
    assert finite(model)
    assert not same(model, start)


def test_of_many_runs_those_that_diverge_keep_finite_weights():
    models = [instance("ling2023", seed=s)[0] for s in (0, 1)]
    _, X, y = instance("ling2023")
    alone = copy.deepcopy(models[0])
    histories = eq.train_many(models, X, y, 12, [1e-3, 1e4])
    assert not histories[0].stopped
    assert histories[1].stopped
    assert all(finite(model) for model in models)
    last = len(histories[1].loss) - 2
    again = [instance("ling2023", seed=s)[0] for s in (0, 1)]
    eq.train_many(again, X, y, last, [1e-3, 1e4])
    assert same(models[1], weights(again[1]))
    eq.train_many([alone], X, y, 12, 1e-3)
    assert all(torch.allclose(p, q) for p, q in zip(alone.parameters(), models[0].parameters(), strict=True))
