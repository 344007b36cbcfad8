"""Callbacks hear all of a run, in its order; they change nothing of it, and one may end it."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from equipoise.train import Callback
from equipoise.train.checkpoint import Checkpoints


class Heard(Callback):
    def __init__(self, last=99):
        self.said, self.last = [], last

    def begin(self, trainer):
        self.said.append(("begin", trainer.epochs))

    def step(self, step, loss):
        self.said.append(("step", step, loss))

    def epoch(self, record):
        self.said.append(("epoch", record["epoch"], record["loss"]))
        record.clear()  # what it does with its record is its own affair
        return self.said[-1][1] >= self.last

    def end(self, history):
        self.said.append(("end", history.loss.tolist()))


def fitted(*callbacks, **how):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(20, 4, generator=generator)
    model = eq.GaussianReLU(4, 10, generator=generator)
    trainer = eq.Trainer(model, epochs=3, batch_size=10, rate=1e-2)
    return trainer.fit(X, torch.tanh(X[:, 0]), callbacks=callbacks, **how), model


def test_a_run_is_told_in_its_order_and_is_not_changed():
    one, two = Heard(), Heard()
    history, model = fitted(one, Callback(), two)
    alone, other = fitted()
    assert history.loss.tolist() == alone.loss.tolist()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert one.said == two.said
    assert [(what, *more[:1]) for what, *more in one.said[:-1]] == [
        *(("begin", 3), ("epoch", 0), ("step", 1), ("step", 2), ("epoch", 1), ("step", 3), ("step", 4)),
        *(("epoch", 2), ("step", 5), ("step", 6), ("epoch", 3)),
    ]
    assert [loss for what, _, loss in (s for s in one.said if s[0] == "epoch")] == history.loss.tolist()
    assert one.said[-1] == ("end", history.loss.tolist())


def test_a_callback_ends_the_run_and_it_stays_ended(tmp_path):
    """The end is on record: a run that goes on from its checkpoint is ended, too."""
    checkpoints = Checkpoints(tmp_path)
    history, _ = fitted(Heard(last=2), checkpoints=checkpoints)
    assert history.stopped == "epoch 2: Heard ended the run."
    assert len(history.loss) == 3
    again, _ = fitted(checkpoints=checkpoints)
    assert again.loss.tolist() == history.loss.tolist()


def test_an_interrupt_by_a_callback_is_saved(tmp_path):
    class Impatient(Callback):
        def step(self, step, loss):
            if step == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(Impatient(), checkpoints=Checkpoints(tmp_path))
    later, _ = fitted(checkpoints=Checkpoints(tmp_path))
    assert later.loss.tolist() == fitted()[0].loss.tolist()
