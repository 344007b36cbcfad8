"""Digits on canvases, and a user's folder of images and masks."""

import numpy as np
import pytest

from equipoise.data import DataError, MissingData, load
from equipoise.data.segmentation import IGNORE, digit_canvases, read_masks_folder

Image = pytest.importorskip("PIL.Image")


def test_a_seed_determines_everything_and_the_parts_are_disjoint_draws():
    one, again = digit_canvases(6, seed=3), digit_canvases(6, seed=3)
    assert np.array_equal(one.x, again.x)
    assert np.array_equal(one.y, again.y)
    assert not np.array_equal(one.x, digit_canvases(6, seed=4).x)
    assert not np.array_equal(one.x, digit_canvases(6, seed=3, part="test").x)
    assert one.x.shape == one.y.shape == (6, 32, 32)
    assert one.x.dtype == np.uint8
    assert one.classes == ("background", *map(str, range(10)))
    assert "seed=3" in one.provenance.source


def test_masks_lie_where_the_ink_is():
    clean = digit_canvases(40, noise=0.0, digits=1, size=40)
    ink, paper = clean.x[clean.y > 0].astype(float), clean.x[clean.y == 0].astype(float)
    assert ink.mean() > 2 * paper.mean()
    for y in clean.y:
        (label,) = set(np.unique(y)) - {0}  # one digit, one class
        rows, columns = np.nonzero(y)
        assert np.ptp(rows) < 16
        assert np.ptp(columns) < 16
        assert 1 <= label <= 10
    assert not digit_canvases(3, digits=0).y.any()
    grey = digit_canvases(20, digits=0, noise=0.0).x / 255
    assert grey.max() <= 0.351
    noisy = digit_canvases(20, digits=0, noise=0.1).x / 255 - grey
    interior = noisy[grey > 0.2]  # not cut at 0
    assert interior.std() == pytest.approx(0.1, rel=0.1)


def test_a_pixel_belongs_to_a_digit_where_its_ink_is_above_a_third():
    origin, clean = load("digits"), digit_canvases(30, digits=1, part="test")
    cut = lambda y: y[np.ix_(y.any(axis=1), y.any(axis=0))]  # without the empty rows and columns
    shapes = [cut((3 * x > 16).repeat(2, axis=0).repeat(2, axis=1)) for x in origin.x_test]
    for y in clean.y:
        alike = [s for s, label in zip(shapes, origin.y_test, strict=True) if 1 + label == y.max()]
        assert any(np.array_equal(cut(y > 0), s) for s in alike)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 0}, "n must be an integer ≥ 1; got 0"),
        ({"n": 2.5}, "n must be an integer ≥ 1; got 2.5"),
        ({"size": 15}, "size must be at least 16"),
        ({"digits": -1}, "digits must be an integer ≥ 0; got -1"),
        ({"seed": -1}, "seed must be an integer ≥ 0; got -1"),
        ({"part": "both"}, "part must be 'train' or 'test'"),
        ({"noise": -1.0}, "noise must be ≥ 0 and finite; got -1.0"),
        ({"noise": np.inf}, "noise must be ≥ 0 and finite; got inf"),
        ({"noise": np.nan}, "noise must be ≥ 0 and finite; got nan"),
        ({"source": "synthetic-moons"}, "source must hold grey images"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, words):
    with pytest.raises(DataError, match=words):
        digit_canvases(**options)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    for name in ("b", "a"):
        Image.fromarray(rng.integers(256, size=(5, 7, 3), dtype=np.uint8)).save(
            tmp_path / f"images/{name}.png"
        )
        mask = rng.integers(3, size=(5, 7), dtype=np.uint8)
        mask[0, 0] = IGNORE
        Image.fromarray(mask).save(tmp_path / f"masks/{name}.png")
    return tmp_path


