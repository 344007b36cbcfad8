"""A Ray cluster of two nodes, of which one is killed while it works: what was asked is finished all the same.

Both nodes are processes of this machine, in a network of their own that has the loopback alone and in a PID
namespace of their own: when the test ends, the kernel ends whatever is left of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.tasks import Run
from equipoise.tasks.sweep import Sweep

from .commands import call

ALONE = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
ASKED = ("digits", "--rows", "300", "--width", "8,10,12,14", "--epochs", "40", "--uncertified")
KEYS = ("ling2023.theorem4", "ling2023.theorem5", "kawaguchi2021.fig5", "kawaguchi2021.fig6")

# Starts both nodes, kills the second while a task of this name runs on it, and waits for the command.
PROGRAM = textwrap.dedent(
    """
    import fcntl, json, os, signal, socket, struct, subprocess, sys, time
    from pathlib import Path

    import ray

    asked = json.loads(sys.argv[1])
    raise_lo = struct.pack("16sh", b"lo", 0x41)  # IFF_UP | IFF_RUNNING
    fcntl.ioctl(socket.socket(), 0x8914, raise_lo)  # SIOCSIFFLAGS
    address = "127.0.0.2:6379"  # Ray takes 127.0.0.1 for the address that a machine has beyond itself

    def node(*more):
        command = [Path(sys.executable).with_name("ray"), "start", "--block", "--num-cpus", "1", *more]
        command += ["--object-store-memory", "80000000", "--disable-usage-stats"]
        return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)

    def alive():
        return sum(one["Alive"] for one in ray.nodes())

    def until(what):
        while not (found := what()):
            time.sleep(0.05)
        return found

    def connected():
        try:
            return ray.init(address, log_to_driver=False, logging_level="ERROR")
        except ConnectionError:
            return None

    seen = set()

    def of_node(second):
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(place.name)) == second.pid:
                    yield int(place.name), (place / "cmdline").read_text().rstrip(chr(0))
            except (OSError, ProcessLookupError):
                pass

    def working(second):  # Ray calls a worker by what it does
        names = [name for _, name in of_node(second) if name.startswith("ray::")]
        seen.update(names)
        return any(asked["task"] in name for name in names)

    head = node("--head", "--port", "6379", "--node-ip-address", "127.0.0.2", "--include-dashboard", "false",
                "--temp-dir", asked["place"])
    until(connected)
    second = node("--address", address, "--node-ip-address", "127.0.0.3")
    until(lambda: alive() == 2)
    command = subprocess.Popen(
        [sys.executable, "-m", "equipoise", *asked["command"]], env=os.environ | {"RAY_ADDRESS": address}
    )
    begun = lambda: len(list(Path(asked["within"]).glob(asked["files"]))) >= asked["many"]
    until(lambda: command.poll() is not None or (begun() and working(second)))
    assert command.poll() is None, f"the command ended before the node was to be killed, seen: {seen}"
    for number, _ in list(of_node(second)):  # its workers too, as when a machine goes down
        os.kill(number, signal.SIGKILL)
    code = command.wait()
    until(lambda: alive() == 1)
    print(json.dumps({"code": code, "alive": alive()}))
    """
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
    pytest.mark.skipif(
        not shutil.which(ALONE[0]) or subprocess.run([*ALONE, "true"], check=False).returncode != 0,
        reason="a network and processes of one's own are not to be had here",
    ),
]


def with_a_node_lost(command: list[object], task: str, within: Path, files: str, many: int) -> None:
    """Give a command to a cluster of two nodes; one dies once there are so many files and it has a task."""
    paths = {"PYTHONPATH": str(Path(eq.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="r") as place:
        asked = {"command": [*map(str, command)], "task": task, "place": place}
        asked |= {"within": str(within), "files": files, "many": many}
        done = subprocess.run(
            [*ALONE, sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(asked)],
            env=os.environ | paths | {"HOME": place},
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"code": 0, "alive": 1}, done.stderr


def test_a_sweep_finishes_though_a_node_is_killed(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    assert call("sweep", *ASKED, "--out", here, "-q").exit_code == 0
    command = ["sweep", *ASKED, "--engine", "ray", "--workers", 2, "--out", there, "-q"]
    with_a_node_lost(command, "ImplicitFunc.train", there, "trials/*/metrics.jsonl", 2)
    asked = Sweep.load(there)
    outcomes = [asked.outcome(trial) for trial in asked.trials]
    states = {one["trial"]: one["state"] for one in outcomes}
    assert set(states.values()) <= {"finished", "early"}, [(one["trial"], one["reason"]) for one in outcomes]
    assert any(Run.open(asked.run_of(trial)).status["resumed"] for trial in asked.trials)
    for name, state in states.items():
        if state == "finished":
            one, two = ((at / "trials" / name / "model.safetensors").read_bytes() for at in (here, there))
            assert one == two
    assert Run.open(there / "best").state == "finished"


def test_reproductions_finish_though_a_node_is_killed(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    small = ("--scale", "tiny", "--seeds", "1")
    assert call("reproduce", *KEYS, *small, "--out", here, "--jobs", 1, "-q").exit_code == 0
    command = ["reproduce", *KEYS, *small, "--engine", "ray", "--jobs", 2, "--out", there, "-q"]
    with_a_node_lost(command, "_ray_task", tmp_path, "there", 1)
    for key in KEYS:
        one, two = (json.loads((at / key / "measured.json").read_text()) for at in (here, there))
        assert one == two
