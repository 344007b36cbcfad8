"""Columns of any kind become numbers, and come back from plain data bit for bit."""

import json
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from equipoise.data import DataError
from equipoise.data.columns import FORMS, NEW, Column, cells_of, days, read_frame, sift, tell
from equipoise.data.encoding import Encoding

MIXED = pd.DataFrame(
    {
        "size": [1.5, None, 2.5, 4.0] * 6,
        "city": ["Rome", "Oslo", None, "Rome"] * 6,
        "sold": pd.to_datetime(["2020-02-29", "1969-12-31", None, "2021-07-01"] * 6),
        "new": [True, False, True, True] * 6,
        "grade": pd.Categorical([3, 1, 3, 2] * 6),
    }
)


def encoded(frame: pd.DataFrame, **dropped: str) -> tuple[Encoding, np.ndarray]:
    X, columns = read_frame(frame)
    made = Encoding.of(X, columns, dropped)
    return made, made.transform(X)


# -- what a column holds ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ([1, 2.5, None], "number"),
        ([None, None], "number"),
        (["True", "false", None], "boolean"),
        (["yes", "NO"], "boolean"),
        (["2020-01-31", "1999-12-31"], "date"),
        (["2020-01-31T12:30:00+02:00", "1999-12-31"], "date"),
        (["31.01.2020", "01.02.2020"], "date"),
        (["01/31/2020 23:59", "02/01/2020 00:00"], "date"),
        (["2020-01-31", "2020-02-30"], "category"),  # there is no such day
        (["a", "b"], "category"),
        ([0, 1, "2+", "3+", "4+"], "category"),
        ([0, 1, 2, "oops"], "number"),  # a word among numbers is an error, not a category
    ],
)
def test_a_column_is_told_from_its_cells(values, type):
    assert tell("c", cells_of(values)).type == type


def test_a_given_type_is_kept():
    column = tell("c", cells_of([3, 1, 3, "x"]), "category")
    assert column.levels == ("1", "3", "x")
    assert column.read(cells_of([1, 3.0, "x", 2, "1", None]))[0].tolist()[:5] == [0, 1, 2, NEW, 0]
    number = tell("c", cells_of(["x", "y", 1]), "number")
    assert number.read(cells_of(["x", 1, None]))[1] == {0: "x"}


def test_what_a_column_cannot_hold_is_named():
    assert Column("b", "boolean").read(cells_of([0, 1, 2, "maybe", "yes"]))[1] == {2: "2", 3: "maybe"}
    assert Column("d", "date", form="iso").read(cells_of([7, "2020-01-01", "soon"]))[1] == {0: "7", 2: "soon"}


