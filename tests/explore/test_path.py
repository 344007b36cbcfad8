"""A training repeated: the run's own weights on the way, its plane as by numpy, nothing of it changed."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from once import made_once
from typer.testing import CliRunner

from equipoise.cli.app import app
from equipoise.explore import departure, last_moment, training_path
from equipoise.explore.survey import axes_around
from equipoise.models.saving import load as load_model
from equipoise.plots import contours, to_svg
from equipoise.report.words import percent
from equipoise.tasks import Recipe, load
from equipoise.train.checkpoint import Checkpoints

runner = CliRunner()
KINDS = {
    "certified": ("--width", "40", "--steps", "10"),
    "free": ("--width", "20", "--uncertified", "--epochs", "6", "--batch-size", "8", "--rate", "0.02"),
}
PREFIX = {"certified": "parameter.", "free": "model/"}


def invoke(*asked):
    return runner.invoke(app, [str(a) for a in asked])


def write_table(path):
    X = np.random.default_rng(0).normal(size=(30, 3))
    rows = "\n".join(",".join(map(str, [*x, x[0] - x[1] * x[2]])) for x in X)
    path.write_text(f"a,b,c,y\n{rows}\n")
    return X, X[:, 0] - X[:, 1] * X[:, 2]


def train(root, name, *more):
    asked = ("fit", root / "table.csv", "--out", root / name, "--test-share", "0", "--quiet", "--no-report")
    result = invoke(*asked, *more)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of each kind, made once a session, in a copy."""

    def make(root):
        write_table(root / "table.csv")
        for name, more in KINDS.items():
            train(root, name, *more)

    made = made_once(tmp_path_factory, "paths", make)
    return shutil.copytree(made, tmp_path_factory.mktemp("paths") / "paths")


def repeated(run, every=1):
    X, y = write_table(run.parent / "again.csv")
    return training_path(X, y, "regression", load(run).recipe, every=every)


def flat(weights):
    return np.concatenate([p.double().numpy().ravel() for p in weights.values()])


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_training_passes_through_the_weights_of_the_run(trained, kind):
    run = trained / kind
    path, stored = repeated(run), load(run)
    weights = path.weights
    assert list(weights) == list(range({"certified": 11, "free": 7}[kind]))
    start = stored.recipe.build(stored.preparation.inputs, stored.preparation.outputs)
    model = load_model(run / "model.safetensors")
    for at, network in ((0, start), (max(weights), model)):
        assert all(torch.equal(weights[at][n], p) for n, p in network.named_parameters())
    assert departure(path.fitted.model, model) == 0
    on_disk = Checkpoints(run / "checkpoints")
    assert (
        on_disk.steps()[0] == {"certified": 5, "free": 20}[kind]
    )  # of free training: epoch 5, 4 batches each
    earlier = on_disk.read(on_disk.steps()[0]).tensors
    assert all(torch.equal(w, earlier[PREFIX[kind] + n]) for n, w in weights[5].items())


def test_the_path_of_certified_training_is_as_far_from_its_start_as_was_measured(trained):
    path, travelled = repeated(trained / "certified", every=3), load(trained / "certified").history.travelled
    assert list(path.weights) == [0, 3, 6, 9, 10]
    for k, weights in path.weights.items():
        for name, w in weights.items():
            assert float((w - path.weights[0][name]).norm()) == pytest.approx(travelled[name][k], rel=1e-12)


