"""Every term of the bounds of a verified network, each against what it must hold."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.linalg import Interval, gamma
from equipoise.theory.conv_robustness import ConvHead, solved_double
from equipoise.theory.register import facts
from equipoise.theory.verify import image_units, sets, smoothing
from equipoise.theory.verify.bounds import Functionals, Problem, lower_bounds
from equipoise.theory.verify.network import UnitNetwork
from equipoise.theory.verify.outputs import Wanted
from equipoise.theory.verify.result import VerifiedPredictions
from equipoise.theory.verify.sets import InputSets

F64 = torch.float64


def net(n, d=1, **more):
    """n units without connections, one output that is their sum, and R = 1."""
    plain = {"inputs": torch.zeros(n, d), "offset": torch.zeros(n), "readout": torch.ones(1, n)}
    known = {"weight": torch.zeros(n, n), "shift": torch.zeros(1), **plain, **more}
    known = {name: value.to(F64) for name, value in known.items()}
    return UnitNetwork(weight_error=0.0, readout_error=0.0, resolvent=1.0, **known)


@pytest.mark.parametrize("seed", range(4))
def test_an_injection_is_as_near_as_it_is_said_to_be(seed):
    g = torch.Generator().manual_seed(seed)
    U, u, x = (torch.randn(*shape, dtype=F64, generator=g) for shape in ((3, 5), (3,), (1, 5)))
    b, error = net(3, inputs=U, offset=u).injection(x)
    off = []
    for row, c, found, most in zip(U.tolist(), u.tolist(), b[0].tolist(), error[0].tolist(), strict=True):
        exact = sum(Fraction(p) * Fraction(q) for p, q in zip(row, x[0].tolist(), strict=True)) + Fraction(c)
        off.append(abs(exact - Fraction(found)))
        assert off[-1] <= Fraction(most)
    assert max(off) > 0


def test_scores_are_off_by_the_readout_of_what_the_units_are_off():
    _, error = net(4).scores(torch.zeros(1, 4, dtype=F64), torch.tensor([3.0], dtype=F64))
    assert 3 * 2 <= float(error) <= 6 * (1 + 1e-12)  # ‖(1, 1, 1, 1)‖ = 2


def test_a_sum_of_injections_that_cancel_is_rounded():
    """Σ ν_i b_i of n terms with ν_i = 1 and b_i = ±1, and nothing else that may be lost."""
    n = 256
    one, zero = torch.ones(1, n, dtype=F64), torch.zeros(1, dtype=F64)
    signs = one[0] * torch.tensor([1.0, -1.0], dtype=F64).repeat(n // 2)
    problem = Problem.of(net(n, offset=signs), InputSets.of_box(zero[None], zero[None]))
    problem = replace(problem, injection_error=0 * one, spread=0 * one)
    at = torch.zeros(1, dtype=torch.long)
    value = lower_bounds(problem, at, 0 * one, 0 * one, Functionals(0 * one, zero, 0 * one, zero), one)
    assert -n * Fraction(gamma(3 * n)) <= Fraction(float(value)) <= -n * Fraction(gamma(n - 1))


def test_no_more_copies_vote_than_were_asked(monkeypatch):
    monkeypatch.setattr(smoothing, "_BATCH", 4)
    answer = lambda copies: (copies[:, :2], torch.ones(len(copies), dtype=torch.bool))
    found = smoothing._votes(answer, torch.zeros(3), 1.0, torch.Generator().manual_seed(0), 10)
    assert len(found) == 10


def test_a_constant_far_above_the_scores_is_rounded_when_they_are_added():
    wanted = Wanted(1, matrix=torch.ones(1, 1, dtype=F64), constant=torch.ones(1, dtype=F64))
    value, size = wanted.margins(torch.full((1, 1), 2.0**-54, dtype=F64), torch.zeros(1, 1, dtype=F64))
    assert abs(1 + Fraction(1, 2**54) - Fraction(float(value))) <= Fraction(float(size))


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_over_columns_is_as_near_as_it_is_said_to_be(seed):
    g = torch.Generator().manual_seed(seed)
    W, nu = torch.randn(5, 5, dtype=F64, generator=g), torch.randn(1, 5, dtype=F64, generator=g)
    units = net(5, weight=W)
    found, error, off = units.back(nu)[0].tolist(), units.back_error(nu)[0].tolist(), []
    for column, value, most in zip(W.T.tolist(), found, error, strict=True):
        exact = sum(Fraction(p) * Fraction(q) for p, q in zip(column, nu[0].tolist(), strict=True))
        off.append(abs(exact - Fraction(value)))
        assert off[-1] <= Fraction(most)
    assert max(off) > 0


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.3])
def test_a_class_that_every_copy_has_is_no_likelier_than_alpha_allows(alpha):
    """P(n hits of n) = pⁿ ≤ α exactly."""
    for draws in range(1, 40):
        p = smoothing.least_probability(draws, draws, alpha)
        assert Fraction(p) ** draws <= Fraction(alpha)


def test_a_box_reaches_as_far_as_its_farther_side():
    lower, upper, centre = (torch.tensor([row], dtype=F64) for row in ([-1.0, -4.0], [2.0, 1.0], [0.0, 0.0]))
    assert bool((sets._reach(lower, upper, centre) >= torch.tensor([2.0, 4.0])).all())


def conv(**more):
    g = torch.Generator().manual_seed(0)
    at = {"outputs": 3, "pool": 2, "dtype": F64, "generator": g}
    return eq.ConvOptEq((1, 5, 5), 2, [3], **{"features": 2, "extractor": (2,)} | at | more)


def test_the_injection_of_images_is_rounded():
    units = facts(conv()).unit_network()
    X = torch.rand(2, 25, dtype=F64, generator=torch.Generator().manual_seed(0))
    _, error = units.injection(X)
    assert bool((error >= units._gamma * units._entered(X, units._sizes) * (1 - 2.0**-40)).all())
    assert float(units._gamma) > 0


def test_the_error_of_a_head_is_that_of_the_readout_of_its_images(monkeypatch):
    class Off(image_units.ConvHead):
        def __init__(self, model):
            super().__init__(model)
            self.error = Interval(1.0)

    model, reads = conv(), []
    monkeypatch.setattr(image_units, "ConvHead", Off)
    network = image_units.Blocks.network
    monkeypatch.setattr(
        image_units.Blocks, "network", lambda self, *given: reads.extend(given[2]) or network(self, *given)
    )
    found = facts(model).unit_network().readout_error
    assert found >= sum(read.norm().lo for read in reads) > 0


def test_scores_of_images_are_off_by_the_head_and_the_state_together():
    head = ConvHead(solved_double(conv()))
    Z = torch.zeros(1, *conv().state, dtype=F64)
    head.error = Interval(1.0)
    assert head.scores(Z, Interval(1.0)).error >= 2 * (1 + float(head.A.norm(dim=1).max()))


@pytest.mark.parametrize("how", [{"dilation": 2, "padding": 2}, {"padding": (1, 2)}, {"groups": 2}])
def test_convolutions_that_are_not_plain_are_not_verified(how):
    model = conv(extractor=(2, 2))
    at = max(i for i, layer in enumerate(model.extractor) if isinstance(layer, nn.Conv2d))
    model.extractor[at] = nn.Conv2d(2, 2, 3, **{"padding": 1} | how, dtype=F64)
    with pytest.raises(ValueError, match="plain square convolutions"):
        facts(model).unit_network()


def test_means_of_a_state_are_rounded():
    model = conv(normalise=False)
    reads = facts(model).reads()
    Z = torch.rand(1, *model.state, dtype=F64, generator=torch.Generator().manual_seed(0))
    M, off = reads.head.rows @ Z @ reads.head.columns.T, Fraction(0)
    rows, columns = reads.head.rows.tolist(), reads.head.columns.tolist()
    for c, i, j in itertools.product(*map(range, M.shape[1:])):
        z = Z[0, c].tolist()
        sides = itertools.product(enumerate(rows[i]), enumerate(columns[j]))
        exact = sum(Fraction(a) * Fraction(z[p][q]) * Fraction(b) for (p, a), (q, b) in sides)
        off += (exact - Fraction(M[0, c, i, j].item())) ** 2
    assert not reads.head.normalised
    assert 0 < off <= Fraction(reads.read(Z, 0.0)[1]) ** 2


def test_a_row_that_is_proved_is_not_unknown():
    rows = torch.zeros(3)
    proved, refuted = torch.tensor([True, False, False]), torch.tensor([False, True, False])
    found = VerifiedPredictions(proved, refuted, rows, rows, rows, rows)
    assert found.unknown.tolist() == [False, False, True]
