"""equipoise verify: of a run and of a model file, going on where it stopped."""

import json

import pytest
import torch

import equipoise as eq
from equipoise.tasks import verified


def test_a_run_is_verified_and_goes_on_where_it_stopped(equipoise, trained, tmp_path, monkeypatch):
    asked = ("verify", trained.path, "--data", trained.table, "--box", "none", "--nodes", 30, "--out", "v")
    monkeypatch.setattr(verified, "PART", 20)
    result = equipoise(*asked, "--epsilon", "1/1000", "--rows", 30)
    assert result.exit_code == 0, result.output
    file = tmp_path / "v" / "verified.json"
    first = json.loads(file.read_text())
    at = first["epsilons"]["0.001"]
    assert len(at["proved"]) == len(at["margin"]) == 30
    assert sum(at["proved"]) > 20
    page = (tmp_path / "v" / "verified.html").read_text()
    assert "predictions verified" in page
    assert "<svg" in page

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
    task = verified.VerifyTask.of(trained.path, str(trained.table), rows=20, box=None, nodes=50)
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
        (("--epsilon", "1", "--norm", "l2"), "none of the network's"),
        (("--epsilon", "1", "--box", "0"), "LOW,HIGH"),
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
