"""equipoise landscape RUN: the loss around a trained network or along its training, on a slice of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import EXIT_CODES, Code, DataDir, Debug, Failure, Json, Quiet, command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..explore import Measured, Survey, TrainingPath
    from ..models.affine import AffineFamily
    from ..tasks import Fitted, Run
    from .output import Output
    from .sources import Sample

EPILOG = f"""[bold]Examples[/bold]

  $ equipoise landscape runs/digits-auto-1
  $ equipoise landscape runs/a --to runs/b          [dim]the line between two networks[/dim]
  $ equipoise landscape runs/a --path               [dim]the plane of its training[/dim]

[bold]Exit codes[/bold]  {EXIT_CODES}
"""

_KINDS = "contours", "surface", "line", "path"  # figures


@command
def landscape(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Option(help="Another run: the line from here to there.", show_default=False),
    ] = None,
    path: Annotated[
        bool,
        typer.Option(
            "--path",
            help="The plane of the training's own path. Costs the training once more, which is repeated in "
            "memory and writes nothing into the run.",
        ),
    ] = False,
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
    rows: Annotated[
        int, typer.Option(help="Rows trained on to measure the loss on, spread evenly over all.", min=1)
    ] = 200,
    seed: Annotated[
        int | None, typer.Option(help="Of the directions; 0 by default.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; by default RUN/landscape.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw the loss around a trained network, on filter-normalised random directions.

    Weights that are not proved to give every row one equilibrium, or whose equilibria are not found, have no
    loss to show: they are crossed out and counted. Writes landscape.json, and figures as SVG and PNG in place
    of those that it wrote there before.

    The loss is the one that the run logs: of certified training the sum over rows (its plain_loss, without
    slack), of free training the mean, here at the weights the run was left at and on --rows of its rows.

    On the line to another run nothing but weights may differ: both must be of one model with the same
    constants, trained with one loss on the same rows, prepared alike.

    With --path the plane goes through the trained network along the first two principal components of the
    weights at about 30 moments of the training, and the training is drawn in it. The colours are the loss of
    the plane's own points: where the training left the plane, its loss was another. It must lead to the run's
    own weights again.
    """
    given = {"--radius": radius is not None, "--line": line, "--seed": seed is not None}
    if path:
        _refuse_useless("--path", "the plane of one training's path", {"--to": to is not None, **given})
    if to is not None:
        _refuse_useless("--to", "the line from one network to the other", given)
    if radius is not None and not math.isfinite(radius):
        raise Failure("An option does not fit", f"--radius must be finite. Got {radius}.", code=Code.USAGE)
    from ..explore import measured, survey_around, survey_between, survey_path
    from .output import Output
    from .published import publish
    from .stored import load_fitted, stored_sample

    output = Output(quiet, json)
    stored, fitted = load_fitted(run)
    sample = stored_sample(stored, data_dir)
    model, loss = fitted.model, measured(fitted, *sample.train, sample.kind, rows)
    if path:
        found = survey_path(model, _repeated(stored, fitted, sample, output), loss, grid)
    elif to is not None:
        found = survey_between(model, _comparable(stored, fitted, sample, to, data_dir), loss, grid)
    else:
        reach = 1.0 if radius is None else radius
        found = survey_around(model, loss, grid, radius=reach, line=line, seed=seed or 0)
    content = found.to_dict()
    figures = _draw(found, between_runs=to is not None)
    files = publish(out or run / "landscape", "landscape", content, figures, _KINDS)
    output.facts({**_facts(found), "written": ", ".join(str(f) for f in files)})
    output.result(content)


def _facts(found: Survey) -> dict[str, str]:
    from .output import number, percent

    centre, sharpness = found.centre, found.sharpness
    return {
        "loss here": centre.reason or f"{number(centre.loss, 4)} ({_described(found.loss)})",
        "at most twice that": f"on {percent(found.share_below_twice)} of the slice",
        "no equilibrium shown": f"{percent(float(found.slice.masked.mean()))} of the points "
        + ", ".join(f"({count} {reason})" for reason, count in found.slice.reasons.items()),
        "λ_max of the Hessian": f"about {number(sharpness.value, 4)} (an estimate, from below; "
        f"Lanczos residual {number(sharpness.residual, 1)})",
        **({} if found.way is None else _told(found.way.to_dict())),
    }


def _refuse_useless(option: str, shows: str, given: dict[str, bool]) -> None:
    if names := [name for name, is_given in given.items() if is_given]:
        raise Failure(
            "An option that does not apply",
            f"{option} takes {shows}: {', '.join(names)} would change nothing.",
            f"Leave out {option}, or {' and '.join(names)}.",
            Code.USAGE,
        )


def _repeated(run: Run, fitted: Fitted, sample: Sample, output: Output) -> TrainingPath:
    """The training once more, as it is on record; refused unless it leads to the weights that are there."""
    from ..explore import Unrepeated, last_moment, repeated_path
    from ..explore.path import AGREES
    from ..tasks import Recipe
    from ..train.environment import changes
    from .watching import Watch

    chosen, last = fitted.recipe, last_moment(fitted.history)
    unit = "step" if chosen.certified else "epoch"
    if last < 2:
        raise Failure(
            "The path is too short",
            f"The plane of a training needs 2 {unit}s or more. The network of {run.path} is that of "
            f"{unit} {last}.",
            "Without --path the landscape is drawn on random directions.",
            Code.USAGE,
        )
    total = chosen.steps if chosen.certified else chosen.epochs
    assert total is not None  # resolved
    watch = Watch(total, unit, shown=output.talks)
    recipe = Recipe.from_dict(run.config["recipe"])
    try:
        with watch.bar:  # Ctrl-C stops at once: there is nothing to save
            return repeated_path(
                fitted, *sample.train, sample.kind, recipe, test=sample.test, record=watch.record
            )
    except Unrepeated as error:
        other = [f"{name} {words}" for name, words in changes(run.status["versions"]).items()]
        since = f" Changed since: {'; '.join(other)}." if other else ""
        raise Failure(
            "The training does not repeat itself",
            f"Trained again, {run.path} must come to its own weights. They differ by {error.departure:.1g} "
            f"relative, {AGREES:g} is allowed.{since}",
            "Use the machine, the number of threads (OMP_NUM_THREADS) and the versions it was trained with.",
        ) from error


