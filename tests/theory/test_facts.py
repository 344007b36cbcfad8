"""Facts of a family: found along its classes, of a user's own too, and refused where they are not known."""

from __future__ import annotations

import math

import pytest
import torch

import equipoise as eq
from equipoise.models.affine import AffineFamily, pairs, squeeze_blocks, weigh
from equipoise.theory import certified_radius, equilibrium_error, facts, facts_of, lipschitz_bound
from equipoise.theory.enclosure import product_rounding
from equipoise.theory.families import GenericFacts
from equipoise.theory.families.gaussian_relu import GaussianReLUFacts

F64 = torch.float64


class Rotated(AffineFamily):
    """Z = relu(s Z Q + X c),  ŷ = Z a, with Q of any numbers: a family that nobody has told of."""

    readout_name = "a"

    def __init__(self, inputs=3, width=6, scale=0.5, dtype=F64, device=None):
        super().__init__(inputs, width, 1)
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=F64).to(dtype)
        self.register_buffer("Q", scale * torch.linalg.qr(draw(width, width).double()).Q.to(dtype))
        self.c, self.a = torch.nn.Parameter(draw(inputs, width)), torch.nn.Parameter(draw(width))

    def weight(self):
        return self.Q

    def injection(self, X):
        return X @ self.c

    def pullback(self, V, R, Z, X):
        return {"c": X.T @ weigh(V, R), "a": Z.T @ R}

    def gram(self, V, Z, X, V2, Z2, X2):
        return squeeze_blocks({"c": pairs(X, X2) * pairs(V, V2), "a": pairs(Z, Z2)})

    def check_wellposed(self):
        """Nothing is checked here."""

    def config(self):
        return {"inputs": self.inputs, "width": self.width}


def inputs(N=4, dtype=F64):
    return torch.randn(N, 3, generator=torch.Generator().manual_seed(1), dtype=F64).to(dtype)


# -- a family of a user's own --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_family_without_facts_is_certified_and_says_what_is_taken_as_exact(dtype):
    model, X = Rotated(dtype=dtype), inputs(dtype=dtype)
    certificate = eq.certify(model, X)
    assert certificate.proved
    assert certificate.constants["reason"] == "‖W‖ < 1"
    assert certificate.constants["rate"] == pytest.approx(0.5, rel=1e-6)
    assert "W(θ) and u(X; θ) are taken to be exactly what Rotated computes" in certificate.explain()
    exact = Rotated().requires_grad_(False)
    exact.load_state_dict({n: t.double() for n, t in model.state_dict().items()})
    truth = exact.equilibrium(X.double(), stop=eq.Stop(rtol=1e-14, max_steps=500))
    for off in (1e-6, 1e-2):
        moved = truth + off
        assert float((moved - truth).norm()) <= equilibrium_error(model, X, moved) <= 10 * off * truth.numel()


def test_uniqueness_by_either_reason_and_by_neither():
    X = inputs()
    negative = Rotated()
    negative.Q.copy_(-3 * torch.eye(6))  # which does not contract, and is monotone
    certificate = eq.certify(negative, X)
    assert certificate.constants["reason"] == "λ_max(sym W) < 1"
    assert certificate.constants["R"] == pytest.approx(0.25)
    large = Rotated()
    large.Q.copy_(3 * torch.eye(6))
    assert eq.certify(large, X).verdict == "hypotheses_fail"
    assert equilibrium_error(large, X, torch.zeros(4, 6, dtype=F64)) == math.inf


def test_it_is_trained_with_a_promise_that_is_kept():
    model, X, y = Rotated(), inputs(), torch.arange(4.0, dtype=F64)
    certificate = eq.certify(model, X, y, theorem="safeguarded", slack=0.1)
    assert certificate.proved
    assert any("are taken to be exactly" in h for h in certificate.hypotheses)
    before = model.c.detach().clone()
    history = eq.safeguarded_descent(model, X, y, steps=20, certificate=certificate)
    assert not history.violations()
    assert history.loss[-1] < 0.2 * history.loss[0]
    assert not torch.equal(model.c.detach(), before)
    recorder = eq.theory.Recorder(model, X, y)
    recorder.record(0)
    assert any("are taken to be exactly" in h for h in recorder.flight.hypotheses)


def test_what_is_not_known_is_refused_in_words_that_say_what_to_add():
    model, X, y = Rotated(), inputs(), torch.zeros(4, dtype=F64)
    with pytest.raises(TypeError, match=r"not of Rotated: register facts of it .* with geometry\(instance\)"):
        eq.certify(model, X, y, theorem="two_timescale", slack=0.1)
    with pytest.raises(TypeError, match=r"how u\(x; θ\) follows x must be known.* with input_map\(\)"):
        lipschitz_bound(model)
    with pytest.raises(TypeError, match=r"W and u in ball arithmetic must be known.* with in_balls\(X\)"):
        eq.certify(model, X, tier="rigorous")
    assert "the theorem is about GaussianReLU" in eq.certify(model, X, y, theorem="ling2023").obstacle


