"""python -m bench.shards: 10⁶ rows of 50 numbers, trained on and certified by processes with a part each.

Every process maps the files and copies its own part, so that none ever holds all rows.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.lib.format import open_memmap

import equipoise as eq
from equipoise.theory.shards import Shard, gathered, part_of, rank
from equipoise.train import Trainer

COLUMNS, PIECE = 50, 10_000


def write(place: Path, N: int) -> None:
    """A table of normal numbers whose target is a function of two of them and noise, piece by piece."""
    X = open_memmap(place / "X.npy", "w+", np.float32, (N, COLUMNS))
    y = open_memmap(place / "y.npy", "w+", np.float32, (N,))
    chance = np.random.default_rng(0)
    for i in range(0, N, PIECE):
        rows = chance.standard_normal((min(PIECE, N - i), COLUMNS), dtype=np.float32)
        X[i : i + len(rows)] = rows
        y[i : i + len(rows)] = np.sin(rows[:, 0]) + rows[:, 1] * rows[:, 2]
        y[i : i + len(rows)] += 0.1 * chance.standard_normal(len(rows), dtype=np.float32)


def own(path: Path, N: int) -> torch.Tensor:
    """This process's rows of an array in a file."""
    return torch.from_numpy(np.array(np.load(path, mmap_mode="r")[part_of(N)]))


def peak() -> float:
    """The most memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def work(place: Path, N: int, ranks: int, width: int, epochs: int) -> None:
    """What each process does; the first prints what all measured."""
    torch.set_num_threads(1)
    if ranks > 1:
        which, store = int(os.environ["RANK"]), f"file://{place}/store"
        patience = timedelta(minutes=30)
        dist.init_process_group("gloo", init_method=store, rank=which, world_size=ranks, timeout=patience)
    began = time.process_time()
    X, y = Shard(own(place / "X.npy", N), N), own(place / "y.npy", N)
    model = eq.GaussianReLU(COLUMNS, width, generator=torch.Generator().manual_seed(0))
    F = {"loss": "half_square", "ridge": 1.0, "decay": 1e-3}
    certificate = eq.certify(model, X, y, theorem="anchored", **F)
    trainer = Trainer(
        model, "half_square", optimiser="adam", rate=1e-3, epochs=epochs, batch_size=4096,
        certificate=certificate, check_every=epochs, loose=True, rtol=1e-2,
    )  # fmt: skip
    history = trainer.fit(X, y)
    mine = (len(X), round(peak()), round(time.process_time() - began))
    told = gathered(mine)
    if rank() == 0:
        print(f"{N} rows, {ranks} processes, width {width}, {epochs} epochs: {certificate.verdict}")
        print("F at the start, enclosed at the end:", certificate.constants["F_start"], end=" ")
        print(history.anchored["F_end"])
        for number, (rows, most, seconds) in enumerate(told):
            print(f"process {number}: {rows} rows, {most} MB at most, {seconds} s")
    if ranks > 1:
        dist.destroy_process_group()


def main(N: int = 1_000_000, ranks: int = 2, width: int = 64, epochs: int = 2) -> None:
    """Write the table and start the processes."""
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory), N)
        given = [directory, *map(str, (N, ranks, width, epochs))]
        started = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "bench.shards", "part", *given],
                env=os.environ | {"RANK": str(r)},
            )
            for r in range(ranks)
        ]
        ended = [process.wait() for process in started]
        if any(ended):
            raise SystemExit("a process failed")


if __name__ == "__main__":
    if sys.argv[1:2] == ["part"]:
        work(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        main(*map(int, sys.argv[1:]))
