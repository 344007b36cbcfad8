import numpy as np
import pytest
import torch

from equipoise.papers.xie2021 import digits


def test_a_cell_of_the_grid_trains_and_is_reported_by_seed():
    columns = ("none", "SAM ½‖z‖²", "prox .05‖z‖₁")
    cells = [digits.cell(1.0, column, "tiny", seeds=2) for column in columns]
    for cell, column in zip(cells, columns, strict=True):
        assert (cell["alpha"], cell["column"]) == (1.0, column)
        assert len(cell["accuracies"]) == 2
        assert np.mean(cell["accuracies"]) > 0.2  # a tenth by chance
        assert cell["parameters"] == 2 * (64 * 64 + 64 * 64 + 64) + 64 * 10
    plain, sam, prox = cells
    assert prox["zeros"] > 0.05 > plain["zeros"]
    assert sam["residual"] > plain["residual"]  # SAM is not at a fixed point after 20 steps


@pytest.mark.parametrize("column", list(digits.COLUMNS))
def test_every_column_takes_finite_steps_at_rate_one_tenth(column):
    model = digits.build(0.4, digits.COLUMNS[column](), 0)
    X, y, *_ = digits._digits()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(X[:128]), y[:128]).backward()
        optimiser.step()
        model.project_()
    assert all(torch.isfinite(p).all() for p in model.parameters())


# -- verdicts ------------------------------------------------------------------------------------------------

SEEDS = (-0.01, 0.0, 0.01)
OPEN = "undecided"
SMALL = {"λ‖z‖₁": (3.0, 2.0, 1.0), "λ‖z‖²": (9.0, 3.0, 1.0)}


def grid(plain=(0.5, 0.9, 0.92), gains=None, sizes=SMALL, best=0.0):
    """Accuracies without a regulariser at α = .1, .4 and 1, what each column and the best λ add."""
    order = [c for c in digits.COLUMNS if c != "none"]
    gains = {"none": 0.0} | {c: 0.01 * (1 + (c in digits.DECORRELATION)) for c in order} | (gains or {})
    gains[digits.DECORRELATION[1]] = gains.get(digits.DECORRELATION[1], 0) + 0.005
    cell = lambda a: {"accuracies": [a + d for d in SEEDS], "norm": 1.0}
    cells = {
        f"{alpha:g}": {c: cell(a + gain) for c, gain in gains.items()}
        for alpha, a in zip((0.1, 0.4, 1.0), plain, strict=True)
    }
    sweep = lambda kind, values: {
        f"{w:g}": cell(plain[-1] + best - i / 10) | {"sizes": [v + d for d in SEEDS]}
        for i, (w, v) in enumerate(zip(digits.SWEEPS[kind][1], values, strict=True))
    }
    return {"cells": cells, "sweeps": {kind: sweep(kind, values) for kind, values in sizes.items()}}


def verdicts(**how):
    return [j.verdict for j in digits._judge_table3(grid(**how))]


def test_alpha_and_regularisers_are_judged_by_their_accuracies():
    assert verdicts()[:5] == ["agree"] * 5
    assert verdicts(plain=(0.5, 0.8, 0.92))[0] == "differs"  # α = .4 is far behind as well
    assert verdicts(plain=(0.91, 0.9, 0.92))[1] == "differs"
    assert verdicts(plain=(0.87, 0.9, 0.92))[1] == OPEN  # as far behind as that
    worse = dict.fromkeys((c for c in digits.COLUMNS if c != "none"), -0.02)
    assert verdicts(gains=worse)[2] == "differs"
    layers = dict.fromkeys(digits.PAIRS.values(), -0.1)
    assert verdicts(gains=layers)[3:5] == ["differs", "differs"]
    assert verdicts(gains={"SAM ½‖z‖²": 0.2})[4] == "differs"  # one R above decorrelation is enough
    assert verdicts(gains={"prox .1‖z‖²": 0.2})[3:5] == ["agree", "differs"]


def test_what_differs_is_told_by_alpha():
    worse = dict.fromkeys((c for c in digits.COLUMNS if c != "none"), -0.02)
    measured = grid(gains=worse | dict.fromkeys(digits.PAIRS.values(), -0.1))
    found = digits._judge_table3(measured)
    assert [j.verdict for j in found[2:5]] == ["differs"] * 3
    assert [j.reason for j in found[2:4]] == ["", ""]  # layers lose as much at every α
    for column in digits.PAIRS.values():
        measured["cells"]["0.1"][column]["accuracies"] = [0.2, 0.21, 0.22]
    found = digits._judge_table3(measured)
    assert [j.verdict for j in found[2:5]] == ["differs"] * 3
    assert "change by layers in points: -20.0 at α = 0.1, -7.2 at α = 0.4" in found[2].reason
    assert "layer less SAM in points: -27.0 at α = 0.1, -7.8 at α = 0.4" in found[3].reason
    assert not any(j.reason for j in digits._judge_table3(grid())[2:5])


def test_only_what_is_better_than_decorrelation_is_named():
    reason = digits._judge_table3(grid(gains={"prox .1‖z‖²": 0.2}))[4].reason
    layer = digits.DECORRELATION[1]
    assert reason.startswith(f"{layer} less prox .1‖z‖² in points: -17.5 at α = 0.1")
    assert ";" not in reason


def test_the_size_of_features_is_judged_along_lambda():
    assert verdicts(best=0.02)[5:] == ["agree"] * 4
    assert verdicts(best=-0.02)[5:] == ["agree", "differs"] * 2
    assert verdicts()[6] == OPEN
    assert verdicts(sizes={**SMALL, "λ‖z‖²": (1.0, 3.0, 9.0)})[5::2] == ["agree", "differs"]
    assert verdicts(sizes={**SMALL, "λ‖z‖₁": (1.0, 1.0, 1.0)})[5] == OPEN


def test_a_layer_makes_small_what_its_lambda_weighs():
    for kind, (_, weights, _) in digits.SWEEPS.items():
        first, last = (digits.sweep(kind, w, "tiny", 1) for w in (weights[0], weights[-1]))
        assert last["sizes"][0] < 0.5 * first["sizes"][0]
        assert len(first["accuracies"]) == 1


def test_the_legend_of_seven_columns_covers_no_curve(monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(
        digits.Page, "figure", lambda page, name, figure, caption: drawn.update({name: figure})
    )
    digits._draw_table3(grid(), digits.Page(tmp_path))
    figure, (ax,) = drawn["accuracy"], drawn["accuracy"].axes
    figure.canvas.draw()
    assert len(ax.get_legend().get_texts()) == len(digits.COLUMNS)
    assert ax.get_legend().get_window_extent().y0 >= ax.get_window_extent().y1
    assert len(drawn["sizes"].axes) == len(digits.SWEEPS)
    assert len(ax.collections) == len(digits.COLUMNS)  # whiskers each, of the seeds
    for line, whiskers, column in zip(ax.get_lines(), ax.collections, digits.COLUMNS, strict=True):
        scores = np.array([100 * np.array(r[column]["accuracies"]) for r in grid()["cells"].values()])
        assert line.get_ydata() == pytest.approx(scores.mean(axis=1))
        ends = {
            a: (m - sd, m + sd)
            for a, m, sd in zip(
                line.get_xdata(), scores.mean(axis=1), scores.std(axis=1, ddof=1), strict=True
            )
        }
        assert whiskers.get_paths()
        for path in whiskers.get_paths():
            (a, low), (_, high) = path.vertices
            assert (low, high) == pytest.approx(ends[a])
