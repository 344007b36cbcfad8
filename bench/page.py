"""docs/benchmarks.md, docs/benchmarks.json and docs/images/benchmarks.png, from stored results alone.

What bench/results/ has of a benchmark replaces what docs/benchmarks.json had of it; the others stay.
"""

from __future__ import annotations

import importlib
import io
import json
from typing import Any

from bench import BENCHMARKS
from bench.measure import Row
from bench.table import DOCS, RESULTS, asked
from equipoise.files import write_atomically

INTRODUCTION = """# Benchmarks

This page was written by `make bench` (`python -m bench page`): no number in its tables was written by hand.
Where a reason names a time, it was read from a profile of the same work.

A ratio is the time of the other library over the time of equipoise, so that more than 1 means that equipoise
is faster. Both sides do the same work in one process and in turns, and the ratio is the median over the
turns. Both run at their defaults, except where a default does not serve the other library: that is said with
the rows. Every answer is verified by the same test, in float64 where the problem is; *verified* is the error
by that test. Times are CPU times of one thread, unless a section says otherwise, because other work on a
machine disturbs them least. They depend on the machine; the ratios do so less. Importing equipoise lets the
whole process keep memory that was freed, which makes the other libraries in it faster too.
"""


def stored() -> dict[str, dict[str, Any]]:
    """What is known of every benchmark: the page's own results, and newer ones that a run has left."""
    kept = DOCS / "benchmarks.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for name in BENCHMARKS:
        newer = RESULTS / f"{name}.json"
        if newer.exists():
            found[name] = json.loads(newer.read_text(encoding="utf-8"))
            found[name]["rows"] = [_explained(name, row) for row in found[name]["rows"]]
    return {name: found[name] for name in BENCHMARKS if name in found}


def _explained(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row with the reason that its benchmark has for it, if its target is missed and it has none."""
    this = Row.from_dict(row)
    if this.reason or not this.missed:
        return row
    reasons = getattr(importlib.import_module(BENCHMARKS[name]), "REASONS", {})
    where = f"{this.work}: {this.peer}"
    return row | {"reason": next((why for part, why in reasons.items() if part in where), "")}


def write_page() -> None:
    """Write the page, its numbers and its picture, and say what lacks a reason."""
    found = stored()
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    write_atomically(DOCS / "benchmarks.json", text.encode())
    write_atomically(DOCS / "benchmarks.md", page(found).encode())
    write_atomically(DOCS / "images" / "benchmarks.png", picture(found))
    for name, document in found.items():
        for row in map(Row.from_dict, document["rows"]):
            if row.missed and not row.reason:
                print(f"no reason stands beside a target that is missed: {name}, {row.work}, {row.peer}")
    print(DOCS / "benchmarks.md")


def page(found: dict[str, dict[str, Any]]) -> str:
    """The page in Markdown."""
    rows = [row for document in found.values() for row in map(Row.from_dict, document["rows"])]
    judged = [row for row in rows if row.target is not None and row.ratio is not None]
    met = sum(not row.missed for row in judged)
    missing = [name for name in BENCHMARKS if name not in found]
    parts = [
        INTRODUCTION,
        f"Of {len(judged)} ratios with a target, {met} meet it. Where one is missed, the reason follows "
        "the table.\n",
        "![Time of the other library over that of equipoise for every ratio with a target; a black line "
        "marks the target.](images/benchmarks.png)\n",
    ]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.\n")
    parts += [section(name, document) for name, document in found.items()]
    return "\n".join(parts)


def section(name: str, document: dict[str, Any]) -> str:
    """One benchmark: what is measured, on what, its rows, and why targets are missed."""
    rows = [Row.from_dict(row) for row in document["rows"]]
    lines = [f"## {name.capitalize()}\n", document["about"], "", machine(document), ""]
    lines += ["| work | ours | ms | verified | beside | ms | verified | ratio | target |"]
    lines += ["| --- | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |"]
    for row in rows:
        theirs = (
            (row.note or "not run", "", "")
            if row.peer_ms is None
            else (
                f"{row.peer_ms:.1f}",
                _error(row.peer_error),
                "" if row.ratio is None else f"{row.ratio:.2f}",
            )
        )
        cells = (row.work, row.ours, f"{row.ours_ms:.1f}", _error(row.error), row.peer, *theirs, asked(row))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    missed = [row for row in rows if row.missed]
    if missed:
        lines.append("\nMissed, and why:\n")
        lines += [
            f"- {row.work}, beside {row.peer} ({row.ratio:.2f}): {row.reason or 'no reason is known.'}"
            for row in missed
        ]
    return "\n".join(lines) + "\n"


def machine(document: dict[str, Any]) -> str:
    """What was measured on and with, in one sentence each."""
    versions = ", ".join(f"{name} {v}" for name, v in document["versions"].items() if v != "not installed")
    low, high = min(document["load"]), max(document["load"])
    load = f"{low:.1f}" if high - low < 0.1 else f"{low:.1f} to {high:.1f}"
    return (
        f"*{document['date']}, {document['cpu']}, {document['cores']} cores, "
        f"{document['threads']} thread(s), {document['seconds']} s in all; load of the machine {load}; "
        f"Python {document['python']}, {versions}.*"
    )


def picture(found: dict[str, dict[str, Any]]) -> bytes:
    """Ratios with a target as bars on a logarithmic axis: to the right of 1, ours is faster."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator

    shown = [
        (name, row)
        for name, document in found.items()
        for row in map(Row.from_dict, document["rows"])
        if row.target is not None and row.ratio is not None
    ]
    figure, axes = plt.subplots(figsize=(10, 1.4 + 0.26 * len(shown)), layout="constrained")
    for place, (_, row) in enumerate(shown):
        assert row.ratio is not None
        assert row.target is not None
        colour = "#c0603a" if row.missed else "#3b6ea5"
        axes.barh(place, row.ratio - 1, left=1, color=colour, height=0.7)
        beyond = max(row.ratio, row.target, 1.0)
        axes.annotate(f"  {row.ratio:.3g}", (beyond, place), va="center", fontsize=8)
        axes.plot([row.target] * 2, [place - 0.45, place + 0.45], color="black", linewidth=1.4)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(LogLocator(subs=()))
    axes.margins(x=0.12, y=0.01)
    axes.invert_yaxis()
    plain = [f"{row.work}: {row.peer}" for _, row in shown]
    names = [
        f"{row.work}, {row.ours}: {row.peer}" if plain.count(name) > 1 else name
        for name, (_, row) in zip(plain, shown, strict=True)
    ]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set_xlabel("time of the other / time of equipoise\nblack: the target; red: missed")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


def _error(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.1e}"
