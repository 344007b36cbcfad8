"""python -m bench [names] [--quick] [--threads N]: a table, and a plot and the rows in bench/results/."""

from __future__ import annotations

import argparse
import importlib
import os
import time

from bench import BENCHMARKS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="equipoise beside its peers")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"any of {', '.join(BENCHMARKS)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer repetitions")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch and of XLA (default 1)")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}: choose from {', '.join(BENCHMARKS)}")

    set_threads(options.threads)
    from bench.measure import Row, environment
    from bench.table import show, store

    facts = environment(options.threads, options.quick)
    for name in options.names or BENCHMARKS:
        begin = time.perf_counter()
        found = importlib.import_module(BENCHMARKS[name]).run(quick=options.quick)
        rows = [row if isinstance(row, Row) else Row.from_dict(row) for row in found]
        show(name, rows, facts, time.perf_counter() - begin)
        store(name, rows, facts)


def set_threads(threads: int) -> None:
    """The same number for both sides. XLA reads its own when jax is first imported, hence before anything."""
    if threads == 1:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    elif hasattr(os, "sched_setaffinity"):  # XLA takes one thread for every core it may run on
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["JAX_ENABLE_X64"] = "1"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import torch

    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
