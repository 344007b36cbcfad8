"""equipoise fit --resume: a run that was interrupted, damaged or failed goes on, or says why not."""

from __future__ import annotations

import math
import shutil

import pytest

from cli.commands import SMALL, assert_same_outcome, write_flowers
from equipoise.tasks import Run
from equipoise.tasks import fitting as fitting_module


def interrupted_at(step, monkeypatch):
    """Ctrl-C during the given step, as the watch sees it."""
    from equipoise.cli.watching import Watch

    original = Watch.record

    def record(self, measured):
        self.interrupted = measured["step"] == step
        original(self, measured)

    monkeypatch.setattr(Watch, "record", record)


def test_an_interrupt_saves_and_resuming_changes_nothing(equipoise, trained, tmp_path, monkeypatch):
    interrupted_at(3, monkeypatch)
    result = equipoise("fit", trained.table, *SMALL, "--out", "a")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert result.exit_code == 130
    assert "equipoise fit --resume a" in " ".join(result.stderr.split())
    run = Run.open("a")
    assert (run.state, run.status["exit_code"]) == ("interrupted", 130)
    assert run.checkpoints.latest().step == 3
    refused = equipoise("predict", "a", trained.table)
    assert refused.exit_code == 1
    assert "--resume a" in refused.stderr
    result = equipoise("fit", "--resume", "a")
    assert result.exit_code == 0, result.output
    assert "after step 3" in result.stdout
    assert_same_outcome(tmp_path / "a", trained.path)
    assert Run.open("a").status["resumed"] == 1
    again = equipoise("fit", "--resume", "a")
    assert again.exit_code == 0
    assert "nothing to resume" in again.stdout


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(equipoise, trained, tmp_path, monkeypatch):
    interrupted_at(6, monkeypatch)
    assert equipoise("fit", trained.table, *SMALL, "--out", "a").exit_code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    last = tmp_path / "a" / "checkpoints" / "step-00000006.safetensors"
    content = bytearray(last.read_bytes())
    content[-9] ^= 1
    last.write_bytes(content)
    result = equipoise("fit", "--resume", "a")
    assert result.exit_code == 0
    assert "step-00000006.safetensors is damaged" in "".join(result.stderr.split("\n")).replace("  ", " ")
    assert_same_outcome(tmp_path / "a", trained.path)


def test_a_run_killed_before_its_report_gets_one_when_resumed(equipoise, trained, tmp_path, monkeypatch):
    def killed(run):
        raise SystemExit

    monkeypatch.setattr("equipoise.cli.training.write_report", killed)
    monkeypatch.setattr("equipoise.report.following.FIRST", math.inf)  # no page on the way, however slow
    equipoise("fit", trained.table, *SMALL, "--out", "a")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert Run.open("a").state == "finished"
    assert not (tmp_path / "a" / "report.html").exists()
    assert equipoise("fit", "--resume", "a", "--no-report").exit_code == 0
    assert not (tmp_path / "a" / "report.html").exists()
    result = equipoise("fit", "--resume", "a")
    assert result.exit_code == 0
    assert "Its report was missing" in result.stdout
    assert "flowers.csv" in (tmp_path / "a" / "report.html").read_text()


def test_other_threads_are_said_and_recorded(equipoise, trained, tmp_path, monkeypatch):
    interrupted_at(3, monkeypatch)
    assert equipoise("fit", trained.table, *SMALL, "--out", "a", "--no-report").exit_code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.get_num_threads", lambda: 77)
    result = equipoise("fit", "--resume", "a")
    assert result.exit_code == 0
    assert "its last bits may differ" in " ".join(result.stderr.split())
    assert "now 77" in Run.open("a").status["changed"]["threads"]
    assert "changed when resumed: threads" in (tmp_path / "a" / "report.html").read_text()


@pytest.mark.parametrize("name", ["config.toml", "data.json", "metrics.jsonl"])
def test_a_run_whose_files_were_altered_is_not_resumed(equipoise, trained, tmp_path, monkeypatch, name):
    interrupted_at(3, monkeypatch)
    assert equipoise("fit", trained.table, *SMALL, "--out", "a", "--no-report").exit_code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a" / name
    path.write_text(path.read_text().replace("6", "7", 1))
    result = equipoise("fit", "--resume", "a")
    assert result.exit_code == 5
    assert f"{name}isdamaged" in "".join(result.stderr.replace("│", "").split())
    assert "from a copy" in result.stderr


