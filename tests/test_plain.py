"""Text of others reaches no terminal, drawing or spreadsheet in a form that would act there."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.plain import hidden, plain, plain_json, spreadsheet_cell

ANY = st.text(st.characters(codec=None), max_size=20)


@given(ANY)
def test_nothing_hidden_is_left(text):
    shown = plain(text)
    assert not [c for c in shown if hidden(c) and c not in "\n\t\u200c\u200d"]
    shown.encode()  # not half a pair
    assert plain(shown) == shown


@given(st.text(st.characters(exclude_categories=("C", "Z")), max_size=20))
def test_ordinary_text_is_unchanged(text):
    assert plain(text) == text == plain_json(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\rb\x07\x7f\x9b2J", "a\\rb\\x07\\x7f\\x9b2J"),
        ("abc\u202etxt.exe", "abc\\u202etxt.exe"),
        ("\u2066x\u2069\u061c\u200f", "\\u2066x\\u2069\\u061c\\u200f"),
        ("\U000e0041", "\\U000e0041"),
        ("\udcff\u2028", "\\udcff\\u2028"),
        (
            "two\nlines\t\u00e4\u0627 می\u200cخواهم 👩\u200d🔬",
            "two\nlines\t\u00e4\u0627 می\u200cخواهم 👩\u200d🔬",
        ),
    ],
)
def test_what_is_shown(text, shown):
    assert plain(text) == shown


def test_every_bidirectional_control_is_hidden():
    controls = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    found = [chr(i) for i in range(0x110000) if unicodedata.bidirectional(chr(i)) in controls]
    assert len(found) == 9
    assert all(map(hidden, found))


@given(st.dictionaries(ANY, ANY | st.floats(allow_nan=False, allow_infinity=False)))
def test_json_means_the_same_and_is_safe(content):
    written = plain_json(json.dumps(content, ensure_ascii=False, indent=1))
    assert plain(written) == written
    assert json.loads(written) == content


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+x", "'+x"),
        ("-x", "'-x"),
        ("\u2212x", "'\u2212x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("  =x", "'  =x"),
        ("\tx", "'\tx"),
        ("\rx", "'\rx"),
        ("＝x", "'＝x"),
        ("-1", "-1"),
        ("+1e-3", "+1e-3"),
        ("a=b", "a=b"),
        ("", ""),
        (-1.5, -1.5),
        (-3, -3),
    ],
)
def test_cells_of_spreadsheets(cell, written):
    assert spreadsheet_cell(cell) == written
    assert type(spreadsheet_cell(cell)) is type(cell)
