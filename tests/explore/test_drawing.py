"""What is drawn of a slice: the whole of it, with every known point seen and every masked one crossed out."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise import plots
from equipoise.cli.app import app
from equipoise.plots.style import DARK
from equipoise.plots.surfaces import ALONE, profile

NAN = np.nan


def marks(figure, name):
    found = [c for c in figure.axes[0].collections if c.get_label() == name]
    return sorted(found[0].get_offsets().tolist()) if found else []


@pytest.mark.parametrize("log", [False, True])
def test_masked_stretches_of_a_line_are_grey_and_crossed_out(log):
    u = np.linspace(-20, 20, 7)
    figure = profile(u, [NAN, np.inf, NAN, 8.4, NAN, NAN, NAN], log=log)
    ax = figure.axes[0]
    low, high = ax.get_xlim()
    assert low < -20
    assert high > 20
    assert [x for x, _ in marks(figure, "no equilibrium")] == [v for v in u if v != 0]
    (line,) = ax.get_lines()
    assert line.get_marker() == "o"
    assert ax.get_ylim()[0] < 8.4 < ax.get_ylim()[1]
    grey = [(p.get_x(), p.get_x() + p.get_width()) for p in ax.patches]
    assert grey[0] == pytest.approx((-20, (u[0] + u[1]) / 2))
    assert all(not left < 0 < right for left, right in grey)
    assert sum(right - left for left, right in grey) == pytest.approx(40 - (u[1] - u[0]))
    plots.to_svg(figure)


def test_a_line_that_is_known_has_nothing_crossed_out():
    figure = profile([0, 1, 2], [3.0, 1.0, 2.0], log=True, theme=DARK)
    assert marks(figure, "no equilibrium") == []
    assert not figure.axes[0].patches
    assert figure.axes[0].get_legend() is None
    beside = profile([0, 1, 2], [3.0, 0.0, 2.0], log=True)
    assert [x for x, _ in marks(beside, "no equilibrium")] == [1]


def test_single_points_of_a_long_line_are_marked():
    u = np.linspace(-1, 1, 80)
    values = u**2
    assert profile(u, values).axes[0].get_lines()[0].get_marker() == "None"
    values[[38, 40]] = NAN
    assert profile(u, values).axes[0].get_lines()[0].get_marker() == "o"


def test_a_line_of_which_nothing_is_known_says_so():
    figure = profile([0, 1], [NAN, NAN])
    assert figure.axes[0].texts[0].get_text() == "no equilibrium"
    with pytest.raises(ValueError, match=r"values must be \(len\(u\),\)"):
        profile([0, 1], [1.0])


@pytest.mark.parametrize("log", [False, True])
def test_a_known_point_no_contour_reaches_is_a_dot_of_its_colour(log):
    u = np.linspace(-20, 20, 3)
    Z = np.full((3, 3), NAN)
    Z[1, 1] = 8.4
    figure = plots.contours(u, u, Z, log=log)
    assert marks(figure, ALONE) == [[0, 0]]
    assert not figure.axes[0].get_lines()  # no line of equal values in the legend
    assert [t.get_text() for t in figure.axes[1].get_yticklabels()] == ["8.4"]
    plots.to_svg(figure)
    raised = plots.surface(u, u, Z, log=log)
    dots = raised.axes[0].collections[-1]
    assert dots.get_array().tolist() == pytest.approx([np.log10(8.4) if log else 8.4])
    plots.to_svg(raised)


def test_only_points_outside_every_whole_cell_are_dots():
    Z = np.arange(1.0, 17).reshape(4, 4)
    Z[0, 1] = Z[1, 2] = Z[2, 2] = NAN  # the cells left whole: two of the first two columns
    figure = plots.contours(range(4), range(4), Z)
    assert marks(figure, ALONE) == [[0, 0], [2, 0], [2, 3], [3, 0], [3, 1], [3, 2], [3, 3]]
    words = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert words == ["equal values", ALONE, "no equilibrium"]
    assert marks(plots.contours(range(4), range(4), np.ones((4, 4))), ALONE) == []


def test_a_colour_bar_of_close_values_on_a_logarithmic_scale_has_numbers():
    figure = plots.contours([0, 1], [0, 1], [[3.1, 3.2], [3.3, 3.4]], log=True)
    figure.canvas.draw()
    assert len([t for t in figure.axes[1].get_yticklabels() if t.get_text()]) >= 3


def test_a_mark_is_named_and_crosses_lie_over_the_axes():
    Z = np.array([[NAN, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    figure = plots.contours(range(3), range(3), Z, marks={"here": (1.0, 1.0)})
    assert marks(figure, "here") == [[1, 1]]
    words = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "here" in words
    (crosses,) = (c for c in figure.axes[0].collections if c.get_label() == "no equilibrium")
    assert not crosses.get_clip_on()
    assert crosses.get_zorder() > max(s.get_zorder() for s in figure.axes[0].spines.values())
    plots.to_svg(figure)


def test_what_a_surface_leaves_out_is_crossed_out_on_its_floor():
    Z = np.array([[NAN, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    figure = plots.surface(range(3), range(3), Z, masked="not known")
    ax = figure.axes[0]
    (crosses,) = (c for c in ax.collections if c.get_label() == "not known")
    assert [float(v[0]) for v in crosses._offsets3d] == [0.0, 0.0, ax.get_zlim()[0]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["not known"]
    plots.to_svg(figure)
    whole = plots.surface(range(2), range(2), Z[1:, 1:], masked="not known")
    for other in (whole, plots.surface(range(3), range(3), Z)):
        assert other.axes[0].get_legend() is None


def test_arrows_fill_the_plane_of_the_paths():
    s, t = np.linspace(-1, 3, 4), np.linspace(0, 2, 3)
    field = np.stack(np.meshgrid(-s, 1 - t), axis=-1)
    figure = plots.trajectories({"a": [[0, 0], [2, 1]]}, arrows=(s, t, field))
    ax = figure.axes[0]
    (arrows,) = (c for c in ax.collections if hasattr(c, "U"))
    assert arrows.U.tolist() == field[..., 0].ravel().tolist()
    assert arrows.V.tolist() == field[..., 1].ravel().tolist()
    assert arrows.angles == "xy"
    assert ax.get_xlim() == pytest.approx((-1, 3))
    assert ax.get_ylim() == pytest.approx((0, 2))


def test_the_command_draws_the_mask_of_a_line(tmp_path):
    rng = np.random.default_rng(0)
    rows = "\n".join(",".join(map(str, [*x, x[0]])) for x in rng.normal(size=(12, 2)))
    (tmp_path / "table.csv").write_text(f"a,b,y\n{rows}\n")
    runner, out = CliRunner(), tmp_path / "run"
    asked = ["fit", tmp_path / "table.csv", "--out", out, "--width", "20", "--steps", "1", "--quiet"]
    assert runner.invoke(app, [*map(str, asked), "--no-report"]).exit_code == 0
    asked = ["landscape", str(out), "--line", "--grid", "7", "--radius", "20", "--json"]
    found = json.loads(runner.invoke(app, asked).stdout)
    assert found["reasons"] == {"equilibrium not proved unique": 6}
    expected = profile(
        found["s"],
        np.array(found["loss"], dtype=float),
        log=True,
        x="along the direction, from 0 here",
        name="summed half square",
        masked="no loss to show",
    )
    assert (out / "landscape" / "line.svg").read_text(encoding="utf-8") == plots.to_svg(expected)
