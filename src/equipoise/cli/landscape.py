"""equipoise landscape RUN: the loss around a trained network, on a plane or a line of weights."""

from __future__ import annotations

import json as _json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import EXIT_CODES, Code, Debug, Failure, Json, Quiet, command

if TYPE_CHECKING:
    from ..explore import Landscape
    from ..models.affine import AffineFamily
    from ..runs import Fitted
    from .sources import Sample

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
        float | None,
        typer.Option(
            help="How far to go, in units of the filters' own norms; 1 by default.",
            min=1e-6,
            show_default=False,
        ),
    ] = None,
    grid: Annotated[int, typer.Option(help="Points along each direction.", min=3)] = 21,
    rows: Annotated[int, typer.Option(help="Rows of the training data to measure the loss on.", min=1)] = 200,
    seed: Annotated[
        int | None, typer.Option(help="Of the directions; 0 by default.", show_default=False)
    ] = None,
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

    On the line to another run nothing but weights may differ: both must be of one model with the same
    constants, trained with one loss on the same rows, prepared alike.
    """
    if to is not None:
        _refuse_useless({"--radius": radius is not None, "--line": line, "--seed": seed is not None})
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
    sample = stored_sample(stored)
    X, y = (part[:rows] for part in prepared(fitted, sample))
    model, name = fitted.model, _loss(fitted)
    if name not in LOSSES:
        raise Failure(
            "The landscape of this loss is not known",
            f"The loss must be one of {', '.join(sorted(LOSSES))}. The run was trained with {name}.",
            "equipoise fit … --uncertified --loss square makes one that can be drawn.",
            Code.USAGE,
        )
    evaluate = affine_loss(X, y, loss=name)
    generator = torch.Generator().manual_seed(seed or 0)
    if to is not None:
        directions = [between(model, _comparable(run, fitted, sample, to))]
        points = 4 * (grid // 2) + 1  # both networks are among them
        found = measure(model, evaluate, directions, np.linspace(-0.5, 1.5, points))
    else:
        directions = random_directions(model, 1 if line else 2, generator)
        reach = 1.0 if radius is None else radius
        axis = np.linspace(-reach, reach, grid)
        found = measure(model, evaluate, directions, axis, None if line else axis)
    sharpness = hessian_lambda_max(lambda: as_loss(name)(model(X), y), model, generator=generator)
    where = out or run / "landscape"
    where.mkdir(parents=True, exist_ok=True)
    at_centre = evaluate(model, None).loss
    content = {
        **found.to_dict(),
        "centre": at_centre,
        "share_below_twice": found.share_below(2 * at_centre),
        "hessian_lambda_max": sharpness.value,
        "hessian_residual": sharpness.residual,
        "rows": len(X),
        "seed": seed or 0,
    }
    write_atomically(where / "landscape.json", _json.dumps(content, ensure_ascii=False).encode())
    files = _draw(found, where, name, between_runs=to is not None)
    output.facts(
        {
            "loss here": number(at_centre, 4),
            "at most twice that": f"on {percent(content['share_below_twice'])} of the slice",
            "no equilibrium shown": f"{percent(float(found.masked.mean()))} of the points "
            + ", ".join(f"({count} {reason})" for reason, count in found.reasons.items()),
            "λ_max of the Hessian": f"about {number(sharpness.value, 4)} (an estimate, from below; "
            f"Lanczos residual {number(sharpness.residual, 1)})",
            "written": ", ".join(str(f) for f in files),
        }
    )
    output.result(content)


def _refuse_useless(given: dict[str, bool]) -> None:
    if names := [name for name, is_given in given.items() if is_given]:
        raise Failure(
            "An option that does not apply",
            f"--to takes the line from one network to the other: {', '.join(names)} would change nothing.",
            f"Leave out --to, or {' and '.join(names)}.",
            Code.USAGE,
        )


def _loss(fitted: Fitted) -> str:
    return fitted.history.loss_name.removeprefix("mean ")


def _comparable(run: Path, fitted: Fitted, sample: Sample, to: Path) -> AffineFamily:
    """The network of the other run; refused where its loss would be another than the one measured here."""
    import numpy as np
    import torch

    from ..explore import differences
    from .prepared import prepared
    from .stored import load_fitted, stored_sample

    stored, other = load_fitted(to)
    theirs = stored_sample(stored)
    differ = differences(fitted.model, other.model)
    if _loss(fitted) != _loss(other):
        differ.append(f"loss ({_loss(fitted)} and {_loss(other)})")
    pairs = zip(prepared(fitted, sample), prepared(other, theirs), strict=True)
    if not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs):
        if sample.provenance["sha256"] != theirs.provenance["sha256"]:
            names = [f"{s.provenance['name']}, {s.provenance['rows']} rows" for s in (sample, theirs)]
            differ.append(f"data ({names[0]}; and {names[1]})")
        else:
            mine, its = vars(fitted.preparation), vars(other.preparation)
            parts = [n for n in mine if n != "sharpness" and not np.array_equal(mine[n], its[n])]
            differ.append(f"preparation of the rows ({', '.join(parts)})")
    if differ:
        raise Failure(
            "These networks do not compare",
            f"On a line between two networks nothing but their weights may differ. {run} and {to} differ in "
            f"{', '.join(differ)}.",
            "Train both alike. --steps may differ, and --seed if it draws no test rows (--test-share 0).",
            Code.USAGE,
        )
    return other.model


def _draw(found: Landscape, where: Path, name: str, between_runs: bool) -> list[Path]:
    from ..plots import contours, save, surface
    from ..plots.surfaces import profile

    positive = bool((found.loss[~found.masked] > 0).all()) and not found.masked.all()
    words: dict[str, Any] = {"name": f"loss ({name})", "log": positive}
    masked = "no loss to show"  # for one reason or several
    if found.t is None:
        x = "from this network (0) to the other (1)" if between_runs else "along the direction"
        return save(profile(found.s, found.loss, x=x, masked=masked, **words), where / "line")
    files = save(contours(found.s, found.t, found.loss, masked=masked, **words), where / "contours")
    return files + save(surface(found.s, found.t, found.loss, **words), where / "surface")
