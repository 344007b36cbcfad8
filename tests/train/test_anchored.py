"""A Trainer with the certificate "anchored": the free run, of which only what does not raise F is kept."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from dataclasses import replace

import pytest
import torch

import equipoise as eq
from certifiable import network
from equipoise.linalg import Interval
from equipoise.theory import Certificate
from equipoise.theory.anchored import Anchor
from equipoise.theory.register import facts
from equipoise.train.anchoring import REFUSALS, LearnedNothing
from equipoise.train.checkpoint import Checkpoints

RING = 40


def ring(N=RING, dtype=torch.float64, seed=0):
    """Points within and outside a circle: no readout of few random features tells them apart."""
    X = torch.randn(N, 3, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    X[:, 2] = 1
    return X, (X[:, :2].norm(dim=1) > 1.1).long()


def small(dtype=torch.float64, seed=0):
    return network("ling2023", width=6, inputs=3, outputs=2, seed=seed).to(dtype)


def objective(model, X, y, ridge=1.0, decay=0.0):
    """F by torch alone, from a tight solve in float64."""
    exact = copy.deepcopy(model).double()
    q = exact.readout(
        exact.solve(X.double(), stop=eq.Stop(rtol=1e-12, max_steps=9999)).raise_if_failed().value
    )
    loss = torch.nn.functional.cross_entropy(q, y, reduction="sum")
    readout = facts(exact).reads().readout_of(exact)
    read = readout.parameters(exact)
    hidden = sum(p.square().sum() for n, p in exact.named_parameters() if n not in read)
    return float((loss + ridge / 2 * readout.stored().square().sum() + decay / 2 * hidden).detach())


def certified(model, X, y, ridge=1.0, decay=0.0, **options):
    cert = eq.certify(model, X, y, theorem="anchored", loss="cross_entropy", ridge=ridge, decay=decay)
    options = {"optimiser": "adam", "rate": 0.02, "batch_size": 8, "epochs": 6, **options}
    return cert, eq.Trainer(model, "cross_entropy", certificate=cert, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_network_learns_and_keeps_every_promise(dtype):
    model, (X, y) = small(dtype), ring(dtype=dtype)
    cert, trainer = certified(model, X, y, ridge=0.1, decay=0.01, epochs=12, check_every=2, rtol=1e-3)
    history = trainer.fit(X, y)
    told = history.anchored
    kept = [c for c in told["checkpoints"] if c["accepted"]]
    assert len(kept) >= 4
    ends = [cert.constants["F_start"], *(c["F"][1] for c in kept)]
    assert all(b <= a for a, b in itertools.pairwise(ends))
    assert all(c["decrease"] >= 0 for c in kept)
    F = objective(model, X, y, 0.1, 0.01)
    assert F <= 0.8 * cert.constants["F_start"]
    assert told["F_end"][0] * (1 - 1e-9) <= F <= told["F_end"][1] * (1 + 1e-9)
    assert F / cert.constants["F_zero"] <= cert.bound(len(kept))
    assert 0 <= told["gap"] <= 1e-4 * F
    assert told["F_end_least"] <= F
    assert told["stationarity"] > 0
    assert eq.certify(model, X, theorem="wellposed").proved
    assert history.loss[0] == pytest.approx(cert.constants["data_start"] / RING, rel=1e-4)


def test_the_certified_run_is_the_free_run_with_checkpoints():
    X, y = ring()
    model = small()
    cert, trainer = certified(model, X, y, refit=False, check_every=1, rate=1e-3)
    free = copy.deepcopy(model)
    facts(free).reads().readout_of(free).store(cert._witness.a)
    trainer.fit(X, y)
    eq.Trainer(free, "cross_entropy", optimiser="adam", rate=1e-3, batch_size=8, epochs=6, ridge=1.0).fit(
        X, y
    )
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), free.parameters(), strict=True))


def test_absurd_steps_end_with_the_start_and_say_that_nothing_was_learned():
    model, (X, y) = small(), ring()
    cert, trainer = certified(
        model, X, y, decay=1.0, optimiser="sgd", rate=1e4, epochs=30, check_every=1, rtol=1e-3
    )
    hidden = [model.W.detach().clone(), model.U.detach().clone()]
    with pytest.warns(LearnedNothing, match="learned nothing beyond its readout"):
        history = trainer.fit(X, y)
    assert f"{REFUSALS} checkpoints in a row" in history.stopped
    assert history.advice
    assert not any(c["accepted"] for c in history.anchored["checkpoints"])
    assert torch.equal(model.W, hidden[0])
    assert torch.equal(model.U, hidden[1])
    assert objective(model, X, y, decay=1.0) <= cert.constants["F_start"] * (1 + 1e-12)
    for name in ("F_end", "data_end"):  # enclosures, which are wider than a point
        assert history.anchored[name][0] < history.anchored[name][1]


def test_a_last_readout_whose_bound_is_wider_is_not_taken(monkeypatch):
    """The upper end of its F lies above what was kept, though the lower end does not."""
    model, (X, y) = small(), ring()
    _, trainer = certified(model, X, y, optimiser="sgd", rate=1e4, epochs=30, check_every=1)
    solved = Anchor.on

    def wide(*args, **options):
        found = solved(*args, **options)
        return replace(found, F=Interval(0.0, 10 * found.F.hi))

    monkeypatch.setattr(Anchor, "on", staticmethod(wide))
    with pytest.warns(LearnedNothing):  # so that the readout is solved for once more at the end
        told = trainer.fit(X, y).anchored
    assert told["F_end"][0] > 0
    assert told["F_end"][1] <= told["F_start"]


@pytest.mark.parametrize("rate", [1e30, 1e200])
@pytest.mark.parametrize("loose", [True, False])
@pytest.mark.parametrize("kind", ["conv-monotone", "monotone"])
def test_weights_of_which_nothing_can_be_computed_are_rolled_back(kind, loose, rate):
    """W overflows, or is so large that no solve resolves it: the run goes on, and ends with its start."""
    X, y = ring()
    how = {"outputs": 2, "dtype": torch.float64, "generator": torch.Generator().manual_seed(0)}
    model = eq.ConvMonotone((1, 1, 3), 2, **how) if kind == "conv-monotone" else eq.Monotone(3, 6, **how)
    X = X.reshape(-1, 1, 1, 3) if kind == "conv-monotone" else X
    start = copy.deepcopy(model)
    cert, trainer = certified(
        model, X, y, optimiser="sgd", rate=rate, check_every=2, rtol=1e-3, loose=loose, start_at_best=False
    )
    with pytest.warns(LearnedNothing):
        history = trainer.fit(X, y)
    assert len(history.anchored["checkpoints"]) >= REFUSALS
    assert torch.equal(model.B, start.B)
    assert objective(model, X, y) <= cert.constants["F_start"] * (1 + 1e-12)


def test_a_refusal_halves_the_rate_and_training_goes_on():
    model, (X, y) = small(), ring()
    _, trainer = certified(model, X, y, optimiser="sgd", rate=6.0, epochs=14, check_every=1, ridge=0.1)
    history = trainer.fit(X, y)
    said = [c["accepted"] for c in history.anchored["checkpoints"]]
    first = said.index(True)
    assert first >= 1
    assert all(
        "F there" in c["reason"] or "finite" in c["reason"] for c in history.anchored["checkpoints"][:first]
    )
    assert history.learning_rate[first + 1] == 6.0 / 2**first


def test_a_poisoned_batch_is_rolled_back_and_said():
    model, (X, y) = small(), ring()
    cert = eq.certify(model, X, y, theorem="anchored", loss="cross_entropy")
    calls = itertools.count()

    def poisoned(yhat, y):
        each = torch.nn.functional.cross_entropy(yhat, y, reduction="none")
        return each * math.nan if next(calls) == 12 else each

    trainer = eq.Trainer(
        model, poisoned, optimiser="adam", rate=0.01, batch_size=8, epochs=6, certificate=cert, check_every=1
    )
    history = trainer.fit(X, y)
    refused = [c for c in history.anchored["checkpoints"] if not c["accepted"]]
    assert len(refused) == 1
    assert "NaN" in refused[0]["reason"] or "finite" in refused[0]["reason"]
    assert refused[0]["epoch"] == 3
    assert sum(c["accepted"] for c in history.anchored["checkpoints"]) >= 3
    assert not history.stopped
    assert objective(model, X, y) <= cert.constants["F_start"]


def test_an_interruption_leaves_the_last_weights_that_were_kept():
    model, (X, y) = small(), ring()
    cert, trainer = certified(model, X, y, check_every=1)

    def stop(step, loss):
        if step == 13:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        trainer.fit(X, y, progress=stop)
    assert objective(model, X, y) < cert.constants["F_start"]  # that of the second epoch, not of step 13
    other = small()
    _, again = certified(other, X, y, check_every=1, epochs=2, refit=False)
    again.fit(X, y)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("at", [3, 11, 26])
@pytest.mark.parametrize("rate", [0.02, 40.0])  # the second is refused at first
def test_a_run_that_goes_on_computes_the_same_bits(tmp_path, rate, at):
    X, y = ring()
    how = {"optimiser": "sgd" if rate > 1 else "adam", "rate": rate, "epochs": 8, "schedule": "cosine"}

    def run(folder, stop_at):
        model = small()
        _, trainer = certified(model, X, y, **how)
        count = itertools.count(1)

        def progress(step, loss):
            if next(count) == stop_at:
                raise KeyboardInterrupt

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LearnedNothing)
            try:
                return model, trainer.fit(X, y, checkpoints=Checkpoints(folder), progress=progress)
            except KeyboardInterrupt:
                return None

    whole, expected = run(tmp_path / "whole", 0)
    assert run(tmp_path / "broken", at) is None
    model, history = run(tmp_path / "broken", 0)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), whole.parameters(), strict=True))
    assert history.anchored == expected.anchored
    assert history.loss.tolist() == expected.loss.tolist()
    again, same = run(tmp_path / "broken", 0)  # a run that has ended
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), whole.parameters(), strict=True))
    assert same.anchored == expected.anchored


def test_patience_leaves_the_best_of_what_was_kept():
    (X, y), held_out = ring(), ring(seed=1)
    model = small()
    cert, trainer = certified(model, X, y, ridge=0.01, rate=0.05, epochs=40, patience=3, check_every=1)
    history = trainer.fit(X, y, held_out)
    assert history.best is not None
    assert objective(model, X, y, 0.01) <= cert.constants["F_start"]
    told = history.anchored
    assert told["F_end"][0] * (1 - 1e-9) <= objective(model, X, y, 0.01) <= told["F_end"][1] * (1 + 1e-9)
    kept = next(c for c in told["checkpoints"] if c["epoch"] == history.best and c["accepted"])
    assert told["F_end"][1] <= kept["F"][1]


def test_patience_goes_back_to_the_start_and_not_to_weights_that_no_checkpoint_saw():
    """The validation set says the opposite, so that the start is best; epoch 2 has no checkpoint."""
    model, (X, y) = small(), ring()
    hidden = [model.W.detach().clone(), model.U.detach().clone()]
    cert, trainer = certified(model, X, y, patience=2, check_every=5, epochs=9)
    history = trainer.fit(X, y, validation=(X, 1 - y))
    told, F = history.anchored, objective(model, X, y)
    assert "the weights are those of epoch 0" in history.stopped
    assert torch.equal(model.W, hidden[0])
    assert torch.equal(model.U, hidden[1])
    assert told["F_end"][0] * (1 - 1e-9) <= F <= told["F_end"][1] * (1 + 1e-9)
    assert told["F_end"][1] <= cert.constants["F_start"]


def test_a_decrease_that_is_asked_for_is_proved_or_refused():
    model, (X, y) = small(), ring()
    _, trainer = certified(model, X, y, decrease=0.9, epochs=REFUSALS, check_every=1)
    with pytest.warns(LearnedNothing):
        trainer.fit(X, y)


def test_weights_of_samples_are_those_of_the_certificate():
    model, (X, y) = small(), ring()
    w = torch.linspace(0.1, 2, RING, dtype=torch.float64)
    cert = eq.certify(model, X, y, theorem="anchored", sample_weight=w)
    trainer = eq.Trainer(model, "cross_entropy", epochs=2, certificate=cert)
    with pytest.raises(ValueError, match="sample_weight must be that of the certificate"):
        trainer.fit(X, y, sample_weight=2 * w)
    trainer.fit(X, y, sample_weight=w)


def test_a_certificate_of_something_else_is_refused():
    model, (X, y) = small(), ring()
    cert, trainer = certified(model, X, y)
    with pytest.raises(ValueError, match="about other X"):
        trainer.fit(X + 1, y)
    wellposed = eq.certify(model, X, theorem="wellposed")
    with pytest.raises(ValueError, match="theorem='anchored'"):
        eq.Trainer(model, "cross_entropy", certificate=wellposed).fit(X, y)
    with torch.no_grad():
        model.U.add_(0.1)
    with pytest.raises(ValueError, match="other weights"):
        trainer.fit(X, y)
    with pytest.raises(ValueError, match="ridge and decay are those of the certificate"):
        eq.Trainer(model, certificate=cert, ridge=1.0)


def test_a_certificate_from_a_file_is_certified_again(tmp_path):
    model, (X, y) = small(), ring()
    cert = eq.certify(model, X, y, theorem="anchored")
    read = Certificate.load(cert.save(tmp_path / "c.json"))
    trainer = eq.Trainer(model, "cross_entropy", optimiser="adam", epochs=3, certificate=read, check_every=1)
    told = trainer.fit(X, y).anchored
    assert told["F_end"][1] <= cert.constants["F_start"]


def test_a_hook_that_appears_while_it_trains_is_never_kept():
    model, (X, y) = small(), ring()
    cert, trainer = certified(model, X, y, check_every=1)
    begun = []

    def progress(step, loss):
        if step == 1:
            begun.append(model.register_forward_hook(lambda *_: None))

    with pytest.raises(ValueError, match="hook"):  # nor is the end known
        trainer.fit(X, y, progress=progress)
    begun[0].remove()
    assert objective(model, X, y) <= cert.constants["F_start"] * (1 + 1e-12)


def test_a_run_that_a_callback_ends_is_checked_there():
    class Third(eq.train.Callback):
        def epoch(self, record):
            return record["epoch"] == 3

    model, (X, y) = small(), ring()
    cert, trainer = certified(model, X, y, ridge=0.1, epochs=12, check_every=6)
    history = trainer.fit(X, y, callbacks=[Third()])
    assert [c["epoch"] for c in history.anchored["checkpoints"] if c["accepted"]] == [1, 3]
    assert "Third ended the run" in history.stopped
    assert objective(model, X, y, 0.1) < cert.constants["F_start"]


def test_a_checkpoint_that_gains_next_to_nothing_is_the_last():
    model, (X, y) = small(), ring()
    _, trainer = certified(model, X, y, epochs=40, check_every=2, rate=1e-6, enough=0.01)
    history = trainer.fit(X, y)
    kept = [c for c in history.anchored["checkpoints"] if c["accepted"]]
    assert len(kept) == 2  # the first is compared with nothing
    assert history.steps == 3
    assert "training ends" in history.stopped
    assert history.anchored["gap"] <= 1e-4 * history.anchored["F_end"][1]
