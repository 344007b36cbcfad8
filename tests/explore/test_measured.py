"""The loss of a landscape is the run's own: every loss of free training, its mean; of certified, its sum."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli.app import app
from equipoise.tasks import load

runner = CliRunner()
SHORT = ("--uncertified", "--epochs", "3", "--test-share", "0")
FREE = (*SHORT, "--width", "15")
LABELS = {2: ["ant", "bee"], 3: ["ant", "bee", "cat"]}


def invoke(*asked):
    return runner.invoke(app, [str(a) for a in asked])


def call(*asked):
    result = invoke(*asked, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def rows(classes, n=24):
    """Some of them twice: what is logged counts a row as often as it is there."""
    rng = np.random.default_rng(classes)
    X, y = rng.normal(size=(n, 3)), rng.integers(0, classes, size=n)
    y[:classes] = range(classes)
    X[:, 0] += y
    return np.concatenate([X, X[:5]]), np.array(LABELS[classes])[np.concatenate([y, y[:5]])]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Runs on tables of classes, made when they are asked for."""
    root = tmp_path_factory.mktemp("runs")

    def make(name, classes, *more):
        X, y = rows(classes)
        table = root / f"{classes}.csv"
        if not table.exists():
            lines = [",".join([*map(repr, map(float, x)), label]) for x, label in zip(X, y, strict=True)]
            table.write_text("\n".join(["a,b,c,kind", *lines, ""]))
        if not (root / name).exists():
            result = invoke("fit", table, "--out", root / name, "--quiet", "--no-report", *more)
            assert result.exit_code == 0, result.output
        return root / name

    return make


@pytest.mark.parametrize(
    ("name", "classes", "more", "loss"),
    [
        ("three", 3, FREE, "cross_entropy"),
        ("two", 2, FREE, "logistic"),
        ("two-ce", 2, (*FREE, "--loss", "cross_entropy"), "cross_entropy"),
        ("linear", 3, (*SHORT, "--model", "linear"), "cross_entropy"),
    ],
)
def test_the_loss_of_a_likelihood_is_that_of_the_probabilities(fitted, tmp_path, name, classes, more, loss):
    run = fitted(name, classes, *more)
    X, y = rows(classes)
    p = load(run).predict_proba(X)
    expected = -np.mean(np.log(p[range(len(y)), np.searchsorted(LABELS[classes], y)]))
    found = call("landscape", run, "--grid", "3", "--radius", "0.1", "--out", tmp_path)
    assert found["centre"] == pytest.approx(expected, rel=1e-4)
    assert found["loss"][1][1] == pytest.approx(expected, rel=1e-4)
    assert (found["loss_name"], found["reduction"], found["logged_as"]) == (loss, "mean", "loss")
    assert (found["rows"], found["rows_trained_on"]) == (29, 29)
    assert found["hessian_residual"] <= 1e-5 * found["hessian_lambda_max"]


def test_lines_and_paths_of_the_cross_entropy(fitted, tmp_path):
    one, two = (fitted(n, 3, *FREE, *more) for n, more in (("three", ()), ("seed", ("--seed", "1"))))
    there = call("landscape", one, "--to", two, "--grid", "4", "--out", tmp_path)
    back = call("landscape", two, "--line", "--grid", "3", "--out", tmp_path)
    assert there["loss"][2] == pytest.approx(there["centre"], rel=1e-4)
    assert there["loss"][6] == pytest.approx(back["centre"], rel=1e-4)
    assert back["loss"][1] == pytest.approx(back["centre"], rel=1e-4)
    path = call("landscape", one, "--path", "--grid", "3", "--out", tmp_path)
    assert path["path"]["moments"] == [0, 1, 2, 3]
    assert path["centre"] == there["centre"]


def test_a_hinge_is_called_as_fit_calls_it(fitted, tmp_path):
    run = fitted("hinge", 2, *FREE, "--loss", "hinge")
    X, y = rows(2)
    yhat = load(run).decide(X).numpy()
    found = call("landscape", run, "--line", "--grid", "3", "--out", tmp_path)
    expected = np.mean(np.maximum(0, 1 - np.where(y == "bee", 1, -1) * yhat) ** 2)
    assert found["centre"] == pytest.approx(expected, rel=1e-4)
    assert found["loss_name"] == "hinge"
    other = invoke("landscape", run, "--to", fitted("two", 2, *FREE), "--out", tmp_path, "--json")
    assert "differ in loss (hinge and logistic)" in json.loads(other.stdout)["message"]