def test_changed_data_are_not_resumed_on(equipoise, tmp_path, monkeypatch):
    table = write_flowers(tmp_path / "f.csv")
    interrupted_at(2, monkeypatch)
    assert equipoise("fit", table, *SMALL, "--out", "a").exit_code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    write_flowers(table, seed=9)
    result = equipoise("fit", "--resume", "a")
    assert result.exit_code == 3
    assert "must be as it was" in result.stderr


def test_a_damaged_run_is_not_resumed(equipoise, trained, tmp_path):
    shutil.copytree(trained.path, tmp_path / "a")
    (tmp_path / "a" / "run.json").write_text("{}")
    result = equipoise("fit", "--resume", "a")
    assert result.exit_code == 5
    assert "run.json" in result.stderr


def test_a_run_in_use_is_left_alone(equipoise, trained, tmp_path, monkeypatch):
    interrupted_at(2, monkeypatch)
    assert equipoise("fit", trained.table, *SMALL, "--out", "a").exit_code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with Run.open("a").working():
        result = equipoise("fit", "--resume", "a")
    assert result.exit_code == 1
    assert "another process works in" in result.stderr


def test_a_failure_on_the_way_is_kept_with_its_reason_and_resumed(equipoise, trained, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device", "findings.json")

    monkeypatch.setattr("equipoise.cli.training.findings", fail)
    result = equipoise("fit", trained.table, *SMALL, "--out", "a")
    assert result.exit_code == 1
    assert "The disk is full" in result.stderr
    assert Run.open("a").state == "failed"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert equipoise("fit", "--resume", "a").exit_code == 0
    assert_same_outcome(tmp_path / "a", trained.path)


def test_debug_shows_where_an_error_came_from(equipoise, trained, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("deep inside")

    monkeypatch.setattr("equipoise.cli.training.findings", fail)
    result = equipoise("fit", trained.table, *SMALL, "--out", "a")
    assert result.exit_code == 1
    assert "RuntimeError: deep inside" in result.stderr
    assert "Traceback" not in result.output
    result = equipoise("fit", trained.table, *SMALL, "--out", "b", "--debug")
    assert isinstance(result.exception, RuntimeError)


def test_free_training_is_resumed_alike(equipoise, trained, tmp_path, monkeypatch):
    free = ("--uncertified", "--width", "16", "--epochs", "4", "--batch-size", "16", "--no-report")
    assert equipoise("fit", trained.table, *free, "--out", "whole", "-q").exit_code == 0
    from equipoise.cli.watching import Watch

    def interrupt(self, step, loss):
        if step == 5:  # within the second epoch
            raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "progress", interrupt)
    assert equipoise("fit", trained.table, *free, "--out", "a").exit_code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert Run.open("a").checkpoints.latest().step == 5
    result = equipoise("fit", "--resume", "a", "--no-report")
    assert result.exit_code == 0, result.output
    assert "epoch 4/4" in result.stderr
    assert_same_outcome(tmp_path / "a", tmp_path / "whole")
    assert Run.open("a").status["results"]["theorem"] is None
    assert equipoise("certify", "a").exit_code == 0  # well-posed, by its projection


def test_a_run_that_diverged_says_so(equipoise, trained, tmp_path, monkeypatch):
    """The exit code, the state and the advice of a fit that stopped early, whichever loop stopped it."""
    original = fitting_module.fit

    def stopped(X, y, kind, recipe, **more):
        fitted = original(X, y, kind, recipe, **more)
        fitted.stopped, fitted.advice = "step 4: the loss is not finite.", "A smaller rate."
        return fitted

    monkeypatch.setattr("equipoise.cli.training.fit_network", stopped)
    result = equipoise("fit", trained.table, "--uncertified", "--epochs", "2", "--out", "a")
    assert result.exit_code == 4, result.output
    assert "A smaller rate." in result.stdout
    run = Run.open("a")
    assert (run.state, run.status["exit_code"], run.status["advice"]) == ("stopped", 4, "A smaller rate.")
    assert "the loss is not finite" in (tmp_path / "a" / "report.html").read_text()
