"""Iteration by cheap products about a point: where it leads, and that float64 alone judges it."""

from __future__ import annotations

import math

import pytest
import torch

import equipoise as eq
from equipoise.differentiate.affine import MaskedMap
from equipoise.solve import refinement
from equipoise.solve.problem import AffineMap

LARGE = 2**22


def large(q: float = 0.6, m: int = 128, seed: int = 0) -> AffineMap:
    """A map of so many samples that float32 and less are tried before float64; ‖W‖ = q."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(m, m, dtype=torch.float64, generator=generator)
    n = LARGE // m**2 + 1
    b = torch.randn(n, m, dtype=torch.float64, generator=generator)
    return AffineMap(W * (q / torch.linalg.matrix_norm(W, ord=2)), b)


def native(problem: AffineMap, rtol: float = 1e-12) -> torch.Tensor:
    found = eq.fixed_point(problem, solver=eq.Picard(), stop=eq.Stop(rtol=rtol), precision="native")
    return found.raise_if_failed().value


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8, 1e-12])
def test_every_row_is_at_tolerance_in_float64(rtol, halves, monkeypatch):
    monkeypatch.setattr(refinement, "_multiplies_halves", lambda device: halves)
    problem = large()
    found = eq.fixed_point(problem, solver=eq.Picard(), stop=eq.Stop(rtol=rtol)).raise_if_failed()
    z = found.value
    fz = torch.relu(z @ problem.weight.T + problem.bias)
    assert z.dtype == torch.float64
    assert bool(((fz - z).norm(dim=1) <= rtol * fz.norm(dim=1)).all())
    torch.testing.assert_close(found.residual, (fz - z).norm(dim=1), rtol=1e-3, atol=1e-13)
    torch.testing.assert_close(z, native(problem), rtol=0, atol=5 * rtol * float(fz.norm(dim=1).max()))


def test_float64_is_asked_once_for_six_digits_and_twice_for_eight(monkeypatch):
    monkeypatch.setattr(refinement, "_multiplies_halves", lambda device: True)
    products: list[torch.dtype] = []
    plain = AffineMap.preactivation

    def counted(self, z):
        products.append(z.dtype)
        return plain(self, z)

    monkeypatch.setattr(AffineMap, "preactivation", counted)
    for rtol, times in ((1e-6, 1), (1e-8, 2)):
        products.clear()
        solution = eq.fixed_point(large(0.4), solver=eq.Picard(), stop=eq.Stop(rtol=rtol)).raise_if_failed()
        assert products.count(torch.float64) == times
        assert solution.counts.evaluations > len(products)  # rounded products are counted too


def test_a_warm_start_is_not_rounded_away():
    """About 0 a rounded product would lose three digits of a start that has five."""
    problem = large()
    near = native(problem) * (1 + 1e-5)
    warm = eq.fixed_point(problem, near, solver=eq.Picard(), stop=eq.Stop(rtol=1e-6)).raise_if_failed()
    cold = eq.fixed_point(problem, solver=eq.Picard(), stop=eq.Stop(rtol=1e-6)).raise_if_failed()
    assert int(warm.steps.max()) < int(cold.steps.min())


def test_rows_that_are_behind_do_not_hold_up_the_others():
    problem = large()
    start = native(problem) * (1 + 1e-5)
    start[:3] = 0.0
    found = eq.fixed_point(problem, start, solver=eq.Picard(), stop=eq.Stop(rtol=1e-6)).raise_if_failed()
    everywhere = eq.fixed_point(problem, solver=eq.Picard(), stop=eq.Stop(rtol=1e-6)).raise_if_failed()
    assert found.counts.row_evaluations < 0.75 * everywhere.counts.row_evaluations
    torch.testing.assert_close(found.value, native(problem), rtol=0, atol=1e-4)


def test_a_mask_is_solved_like_a_relu():
    problem = large()
    mask = (torch.rand(problem.bias.shape, generator=torch.Generator().manual_seed(1)) < 0.5).double()
    linear = MaskedMap(problem.weight.T, problem.bias, mask)
    found = eq.fixed_point(linear, solver=eq.Picard(), stop=eq.Stop(rtol=1e-9)).raise_if_failed().value
    torch.testing.assert_close(found, mask * (found @ problem.weight + problem.bias), rtol=0, atol=1e-7)


def test_an_iteration_that_grows_ends_as_it_is_and_leaves_the_others_a_start():
    problem = large(3.0)
    found = eq.fixed_point(problem, solver=eq.Picard(), stop=eq.Stop(rtol=1e-6, max_steps=60))
    fz = torch.relu(found.value @ problem.weight.T + problem.bias)
    there = (fz - found.value).norm(dim=1) <= 1e-6 * fz.norm(dim=1)
    assert torch.equal(found.converged, there)
    assert int(there.sum()) < len(there) / 2
    chain = [eq.Picard(), eq.PeacemanRachford()]
    W = -problem.weight @ problem.weight.T / 3  # I − W ⪰ I, ‖W‖ = 3
    monotone = AffineMap(W, problem.bias)
    z = eq.fixed_point(monotone, solver=chain, stop=eq.Stop(rtol=1e-6)).raise_if_failed().value
    torch.testing.assert_close(z, torch.relu(z @ W.T + problem.bias), rtol=0, atol=1e-4)


def test_what_float32_cannot_hold_starts_again_in_float64():
    problem = large(0.5)
    problem.bias[1] = 1e60 * problem.bias[1].abs()
    problem.bias[2] = 0.0
    problem.bias[3, 0] = math.inf
    found = eq.fixed_point(problem, solver=eq.Picard(), stop=eq.Stop(rtol=1e-6))
    assert torch.nonzero(~found.converged).flatten().tolist() == [3]
    z, b = found.value[:3], problem.bias[:3]
    fz = torch.relu(z @ problem.weight.T + b)
    assert bool(((fz - z).norm(dim=1) <= 1e-6 * fz.norm(dim=1)).all())
    assert not bool(z[2].any())
