"""What is kept of weights goes as soon as one of their numbers changes, by whatever way."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import equipoise as eq
from equipoise.models.affine.conv_monotone import ConvMonotone
from equipoise.models.kept import Kept


def in_place(model, p):
    with torch.no_grad():
        p.mul_(2.0)


def within_data(model, p):
    p.data.mul_(2.0)  # which a version counter does not see


def other_data(model, p):
    p.data = 2.0 * p.data


def loaded(model, p):
    model.load_state_dict({name: 2.0 * t for name, t in model.state_dict().items()})


def other_dtype(model, p):
    model.to(torch.float32)


CHANGES = [in_place, within_data, other_data, loaded, other_dtype]


@pytest.mark.parametrize("change", CHANGES)
def test_norms_of_kernels_follow_every_change_of_them(change):
    model = ConvMonotone((1, 6, 6), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = model.norms()
    assert model.norms() is before  # nothing is computed twice
    change(model, model.A)
    assert model.norms() is not before
    fresh = ConvMonotone((1, 6, 6), 4, dtype=model.A.dtype)
    fresh.load_state_dict(model.state_dict())
    fresh.probe = model.probe
    assert model.norms() == fresh.norms()


@pytest.mark.parametrize("change", CHANGES)
def test_bounded_weights_follow_every_change_of_them(change, monkeypatch):
    model = eq.OptEq(5, 8, 7, bound=0.9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    X = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    svd, taken = torch.linalg.svd, []
    monkeypatch.setattr(torch.linalg, "svd", lambda *a, **k: taken.append(1) or svd(*a, **k))
    with torch.no_grad():
        first = model(X)
        assert torch.equal(first, model(X))
        assert len(taken) == 1
        change(model, model.W)
        model(X.to(model.V.dtype))
        assert len(taken) == 2
        model.bound = 0.5
        assert float(torch.linalg.matrix_norm(model.weights()[0], ord=2)) <= 0.5


def test_a_gradient_of_bounded_weights_is_never_one_that_was_kept():
    model = eq.OptEq(5, 8, 7, bound=0.5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        (kept,) = model.weights()
    (W,) = model.weights()
    assert W.requires_grad
    torch.testing.assert_close(W.detach(), kept, rtol=0, atol=0)
    W.square().sum().backward()
    assert bool(model.W.grad.any())


def test_copies_and_pickles_begin_without_a_value():
    kept, t = Kept(), torch.ones(2)
    assert kept.of((t,), lambda: [1]) is kept.of((t,), lambda: [2])
    for other in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert other.of((t,), lambda: [3]) == [3]
    assert kept.of((t,), lambda: [4], "another setting") == [4]
    t[0] = float("nan")
    assert kept.of((t,), lambda: [5]) is not kept.of((t,), lambda: [5])
