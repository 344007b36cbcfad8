"""equipoise landscape RUN: the loss on a line or plane through a network, or along its training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import Code, DataDir, Failure, Out, RunPath, command, option
from .output import Output

if TYPE_CHECKING:
    from ..explore import TrainingPath
    from ..tasks import Stored

_KINDS = "contours", "surface", "line", "path"  # figures
_PATH = (
    "Draw the plane of the training's own path. For this the training is repeated in memory, which takes as "
    "long as it did; nothing is written into the run."
)

_RADIUS = (
    "How far to go, relative to the norms of the filters; by default 1, or less if that is mostly blank."
)


@command("""landscape runs/digits-auto-1
landscape runs/a --to runs/b          [dim]the line between two networks[/dim]
landscape runs/a --path               [dim]the plane of its training[/dim]""")
def landscape(
    output: Output,
    run: RunPath,
    to: Annotated[Path | None, option("Another run: draw the line from this network to that one.")] = None,
    path: Annotated[bool, option(_PATH, "--path")] = False,
    line: Annotated[bool, option("Draw along one random direction instead of two.", "--line")] = False,
    radius: Annotated[float | None, option(_RADIUS, min=1e-6)] = None,
    grid: Annotated[int, typer.Option(help="Points along each direction.", min=3)] = 21,
    rows: Annotated[
        int, typer.Option(help="Training rows to measure the loss on, spread evenly.", min=1)
    ] = 200,
    seed: Annotated[int | None, option("Seed of the directions; 0 by default.")] = None,
    out: Out = None,
    data_dir: DataDir = None,
) -> None:
    """Draw the loss around a trained network, along random directions that are scaled to its filters.

    Some weights have no loss to show, because they are not proved to give every row exactly one equilibrium,
    or because their equilibria are not found. Such points are crossed out and counted. The command writes
    landscape.json and figures as SVG and PNG, and replaces those of an earlier call.

    The loss is the one that the run records: the sum over rows for safeguarded training (its plain_loss,
    without slack), otherwise the mean. It is measured on --rows of the training rows.

    With --to the loss is drawn along the line to another run. Only the weights of the two runs may differ:
    both must have the same model with the same constants, and be trained with the same loss on the same rows,
    prepared in the same way.

    With --path the plane goes through the trained network along the first two principal components of the
    weights at about 30 moments of the training, and the path of the training is drawn in it. The colours show
    the loss in the plane; where the path leaves the plane, the loss of the training was a different one. For
    this the training is repeated, and it must arrive at the weights of the run again.
    """
    given = {"--radius": radius is not None, "--line": line, "--seed": seed is not None}
    _check_options(path, to, radius, given)
    from ..explore import measured, refuse_unlike, survey_around, survey_between, survey_path
    from ..report.published import publish
    from ..report.views import draw_survey, survey_facts
    from ..tasks import Stored

    stored = Stored.load(run, data_dir)
    model, sample = stored.fitted.model, stored.sample
    loss = measured(stored.fitted, *sample.train, sample.kind, rows, sample.weights)
    reach = {}
    if path:
        found = survey_path(model, _repeated(stored, output), loss, grid)
    elif to is not None:
        other = Stored.load(to, data_dir)
        refuse_unlike(stored, other)
        found = survey_between(model, other.fitted.model, loss, grid)
    else:
        found = survey_around(model, loss, grid, radius=radius, line=line, seed=seed or 0)
        reach = {"reach": f"{found.slice.s[-1]:g} times the norms of the filters"}
    content = found.to_dict()
    figures = draw_survey(found, between_runs=to is not None)
    files = publish(out or run / "landscape", "landscape", content, figures, _KINDS)
    output.facts({**reach, **survey_facts(found), "written": ", ".join(str(f) for f in files)})
    output.result(content)


def _check_options(path: bool, to: Path | None, radius: float | None, given: dict[str, bool]) -> None:
    """Refuse options that do not go together."""
    if path:
        _refuse_useless("--path", "the plane of one training's path", {"--to": to is not None, **given})
    if to is not None:
        _refuse_useless("--to", "the line from one network to the other", given)
    if radius is not None and not math.isfinite(radius):
        raise Failure("An option does not fit", f"--radius must be finite. Got {radius}.", code=Code.USAGE)


def _refuse_useless(option: str, shows: str, given: dict[str, bool]) -> None:
    if names := [name for name, is_given in given.items() if is_given]:
        raise Failure(
            "An option that does not apply",
            f"{option} draws {shows}: {', '.join(names)} would change nothing.",
            f"Leave out {option}, or {' and '.join(names)}.",
            Code.USAGE,
        )


def _repeated(stored: Stored, output: Output) -> TrainingPath:
    """Repeat the training as it is on record; refuse it unless it arrives at the weights of the run."""
    from ..explore import Unrepeated, last_moment, repeated_path
    from ..explore.path import AGREES
    from ..tasks import Recipe
    from ..train.environment import changes
    from .watching import Watch

    run, fitted, sample = stored.run, stored.fitted, stored.sample
    chosen, last = fitted.recipe, last_moment(fitted.history)
    unit = chosen.unit
    if last < 2:
        raise Failure(
            "The path is too short",
            f"The plane of a training needs 2 {unit}s or more. The network of {run.path} is that of "
            f"{unit} {last}.",
            "Without --path the landscape is drawn along random directions.",
            Code.USAGE,
        )
    watch = Watch(chosen.total, unit, shown=output.talks)
    recipe = Recipe.from_dict(run.config["recipe"])
    try:
        with watch.bar:  # Ctrl-C stops at once: there is nothing to save
            how: dict[str, Any] = {
                "sample_weight": sample.weights,
                "encoding": sample.encoding,
                "test": sample.test,
            }
            rows = sample.shaped, sample.train[1], sample.kind
            return repeated_path(fitted, *rows, recipe, record=watch.record, **how)
    except Unrepeated as error:
        other = [f"{name} {words}" for name, words in changes(run.status["versions"]).items()]
        since = f" Changed since: {'; '.join(other)}." if other else ""
        raise Failure(
            "The training does not repeat itself",
            f"Trained again, {run.path} must reach the same weights. Their relative difference is "
            f"{error.departure:.1g}, and {AGREES:g} is allowed.{since}",
            "Use the machine, the number of threads (OMP_NUM_THREADS) and the versions it was trained with.",
        ) from error
