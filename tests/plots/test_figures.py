"""Spectra, planes, confusion, residuals and surfaces show what they are given."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from equipoise import plots
from equipoise.plots.plane import shorten
from equipoise.plots.style import DARK, LIGHT

RNG = np.random.default_rng(0)


def test_a_spectrum_is_sorted_and_its_rounding_left_out():
    figure = plots.spectrum({"a": [1e-3, 5.0, -1e-17, 1e-17, 0.2]}, levels={"one": 1.0})
    line = figure.axes[0].get_lines()[0]
    assert line.get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert line.get_ydata()[:3].tolist() == [5.0, 0.2, 1e-3]
    assert np.isnan(line.get_ydata()[3:]).all()


def test_a_thinned_spectrum_keeps_its_ranks():
    figure = plots.spectrum({"a": ([1, 10, 100], [3.0, 2.0, 1.0])})
    assert figure.axes[0].get_lines()[0].get_xdata().tolist() == [1, 10, 100]


def test_the_principal_plane_is_the_one_of_sklearn():
    Z = RNG.normal(size=(60, 5)) @ np.diag([5, 3, 1, 0.5, 0.1])
    points, shares = plots.principal_plane(Z)
    pca = PCA(2).fit(Z)
    assert np.allclose(np.abs(points), np.abs(pca.transform(Z)))
    assert np.allclose(shares, pca.explained_variance_ratio_)
    assert np.allclose(
        plots.principal_plane(Z[:, ::-1])[0], points
    )  # directions do not flip with the columns


def test_a_plane_may_be_laid_through_some_of_the_rows():
    Z = RNG.normal(size=(30, 4))
    Z[0] = 1e3
    points, shares = plots.principal_plane(Z, np.arange(30) > 0)
    alone, its = plots.principal_plane(Z[1:])
    assert np.allclose(points[1:], alone)
    assert np.allclose(shares, its)
    assert np.abs(points[0]).max() > 100


def test_a_frame_is_what_is_seen():
    figure = plots.plane([[0, 0], [1, 1], [5, 0], [0, -9]], frame=[[-1, 2], [-3, 4]])
    assert figure.axes[0].collections[0].get_offsets().tolist() == [[0, 0], [1, 1]]
    assert figure.axes[0].get_xlim() == (-1, 2)
    assert figure.axes[0].get_ylim() == (-3, 4)


@pytest.mark.parametrize("Z", [np.ones((4, 3)), np.ones((1, 3)), np.arange(5.0)[:, None]])
def test_a_plane_of_too_little_is_flat(Z):
    points, shares = plots.principal_plane(Z)
    assert points.shape == (len(Z), 2)
    assert np.isfinite(points).all()
    assert shares[1] == 0


def test_classes_have_their_own_colour_and_mark_and_their_name_at_the_middle():
    points = np.array([[0.0, 0], [1, 0], [0, 1], [10, 10], [11, 10], [10, 11]])
    figure = plots.plane(points, [0, 0, 0, 2, 2, 2], ["left", "none", "right"], shares=(0.5, 0.25))
    ax = figure.axes[0]
    assert [t.get_text() for t in ax.texts] == ["left", "right"]
    assert ax.texts[1].get_position() == (10.0, 10.0)
    assert sum(len(c.get_offsets()) for c in ax.collections) == 6
    assert "50 %" in ax.get_xlabel()
    marks = [c.get_paths()[0].vertices.shape for c in ax.collections]
    assert marks[0] != marks[1]


def test_a_plane_of_nothing_finite_says_so():
    figure = plots.plane(np.full((3, 2), np.nan))
    assert "not finite" in figure.axes[0].texts[0].get_text()


def test_numbers_are_grouped_in_equal_parts():
    figure = plots.coloured_plane(RNG.normal(size=(80, 2)), np.arange(80.0))
    sizes = [len(c.get_offsets()) for c in figure.axes[0].collections]
    assert sizes == [20, 20, 20, 20]
    names = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert names[0] == "0 to 19.8"


def test_equal_numbers_are_one_group():
    figure = plots.coloured_plane(RNG.normal(size=(8, 2)), np.ones(8))
    assert len(figure.axes[0].collections) == 1


def test_a_path_starts_hollow_and_ends_full():
    figure = plots.trajectories({"run": [[0, 0], [1, 2], [np.nan, 0], [3, 1]]})
    start, end = figure.axes[0].collections
    assert start.get_offsets().tolist() == [[0, 0]]
    assert end.get_offsets().tolist() == [[3, 1]]
    assert start.get_facecolor()[0].tolist() == [1, 1, 1, 1]
    assert end.get_facecolor()[0].tolist() != [1, 1, 1, 1]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda t: t.name)
def test_a_confusion_matrix_shows_its_counts(theme):
    counts = np.array([[5, 2, 0], [0, 7, 0], [1, 0, 0]])
    figure = plots.confusion(counts, ["a", "b", "a very long name"], theme=theme)
    ax = figure.axes[0]
    shown = {(t.get_position()[1] - 0.5, t.get_position()[0] - 0.5): t.get_text() for t in ax.texts}
    assert shown == {(0, 0): "5", (0, 1): "2", (1, 1): "7", (2, 0): "1"}
    right = {p.get_xy(): p.get_facecolor()[:3] for p in ax.patches}
    assert right[(0, 0)] == right[(1, 1)] != right[(1, 0)]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b", "a very long…"]


def test_names_and_counts_must_agree():
    with pytest.raises(ValueError, match=r"counts must be \(2, 2\)"):
        plots.confusion(np.ones((3, 3)), ["a", "b"])


def test_many_classes_make_a_figure_too():
    figure = plots.confusion(np.eye(40, dtype=int), [str(i) for i in range(40)])
    assert len(figure.axes[0].texts) == 0
    assert len(figure.axes[0].get_xticklabels()) == 20


def test_residuals_are_targets_less_predictions():
    figure = plots.residuals({"training": ([1.0, 2.0], [0.5, 2.5]), "test": ([3.0, np.nan], [1.0, 1.0])})
    ax = figure.axes[0]
    assert ax.collections[0].get_offsets().tolist() == [[0.5, 0.5], [2.5, -0.5]]
    assert ax.collections[1].get_offsets().tolist() == [[1.0, 2.0]]
    assert [line.get_ydata()[0] for line in ax.get_lines()] == [0, 2, -2]


def test_predictions_that_are_not_finite_are_said_to_be():
    figure = plots.residuals({"training": ([1.0], [np.inf])})
    assert "not finite" in figure.axes[0].texts[0].get_text()


@pytest.mark.parametrize("log", [False, True])
def test_unknown_points_of_a_surface_are_crossed_out_and_nothing_else(log):
    u, v = np.linspace(-1, 1, 7), np.linspace(-2, 2, 5)
    Z = u[None] ** 2 + v[:, None] ** 2 + 0.1
    Z[1, 2], Z[3, 5] = np.nan, np.inf
    figure = plots.contours(u, v, Z, log=log, paths={"run": [[-1, -2], [0, 0]]})
    crosses = next(c for c in figure.axes[0].collections if c.get_label() == "no equilibrium")
    assert sorted(crosses.get_offsets().tolist()) == sorted([[u[2], v[1]], [u[5], v[3]]])
    plots.to_svg(figure)


def test_a_surface_nothing_is_known_of_says_so():
    figure = plots.contours([0, 1], [0, 1], np.full((2, 2), np.nan))
    assert figure.axes[0].texts[0].get_text() == "no equilibrium"


def test_a_constant_surface_can_be_drawn():
    plots.to_svg(plots.contours([0, 1], [0, 1, 2], np.full((3, 2), 4.0)))


def test_a_logarithmic_surface_masks_what_is_not_positive():
    figure = plots.contours([0, 1, 2], [0, 1], [[1.0, 0.0, 2.0], [3.0, 1.0, 1.0]], log=True)
    crosses = next(c for c in figure.axes[0].collections if c.get_label() == "no equilibrium")
    assert crosses.get_offsets().tolist() == [[1, 0]]


def test_the_grid_and_its_values_must_agree():
    with pytest.raises(ValueError, match=r"values must be \(len\(v\), len\(u\)\)"):
        plots.contours([0, 1, 2], [0, 1], np.ones((3, 2)))


def test_a_surface_in_space_has_its_axes_named():
    u = np.linspace(-1, 1, 6)
    Z = np.add.outer(u**2, u**2) + 0.1
    Z[0, 0] = np.nan
    figure = plots.surface(u, u, Z, log=True, name="loss", theme=DARK)
    assert figure.axes[0].get_zlabel() == "log₁₀ loss"
    plots.to_svg(figure)


def test_a_surface_has_no_cell_with_an_unknown_corner():
    u = np.linspace(-1, 1, 6)
    Z = np.add.outer(u**2, u**2) + 0.1
    Z[2, 2] = np.nan
    Z[4, :] = Z[:, 4] = np.nan
    figure = plots.surface(u, u, Z)
    figure.draw_without_rendering()
    surface, dots = figure.axes[0].collections
    assert [len(path.vertices) for path in surface.get_paths()] == [5] * 5  # closed; 4 of 3 × 3 have the hole
    assert len(dots.get_offsets()) == 3 + 4 + 4 + 1  # beside the hole, and beyond the lines
    u = np.linspace(-1, 1, 200)
    figure = plots.surface(u, u, np.where(np.hypot(*np.meshgrid(u, u)) < 0.9, 1.0, np.nan))
    assert len(figure.axes[0].collections) == 2  # a finer grid than is drawn


def test_long_names_are_cut():
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("abcd", 4) == "abcd"
