"""Columns that hold no numbers, and what the user says of columns."""

import csv
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data import DataError, DataWarning, read_table
from equipoise.data.columns import ColumnOptions
from equipoise.data.encoding import Encoding

PEOPLE = """name;height;member;born;city;weight;income
Ann;1,75;yes;1990-05-01;Rome;1;10,5
Bob;;no;1985-12-24;Oslo;2;11,5
Eve;1,60;yes;;Rome;0;9
Una;1,5;no;2001-01-01;;1;
"""


def test_columns_are_told_from_their_cells(table):
    got = table(PEOPLE.replace(";\n", ";7\n"), delimiter=";")
    assert [c.type for c in got.columns] == ["category", "number", "boolean", "date", "category", "number"]
    assert got.X[0].tolist() == [0, 1.75, 1, 7425, 1, 1]
    assert got.y.tolist() == [10.5, 11.5, 9, 7]
    assert np.isnan(got.X).sum() == 3


def test_a_file_is_read_again_by_the_columns_known(table):
    first = table(PEOPLE.replace(";\n", ";7\n"), delimiter=";", options=ColumnOptions(drop=("name",)))
    assert first.dropped == {"name": "by --drop"}
    known = ColumnOptions(known=first.columns)
    again = table(
        "city,weight,born,height,member\nOslo,3,2020-02-02,2,0\nBern,,,,no\n", labelled=False, options=known
    )
    assert again.features == ("height", "member", "born", "city", "weight")
    assert again.X[0].tolist() == [2, 0, 18294, 0, 3]
    assert again.X[1, 3] == -1  # a city that training did not have
    with pytest.raises(DataError) as error:
        table("city,weight,born,height,member\nOslo,3,2020,tall,no\n", labelled=False, options=known)
    assert error.value.problems == (
        "column 'height': not a number in line 2 ('tall')",
        "column 'born': not a date such as 2020-01-31 in line 2 ('2020')",
    )
    with pytest.raises(
        DataError, match=r"Missing: 'height', 'member', 'born', 'weight'\. Its columns: 'city'"
    ):
        table("city\nOslo\n", labelled=False, options=known)


def test_several_targets_weights_and_missing_targets(table):
    options = ColumnOptions(weight="weight", drop_missing_target=True)
    with pytest.warns(DataWarning, match="2 rows without a target are left out"):
        got = table(PEOPLE, "height,income", delimiter=";", options=options)
    assert got.y.tolist() == [[1.75, 10.5], [1.6, 9]]
    assert (got.target, got.kind) == ("height,income", "regression")
    assert got.weights.tolist() == [1, 0]
    assert "weight" not in got.features
    with pytest.raises(DataError) as error:
        table(PEOPLE, "height, income", delimiter=";")
    assert [p.partition(" (")[0] for p in error.value.problems] == [
        "target 'height': missing value in line 3",
        "target 'income': missing value in line 5",
    ]
    with pytest.raises(DataError, match="several targets must be numbers"):
        table(PEOPLE, "height,income", delimiter=";", kind="classification")


def test_types_can_be_given(table):
    rows = "".join(f"{i},{1000 + i % 2},{i * i},{i % 3}.5\n" for i in range(40))
    got = table("id,zip,area,y\n" + rows)
    assert got.dropped == {"id": "a row number"}
    got = table("id,zip,area,y\n" + rows, options=ColumnOptions(numeric=("id",), categorical=("zip",)))
    assert [c.type for c in got.columns] == ["number", "category", "number"]
    assert got.columns[1].levels == ("1000", "1001")
    assert got.dropped == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": ("Name",)}, r"no column is called 'Name' \(--drop\); did you mean 'name'\?"),
        ({"weight": "wight"}, r"no column is called 'wight' \(--weight\); did you mean 'weight'\?"),
        ({"drop": ("income",)}, "the target 'income' is given twice, or is dropped or the weight"),
        (
            {"numeric": ("city",), "categorical": ("city",)},
            "'city' is given by --categorical and by --numeric",
        ),
        ({"numeric": ("city",)}, r"column 'city': not a number in line 2 \('Rome'\), line 3 \('Oslo'\)"),
        ({"weight": "height"}, "weights must be finite numbers ≥ 0; they are not in line 3"),
    ],
)
def test_options_that_do_not_fit(options, message, table):
    with pytest.raises(DataError, match=message):
        table(PEOPLE, "income", delimiter=";", options=ColumnOptions(**options))


def test_decimal_signs_are_not_mixed(table):
    with pytest.raises(DataError, match="'a' has a decimal comma in line 3 and a decimal point in line 2"):
        table("a;y\n1.234;0\n5,5;1\n2;0\n", delimiter=";")
    assert table('a,y\n"1,5",0\n"2,5",1\n"3,5",0\n').columns[0].type == "category"  # where it divides cells


WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=5)
ANY = st.one_of(
    WORDS, st.floats().map(repr), st.sampled_from(["", "NA", "yes", "2020-01-31", "1e308", "é;,"])
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(ANY, ANY, st.integers(-9, 9).map(str)), min_size=2, max_size=25))
def test_any_table_is_read_again_as_it_was(tmp_path_factory, rows):
    """What was told of the columns reads the same file to the same bits, in whatever order they stand."""
    path = tmp_path_factory.mktemp("any") / "any.csv"

    def write(*order):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[row[j] for j in order] for row in [("a", "b", "y"), *rows]])

    write(0, 1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        try:
            first = read_table(path, "y", kind="regression")
        except DataError:
            return
    write(2, 1, 0)
    again = read_table(path, labelled=False, options=ColumnOptions(known=first.columns))
    assert again.X.tobytes() == first.X.tobytes()
    made = Encoding.of(first.X, first.columns)
    assert np.isfinite(made.transform(again.X)).all()
    assert made.surprises(again.X) == []
