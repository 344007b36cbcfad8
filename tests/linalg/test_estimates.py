"""Estimates are near the truth, on its flattering side, and cannot pass for bounds."""

import math

import pytest
import torch

from equipoise import linalg
from equipoise.linalg import (
    Estimate,
    estimate_lambda_max,
    estimate_lambda_min,
    estimate_norm,
    estimate_spectral_radius,
    estimate_trace,
)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def test_norm_from_below():
    M = draw(60, 40)
    truth = torch.linalg.matrix_norm(M, 2).item()
    rough, good = estimate_norm(M, steps=3, generator=gen()), estimate_norm(M, steps=40, generator=gen())
    assert 0.5 * truth < rough.value < 0.999 * truth  # an estimate that would have "proved" too much
    assert good.value == pytest.approx(truth, rel=1e-10)
    assert rough.residual > 1e-3 > good.residual
    assert rough.products == 6
    assert rough.value < linalg.norm_lower(M) < linalg.norm_upper(M)
    assert estimate_norm(torch.zeros(3, 3), generator=gen()) == Estimate(0.0, 2, 0.0)


def test_extreme_eigenvalues_of_an_operator_on_images():
    S = draw(24, 24)
    S = S + S.mT
    apply = lambda x: (S @ x.flatten()).view(2, 3, 4)
    values = torch.linalg.eigvalsh(S)
    like = torch.empty(2, 3, 4, dtype=torch.float64)
    low, high = (f(apply, like, 24, gen()) for f in (estimate_lambda_min, estimate_lambda_max))
    assert low.value == pytest.approx(values[0].item(), rel=1e-9)
    assert high.value == pytest.approx(values[-1].item(), rel=1e-9)
    early = estimate_lambda_min(apply, like, 5, gen())
    assert values[0].item() < early.value
    assert (
        abs(early.value - values).min() <= early.residual
    )  # a Ritz residual always has an eigenvalue within


def test_lanczos_keeps_its_basis_orthogonal():
    spectrum = torch.cat([torch.linspace(0, 1, 199).double(), torch.tensor([50.0]).double()])
    found = estimate_lambda_min(lambda x: spectrum * x, spectrum, 150, gen())
    assert -1e-12 < found.value < 1e-5
    single = estimate_lambda_max(lambda x: spectrum.float() * x, spectrum.float(), 100, gen())
    assert single.value == pytest.approx(50.0, rel=1e-5)


def test_spectral_radius_of_a_rotation_and_of_a_nonnormal_matrix():
    turn = 0.9 * torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    found = estimate_spectral_radius(
        lambda z: z @ turn.mT, torch.empty(3, 2, dtype=torch.float64), generator=gen()
    )
    assert found.value == pytest.approx(0.9, rel=1e-9)
    N = torch.triu(draw(6, 6), 1) + 0.5 * torch.diag(torch.linspace(0.1, 1, 6).double())
    found = estimate_spectral_radius(lambda z: N @ z, torch.empty(6, dtype=torch.float64), generator=gen())
    assert found.value == pytest.approx(0.5, rel=1e-6)


def test_trace_within_a_few_standard_errors():
    S = draw(50, 50)
    found = estimate_trace(
        lambda x: S @ x, torch.empty(50, dtype=torch.float64), samples=400, generator=gen()
    )
    assert abs(found.value - S.trace().item()) < 4 * found.residual
    assert found.residual < 5
    diagonal = torch.arange(5.0)
    assert estimate_trace(lambda x: diagonal * x, diagonal, 2, gen()) == Estimate(10.0, 2, 0.0)
    with pytest.raises(ValueError, match="samples"):
        estimate_trace(lambda x: x, diagonal, 1)


def test_the_generator_decides():
    M = draw(30, 30)
    assert estimate_norm(M, 3, gen(1)) == estimate_norm(M, 3, gen(1)) != estimate_norm(M, 3, gen(2))


def test_an_estimate_is_no_float_and_no_bound():
    estimate = estimate_norm(draw(3, 3), generator=gen())
    assert not isinstance(estimate, float)
    for use in (
        float,
        math.sqrt,
        linalg.Interval,
        lambda e: e < 1,
        lambda e: 1 - e,
        lambda e: linalg.Interval(1) - e,
    ):
        with pytest.raises(TypeError):
            use(estimate)
    with pytest.raises(TypeError, match="proves nothing"):
        float(estimate)


def test_every_exported_estimate_says_so():
    from equipoise.linalg import estimates

    for name in linalg.__all__:
        made_there = getattr(getattr(linalg, name), "__module__", "") == estimates.__name__
        assert made_there == (name == "Estimate" or name.startswith("estimate_"))


def test_bad_spaces_are_refused():
    with pytest.raises(ValueError, match="dimension"):
        estimate_lambda_max(lambda x: x, torch.empty(0))
    with pytest.raises(ValueError, match="steps"):
        estimate_norm(torch.ones(2, 2), steps=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_estimates_of_every_size_and_dtype(dtype):
    M = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    info = torch.finfo(dtype)
    for size in (1.0, 1e3 * info.tiny, info.max / 1e3):
        scaled = (M * size).to(dtype)
        true = float(torch.linalg.matrix_norm(scaled.double() / size, ord=2))
        assert estimate_norm(scaled).value == pytest.approx(size * true, rel=1e-4)
        symmetric = ((M @ M.T) / 40 * size).to(dtype)
        top = float(torch.linalg.eigvalsh(symmetric.double() / size)[-1])
        found = estimate_lambda_max(lambda x, S=symmetric: S @ x, symmetric.new_empty(6))
        assert found.value == pytest.approx(size * top, rel=20 * info.eps + 1e-6)


def test_of_what_is_not_finite_nothing_is_estimated():
    M = torch.full((3, 3), math.inf)
    assert math.isnan(estimate_norm(M).value)
    assert math.isnan(estimate_lambda_max(lambda x: M @ x, M[0]).value)
    assert math.isnan(estimate_spectral_radius(lambda x: M @ x, M[0]).value)
    assert estimate_norm(torch.zeros(3, 3)).value == 0