def test_rows_that_patience_held_out_are_not_measured(fitted, tmp_path):
    run = fitted("patient", 3, *FREE, "--patience", "2")
    trained, held = call("landscape", run, "--line", "--grid", "3", "--out", tmp_path), load(run)
    X, y = rows(3)
    own = np.searchsorted(LABELS[3], y)
    each = -np.log(held.predict_proba(X)[range(len(y)), own])
    assert trained["rows_trained_on"] == len(y) - held.validation["rows"] < len(y)
    k = held.history.best
    total = trained["centre"] * trained["rows"] + held.history.test_loss[k] * held.validation["rows"]
    # The losses on record are those of float32, to its tolerance of 1e-4; answers are solved for in float64.
    assert total == pytest.approx(each.sum(), rel=1e-4)


def test_of_certified_training_it_is_the_sum_without_slack(fitted, tmp_path):
    run = fitted("certified", 3, "--steps", "4", "--width", "30", "--test-share", "0")
    found = call("landscape", run, "--line", "--grid", "3", "--out", tmp_path)
    assert found["centre"] == pytest.approx(load(run).history.plain_loss[-1], rel=1e-6)
    assert (found["loss_name"], found["reduction"]) == ("half_square", "sum")
    assert found["logged_as"] == "plain_loss"
    result = invoke("landscape", run, "--line", "--grid", "3", "--rows", "7", "--out", tmp_path)
    words = " ".join(result.stdout.split())
    assert "(half_square, sum over 7 of 24 rows; the run's plain_loss, without slack)" in words
    assert all(str(tmp_path / f) in "".join(result.stdout.split()) for f in ("landscape.json", "line.png"))


def test_figures_of_another_kind_make_room(fitted, tmp_path):
    run, out = fitted("three", 3, *FREE), tmp_path / "out"
    out.mkdir()
    (out / "line.png").write_text("of somebody else")  # there are no numbers beside it
    (out / "notes.txt").write_text("notes")
    asked = ("landscape", run, "--grid", "3", "--out", out)
    plane = {f"{n}.{form}" for n in ("contours", "surface") for form in ("svg", "png")}
    call(*asked)
    assert {f.name for f in out.iterdir()} == {"landscape.json", "notes.txt", "line.png", *plane}
    call(*asked, "--line")
    assert {f.name for f in out.iterdir()} == {"landscape.json", "notes.txt", "line.svg", "line.png"}
    call(*asked)
    assert {f.name for f in out.iterdir()} == {"landscape.json", "notes.txt", *plane}


def test_a_command_that_fails_while_drawing_leaves_all_as_it_was(fitted, tmp_path, monkeypatch):
    run = fitted("three", 3, *FREE)
    call("landscape", run, "--grid", "3", "--out", tmp_path)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("equipoise.plots.save", full)
    assert invoke("landscape", run, "--line", "--grid", "3", "--out", tmp_path).exit_code == 1
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


def test_a_radius_is_a_number(fitted):
    result = invoke("landscape", fitted("three", 3, *FREE), "--radius", "inf", "--json")
    assert result.exit_code == 2
    assert "--radius must be finite" in result.output


def test_the_seed_that_drew_the_rows_is_named_and_how_to_do_without(tmp_path):
    for name, seed in (("one", "0"), ("two", "1")):
        asked = ("--rows", "60", "--width", "40", "--steps", "1", "--seed", seed, "--quiet", "--no-report")
        assert invoke("fit", "digits", "--out", tmp_path / name, *asked).exit_code == 0
    told = json.loads(invoke("landscape", tmp_path / "one", "--to", tmp_path / "two", "--json").stdout)
    count = load(tmp_path / "one").validation and told["message"].split("digits, ")[1].split(" rows")[0]
    assert f"differ in data (digits, {count} rows each; --seed 0 and 1)" in told["message"]
    assert told["advice"] == ("Train both alike: only --steps may differ, and --seed without --rows.")


