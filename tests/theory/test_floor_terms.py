"""The floor of a bound, term by term: (21a)-(21c) of docs/theory.md in plain numbers."""

from __future__ import annotations

import math

import pytest
import torch

import equipoise as eq
from certifiable import instance
from equipoise.linalg import Interval, frobenius, gamma
from equipoise.theory.features import Along, Reachable, Start, _residual, floor, reachable_targets, run_rtol
from equipoise.theory.instance import Instance


def terms(at: Instance, start: Start, along: Along, rtol: float):
    """e, ρ, m₀ and what is added near L* > 0, as the section on floating point states them."""
    unit = torch.finfo(at.original.readout_weight.dtype).eps / 2
    g = lambda n: 1.01 * (n + 4) * unit
    model, y, r0 = at.model, float(at.y.norm()), start.r0.hi
    a, S, s, R = along.a.hi, along.S.hi, along.s.lo, along.R.hi
    Z = float(at.Z.norm()) + s
    W = float(at.enclosure.weight.norm())
    hidden = sum(float(p.norm()) for n, p in model.named_parameters() if n != model.readout_name)
    of_f = g(model.width) * W * Z + at.enclosure.injection_error * unit * 2.0**53
    of_f += g(2) * (hidden + W) * (Z + float(at.X.norm()))
    grown = 2 * (1 + R * at.enclosure.weight_norm.hi)
    solved = grown * (2 * run_rtol(at, rtol) * Z + of_f)
    slack = r0 + Z * a + y if start.root.hi else 0.0
    measured = a * solved + g(model.width) * Z * a + g(4) * (y + r0 + slack)
    reachable = reachable_targets(at, start.root.hi**2)
    e = 4 * measured + g(2) * (S * a + slack) + reachable.error
    sums = g(at.N + model.width)
    condition = S / s if along.newton else 1.0
    rho = (solved / S + sums * Z / S + 8 * sums) * condition + 4 * g(at.y.numel())
    rho += along.given_back.hi * (2 * solved / Z + g(model.width) * R)
    L = math.sqrt(reachable.least)
    rounding = a * grown * of_f + g(model.width) * Z * a + g(4) * (y + r0)
    return e, rho, start.r0.lo - measured, 2 * L * rounding + 2 * g(at.y.numel()) * L**2


@pytest.mark.parametrize("newton", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("family", "N", "slack"), [("ling2023", 5, 0.3), ("kawaguchi2021", 40, 0.0)])
def test_the_floor_is_that_of_its_terms(family, N, slack, dtype, newton):
    model, X, y = instance(family, N=N, width=8)
    at = Instance(model.to(dtype), 1e-2 * X.to(dtype), y.to(dtype))
    start = Start.of(at, slack)
    for a, S, s, R, back in ((2.0, 3.0, 0.5, 4.0, 0.0), (0.1, 0.2, 0.1, 50.0, 30.0)):
        along = Along(*(Interval(v) for v in (a, S, s, R, back)), newton=newton)
        for rtol in (1e-16, 1e-12):
            e, rho, first, gap = terms(at, start, along, rtol)
            for spare in (1.5 * rho, 1e6):
                truth = (e / ((spare - rho) * first)) ** 2 + gap / first**2
                if first > 0 and truth < 1:
                    found = floor(at, start, along, Interval(spare), rtol)
                    assert found == pytest.approx(truth, rel=1e-6, abs=0.0)
            assert truth < 1  # with all the room there is
            assert floor(at, start, along, Interval(rho * (1 - 1e-6)), rtol) >= 1.0  # no room at all
            assert floor(at, start, along, Interval(0.0), rtol) >= 1.0


def test_solves_are_no_tighter_than_the_dtype():
    model, X, y = instance("ling2023")
    assert run_rtol(Instance(model, X, y), 1e-12) == 1e-12
    assert run_rtol(Instance(model.float(), X.float(), y.float()), 1e-12) > 1e-8


@pytest.mark.parametrize("readout", ["gradient", "gauss-newton"])
@pytest.mark.parametrize("slack", [0.0, 0.5])
def test_certificates_use_the_numbers_that_hold_all_along_a_run(slack, readout):
    """ā, S̄, (1−τ)s and R of each argument, and the part of its contraction that exact steps leave unused."""
    model, X, y = instance("ling2023")
    options = {"readout": readout, "slack": slack, "eta": 0.3, "tau": 0.25, "theta": 0.4}
    at = Instance(model, X, y)
    start, newton = Start.of(at, slack), readout == "gauss-newton"
    found = eq.certify(model, X, y, theorem="safeguarded", **options)
    k = found.constants
    s = start.s.lo * 0.75
    if newton:
        assert k["nu"] == 0.3
    a = start.a0.hi + 2 * start.r0.hi / (0.6 * s)
    along = Along(*map(Interval, (a, k["S_bar"], s, 4 * at.enclosure.resolvent.hi, 0.0)), newton)
    assert found.floor == pytest.approx(
        floor(at, start, along, Interval(0.4 * k["nu"]), 1e-12), rel=1e-9, abs=0.0
    )
    spectrum = at.equilibria.spectrum
    assert (k["Z_sigma_min"], k["Z_norm"]) == (spectrum.sigma_min.lo, spectrum.norm.hi)
    assert (k["s"], k["S"], k["r0"]) == (start.s.lo, start.S.hi, start.r0.hi)
    found = eq.certify(model, X, y, theorem="two_timescale", **options)
    k, given = found.constants, found["(T2)"]
    along = Along(*map(Interval, (k["a_bar"], k["S_bar"], s, k["R"], 0.4 * k["nu"])), newton)
    spare = Interval(0.4 * k["nu"] - given.lhs)
    assert found.floor == pytest.approx(floor(at, start, along, spare, 1e-12), rel=1e-6, abs=0.0)


def test_the_start_allows_for_the_error_of_projected_targets():
    model, X, y = instance("kawaguchi2021", N=40, width=6)
    at = Instance(model, X, y)
    exact = reachable_targets(at, 0.0)
    plain = _residual(at, exact)
    a = at.model.readout_weight.reshape(6, -1).detach()
    assert 0 < exact.error < 1e-9
    off = exact.error + float(a.norm()) * at.equilibria.error
    assert plain.hi - plain.lo >= 2 * off
    wide = _residual(at, Reachable(exact.y, 0.5, exact.least))
    truth = float((at.Z @ a - exact.y).norm())
    assert wide.lo <= truth - 0.5
    assert wide.hi >= truth + 0.5
    y = exact.y + 1e12  # the difference of large numbers is rounded at their size
    large = _residual(at, Reachable(y, 1e-300, exact.least))
    left = at.Z @ a - y
    assert large.hi - frobenius(left).hi >= 0.8 * gamma(4) * (float(y.norm()) + float(left.norm()))
