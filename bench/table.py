"""Rows as tables on the terminal, and as JSON under bench/results/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measure import Row
from equipoise.files import write_atomically

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"


def show(name: str, rows: list[Row], facts: dict[str, Any]) -> None:
    """One table for each benchmark. A ratio is the peer's time over ours; ✓ or ✗: does it meet its target?"""
    versions = ", ".join(f"{package} {v}" for package, v in facts["versions"].items())
    table = Table(
        title=f"{name}: {facts['threads']} thread(s), {facts['cpu']}",
        caption=f"{versions}; {facts['seconds']} s in all",
    )
    for column in ("work", "ours", "ms", "verified", "peer", "ms", "verified", "ratio", "target", "note"):
        left = column in ("work", "ours", "peer", "note")
        table.add_column(column, justify="left" if left else "right")
    last: tuple[str, str] | None = None
    for row in rows:
        first, last = (row.work, row.ours) != last, (row.work, row.ours)
        table.add_row(
            row.work if first else "",
            row.ours if first else "",
            _number(row.ours_ms, ".1f") if first else "",
            _number(row.error, ".1e") if first else "",
            row.peer,
            _number(row.peer_ms, ".1f"),
            _number(row.peer_error, ".1e"),
            _number(row.ratio, ".2f", "x"),
            asked(row),
            row.note,
        )
    _print(table)


def summary(found: dict[str, dict[str, Any]]) -> None:
    """Every ratio that has a target, in one table."""
    table = Table(title="targets: time of the peer over ours")
    for column in ("benchmark", "work", "beside", "ratio", "target"):
        table.add_column(column, justify="right" if column in ("ratio", "target") else "left")
    for name, document in found.items():
        for row in map(Row.from_dict, document["rows"]):
            if row.target is not None and row.ratio is not None:
                table.add_row(name, row.work, row.peer, f"{row.ratio:.2f}x", asked(row))
    _print(table)


def asked(row: Row) -> str:
    """The target of a row, and whether it is met; nothing where there is none."""
    if row.target is None or row.ratio is None:
        return ""
    return f"≥ {row.target:.3g}x {'✗' if row.missed else '✓'}"


def store(name: str, rows: list[Row], facts: dict[str, Any], merge: bool = False) -> dict[str, Any]:
    """The rows and what they were measured on and with, as JSON; returned as it is written.

    `merge`: rows of other works that were stored before, or stand on the page, stay; the times and loads are
    those of all.
    """
    RESULTS.mkdir(exist_ok=True)
    suffix = "" if facts["threads"] == 1 else f"-{facts['threads']}"
    path = RESULTS / f"{name}{suffix}{'-quick' if facts['quick'] else ''}.json"
    kept: list[dict[str, Any]] = []
    before = _read(path) if path.exists() else None
    if before is None and path.stem == name and (DOCS / "benchmarks.json").exists():
        before = _read(DOCS / "benchmarks.json").get(name)
    if merge and before is not None:
        works = {row.work for row in rows}
        kept = [row for row in before["rows"] if row["work"] not in works]
        facts = facts | {
            "seconds": facts["seconds"] + before["seconds"],
            "load": facts["load"] + before["load"],
        }
    document = {"benchmark": name, **facts, "rows": [*kept, *(row.as_dict() for row in rows)]}
    write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    return document


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _print(table: Table) -> None:
    Console(width=None if Console().is_terminal else 170).print(table)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
