"""The house style: readable, told apart without colour vision, the same every time, without side effects."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

import equipoise
from equipoise.plots import curves, save, to_svg
from equipoise.plots.style import DARK, LIGHT, label, legend, new_figure, power, scale_axis, single, thin

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda t: t.name)


def linear(colour: str) -> np.ndarray:
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def luminance(rgb: np.ndarray) -> float:
    return float(rgb @ [0.2126, 0.7152, 0.0722])


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(linear(a)), luminance(linear(b))))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB, white point D65."""
    M = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    t = M @ rgb / (M @ np.ones(3))
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# How people see who lack one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1), in linear sRGB.
SEEN = {
    "all cones": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


@THEMES
def test_text_and_lines_stand_out_from_the_paper(theme):
    for colour in (theme.ink, theme.soft):
        assert contrast(colour, theme.paper) >= 4.5
    for colour in theme.series:
        assert contrast(colour, theme.paper) >= 3


@THEMES
@pytest.mark.parametrize("eyes", SEEN)
def test_the_first_four_colours_are_told_apart_by_everyone(theme, eyes):
    seen = [lab(np.clip(SEEN[eyes] @ linear(c), 0, 1)) for c in theme.series[:4]]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 10


@THEMES
def test_low_to_high_is_an_order_of_lightness(theme):
    light = [lab(linear(c))[0] for c in theme.sequential]
    assert light == sorted(light) or light == sorted(light, reverse=True)
    assert abs(light[0] - light[-1]) > 60


def test_drawing_changes_no_global_setting_and_opens_no_window(tmp_path):
    before = dict(matplotlib.rcParams)
    figure = curves({"a": [1.0, 0.1]}, log_y=True, theme=DARK)
    save(figure, tmp_path / "a")
    assert dict(matplotlib.rcParams) == before
    source = Path(equipoise.__file__).parent
    files = [*(source / "plots").glob("*.py"), *(source / "report").glob("*.py")]
    assert len(files) > 15
    assert not [f.name for f in files if re.search(r"import.*pyplot", f.read_text(encoding="utf-8"))]


def test_the_same_data_make_the_same_bytes(tmp_path):
    written = [
        [p.read_bytes() for p in save(curves({"a": [3.0, 1.0, 0.1]}, log_y=True), tmp_path / name)]
        for name in ("one", "two")
    ]
    assert written[0] == written[1]
    assert len(written[0]) == 2
    other = save(curves({"a": [3.0, 1.0, 0.2]}, log_y=True), tmp_path / "three.svg", formats=["svg"])
    assert [p.name for p in other] == ["three.svg"]
    assert other[0].read_bytes() != written[0][0]


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"among svg, png. Got bmp"):
        save(single()[0], tmp_path / "a", formats=["bmp"])


def test_panels_share_a_figure():
    figure, grid = new_figure(2, 3, width=2.0, height=1.0)
    assert grid.shape == (2, 3)
    assert figure.get_size_inches().tolist() == [6.0, 2.0]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (1, "1"),
        (0.01, "0.01"),
        (-2.5, "−2.5"),
        (1e-5, "10⁻⁵"),
        (-1e-5, "−10⁻⁵"),
        (3e4, "3·10⁴"),
        (1234.5, "1234.5"),
        (9999, "9999"),
        (10000, "10⁴"),
        (1e12, "10¹²"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_written_as_people_write_them(value, shown):
    assert power(value) == shown


@given(st.floats(1e-300, 1e300) | st.floats(-1e300, -1e-300))
def test_what_is_written_is_the_number_to_four_digits(value):
    text = power(value).replace("−", "-")
    digits = text.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    if "·10" in digits:
        mantissa, exponent = digits.split("·10")
        read = float(f"{mantissa}e{exponent}")
    elif text != digits:
        sign = -1 if digits.startswith("-") else 1
        read = sign * float(f"1e{digits.removeprefix('-')[2:]}")
    else:
        read = float(digits)
    assert read == pytest.approx(value, rel=6e-4)


def test_thinning_keeps_the_ends_and_the_pairs():
    x = np.arange(10_000.0)
    a, b = thin(x, x**2, most=100)
    assert len(a) <= 100
    assert (a[0], a[-1]) == (0, 9999)
    assert np.array_equal(b, a**2)


def test_a_dollar_starts_no_formula():
    figure, ax = single()
    label(ax, "$x^2$", "$\\frac", "$")
    ax.plot([1, 2], label="$a$")
    ax.plot([2, 1], label="$\\b$")
    legend(ax)
    svg = to_svg(figure, text=True)
    assert "$x^2$" in svg
    assert "$\\b$" in svg


def test_one_line_needs_no_legend():
    _, ax = single()
    ax.plot([1, 2], label="alone")
    legend(ax)
    assert ax.get_legend() is None


def shown(figure, ax, low, high):
    """The labels inside the axis."""
    figure.draw_without_rendering()
    return [
        t.get_text() for v, t in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True) if low <= v <= high
    ]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1e-3, 1e4, ["0.001", "0.01", "0.1", "1", "10", "100", "1000", "10000"]),
        (1e-4, 10.0, ["10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "10⁰", "10¹"]),
        (10.0, 1e5, ["10¹", "10²", "10³", "10⁴", "10⁵"]),
        (4e-4, 6e-3, ["5·10⁻⁴", "10⁻³", "2·10⁻³", "5·10⁻³"]),
        (2.1, 4.6, ["2.5", "3", "3.5", "4", "4.5"]),
        (0.055, 0.105, ["0.06", "0.07", "0.08", "0.09", "0.1"]),
    ],
)
def test_a_logarithmic_axis_has_one_notation_and_more_than_one_tick(low, high, expected):
    figure, ax = single()
    ax.plot([0, 1], [low, high])
    scale_axis(ax, "y", log=True)
    assert set(shown(figure, ax, low, high)) <= set(expected)
    assert len(shown(figure, ax, low, high)) >= min(4, len(expected))


def test_a_linear_axis_has_one_notation():
    for high, expected in ((2e-3, "4·10⁻⁴"), (1e6, "2·10⁵"), (12_000.0, "10000"), (0.8, "0.15")):
        figure, ax = single()
        ax.plot([0, 1], [0.0, high])
        scale_axis(ax, "y", log=False)
        labels = shown(figure, ax, 0.0, high)
        assert labels[0] == "0"
        assert expected in labels
        assert len({"10" in label and label != "10000" for label in labels[1:]}) == 1


def test_ticks_of_a_short_logarithmic_axis_are_more_than_one():
    figure, ax = single()
    ax.plot([0, 1], [0.3, 2.2])
    scale_axis(ax, "y", log=True)
    figure.draw_without_rendering()
    shown = [t.get_text() for t in ax.get_yticklabels() if t.get_text()]
    assert {"0.5", "1", "2"} <= set(shown)
