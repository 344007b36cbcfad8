"""F, its gradient and the features that it reads, of numbers of every size: the enclosure holds the truth."""

from __future__ import annotations

import math
import warnings

import mpmath
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import equipoise as eq
from certifiable import network
from convex_references import exact_loss, exact_slope, targets
from equipoise.linalg import Interval, gamma
from equipoise.theory.anchored_objective import Objective, SampleRows, Terms
from equipoise.theory.convex_losses import CONVEX
from equipoise.theory.read_features import FeatureBlock, normalised

sizes = st.sampled_from([-300, -170, -160, -150, -40, -8, 0, 0, 0, 8, 40, 150, 160, 170, 300])


def drawn(shape, exponent, seed):
    """Numbers about 10^exponent, some of them zero or cancelling."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.randn(shape, dtype=torch.float64, generator=generator) * 10.0**exponent
    t[torch.rand(shape, generator=generator) < 0.2] = 0.0
    return t


@pytest.mark.parametrize("loss", CONVEX)
@settings(max_examples=12)
@example(150, -300, -300, -300, -300, 0)
@given(sizes, sizes, sizes, sizes, sizes, st.integers(0, 10**6))
def test_sums_of_any_size_lie_in_the_enclosure(loss, features, readout, weights, ridge, target, seed):
    """F and ∇F of exact features, against four hundred digits."""
    Phi, a = drawn((4, 3), features, seed), drawn((3, 2), readout, seed + 1)
    w = drawn((4,), weights, seed + 2).abs()
    y = targets(loss, 4, 2, seed)
    y = y * 10.0**target if "square" in loss else y
    objective = object.__new__(Objective)
    objective.rows, objective.terms = SampleRows(Phi, y, Terms(CONVEX[loss], 10.0**ridge, 0.0, w), 2), None
    objective.terms, objective.__dict__["decay"] = objective.rows.terms, Interval(0.0)
    block = FeatureBlock(Phi, 0.0, Phi, 0)
    (found,) = objective.enclosed(iter([(slice(0, 4), block)]), [a], gradient=True)
    zero = objective.at_zero()
    rows = CONVEX[loss].targets(y, 2).tolist()
    with mpmath.workdps(700):
        A, P, ridge_ = mpmath.matrix(a.tolist()), Phi.tolist(), mpmath.mpf(10.0**ridge)
        F, none = ridge_ / 2 * sum(x**2 for x in A), mpmath.mpf(0)
        gradient = ridge_ * A
        for z, row, weight in zip(P, rows, w.tolist(), strict=True):
            q = [sum(mpmath.mpf(z[i]) * A[i, c] for i in range(3)) for c in range(2)]
            none += mpmath.mpf(weight) * exact_loss(loss, [0.0, 0.0], row)
            if max(map(abs, q)) > 1e300:  # e^q is no number that can be asked for
                return
            F += mpmath.mpf(weight) * exact_loss(loss, q, row)
            for c, slope in enumerate(exact_slope(loss, q, row)):
                for i in range(3):
                    gradient[i, c] += mpmath.mpf(weight) * mpmath.mpf(z[i]) * slope
        assert zero.lo <= none <= zero.hi
        assert found.F.lo <= F <= found.F.hi
        if math.isfinite(found.slack.hi) and bool(torch.isfinite(found.gradient).all()):
            off = [gradient[i, c] - found.gradient[i, c].item() for i in range(3) for c in range(2)]
            assert mpmath.sqrt(sum(x**2 for x in off)) <= found.slack.hi
        size = mpmath.sqrt(sum(x**2 for x in gradient))
        assert size**2 / (2 * ridge_) <= found.gap(10.0**ridge).hi


def test_nothing_is_lost_where_every_product_of_a_sum_is_subnormal():
    y, w = torch.full((2, 1), 1e-100, dtype=torch.float64), torch.full((2,), 1e-200, dtype=torch.float64)
    objective = object.__new__(Objective)
    objective.rows = SampleRows(y, y, Terms(CONVEX["half_square"], 1.0, 0.0, w), 1)
    objective.terms, objective.__dict__["decay"] = objective.rows.terms, Interval(0.0)
    found = objective.at_zero()
    with mpmath.workdps(700):
        assert found.lo <= mpmath.mpf(1e-200) * mpmath.mpf(1e-100) ** 2 <= found.hi


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1e-3, 1.0, 1e150, 1e155, 1e300])
def test_normalised_features_are_as_near_as_they_are_said_to_be(size):
    """Beyond 1e154 the squares of a row overflow: nothing is said of it then."""
    M = size * torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    Phi, error = normalised(M, Interval(0.0))
    with mpmath.workdps(400):
        total = mpmath.mpf(0)
        for row, found in zip(M.tolist(), Phi.tolist(), strict=True):
            c = [mpmath.mpf(x) - sum(map(mpmath.mpf, row)) / 4 for x in row]
            s = mpmath.sqrt(sum(x**2 for x in c) / 4 + mpmath.mpf(1e-5))
            total += sum((x / s - mpmath.mpf(y)) ** 2 for x, y in zip(c, found, strict=True))
        assert mpmath.sqrt(total) <= error
    assert (error < 1e-10) == (size < 1e154)


def tiny_weights(ridge, decay):
    """A network in float32, its rows of weight 1e-30, and what is proved of them."""
    model = network("ling2023", width=4, inputs=3, outputs=2).float()
    X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    y, w = targets("half_square", 5, 2).float(), torch.full((5,), 1e-30, dtype=torch.float64)
    certificate = eq.certify(
        model, X, y, theorem="anchored", loss="half_square", ridge=ridge, decay=decay, sample_weight=w
    )
    return model, X, y, certificate


def test_a_ridge_with_which_the_sizes_of_f_underflow_is_refused_and_divides_nothing_by_zero():
    assert tiny_weights(ridge=1e-300, decay=0.0)[-1].verdict == "hypotheses_fail"


def test_weights_and_a_ridge_whose_product_with_f_underflows_divide_nothing_by_zero():
    model = network("ling2023", width=4, inputs=3, outputs=3)
    X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = (0.0, *[1e-300] * 5)
    found = eq.certify(
        model, X, torch.arange(6) % 3, theorem="anchored", ridge=1e-300, sample_weight=w, loss="cross_entropy"
    )
    assert found.verdict in ("hypotheses_fail", "inconclusive") or found.constants["F_start"] >= 0


@pytest.mark.parametrize(("ridge", "decay"), [(1e300, 0.0), (1.0, 1e300)])
def test_penalties_beyond_the_range_of_the_network_neither_break_a_run_nor_its_promise(ridge, decay):
    """λ and κ are no numbers of float32."""
    model, X, y, certificate = tiny_weights(ridge, decay)
    assert certificate.proved
    trainer = eq.Trainer(model, certificate=certificate, loss="half_square", epochs=2, batch_size=2, rate=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing may be learned
        found = trainer.fit(X, y)
    assert found.anchored["F_end"][1] <= certificate.constants["F_start"]
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_every_entry_that_is_normalised_counts_in_its_rounding():
    """The mean and the mean square of n entries add up n terms each."""
    M = torch.tensor([[1.0, -1.0]], dtype=torch.float64).repeat(1, 500)
    Phi, error = normalised(M, Interval(0.0))
    assert error >= (gamma(1000) + gamma(2000)) * float(Phi.norm())


@pytest.mark.parametrize("y", [[2.0, -1.0], [0.25, 0.25], [float("nan"), 1.0]])
def test_targets_that_are_no_probabilities_are_refused(y):
    with pytest.raises(ValueError, match="probabilities"):
        CONVEX["cross_entropy"].targets(torch.tensor([[0.5, 0.5], y]), 2)
