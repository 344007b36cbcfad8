"""What an experiment draws: figures as SVG and PNG, tables as CSV and Markdown, notes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ...files import write_atomically
from ...plots import save


@dataclass
class Page:
    """Collects the figures, tables and notes of one experiment in its directory."""

    directory: Path
    figures: list[dict[str, str]] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def figure(self, name: str, figure: Figure, caption: str) -> None:
        """Keep a figure, written as SVG and PNG."""
        for part in save(figure, self.directory / f".{name}", dpi=130):  # whole, or the one before
            part.replace(part.with_name(part.name.removeprefix(".")))
        self.figures.append({"name": name, "caption": caption})

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], caption: str) -> None:
        """Keep a table of rows by column, written as CSV with the numbers as they are, and shown rounded."""
        columns = list(rows[0])
        content = io.StringIO()
        writer = csv.DictWriter(content, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.directory / f"{name}.csv", content.getvalue().encode())
        shown = [[_shown(row[column]) for column in columns] for row in rows]
        write_atomically(self.directory / f"{name}.md", markdown(columns, shown).encode())
        self.tables.append({"name": name, "columns": columns, "rows": shown, "caption": caption})

    def note(self, words: str) -> None:
        """Keep a sentence that stands below the figures and tables."""
        self.notes.append(words)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; a bar inside a cell is escaped."""
    line = lambda cells: "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"
    return "\n".join([line(columns), "|" + " --- |" * len(columns), *map(line, rows)]) + "\n"


def _shown(cell: Any) -> str:
    if cell is None:
        return "–"
    return number(cell) if isinstance(cell, float) else str(cell)


def number(value: float | None) -> str:
    """Four significant digits, as a person writes them."""
    return "–" if value is None else f"{value:.4g}"
