"""States by sample index: they survive shuffling, start the next solve, and are saved as tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import equipoise as eq
from equipoise.train import WarmStart
from equipoise.train.warm_start import WarmStarts

F64 = torch.float64


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(0, 10_000), st.booleans())
def test_each_sample_gets_its_own_state_back_whatever_the_order(samples, seed, extrapolated):
    generator = torch.Generator().manual_seed(seed)
    warm = WarmStart(samples, extrapolated)
    history: dict[int, list[torch.Tensor]] = {i: [] for i in range(samples)}
    for _ in range(5):
        rows = torch.randperm(samples, generator=generator)[: 1 + seed % samples]
        start = warm.start(rows)
        known = [history[int(i)] for i in rows]
        if not any(known):
            assert start is None
        else:
            for z, past in zip(start, known, strict=True):
                expected = torch.zeros(2, 3, dtype=F64) if not past else past[-1]
                if extrapolated and len(past) > 1:
                    expected = 2 * past[-1] - past[-2]
                torch.testing.assert_close(z, expected, rtol=1e-14, atol=1e-14)
        new = torch.randn(len(rows), 2, 3, dtype=F64, generator=generator)
        warm.update(rows, new)
        for i, z in zip(rows, new, strict=True):
            history[int(i)].append(z)


def test_a_sample_without_equilibrium_starts_cold_again():
    cell = lambda z, x: x * z + 1  # diverges where x > 1
    layer = eq.Equilibrium(cell, solver=eq.Picard(), on_failure="accept")
    x = torch.tensor([[0.5], [2.0], [0.2]], dtype=F64)
    layer(x)
    warm = WarmStart(3)
    warm.update(torch.arange(3), layer.last.forward)
    start = warm.start(torch.arange(3))
    assert start[0].item() == pytest.approx(2.0, rel=1e-7)
    assert start[1].item() == 0.0
    assert warm.start(torch.tensor([1])) is None
    assert torch.isfinite(start).all()
    warm.forget()
    assert warm.start(torch.arange(3)) is None


def test_tuples_of_states_are_kept():
    warm = WarmStart(4)
    z = (torch.ones(2, 3), 2 * torch.ones(2, 1, 2))
    warm.update(torch.tensor([3, 1]), z)
    start = warm.start(torch.tensor([0, 3]))
    assert isinstance(start, tuple)
    assert start[0].tolist() == [[0] * 3, [1] * 3]
    assert start[1].shape == (2, 1, 2)


@pytest.mark.parametrize("extrapolated", [False, True])
def test_what_is_saved_is_what_comes_back(extrapolated):
    warm, other = WarmStart(5, extrapolated), WarmStart(5, extrapolated)
    for seed in range(3):
        rows = torch.tensor([4, 0, seed])[: 2 + (seed in (1, 2))]
        warm.update(rows, torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(seed)))
    other.restore(warm.tensors())
    for rows in (torch.arange(5), torch.tensor([2, 4])):
        assert torch.equal(warm.start(rows), other.start(rows))
    warm.parts[0].zero_()
    assert other.start(torch.tensor([4])).any()  # a copy
    with pytest.raises(ValueError, match=r"of 6 samples\. Got 5"):
        WarmStart(6).restore(other.tensors())
    if not extrapolated:
        with pytest.raises(ValueError, match="last two states"):
            WarmStart(5, extrapolated=True).restore(other.tensors())


def test_wrong_shapes_and_rows_are_refused():
    warm = WarmStart(3)
    warm.update(torch.tensor([0, 1]), torch.zeros(2, 4))
    for rows, state, words in (
        (torch.tensor([0, 1]), torch.zeros(2, 5), r"must be \(2, 4\)"),
        (torch.tensor([0, 1]), torch.zeros(3, 4), r"must be \(2, 4\)"),
        (torch.tensor([0, 1]), (torch.zeros(2, 4),), r"must be \(2, 4\)"),
        (torch.tensor([3]), torch.zeros(1, 4), "Got row 3"),
        (torch.tensor([-1]), torch.zeros(1, 4), "Got row -1"),
        (torch.tensor([True]), torch.zeros(1, 4), "sample indices"),
        ([0], torch.zeros(1, 4), "sample indices"),
    ):
        with pytest.raises(ValueError, match=words):
            warm.update(rows, state)
    with pytest.raises(ValueError, match="samples must be"):
        WarmStart(0)


def test_layers_inside_a_network_start_where_they_ended():
    torch.manual_seed(0)
    cell = nn.Linear(6, 6, dtype=F64)
    with torch.no_grad():
        cell.weight.mul_(0.4)
    network = nn.Sequential(
        nn.Linear(3, 6, dtype=F64),
        eq.Equilibrium(lambda z, x: torch.tanh(cell(z) + x)),
        eq.GaussianReLU(6, 8, outputs=2, dtype=F64),
    )
    warm = WarmStarts(network, 10)
    assert list(warm.states) == ["1", "2"]
    X = torch.randn(10, 3, dtype=F64)
    rows = torch.tensor([7, 2, 5])
    cold = network(X[rows])
    first = [layer.last.forward.steps.max().item() for layer in network[1:]]
    with warm.using(rows):
        network(X[rows])
    shuffled = torch.tensor([5, 7])
    with warm.using(shuffled):
        out = network(X[shuffled])
    assert all(layer.last.forward.steps.max() <= 2 < n for layer, n in zip(network[1:], first, strict=True))
    torch.testing.assert_close(out, cold[[2, 0]], rtol=1e-6, atol=1e-8)
    network(X[rows])  # outside, cold again
    assert [layer.last.forward.steps.max().item() for layer in network[1:]] == first


def test_a_layer_that_is_called_twice_is_started_once():
    layer = eq.Equilibrium(lambda z, x: 0.5 * torch.tanh(z) + x)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(self.layer(x) + 5)

    network, x = Twice(), torch.randn(4, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    warm = WarmStarts(network, 4)
    with warm.using(torch.arange(4)):
        network(x)
    torch.testing.assert_close(warm.states["layer"].start(torch.arange(4)), layer(x), rtol=1e-7, atol=1e-9)
