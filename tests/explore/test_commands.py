"""equipoise landscape RUN and equipoise trajectory RUN: numbers and figures from a finished run alone."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from once import made_once
from typer.testing import CliRunner

from equipoise.cli.app import app

runner = CliRunner()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two small runs on one table, made once a session, in a copy."""
    made = made_once(tmp_path_factory, "explored", train_two)
    return shutil.copytree(made, tmp_path_factory.mktemp("explored") / "explored")


def train_two(root):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3))
    rows = "\n".join(",".join(map(str, [*x, x[0] - x[1]])) for x in X)
    (root / "table.csv").write_text(f"a,b,c,y\n{rows}\n")
    for name, steps in (("one", "4"), ("two", "2")):
        train(root, name, "--steps", steps)


def train(root, name, *more):
    asked = [
        "fit",
        root / "table.csv",
        "--out",
        root / name,
        "--width",
        "40",
        "--quiet",
        "--no-report",
        *more,
    ]
    result = runner.invoke(app, [str(a) for a in asked])
    assert result.exit_code == 0, result.output


def call(*asked):
    result = runner.invoke(app, [str(a) for a in asked])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_plane_is_measured_and_drawn(trained):
    found = call("landscape", trained / "one", "--grid", "5", "--radius", "0.2", "--json")
    loss = np.array(found["loss"], dtype=float)
    assert loss.shape == (5, 5)
    assert loss[2, 2] == pytest.approx(found["centre"], rel=1e-5)
    assert 0 <= found["hessian_residual"] <= 1e-6 * found["hessian_lambda_max"]
    where = trained / "one" / "landscape"
    assert json.loads((where / "landscape.json").read_text()) == found
    for name in ("contours.svg", "contours.png", "surface.svg", "surface.png"):
        assert (where / name).stat().st_size > 1000


def test_the_line_to_another_run_ends_in_it(trained, tmp_path):
    asked = ("--grid", "4", "--json", "--out", tmp_path)
    there = call("landscape", trained / "one", "--to", trained / "two", *asked)
    back = call("landscape", trained / "two", "--to", trained / "one", *asked)
    assert there["s"] == pytest.approx(np.linspace(-0.5, 1.5, 9))
    assert there["loss"][2] == pytest.approx(there["centre"], rel=1e-5)
    assert there["loss"][6] == pytest.approx(back["centre"], rel=1e-5)
    assert (tmp_path / "line.svg").exists()


def test_the_sharpness_is_the_same_every_time_and_for_every_seed(trained, tmp_path):
    asked = ("landscape", trained / "one", "--line", "--grid", "3", "--json", "--out", tmp_path)
    first, again, other = (call(*asked, "--seed", s) for s in (0, 0, 1))
    assert again == first
    assert other["loss"] != first["loss"]
    assert other["hessian_lambda_max"] == pytest.approx(first["hessian_lambda_max"], rel=1e-6)


FREE = ("--uncertified", "--epochs", "1", "--test-share", "0", "--loss", "square")


@pytest.mark.parametrize(
    ("one", "two", "what"),
    [
        (
            ("--model", "scaled-relu", "--gamma", "0.2"),
            ("--model", "scaled-relu", "--gamma", "0.7"),
            "gamma (0.2",
        ),
        ((), ("--model", "monotone"), "class (GaussianReLU and Monotone)"),
        ((), ("--rows", "20"), "data (table.csv, 24 rows; and table.csv, 20 rows)"),
        (
            FREE,
            (*FREE, "--patience", "1"),
            "preparation of the rows (mean, scale, target_mean, target_scale)",
        ),
        ((), ("--uncertified", "--epochs", "1", "--loss", "square"), "loss (half_square and square)"),
        ((), ("--dtype", "float32"), "parameter"),
    ],
)
def test_runs_that_differ_in_more_than_weights_have_no_line(trained, tmp_path, one, two, what):
    (tmp_path / "table.csv").write_text((trained / "table.csv").read_text())
    for name, more in (("one", one), ("two", two)):
        train(tmp_path, name, *(() if "--uncertified" in more else ("--steps", "1")), *more)
    result = runner.invoke(app, ["landscape", str(tmp_path / "one"), "--to", str(tmp_path / "two"), "--json"])
    assert result.exit_code == 2
    assert what in json.loads(result.stdout)["message"]
    assert not (tmp_path / "one" / "landscape").exists()


@pytest.mark.parametrize("option", [("--radius", "1.0"), ("--line",), ("--seed", "0")])
def test_an_option_that_would_change_nothing_is_refused(trained, option):
    asked = ["landscape", str(trained / "one"), "--to", str(trained / "two"), "--json", *option]
    result = runner.invoke(app, asked)
    assert result.exit_code == 2
    assert f"{option[0]} would change nothing" in json.loads(result.stdout)["message"]


def test_a_random_line_is_one_direction(trained, tmp_path):
    found = call("landscape", trained / "one", "--line", "--grid", "5", "--json", "--out", tmp_path)
    assert found["loss"][2] == pytest.approx(found["centre"], rel=1e-5)


def test_a_trajectory_is_followed_and_drawn(trained):
    found = call("trajectory", trained / "one", "--rows", "4", "--grid", "5", "--json")
    assert len(found["paths"]) == 4
    assert all(len(p) == len(r) for p, r in zip(found["paths"], found["residuals"], strict=True))
    assert all(found["converged"])
    assert all(r[-1] < 1e-6 for r in found["residuals"])
    assert np.array(found["arrows"]).shape == (5, 5, 2)
    for name in ("paths.svg", "residuals.png", "training.svg"):
        assert (trained / "one" / "trajectory" / name).stat().st_size > 1000


@pytest.mark.parametrize("command", ["landscape", "trajectory"])
def test_a_run_that_is_not_there_is_named(command, tmp_path):
    result = runner.invoke(app, [command, str(tmp_path / "nothing")])
    assert result.exit_code == 2
    assert "no such run" in result.output
