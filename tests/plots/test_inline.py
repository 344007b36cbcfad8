"""A figure inside a page: its own ids, the page's colours, words as text, nothing that runs or fetches."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from equipoise import plots
from equipoise.plots import DARK, LIGHT, inline_svg, variables

HOSTILE = '</svg><script>alert("x")</script>'


@pytest.fixture
def figure():
    return plots.curves({HOSTILE: [1.0, 0.5], "b": [1.0, 0.2]}, log_y=True, bounds={"promise": [1.0, 0.7]})


def test_it_is_an_image_with_a_name_and_a_description(figure):
    root = ElementTree.fromstring(inline_svg(figure, "fig-1", "Loss & <more>", HOSTILE))
    assert root.attrib["role"] == "img"
    named = {e.attrib["id"]: e.text for e in root if e.tag in ("title", "desc")}
    assert named == {"fig-1-title": "Loss & <more>", "fig-1-desc": HOSTILE}
    assert root.attrib["aria-labelledby"] == "fig-1-title fig-1-desc"


def test_words_are_text_and_do_nothing(figure):
    svg = inline_svg(figure, "fig-1", "t", "d")
    assert "<script" not in svg
    words = [e.text for e in ElementTree.fromstring(svg).iter("text")]
    assert HOSTILE in words
    assert "step" in words


def test_nothing_is_styled_or_fetched_from_elsewhere(figure):
    svg = inline_svg(figure, "fig-1", "t", "d")
    assert "style" not in svg.replace("font-style", "")
    assert "http" not in svg
    assert "font-family" not in svg
    assert re.findall(r'href="([^#])', svg) == []


def test_ids_are_its_own_and_all_that_is_pointed_to_is_there(figure):
    one, two = inline_svg(figure, "fig-1", "t", "d"), inline_svg(figure, "fig-2", "t", "d")
    ids = [set(re.findall(r'\bid="([^"]*)"', svg)) for svg in (one, two)]
    assert not ids[0] & ids[1]
    assert all(i.startswith("fig-1-") for i in ids[0])
    assert len(ids[0]) == len(re.findall(r'\bid="', one))
    pointed = set(re.findall(r'href="#([^"]*)"', one)) | set(re.findall(r"url\(#([^)]*)\)", one))
    assert pointed
    assert pointed <= ids[0]


def test_every_colour_is_a_variable_of_both_themes(figure):
    svg = inline_svg(figure, "fig-1", "t", "d")
    assert re.findall(r"#[0-9a-f]{6}", svg) == []
    used = set(re.findall(r"var\((--[^)]*)\)", svg))
    assert {"--fig-0", "--fig-1", "--fig-ink", "--fig-soft", "--fig-paper", "--fig-rule"} <= used
    assert used <= set(variables(LIGHT)) == set(variables(DARK))


def test_the_colours_of_a_theme_are_told_apart_by_name():
    for theme in (LIGHT, DARK):
        assert len(set(variables(theme).values())) == len(variables(theme))


@pytest.mark.parametrize("wrong", ["", "1a", "A", 'a"b', "a b"])
def test_an_identifier_that_is_none_is_refused(figure, wrong):
    with pytest.raises(ValueError, match="identifier must be"):
        inline_svg(figure, wrong, "t", "d")


@pytest.mark.parametrize("hidden", ["\x1b[31m", "\x00", "\u202e", "\udcff", "\ufffe"])
def test_hidden_characters_in_words_leave_a_drawing_whole(hidden, tmp_path):
    words = f"a{hidden}b"
    figure = plots.curves({words: [1.0, 0.5], "other": [1.0, 0.2]}, x=words, title=words)
    table = plots.confusion([[1, 0], [0, 1]], [words, "c"])
    for drawn in (inline_svg(figure, "a", words, words), inline_svg(table, "b", words, "")):
        assert hidden not in drawn
        ElementTree.fromstring(drawn)
    plots.save(figure, tmp_path / "a")
