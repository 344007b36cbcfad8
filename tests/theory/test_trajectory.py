"""The flight recorder: what it proves is true of the run, and what went wrong is not proved."""

from __future__ import annotations

import json
import math

import pytest
import torch

import equipoise as eq
from equipoise.theory.trajectory import Flight, Recorder

N, D, WIDTH = 4, 5, 10
TIGHT = eq.Stop(rtol=1e-12, max_steps=5000)
FAMILIES = ["scaled", "gaussian", "monotone", "linear"]


def build(family: str, outputs: int = 1, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    more = {"outputs": outputs, "dtype": torch.float64, "generator": g}
    if family == "scaled":
        model = eq.ScaledReLU(inputs=D, width=WIDTH, gamma=0.5, **more)
    elif family == "gaussian":
        model = eq.GaussianReLU(inputs=D, width=WIDTH, **more)
    elif family == "monotone":
        model = eq.Monotone(inputs=D, width=WIDTH, margin=0.8, **more)
    else:
        model = eq.LinearEquilibrium(features=D, gamma=0.6, **more)
    X = torch.randn(N, D, dtype=torch.float64, generator=g)
    y = torch.randn(model(X).shape, dtype=torch.float64, generator=g)
    return model, X, y


def test_a_run_of_which_nothing_was_recorded_is_not_proved():
    assert not Flight((), "square").proved


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_recorded_is_true_of_a_run_by_adam(family, outputs):
    model, X, y = build(family, outputs)
    recorder = Recorder(model, X, y)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    scale = 1.0 if family == "linear" else 0.5
    for step in range(6):
        optimiser.zero_grad()
        loss = scale * (model(X, stop=TIGHT) - y).square().sum()
        loss.backward()
        moment = recorder.record(step)
        true = float(loss.detach())
        assert moment.loss.lo <= true * (1 + 1e-9)
        assert true * (1 - 1e-9) <= moment.loss.hi <= true * (1 + 1e-7)
        H = eq.tangent_kernel(model, X)
        assert 0 < moment.lambda_min <= H.lambda_min * (1 + 1e-9)
        assert moment.estimates["lambda_min"] == pytest.approx(H.lambda_min, rel=1e-6)
        Z = model.equilibrium(X, stop=TIGHT).detach()
        assert moment.lambda_min == pytest.approx(float(torch.linalg.svdvals(Z)[-1]) ** 2, rel=1e-6)
        gradient = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        assert moment.estimates["gradient"] == pytest.approx(gradient, rel=1e-6)
        inequality = recorder.flight.claim(step, "PL*")
        readout = float(model.get_parameter(model.readout_name).grad.norm())
        assert inequality.lhs == pytest.approx(readout**2, rel=1e-6)
        assert inequality.lhs <= gradient**2 * (1 + 1e-9)
        assert inequality.rhs == pytest.approx(4 * scale * moment.lambda_min * true, rel=1e-5)
        assert moment.proved
        optimiser.step()
    flight = recorder.flight
    assert flight.proved
    assert not flight.violations
    assert not flight.undecided


@pytest.mark.parametrize("family", FAMILIES)
def test_a_certified_run_keeps_its_promise(family):
    model, X, y = build(family)
    certificate = eq.certify(model, X, y, theorem="two_timescale")
    recorder = Recorder(model, X, y, theorem_rate=certificate, every=5)
    eq.gradient_descent(model, X, y, steps=20, step_size=certificate, progress=recorder)
    flight = recorder.flight
    assert [m.step for m in flight.moments] == [0, 5, 10, 15, 20]
    assert flight.proved, str(flight)
    for m in flight.moments[1:]:
        claim = flight.claim(m.step, "descent")
        assert claim.rhs == pytest.approx(certificate.bound(m.step) * flight.moments[0].loss.hi, rel=1e-6)


def test_a_broken_promise_is_a_violation():
    model, X, y = build("gaussian")
    recorder = Recorder(model, X, y, theorem_rate=0.5)
    eq.gradient_descent(model, X, y, steps=3, step_size=1e-4, progress=recorder)
    flight = recorder.flight
    assert flight.violations == [(k, "descent") for k in (1, 2, 3)]
    assert not flight.proved
    assert "no" in str(flight)
    assert flight.claim(2, "descent").rhs == pytest.approx(0.25 * flight.moments[0].loss.hi, rel=1e-6)


def test_a_promise_counts_from_the_first_record():
    model, X, y = build("gaussian")
    recorder = Recorder(model, X, y, theorem_rate=0.5)
    recorder.record(7)
    with torch.no_grad():
        model.a.mul_(0.999)
    recorder.record(9)
    assert recorder.flight.claim(9, "descent").rhs == pytest.approx(
        0.25 * recorder.moments[0].loss.hi, rel=1e-6
    )


def test_weights_that_lose_uniqueness_are_a_violation_and_nothing_more_is_claimed():
    model, X, y = build("gaussian")
    recorder = Recorder(model, X, y)
    recorder.record()
    with torch.no_grad():
        model.W.mul_(3 / torch.linalg.matrix_norm(model.W, 2))
    lost = recorder.record()
    assert recorder.flight.violations == [(1, "‖W‖ < 1")]
    assert lost.lambda_min == 0
    assert lost.loss.hi == math.inf
    with torch.no_grad():
        model.W[0, 0] = math.nan
    recorder.record()
    assert "NaN" in recorder.flight.violations[-1][1]
    assert not recorder.flight.proved


def test_dependent_rows_are_not_proved_to_be_conditioned():
    model, X, y = build("gaussian")
    X[1] = X[0]
    recorder = Recorder(model, X, y)
    recorder.record()
    assert (0, "λ_min(H) > 0") in recorder.flight.undecided
    assert not recorder.flight.proved


def test_at_a_solution_rounding_decides_and_it_says_so():
    model, X, _ = build("gaussian")
    y = model(X, stop=eq.Stop(rtol=1e-13, max_steps=5000)).detach()
    recorder = Recorder(model, X, y)
    recorder.record()
    assert (0, "PL*") in recorder.flight.undecided
    assert not recorder.flight.violations


def test_how_far_the_weights_went():
    model, X, y = build("gaussian")
    recorder = Recorder(model, X, y, kernel=False)
    recorder.record()
    for sign in (1.0, -1.0):
        with torch.no_grad():
            model.a[0] += sign * 0.25
        recorder.record()
    assert recorder.moments[-1].estimates["path"] == pytest.approx(0.5)
    assert recorder.moments[-1].estimates["travelled"] == pytest.approx(0.0, abs=1e-15)
    assert "lambda_min" not in recorder.moments[-1].estimates


def test_a_flight_survives_json_and_an_altered_one_does_not():
    model, X, y = build("monotone")
    recorder = Recorder(model, X, y, theorem_rate=0.9999)
    recorder.record()
    flight = recorder.flight
    assert Flight.from_json(flight.to_json()) == flight
    data = json.loads(flight.to_json())
    claim = data["moments"][0]["claims"][1]
    claim["lhs"] = [(-1.0).hex(), (-1.0).hex()]
    with pytest.raises(ValueError, match="its numbers say otherwise"):
        Flight.from_dict(data)
    with pytest.raises(ValueError, match="a flight must have"):
        Flight.from_dict({})
    assert str(flight).splitlines()[0].split()[:2] == ["step", "L"]


def test_float32_weights_are_recorded_as_they_are_stored():
    model, X, y = build("gaussian")
    model, X, y = model.float(), X.float(), y.float()
    recorder = Recorder(model, X, y)
    assert recorder.record().proved


def test_what_makes_no_sense_is_refused():
    model, X, y = build("gaussian")
    with pytest.raises(ValueError, match="every"):
        Recorder(model, X, y, every=0)
    with pytest.raises(ValueError, match="factor per step"):
        Recorder(model, X, y, theorem_rate=1.5)
    with pytest.raises(ValueError, match="loss must be"):
        Recorder(model, X, y, loss="logistic")
    with pytest.raises(ValueError, match="proved certificate of descent"):
        Recorder(model, X, y, theorem_rate=eq.certify(model, X, y, theorem="wellposed"))
    with pytest.raises(ValueError, match="slack"):
        Recorder(model, X, y, theorem_rate=eq.certify(model, X, y, theorem="two_timescale", slack=0.1))
    certificate = eq.certify(model, X, y, theorem="two_timescale")
    with pytest.raises(ValueError, match="half_square"):
        Recorder(model, X, y, theorem_rate=certificate, loss="square")
    recorder = Recorder(model, X, y, theorem_rate=certificate)
    with torch.no_grad():
        model.a.mul_(2)
    with pytest.raises(ValueError, match="other weights"):
        recorder.record()
    recorder = Recorder(model, X, y)
    recorder.record(3)
    with pytest.raises(ValueError, match="must increase"):
        recorder.record(3)
