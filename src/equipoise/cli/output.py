"""What a command prints: words and tables for people, or one JSON object for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


class Output:
    """stdout for one command: `say` speaks to people, `result` to programs; quiet says neither."""

    def __init__(self, quiet: bool = False, json: bool = False) -> None:
        self.quiet, self.json = quiet, json
        self.console = Console(highlight=False)

    @property
    def talks(self) -> bool:
        return not (self.quiet or self.json)

    def say(self, *what: RenderableType) -> None:
        """Strings are shown as they are: a [bracket] is a bracket."""
        if self.talks:
            for part in what:
                self.console.print(Text(part) if isinstance(part, str) else part)

    def heading(self, title: str, rest: str = "") -> None:
        self.say(Text.assemble((title, "bold"), f"  {rest}" if rest else ""))

    def facts(self, pairs: Mapping[str, str]) -> None:
        """Names on the left, what they are on the right."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in pairs.items():
            grid.add_row(name, Text(value))
        self.say(Padding(grid, (0, 0, 0, 2)))

    def result(self, content: Any) -> None:
        """Print strict JSON: a number that is not finite is null."""
        if self.json:
            print(json.dumps(_strict(content), ensure_ascii=False, indent=1))


def table(*columns: str, right: tuple[str, ...] = (), fold: tuple[str, ...] = ()) -> Table:
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
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2f} %"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _strict(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {str(k): _strict(v) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [_strict(v) for v in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
