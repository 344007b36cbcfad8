"""Nothing that the library says of thousands of random small problems is false (see `false_words`)."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from equipoise.solve import error
from false_words import KINDS, case, false_words
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
    kind, word = case(seed)  # once GMRES took the rows that Anderson had left as if they were alone
    assert kind == "layer"
    assert word.said
    assert not word.false


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