@pytest.mark.parametrize("name", ["readout", "solve", "equilibrium", "affine_map", "forward", "__call__"])
def test_a_family_that_changes_what_is_solved_or_read_out_is_not_certified(name):
    changed = type("Changed", (Rotated,), {name: lambda self, *a, **k: None})()
    certificate = eq.certify(changed, inputs())
    assert not certificate.proved
    assert f"Changed changes {name} of AffineFamily" in certificate.obstacle


def test_an_activation_that_is_rounded_is_not_certified():
    smooth = type("Smooth", (Rotated,), {"activation": eq.solve.TANH})()
    assert (
        "the activation tanh of Smooth must be computed without rounding"
        in eq.certify(smooth, inputs()).obstacle
    )
    assert eq.certify(type("Clamped", (Rotated,), {"activation": eq.solve.clamp(-1, 1)})(), inputs()).proved


def test_a_family_that_cannot_be_told_from_others_is_an_error():
    nameless = type("Nameless", (Rotated,), {"config": eq.models.affine.AffineFamily.config})()
    with pytest.raises(NotImplementedError, match=r"Nameless must have config\(\)"):
        eq.certify(nameless, inputs())


def test_parts_in_another_dtype_are_an_error():
    half = type("Half", (Rotated,), {"weight": lambda self: self.Q.float()})()
    with pytest.raises(
        TypeError, match=r"weight\(\) of Half must be .* Got torch.float32 of \(6, 6\) instead"
    ):
        eq.certify(half, inputs())


# -- facts that a family brings ------------------------------------------------------------------------------


def test_registered_facts_are_found_and_inherited(registered):
    @facts_of(Rotated)
    class RotatedFacts(GenericFacts):
        def __init__(self, model):
            super().__init__(model)
            self.hypotheses = ()

        def injection_error(self, X):
            return product_rounding(X, self.model.c).hi

        def input_map(self):
            return self.model.c.T

    model, X = Rotated(), inputs(16)
    below = type("Below", (Rotated,), {})()
    assert isinstance(facts(model), RotatedFacts)
    assert isinstance(facts(below), RotatedFacts)
    arithmetic, given = eq.certify(model, X).hypotheses
    assert "float64" in arithmetic
    assert given == "the facts RotatedFacts, which are registered for Rotated, are right"
    assert given in certified_radius(model, X).hypotheses
    assert facts(model.requires_grad_(False)).enclosure(X).injection_error > 0
    bound = lipschitz_bound(model)
    Y = X + 1e-3 * inputs(16).flip(0)
    slope = (model(Y, stop=eq.Stop(rtol=1e-13)) - model(X, stop=eq.Stop(rtol=1e-13))).abs() / (Y - X).norm(
        dim=1
    )
    assert float(slope.max()) <= bound < 2.001 * float(model.a.norm() * torch.linalg.matrix_norm(model.c, 2))
    near, far = certified_radius(model, X, local=True), certified_radius(model, X)
    assert (near.radius >= far.radius).all()


def test_facts_of_the_librarys_own_families_stay_what_they_are():
    for family in (eq.GaussianReLU, AffineFamily, eq.OptEq):
        with pytest.raises(ValueError, match=f"facts of {family.__name__} are known already"):
            facts_of(family)(type("Wrong", (GenericFacts,), {"__module__": "mine"}))
    assert type(facts(eq.GaussianReLU(2, 3))) is GaussianReLUFacts


def test_what_a_users_facts_say_of_a_familys_theorem_stands_in_the_certificate(registered):
    class Mine(eq.GaussianReLU):
        pass

    facts_of(Mine)(type("MineFacts", (GaussianReLUFacts,), {"__module__": "mine"}))
    y = torch.zeros(4, dtype=F64)
    for theorem in ("ling2023", "two_timescale", "safeguarded", "wellposed"):
        certificate = eq.certify(Mine(3, 6, dtype=F64), inputs(), y, theorem=theorem)
        assert certificate.hypotheses[-1] == "the facts MineFacts, which are registered for Mine, are right"


def test_units_are_off_of_relu_alone(registered):
    """Where σ is no relu, a unit below zero is not off: the local form gives the global radius."""

    @facts_of(Rotated)
    class RotatedFacts(GenericFacts):
        def input_map(self):
            return self.model.c.T

    clamped, X = type("Clamped", (Rotated,), {"activation": eq.solve.clamp(-1, 1)})(), inputs(16)
    assert torch.equal(certified_radius(clamped, X, local=True).radius, certified_radius(clamped, X).radius)


def test_the_nearest_class_counts_and_an_unknown_model_is_told_the_known_names(registered):
    assert type(facts(eq.GaussianReLU(2, 3))) is GaussianReLUFacts
    assert type(facts(type("Renamed", (eq.GaussianReLU,), {})(2, 3))) is GaussianReLUFacts
    assert type(facts(Rotated())) is GenericFacts
    words = "affine families LinearEquilibrium, ScaledReLU, GaussianReLU and Monotone; .* Got Linear instead"
    with pytest.raises(TypeError, match=words):
        facts(torch.nn.Linear(2, 2))

    @facts_of(Rotated)
    class RotatedFacts(eq.theory.AffineFacts):
        family = "Rotated"

        def enclosure(self, X):
            raise NotImplementedError

    with pytest.raises(TypeError, match="GaussianReLU, Monotone and Rotated;"):
        facts(torch.nn.Linear(2, 2))
