"""Tables that are no text: NPZ, Parquet, folders of images."""

import sys
import warnings

import numpy as np
import pytest

from equipoise.data import DataError, read_table
from equipoise.data.columns import ColumnOptions

# -- NPZ ------------------------------------------------------------------------------------------

X3 = np.array([[1.0, 2], [3, 4], [5, 7]])


def npz(tmp_path, **arrays):
    path = tmp_path / "arrays.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("keys", [("x", "y"), ("X", "y"), ("x_train", "y_train"), ("X_train", "y_train")])
def test_npz(keys, tmp_path):
    y = np.array([0.1, 0.2, 0.7], np.float32)
    got = read_table(npz(tmp_path, **{keys[0]: X3, keys[1]: y}))
    assert np.array_equal(got.X, X3)
    assert np.array_equal(got.y, y.astype(np.float64))  # float32 values, not their shortest decimals
    assert got.target == keys[1]
    assert got.features == ("x0", "x1")


def test_npz_parts_and_kinds(tmp_path):
    path = npz(tmp_path, x_train=X3, y_train=np.array([1, 0, 1]), x_test=X3[:2], y_test=np.array(["u", "v"]))
    assert read_table(path).classes == ("0", "1")
    test = read_table(path, "y_test")
    assert len(test.X) == 2
    assert test.classes == ("u", "v")
    assert read_table(path, labelled=False).y is None
    booleans = read_table(npz(tmp_path, x=X3, y=np.array([True, False, True])))
    assert (booleans.classes, booleans.y.tolist()) == (("0", "1"), [1, 0, 1])
    bytes_ = read_table(npz(tmp_path, x=X3, y=np.array([b"q", b"p", b"q"])))
    assert (bytes_.classes, bytes_.y.tolist()) == (("p", "q"), [1, 0, 1])
    several = read_table(npz(tmp_path, x=X3, y=X3 + 0.5))
    assert (several.kind, several.y.shape) == ("regression", (3, 2))
    images = read_table(npz(tmp_path, x=np.arange(24).reshape(3, 2, 4) // 3, y=np.array([0, 1, 1])))
    assert images.image_shape == (2, 4)
    assert images.X.shape == (3, 8)
    constant_pixel = np.arange(12).reshape(3, 2, 2)
    constant_pixel[:, 0, 0] = 0
    assert read_table(npz(tmp_path, x=constant_pixel, y=np.array([0, 1, 1]))).X[:, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        (
            {"a": X3},
            {},
            "must hold x and y or X and y or x_train and y_train or .*; it holds a",
        ),
        ({"x": X3}, {}, "it holds x"),
        ({"x": X3, "y": np.zeros(3)}, {"target": "Z"}, "no array is called 'Z'"),
        ({"x": X3, "y": np.arange(2)}, {}, r"one target for each row of X \(3\)"),
        ({"x": X3[:, 0], "y": np.arange(3)}, {}, r"\(N, d\) or images; got float64, \(3,\)"),
        ({"x": X3 * 1j, "y": np.arange(3)}, {}, "real numbers"),
        ({"x": np.array([["a"]]), "y": np.arange(1)}, {}, "real numbers"),
        ({"x": X3, "y": np.zeros((3, 1, 1))}, {}, r"y must be \(N,\) or \(N, k\)"),
        ({"x": X3, "y": X3}, {"kind": "classification"}, r"classes must be of shape \(N,\)"),
        ({"x": X3, "y": np.array([0.5, np.nan, 1])}, {}, "target 'y': missing value in row 1"),
        (
            {"x": np.array([[1, np.inf], [2, 3]]), "y": np.array([0.5, 1])},
            {},
            "column 'x1': infinite value in row 0",
        ),
        (
            {"x": X3, "y": np.arange(3)},
            {"options": ColumnOptions(drop=("x0",))},
            "has no named columns: leave out --drop",
        ),
        ({"x": X3, "y": np.array([{}, 1, 2], dtype=object)}, {}, "of plain arrays"),
    ],
)
def test_bad_npz(arrays, options, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_table(npz(tmp_path, **arrays), **options)


def test_npz_junk(tmp_path):
    path = npz(tmp_path, x=X3, y=np.arange(3))
    for content in (b"junk", path.read_bytes()[:100], b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match="of plain arrays"):
            read_table(path)
    np.save(tmp_path / "single.npy", X3)
    path.write_bytes((tmp_path / "single.npy").read_bytes())
    with pytest.raises(DataError, match="of plain arrays"):
        read_table(path)


# -- Parquet --------------------------------------------------------------------------------------


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    columns = {"a": [1, 2, 3], "b": [0.1, 0.2, 0.7], "flag": [True, False, True], "y": ["u", "v", "u"]}
    parquet.write_table(pyarrow.table(columns), path)
    got = read_table(path)
    assert got.X.tolist() == [[1, 0.1, 1], [2, 0.2, 0], [3, 0.7, 1]]
    assert got.classes == ("u", "v")
    columns["a"][1] = None
    columns["b"][2] = float("nan")
    parquet.write_table(pyarrow.table(columns), path)
    got = read_table(path)
    assert np.isnan(got.X).tolist() == [[False] * 3, [True, False, False], [False, True, False]]
    path.write_bytes(b"junk")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_table(path)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "t.parquet").touch()
    with pytest.raises(ImportError, match=r"reading Parquet requires the package pyarrow.*equipoise\[data\]"):
        read_table(tmp_path / "t.parquet")


# -- images ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """cats/0.png, cats/1.png, dogs/0.png: grey, 3 high and 2 wide."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path / "pets"
    for i, name in enumerate(("cats/0.png", "cats/1.png", "dogs/0.png")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.arange(6, dtype=np.uint8).reshape(3, 2) + 10 * i).save(path)
    return root


def test_image_folder(folder):
    (folder / ".hidden").touch()
    got = read_table(folder)
    assert got.X.tolist() == [[10 * i + j for j in range(6)] for i in range(3)]
    assert got.y.tolist() == [0, 0, 1]
    assert got.classes == ("cats", "dogs")
    assert got.image_shape == (3, 2)
    assert got.places[2] == "image dogs/0.png"
    assert read_table(folder, labelled=False).y is None


def test_colour_image_folder(folder):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 2, 3), dtype=np.uint8)
    for path, values in zip(sorted(folder.rglob("*.png")), pixels, strict=True):
        image.fromarray(values).save(path)
    got = read_table(folder)
    assert got.image_shape == (3, 2, 3)
    assert np.array_equal(got.X.reshape(pixels.shape), pixels)


