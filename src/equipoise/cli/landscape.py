"""equipoise landscape RUN: the loss around a trained network, on a plane or a line of weights."""

from __future__ import annotations

import json as _json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import EXIT_CODES, Code, Debug, Failure, Json, Quiet, command

if TYPE_CHECKING:
    from ..explore import Landscape

EPILOG = f"""[bold]Examples[/bold]

  $ equipoise landscape runs/digits-auto-1
  $ equipoise landscape runs/a --to runs/b          [dim]the line between two networks[/dim]

[bold]Exit codes[/bold]  {EXIT_CODES}
"""


@command
def landscape(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Option(help="Another run: the line from here to there.", show_default=False),
    ] = None,
    line: Annotated[bool, typer.Option("--line", help="One random direction in place of two.")] = False,
    radius: Annotated[
        float, typer.Option(help="How far to go, in units of the filters' own norms.", min=1e-6)
    ] = 1.0,
    grid: Annotated[int, typer.Option(help="Points along each direction.", min=3)] = 21,
    rows: Annotated[int, typer.Option(help="Rows of the training data to measure the loss on.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Of the directions.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; by default RUN/landscape.", show_default=False)
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw the loss around a trained network, on filter-normalised random directions.

    Weights that are not proved to give every row one equilibrium, or whose equilibria are not found, have no
    loss to show: they are crossed out and counted. Writes landscape.json, and figures as SVG and PNG.
    """
    import numpy as np
    import torch

    from ..explore import affine_loss, between, hessian_lambda_max, random_directions
    from ..explore import landscape as measure
    from ..losses import LOSSES, as_loss
    from ..train.checkpoint import write_atomically
    from .output import Output, number, percent
    from .prepared import prepared
    from .stored import load_fitted, stored_sample

    output = Output(quiet, json)
    stored, fitted = load_fitted(run)
    X, y = (part[:rows] for part in prepared(fitted, stored_sample(stored)))
    model, name = fitted.model, fitted.history.loss_name.removeprefix("mean ")
    if name not in LOSSES:
        raise Failure(
            "The landscape of this loss is not known",
            f"The loss must be one of {', '.join(sorted(LOSSES))}. The run was trained with {name}.",
            "equipoise fit … --uncertified --loss square makes one that can be drawn.",
            Code.USAGE,
        )
    evaluate = affine_loss(X, y, loss=name)
    axis = np.linspace(-radius, radius, grid)
    if to is not None:
        _, other = load_fitted(to)
        try:
            directions = [between(model, other.model)]
        except ValueError as error:
            raise Failure("These networks do not compare", str(error), code=Code.USAGE) from None
        points = 4 * (grid // 2) + 1  # both networks are among them
        found = measure(model, evaluate, directions, np.linspace(-0.5, 1.5, points))
    else:
        generator = torch.Generator().manual_seed(seed)
        directions = random_directions(model, 1 if line else 2, generator)
        found = measure(model, evaluate, directions, axis, None if line else axis)
    sharpness = hessian_lambda_max(lambda: as_loss(name)(model(X), y), model, steps=12)
    where = out or run / "landscape"
    where.mkdir(parents=True, exist_ok=True)
    at_centre = evaluate(model, None).loss
    content = {
        **found.to_dict(),
        "centre": at_centre,
        "share_below_twice": found.share_below(2 * at_centre),
        "hessian_lambda_max": sharpness.value,
        "rows": len(X),
        "seed": seed,
    }
    write_atomically(where / "landscape.json", _json.dumps(content, ensure_ascii=False).encode())
    files = _draw(found, where, name, between_runs=to is not None)
    output.facts(
        {
            "loss here": number(at_centre, 4),
            "at most twice that": f"on {percent(content['share_below_twice'])} of the slice",
            "no equilibrium shown": f"{percent(float(found.masked.mean()))} of the points "
            + ", ".join(f"({count} {reason})" for reason, count in found.reasons.items()),
            "λ_max of the Hessian": f"about {number(sharpness.value, 4)} (an estimate, from below)",
            "written": ", ".join(str(f) for f in files),
        }
    )
    output.result(content)


def _draw(found: Landscape, where: Path, name: str, between_runs: bool) -> list[Path]:
    from ..plots import contours, curves, save, surface

    words: dict[str, Any] = {"name": f"loss ({name})"}
    positive = bool((found.loss[~found.masked] > 0).all()) and not found.masked.all()
    if found.t is None:
        x = "from this network (0) to the other (1)" if between_runs else "along the direction"
        figure = curves({"": (found.s, found.loss)}, x=x, y=words["name"], log_y=positive)
        return save(figure, where / "line")
    files = save(contours(found.s, found.t, found.loss, log=positive, **words), where / "contours")
    return files + save(surface(found.s, found.t, found.loss, log=positive, **words), where / "surface")
