"""equipoise runs [DIR]: what was trained, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import Code, Ended, Failure, command, option
from .output import Output, duration, number, table

if TYPE_CHECKING:
    from ..tasks import Listed


@command("""runs
runs experiments --sort score""")
def runs(
    output: Output,
    directory: Annotated[Path, typer.Argument(help="A directory of runs.", metavar="DIRECTORY")] = Path(
        "runs"
    ),
    sort: Annotated[str | None, option("Sort by score, loss or seconds; by default by age.")] = None,
) -> None:
    """List the runs of a directory and compare them. Damaged runs are named, and the exit code is then 5."""
    from rich.text import Text

    from ..tasks import list_runs

    keys = {None: 0, "score": -1, "loss": 1, "seconds": 1}
    if sort not in keys:
        raise Failure(
            "An option does not fit", f"--sort must be score, loss or seconds. Got {sort}.", code=Code.USAGE
        )
    try:
        found = list_runs(directory)
    except FileNotFoundError as error:
        raise Failure(
            "There are no runs", str(error), "equipoise fit digits makes one.", Code.USAGE
        ) from error
    if sort is not None:
        found.sort(key=lambda run: _key(run, sort, keys[sort]))
    shown = table(
        "run", "state", "network", "score", "proved", "time", right=("score", "time"), fold=("run",)
    )
    for run in found:
        r = _results(run)
        if not r:
            shown.add_row(Text(run.path.name), _state(run), *["–"] * 4)
            continue
        shown.add_row(
            Text(run.path.name),
            _state(run),
            f"{r['model']} {r['width']}",
            f"{'R² ' if r['score_name'] == 'r2' else ''}{number(r['score'], 4)}",
            _proved(r),
            duration(r["seconds"]),
        )
    output.say(shown if found else f"No runs in {directory}: equipoise fit digits makes one.")
    for run in found:
        for said in filter(None, (run.problem, run.note)):
            output.say(f"{run.path.name}: {said}")
    output.result(
        [
            {"run": str(run.path), "state": run.state, "problem": run.problem, "note": run.note}
            | {"results": _results(run), "data": run.data.get("name"), "recipe": run.config.get("recipe", {})}
            for run in found
        ]
    )
    if any(run.damaged for run in found):
        raise Ended(Code.DAMAGED)


def _results(run: Listed) -> dict[str, Any]:
    results: dict[str, Any] = run.status.get("results", {})
    return results


def _proved(results: dict[str, Any]) -> str:
    if results["verdict"] == "proved":
        return str(results["theorem"])
    return "wellposed" if results["wellposed"] == "proved" else "nothing"


def _key(run: Listed, name: str, sign: int) -> float:
    value = _results(run).get(name)
    return float("inf") if value is None else sign * value


def _state(run: Listed) -> Any:
    from rich.text import Text

    colours = {"finished": "green", "running": "cyan", "interrupted": "yellow", "not begun": "yellow"}
    colour = colours.get(run.state, "red")
    return Text("damaged" if run.damaged else run.state, style="red" if run.damaged else colour)
