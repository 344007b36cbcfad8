"""What a file claims is looked at before it is read: too much is refused, and only wanted rows are held."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from equipoise.data import DataError, read_table
from equipoise.data.archive import read_headers, read_npz, safe_name, unsafe

N, D = 400, 30
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, D))
Y = GENERATOR.normal(size=N)
WANTED = np.array([0, 3, 7, 250, N - 1])


def csv(path, X=X, y=Y):
    lines = [",".join([*(f"c{j}" for j in range(X.shape[1])), "y"])]
    lines += [",".join(map(repr, [*row, target])) for row, target in zip(X.tolist(), y.tolist(), strict=True)]
    path.write_text("\n\n".join(lines))
    return path


def parquet(path):
    pyarrow = pytest.importorskip("pyarrow")
    columns = {f"c{j}": X[:, j] for j in range(D)} | {"y": Y}
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path, row_group_size=90)
    return path


def npz(path, order="C", compressed=True):
    (np.savez_compressed if compressed else np.savez)(path, x=np.asarray(X, order=order), y=Y)
    return path


FORMATS = {
    "csv": lambda tmp_path: csv(tmp_path / "t.csv"),
    "parquet": lambda tmp_path: parquet(tmp_path / "t.parquet"),
    "npz": lambda tmp_path: npz(tmp_path / "t.npz"),
    "npz by columns": lambda tmp_path: npz(tmp_path / "t.npz", order="F", compressed=False),
}
EACH = pytest.mark.parametrize("form", FORMATS)


def untouchable(monkeypatch):
    """Let every reader of features fail the test."""
    monkeypatch.setattr("equipoise.data.tables.read_cells", lambda *_: pytest.fail("was read"))
    whole = __import__("equipoise.data.tables", fromlist=["read_member"]).read_member
    monkeypatch.setattr(
        "equipoise.data.tables.read_member",
        lambda path, name, *rest: whole(path, name, *rest) if name == "y" else pytest.fail("was read"),
    )


@EACH
def test_a_table_that_does_not_fit_into_memory_is_refused_before_it_is_read(form, tmp_path, monkeypatch):
    path = FORMATS[form](tmp_path)
    monkeypatch.setattr("equipoise.memory.available", lambda: 16.0 * N * D - 1)
    monkeypatch.setattr("equipoise.memory.disk", lambda: 0.0)
    untouchable(monkeypatch)
    with pytest.raises(
        DataError,
        match=rf"{path.name}, of which {N} rows of {D} numbers are wanted, is too large to be read here: it "
        r"needs 192 kB of memory; 192 kB can be had\. Train on some of the rows \(--rows\)",
    ):
        read_table(path)


@EACH
def test_only_the_chosen_rows_are_read(form, tmp_path, monkeypatch):
    path = FORMATS[form](tmp_path)
    monkeypatch.setattr("equipoise.memory.available", lambda: 16.0 * N * D - 1)  # not the whole of it
    monkeypatch.setattr("equipoise.memory.disk", lambda: 0.0)
    seen = []

    def choose(targets, columns):
        seen.append((targets.y.tolist(), columns))
        return WANTED

    got = read_table(path, choose=choose)
    assert seen == [(Y.tolist(), D)]
    assert np.array_equal(got.X, X[WANTED])
    assert np.array_equal(got.y, Y[WANTED])
    line = {"csv": lambda i: f"line {3 + 2 * i}"}.get(form, lambda i: f"row {i}")
    assert got.places == tuple(line(i) for i in WANTED)
    monkeypatch.undo()
    everything = read_table(path)
    assert np.array_equal(everything.X, X)
    assert np.array_equal(read_table(path, choose=lambda *_: np.arange(N)).X, X)


def test_the_memory_is_that_of_the_chosen_rows(tmp_path, monkeypatch):
    """The table is 800 kB: with the pieces it is read by and all targets, far less is held."""
    monkeypatch.setattr("equipoise.data.archive._PIECE", 1 << 12)
    monkeypatch.setattr("equipoise.data.delimited._PIECE", 1 << 12)
    wide = GENERATOR.normal(size=(1000, 100))
    targets = np.arange(1000.0)
    np.savez_compressed(tmp_path / "w.npz", x=wide, y=targets)
    for path in (tmp_path / "w.npz", csv(tmp_path / "w.csv", wide, targets)):
        read_table(path, kind="regression", choose=lambda *_: WANTED)
        tracemalloc.start()
        try:
            read_table(path, kind="regression", choose=lambda *_: WANTED)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < wide.nbytes / 2, path.name


def test_rows_that_are_not_chosen_may_be_anything_and_those_that_are_have_their_own_names(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n1,2,0.5\nx,3,1.5\n1,,2.5\n4,3,3.5\n")
    got = read_table(path, choose=lambda *_: np.array([0, 3]))
    assert got.X.tolist() == [[1, 2], [4, 3]]
    with pytest.raises(DataError, match=r"column 'a': not a number in line 3 \('x'\)"):
        read_table(path, choose=lambda *_: np.array([0, 1]))
    path.write_text("a,b,y\n1,2,0.5\n1,3,1.5\n2,,\n4,3,3.5\n")
    got = read_table(path, choose=lambda *_: np.array([0, 1]))
    assert got.dropped == {"a": "constant (1 in every row)"}  # there
    assert got.X.tolist() == [[2], [3]]


def test_a_target_that_cannot_be_used_is_named_with_all_that_is_wrong(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n1,2,0.5\nz,3,1.5\n2,5,oh\n4,3,3.5\n")
    never = lambda *_: pytest.fail("nothing can be chosen")
    with pytest.raises(DataError) as error:
        read_table(path, choose=never)
    assert error.value.problems == (
        "column 'a': not a number in line 3 ('z'); --categorical a would take every value as a category",
        "target 'y': not a number in line 4 ('oh')",
    )
    monkeypatch.setattr("equipoise.memory.available", lambda: 40.0)
    monkeypatch.setattr("equipoise.memory.disk", lambda: 0.0)
    with pytest.raises(DataError, match=r"target 'y': not a number in line 4 \('oh'\)"):
        read_table(path, choose=never)


def test_images_that_are_not_chosen_are_not_opened(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    for i, name in enumerate(("cats/0.png", "cats/1.png", "dogs/0.png", "dogs/1.png")):
        path = tmp_path / "pets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((3, 2), i, np.uint8)).save(path)
    (tmp_path / "pets" / "dogs" / "0.png").write_bytes(b"junk")
    got = read_table(
        tmp_path / "pets", choose=lambda found, columns: np.array([1, 3]) if columns == 6 else None
    )
    assert got.X[:, 0].tolist() == [1, 3]
    assert got.places == ("image cats/1.png", "image dogs/1.png")
    monkeypatch.setattr("equipoise.memory.available", lambda: 107.0)
    monkeypatch.setattr("equipoise.memory.disk", lambda: 0.0)
    with pytest.raises(DataError, match="pets, 2 images, is too large to be read here: it needs 108 bytes"):
        read_table(tmp_path / "pets", choose=lambda *_: np.array([1, 3]))


# -- .npz -------------------------------------------------------------------------------------------


def member(array, **changes) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array) | changes)
    return file.getvalue() + array.tobytes()


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize("shape", [(10**9, 10**6), (3,), (4, 3), (2, 2)])
def test_a_shape_that_is_not_that_of_the_content_is_refused_without_allocating(shape, tmp_path):
    path = archive(tmp_path / "a.npz", **{"x.npy": member(np.zeros((3, 2)), shape=shape)})
    with pytest.raises(DataError, match=r"x claims the shape .* and has another length"):
        read_headers(path)


def test_an_archive_that_does_not_fit_is_refused(tmp_path, monkeypatch):
    path = npz(tmp_path / "a.npz")
    monkeypatch.setattr("equipoise.memory.available", lambda: 8.0 * N * (D + 1) - 1)
    monkeypatch.setattr("equipoise.memory.disk", lambda: 0.0)
    with pytest.raises(DataError, match=r"a\.npz is too large to be read here: it needs 99.2 kB of memory"):
        read_npz(path)
    monkeypatch.setattr("equipoise.memory.available", lambda: 8.0 * N * (D + 1))
    monkeypatch.setattr("equipoise.memory.disk", lambda: 0.0)
    assert np.array_equal(read_npz(path)["x"], X)


def test_a_changed_bit_is_noticed_though_its_row_is_not_wanted(tmp_path):
    path = npz(tmp_path / "a.npz", compressed=False)
    content = bytearray(path.read_bytes())
    content[content.index(X[200].tobytes()) + 6] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="Bad CRC-32"):
        read_table(path, choose=lambda *_: WANTED)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "array",
    [
        np.float32(3.5),
        np.zeros((0, 3)),
        np.arange(24).reshape(4, 3, 2),
        np.array(["a", "bcd"]),
        np.zeros((3, 0)),
        np.array([True, False]),
        np.arange(4, dtype=">i2"),
    ],
    ids=str,
)
def test_arrays_are_read_as_numpy_reads_them(array, order, tmp_path):
    np.savez(tmp_path / "a.npz", one=np.asarray(array, order=order), two=np.arange(3))
    got, known = read_npz(tmp_path / "a.npz"), np.load(tmp_path / "a.npz")
    assert got.keys() == set(known.files)
    for name, expected in known.items():
        assert got[name].dtype == expected.dtype
        assert np.array_equal(got[name], expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../x.npy", r"'\.\./x' is a path that may lead out of a directory"),
        ("/etc/x.npy", "'/etc/x' is a path"),
        ("a/../../x.npy", "is a path"),
        ("..\\x.npy", "is a path"),
        ("C:x.npy", "is a path"),
        (".npy", "'' is a path"),
        ("x\x1b[2J.npy", r"'x\\x1b\[2J' holds a control character"),
        ("x\u202e.npy", r"'x\\u202e' holds a control character"),
        ("x.txt", r"its member 'x\.txt' is not an array"),
    ],
)
def test_names_that_lead_elsewhere_are_refused_in_words(name, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_npz(archive(tmp_path / "a.npz", **{name: member(np.zeros(3))}))


def test_two_arrays_of_one_name_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", member(np.zeros(3)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("x.npy", member(np.ones(3)))
    with pytest.raises(DataError, match="two of its arrays are called 'x'"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("p(cat)", "p(cat)"),
        ("p(χ α)", "p(χ α)"),
        ("p(../../x)", "p(..%2F..%2Fx)"),
        ("..", "%2E."),
        ("c:\\x", "c%3A%5Cx"),
        ("100%", "100%25"),
        ("a\x00b\x1b", "a%00b%1B"),
        ("\u202ex", "%E2%80%AEx"),
        ("\udcff", "%ED%B3%BF"),
    ],
)
def test_a_name_is_made_safe_and_stays_its_own(name, safe):
    assert safe_name(name) == safe
    assert unsafe(safe) is None
    assert not set(safe) & set("/\\:\0")


# -- text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
def test_text_is_checked_in_pieces_of_any_size(size, tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.data.delimited._PIECE", size)
    path = tmp_path / "t.csv"
    path.write_text("ä,€,y\n1,2,0.5\n2,5,1.5\n3,8,𝜎\n", encoding="utf-8-sig")
    with pytest.raises(DataError, match=r"line 4 \('𝜎'\)"):
        read_table(path, kind="regression")
    path.write_bytes("a,€,y\n1,2,é\n".encode() + b"2,5,\xe9\n3,4,5\n")
    with pytest.raises(DataError, match="line 3 holds the byte e9"):
        read_table(path)
    path.write_bytes(b"a,y\n1,2\n2," + b"\xe2\x82")
    with pytest.raises(DataError, match="line 3 holds the byte e2"):
        read_table(path)
    path.write_bytes(b"a,y\n1,2\n2,\x1b3\n")
    with pytest.raises(DataError, match="byte 10 is 1b"):
        read_table(path)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = csv(tmp_path / "t.csv")

    def choose(*_):
        path.write_text("\n".join(path.read_text().split("\n")[:20]))
        return np.arange(N)

    with pytest.raises(DataError, match="has changed while it was read"):
        read_table(path, choose=choose)


@pytest.mark.parametrize("delimiter", [None, ";"])
def test_a_file_that_is_far_too_large_is_refused_by_its_size(delimiter, tmp_path, monkeypatch):
    """1 % of the file is looked at, whose cells are as long as those of the rest."""
    path = tmp_path / "t.csv"
    path.write_text(
        "a,b,y\n".replace(",", delimiter or ",") + "1.25,2.5,0\n".replace(",", delimiter or ",") * 1000
    )
    monkeypatch.setattr("equipoise.data.delimited._PIECE", 110)
    monkeypatch.setattr("equipoise.data.delimited._require_text", lambda _: pytest.fail("went on to read"))
    monkeypatch.setattr("equipoise.memory.available", lambda: 8 * 2900.0)
    monkeypatch.setattr("equipoise.memory.disk", lambda: 0.0)
    with pytest.raises(DataError, match=r"t\.csv, of about 3\S*e\+03 numbers, is too large"):
        read_table(path, delimiter=delimiter)


def test_targets_that_are_too_many_are_refused_while_they_are_counted(tmp_path, monkeypatch):
    path = csv(tmp_path / "t.csv")
    monkeypatch.setattr("equipoise.data.delimited._MANY", 100)
    left = iter([8000.0, 8000.0, 7999.0])
    monkeypatch.setattr("equipoise.memory.available", lambda: next(left))
    monkeypatch.setattr("equipoise.memory.disk", lambda: 0.0)
    with pytest.raises(DataError, match=r"the targets of t\.csv is too large to be read here"):
        read_table(path, choose=lambda *_: WANTED)
