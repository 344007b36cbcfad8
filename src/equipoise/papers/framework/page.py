"""What an experiment draws: figures as SVG and PNG, tables as CSV and Markdown, notes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...files import write_atomically
from ...plots import LIGHT, save
from ...plots.style import FONT, SMALL


@dataclass
class Page:
    """Collects the figures, tables and notes of one experiment in its directory."""

    directory: Path
    figures: list[dict[str, str]] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def figure(self, name: str, figure: Figure, caption: str) -> None:
        for part in save(figure, self.directory / f".{name}", dpi=130):  # whole, or the one before
            part.replace(part.with_name(part.name.removeprefix(".")))
        self.figures.append({"name": name, "caption": caption})

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], caption: str) -> None:
        """Written as CSV with the numbers as they are, shown and written as Markdown rounded."""
        content = io.StringIO()
        writer = csv.writer(content, lineterminator="\n")
        writer.writerows([columns, *rows])
        write_atomically(self.directory / f"{name}.csv", content.getvalue().encode())
        shown = [[_shown(cell) for cell in row] for row in rows]
        write_atomically(self.directory / f"{name}.md", markdown(columns, shown).encode())
        self.tables.append({"name": name, "columns": list(columns), "rows": shown, "caption": caption})

    def note(self, words: str) -> None:
        self.notes.append(words)


def shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend above all panels, of the names that the first row uses, in place of one in each."""
    named: dict[str, Any] = {}
    for ax in figure.axes:
        own = ax.get_legend()
        if own is not None:
            own.remove()
    for ax in panels:
        named |= {name: handle for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    box = figure.legend(
        list(named.values()),
        list(named),
        loc="outside upper center",
        ncols=min(5, len(named)),
        frameon=False,
        prop={"family": FONT, "size": SMALL},
        labelcolor=LIGHT.ink,
    )
    for text in box.get_texts():
        text.set_parse_math(False)


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
