"""A model's file: the same bytes for the same model, and no damage in it is believed."""

from __future__ import annotations

import json
import os

import pytest
import safetensors.torch
import torch

import equipoise as eq
from equipoise.files import Damaged

MODEL = eq.GaussianReLU(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def path(tmp_path):
    MODEL.save(tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def rewrite(path, **changes) -> None:
    """The file with other metadata; None leaves an entry out."""
    with safetensors.safe_open(path, "pt") as file:
        about = file.metadata() | changes
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, {k: v for k, v in about.items() if v is not None})


def config(**changes) -> str:
    return json.dumps(MODEL.config() | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"family": None},
        {"family": "NoSuchNetwork"},
        {"family": "AffineFamily"},
        {"family": "Monotone"},
        {"config": None},
        {"config": "{"},
        {"config": "[" * 100_000},
        {"config": "[]"},
        {"config": "{}"},
        {"config": config(wydth=4)},
        {"config": config(width=5)},
        {"config": config(width="4")},
        {"config": config(outputs=10**400)},
        {"config": config(outputs=-(10**12))},
    ],
    ids=lambda changes: next(f"{k}={str(v)[:30]}" for k, v in changes.items()),
)
def test_damaged_metadata_are_said_to_be_damaged(path, changes):
    rewrite(path, **changes)
    with pytest.raises(
        (Damaged, ValueError, TypeError), match=r"damaged|unknown family|configuration|must be"
    ):
        eq.load(path)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("GaussianReLU", {"width": 10**8}),
        ("GaussianReLU", {"inputs": 10**15}),
        ("OptEq", {"hidden": 10**9}),
        ("ConvOptEq", {"features": 10**9}),
        ("ConvMonotone", {"channels": 10**9}),
    ],
)
def test_nothing_larger_than_the_file_is_made(tmp_path, monkeypatch, family, changes):
    model = {
        "GaussianReLU": lambda: MODEL,
        "OptEq": lambda: eq.OptEq(inputs=3, state=4, hidden=5),
        "ConvOptEq": lambda: eq.ConvOptEq(inputs=(1, 8, 8), state=3, hidden=[4], outputs=2),
        "ConvMonotone": lambda: eq.ConvMonotone(inputs=(1, 8, 8), channels=3, outputs=2),
    }[family]()
    path = tmp_path / "m.safetensors"
    model.save(path)
    assert eq.load(path).config() == model.config()
    rewrite(path, config=json.dumps(model.config() | changes))
    with pytest.raises(Damaged, match="larger than the whole file"):
        eq.load(path)


def test_an_image_without_end_is_refused_at_once(tmp_path):
    """No tensor is of its size, and a bound on ‖W‖ would take a factorisation for each pixel."""
    path, model = tmp_path / "m.safetensors", eq.ConvOptEq(inputs=(1, 8, 8), state=3, hidden=[4], outputs=2)
    model.save(path)
    rewrite(path, config=json.dumps(model.config() | {"inputs": [1, 10**6, 10**6]}))
    with pytest.raises(ValueError, match="at most 16777216 pixels"):
        eq.load(path)


def test_an_option_that_does_not_fit_is_not_called_damage(path):
    with pytest.raises(TypeError, match="wydth"):
        eq.load(path, wydth=4)


def test_the_same_model_makes_the_same_bytes(path, tmp_path):
    for i in range(8):  # the order of a header's entries was left to chance
        MODEL.save(tmp_path / str(i))
        assert (tmp_path / str(i)).read_bytes() == path.read_bytes()
    assert torch.equal(eq.load(path).W, MODEL.W)


def test_the_file_reaches_the_disk_before_it_gets_its_name(path, monkeypatch):
    """And where it does not, the file that was there before stays, whole."""
    before, order = path.read_bytes(), []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda fd: order.append("sync") or fsync(fd))
    monkeypatch.setattr("os.replace", lambda a, b: order.append("name") or replace(a, b))
    MODEL.save(path)
    assert order == ["sync", "name", "sync"]

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        eq.GaussianReLU(3, 4).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["m.safetensors"]


def test_integers_in_place_of_weights_are_damage(path):
    with safetensors.safe_open(path, framework="pt") as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in list(file.keys())}
    name = next(n for n, t in tensors.items() if t.is_floating_point())
    wide = {8: torch.int64, 4: torch.int32}[tensors[name].itemsize]
    safetensors.torch.save_file(tensors | {name: tensors[name].view(wide)}, path, about)
    with pytest.raises(Damaged, match=f"{name} holds torch.int"):
        eq.load(path)
