"""Experiments side by side: the same results as one after the other, no unit computed twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from equipoise.papers import catalogue
from equipoise.papers.framework import experiments, runner
from equipoise.papers.framework.experiments import Context, Settings, Silent
from equipoise.papers.framework.gallery import read_results
from equipoise.papers.framework.runner import reproduce, run_one
from equipoise.tasks.lock import locked

TINY = Settings("tiny", ("digits",))
NAMES = ["gao2022.fig1", "gao2022.fig4", "ling2023.theorem4"]  # the first two share their units


class Heard(Silent):
    def __init__(self):
        self.began, self.units, self.ended = [], [], []

    def experiment(self, key, at, total):
        self.began.append((key, at, total))

    def unit(self, name, share):
        self.units.append((name, share))

    def finished(self, result):
        self.ended.append(result.key)


def measured(out, key):
    return json.loads((out / key / "measured.json").read_text())


def test_two_jobs_find_what_one_finds(tmp_path, with_units):
    """The units of one job may be those of other tests; two jobs compute theirs."""
    heard = Heard()
    (tmp_path / "one").mkdir()
    side = reproduce(NAMES, TINY, tmp_path / "two", heard, jobs=2)
    turn = reproduce(NAMES, TINY, with_units(tmp_path / "one"))
    assert [r.key for r in side] == [r.key for r in turn] == NAMES
    assert [r.verdict for r in side] == [r.verdict for r in turn]
    for key in NAMES:
        assert measured(tmp_path / "two", key) == measured(tmp_path / "one", key)
    assert sorted(heard.ended) == sorted(NAMES)
    assert sorted(key for key, _, _ in heard.began) == sorted(NAMES)
    assert {(at, total) for _, at, total in heard.began} == {(0, 3), (1, 3), (2, 3)}
    assert {name.split()[0] for name, share in heard.units if share == 1} >= {"gao2022.descent"}
    assert {r.key for r in read_results(tmp_path / "two")} == set(NAMES)
    assert (tmp_path / "two" / "index.html").exists()


def test_a_unit_at_work_elsewhere_is_waited_for(tmp_path, monkeypatch):
    """The first computes until the second has asked for the lock, which it does once the first computes."""
    calls, inside, asked = [], threading.Event(), threading.Event()

    def slow(progress):
        calls.append(1)
        inside.set()
        asked.wait()
        return {"n": len(calls)}

    def lock(*how, **more):
        if inside.is_set():
            asked.set()
        return locked(*how, **more)

    monkeypatch.setattr(experiments, "locked", lock)
    ask = lambda found: found.append(Context(TINY, tmp_path).unit("g", "u", {"a": 1}, slow))
    first, second = [], []
    thread = threading.Thread(target=ask, args=(first,), daemon=True)
    thread.start()
    inside.wait()
    ask(second)
    thread.join()
    assert first == second == [{"n": 1}]
    assert len(calls) == 1


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_number_of_jobs_that_makes_no_sense_is_refused(tmp_path, jobs):
    with pytest.raises(ValueError, match="jobs must be an integer ≥ 1"):
        reproduce(NAMES, TINY, tmp_path, jobs=jobs)


def test_the_longest_start_first():
    minutes = {e.key: e.minutes for e in catalogue.experiments()}
    assert minutes["xie2021.table1"] > minutes["kawaguchi2021.fig1"] > minutes["ling2023.theorem4"] == 0


def test_an_error_closes_the_runs_at_once(tmp_path, monkeypatch):
    """While the error is held, too: workers would go on, and the end of the program would wait for them."""
    closed = []

    def runs(chosen, *rest):
        try:
            yield run_one(chosen[0], *rest)
        finally:
            closed.append(True)

    class Interrupting(Silent):
        def finished(self, result):
            raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_in_turn", runs)
    with pytest.raises(KeyboardInterrupt) as held:
        reproduce(["ling2023.theorem4"], Settings("tiny"), tmp_path, Interrupting())
    assert closed
    assert held.value


def test_after_an_error_nothing_is_put_into_the_queue():
    """A worker that was ended may hold its lock: to wait for it would be for ever."""

    class Locked:
        def get(self):
            threading.Event().wait()

        def put(self, message):
            raise AssertionError("locked for ever")

    with pytest.raises(KeyboardInterrupt), runner._told(Locked(), Silent(), 1):
        raise KeyboardInterrupt


LAST_RESORT = 600  # seconds, after which workers that should have ended did not
INTERRUPTED = """
import os, signal
from equipoise.papers.catalogue import Settings, reproduce
if __name__ != "__main__":  # a worker that is about to start, and hears Ctrl-C too early to ignore it
    os.kill(os.getpid(), signal.SIGINT)
else:
    # What a shell starts in the background ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from equipoise.papers.framework.experiments import Silent
    class Tell(Silent):
        def unit(self, name, share):
            print(name, flush=True)
    reproduce(["gao2022.fig1", "gao2022.fig2"], Settings("medium", ("digits",)), {out!r}, Tell(), jobs=2)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    "end", [*(pytest.param(end, marks=pytest.mark.slow) for end in ("Ctrl-C", "SIGTERM")), "SIGKILL"]
)
def test_workers_end_with_their_parent(tmp_path, end):
    """Ctrl-C is sent to all of the group, SIGTERM and SIGKILL to the parent alone."""
    script = tmp_path / "run.py"
    script.write_text(INTERRUPTED.format(out=str(tmp_path / "out")))
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout.readline()  # a unit has begun
            if end == "Ctrl-C":
                os.killpg(process.pid, signal.SIGINT)
            else:
                os.kill(process.pid, getattr(signal, end))
            _, errors = process.communicate(timeout=LAST_RESORT)  # until no worker holds the pipe
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    if end != "SIGKILL":
        assert errors.count(b"Traceback") == 1  # the parent's own, not one a worker
        assert b"KeyboardInterrupt" in errors
