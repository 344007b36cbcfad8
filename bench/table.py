"""Rows as a table on the terminal, a plot and JSON under bench/results/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measure import Row

RESULTS = Path(__file__).parent / "results"


def show(name: str, rows: list[Row], facts: dict[str, Any], seconds: float) -> None:
    """One table a benchmark. A ratio is the peer's time over ours; ✓ and ✗: whether it meets its target."""
    versions = ", ".join(f"{package} {v}" for package, v in facts["versions"].items())
    table = Table(
        title=f"{name}: {facts['threads']} thread(s), {facts['cpu']}",
        caption=f"{versions}; {seconds:.0f} s in all",
    )
    for column in ("work", "ours", "ms", "verified", "peer", "ms", "verified", "ratio", "target", "note"):
        left = column in ("work", "ours", "peer", "note")
        table.add_column(column, justify="left" if left else "right")
    last: tuple[str, str] | None = None
    for row in rows:
        first, last = (row.work, row.ours) != last, (row.work, row.ours)
        target = ""
        if row.target is not None and row.ratio is not None:
            target = f"≥ {row.target:g}x {'✓' if row.ratio >= row.target else '✗'}"
        table.add_row(
            row.work if first else "",
            row.ours if first else "",
            _number(row.ours_ms, ".1f") if first else "",
            _number(row.error, ".1e") if first else "",
            row.peer,
            _number(row.peer_ms, ".1f"),
            _number(row.peer_error, ".1e"),
            _number(row.ratio, ".2f", "x"),
            target,
            row.note,
        )
    Console(width=None if Console().is_terminal else 170).print(table)


def store(name: str, rows: list[Row], facts: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    document = {"benchmark": name, **facts, "rows": [row.as_dict() for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    plot(name, rows, facts)


def plot(name: str, rows: list[Row], facts: dict[str, Any]) -> None:
    """Ratios as bars on a logarithmic axis: to the right of 1, ours is faster."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row.ratio is not None]
    figure, axes = plt.subplots(figsize=(9, 1 + 0.32 * len(shown)), layout="constrained")
    positions = range(len(shown), 0, -1)
    axes.barh(list(positions), [(row.ratio or 1) - 1 for row in shown], left=1, color="#3b6ea5", height=0.7)
    for position, row in zip(positions, shown, strict=True):
        axes.annotate(f" {row.ratio:.1f}x", (row.ratio or 0, position), va="center", fontsize=8)
        if row.target is not None:
            axes.plot([row.target] * 2, [position - 0.45, position + 0.45], color="black", linewidth=1.2)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.margins(x=0.12, y=0.01)
    axes.set_yticks(list(positions), [f"{row.work}: {row.peer}" for row in shown], fontsize=8)
    axes.set_xlabel(f"time of the peer / ours, {facts['threads']} thread(s); black: the target")
    axes.set_title(name)
    for suffix in ("png", "svg"):
        figure.savefig(RESULTS / f"{name}.{suffix}", dpi=150)
    plt.close(figure)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
