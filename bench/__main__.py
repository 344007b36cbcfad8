"""python -m bench [names] [--quick] [--threads N]: tables, rows in bench/results/, and the page in docs/.

Without names everything is measured; `forward:m=500` is a part of a benchmark. A run of some names keeps what
the page has of the others, so that it can be measured in pieces, and `python -m bench page` writes it anew
from what is stored. A quick run never reaches the page.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import time

from bench import BENCHMARKS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="equipoise beside its peers")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help=f"any of {', '.join(BENCHMARKS)} (all by default), a part of one such as forward:m=500, or "
        "page: write the page from stored results",
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer repetitions; no page")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch and of XLA (default 1)")
    options = parser.parse_args()
    unknown = [name for name in options.names if name.split(":")[0] not in (*BENCHMARKS, "page")]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}: choose from {', '.join(BENCHMARKS)}, page")

    set_threads(options.threads)
    from bench.page import write_page
    from bench.table import summary

    asked = [name for name in options.names or BENCHMARKS if name != "page"]
    found = {name: measured(name, options.threads, options.quick) for name in asked}
    if len(found) > 1:
        summary(found)
    if not options.quick and options.threads == 1:
        write_page()


def measured(name: str, threads: int, quick: bool) -> dict:
    """Run one benchmark, show its rows and store them."""
    from bench.measure import Row, environment
    from bench.table import show, store

    name, _, part = name.partition(":")
    module = importlib.import_module(BENCHMARKS[name])
    parts = getattr(module, "PARTS", {})
    if part and part not in parts:
        raise SystemExit(f"{name} has no part {part!r}: choose from {', '.join(parts) or 'none'}.")
    facts, begin = environment(threads, quick), time.perf_counter()
    found = parts[part]() if part else module.run(quick=quick)
    rows = [row if isinstance(row, Row) else Row.from_dict(row) for row in found]
    facts |= {"seconds": round(time.perf_counter() - begin), "about": inspect.getdoc(module) or ""}
    facts["load"] = [*facts["load"], os.getloadavg()[0]]
    show(name, rows, facts)
    return store(name, rows, facts, merge=bool(part))


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
