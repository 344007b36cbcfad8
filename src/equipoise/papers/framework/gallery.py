"""Pages of what was reproduced: one for each experiment, and one gallery. Self-contained and escaped."""

from __future__ import annotations

import base64
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment

from ... import __version__
from ...data import DataError
from ...data.errors import DataWarning
from ...files import write_atomically
from .claims import PAPERS
from .experiments import SCALES, Result
from .page import markdown
from .verdicts import UNDECIDED, Judgement

TITLE = "Five papers, reproduced"  # by which a gallery is recognised
LARGEST_SVG = 250_000  # bytes; a larger drawing is shown as PNG

_TEMPLATE = Path(__file__).with_name("gallery.html")


def duration(seconds: float) -> str:
    """3 s, 4 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else "under 1 s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def counts(judgements: Iterable[Judgement]) -> str:
    """How many claims agree, differ, are undecided, and cannot be tried."""
    words = {"agree": "agree", "differs": "differ", "undecided": "undecided"}
    found = Counter(words.get(j.verdict, "cannot be tried") for j in judgements)
    kinds = (*words.values(), "cannot be tried")
    return ", ".join(f"{found[kind]} {kind}" for kind in kinds if kind in found)


def check_place(out: str | Path) -> None:
    """Refuse to write a gallery over an index.html or index.md that is not one."""
    for path in (Path(out) / "index.html", Path(out) / "index.md"):
        if path.is_file() and TITLE not in path.read_text("utf-8", errors="replace")[:400]:
            raise ValueError(
                f"{path} is not of a gallery, and would be overwritten. Take another directory, or move it."
            )


def write_page(result: Result, out: Path) -> Path:
    """`out`/<key>/index.html."""
    path = out / result.key / "index.html"
    write_atomically(path, _render([result], out, f"{result.key}: {result.title}", gallery=False).encode())
    return path


def write_gallery(out: str | Path) -> Path:
    """`out`/index.html and `out`/index.md, of every result that lies in `out` and can be read."""
    out = Path(out)
    results = read_results(out)
    path = out / "index.html"
    write_atomically(path, _render(results, out, TITLE, gallery=True).encode())
    write_atomically(out / "index.md", summary(results).encode())
    return path


def read_results(out: Path) -> list[Result]:
    """Every result in `out`, in the order of the papers, with a warning about any that cannot be read."""
    found = []
    for path in sorted(out.glob("*/result.json")):
        try:
            found.append(read_result(path.parent))
        except DataError as error:
            warnings.warn(f"{error} It is left out.", DataWarning, stacklevel=2)
    return sorted(found, key=lambda r: (PAPERS.index(r.key.split(".")[0]), r.key))


def read_result(directory: Path) -> Result:
    """The result of the experiment that `directory` is of, with its figures."""
    path = directory / "result.json"
    try:
        content = json.loads(path.read_text("utf-8"))
        found = Result.from_dict({key: value for key, value in content.items() if key != "verdict"})
        if found.key != directory.name or found.key.split(".")[0] not in PAPERS:
            raise ValueError(f"it is of {found.key!r}")
        if found.settings["scale"] not in SCALES:
            raise ValueError(f"no scale is called {found.settings['scale']!r}")
        _ = summary([found]), found.data.items()  # all that a page shows
        for name in (f"{figure['name']}.{form}" for figure in found.figures for form in ("svg", "png")):
            (directory / name).stat()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is not a whole result of an experiment ({reason}).") from error
    return found


def processor_time(results: Sequence[Result], out: Path) -> float:
    """Seconds of all units that the results rest on, each counted once; as often as they were used, if some
    cannot be read."""
    units = {path for r in results for path in r.units}
    try:
        return sum(json.loads((out / path).read_text("utf-8"))["processor_seconds"] for path in units)
    except (OSError, ValueError, LookupError, TypeError):
        return sum(r.seconds for r in results)


def summary(results: Sequence[Result]) -> str:
    """The gallery in Markdown: every claim with its numbers."""
    lines = [f"# {TITLE}", ""]
    rows = [
        [r.key, r.title, r.verdict, counts(r.judgements), r.settings["scale"], duration(r.seconds)]
        for r in results
    ]
    lines.append(markdown(["experiment", "what", "verdict", "claims", "scale", "time"], rows))
    for r in results:
        lines += [f"## {r.key}: {r.title}", "", f"The paper: {r.claim}", ""]
        lines += [f"**{' '.join(words.split())}**\n" for words in said(r)]
        lines += [f"![{f['caption']}]({r.key}/{f['name']}.png)\n" for f in r.figures]
        lines.append(
            judged([(j.claim, j.paper, j.measured, j.tolerance, j.verdict, j.reason) for j in r.judgements])
        )
        lines += [f"{t['caption']}\n\n{markdown(t['columns'], t['rows'])}" for t in r.tables]
        lines += [f"{note}\n" for note in r.notes]
        lines.append(f"{run_with(r)}\n")
    return "\n".join(lines)


def tests(stated: Iterable[str]) -> dict[str, int]:
    """Every test that was applied, once, by the number that stands for it in the rows."""
    return {words: number for number, words in enumerate(dict.fromkeys(filter(None, stated)), 1)}


def own_reason(reason: str) -> str:
    """What a reason says beyond that the numbers say neither yes nor no, which the page says once."""
    return reason.removeprefix(UNDECIDED).removeprefix(". ")


def judged(claims: Sequence[Sequence[str]]) -> str:
    """Claims (claim, paper, measured, test, verdict, reason) in Markdown, each test stated once below."""
    known = tests(claim[3] for claim in claims)
    columns = ["claim", "paper", "measured", "test", "verdict"]
    rows = []
    for claim, paper, measured, test, verdict, reason in claims:
        why = own_reason(reason)
        rows.append(
            [claim, paper, measured, str(known.get(test, "–")), f"{verdict}: {why}" if why else verdict]
        )
    told = "".join(f"\n{n}. {words}" for words, n in known.items())
    return (
        markdown(columns, rows)
        + (f"\nWhat the numbers of the tests stand for:\n{told}" if told else "")
        + "\n"
    )


def said(result: Result) -> list[str]:
    """What a reader must know before the numbers."""
    failed = [f"It failed: {result.error}"] if result.error else []
    later = [f"A later run failed and changed nothing here: {result.later}"] if result.later else []
    return [*failed, *later, *(f"Note: {words}" for words in result.warnings)]


def computed_again(result: Result) -> list[str]:
    """Which units were stored and computed again, one line for each reason."""
    reasons: dict[str, list[str]] = {}
    for words in result.recomputed:
        unit, _, why = words.partition(": ")
        reasons.setdefault(why, []).append(unit)
    named = lambda some: (
        ", ".join(some) if len(some) <= 3 else f"{', '.join(some[:2])} and {len(some) - 2} more"
    )
    return [f"computed again, for {why}: {named(some)}" for why, some in reasons.items()]


def run_with(result: Result) -> str:
    """The settings of a run in words: its scale, its data, the numbers its units were computed with."""
    data = [f"data {', '.join(result.data)}"] if result.data else []
    order = lambda value: value if isinstance(value, list) else [value]
    sizes = [f"{name} {_values(sorted(values, key=order))}" for name, values in result.sizes.items()]
    return "; ".join([f"Run at the scale {result.settings['scale']}", *data, *sizes]) + "."


def _values(values: Sequence[Any], most: int = 6) -> str:
    """1, 2, 3; of many, the first and the last."""
    shown = [f"[{_values(v, 3)}]" if isinstance(v, list) else f"{v:.4g}" for v in values]
    return ", ".join(shown) if len(shown) <= most else f"{shown[0]} … {shown[-1]}"


def _render(results: Sequence[Result], out: Path, title: str, gallery: bool) -> str:
    environment = Environment(autoescape=True, trim_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    return template.render(
        results=results,
        images={r.key: _images(r, out) for r in results},
        title=title,
        gallery=gallery,
        version=__version__,
        total=processor_time(results, out),
        time=duration,
        counts=counts,
        tests=tests,
        own_reason=own_reason,
        claims=[j for r in results for j in r.judgements],
        said=said,
        run_with=run_with,
    )


def _images(result: Result, out: Path) -> Mapping[str, Any]:
    return {f["name"]: _inline(out / result.key / f["name"]) for f in result.figures}


def _inline(stem: Path) -> str:
    """A figure as a data address: SVG, or PNG where that is smaller by far."""
    svg = stem.with_name(f"{stem.name}.svg").read_bytes()
    if len(svg) <= LARGEST_SVG:
        return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    png = stem.with_name(f"{stem.name}.png").read_bytes()
    return "data:image/png;base64," + base64.b64encode(png).decode()