@settings(max_examples=30)
@given(st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 30)), st.sampled_from(FORMS))
def test_a_date_is_its_days_since_1970(moment, form):
    word = moment.isoformat() if form == "iso" else f"{moment:{form}}"
    read = moment if form == "iso" else datetime.strptime(word, form)
    since = (read.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(days=1)
    assert math.isclose(days(word, form), since, rel_tol=1e-15, abs_tol=1e-10)


def test_dates_of_a_zone_are_those_of_utc():
    assert days("1970-01-01T02:00:00+02:00", "iso") == 0
    assert math.isnan(days("1970-01-01", "%d.%m.%Y"))


def test_columns_that_tell_nothing_are_named_with_the_reason():
    rows = np.arange(100, 130)
    X = np.column_stack([np.full(30, 7.0), rows - 99.0, np.arange(30.0), rows % 7, np.full(30, np.nan)])
    words = Column("word", "category", tuple("abcdefghijklmnopqrstuvwxyz0123"))
    columns = [Column("seven"), Column("number"), words, Column("week"), Column("gone")]
    keep, why = sift(X, columns, rows)
    assert keep == [3]
    assert why == {
        "seven": "constant (7 in every row)",
        "number": "a row number",
        "word": "an identifier (all its values differ)",
        "gone": "every value is missing",
    }
    assert sift(X[:, 1:3], columns[1:3], rows)[0] == [0, 1]  # where nothing else is left
    assert sift(X[:19], columns, rows[:19])[0] == [1, 2, 3]  # few values may differ by chance


# -- inputs of a network ---------------------------------------------------------------------------


def test_the_inputs_are_those_of_scikit_learn():
    """Numbers, indicators and categories are the columns of its ColumnTransformer, which decided them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 4))
    X[rng.random((400, 4)) < 0.1] = np.nan
    levels = tuple(f"l{k}" for k in range(30))
    X[:, 2] = rng.zipf(1.6, 400).clip(max=30) - 1
    X[:, 3] = np.where(np.isnan(X[:, 3]), np.nan, np.floor(3 * rng.random(400)))
    columns = (Column("a"), Column("b"), Column("c", "category", levels), Column("d", "category", levels[:3]))
    made = Encoding.of(X, columns)
    theirs = ColumnTransformer(
        [
            ("n", SimpleImputer(strategy="median", add_indicator=True), [0, 1]),
            (
                "c",
                OneHotEncoder(min_frequency=4, max_categories=50, handle_unknown="infrequent_if_exist"),
                [2, 3],
            ),
        ],
        sparse_threshold=0,
    ).fit(X)
    assert made.treated[2].rare
    assert np.array_equal(made.transform(X), theirs.transform(X))
    new = np.array([[np.nan, 1.0, NEW, NEW], [2.0, np.nan, 29.0, np.nan]])
    assert np.array_equal(made.transform(new), theirs.transform(new))


def test_names_and_indicators():
    made, inputs = encoded(MIXED)
    assert len(made.names) == inputs.shape[1]
    at = {name: inputs[:4, j].tolist() for j, name in enumerate(made.names)}
    assert at["size"] == [1.5, 2.5, 2.5, 4.0]
    assert at["size is missing"] == [0, 1, 0, 0]
    assert at["city is 'Rome'"] == [1, 0, 0, 1]
    assert at["city is missing"] == [0, 0, 1, 0]
    assert at["grade is '3'"] == [1, 0, 1, 0]
    assert at["sold is missing"] == [0, 0, 1, 0]
    assert "sold: sine of the day" not in at  # no date has a time of day
    assert at["new"] == [1, 0, 1, 1]
    circle = np.hypot(at["sold: sine of the week"], at["sold: cosine of the week"])
    assert np.allclose(circle, 1)


def test_a_week_later_is_the_same_weekday_and_a_day_later_is_not():
    frame = pd.DataFrame({"d": pd.date_range("2020-01-01", periods=22, freq="D")})
    made, inputs = encoded(frame)
    week = inputs[:, [made.names.index(f"d: {part} of the week") for part in ("sine", "cosine")]]
    assert np.allclose(week[7:], week[:-7], atol=1e-9)
    assert np.abs(week[1:] - week[:-1]).max(axis=1).min() > 0.1


def test_rare_levels_share_an_input_and_new_ones_count_as_rare():
    frame = pd.DataFrame({"c": ["a"] * 10 + ["b"] * 10 + ["x", "y"], "n": range(22)})
    made, inputs = encoded(frame)
    assert made.names == ("n", "c is 'a'", "c is 'b'", "c is rare")
    assert inputs[-2:, 1:].tolist() == [[0, 0, 1], [0, 0, 1]]
    new, _ = read_frame(pd.DataFrame({"c": ["z", "a", None], "n": [1, 2, None]}), made.columns)
    assert made.transform(new)[:, 1:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1]]
    level, value, number = made.surprises(new)
    assert level == "column 'c': 1 row with a level that training did not have (row 0): it counts as rare"
    assert value == "column 'c': 1 missing value, where training had none, taken as rare"
    assert number == "column 'n': 1 missing value, where training had none, taken as 10.5"
    assert made.surprises(read_frame(frame)[0]) == []


def test_what_is_done_is_told():
    made, _ = encoded(MIXED, nothing="constant (1 in every row)")
    told = {d.name: d for d in made.describe()}
    assert told["size"].values == "1.5 … 4"
    assert "6 missing are taken as 2.5" in told["size"].treatment
    assert told["sold"].values == "1969-12-31 … 2021-07-01"
    assert told["city"].treatment == "an input for each of 3 levels; 6 missing count as a level"
    assert told["nothing"].treatment == "dropped: constant (1 in every row)"


# -- frames ----------------------------------------------------------------------------------------


def test_a_frame_in_another_order_is_read_by_name():
    X, columns = read_frame(MIXED)
    again, _ = read_frame(MIXED[list(MIXED.columns)[::-1]].assign(more=1), columns)
    assert np.array_equal(X, again, equal_nan=True)
    with pytest.raises(DataError, match=r"Missing: 'city'\. Got 'size', 'sold'"):
        read_frame(MIXED.drop(columns="city"), columns)


def test_a_cell_that_its_column_cannot_hold_is_named_by_column_and_row():
    _, columns = read_frame(MIXED)
    wrong = MIXED.assign(size=["1", "x", 2, 3] * 6, new=["yes", 2, "no", None] * 6)
    with pytest.raises(DataError) as error:
        read_frame(wrong, columns)
    first, second = error.value.problems
    assert first == "column 'size': not a number in row 0 ('1'), row 1 ('x'), row 4 ('1') and 9 more"
    assert second.startswith("column 'new': not true or false in row 1 ('2')")


def test_names_that_occur_twice_are_refused():
    with pytest.raises(DataError, match="names of their own"):
        read_frame(pd.DataFrame([[1, 2]], columns=["a", "a"]))


# -- plain data ------------------------------------------------------------------------------------

CELLS = {
    "n": st.one_of(st.none(), st.floats(-1e150, 1e150), st.integers(-(10**18), 10**18)),
    "c": st.one_of(st.none(), st.text(max_size=4), st.sampled_from(["a", "b", "'", "é", "\u202e"])),
    "d": st.one_of(st.none(), st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))),
    "b": st.one_of(st.none(), st.booleans()),
}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=12))
def test_any_table_is_encoded_finitely_and_survives_plain_data_bit_for_bit(rows):
    frame = pd.DataFrame(rows, dtype=object).assign(d=pd.to_datetime([row["d"] for row in rows]))
    X, columns = read_frame(frame)
    made = Encoding.of(X, columns)
    inputs = made.transform(X)
    assert np.isfinite(inputs).all()
    assert inputs.shape == (len(rows), len(made.names))
    again = Encoding.from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False)))
    assert again == made
    assert again.transform(X).tobytes() == inputs.tobytes()
    assert np.array_equal(made.transform(X[::-1]), inputs[::-1])  # a row does not know its neighbours


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("treated"),
        lambda d: d["treated"][0]["column"].update(type="word"),
        lambda d: d["treated"][0].update(fill=math.nan),
        lambda d: d["treated"][1].update(frequent=[99]),
        lambda d: d["treated"][2]["column"].update(form="%q"),
    ],
)
def test_plain_data_that_do_not_go_together_are_refused(damage):
    found = encoded(MIXED)[0].to_dict()
    damage(found)
    with pytest.raises((ValueError, KeyError)):
        Encoding.from_dict(found)


def test_an_exported_encoding_does_the_same():
    """It is made of operations that torch can write down, as an exported network needs them."""
    X, columns = read_frame(MIXED)
    made = Encoding.of(X, columns)

    written = torch.fx.symbolic_trace(lambda x: made(x))
    assert torch.equal(written(torch.from_numpy(X)), torch.from_numpy(made.transform(X)))


def test_wrong_shapes_and_sizes_are_refused():
    made, _ = encoded(MIXED)
    with pytest.raises(DataError, match="5 columns, as in training"):
        made.transform(np.zeros((2, 3)))
    with pytest.raises(DataError, match="needs rows"):
        Encoding.of(np.zeros((0, 1)), (Column("a"),))
    with pytest.raises(DataError, match="'a': its numbers are too large"):
        Encoding.of(np.array([[-1.5e308], [1.5e308]]), (Column("a"),))