def test_bad_image_folders(folder):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / "dogs" / "1.png")
    image.fromarray(np.zeros((3, 2, 4), np.uint8)).save(folder / "dogs" / "2.png")
    (folder / "dogs" / "3.png").write_bytes(b"junk")
    (folder / "dogs" / "4.txt").touch()
    (folder / "5.png").write_bytes((folder / "dogs" / "0.png").read_bytes())
    with pytest.raises(DataError) as error:
        read_table(folder)
    messages = dict(problem.split(" ", 1) for problem in error.value.problems)
    assert messages.keys() == {"5.png", "dogs/1.png", "dogs/2.png", "dogs/3.png", "dogs/4.txt"}
    assert messages["dogs/1.png"] == "is 4 × 4; the images before it are 3 × 2"
    assert messages["dogs/2.png"].startswith("has the mode RGBA")
    assert messages["dogs/3.png"].startswith("cannot be read")
    assert messages["dogs/4.txt"].startswith("is not an image")
    assert messages["5.png"].startswith("must lie in the sub-folder of its class")
    with pytest.raises(DataError, match="leave out --target and --kind"):
        read_table(folder, "cats")


def test_a_decompression_bomb_is_refused(folder, monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 4)  # Pillow warns above, and raises above twice as much
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DataError, match=r"cats/0\.png cannot be read: .*decompression bomb"):
            read_table(folder)


def test_image_folders_with_too_little(folder, tmp_path):
    (folder / "dogs" / "0.png").unlink()
    with pytest.raises(DataError, match="one class only"):
        read_table(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no image found as empty/<class>/<image>"):
        read_table(tmp_path / "empty")


def test_images_without_pillow(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match="requires the package pillow"):
        read_table(folder)
