"""What a loop records stands in the event file."""

from __future__ import annotations

import warnings

import pytest
import torch

import equipoise as eq
from equipoise.train import Trainer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its dependencies, when first imported
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils import tensorboard as _tensorboard  # noqa: F401

from equipoise.train.tensorboard import TensorBoard


def scalars(directory):
    events = EventAccumulator(str(directory))
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_a_run_is_read_back(tmp_path):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(20, 4, generator=generator)
    y = torch.tanh(X[:, 0])
    model = eq.GaussianReLU(4, 10, generator=generator)
    with TensorBoard(tmp_path) as board:
        history = Trainer(model, epochs=3, batch_size=10).fit(X, y, validation=(X, y), callbacks=[board])
    found = scalars(tmp_path)
    assert [step for step, _ in found["loss"]] == [0, 2, 4, 6]
    assert [v for _, v in found["loss"]] == pytest.approx(history.loss.tolist(), rel=1e-6)
    assert [v for _, v in found["test_loss"]] == pytest.approx(list(history.test_loss.values()), rel=1e-6)
    assert "seconds" not in found
    assert "step" not in found


def test_records_of_other_loops(tmp_path):
    with TensorBoard(tmp_path) as board:
        board({"epoch": 3, "loss": 0.5, "note": "words", "verified": True})
        with pytest.raises(ValueError, match="a step or an epoch"):
            board({"loss": 0.5})
    assert scalars(tmp_path) == {"epoch": [(3, 3.0)], "loss": [(3, 0.5)]}
