"""Seals of a run on its way, one writer, and directories that are not its own."""

from __future__ import annotations

import shutil

import pytest
import torch

from equipoise.files import Damaged, OtherFormat
from equipoise.tasks import Run, RunBusy
from equipoise.train.checkpoint import CheckpointWarning

CONFIG = {
    "data": {"source": 'a "b"\n.csv', "target": None, "test_share": 0.2},
    "recipe": {"model": "monotone", "width": 64, "slack": 1e-05, "certified": True, "sizes": [1, 2]},
}
DATA = {"source": "table.csv", "rows": 12, "classes": ["é", "\u2028"]}


def new(path) -> Run:
    return Run.create(path, CONFIG, DATA)


# -- seals of a run on its way -----------------------------------------------------------------------------


def measured_until(run: Run, last: int) -> Run:
    for step in range(last + 1):
        run.record({"step": step, "loss": 1 / (step + 3), "seconds": 0.1 * step})
        if step and step % 2 == 0:
            run.checkpoints.save(step, {"W": torch.ones(2)}, {})
    return run


@pytest.mark.parametrize("name", ["config.toml", "data.json", "metrics.jsonl"])
def test_a_flipped_bit_of_a_run_on_its_way_is_noticed(tmp_path, name):
    """Anywhere in what was asked, and anywhere in what was measured before the last checkpoint."""
    run = measured_until(new(tmp_path / "a"), 5)
    saved = run.checkpoints.latest()
    assert saved is not None
    whole = (run.path / name).read_bytes()
    sealed = saved.seal["bytes"] if name == "metrics.jsonl" else len(whole)
    for at in range(0, sealed, 3):
        spoilt = bytearray(whole)
        spoilt[at] ^= 1 << (at % 8)
        (run.path / name).write_bytes(spoilt)
        assert [words for words in Run(run.path).damaged() if f"{name} is damaged" in words]
        with pytest.raises(Damaged, match=name):
            Run(run.path).resume()
    (run.path / name).write_bytes(whole[:-4] if name == "metrics.jsonl" else whole)  # torn, as by a kill
    Run(run.path).resume()
    assert [r["step"] for r in run.metrics.read()] == [0, 1, 2, 3, 4]


def test_what_was_asked_is_sealed_once_for_all(tmp_path):
    run = new(tmp_path / "a")
    (run.path / "config.toml").write_text("[recipe]\nwidth = 65\n")
    run.finish("interrupted")
    assert "config.toml is damaged" in run.damaged()[0]


def test_how_long_it_took_is_in_no_sealed_file(tmp_path):
    run = measured_until(new(tmp_path / "a"), 3)
    assert all("seconds" not in record for record in run.metrics.read())


def test_a_run_that_goes_on_elsewhere_says_what_has_changed(tmp_path, monkeypatch):
    run = measured_until(new(tmp_path / "a"), 3)
    assert int(run.status["versions"]["threads"]) == torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    with pytest.warns(CheckpointWarning, match=r"threads: \d+, now 77.*its last bits may differ"):
        run.resume()
    assert run.status["changed"].keys() == {"threads"}
    assert "now 77" in run.status["changed"]["threads"]
    new(tmp_path / "b").resume()  # which has computed nothing yet: no bit of it can differ


# -- one writer, and directories that are others' ----------------------------------------------------------


def test_no_file_can_be_removed_to_let_a_second_writer_in(tmp_path):
    run = new(tmp_path / "a")
    with run.working():
        for path in run.path.glob(".*"):
            path.unlink()
        with pytest.raises(RunBusy, match="another process works in"), Run(run.path).working():
            pass


def test_a_directory_that_was_made_again_belongs_to_the_new_run(tmp_path):
    run = new(tmp_path / "a")
    with run.working():
        (tmp_path / "a").rename(tmp_path / "b")
        other = new(tmp_path / "a")
        with pytest.raises(RunBusy, match="removed or replaced"):
            run.record({"step": 0})
        with pytest.raises(RunBusy, match="removed or replaced"):
            run.checkpoints.save(1, {}, {})
    assert not other.metrics.path.exists()


def test_a_run_killed_before_it_began_leaves_a_directory_that_can_be_used(tmp_path, monkeypatch):
    """By a kill or a full disk, at each moment at which one of its first files was to be written."""
    from equipoise.tasks import directory

    write, place = directory.write_atomically, tmp_path / "a"
    for moment in range(4):
        for killed in (True, False):
            left = [moment]

            def fail(path, content, left=left, killed=killed):
                if left[0] == 0:
                    if not killed:
                        raise OSError(28, "No space left on device")
                    path.with_name(f".{path.name}.7.part").write_bytes(content[:9])
                    monkeypatch.setattr(Run, "discard", lambda self: None)
                    raise SystemExit
                left[0] -= 1
                write(path, content)

            monkeypatch.setattr(directory, "write_atomically", fail)
            with pytest.raises(SystemExit if killed else OSError):
                new(place)
            monkeypatch.undo()
            assert place.exists() == killed
            if killed:
                with pytest.raises(FileNotFoundError, match="there is no run at"):
                    Run.open(place)
            again = new(place)
            assert Run.open(place).damaged() == []
            assert not list(place.glob(".*"))
            again.discard()
            assert place.exists() == killed  # which this one did not make
            shutil.rmtree(place, ignore_errors=True)


def test_only_what_the_run_made_is_removed(tmp_path):
    (tmp_path / "mine").mkdir()
    run = new(tmp_path / "mine")
    run.discard()
    assert list((tmp_path / "mine").iterdir()) == []
    run = new(tmp_path / "made")
    (run.path / "notes.txt").write_text("mine")
    run.discard()
    assert [p.name for p in run.path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["config.toml", "data.json"])
def test_a_directory_of_others_is_never_taken_over(tmp_path, name):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).write_text("mine")
    with pytest.raises(FileExistsError, match="absent or empty"):
        new(tmp_path / "a")
    assert (tmp_path / "a" / name).read_text() == "mine"


def test_another_version_is_not_damage_and_a_flipped_bit_of_the_version_is(tmp_path):
    run = new(tmp_path / "a")
    text = (run.path / "run.json").read_text()
    (run.path / "run.json").write_text(text.replace("equipoise.run.2", "equipoise.run.3"))
    with pytest.raises(Damaged, match="is damaged"):
        Run.open(run.path)
    (run.path / "run.json").write_text('{"format": "equipoise.run.3", "versions": {"equipoise": "4.5"}}')
    with pytest.raises(OtherFormat, match=r"equipoise\.run\.3.*written by equipoise 4\.5.*Use the version"):
        Run.open(run.path)
