"""equipoise verify: of a run and of a model file, going on where it stopped."""

import csv
import json

import pytest
import torch

import equipoise as eq
from equipoise.tasks import verified


def test_a_run_is_verified_and_goes_on_where_it_stopped(equipoise, trained, tmp_path, monkeypatch):
    asked = ("verify", trained.path, "--data", trained.table, "--unit", "raw", "--nodes", 30, "--out", "v")
    monkeypatch.setattr(verified, "PART", 20)
    result = equipoise(*asked, "--epsilon", "1/1000", "--epsilon", "0.001", "--rows", 30)  # the same twice
    assert result.exit_code == 0, result.output
    file = tmp_path / "v" / "verified.json"
    first = json.loads(file.read_text())
    at = first["epsilons"]["0.001"]
    assert len(at["proved"]) == len(at["margin"]) == 30
    assert sum(at["proved"]) > 20
    page = (tmp_path / "v" / "verified.html").read_text()
    assert "predictions verified" in page
    assert 'id="fig-verified' not in page  # of one ε the table tells all

    cut = {
        **first,
        "epsilons": {"0.001": {n: v[:20] for n, v in at.items() if n != "broken"} | {"broken": {}}},
    }
    file.write_text(json.dumps(cut))
    calls = []
    real = verified.verify_predictions
    monkeypatch.setattr(
        verified, "verify_predictions", lambda m, X, *a, **k: calls.append(len(X)) or real(m, X, *a, **k)
    )
    told = json.loads(equipoise(*asked, "--epsilon", "1/1000", "--rows", 30, "--json").stdout)
    assert calls == [10]  # the rest alone
    again = json.loads(file.read_text())["epsilons"]["0.001"]
    assert again["proved"] == at["proved"]
    assert told["shares"][0]["proved"] == sum(at["proved"]) / 30

    other = equipoise(*asked, "--epsilon", "1/1000", "--rows", 20)
    assert other.exit_code == 2
    assert "another --out" in other.stderr


def test_rows_of_a_run_keep_their_class_in_the_box_that_was_proved(equipoise, trained, tmp_path):
    task = verified.VerifyTask.of(trained.path, str(trained.table), rows=20, nodes=50, unit="raw")
    found = task.run([0.05], tmp_path)["epsilons"]["0.05"]
    model, g = task.model, torch.Generator().manual_seed(0)
    for _ in range(20):
        moved = task.X + 0.05 * (2 * torch.rand(task.X.shape, dtype=torch.float64, generator=g) - 1)
        said = model(task.prepare(moved)).argmax(dim=1)
        assert bool((said == task.y)[torch.tensor(found["proved"])].all())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--epsilon", "two"), "fraction such as 2/255"),
        (("--epsilon", "-1"), "≥ 0"),
        (("--epsilon", "1", "--norm", "l1"), "linf or l2"),
        (("--epsilon", "1", "--norm", "l2", "--unit", "raw"), "none of the network's"),
        (("--epsilon", "1", "--unit", "metres"), "raw, or deviations"),
        (("--epsilon", "1", "--box", "0"), "LOW,HIGH"),
        (("--epsilon", "1", "--box", "1,0"), "LOW,HIGH"),
        (("--epsilon", "1", "--box", "nan,nan"), "LOW,HIGH"),
        (("--epsilon", "inf"), "fraction such as 2/255"),
        (("--epsilon", "1e999"), "fraction such as 2/255"),
        (("--radius", "0"), "> 0"),
        (("--epsilon", "1", "--rows", "0"), "equal to 1"),
        (("--epsilon", "1", "--nodes", "-5"), "equal to 1"),
        ((), "--epsilon or --radius"),
    ],
)
def test_wrong_options_are_named(equipoise, trained, more, words):
    result = equipoise("verify", trained.path, "--data", trained.table, *more)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.replace("│", " ").split())


def test_a_model_file_takes_the_pixels_of_a_named_set(equipoise, tmp_path):
    g = torch.Generator().manual_seed(0)
    model = eq.Monotone(64, 6, outputs=10, output_bias=True, dtype=torch.float64, generator=g)
    model.save("m.safetensors")
    result = equipoise(
        "verify", "m.safetensors", "--data", "digits", "--epsilon", "0.01", "--rows", 12, "--json"
    )
    assert result.exit_code == 0, result.output
    share = json.loads(result.stdout)["shares"][0]
    assert share["rows"] == 12
    assert 0 <= share["proved"] <= share["not refuted"] <= 1
    page = (tmp_path / "m-verified" / "verified.html").read_text()
    assert "data:image/png" in page or share["not refuted"] < 1


