"""Every family in the main job: trained in batches under its certificate, kept, and asked again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import equipoise as eq
from equipoise.data.errors import DataError
from equipoise.recipe import FAMILIES
from equipoise.tasks import Recipe, fit, load, save
from equipoise.tasks.preparation import Preparation
from equipoise.theory import certify
from equipoise.train.augment import REACH, augmented, flips, shifts

IMAGES = [name for name, family in FAMILIES.items() if family.images]
DIGITS = load_digits()
X, Y = DIGITS.images[:90], DIGITS.target[:90]


def small(model: str, **options) -> Recipe:
    width = {} if model == "linear" else {"width": 3 if model in IMAGES else 16}
    return Recipe(model, **{**width, "epochs": 2, "batch_size": 30, **options})


@pytest.fixture(scope="module")
def fitted():
    return {model: fit(X, Y, "classification", small(model)) for model in FAMILIES}


@pytest.mark.parametrize("model", FAMILIES)
def test_every_family_is_anchored_and_keeps_its_promise(model, fitted):
    found = fitted[model]
    told = found.history.anchored
    assert found.certificate.proved
    assert found.certificate.kind == "anchored"
    assert found.wellposed.proved
    assert told["F_end"][1] <= told["F_start"]
    again = certify(found.start(), *found.training(X, Y), theorem="anchored", **found.certificate.options)
    assert again.constants["F_start"] == found.certificate.constants["F_start"]


@pytest.mark.parametrize("model", FAMILIES)
def test_every_family_is_kept_whole(model, fitted, tmp_path):
    save(fitted[model], tmp_path)
    again = load(tmp_path)
    assert type(again.model) is type(fitted[model].model)
    assert np.array_equal(again.predict_proba(X), fitted[model].predict_proba(X))
    assert again.recipe == fitted[model].recipe


@pytest.mark.parametrize("model", FAMILIES)
def test_every_family_is_an_estimator(model):
    estimator = eq.EquilibriumClassifier(model, width=small(model).width, epochs=2, random_state=0)
    estimator.fit(X, Y)
    flat = X.reshape(len(X), -1)
    assert np.array_equal(estimator.predict(X), estimator.predict(flat))
    assert estimator.predict_proba(X).shape == (90, 10)


@pytest.mark.parametrize("model", IMAGES)
def test_a_family_of_images_knows_where_the_channels_are(model):
    rng = np.random.default_rng(0)
    first = rng.normal(size=(20, 3, 8, 6))
    y = np.arange(20) % 2
    a = fit(first, y, "classification", small(model))
    b = fit(np.moveaxis(first, 1, 3), y, "classification", small(model))
    assert a.preparation.inputs == b.preparation.inputs == (3, 8, 6)
    assert np.array_equal(a.predict_proba(first), b.predict_proba(np.moveaxis(first, 1, 3)))


@pytest.mark.parametrize("model", IMAGES)
def test_images_are_numbers_to_predict_too(model):
    found = fit(X, X.mean(axis=(1, 2)), "regression", small(model, epochs=4))
    assert found.certificate.proved
    assert found.predict(X).shape == (90,)
    assert found.history.anchored["F_end"][1] < found.history.anchored["F_start"]


@pytest.mark.parametrize("model", IMAGES)
def test_the_start_of_a_family_of_images_follows_from_the_seed(model):
    a, b, c = (Recipe(model, seed=s).resolved(90).build((1, 8, 8), 2) for s in (0, 0, 1))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(a.parameters(), c.parameters(), strict=True))
    assert Recipe(model).resolved(90).build((1, 28, 28), 2).state[1:] == (7, 7)
    assert Recipe(model).resolved(90).build((3, 32, 20), 2).state[1:] == (8, 5)


def test_what_a_family_does_not_take_is_refused():
    with pytest.raises(DataError, match=r"conv-opteq takes images.*rows of 64 numbers"):
        fit(X.reshape(90, 64), Y, "classification", small("conv-opteq"))
    with pytest.raises(DataError, match=r"images must be \(N, height, width\)"):
        fit(X[..., None, None], Y, "classification", small("conv-opteq"))
    with pytest.raises(ValueError, match=r"opteq takes no option of its own. Got margin"):
        Recipe("opteq", margin=0.5)
    with pytest.raises(ValueError, match=r"safeguarded training knows linear.*Got conv-opteq"):
        Recipe("conv-opteq", theorem="safeguarded")
    with pytest.raises(ValueError, match=r"augment needs a family of images. Got gaussian-relu"):
        Recipe(augment="flips")
    with pytest.raises(ValueError, match=r"augment must be one of 'shifts', 'flips'. Got 'turns'"):
        Recipe("conv-opteq", augment="flips,turns")
    with pytest.raises(ValueError, match=r"monotone takes rows.*Got \(1, 8, 8\)"):
        Recipe("monotone").resolved(9).build((1, 8, 8), 2)


def test_images_are_prepared_in_one_unit_and_exported_alike(fitted):
    found = fitted["conv-opteq"]
    A = found.preparation.apply(X)
    assert A.shape == (90, 1, 8, 8)
    assert float(A.double().mean()) == pytest.approx(0, abs=1e-5)
    assert float(A.double().std(correction=0)) == pytest.approx(1, rel=1e-5)
    whole = found.preparation.around(found.model)(torch.from_numpy(X.reshape(90, -1)))
    # Both solve in float32 to a relative residual of 1e-4, in batches that are laid out differently.
    assert np.allclose(whole.detach().numpy(), found.predict_proba(X), atol=1e-4)


def test_a_damaged_shape_of_images_is_found(fitted, tmp_path):
    made = fitted["conv-opteq"].preparation
    assert Preparation.load(_saved(made, tmp_path)).image == (8, 8)
    wrong = type(made)(**{**vars(made), "image": (8, 9)})
    with pytest.raises(ValueError, match=r"images of \(8, 9\) have means of shape \(64,\)"):
        Preparation.load(_saved(wrong, tmp_path))


def _saved(preparation, folder):
    preparation.save(folder / "p.safetensors")
    return folder / "p.safetensors"


# -- augmentation --------------------------------------------------------------------------------------------


def test_shifts_move_images_whole():
    x = torch.arange(2 * 81.0).reshape(2, 1, 9, 9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        moved = shifts(x, generator)
        for a, b in zip(x[:, 0], moved[:, 0], strict=True):
            dy, dx = divmod(int(b[4, 4] - a[4, 4]), 9)
            dy, dx = (dy + 1, dx - 9) if dx > REACH else (dy, dx)
            assert abs(dy) <= REACH
            assert abs(dx) <= REACH
            inner = slice(REACH, 9 - REACH)
            assert torch.equal(b[inner, inner], a.roll((-dy, -dx), (0, 1))[inner, inner])


def test_flips_exchange_left_and_right_of_some():
    x = torch.randn(64, 2, 3, 5, generator=torch.Generator().manual_seed(1))
    seen = flips(x, torch.Generator().manual_seed(0))
    flipped = [torch.equal(b, a.flip(2)) for a, b in zip(x, seen, strict=True)]
    kept = [torch.equal(b, a) for a, b in zip(x, seen, strict=True)]
    assert all(f != k for f, k in zip(flipped, kept, strict=True))
    assert 16 < sum(flipped) < 48


def test_augmented_training_is_another_and_repeats_itself():
    runs = [
        fit(X, Y, "classification", small("conv-opteq", augment=a))
        for a in ("shifts,flips", "shifts,flips", None)
    ]
    a, b, c = (found.predict_proba(X) for found in runs)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert runs[0].certificate.constants["F_start"] == runs[2].certificate.constants["F_start"]
    with pytest.raises(ValueError, match=r"augment is for images"):
        augmented(torch.zeros(3, 4), ["flips"], 0)