def _told(way: dict[str, Any]) -> dict[str, str]:
    from .output import number, percent

    first, second = (percent(share) for share in way["shares"])
    same = "bit for bit"
    if way["departure"]:
        same = f"to {number(way['departure'], 1)} relative, as sums taken in another order make it"
    moments = way["moments"]
    return {
        "path": f"{len(moments)} moments, {way['unit']} 0 to {moments[-1]}; the run's own weights came out "
        f"again {same}",
        "plane": f"holds {percent(way['share'])} of the path's variance ({first} and {second}); the loss is "
        "that of its own points",
    }


def _described(loss: Measured) -> str:
    some = f"{len(loss.X)} rows" if len(loss.X) == loss.of else f"{len(loss.X)} of {loss.of} rows"
    logged = "" if loss.logged == "loss" else f"; the run's {loss.logged}, without slack"
    return f"{loss.name}, {'mean' if loss.mean else 'sum'} over {some}{logged}"


def _comparable(run: Run, fitted: Fitted, sample: Sample, to: Path, data_dir: Path | None) -> AffineFamily:
    """The network of the other run; refused where its loss would be another than the one measured here."""
    import numpy as np
    import torch

    from ..explore import differences, loss_name
    from .prepared import prepared
    from .stored import load_fitted, stored_sample

    stored, other = load_fitted(to)
    theirs = stored_sample(stored, data_dir)
    differ = differences(fitted.model, other.model)
    if (mine := loss_name(fitted)) != (its := loss_name(other)):
        differ.append(f"loss ({mine} and {its})")
    pairs = zip(prepared(fitted, sample), prepared(other, theirs), strict=True)
    if not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs):
        if sample.provenance["sha256"] != theirs.provenance["sha256"]:
            names = [f"{s.provenance['name']}, {s.provenance['rows']} rows" for s in (sample, theirs)]
            options = _unlike(run.config["data"], stored.config["data"])
            told = f"{names[0]}; and {names[1]}" if names[0] != names[1] else f"{names[0]} each; {options}"
            differ.append(f"data ({told})")
        else:
            ours, others = vars(fitted.preparation), vars(other.preparation)
            parts = [n for n in ours if n != "sharpness" and not np.array_equal(ours[n], others[n])]
            differ.append(f"preparation of the rows ({', '.join(parts)})")
    if differ:
        raise Failure(
            "These networks do not compare",
            f"On a line between two networks nothing but their weights may differ. {run.path} and {to} "
            f"differ in {', '.join(differ)}.",
            _alike([(run, fitted), (stored, other)]),
            Code.USAGE,
        )
    return other.model


def _unlike(mine: Mapping[str, Any], its: Mapping[str, Any]) -> str:
    """Where two [data] of a config differ, as options of fit."""
    names = [n for n in {**mine, **its} if n != "data_dir" and mine.get(n) != its.get(n)]
    option = {n: f"--{n.removeprefix('split_').replace('_', '-')}" for n in names}
    return ", ".join(f"{option[n]} {mine.get(n, 'none')} and {its.get(n, 'none')}" for n in names)


def _alike(runs: Sequence[tuple[Run, Fitted]]) -> str:
    """What may differ in training: a seed too where it draws no rows, and these are the options to that."""
    length = "--steps" if runs[0][1].recipe.certified else "--epochs"
    drawn = {
        "without --rows": any(run.config["data"].get("rows") for run, _ in runs),
        "with --test-share 0": any(run.config["data"].get("test_share") for run, _ in runs),
        "without --patience": any(fitted.recipe.patience for _, fitted in runs),
    }
    only = " and ".join(how for how, is_drawn in drawn.items() if is_drawn)
    return f"Train both alike. Of fit's options {length} may differ, and --seed{f' {only}' if only else ''}."


def _draw(survey: Survey, between_runs: bool) -> dict[str, Figure]:
    from ..plots import contours, surface
    from ..plots.surfaces import profile

    found, name, way = survey.slice, survey.loss.words, survey.way
    positive = bool((found.loss[~found.masked] > 0).all()) and not found.masked.all()
    words: dict[str, Any] = {"name": name, "log": positive, "masked": "no loss to show"}
    if found.t is None:
        x = "from this network (0) to the other (1)" if between_runs else "along the direction, from 0 here"
        return {"line": profile(found.s, found.loss, x=x, **words)}
    seen = found.s, found.t, found.loss
    if way is not None:
        first, second = (f"{100 * share:.1f} %" for share in way.shares)
        words |= {"x": f"first component of the path ({first})", "y": f"second component ({second})"}
        words |= {"name": f"{name} of the plane's points", "paths": {"training, ○ to ●": way.coordinates}}
        return {"path": contours(*seen, **words)}
    here = {"trained network": (0.0, 0.0)}
    return {"contours": contours(*seen, marks=here, **words), "surface": surface(*seen, **words)}
