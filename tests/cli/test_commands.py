"""predict, certify, suggest, diagnose, report, runs, data and claims, on a run that fit made."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli.commands import SMALL, write_flowers, write_houses
from equipoise.cli.app import COMMANDS, app
from equipoise.files import sha256
from equipoise.tasks import Run
from equipoise.tasks import load as load_fitted

NAMES = [command.name for command in app.registered_commands]


def flat(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


# -- help ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_help_teaches_with_examples(equipoise, name):
    result = equipoise(name, "--help")
    assert result.exit_code == 0
    assert f"$ equipoise {name}" in result.stdout
    assert "Examples" in result.stdout


def test_the_help_of_all_names_every_command_and_every_exit_code(equipoise):
    result = equipoise("--help")
    assert set(NAMES) <= {name for names in COMMANDS.values() for name in names}
    for word in (*NAMES, "3 data that cannot be used", "130 interrupted"):
        assert word in flat(result.stdout)
    assert equipoise("frobnicate").exit_code == 2
    assert equipoise("--version").stdout.strip().count(".") == 2


# -- predict ------------------------------------------------------------------------------------------------


def answers(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_predict_answers_every_row_by_column_name(equipoise, trained, tmp_path):
    fitted = load_fitted(trained.path)
    table = write_flowers(tmp_path / "new.csv", rows=9, seed=3)
    result = equipoise("predict", trained.path, table)
    assert result.exit_code == 0, result.output
    rows = answers(result.stdout)
    assert list(rows[0]) == ["species", "p(setosa)", "p(versi color)", "p(virgi,nica)"]
    numbers = np.array(
        [[float(v) for v in line.split(",")[:2]] for line in table.read_text().splitlines()[1:]]
    )
    assert [r["species"] for r in rows] == fitted.predict(numbers).tolist()
    shares = np.array([[float(r[name]) for name in list(r)[1:]] for r in rows])
    assert shares.sum(axis=1) == pytest.approx(np.ones(9))
    assert "9 rows answered; accuracy" in result.stderr
    # Other columns, other order, no targets: the same answers.
    turned = ["id,width,length"] + [f"no {i},{b!r},{a!r}" for i, (a, b) in enumerate(numbers.tolist())]
    (tmp_path / "turned.csv").write_text("\n".join(turned))
    again = equipoise("predict", trained.path, tmp_path / "turned.csv")
    assert again.exit_code == 0, again.output
    assert answers(again.stdout) == rows
    assert "accuracy" not in again.stderr


def test_a_target_called_like_a_probability_keeps_its_column(equipoise, tmp_path):
    text = write_flowers(tmp_path / "f.csv").read_text()
    (tmp_path / "f.csv").write_text(text.replace("species", "p(setosa)"))
    assert equipoise("fit", "f.csv", *SMALL, "--out", "a", "--no-report").exit_code == 0
    told = json.loads(equipoise("predict", "a", "f.csv", "--json").stdout)["answers"]
    assert set(told["p(setosa)"]) <= {"setosa", "versi color", "virgi,nica"}
    assert list(told)[1:] == ["probability(setosa)", "probability(versi color)", "probability(virgi,nica)"]
    assert sum(told[name][0] for name in list(told)[1:]) == pytest.approx(1)


def test_predict_writes_files_and_json(equipoise, trained, tmp_path):
    printed = equipoise("predict", trained.path, trained.table, "--quiet")
    assert printed.stderr == ""
    result = equipoise("predict", trained.path, trained.table, "--out", "a.csv")
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "a.csv").read_text() == printed.stdout
    assert equipoise("predict", trained.path, trained.table, "--out", "a.npz", "-q").exit_code == 0
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["species"].tolist() == [r["species"] for r in answers(printed.stdout)]
        assert arrays["p(setosa)"].dtype == np.float64
    told = json.loads(equipoise("predict", trained.path, trained.table, "--json").stdout)
    assert told["rows"] == 45
    assert told["score"]["accuracy"] > 0.8
    assert told["answers"]["species"] == [r["species"] for r in answers(printed.stdout)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("length,wide\n1,2\n", "Missing: 'width'. Its columns: 'length', 'wide'"),
        ("length,width\n1,inf\n", "column 'width': infinite value in line 2"),
        ("length,width\n1,x\n", "line 2 ('x')"),
        ("length,width\n1\n", "1 cells instead of the header's 2 in line 2"),
    ],
)
def test_rows_that_cannot_be_answered_are_named_and_nothing_is_written(
    equipoise, trained, tmp_path, content, words
):
    (tmp_path / "new.csv").write_text(content)
    result = equipoise("predict", trained.path, "new.csv", "--out", "a.csv")
    assert result.exit_code == 3
    assert words in flat(result.stderr)
    assert [p.name for p in tmp_path.iterdir()] == ["new.csv"]


def test_numbers_come_in_the_units_of_the_table(equipoise, tmp_path):
    table = write_houses(tmp_path / "h.csv")
    assert equipoise("fit", table, *SMALL, "--out", "a", "-q", "--no-report").exit_code == 0
    result = equipoise("predict", "a", table, "--json")
    told = json.loads(result.stdout)
    assert told["score"]["r2"] > 0.9
    price = [float(line.split(",")[2]) for line in table.read_text().splitlines()[1:]]
    assert np.corrcoef(told["answers"]["price"], price)[0, 1] > 0.95
    with np.load(_npz(tmp_path, table)) as arrays:
        assert "x" in arrays
    printed = equipoise("certify", "a", "--theorem", "ling2023", "--printed")
    assert printed.exit_code == 1
    assert "As printed, (9)" in printed.stdout
    refused = equipoise("predict", "a", "n.npz")
    assert refused.exit_code == 3
    assert "Missing: 'area', 'age'" in flat(refused.stderr)


def _npz(tmp_path, table):
    X = np.loadtxt(table, delimiter=",", skiprows=1)[:, :2]
    np.savez(tmp_path / "n.npz", x=X)
    return tmp_path / "n.npz"


def test_wrong_usage_of_predict(equipoise, trained, tmp_path):
    assert equipoise("predict", "absent", trained.table).exit_code == 2
    assert equipoise("predict", trained.path, trained.table, "--out", "a.xlsx").exit_code == 2
    assert equipoise("predict", trained.path, "digits").exit_code == 3  # of another width
    assert list(tmp_path.iterdir()) == []


# -- what is guaranteed ------------------------------------------------------------------------------------


def test_certify_proves_both_ends_again(equipoise, trained):
    result = equipoise("certify", trained.path)
    assert result.exit_code == 0, result.output
    assert "safeguarded: proved at the start of training" in flat(result.stdout)
    assert "wellposed: proved at the end of training" in flat(result.stdout)
    told = json.loads(equipoise("certify", trained.path, "--json").stdout)
    assert told["start"]["verdict"] == told["end"]["verdict"] == "proved"


def test_what_is_not_proved_is_exit_code_1(equipoise, trained):
    result = equipoise("certify", trained.path, "--theorem", "ling2023", "--printed")
    assert result.exit_code == 1
    assert "Not proved" in result.stdout
    unknown = equipoise("certify", trained.path, "--theorem", "ling")
    assert unknown.exit_code == 2
    assert "gao2022.descent" in unknown.stderr
    assert equipoise("certify", trained.path, "--printed").exit_code == 2


def test_certify_refuses_other_data(equipoise, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained.path, run)
    config = (run / "config.toml").read_text().replace(str(trained.table), str(tmp_path / "f.csv"))
    write_flowers(tmp_path / "f.csv", seed=8)
    (run / "config.toml").write_text(config)
    sealed = Run(run).status
    sealed["files"]["config.toml"] = sha256(run / "config.toml")
    Run(run)._write(sealed)
    result = equipoise("certify", run)
    assert result.exit_code == 3
    assert "must be as it was" in result.stderr


@pytest.mark.parametrize("option", [("--printed",), ("--tier", "rigorous")])
def test_options_of_a_theorem_need_one(equipoise, trained, option):
    result = equipoise("certify", trained.path, *option)
    assert result.exit_code == 2
    assert f"{option[0]} needs --theorem" in flat(result.stderr)


def test_suggest_and_diagnose(equipoise, trained):
    result = equipoise("suggest", trained.path, "--theorem", "two_timescale", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code == 0) == told["holds"]
    assert told["words"]
    assert equipoise("suggest", trained.path, "--theorem", "none").exit_code == 2
    result = equipoise("diagnose", trained.path, "--rows", "6")
    assert result.exit_code == 0, result.output
    assert "6 of 6" in result.stdout
    assert "Advice" in result.stdout


# -- a look -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["model.safetensors", "preparation.safetensors", "certificate.json", "fitted.json"]
)
def test_a_flipped_bit_in_a_finished_run_is_noticed_and_named(equipoise, trained, tmp_path, name):
    run = tmp_path / "runs" / "a"
    shutil.copytree(trained.path, run)
    content = bytearray((run / name).read_bytes())
    content[len(content) // 2] ^= 16
    (run / name).write_bytes(content)
    for command in (("predict", run, trained.table), ("certify", run), ("diagnose", run)):
        result = equipoise(*command)
        assert result.exit_code == 5, result.output
        assert f"{name}isdamaged" in flat(result.stderr).replace(" ", "")  # long paths are broken anywhere
    listed = equipoise("runs")
    assert listed.exit_code == 5
    assert f"{name}isdamaged" in flat(listed.stdout).replace(" ", "")


def test_runs_are_listed_and_compared(equipoise, trained, tmp_path):
    nothing = equipoise("runs")
    assert nothing.exit_code == 2
    assert "fit digits" in nothing.stderr
    for name in ("b", "a"):
        shutil.copytree(trained.path, tmp_path / "runs" / name)
    killed = Run.create(tmp_path / "runs" / "killed", {"data": {}, "recipe": {}}, {})
    assert killed.state == "interrupted"
    result = equipoise("runs")
    assert result.exit_code == 0
    for word in ("a", "b", "killed", "finished", "interrupted", "gaussian-relu 24", "safeguarded"):
        assert word in result.stdout
    told = json.loads(equipoise("runs", "--json", "--sort", "score").stdout)
    assert [r["state"] for r in told] == ["finished", "finished", "interrupted"]
    assert equipoise("runs", "--sort", "beauty").exit_code == 2


def test_the_report_is_written_again_from_the_files(equipoise, trained, tmp_path):
    run = tmp_path / "a"
    shutil.copytree(trained.path, run)
    (run / "report.html").unlink()
    result = equipoise("report", run)
    assert (result.exit_code, result.stdout.strip()) == (0, str(run / "report.html"))
    assert "<svg" in (run / "report.html").read_text()
    assert equipoise("report", "absent").exit_code == 2


def test_two_runs_are_set_side_by_side(equipoise, trained, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(trained.path, tmp_path / name)
    result = equipoise("report", tmp_path / "a", tmp_path / "b")
    assert (result.exit_code, result.stdout.strip()) == (0, str(tmp_path / "comparison.html"))
    assert "2 runs side by side" in (tmp_path / "comparison.html").read_text()
    elsewhere = tmp_path / "pages" / "c.html"
    assert equipoise("report", tmp_path / "a", tmp_path / "b", "--out", elsewhere).exit_code == 0
    assert "../a/report.html" in elsewhere.read_text()
    assert equipoise("report", tmp_path / "a", "--out", elsewhere).exit_code == 2
    assert equipoise("report", tmp_path / "a", tmp_path / "a").exit_code == 2
    (tmp_path / "b" / "history.json").write_text("{}")
    result = equipoise("report", tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 5
    assert "history.json is not shown" in result.stderr


def test_a_report_of_altered_findings_says_so(equipoise, trained, tmp_path):
    run = tmp_path / "a"
    shutil.copytree(trained.path, run)
    found = json.loads((run / "findings.json").read_text())
    found["scores"]["test"]["accuracy"] = 0.9999
    (run / "findings.json").write_text(json.dumps(found))
    result = equipoise("report", run)
    assert result.exit_code == 5
    assert "findings.json is not shown" in result.stderr
    page = (run / "report.html").read_text()
    assert "99.99" not in page
    assert "have been changed or damaged" in page
    (run / "run.json").write_text("{}")
    assert equipoise("report", run).exit_code == 5
    assert "State unknown" in (run / "report.html").read_text()


def test_one_run_that_cannot_be_read_hides_no_other(equipoise, trained, tmp_path):
    """JSON nested without end, a run of another version, one that never began."""
    for name in ("good", "deep", "deeper", "future"):
        shutil.copytree(trained.path, tmp_path / "runs" / name)
    (tmp_path / "runs" / "deep" / "run.json").write_text("[" * 200_000)
    (tmp_path / "runs" / "deeper" / "config.toml").write_text("a = " + "[" * 200_000)
    path = tmp_path / "runs" / "future" / "run.json"
    path.write_text(path.read_text().replace("equipoise.run.2", "equipoise.run.12").replace("loss", "cost"))
    told = {Path(r["run"]).name: r for r in json.loads(equipoise("runs", "--json").stdout)}
    assert {name: r["state"] for name, r in told.items()} == {
        "good": "finished",
        "deep": "damaged",
        "deeper": "damaged",
        "future": "other version",
    }
    assert "equipoise.run.12" in told["future"]["problem"]
    assert "Use the version that wrote it" in told["future"]["problem"]
    for command in (("predict", path.parent, trained.table), ("fit", "--resume", path.parent)):
        refused = equipoise(*command)
        assert refused.exit_code == 1
        assert "another version" in refused.stderr
    for name in ("deep", "deeper"):
        shutil.rmtree(tmp_path / "runs" / name)
    assert equipoise("runs").exit_code == 0


def test_data_and_claims(equipoise):
    result = equipoise("data", "--data-dir", "nowhere")
    assert result.exit_code == 0
    assert "digits" in result.stdout
    told = {entry["name"]: entry["found"] for entry in json.loads(equipoise("data", "--json").stdout)}
    assert told["digits"] == told["synthetic-sphere"] == "embedded"
    result = equipoise("claims", "gao2022")
    assert result.exit_code == 0
    assert "gao2022." in result.stdout
    told = json.loads(equipoise("claims", "--json").stdout)
    assert {entry["key"].split(".")[0] for entry in told} >= {"gao2022", "ling2023", "hieu2022"}
    assert equipoise("claims", "nobody2020").exit_code == 2


def test_a_check_that_disagrees_with_its_verdict_is_exit_code_1(equipoise, monkeypatch):
    from equipoise.papers.framework.claims import Outcome, PaperClaim

    def entry(key, holds):
        return PaperClaim(key, "gao2022", key, "x ≤ y", "holds", lambda seed: Outcome(holds, 1.0, 2.0, 2.0))

    monkeypatch.setattr(
        "equipoise.papers.claims", lambda paper: [entry("right", True), entry("wrong", False)]
    )
    result = equipoise("claims", "--check")
    assert result.exit_code == 1
    assert "Not confirmed: wrong" in result.stdout
    monkeypatch.setattr("equipoise.papers.claims", lambda paper: [entry("right", True)])
    assert equipoise("claims", "--check").exit_code == 0


def test_the_module_runs_and_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m equipoise.cli claims | head -1", shell=True, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
