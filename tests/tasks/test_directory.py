"""A run's directory: what is written comes back, one process works in it, and damage is named."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import tomllib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.files import Damaged
from equipoise.tasks import Run, RunBusy, free_directory, list_runs
from equipoise.tasks.directory import to_toml
from equipoise.tasks.metrics import Metrics

CONFIG = {
    "data": {"source": 'a "b"\n.csv', "target": None, "test_share": 0.2},
    "recipe": {"model": "monotone", "width": 64, "slack": 1e-05, "certified": True, "sizes": [1, 2]},
}
DATA = {"source": "table.csv", "rows": 12, "classes": ["é", "\u2028"]}


def new(path) -> Run:
    return Run.create(path, CONFIG, DATA)


def test_what_was_asked_comes_back(tmp_path):
    run = Run.open(new(tmp_path / "runs" / "first").path)
    asked = {name: {k: v for k, v in table.items() if v is not None} for name, table in CONFIG.items()}
    assert run.config == asked
    assert run.data == DATA
    assert run.name == "first"
    assert run.status["versions"]["equipoise"] == eq.__version__
    assert run.status["versions"]["torch"] == torch.__version__
    assert run.metrics.read() == []
    assert run.checkpoints.latest() is None


def test_a_run_is_not_begun_on_top_of_something(tmp_path):
    new(tmp_path / "a")
    with pytest.raises(FileExistsError, match="absent or empty"):
        new(tmp_path / "a")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="absent or empty"):
        new(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_is_written_where_the_configuration_cannot_be(tmp_path):
    with pytest.raises(TypeError, match="not TOML serializable"):
        Run.create(tmp_path / "a", {"recipe": {"loss": object()}}, {})
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("state", ["finished", "stopped", "interrupted", "failed"])
def test_a_run_says_how_it_ended(tmp_path, state):
    run = new(tmp_path / "a")
    run.finish(state, "because", "try this", 4, {"test_accuracy": 0.1 + 0.2})
    found = Run.open(run.path).status
    assert (found["state"], found["reason"], found["advice"], found["exit_code"]) == (
        state,
        "because",
        "try this",
        4,
    )
    assert found["results"] == {"test_accuracy": 0.1 + 0.2}
    assert found["times"]["created"] <= found["times"]["ended"]


@pytest.mark.parametrize("state", ["running", "done"])
def test_an_end_is_an_end(tmp_path, state):
    with pytest.raises(ValueError, match="a run ends as one of finished, stopped, interrupted, failed"):
        new(tmp_path / "a").finish(state)


def test_a_run_that_says_it_runs_and_does_not_was_killed(tmp_path):
    run = new(tmp_path / "a")
    with run.working():
        assert run.busy
        assert run.state == "running"
    assert not run.busy
    assert run.state == "interrupted"
    assert "killed" in run.status["reason"]


HOLD = """
import sys
from equipoise.tasks import Run
with Run.open(sys.argv[1]).working():
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_work_in_one_run_and_a_killed_one_frees_it(tmp_path):
    run = new(tmp_path / "a")
    (run.path / ".config.toml.77.part").write_text("half")
    command, pipe = [sys.executable, "-c", HOLD, run.path], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        assert run.state == "running"
        with pytest.raises(RunBusy, match="another process works in"), run.working():
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with run.working():
        assert run.busy
    assert not list(run.path.glob(".*.part"))


def test_resuming_leaves_out_what_came_after_the_last_checkpoint(tmp_path):
    run = new(tmp_path / "a")
    for step in range(26):
        run.metrics.append({"step": step, "loss": 1 / (step + 1)})
        if step % 10 == 0:
            run.checkpoints.save(step, {"W": torch.ones(2)}, {})
    run.finish("stopped", "diverged", "smaller steps", 4, {"loss": 1.0})
    again = Run.open(run.path)
    again.resume()
    assert [r["step"] for r in again.metrics.read()] == list(range(21))
    status = again._stored()
    assert (status["state"], status["reason"], status["resumed"], status["exit_code"]) == (
        "running",
        "",
        1,
        None,
    )
    assert "ended" not in status["times"]


def test_resuming_without_a_checkpoint_begins_again(tmp_path):
    run = new(tmp_path / "a")
    run.metrics.append({"epoch": 0, "loss": 1.0})
    run.resume()
    assert run.metrics.read() == []


@pytest.mark.parametrize("name", ["config.toml", "data.json", "run.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[1, 2"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    run = new(tmp_path / "a")
    (run.path / name).write_bytes(content)
    if name == "config.toml" and content == b"":
        assert Run.open(run.path).config == {}
    else:
        with pytest.raises(Damaged, match=name):
            Run.open(run.path)


def test_a_flipped_bit_of_run_json_is_noticed(tmp_path):
    run = new(tmp_path / "a")
    run.finish("finished", results={"test_accuracy": 0.5})
    text = (run.path / "run.json").read_text()
    (run.path / "run.json").write_text(text.replace('"test_accuracy": 0.5', '"test_accuracy": 0.9'))
    with pytest.raises(Damaged, match=r"run\.json is damaged"):
        Run.open(run.path)


def test_changed_and_missing_files_of_an_ended_run_are_named(tmp_path):
    run = new(tmp_path / "a")
    (run.path / "model.safetensors").write_bytes(b"weights")
    (run.path / "history.json").write_bytes(b"{}")
    run.metrics.append({"step": 0, "loss": 1.0})
    run.finish("finished")
    assert Run.open(run.path).damaged() == []
    (run.path / "report.html").write_text("written at any time")
    (run.path / "model.safetensors").write_bytes(b"weighus")
    (run.path / "history.json").unlink()
    found = Run.open(run.path).damaged()
    assert len(found) == 2
    assert "history.json is missing" in found[0]
    assert "model.safetensors is damaged" in found[1]


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("x")])
def test_what_is_no_run_is_said_to_be_none(tmp_path, make):
    make(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="there is no run at"):
        Run.open(tmp_path / "a")


