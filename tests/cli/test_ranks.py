"""fit by the ranks of torchrun: the weights of one process, and a rank that is killed loses nothing."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import equipoise as eq
from equipoise.tasks import Run, fitted, fitting

from .commands import call

PATIENCE = 600  # seconds, so many that only a job that hangs takes them
EPOCHS = 24
NEAR = 1e-9
FIT = (
    "--rows",
    "150",
    "--width",
    "8",
    "--epochs",
    str(EPOCHS),
    "--theorem",
    "anchored",
    "--dtype",
    "float64",
)
QUIET = ("--no-report", "--quiet")

# A rank kills itself at its n-th reduction, a moment that no load can shift; n = 0 is never.
PROGRAM = textwrap.dedent(
    """
    import os, signal, sys
    import torch.distributed as dist

    which, left, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    del sys.argv[1:4]
    reduce, made = dist.all_reduce, 0

    def counted(*args, **options):
        global made
        made += 1
        if made == left and int(os.environ["RANK"]) == which:
            os.kill(os.getpid(), signal.SIGKILL)
        return reduce(*args, **options)

    dist.all_reduce = counted
    from equipoise.cli import main
    try:
        main()
    finally:
        if os.environ["RANK"] == "0":
            open(place, "w").write(str(made))
    """
)


def by_ranks(place: Path, ranks: int, *args: object, which: int = 0, at: int = 0) -> tuple[int, int, str]:
    """How the job ended, how many reductions its first rank began, and what was said."""
    (place / "rank.py").write_text(PROGRAM)
    (place / "made").write_text("0")
    launch = ["-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    given = [str(place / "rank.py"), str(which), str(at), str(place / "made"), "fit", *map(str, args)]
    done = subprocess.run(
        [sys.executable, *launch, *given],
        env=os.environ | {"PYTHONPATH": str(Path(eq.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, int((place / "made").read_text()), done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The run of one process."""
    path = tmp_path_factory.mktemp("alone") / "run"
    said = call("fit", "digits", *FIT, *QUIET, "--out", path)
    assert said.exit_code == 0, said.output
    return path


def assert_same_network(path: Path, other: Path) -> None:
    """The weights to NEAR, and certificates that are proved, claim by claim."""
    one, two = (load_file(p / "model.safetensors") for p in (path, other))
    assert one.keys() == two.keys()
    for name, weights in one.items():
        assert abs(weights - two[name]).max() <= NEAR, name
    first, second = (json.loads((p / "certificate.json").read_text()) for p in (path, other))
    assert first["verdict"] == second["verdict"] == "proved"
    assert [c["holds"] for c in first["claims"]] == [c["holds"] for c in second["claims"]]


def killed(run: Path, which: int, at: int, ranks: int = 2) -> None:
    """Begin a run by several ranks, of which one is killed at a reduction; the job must end, and name it."""
    how = ("digits", *FIT, *QUIET, "--out", run)
    code, _, said = by_ranks(run.parent, ranks, *how, which=which, at=at)
    assert code != 0, "the job ended before its rank was to be killed"
    words = re.sub(r"[│\s]+", " ", said)  # without the frame of a panel
    assert re.search(rf"rank {which}(, which had rows \d+ to \d+,)? no longer answers", words), said
    other = 1 - which if ranks == 2 else r"\d"
    assert not re.search(rf"rank {other}(, which had rows \d+ to \d+,)? no longer answers", words), said


def end(run: Path, ranks: int = 1) -> None:
    """Go on with a run, or begin it where it was killed before its first step."""
    how = ("--resume", run) if (run / "config.toml").exists() else ("digits", *FIT, "--out", run)
    if ranks == 1:
        said = call("fit", *how, *QUIET)
        assert said.exit_code == 0, said.output
    else:
        code, _, told = by_ranks(run.parent, ranks, *how, *QUIET)
        assert code == 0, told
    assert Run.open(run).damaged() == []


def test_a_killed_rank_ends_the_job_which_one_process_goes_on_with(alone, tmp_path):
    killed(tmp_path / "run", 1, 900)
    assert Run.open(tmp_path / "run").checkpoints.steps()  # there is something to go on from
    end(tmp_path / "run")
    assert_same_network(tmp_path / "run", alone)


@pytest.mark.slow
def test_two_and_four_ranks_end_where_one_does(alone, tmp_path):
    for ranks in (2, 4):
        found = []
        for name in ("a", "b"):
            run = tmp_path / f"{name}{ranks}"
            code, _, said = by_ranks(tmp_path, ranks, "digits", *FIT, *QUIET, "--out", run)
            assert code == 0, said
            found.append((run / "model.safetensors").read_bytes())
        assert found[0] == found[1]  # the same bits at a fixed number
        assert_same_network(run, alone)


FROM_FILE = """
import os
from equipoise.data import file_rows
from equipoise.data.parquet import Groups
from equipoise.tasks import fitted, fitting
file_rows.LARGE = fitted.GATHERED = fitting.GATHERED = 0

def counted(self, rows, columns, of):
    counts[of] = counts.get(of, 0) + len(rows)
    return reads[of](self, rows, columns)

counts, reads = {}, {of: of.read for of in (file_rows.Mapped, Groups)}
for of in reads:
    of.read = lambda self, rows, columns, of=of: counted(self, rows, columns, of)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_every_rank_reads_its_own_rows_of_a_file(tmp_path, kind, monkeypatch):
    """The first looks at all rows, to prepare them; the others read those that they train and measure on."""
    X = np.random.default_rng(0).standard_normal((200, 4))
    path, y = tmp_path / f"t.{kind}", X[:, 0] + X[:, 1] ** 2
    if kind == "npz":
        np.savez(path, x=X, y=y)
    else:
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        gaps = [None if i % 9 == 0 else float(v) for i, v in enumerate(X[:, 3])]
        columns = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "gaps": gaps, "y": y}
        parquet.write_table(pa.table(columns), path, row_group_size=70)
    told = (
        f'os.environ["RANK"] == "1" and open({str(tmp_path / "read")!r}, "w").write(str([*counts.values()]))'
    )
    program = PROGRAM.replace("from equipoise.cli import main", FROM_FILE + "from equipoise.cli import main")
    monkeypatch.setitem(globals(), "PROGRAM", program.replace("finally:", f"finally:\n    {told}"))
    options = ("--theorem", "anchored", "--dtype", "float64", "--width", "8", "--epochs", "6", *QUIET)
    for module in (fitted, fitting):  # rows that are equal are not gathered where there are many
        monkeypatch.setattr(module, "GATHERED", 0)
    assert call("fit", path, *options, "--out", tmp_path / "one").exit_code == 0
    code, _, said = by_ranks(tmp_path, 2, path, *options, "--out", tmp_path / "two")
    assert code == 0, said
    assert json.loads((tmp_path / "read").read_text()) == [160 // 2 + 40 // 2]  # of 160 and 40 for both
    assert_same_network(tmp_path / "one", tmp_path / "two")
    for name in ("preparation.safetensors", "data.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_killed_at_twenty_random_moments(alone, tmp_path, number):
    """Either of two ranks; the run is gone on with by one process, or by three ranks."""
    chance = random.Random(number)
    killed(tmp_path / "run", chance.randrange(2), chance.randint(1, 1560))
    end(tmp_path / "run", 1 if number % 5 else 3)
    assert_same_network(tmp_path / "run", alone)