def test_a_path_ends_where_patience_has_returned_to():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(25, 3))
    recipe = Recipe(width=15, certified=False, epochs=30, patience=2, rate=0.05)
    path = training_path(X, X[:, 0] * X[:, 1], "regression", recipe)
    history = path.fitted.history
    assert history.best is not None
    assert last_moment(history) == history.best == max(path.weights) < history.steps
    end = dict(path.fitted.model.named_parameters())
    assert all(torch.equal(w, end[n]) for n, w in path.weights[history.best].items())


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_draws_the_loss_in_the_plane_of_the_path(trained, tmp_path, kind):
    run = trained / kind
    before = {f: f.read_bytes() for f in sorted(run.rglob("*")) if f.is_file()}
    result = invoke("landscape", run, "--path", "--grid", "6", "--json", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert {f: f.read_bytes() for f in sorted(run.rglob("*")) if f.is_file()} == before
    found = json.loads(result.stdout)
    assert json.loads((tmp_path / "landscape.json").read_text()) == found
    path = found["path"]
    assert path["unit"] == {"certified": "step", "free": "epoch"}[kind]
    assert path["departure"] == 0

    weights = repeated(run).weights
    assert path["moments"] == list(weights)
    points = np.stack([flat(w) for w in weights.values()])
    centred = points - points.mean(axis=0)
    _, sizes, V = np.linalg.svd(centred, full_matrices=False)
    assert path["shares"] == pytest.approx((sizes**2 / np.sum(sizes**2))[:2], rel=1e-9)
    assert path["share"] == sum(path["shares"])
    way = np.array(path["coordinates"])
    assert np.abs(way) == pytest.approx(np.abs((points - points[-1]) @ V[:2].T), abs=1e-9)

    s, t = np.array(found["s"]), np.array(found["t"])
    loss = np.array(found["loss"], dtype=float)
    assert loss[t == 0, s == 0] == pytest.approx([found["centre"]], rel=1e-3)  # the run itself, in float32
    assert found["centre"] > 0
    assert sum(found["reasons"].values()) == np.isnan(loss).sum()
    first, second = (f"{100 * share:.1f} %" for share in path["shares"])
    expected = contours(
        s,
        t,
        loss,
        log=True,
        paths={"training, ○ to ●": way},
        x=f"first component of the path ({first})",
        y=f"second component ({second})",
        name={"certified": "summed", "free": "mean"}[kind] + " half square of the plane's points",
        masked="no loss to show",
    )
    assert (tmp_path / "path.svg").read_text(encoding="utf-8") == to_svg(expected)
    assert (tmp_path / "path.png").stat().st_size > 1000


def test_the_words_give_the_share_and_say_that_the_training_came_out_again(trained, tmp_path):
    run = trained / "certified"
    result = invoke("landscape", run, "--path", "--grid", "3", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    share = json.loads((tmp_path / "landscape.json").read_text())["path"]["share"]
    assert (
        "11 moments, step 0 to 10; the training was repeated and reached the run's weights bit for bit"
        in words
    )
    assert f"holds {' '.join(percent(share).split())} of the path's variance" in words
    assert "step 10/10" in result.stderr


@pytest.mark.parametrize(("factor", "code"), [(1 + 1e-4, 1), (1 + 1e-9, 0)])
def test_weights_that_come_out_otherwise_are_refused_or_told(trained, tmp_path, monkeypatch, factor, code):
    from equipoise.explore import path as module

    def otherwise(*args, **options):
        fitted = fit(*args, **options)
        with torch.no_grad():
            fitted.model.readout_weight.mul_(factor)
        return fitted

    fit = module.fit
    monkeypatch.setattr(module, "fit", otherwise)
    out = tmp_path / "out"
    result = invoke("landscape", trained / "certified", "--path", "--grid", "3", "--out", out)
    assert result.exit_code == code
    if code:
        assert "does not repeat itself" in result.output
        assert "Their relative difference is 0.0001" in " ".join(result.output.replace("│", " ").split())
        assert not out.exists()
    else:
        assert "run's weights up to a relative 10⁻⁹" in " ".join(result.output.split())


@pytest.mark.parametrize("option", [("--to", "other"), ("--radius", "1"), ("--line",), ("--seed", "0")])
def test_an_option_that_a_path_leaves_no_room_for_is_refused(trained, option):
    result = invoke("landscape", trained / "certified", "--path", "--json", *option)
    assert result.exit_code == 2
    assert f"{option[0]} would change nothing" in json.loads(result.stdout)["message"]


def test_a_training_of_one_step_has_no_plane(tmp_path):
    write_table(tmp_path / "table.csv")
    train(tmp_path, "run", "--width", "20", "--steps", "1")
    result = invoke("landscape", tmp_path / "run", "--path", "--json")
    assert result.exit_code == 2
    assert "needs 2 steps or more" in json.loads(result.stdout)["message"]
    (tmp_path / "table.csv").unlink()
    result = invoke("landscape", tmp_path / "run", "--path", "--json")
    assert result.exit_code == 3
    assert "table.csv" in json.loads(result.stdout)["message"]
    assert not (tmp_path / "run" / "landscape").exists()


@pytest.mark.parametrize("points", [3, 4, 21])
@pytest.mark.parametrize(
    "way", [[[-5, 1], [-2, 3], [0, 0]], [[4, 0], [2, 0], [0, 0]], [[-1, 2], [3, -9], [0, 0]]]
)
def test_the_axes_hold_the_path_with_room_and_its_end_is_on_the_grid(way, points):
    way = np.array(way, dtype=float)
    axes = axes_around(way, points)
    longest = np.ptp(way, axis=0).max()
    for axis, along in zip(axes, way.T, strict=True):
        assert len(axis) == points
        assert 0 in axis
        assert np.diff(axis) == pytest.approx(np.full(points - 1, axis[1] - axis[0]))
        assert axis[0] <= along.min() - 0.15 * np.ptp(along)
        assert axis[-1] >= along.max() + 0.15 * np.ptp(along)
        needed = max(1.3 * np.ptp(along), 0.1 * longest)
        assert np.ptp(axis) >= 0.9999 * needed
        assert points < 21 or np.ptp(axis) <= 1.1 * needed
