"""equipoise fit: data in; a network, what is proved of it and a report out; and nothing of bad data."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cli.commands import SMALL, write_flowers, write_houses
from equipoise.tasks import Run

FILES = {
    "certificate.json",
    "checkpoints",
    "config.toml",
    "data.json",
    "findings.json",
    "fitted.json",
    "history.json",
    "metrics.jsonl",
    "model.safetensors",
    "preparation.safetensors",
    "report.html",
    "run.json",
    "timing.json",
    "wellposed.json",
}


def visible(path) -> set[str]:
    return {p.name for p in path.iterdir() if not p.name.startswith(".")}


def test_a_table_becomes_a_run_with_a_certificate_and_a_report(trained):
    assert visible(trained.path) == FILES
    run = Run.open(trained.path)
    assert run.state == "finished"
    assert run.damaged() == []
    assert run.config["data"] == {"source": str(trained.table), "test_share": 0.2, "split_seed": 0}
    assert run.config["recipe"]["width"] == 24
    assert run.data["classes"] == ["setosa", "versi color", "virgi,nica"]
    assert (run.data["rows"], run.data["test_rows"], run.data["columns"]) == (36, 9, 2)
    assert run.data["features"] == ["length", "width"]
    results = run.status["results"]
    assert results["verdict"] == results["wellposed"] == "proved"
    assert results["score"] == results["scores"]["test"]["accuracy"] > 0.8
    assert [r["step"] for r in run.metrics.read()] == list(range(7))
    said = trained.result.stdout
    for words in (
        "36 rows to train on, 9 to test on",
        "proved: L(k) ≤",
        "every input has exactly one",
        "report.html",
    ):
        assert words in said
    assert "step 6/6" in trained.result.stderr
    assert "flowers.csv" in (trained.path / "report.html").read_text()


def test_numbers_named_data_and_json(equipoise, tmp_path):
    table = write_houses(tmp_path / "my houses!.csv")
    result = equipoise("fit", table, *SMALL, "--target", "price", "--json", "--no-report")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["run"] == "runs/my-houses-auto-1"
    assert told["report"] is None
    assert told["results"]["score_name"] == "r2"
    assert told["results"]["score"] > 0.9
    assert "step 6/6" in result.stderr  # progress, which is no part of the answer
    again = equipoise("fit", "synthetic-moons", "--quiet", *SMALL)
    assert (again.exit_code, again.output) == (0, "")
    assert Run.open("runs/synthetic-moons-auto-1").data["split"]


def test_one_seed_is_one_network(equipoise, tmp_path):
    table = write_flowers(tmp_path / "f.csv")
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert (
            equipoise("fit", table, *SMALL, "--seed", seed, "--out", out, "-q", "--no-report").exit_code == 0
        )
    assert Run.open("a").status["files"] == Run.open("b").status["files"]
    a, b, c = (load_file(tmp_path / out / "model.safetensors") for out in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["W"], c["W"])


def test_a_test_file_is_matched_by_column_names(equipoise, tmp_path):
    table = write_flowers(tmp_path / "f.csv")
    header, *lines = write_flowers(tmp_path / "g.csv", rows=12, seed=5).read_text().splitlines()
    turned = [",".join([b, a, *rest]) for a, b, *rest in (line.split(",", 2) for line in (header, *lines))]
    (tmp_path / "g.csv").write_text("\n".join(turned))
    result = equipoise(
        "fit", table, *SMALL, "--test", tmp_path / "g.csv", "--out", "a", "--json", "--no-report"
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["results"]["scores"]
    assert told["test"]["rows"] == 12
    assert told["test"]["accuracy"] > 0.8
    assert told["training"]["rows"] == 45


def test_a_test_file_of_a_few_rows_has_the_kind_of_the_table(equipoise, tmp_path):
    labelled = lambda rows: "\n".join(["a,b,grade", *(f"{i % 7}.5,{i % 8},{i % 8}" for i in range(rows))])
    (tmp_path / "t.csv").write_text(labelled(160))
    (tmp_path / "u.csv").write_text(labelled(10))
    result = equipoise(
        "fit", "t.csv", *SMALL, "--test", "u.csv", "--kind", "classification", "--out", "a", "--no-report"
    )
    assert result.exit_code == 0, result.output
    assert "test_accuracy" in (tmp_path / "a" / "metrics.jsonl").read_text()


def test_some_of_the_rows_hold_every_class(equipoise, tmp_path):
    kinds = ["p"] * 150 + ["q"] * 145 + ["rare"] * 5
    lines = [f"{i % 13},{(7 * i) % 11},{kind}" for i, kind in enumerate(kinds)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,kind", *lines]))
    result = equipoise("fit", "t.csv", *SMALL, "--rows", "20", "--out", "a", "--no-report")
    assert result.exit_code == 0, result.output
    assert 19 <= Run.open("a").data["rows"] <= 22


def test_numbers_have_no_accuracy_and_tables_no_images(equipoise, tmp_path):
    table = write_houses(tmp_path / "h.csv")
    (tmp_path / "two.csv").write_text("\n".join(table.read_text().splitlines()[:3]))
    result = equipoise("fit", table, *SMALL, "--test", "two.csv", "--out", "a", "--no-report")
    assert result.exit_code == 0, result.output
    metrics = (tmp_path / "a" / "metrics.jsonl").read_text()
    assert "test_loss" in metrics
    assert "accuracy" not in metrics
    result = equipoise("fit", "digits", *SMALL, "--rows", "40", "--out", "b", "--no-report")
    assert result.exit_code == 0, result.output
    pixels = [",".join(f"p{i}" for i in range(64)), ",".join("3" for _ in range(64))]
    (tmp_path / "new.csv").write_text("\n".join(pixels))
    assert "image" not in json.loads(equipoise("predict", "b", "new.csv", "--json").stdout)["answers"]


def test_some_of_the_rows_and_a_folder_of_images(equipoise, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    for name, brightest in (("cats", 100), ("dogs", 255)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(12):
            pixels = draw.integers(0, brightest, (5, 4)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{i}.png")
    result = equipoise("fit", "pets", *SMALL, "--rows", "10", "--out", "a", "--json", "--no-report")
    assert result.exit_code == 0, result.output
    run = Run.open("a")
    assert (run.data["rows"], run.data["test_rows"], run.data["image_shape"]) == (10, 4, [5, 4])
    assert "10 drawn at random" in run.data["split"]
    told = json.loads(equipoise("predict", "a", "pets", "--json").stdout)["answers"]
    assert told["image"][0] == "cats/0.png"
    right = [image.split("/")[0] == said for image, said in zip(told["image"], told["folder"], strict=True)]
    assert np.mean(right) > 0.8


def test_what_does_not_fit_into_memory_is_refused_with_a_number_that_does(equipoise, tmp_path, monkeypatch):
    table = write_flowers(tmp_path / "f.csv")
    monkeypatch.setattr("equipoise.memory.available", lambda: 40_000.0)  # such as a container's limit
    result = equipoise("fit", table, "--width", "24", "--theorem", "safeguarded")
    assert result.exit_code == 1
    said = " ".join(result.stderr.replace("│", " ").split())
    assert "36 rows at width 24 needs about 82.9 kB of memory; 40 kB can be had" in said
    assert "About 8 rows would fit" in said
    assert visible(tmp_path) == {"f.csv"}


def test_a_table_too_large_for_certified_training_is_refused_unread(equipoise, tmp_path, monkeypatch):
    table = write_flowers(tmp_path / "f.csv")
    monkeypatch.setattr("equipoise.data.tables.read_cells", lambda *_: pytest.fail("was read"))
    result = equipoise("fit", table, "--width", "10000000000")
    assert result.exit_code == 1
    assert "There is not enough memory" in result.stderr
    assert not list(tmp_path.glob("runs/*"))


# -- data that cannot be used ------------------------------------------------------------------------------

GOOD = ["a,b,y", "1,2,0", "2,3,1", "3,5,0", "4,8,1", "5,1,0", "6,2,1"]
BAD = {
    "missing target": ("a,b,y\n1,2,0\n2,3,\n3,5,0\n4,8,1\n", ["target 'y'", "missing value", "line 3"]),
    "target all missing": ("a,b,y\n1,2,\n2,3,\n3,5,\n", ["target 'y'", "line 2"]),
    "constant columns": (
        "a,b,y\n1,7,0\n1,7,1\n1,7,0\n1,7,1\n",
        ["no column is left", "'b' is constant", "7"],
    ),
    "duplicate header": ("a,a,y\n1,2,0\n2,3,1\n3,4,0\n", ["columns 1 and 2", "'a'"]),
    "ragged rows": ("a,b,y\n1,2,0\n2,3\n3,5,0\n4,8,1\n", ["2 cells instead of the header's 3", "line 3"]),
    "text in a feature": ("a,b,y\n1,2,0\n2,big,1\n3,5,0\n4,8,1\n", ["column 'b'", "'big'", "line 3"]),
    "one class": ("a,b,y\n1,2,0\n2,3,0\n3,5,0\n4,8,0\n", ["target 'y'"]),
    "empty": ("", ["is empty"]),
    "header only": ("a,b,y\n", ["no data rows"]),
    "no header": ("1,2,0\n2,3,1\n3,4,0\n", ["must be a header"]),
    "infinite": ("a,b,y\n1,2,0\n2,inf,1\n3,5,0\n4,8,1\n", ["column 'b'", "infinite", "line 3"]),
    "semicolons": ("a;b;y\n1;2;0\n2;3;1\n3;4;0\n", ["a semicolon"]),
    "binary": (b"\x00\x01\x02\xff" * 50, ["binary"]),
    "excel": (b"PK\x03\x04" + b"x" * 100, ["Excel"]),
    "latin-1": ("a,b,y\n1,2,é\n2,3,x\n3,4,é\n".encode("latin-1"), ["UTF-8", "line 2"]),
    "open quote": ('a,b,y\n1,2,"0\n2,3,1\n3,4,0\n', ["quote"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_named_by_row_and_column_and_nothing_is_written(equipoise, tmp_path, name):
    content, words = BAD[name]
    path = tmp_path / "bad.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = equipoise("fit", path)
    assert result.exit_code == 3, result.output
    said = " ".join(re.sub("[│╭╮╰╯─]", " ", result.stderr).split())
    for word in words:
        assert word in said
    assert "Traceback" not in result.output
    assert visible(tmp_path) == {"bad.csv"}
    told = equipoise("fit", path, "--json")
    assert told.exit_code == 3
    assert json.loads(told.stdout)["exit_code"] == 3
    assert visible(tmp_path) == {"bad.csv"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("absent.csv",), "no such file or folder"),
        (("digitz",), "did you mean 'digits'"),
        (("good.csv", "--target", "z"), "no column is called 'z'"),
        (("good.csv", "--test", "absent.csv"), "no such file"),
    ],
)
def test_data_that_are_not_there(equipoise, tmp_path, args, words):
    (tmp_path / "good.csv").write_text("\n".join(GOOD))
    result = equipoise("fit", *args)
    assert result.exit_code == 3
    assert words in " ".join(result.stderr.split())
    assert visible(tmp_path) == {"good.csv"}


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("digits", "--model", "lineer"),
        ("digits", "--width", "0"),
        ("digits", "--gamma", "0.5"),
        ("digits", "--rate", "0.1", "--theorem", "safeguarded"),
        ("digits", "--uncertified", "--slack", "1"),
        ("digits", "--target", "y"),
        ("digits", "--test-share", "0.5"),
        ("good.csv", "--test-share", "1.5"),
        ("good.csv", "--kind", "guess"),
        ("good.csv", "--out", "taken"),
        ("--resume", "absent"),
        ("--resume", "taken", "--seed", "1"),
        ("digits", "--nonsense"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_written(equipoise, tmp_path, args):
    (tmp_path / "good.csv").write_text("\n".join(GOOD))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    result = equipoise("fit", *args)
    assert result.exit_code == 2, result.output
    assert result.stderr
    assert visible(tmp_path) == {"good.csv", "taken"}
    assert visible(tmp_path / "taken") == {"file"}


def test_a_certificate_that_cannot_be_proved_leaves_nothing_behind(equipoise, tmp_path):
    table = write_houses(tmp_path / "h.csv", rows=60)
    result = equipoise("fit", table, "--width", "8", "--slack", "0", "--steps", "3")
    assert result.exit_code == 1
    assert "slack" in result.stderr
    assert visible(tmp_path) <= {"h.csv", "runs"}
    assert not list((tmp_path / "runs").iterdir()) if (tmp_path / "runs").exists() else True


def test_a_directory_that_was_there_outlasts_a_fit_that_failed(equipoise, tmp_path):
    table = write_houses(tmp_path / "h.csv", rows=60)
    (tmp_path / "mine").mkdir()
    for out, stays in (("mine", True), ("made", False)):
        result = equipoise("fit", table, "--width", "8", "--slack", "0", "--steps", "3", "--out", out)
        assert result.exit_code == 1
        assert (tmp_path / out).exists() == stays
    assert list((tmp_path / "mine").iterdir()) == []


def test_all_files_of_a_run_have_one_mode(trained):
    files = [p for p in trained.path.rglob("*") if p.is_file()]
    assert len(files) > 12
    assert len({p.stat().st_mode for p in files}) == 1


def test_warnings_are_told_and_kept(equipoise, tmp_path):
    (tmp_path / "t.csv").write_text("\n".join([*GOOD, "1,2,0", "1,2,1"]))
    result = equipoise("fit", "t.csv", *SMALL, "--out", "a", "--no-report", "--test-share", "0")
    assert result.exit_code == 0, result.output
    assert "equal inputs with different targets in line 9 (as line 2)" in " ".join(result.stdout.split())
    assert "line 9" in Run.open(tmp_path / "a").data["warnings"][0]


def test_what_looks_like_markup_is_shown_as_it_is(equipoise, tmp_path):
    name = "[bold]x[/bold][link=file:///etc/passwd]"
    (tmp_path / "m.csv").write_text(f"a,{name},y\n1,2,0\n2,x,1\n3,4,0\n")
    result = equipoise("fit", "m.csv")
    assert result.exit_code == 3
    assert "[bold]x[/bold]" in result.stderr.replace("\n", "")