def test_runs_are_listed_with_the_damaged_among_them(tmp_path):
    for name in ("b", "a", "broken"):
        new(tmp_path / name)
    Run(tmp_path / "a").finish("finished")
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "no run").mkdir()
    (tmp_path / "file").write_text("")
    found = {run.path.name: run for run in list_runs(tmp_path)}
    assert found.keys() == {"a", "b", "broken"}
    assert (found["a"].state, found["b"].state, found["broken"].state) == (
        "finished",
        "interrupted",
        "damaged",
    )
    assert "run.json" in found["broken"].problem
    assert found["a"].config["recipe"]["model"] == "monotone"
    with pytest.raises(FileNotFoundError, match="is not a directory of runs"):
        list_runs(tmp_path / "absent")


def test_looking_at_a_run_writes_nothing_to_it(tmp_path):
    run = new(tmp_path / "a")
    with run.working():
        pass
    run.finish("finished")
    before = sorted(p.name for p in run.path.iterdir())
    assert Run.open(run.path).state == "finished"
    assert sorted(p.name for p in run.path.iterdir()) == before


def test_a_free_name_is_found(tmp_path):
    assert free_directory(tmp_path, "digits-monotone").name == "digits-monotone-1"
    (tmp_path / "digits-monotone-1").mkdir()
    assert free_directory(tmp_path, "digits-monotone").name == "digits-monotone-2"


# -- metrics ------------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_left_out_and_written_over(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for step in range(3):
        metrics.append({"step": step, "loss": 0.1 * step})
    whole = metrics.path.read_bytes()
    for torn in range(1, 20):
        metrics.path.write_bytes(whole[:-torn])
        again = Metrics(metrics.path)
        assert [r["step"] for r in again.read()] == [0, 1]
        again.append({"step": 2, "loss": 0.2})
        assert [r["loss"] for r in again.read()] == [0.0, 0.1, 0.2]


def test_a_torn_only_line_is_left_out(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.path.write_bytes(b'{"step": ' + b"1" * 10_000)
    assert metrics.read() == []
    metrics.append({"step": 0})
    assert metrics.read() == [{"step": 0}]


def test_a_spoilt_line_within_is_named(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.path.write_bytes(b'{"step": 0}\n{"step": \n{"step": 2}\n')
    with pytest.raises(Damaged, match="line 2"):
        metrics.read()
    metrics.path.write_bytes(b"[1]\n")
    with pytest.raises(Damaged, match="line 1 must hold a JSON object"):
        metrics.read()


def test_numbers_come_back_exactly_and_the_file_is_strict_json(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append({"step": 1, "loss": math.pi * 1e-300, "rate": math.inf, "sigma_min": math.nan})

    def refuse(token: str) -> None:
        raise AssertionError(token)

    json.loads(metrics.path.read_text(), parse_constant=refuse)
    (found,) = metrics.read()
    assert found["loss"] == math.pi * 1e-300
    assert math.isnan(found["rate"])
    assert math.isnan(found["sigma_min"])


def test_truncating_goes_back_to_a_seal(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    assert metrics.agrees(metrics.seal())
    for epoch in range(4):
        metrics.append({"epoch": epoch, "loss": math.nan})
        if epoch == 2:
            seal = metrics.seal()
    metrics.path.write_bytes(metrics.path.read_bytes()[:-3])  # torn, after what was sealed
    assert metrics.agrees(seal)
    metrics.truncate(seal)
    assert [r["epoch"] for r in metrics.read()] == [0, 1, 2]
    assert metrics.seal() == seal
    metrics.path.write_bytes(metrics.path.read_bytes()[:-1])
    assert not metrics.agrees(seal)
    metrics.truncate(None)
    assert metrics.read() == []
    assert not metrics.agrees(seal)


# -- toml ---------------------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | words


@given(
    st.dictionaries(
        words, st.dictionaries(words, plain | st.lists(plain, max_size=3), max_size=4), max_size=3
    )
)
@settings(max_examples=150)
def test_toml_comes_back_exactly(tables):
    found = tomllib.loads(to_toml(tables))
    assert found == tables
    assert repr(found) == repr(tables)


def test_toml_of_odd_names_and_of_nan():
    assert math.isnan(tomllib.loads(to_toml({"a": {"b": math.nan}}))["a"]["b"])
    assert tomllib.loads(to_toml({"a": {"b": "\udcff"}})) == {"a": {"b": "\\udcff"}}


def test_of_two_that_begin_in_one_directory_at_once_one_is_refused(tmp_path, monkeypatch):
    Run.create(tmp_path / "a", {"recipe": {"seed": 0}}, {})
    seen = iter([True])  # by the second, just before
    monkeypatch.setattr("equipoise.tasks.directory.unused", lambda path: next(seen, False))
    with pytest.raises(FileExistsError, match="absent or empty"):
        Run.create(tmp_path / "a", {"recipe": {"seed": 1}}, {})
    assert Run(tmp_path / "a").config["recipe"]["seed"] == 0


def test_a_status_without_a_state_is_a_damaged_run(tmp_path):
    run = Run.create(tmp_path / "a", {"recipe": {}}, {})
    (run.path / "run.json").write_text("{}")
    assert [listed.state for listed in list_runs(tmp_path)] == ["damaged"]
