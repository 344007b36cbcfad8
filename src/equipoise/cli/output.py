"""What a command prints: words and tables for people, or one JSON object for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..files import strict
from ..plain import plain, plain_json, spreadsheet_cell


class PlainConsole(Console):
    """A console that passes all text through `plain`, also inside tables and panels."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Words, made plain before their width is measured."""
        return super().render_str(plain(text), **options)  # before its width is measured

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of what is shown, each made plain."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


class Output:
    """Standard output of one command: `say` is for people, `result` for programs; quiet prints neither."""

    def __init__(self, quiet: bool = False, json: bool = False) -> None:
        self.quiet, self.json = quiet, json
        self.console = PlainConsole(highlight=False)

    @property
    def talks(self) -> bool:
        """Whether people are spoken to."""
        return not (self.quiet or self.json)

    def say(self, *what: RenderableType) -> None:
        """Print for people. Strings are shown as they are: a [bracket] is a bracket."""
        if self.talks:
            for part in what:
                self.console.print(Text(plain(part)) if isinstance(part, str) else part)

    def heading(self, title: str, rest: str = "") -> None:
        """A line that begins with a bold title."""
        self.say(Text.assemble((title, "bold"), f"  {rest}" if rest else ""))

    def facts(self, pairs: Mapping[str, str]) -> None:
        """Print two columns: names on the left, their values on the right."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in pairs.items():
            grid.add_row(Text(plain(name)), Text(plain(value)))
        self.say(Padding(grid, (0, 0, 0, 2)))

    def result(self, content: Any) -> None:
        """Print strict JSON: a number that is not finite is null."""
        if self.json:
            print(as_json(content, indent=1))


def as_json(content: Any, indent: int | None = None) -> str:
    """Strict JSON that is safe to print."""
    return plain_json(json.dumps(strict(content), ensure_ascii=False, indent=indent))


def as_csv(columns: Mapping[str, Sequence[Any]]) -> str:
    """CSV with a header. Every text goes through `spreadsheet_cell`; numbers stay numbers."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in (columns, *zip(*columns.values(), strict=True)):
        writer.writerow([spreadsheet_cell(cell) for cell in row])
    return file.getvalue()


def table(*columns: str, right: tuple[str, ...] = (), fold: tuple[str, ...] = ()) -> Table:
    """A table with these columns; those in `right` are aligned right, those in `fold` may be broken."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in columns:
        justify = "right" if name in right else "left"
        shown.add_column(name, justify=justify, overflow="fold" if name in fold else "ellipsis")  # type: ignore[arg-type]
    return shown


def number(value: Any, digits: int = 3) -> str:
    """A number as people read it; – where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    """A share in percent; – where there is none."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2f} %"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
