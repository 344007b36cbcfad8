"""Curves show the numbers they are given, and say so where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.plots import curves
from equipoise.plots.curves import Line, Panel, mean_and_sd, panels, points
from equipoise.plots.style import DARK, LIGHT


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


@pytest.mark.parametrize("series", [[5.0, 3.0, 4.0], {2: 4.0, 0: 5.0, 1: 3.0}, ([0, 1, 2], [5.0, 3.0, 4.0])])
def test_three_ways_to_give_a_series(series):
    x, y = points(series)
    assert x.tolist() == [0, 1, 2]
    assert y.tolist() == [5, 3, 4]


@pytest.mark.parametrize("series", [([1, 2], [1.0]), (1, 2, 3), np.ones((2, 2)), 3.0])
def test_a_series_of_no_such_form_is_refused(series):
    with pytest.raises(ValueError, match="a series"):
        points(series)


def test_measured_stands_beside_promised():
    measured, promised = 0.5 ** np.arange(30), 0.9 ** np.arange(30)
    found = {"measured": measured, "test": {0: 1.0, 29: 0.2}}
    figure = curves(found, log_y=True, bounds={"promised at most": promised})
    drawn = lines(figure)
    assert list(drawn) == ["measured", "test", "promised at most"]
    assert np.array_equal(drawn["measured"].get_ydata(), measured)
    assert np.array_equal(drawn["promised at most"].get_ydata(), promised)
    assert drawn["promised at most"].get_linestyle() == "--"
    assert drawn["promised at most"].get_color() == LIGHT.ink
    assert figure.axes[0].get_yscale() == "log"


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show():
    figure = curves({"a": [1.0, 0.0, -1.0, np.inf, np.nan, 0.1]}, log_y=True)
    y = lines(figure)["a"].get_ydata()
    assert y[[0, 5]].tolist() == [1.0, 0.1]
    assert np.isnan(y[1:5]).all()


@pytest.mark.parametrize("values", [[np.nan, np.inf], [0.0, -1.0], []])
def test_empty_axes_say_so(values):
    figure = curves({"a": values}, log_y=True)
    figure.draw_without_rendering()
    assert "no finite value" in figure.axes[0].texts[0].get_text()


def test_a_band_is_mean_and_standard_deviation():
    runs = np.random.default_rng(0).normal(size=(5, 40)) + 10
    figure = curves({"a": runs}, theme=DARK)
    mean, sd = mean_and_sd(runs)
    assert np.allclose(sd, runs.std(axis=0, ddof=1))
    assert np.allclose(lines(figure)["a"].get_ydata(), mean)
    vertices = figure.axes[0].collections[0].get_paths()[0].vertices
    for k in (0, 17, 39):
        at = vertices[vertices[:, 0] == k][:, 1]
        assert at.min() == pytest.approx(mean[k] - sd[k])
        assert at.max() == pytest.approx(mean[k] + sd[k])


def test_a_band_that_reaches_zero_stays_on_a_logarithmic_axis():
    runs = np.array([[1.0, 0.01, 0.0], [1.0, 0.2, 0.1], [1.0, 0.3, 3.0]])  # means 0.17, 1.03 below deviations
    figure = curves({"a": runs}, log_y=True)
    assert lines(figure)["a"].get_ydata().tolist() == runs.mean(axis=0).tolist()
    vertices = figure.axes[0].collections[0].get_paths()[0].vertices
    lowest = [vertices[vertices[:, 0] == k][:, 1].min() for k in range(3)]
    assert lowest == pytest.approx([1.0, 0.17 - runs[:, 1].std(ddof=1), 0.1])  # the smallest that is shown


def test_one_run_has_no_spread():
    mean, sd = mean_and_sd([[1.0, 2.0]])
    assert mean.tolist() == [1, 2]
    assert sd.tolist() == [0, 0]


def test_runs_must_be_rows_over_the_steps():
    with pytest.raises(ValueError, match=r"runs must be \(R, 3\)"):
        curves({"a": ([1, 2, 3], np.ones((2, 4)))})


def test_colours_and_dashes_go_together():
    figure = curves({str(i): [1.0, 2.0] for i in range(4)}, levels={"one": 1.5})
    drawn = list(lines(figure).values())
    assert len({line.get_color() for line in drawn[:4]}) == 4
    assert len({str(line._dash_pattern) for line in drawn[:4]}) == 4


def test_a_panel_keeps_colours_apart_and_names_what_is_to_be_named():
    runs = np.array([[1.0, 2.0], [3.0, 4.0]])
    shown = {
        "a": [1.0, 2.0],
        "left out": None,
        "band": ([5, 6], runs),
        "_b": Line([2.0, 1.0], at=7, dash="-"),
    }
    left = Panel(shown, "step", "loss", "title", rules={"": 1.0, "rule": 2.0}, above=True)
    figure = panels(left, Panel({"c": [1.0, 2.0]}), Panel({}), Panel({"d": [0.0]}, log_y=True))
    ax = figure.axes[0]
    drawn = {line.get_label(): line for line in ax.get_lines()}
    colours = {name: drawn[name].get_color() for name in ("a", "band", "_b")}
    assert colours == {"a": LIGHT.colour(0), "band": LIGHT.colour(2), "_b": LIGHT.colour(7)}
    assert drawn["band"].get_xdata().tolist() == [5, 6]
    assert drawn["band"].get_ydata().tolist() == [2, 3]
    assert len(ax.collections) == 1
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "band", "rule"]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("step", "loss", "title")
    assert [len(a.texts) for a in figure.axes] == [0, 0, 1, 1]  # those on which nothing can be drawn say so


def test_one_legend_serves_all_panels():
    row = [Panel({"a": [1.0, 2.0], "b": [2.0, 1.0]}), Panel({"a": [1.0, 2.0], "c": [2.0, 1.0]})]
    figure = panels(*row, one_legend=True)
    assert all(ax.get_legend() is None for ax in figure.axes)
    (box,) = figure.legends
    assert [text.get_text() for text in box.get_texts()] == ["a", "b", "c"]


def test_bands_that_would_turn_to_mud_are_whiskers():
    runs = {str(i): i + np.random.default_rng(i).normal(size=(4, 50)) for i in range(4)}
    few, many = curves(dict(list(runs.items())[:3])), curves(runs)
    assert [type(c).__name__ for c in few.axes[0].collections] == ["FillBetweenPolyCollection"] * 3
    for i, drawn in enumerate(many.axes[0].collections):
        mean, sd = mean_and_sd(runs[str(i)])
        ends = np.array(drawn.get_segments())
        assert 5 <= len(ends) <= 7
        for (x, low), (same, high) in ends:
            assert x == same
            assert (low, high) == pytest.approx((mean[int(x)] - sd[int(x)], mean[int(x)] + sd[int(x)]))
