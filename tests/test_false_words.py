"""Nothing that the library says of thousands of random small problems is false (see `false_words`)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import equipoise as eq
from equipoise.solve import error
from equipoise.theory import moves
from false_words import KINDS, false_words, word_of
from false_words.composed import composed
from false_words.layers import layer
from false_words.settings import settings
from false_words.solves import affine_maps
from references import equilibria, norms, parts

FAST, SLOW = 100, 20_000


def assert_true(seeds, least: float) -> None:
    """No false word, and enough words: each kind of case says something at least so often."""
    cases, said, false = false_words(seeds)
    assert not false
    assert set(cases) == {kind.__name__ for kind in KINDS}
    assert all(said[kind] >= least * cases[kind] for kind in cases if cases[kind] > 4)


def test_no_word_is_false():
    assert_true(range(FAST), 0.4)


@pytest.mark.parametrize("seed", [102696, 164098, 172698])
def test_adjoint_equations_of_samples_that_depend_on_each_other_are_solved_together(seed):
    word = word_of(layer, seed)  # once GMRES took the rows that Anderson had left as if they were alone
    assert word.said
    assert not word.false


@pytest.mark.parametrize("seed", [202573, 204173, 208769])
def test_samples_seen_before_those_that_they_depend_on_had_moved_are_no_answers(seed):
    word = word_of(settings, seed)
    assert word.said
    assert not word.false


def test_samples_that_depend_on_a_masked_one_are_no_answers():
    assert not word_of(settings, 209474).said  # it is refused


def test_a_zero_equilibrium_is_as_near_in_mixed_precision_as_the_users_start_asks():
    word = word_of(affine_maps, 473815)  # once the image of the state where float64 began took its place
    assert word.said
    assert not word.false


@pytest.mark.parametrize("seed", [181, 219, 302, 312, 378])
def test_of_cells_that_change_what_they_made_nothing_is_said(seed):
    assert not word_of(composed, seed).false


@pytest.mark.slow
def test_no_word_is_false_in_thousands():
    assert_true(range(FAST, FAST + SLOW), 0.6)


# -- so that it can fail ------------------------------------------------------------------------------------


def count_false(monkeypatch, kind: str, seeds=range(400)) -> int:
    """False words of one kind alone."""
    alone = [one for one in KINDS if one.__name__ == kind]
    monkeypatch.setattr("false_words._WHEEL", alone)
    return len(false_words(seeds)[2])


def test_a_status_that_is_too_kind_is_found(monkeypatch):
    loose = lambda self, scale, floor=None: 100 * self.rtol * scale
    monkeypatch.setattr(eq.Stop, "tolerance", loose)
    assert count_false(monkeypatch, "cells", range(40)) > 5
    assert count_false(monkeypatch, "affine_maps", range(40)) > 5


def test_an_error_bound_that_is_too_small_is_found(monkeypatch):
    true = error.error_bounds

    def small(*args):
        bound = true(*args)
        return bound if bound is None else bound / 1e3

    monkeypatch.setattr(error, "error_bounds", small)
    assert count_false(monkeypatch, "affine_maps", range(40)) > 5


def test_gradients_of_another_network_are_found(monkeypatch):
    slope = eq.models.affine.AffineFamily.slope
    monkeypatch.setattr(eq.models.affine.AffineFamily, "slope", lambda self, P: 0.9 * slope(self, P))
    assert count_false(monkeypatch, "gradients", range(60)) > 5


def test_a_layer_that_answers_too_soon_or_differentiates_otherwise_is_found(monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(eq.Stop, "tolerance", lambda self, scale, floor=None: 100 * self.rtol * scale)
        assert count_false(monkeypatch, "settings", range(40)) > 5
    attach = eq.Phantom.attach
    monkeypatch.setattr(eq.Phantom, "attach", lambda self, *a: attach(replace(self, steps=1), *a))
    assert count_false(monkeypatch, "settings", range(100)) > 1


@pytest.mark.parametrize("kind", ["proximal", "images"])
def test_error_bounds_of_other_families_that_are_too_small_are_found(monkeypatch, kind):
    true = eq.equilibrium_error
    monkeypatch.setattr(eq, "equilibrium_error", lambda *a: true(*a) / 5)
    assert count_false(monkeypatch, kind, range(20)) > 5


def test_slopes_of_parts_that_are_too_small_are_found(monkeypatch):
    true = moves._slope
    half = lambda *a: None if (slope := true(*a)) is None else slope * 0.5
    monkeypatch.setattr(moves, "_slope", half)
    assert count_false(monkeypatch, "composed", range(100)) > 5


def test_answers_on_smaller_sets_than_were_asked_for_are_found(monkeypatch):
    true = eq.verify_predictions
    smaller = lambda *a, epsilon, **how: true(*a, epsilon=epsilon / 20, **how)
    monkeypatch.setattr(eq, "verify_predictions", smaller)
    assert count_false(monkeypatch, "verified", range(30)) > 2


def test_a_threshold_one_place_too_low_is_found(monkeypatch):
    monkeypatch.setattr("equipoise.tasks.conformal.math.ceil", math.floor)
    assert count_false(monkeypatch, "conformal", range(100)) > 20


def test_certificates_of_altered_models_are_found(monkeypatch):
    for place in ("theory.certify", "theory.instance", "theory.wellposed", "theory.export"):
        monkeypatch.setattr(f"equipoise.{place}.altered", lambda *a, **k: "", raising=False)
    assert count_false(monkeypatch, "altered", range(20)) > 5


def test_the_reference_is_a_fixed_point_in_long_double():
    model = eq.Monotone(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    W, u = parts(model, torch.ones(2, 3, dtype=torch.float64))
    Z = equilibria(W, u)
    assert (norms((W @ Z.T).T + u - Z)[(Z > 0).all(axis=1)] <= 1e-17).all()
    assert (norms(((W @ Z.T).T + u).clip(0) - Z) <= 1e-17 * norms(Z)).all()