def test_a_folder_of_images_and_masks(folder):
    found = read_masks_folder(folder)
    assert found.x.shape == (2, 5, 7, 3)
    assert found.y.shape == (2, 5, 7)
    assert found.places == ("a", "b")
    assert found.classes == ("0", "1", "2")
    assert (found.y[:, 0, 0] == IGNORE).all()
    for name, x, y in zip(found.places, found.x, found.y, strict=True):
        assert np.array_equal(x, np.array(Image.open(folder / f"images/{name}.png")))
        assert np.array_equal(y, np.array(Image.open(folder / f"masks/{name}.png")))
    assert len(found.provenance.files) == 4
    assert read_masks_folder(folder, ["road", "car", "sky"]).classes == ("road", "car", "sky")
    palette = Image.fromarray(found.y[0].astype(np.uint8)).convert("P")
    palette.putdata(found.y[0].flatten().tolist())
    palette.save(folder / "masks/a.png")
    assert np.array_equal(read_masks_folder(folder).y, found.y)


def test_every_problem_of_a_folder_is_named(folder):
    Image.fromarray(np.zeros((5, 6), np.uint8)).save(folder / "masks/a.png")
    (folder / "masks/b.png").rename(folder / "masks/c.png")
    Image.fromarray(np.zeros((5, 7, 3), np.uint8)).save(folder / "images/d.png")
    Image.fromarray(np.zeros((5, 7, 3), np.uint8)).save(folder / "masks/d.png")
    with pytest.raises(DataError) as caught:
        read_masks_folder(folder)
    text = " ".join(caught.value.problems)
    for words in (
        "images/b.png has no mask masks/b.png",
        "masks/c.png has no image",
        "a: the mask is 5 × 6, the image 5 × 7",
        "d: the mask has the mode RGB",
    ):
        assert words in text
    with pytest.raises(MissingData, match="images"):
        read_masks_folder(folder / "images")


def test_two_files_of_one_name_are_refused(folder):
    Image.fromarray(np.zeros((5, 7, 3), np.uint8)).save(folder / "images/a.bmp")
    with pytest.raises(DataError, match=r"images/a\.bmp and images/a\.png share a name"):
        read_masks_folder(folder)


def test_classes_beyond_those_named_and_broken_files(folder):
    with pytest.raises(DataError, match="class 2, and 2 classes were named"):
        read_masks_folder(folder, ["road", "car"])
    with pytest.raises(DataError, match="classes must have a name of its own, and car came twice"):
        read_masks_folder(folder, ["car", "road", "car"])
    (folder / "masks/a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="a: the mask cannot be read"):
        read_masks_folder(folder)


def test_masks_without_a_class_name_none(folder):
    for name in ("a", "b"):
        Image.fromarray(np.full((5, 7), IGNORE, np.uint8)).save(folder / f"masks/{name}.png")
    with pytest.raises(DataError, match="no pixel has a class, all are 255"):
        read_masks_folder(folder)
    assert read_masks_folder(folder, ["road"]).classes == ("road",)


def test_files_that_are_no_image_or_mask_are_named_and_hidden_ones_passed_over(folder):
    (folder / "images/.DS_Store").write_bytes(b"")
    assert read_masks_folder(folder).places == ("a", "b")
    Image.fromarray(np.zeros((5, 7), np.uint8)).save(folder / "masks/b.jpg")
    (folder / "images/notes.txt").write_text("notes")
    (folder / "images/more.png").mkdir()
    with pytest.raises(DataError) as caught:
        read_masks_folder(folder)
    assert [problem.partition(" is not an image")[0] for problem in caught.value.problems] == [
        "images/more.png",
        "images/notes.txt",
        "masks/b.jpg",
    ]


def test_images_that_do_not_fit_into_memory_are_refused_after_the_first(folder, monkeypatch):
    need = 2 * 2 * 5 * 7 * (3 + 8)  # two images with their masks, as read and as stacked
    monkeypatch.setattr("equipoise.memory.available", lambda: need - 1.0)
    with pytest.raises(DataError, match=r", 2 images, is too large to be read here: it needs 1\.54 kB"):
        read_masks_folder(folder)
    monkeypatch.setattr("equipoise.memory.available", lambda: float(need))
    assert len(read_masks_folder(folder)) == 2
