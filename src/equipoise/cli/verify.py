"""equipoise verify RUN|MODEL --data DATA --epsilon 2/255: which predictions hold for all nearby inputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from .failures import DataDir, Spread, command, option, parameters_of, workers_of
from .output import Output, number, percent, table

_SOURCE = "Directory of a finished run, a model file, or a checkpoint of a monotone network."


@command(
    """verify mnist_h40.safetensors --data mnist --epsilon 0.02 --mean 0.1307 --std 0.3081 --rows 100
verify runs/digits-auto-1 --data digits --epsilon 2/255 --epsilon 8/255 --workers 2
verify runs/digits-auto-1 --data digits --radius 0.1""",
    more=parameters_of(Spread),
)
def verify(
    output: Output,
    given: dict[str, Any],
    source: Annotated[Path, typer.Argument(help=_SOURCE, metavar="SOURCE", show_default=False)],
    data: Annotated[str, option("Rows with their classes: a table like the run's, or a named data set.")],
    epsilon: Annotated[list[str] | None, option("How far an input may move: 2/255. May be repeated.")] = None,
    radius: Annotated[
        str | None, option("Find for each row how far it may move, up to this ε, by bisection.")
    ] = None,
    norm: Annotated[str, option("Norm of the perturbation: linf (the default) or l2.")] = "linf",
    unit: Annotated[
        str | None,
        option("Unit of ε for a run on a table: deviations of each column (the default), or raw."),
    ] = None,
    box: Annotated[
        str, option("Range of the inputs, LOW,HIGH, or none; by default 0,1 for images, none for tables.")
    ] = "auto",
    rows: Annotated[int | None, option("Verify only this many rows, from the first on.", min=1)] = None,
    nodes: Annotated[int, option("Give up a row when its set was split into this many parts.", min=1)] = 2000,
    mean: Annotated[float, option("Mean that the inputs of a checkpoint were normalised with.")] = 0.0,
    std: Annotated[
        float, option("Standard deviation that the inputs of a checkpoint were normalised with.")
    ] = 1.0,
    out: Annotated[Path | None, option("Folder to write to; by default SOURCE-verified.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Prove for each row that no input near it gets another class, or find an input that does.

    Results are saved every few rows, and the same command continues from there. The folder holds
    verified.json and a page, verified.html.
    """
    from ..report.verified import write_page
    from ..tasks import WrongOption
    from ..tasks.verified import VerifyTask, as_epsilon, shares, spread

    if not epsilon and radius is None:
        raise WrongOption("--epsilon or --radius must say how far inputs may move. Got neither.")
    epsilons = [as_epsilon(text) for text in epsilon or []]
    most = None if radius is None else as_epsilon(radius, "--radius")
    if most == 0:
        raise WrongOption("--radius must be > 0. Got 0.")
    how: dict[str, Any] = {"rows": rows, "box": _ends(box), "norm": _norm(norm), "nodes": nodes, "unit": unit}
    task = VerifyTask.of(source, data, **how, normalised=(mean, std), data_dir=data_dir)
    out = out or source.with_name(f"{source.stem}-verified")
    out.mkdir(parents=True, exist_ok=True)

    def progress(done: int, total: int) -> None:
        if output.talks:
            typer.echo(f"\r{done} of {total}", nl=done == total, err=True)

    found = task.run(epsilons, out, progress, workers_of(given), radius=most)
    page = write_page(task, found, out, source.name)
    output.say(f"  ε is counted {task.counted}, in the norm {norm}.", *_tables(found), f"  {page}")
    told = {"unit": task.unit, "norm": norm, "shares": shares(found), "radii": spread(found)}
    output.result({"out": str(out), "page": str(page), **told})


def _ends(box: str) -> tuple[float, float] | str | None:
    """--box as numbers; "auto" leaves it to the data."""
    from ..tasks import WrongOption

    if box in ("auto", "none"):
        return {"auto": "auto"}.get(box)
    try:
        low, high = map(float, box.split(","))
    except ValueError:
        low, high = math.nan, math.nan
    if not low <= high:
        raise WrongOption(f"--box must be LOW,HIGH or none. Got {box}.")
    return low, high


def _norm(norm: str) -> str:
    from ..tasks import WrongOption

    if norm not in ("linf", "l2"):
        raise WrongOption(f"--norm must be linf or l2. Got {norm}.")
    return norm


def _tables(found: dict[str, Any]) -> list[Any]:
    """The share of rows for each ε that was given, and the spread of radii if they were asked for."""
    from ..tasks.verified import SHARES, shares, spread

    shown = []
    if lines := shares(found):
        shown.append(
            table(
                "ε", "rows", "proved", "not refuted", "parts per row", right=("rows", "proved", "not refuted")
            )
        )
    for line in lines:
        cells = (percent(line["proved"]), percent(line["not refuted"]), number(line["parts a row"]))
        shown[0].add_row(f"{line['epsilon']:.5g}", str(int(line["rows"])), *cells)
    for one in spread(found):
        radii = table(f"ε up to {one['most']:g}", *(f"{share:.0%} of rows" for share in SHARES))
        radii.add_row("proved up to", *(f"{v:.4g}" for v in one["proved"]))
        radii.add_row("refuted from", *("never" if v == math.inf else f"{v:.4g}" for v in one["refuted"]))
        shown.append(radii)
    return shown