def test_named_data_are_found_where_they_lie_now(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, size=(30, 28, 28)).astype(np.uint8), np.arange(30) % 10
    (tmp_path / "then").mkdir()
    np.savez(tmp_path / "then" / "kmnist.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "then"))
    asked = ("--width", "20", "--steps", "1", "--quiet", "--no-report")
    assert invoke("fit", "kmnist", "--out", tmp_path / "run", *asked).exit_code == 0
    monkeypatch.delenv("EQUIPOISE_DATA")
    os.rename(tmp_path / "then", tmp_path / "now")
    where = ("--data-dir", tmp_path / "now", "--grid", "3", "--out", tmp_path / "out")
    assert call("landscape", tmp_path / "run", "--line", *where)["rows"] == 20
    assert call("landscape", tmp_path / "run", "--to", tmp_path / "run", *where)["rows"] == 20
    assert len(call("trajectory", tmp_path / "run", *where)["paths"]) == 8
    assert call("certify", tmp_path / "run", *where[:2])["end"]["claims"]
    assert call("diagnose", tmp_path / "run", *where[:2], "--rows", "2")["rows"] == 2
    assert call("suggest", tmp_path / "run", *where[:2])["theorem"] == "two_timescale"


@pytest.mark.parametrize(("count", "named"), [(None, True), (12, False)])
def test_every_row_that_is_followed_is_drawn(fitted, tmp_path, monkeypatch, count, named):
    run, drawn = fitted("three", 3, *FREE), {}
    from equipoise import plots

    def keep(figure, path, formats):
        drawn[path.name] = figure
        return save(figure, path, formats)

    save = plots.save
    monkeypatch.setattr(plots, "save", keep)
    found = call("trajectory", run, *(() if count is None else ("--rows", count)), "--out", tmp_path)
    count = count or 8
    paths, residuals = drawn["paths"].axes[0], drawn["residuals"].axes[0]
    for ax, ys in ((paths, [np.array(p)[:, 1] for p in found["paths"]]), (residuals, found["residuals"])):
        lines = ax.get_lines()
        assert len(lines) == len(ys) == count
        assert all(line.get_ydata() == pytest.approx(y) for line, y in zip(lines, ys, strict=True))
        names = [t.get_text() for t in ax.get_legend().get_texts()] if ax.get_legend() else []
        assert names == ([f"row {i}" for i in range(count)] if named else [])
        assert ax.get_title() == ("" if named else "12 rows")
    assert len({line.get_marker() == "None" for line in residuals.get_lines()}) == 1
    extent = np.ptp(np.concatenate([np.array(p) for p in found["paths"]]), axis=0)
    seen = [np.ptp(limits) for limits in (paths.get_xlim(), paths.get_ylim())]
    assert all(wide <= 1.3 * e for wide, e in zip(seen, extent, strict=True))
    assert np.array(found["arrows"]).shape == (15, 15, 2)

    over = drawn["training"].axes[0]
    assert over.get_xlabel() == found["unit"] == "epoch"
    drawn["training"].canvas.draw()
    assert all(tick == round(tick) for tick in over.get_yticks())


def test_either_every_curve_has_marks_or_none():
    from equipoise.report.views import draw_trajectory as _draw

    content = {
        "paths": [[[0.0, 0.0], [1.0, 1.0]]] * 2,
        "residuals": [0.5 ** np.arange(20), 0.5 ** np.arange(30)],
        "shares": (0.5, 0.5),
        "s": [0, 1],
        "t": [0, 1],
        "arrows": np.ones((2, 2, 2)),
        "unit": "epoch",
        "forward_steps": [],
    }
    long = _draw(content)
    assert set(long) == {"paths", "residuals"}
    assert [line.get_marker() for line in long["residuals"].axes[0].get_lines()] == ["None", "None"]
    short = _draw(content | {"residuals": [0.5 ** np.arange(20), 0.5 ** np.arange(9)]})
    assert [line.get_marker() for line in short["residuals"].axes[0].get_lines()] == ["o", "s"]


def test_a_network_that_is_not_proved_to_have_equilibria_has_no_loss_here(fitted, tmp_path, monkeypatch):
    def unproved(self):
        raise ValueError("not proved")

    run = fitted("three", 3, *FREE)
    monkeypatch.setattr(type(load(run).model), "check_wellposed", unproved)
    asked = ("landscape", run, "--grid", "3", "--out", tmp_path)
    found = call(*asked)
    assert found["centre"] is found["share_below_twice"] is None
    assert json.loads((tmp_path / "landscape.json").read_text()) == found
    assert found["reasons"] == {"equilibrium not proved unique": 9}
    words = " ".join(invoke(*asked).stdout.split())
    assert "loss here equilibrium not proved unique" in words
