"""Every kind of bad table, and the good ones."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data import DataError, DataWarning, MissingData, Table, read_table, validate

GOOD = "age,height,price\n1,2.5,10.5\n2,3.5,11.5\n3,1.5,9.25\n4,0.5,8.0\n"


AS_WORDS = "; --categorical {} would take every value as a category"


# -- good tables ----------------------------------------------------------------------------------


def test_csv(table):
    got = table(GOOD)
    assert got.X.tolist() == [[1, 2.5], [2, 3.5], [3, 1.5], [4, 0.5]]
    assert got.y.tolist() == [10.5, 11.5, 9.25, 8.0]
    assert got.X.dtype == got.y.dtype == np.float64
    assert got.features == ("age", "height")
    assert (got.target, got.kind, got.classes) == ("price", "regression", ())
    assert got.places == ("line 2", "line 3", "line 4", "line 5")


def test_target_in_the_middle(table):
    got = table(GOOD, "height")
    assert got.features == ("age", "price")
    assert got.y.tolist() == [2.5, 3.5, 1.5, 0.5]


def test_dialects(table):
    expected = table(GOOD).X
    for content, options in (
        (GOOD.replace(",", ";"), {"delimiter": ";"}),
        (GOOD.replace(",", "\t"), {"name": "table.tsv"}),
        (GOOD.replace(",", "|"), {"name": "table.txt", "delimiter": "|"}),
        ("\ufeff" + GOOD, {}),
        (GOOD.replace("\n", "\r\n"), {}),
        (GOOD.replace("\n", "\r"), {}),
        (GOOD.replace(",", " , "), {}),
        (GOOD.replace("\n", "\n\n") + "\n", {}),
        (GOOD.replace("2.5", '"2.5"').replace("age", '"age"'), {}),
        (GOOD.rstrip("\n"), {}),
    ):
        got = table(content, **options)
        assert np.array_equal(got.X, expected)
        assert got.features == ("age", "height")


def test_line_numbers_count_lines_of_the_file(table):
    content = 'a,"two\nlines",y\n\n1,2,0.5\n2,x,0.25\n'
    with pytest.raises(DataError, match=r"column 'two\\nlines': not a number in line 5 \('x'\)"):
        table(content)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=40)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=3, max_size=8, unique_by=lambda row: row[0]))
def test_numbers_survive_a_csv_file_exactly(tmp_path_factory, rows):
    X = np.array(rows)
    if (X[0] == X).all(axis=0).any() or len({row[0] + 0.0 for row in rows}) < len(rows):
        return
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_text("a,b,y\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows))
    got = read_table(path, kind="regression")
    assert np.array_equal(got.X, X[:, :2])
    assert np.array_equal(got.y, X[:, 2])


def test_without_targets(table):
    got = table("a,b\n1,5\n", labelled=False)
    assert got.X.tolist() == [[1, 5]]
    assert (got.y, got.target, got.kind) == (None, None, None)
    assert np.isnan(table("a,b\n1,\n", labelled=False).X).tolist() == [[False, True]]
    with pytest.raises(DataError, match="labelled=False takes no target and no kind"):
        table(GOOD, "price", labelled=False)


# -- regression or classification -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        ("0 1 1 0", "classification", ("0", "1")),
        ("0 1 0", "classification", ("0", "1")),
        ("-1 1 1", "classification", ("-1", "1")),
        ("1.0 0.0 1.0", "classification", ("0", "1")),
        ("3 10 3 10 2 2", "classification", ("2", "3", "10")),
        ("1 2 3 4", "regression", ()),
        ("1 2 3 3 2", "regression", ()),
        ("0.5 1 1 0", "regression", ()),
        (" ".join(map(str, [*range(20), *range(20)])), "classification", tuple(map(str, range(20)))),
        (" ".join(map(str, [*range(21), *range(21)])), "regression", ()),
        ("cat dog cat dog", "classification", ("cat", "dog")),
        ("b a b", "classification", ("a", "b")),
        ("a b c 1 a b c 1", "classification", ("1", "a", "b", "c")),
        ("true false true", "classification", ("false", "true")),
    ],
)
def test_kind(values, kind, classes, table):
    values = values.split()
    got = table("x,y\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values)))
    assert got.kind == kind
    assert got.classes == classes
    if kind == "classification":
        assert got.y.dtype == np.int64
        text = [classes[i] for i in got.y]
        assert [float(t) for t in text] == [float(v) for v in values] if "." in values[0] else text == values


def test_kind_can_be_given(table):
    assert table("x,y\n1,0\n2,1\n3,0\n", kind="regression").y.tolist() == [0.0, 1.0, 0.0]
    got = table("x,y\n1,0.5\n2,2\n3,10\n", kind="classification")
    assert got.classes == ("0.5", "2", "10")
    assert got.y.tolist() == [0, 1, 2]
    names = table("x,y\n1,ann\n2,bob\n3,eve\n", kind="classification")
    assert names.classes == ("ann", "bob", "eve")
    with pytest.raises(DataError, match="--kind must be regression or classification; got 'ranking'"):
        table(GOOD, kind="ranking")


# -- bad CSV files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n \n\n", "is empty"),
        ("a,b,y\n", "a header and no data rows"),
        ("a,y\n1,0.5\n", "at least 2 data rows are required; got 1"),
        ("1,2,3\n4,5,6\n", "line 1 must be a header that names the columns; it holds numbers: 1, 2, 3"),
        ("1,2,nan\n4,5,6\n", "line 1 must be a header"),
        ("a,a,y\n1,2,3\n2,3,4\n", "line 1: columns 1 and 2 are both called 'a'"),
        (",a,y\n0,1,2\n1,2,3\n", r"line 1: column 1 has no name \(an index column"),
        ("a;b;y\n1;2;0.5\n2;1;0.75\n", "3 when divided at a semicolon: pass --delimiter ';'"),
        ("a;b;y\n1,5;2;0.5\n2,5;1;0.75\n", "pass --delimiter ';'"),
        ("a\tb\ty\n1\t2\t3\n", r"divided at a tab: pass --delimiter '\\t'"),
        ("a b y\n1 2 3\n4 5 6\n", "divided at a space: pass --delimiter ' '"),
        ("only column\n1\n2\n", "a feature and a target are required; the only column is 'only column'"),
        ("a,b,y\n1,2,0.5\n1,2\n3,4,0.25\n", "2 cells instead of the header's 3 in line 3"),
        (
            "a,b,y\n1,2,0.5\n1,2,3,4\n5,6,7,8\n3,4,0.25\n",
            "4 cells instead of the header's 3 in line 3, line 4",
        ),
        ("a,b,y\n1,2,0.5\nx,3,0.25\n3,4,0.75\n", r"column 'a': not a number in line 3 \('x'\)"),
        ("a,b,y\n1,2,0.5\n1_000,3,0.25\n3,4,0.75\n", r"not a number in line 3 \('1_000'\)"),
        ("a,b,y\n1,2,0.5\ninf,3,0.25\n3,-1e999,0.75\n", "column 'a': infinite value in line 3"),
        ("a,b,y\n1,2,0.5\ninf,3,0.25\n3,-1e999,0.75\n", "column 'b': infinite value in line 4"),
        ("a,b,y\n,7,0.5\n,7,0.25\n,7,0.75\n", r"no column is left.*'b' is constant \(7 in every row\)"),
        ("a,b,y\n1,2,0.5\n2,3,0.5\n3,4,0.5\n", r"target 'y' is constant \(0.5 in every row\)"),
        ("a,y\n1,0.5\n2,cheap\n3,0.75\n", r"target 'y': not a number in line 3 \('cheap'\)"),
        ("a,y\n1,0.5\n2,\n3,0.75\n", "target 'y': missing value in line 3"),
        ("a,y\n1,0.5\n2,inf\n3,0.75\n", "target 'y': infinite value in line 3"),
        (
            "a,y\n1,u\n2,v\n3,w\n4,x\n",
            r"target 'y' holds text, first in line 2 \('u'\).*--kind classification",
        ),
        ("a,y\n1,cat\n2,cat\n3,cat\n", r"one class only \('cat' in every row\)"),
        ("a,y\n1,1\n2,1\n3,1\n", r"one class only \('1' in every row\)"),
        ("a,y\n1,cat\n2,\n3,dog\n4,cat\n", "target 'y': missing value in line 3"),
        ("a,y\n1,\n2,\n3,\n", "target 'y': missing value in line 2, line 3, line 4"),
        ('a,y\n1,2\n"3,4\n5,6\n', "line 3 is malformed"),
        (b"a,y\n1,2\n\xe9,3\n", "must be UTF-8 text; line 3 holds the byte e9"),
        ("a,y\n1,2\n".encode("utf-16"), "it is UTF-16"),
        (bytes(range(256)), "it is a binary file"),
        (b"a,y\n1,\x002\n", "byte 6 is 00: it is a binary file"),
        (b"PK\x03\x04" + b"x" * 50, "an Excel workbook"),
        (b"\x1f\x8b" + b"x" * 50, "it is a gzip file"),
    ],
)
def test_bad_csv(content, message, table):
    with pytest.raises(DataError, match=message) as error:
        table(content)
    assert str(error.value).startswith("table.csv")


def test_all_problems_are_listed_at_once(table):
    content = "a,b,c,y\n1,2,7,0.5\n,3,7,0.25\n3,x,7,oops\n4,5,7\n5,inf,7,0.75\n"
    with pytest.raises(DataError) as error:
        table(content)
    assert list(error.value.problems) == [
        "3 cells instead of the header's 4 in line 5",
        f"column 'b': not a number in line 4 ('x'){AS_WORDS.format('b')}",
        "column 'b': infinite value in line 6",
        "target 'y': not a number in line 4 ('oops')",
    ]
    assert str(error.value).startswith("table.csv: 4 problems\n  - 3 cells")


def test_a_long_list_is_cut(table):
    names = [f"c{j}" for j in range(15)]
    rows = [",".join([x] * 15 + [y]) for x, y in (("1", "0.5"), ("inf", "0.25"), ("2", "0.75"))]
    with pytest.raises(DataError, match="15 problems") as error:
        table("\n".join([",".join([*names, "y"]), *rows]))
    assert len(error.value.problems) == 15
    assert "c9" in str(error.value)
    assert "c10" not in str(error.value)
    assert "and 5 more" in str(error.value)
    missing = "a,y\n1,0.5\n" + "".join(f"{i}.5,\n" for i in range(40))
    with pytest.raises(DataError, match="line 3, line 4, line 5 and 37 more"):
        table(missing)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("Price", r"no column is called 'Price'; did you mean 'price'\? Its columns: age, height, price"),
        ("heigth", "did you mean 'height'"),
        ("zzz", r"no column is called 'zzz'\. Its columns: age"),
    ],
)
def test_target_not_found(target, message, table):
    with pytest.raises(DataError, match=message):
        table(GOOD, target)


def test_wrong_options(table, tmp_path):
    with pytest.raises(MissingData, match="no such file or folder"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(DataError, match=r"got '\.xlsx'"):
        table(b"", name="book.xlsx")
    with pytest.raises(DataError, match="one character"):
        table(GOOD, delimiter=", ")
    with pytest.raises(DataError, match="delimiter belongs to text files"):
        table(b"", name="a.npz", delimiter=";")


def test_repeated_rows_are_a_warning(table):
    with pytest.warns(
        DataWarning, match=r"repeated rows in line 4 \(as line 2\)\. The tangent kernel"
    ) as caught:
        table("a,b,y\n1,0,0.5\n2,3,0.25\n1,-0,0.5\n")
    assert Path(caught[0].filename).parent == Path(__file__).parent  # of who asked, not of the library
    with pytest.warns(DataWarning, match=r"different targets in line 4 \(as line 2\): no model fits both"):
        table("a,b,y\n1,0,cat\n2,3,dog\n1,0,dog\n")


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=60), st.text('a1,;.\n"x -e', max_size=60).map(str.encode)))
def test_junk_gives_a_table_or_a_data_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("junk") / "junk.csv"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        try:
            got = read_table(path)
        except DataError:
            return
    assert not np.isinf(got.X).any()
    assert len(got.X) >= 2
    assert len(got.columns) == len(got.features) == got.X.shape[1] >= 1


# -- tables made by the user ----------------------------------------------------------------------


def made(X, y, **options):
    X = np.array(X, dtype=float)
    settings = {"features": tuple(f"f{j}" for j in range(X.shape[1])), "target": "t", "kind": "regression"}
    return Table(X, y, **(settings | options))


def test_validate():
    fine = made([[1, 2], [3, 4], [5, 5]], np.array([0.5, 1, 2]))
    assert validate(fine) is fine
    with pytest.raises(DataError, match="column 'f0': infinite value in row 1") as error:
        validate(made([[1, 2], [np.inf, 4], [5, np.nan]], np.array([0.5, np.nan, 2])))
    assert len(error.value.problems) == 2
    assert error.value.problems[1].startswith("target 't': missing value in row 1 (--drop-missing-target")
    weighted = made([[1, 2], [3, 4], [5, 5]], np.array([0.5, 1, 2]), weights=np.array([1, np.nan, -1]))
    with pytest.raises(DataError, match=r"weights must be finite numbers ≥ 0; they are not in row 1, row 2"):
        validate(weighted)
    with pytest.raises(DataError, match="target 't', output 1: missing value in row 0"):
        validate(made([[1, 2], [3, 4]], np.array([[0.5, np.nan], [1, 2]])))
    classes = {"kind": "classification", "classes": ("a", "b")}
    with pytest.raises(DataError, match=r"label outside 0 … 1 in row 1, row 2"):
        validate(made([[1, 2], [3, 4], [5, 6]], np.array([0, -1, 2]), **classes))
    with pytest.raises(DataError, match="one class only"):
        validate(made([[1, 2], [3, 4]], np.array([1, 1]), **classes))
    with pytest.warns(DataWarning, match=r"repeated rows in row 2 \(as row 0\)"):
        validate(made([[1, 2], [3, 4], [1, 2]], np.array([0, 1, 0]), **classes))


@pytest.mark.parametrize(
    ("X", "y", "options", "message"),
    [
        ([[1, 2], [3, 4]], np.zeros(3), {}, r"one target for each row of X \(2\)"),
        ([[1, 2], [3, 4]], np.zeros(2), {"features": ("a",)}, "and 1 names"),
        ([[1, 2], [3, 4]], None, {}, "None without y"),
        ([[1, 2], [3, 4]], np.zeros(2), {"kind": "other"}, "got 'other'"),
        ([[1, 2], [3, 4]], np.array([0.0, 1.0]), {"kind": "classification"}, "integers; got float64"),
        ([[1, 2], [3, 4]], np.zeros((2, 2), int), {"kind": "classification"}, "one target for each row"),
    ],
)
def test_validate_shapes(X, y, options, message):
    with pytest.raises(DataError, match=message):
        validate(made(X, y, **options))
