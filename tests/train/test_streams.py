"""Data that are read in parts train a network as those that are held, and are certified alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import equipoise as eq
from certifiable import network
from equipoise.theory import fingerprint
from equipoise.theory.streams import Stream


class Pairs(torch.utils.data.Dataset):
    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i], self.y[i]


@pytest.fixture
def data(tmp_path):
    X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    y = (X[:, 0] > X[:, 1]).long()
    mapped = np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.float32, (50, 3))
    mapped[:] = X.numpy()
    return X, y, mapped


def trained(X, y):
    model = network("ling2023", width=6, inputs=3, outputs=2).float()
    certificate = eq.certify(model, X, y, theorem="anchored", ridge=0.1)
    trainer = eq.Trainer(
        model,
        "cross_entropy",
        optimiser="adam",
        epochs=3,
        batch_size=8,
        certificate=certificate,
        warm_start=False,
    )
    return model, certificate, trainer.fit(X, y), trainer.evaluate(X, y)


def test_a_mapped_file_and_a_dataset_train_as_a_tensor_does(data):
    X, y, mapped = data
    model, certificate, history, scores = trained(X, y)
    for args in ((mapped, y), (Pairs(X, y), None), (mapped, y.numpy())):
        other, same, told, found = trained(*args)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
        assert same.fingerprint == certificate.fingerprint
        assert told.anchored == history.anchored
        assert found == scores


def test_a_stream_is_known_by_its_content(data, monkeypatch):
    X, _, mapped = data
    monkeypatch.setattr("equipoise.theory.streams._AT_ONCE", 7)
    assert fingerprint(torch.nn.Identity(), Stream(mapped)) == fingerprint(torch.nn.Identity(), X)
    mapped[31, 2] += 1
    assert fingerprint(torch.nn.Identity(), Stream(mapped)) != fingerprint(torch.nn.Identity(), X)


def test_a_row_that_is_not_finite_is_named(data):
    _, y, mapped = data
    model = network("ling2023", width=6, inputs=3, outputs=2).float()
    mapped[31, 2] = np.nan
    with pytest.raises(ValueError, match="row 31"):
        eq.Trainer(model, "cross_entropy").fit(mapped, y)
    assert "row 31" in eq.certify(model, mapped, y, theorem="anchored").obstacle
