"""A recipe refuses what it cannot mean, survives a file, and makes the same network from the same seed."""

from __future__ import annotations

import json
import math

import pytest
import torch

from equipoise.models.norms import spectral_norm
from equipoise.recipe import FAMILIES
from equipoise.tasks import Recipe

AFFINE = [name for name, family in FAMILIES.items() if family.affine]


@pytest.mark.parametrize("recipe", [Recipe(), Recipe("monotone", width=7, margin=0.3, slack=0.0, seed=3)])
def test_a_recipe_survives_json(recipe):
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_what_was_not_given_is_not_written():
    assert Recipe(width=5).to_dict() == {
        "model": "auto",
        "width": 5,
        "certified": True,
        "theorem": "anchored",
        "seed": 0,
    }


def test_unknown_keys_are_errors_that_name_the_known_ones():
    with pytest.raises(ValueError, match=r"sigma_w2.*Got 'widht' as well"):
        Recipe.from_dict({"widht": 5})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "mlp"}, r"model must be one of 'auto', 'linear'.*Got 'mlp'"),
        ({"certified": 1}, r"certified must be one of True, False. Got 1"),
        ({"width": 0}, r"width must be an integer ≥ 1. Got 0"),
        ({"width": True}, r"width must be an integer"),
        ({"width": 4.0}, r"width must be an integer"),
        ({"steps": -1}, r"steps must be an integer ≥ 0. Got -1"),
        ({"seed": -1}, r"seed must be an integer ≥ 0"),
        ({"eta": 0.0}, r"eta must be a finite number in \(0, 1\]. Got 0"),
        ({"eta": 1.5}, r"eta must be"),
        ({"slack": -1.0}, r"slack must be a finite number ≥ 0. Got -1"),
        ({"slack": math.inf}, r"slack must be a finite number"),
        ({"slack": "much"}, r"slack must be a finite number ≥ 0. Got 'much'"),
        ({"sigma_w2": 0.125}, r"sigma_w2 must be a finite number in \(0, 0.125\)"),
        ({"model": "scaled-relu", "gamma": 1.0}, r"gamma must be"),
        ({"model": "monotone", "margin": 0.0}, r"margin must be"),
        ({"readout": "newton"}, r"readout must be one of 'gauss-newton', 'gradient'"),
        ({"dtype": "float16"}, r"dtype must be one of 'float64', 'float32'"),
        ({"gamma": 0.5}, r"gaussian-relu takes sigma_w2. Got gamma"),
        ({"model": "linear", "width": 5}, r"as wide as its inputs: leave out width"),
        ({"epochs": 5, "slack": 0.1}, r"slack must not be given|epochs must not be given for safeguarded"),
        ({"epochs": 5, "rate": 0.1, "theorem": "safeguarded"}, r"rate, epochs must not be given for safe"),
        ({"theorem": "anchored", "steps": 5}, r"steps must not be given for anchored training"),
        ({"certified": False, "theorem": "anchored"}, r"theorem must not be given for training"),
        ({"theorem": "ling2023"}, r"theorem must be one of 'anchored', 'safeguarded'"),
        (
            {"certified": False, "slack": 1.0},
            r"slack must not be given for free training: it is an",
        ),
    ],
)
def test_what_a_recipe_cannot_mean_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**options)


def test_sizes_are_chosen_from_the_rows():
    whole = Recipe(theorem="safeguarded")
    assert [whole.resolved(n).width for n in (2, 50, 128, 1500, 9999)] == [64, 200, 512, 750, 1024]
    assert [Recipe().resolved(n).width for n in (2, 150, 5000, 60_000)] == [64, 64, 208, 400]
    assert [Recipe().resolved(n).batch_size for n in (2, 1000, 60_000)] == [32, 128, 256]
    assert [Recipe().resolved(n).epochs for n in (2, 5000, 60_000)] == [60, 20, 12]
    assert Recipe(width=7).resolved(5000).width == 7
    assert Recipe("linear").resolved(50).width is None


@pytest.mark.parametrize("eta", [0.01, 0.2, 0.5, 0.94, 0.95, 1.0])
def test_steps_go_on_until_a_twentieth_is_left(eta):
    steps = Recipe(eta=eta).resolved(100).steps
    assert (1 - eta) ** steps <= 0.05 + 1e-12 < (1 - eta) ** (steps - 1)


def test_a_resolved_recipe_stays_as_it_is():
    once = Recipe("monotone", seed=4).resolved(40)
    assert once.margin == 0.5
    assert once.resolved(9999) == once


@pytest.mark.parametrize("model", AFFINE)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_start_has_no_readout_and_is_the_same_for_the_same_seed(model, outputs, dtype):
    whole = {"dtype": dtype, "theorem": "safeguarded"}
    recipe, other = Recipe(model, seed=1, **whole).resolved(20), Recipe(model, **whole).resolved(20)
    a, b, c = (r.build(5, outputs) for r in (recipe, recipe, other))
    assert not a.readout_weight.any()
    assert a.readout_weight.dtype == recipe.torch_dtype
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    hidden = a.hidden_names[0] if model != "scaled-relu" else "W"
    assert not torch.equal(a.get_parameter(hidden), c.get_parameter(hidden))
    assert a.width == (5 if model == "linear" else 80)


def test_a_recipe_written_before_there_was_another_theorem_is_safeguarded():
    assert Recipe.from_dict({"model": "auto", "certified": True, "seed": 3}).path == "safeguarded"
    assert Recipe.from_dict({"certified": False}).path == "free"
    assert Recipe(steps=3).path == "safeguarded"
    assert Recipe().path == "anchored"


def test_training_in_batches_starts_with_a_readout():
    assert Recipe().resolved(20).build(5, 1).readout_weight.any()
    assert Recipe(certified=False).resolved(20).build(5, 1).readout_weight.any()


@pytest.mark.parametrize("width", [1, 2, 5])
def test_narrow_starts_are_well_posed(width):
    for seed in range(20):
        model = Recipe(width=width, seed=seed).resolved(20).build(5, 1)
        assert spectral_norm(model.W) <= 0.9 + 1e-12


@pytest.mark.parametrize("wrong", [{"loss": "hingee"}, {"optimiser": "adma"}, {"schedule": "cosin"}])
def test_a_slip_of_the_pen_is_found_before_anything_is_trained(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be one of"):
        Recipe(certified=False, **wrong)


def test_boxes_are_trained_with_few_units_unless_a_width_is_given():
    """On digits, 136 units ended with no box proved and 40 with most of them."""
    boxes = Recipe(robust=0.05, norm="linf")
    assert boxes.resolved(1437, "classification", 10).width == 40
    assert Recipe(robust=0.05, norm="linf", width=72).resolved(1437, "classification", 10).width == 72
    assert Recipe(robust=0.05).resolved(1437, "classification", 10).width > 40
