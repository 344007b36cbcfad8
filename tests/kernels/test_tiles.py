"""Kernels by tiles: refused in words where they cannot fit, with little memory beside the result."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise import memory
from equipoise.kernels import population_gram, tangent_kernel, tangent_operator
from equipoise.kernels.population import population_tangent_kernel


def rows(N, d=3, seed=0):
    return torch.randn(N, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def model(family=eq.GaussianReLU, outputs=1):
    generator = torch.Generator().manual_seed(1)
    sizes = (3, 5, 6) if family is eq.OptEq else (3, 5)
    return family(*sizes, outputs=outputs, dtype=torch.float64, generator=generator)


def network(outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", ["affine", "opteq", "jacobian"])
def test_tiles_of_any_size_give_one_symmetric_kernel(kind, outputs, monkeypatch):
    made = {"affine": lambda: model(eq.Monotone, outputs), "opteq": lambda: model(eq.OptEq, outputs)}
    net = made.get(kind, lambda: network(outputs))()
    X, X2 = rows(7), rows(4, seed=2)
    whole, cross = (tangent_kernel(net, X, other, block=7) for other in (None, X2))
    monkeypatch.setattr("equipoise.kernels.tiles.ENTRIES", 12)
    for block in (None, 1, 2, 3):
        parts = tangent_kernel(net, X, block=block)
        for name, expected in whole.blocks.items():
            torch.testing.assert_close(parts.blocks[name], expected, rtol=1e-12, atol=1e-12)
        assert torch.equal(parts.matrix, parts.matrix.T)
        torch.testing.assert_close(tangent_kernel(net, X, X2, block=block).total, cross.total)
    other = tangent_kernel(net, X, X.clone()).matrix  # every tile computed
    torch.testing.assert_close(whole.matrix, other, rtol=1e-12, atol=1e-12)


def test_every_pair_of_rows_is_computed_once(monkeypatch):
    net, seen, gram = model(), [], eq.GaussianReLU.gram

    def counted(self, V, Z, X, V2, Z2, X2):
        seen.append(len(X) * len(X2))
        return gram(self, V, Z, X, V2, Z2, X2)

    monkeypatch.setattr(eq.GaussianReLU, "gram", counted)
    monkeypatch.setattr("equipoise.kernels.tiles.ENTRIES", 4)
    tangent_kernel(net, rows(8))
    assert sum(seen) == 36  # of 8 × 8 pairs the upper half, with the diagonal
    assert max(seen) == 4


@pytest.mark.parametrize("have", [0.0, 3 * 8 * 20 * 20 - 1])
def test_a_kernel_that_cannot_fit_is_refused_before_an_equilibrium_is_solved(have, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: have)
    monkeypatch.setattr(eq.GaussianReLU, "equilibrium", lambda *_, **__: pytest.fail("was solved"))
    with pytest.raises(MemoryError, match=r"3 kernels \(W, U, a\) of 20 × 20 pairs of rows.* 9\.6 kB of mem"):
        tangent_kernel(model(), rows(20))


def test_a_kernel_by_jacobians_that_cannot_fit_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1000.0)
    with pytest.raises(MemoryError, match=r"of 40 × 10 pairs of rows, 2 outputs each, float64, .*51\.2 kB"):
        tangent_kernel(network(), rows(40), rows(10))


def test_kernels_of_infinite_width_that_cannot_fit_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 8 * 20 * 20 - 1.0)
    with pytest.raises(MemoryError, match=r"a kernel of 20 × 20 pairs .* 3\.2 kB of memory; 3\.2 kB can be"):
        population_gram(rows(20), 0.1)
    with pytest.raises(MemoryError, match=r"3 kernels \(a, W, U\) of 20 × 20 pairs .* need 9\.6 kB"):
        population_tangent_kernel(rows(20), 0.1)


def test_what_fits_is_computed(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 3 * 8 * 20 * 20.0)
    assert tangent_kernel(model(), rows(20)).total.shape == (20, 20)
    assert population_gram(rows(20), 0.1).shape == (20, 20)


class _Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The most memory alive at once in new tensors."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            known = [a for a in args if isinstance(a, torch.Tensor)]
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is None or any(a.untyped_storage().data_ptr() == storage.data_ptr() for a in known):
                continue
            size = storage.nbytes()
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(tensor, self._freed, size)
        return out

    def _freed(self, size):
        self.now -= size


def test_the_memory_beside_the_result_is_that_of_a_few_tiles(monkeypatch):
    monkeypatch.setattr("equipoise.kernels.tiles.ENTRIES", 400)
    net, X = model(), rows(300)
    with _Largest() as measured:
        kernel = tangent_kernel(net, X)
        total = kernel.total
    result = sum(block.nbytes for block in kernel.blocks.values()) + total.nbytes
    assert measured.most < 1.2 * result


def test_no_tensor_of_a_product_has_as_many_entries_as_the_kernel():
    N = 400
    H = tangent_operator(model(), rows(N))
    with _Largest() as measured:
        H.product(torch.ones(N, dtype=torch.float64))
    assert measured.most < 8 * N * N / 5


def test_the_memory_there_is_is_a_number_of_bytes():
    assert 1e6 < memory.available() < 1e15
    assert memory.shortage(1.0) is None
    assert memory.shortage(2e9, 1e9) == "2 GB of memory; 1 GB can be had"
    assert [memory.amount(n) for n in (12, 5.32e9, 3e13)] == ["12 bytes", "5.32 GB", "30 TB"]
