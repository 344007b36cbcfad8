"""equipoise verify RUN|MODEL --data DATA --epsilon 2/255: which predictions hold for all nearby inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .failures import DataDir, Spread, command, option, parameters_of, workers_of
from .output import Output, number, percent, table

_SOURCE = "Directory of a finished run, a model file, or a checkpoint of a monotone network."


@command(
    """verify mnist_h40.safetensors --data mnist --epsilon 0.02 --mean 0.1307 --std 0.3081 --rows 100
verify runs/digits-auto-1 --data digits --epsilon 2/255 --epsilon 8/255 --workers 2""",
    more=parameters_of(Spread),
)
def verify(
    output: Output,
    given: dict[str, Any],
    source: Annotated[Path, typer.Argument(help=_SOURCE, metavar="SOURCE", show_default=False)],
    data: Annotated[str, option("Rows with their classes: a table like the run's, or a named data set.")],
    epsilon: Annotated[
        list[str], option("How far an input may move, such as 2/255 (tables: raw units); may be repeated.")
    ],
    norm: Annotated[str, option("Norm of the perturbation: linf (the default) or l2.")] = "linf",
    box: Annotated[str, option("Range of the inputs, LOW,HIGH (by default 0,1), or none.")] = "0,1",
    rows: Annotated[int | None, option("Verify only this many rows, from the first on.")] = None,
    nodes: Annotated[int, option("Give up a row when its box was split into this many parts.")] = 2000,
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
    from ..tasks.verified import VerifyTask, as_epsilon, shares

    epsilons = [as_epsilon(text) for text in epsilon]
    if norm not in ("linf", "l2"):
        raise WrongOption(f"--norm must be linf or l2. Got {norm}.")
    try:
        ends = None if box == "none" else tuple(float(end) for end in box.split(","))
    except ValueError:
        ends = ()
    if ends is not None and len(ends) != 2:
        raise WrongOption(f"--box must be LOW,HIGH or none. Got {box}.")
    task = VerifyTask.of(
        source, data, rows=rows, box=ends, norm=norm, nodes=nodes, normalised=(mean, std), data_dir=data_dir
    )
    out = out or source.with_name(f"{source.stem}-verified")
    out.mkdir(parents=True, exist_ok=True)

    def progress(done: int, total: int) -> None:
        if output.talks:
            typer.echo(f"\r{done} of {total}", nl=done == total, err=True)

    found = task.run(epsilons, out, progress, workers_of(given))
    page = write_page(task, found, out, source.name)
    shown = table(
        "ε", "rows", "proved", "not refuted", "parts per row", right=("rows", "proved", "not refuted")
    )
    for line in shares(found):
        cells = (percent(line["proved"]), percent(line["not refuted"]), number(line["parts a row"]))
        shown.add_row(f"{line['epsilon']:.5g}", str(int(line["rows"])), *cells)
    output.say(shown, f"  {page}")
    output.result({"out": str(out), "page": str(page), "shares": shares(found)})