def test_deviations_are_those_that_robust_training_counts(trained):
    """ε standard deviations of a column are ε/scale of its raw units, and a constant 1 does not move."""
    task = verified.VerifyTask.of(trained.path, str(trained.table), rows=5)
    assert task.unit == "deviations"
    assert task.box is None
    far = torch.full((5,), 0.1, dtype=torch.float64)
    sets = task.prepare.deviating(task.X, far, task)
    scale = torch.from_numpy(task.prepare.preparation.scale)
    assert torch.equal(sets["box"][0][:, -1], torch.ones(5).to(sets["box"][0]))
    assert torch.equal(sets["box"][1][:, -1], torch.ones(5).to(sets["box"][1]))
    assert torch.equal(sets["epsilon"], far)
    moved = task.prepare(task.X + 0.1 / scale)
    assert torch.allclose(
        (moved - task.prepare(task.X))[:, :-1].double(), torch.tensor(0.1).double(), atol=1e-5
    )


def test_radii_of_a_run_hold_and_are_gone_on_with(equipoise, trained, tmp_path, monkeypatch):
    asked = ("verify", trained.path, "--data", trained.table, "--radius", 0.5, "--norm", "l2", "--out", "v")
    monkeypatch.setattr(verified, "RADII", 2)
    told = json.loads(equipoise(*asked, "--rows", 4, "--nodes", 16, "--json").stdout)
    assert (told["unit"], told["norm"], told["shares"]) == ("deviations", "l2", [])
    at = json.loads((tmp_path / "v" / "verified.json").read_text())["radii"]["0.5"]
    proved, refuted = torch.tensor(at["proved"]), torch.tensor([v or 9.0 for v in at["refuted"]])
    assert len(proved) == 4
    assert bool((proved > 0).any() & (proved < refuted).all())
    task = verified.VerifyTask.of(trained.path, str(trained.table), rows=4, norm="l2")
    again = task._verified(torch.arange(4), proved.double(), 50)
    assert bool((again.proved | (proved == 0)).all())
    page = (tmp_path / "v" / "verified.html").read_text()
    assert "How far rows may move" in page
    assert "Share of rows proved against ε" in page
    assert "standard deviations of each column" in page
    monkeypatch.setattr(verified, "bisected", None)  # nothing is left to do
    assert equipoise(*asked, "--rows", 4, "--nodes", 16).exit_code == 0


def test_a_ball_of_pixels_is_a_ball_of_what_the_network_takes(tmp_path, equipoise):
    fitted = equipoise("fit", "digits", "--epochs", 4, "--rows", 300, "--width", 8, "--out", "run", "--json")
    assert fitted.exit_code == 0, fitted.output
    task = verified.VerifyTask.of(tmp_path / "run", "digits", rows=6, norm="l2")
    assert (task.unit, task.box) == ("raw", (0.0, 1.0))
    far = torch.full((6,), 0.05, dtype=torch.float64)
    sets = task.prepare.moving(task.X, far, task)
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        step = torch.randn(task.X.shape, dtype=torch.float64, generator=g)
        x = (task.X + 0.05 * step / step.norm(dim=1, keepdim=True)).clamp(0, 1)
        moved = task.prepare(x).double()
        assert bool(((moved >= sets["box"][0]) & (moved <= sets["box"][1])).all())
        assert bool(((moved - task.prepare(task.X).double()).norm(dim=1) <= sets["epsilon"]).all())


def test_rows_of_a_class_that_was_never_trained_on_are_refused(equipoise, trained, tmp_path):
    """Such a class was read as the one after it in the alphabet, and its rows were proved to be of that."""
    classes = verified.VerifyTask.of(trained.path, str(trained.table), rows=1).classes
    strange = classes[-1][:2]  # comes before the last class
    assert classes[-2] < strange < classes[-1]
    with open(trained.table, newline="") as file:
        rows = list(csv.reader(file))
    at = rows[0].index(json.loads((trained.path / "data.json").read_text())["target"])
    assert rows[3][at] in classes
    rows[3][at] = strange
    with open(tmp_path / "strange.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows[:4])
    asked = ("verify", trained.path, "--data", tmp_path / "strange.csv", "--epsilon", "0.01", "--out", "v")
    result = equipoise(*asked)
    assert result.exit_code != 0
    assert f"Got {strange} in row 2" in " ".join(result.stderr.replace("│", " ").split())
    assert not (tmp_path / "v" / "verified.json").exists()
