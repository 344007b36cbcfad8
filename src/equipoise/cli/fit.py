"""equipoise fit DATA: data in; a trained network, what is proved of it and a report out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..recipe import Recipe
from .failures import Code, Ended, Failure, command, flag, option, parameters_of
from .output import Output

if TYPE_CHECKING:
    from ..tasks import Asked, Run, Sample
    from ..tasks.origin import Origin

_ANY = (
    "The name of a data set ([cyan]equipoise data[/cyan] lists them), a file (.csv, .tsv, .parquet or .npz), "
    "or a folder of images."
)
_FREELY = "Train without a guarantee; afterwards the command says what can be proved of the result."
_OPTIONS = [
    flag("uncertified", _FREELY, "--uncertified", panel=p.annotation.__metadata__[0].rich_help_panel)
    if p.name == "certified"
    else p
    for p in parameters_of(Recipe)
]
OPTIONS = {p.name: f"--{p.name.replace('_', '-')}" for p in _OPTIONS} | {"certified": "--uncertified"}


of_data, of_output = partial(option, panel="Data"), partial(option, panel="Output")


@command(
    """fit digits
fit houses.csv --target price --test-share 0.25
fit digits --model monotone --width 800 --margin 0.5 --seed 3
fit digits --uncertified --optimiser adam --epochs 20
fit newer.csv --from runs/houses-auto-1
fit --resume runs/digits-auto-1""",
    more=_OPTIONS,
)
def fit(
    output: Output,
    given: dict[str, Any],
    data: Annotated[str | None, typer.Argument(help=_ANY, metavar="DATA", show_default=False)] = None,
    target: Annotated[str | None, of_data("Column to predict, or several of them (a,b).")] = None,
    kind: Annotated[
        str | None, of_data("classification or regression; by default the target decides.")
    ] = None,
    delimiter: Annotated[str | None, of_data("Separator of cells; by default ',' (a tab in .tsv).")] = None,
    test_share: Annotated[float | None, of_data("Share of the rows to test on; 0.2 by default.")] = None,
    test: Annotated[Path | None, of_data("Another table, to test on.")] = None,
    rows: Annotated[int | None, of_data("Train on about this many rows, drawn at random.", min=2)] = None,
    weight: Annotated[str | None, of_data("Column with the weights of the rows.")] = None,
    drop: Annotated[list[str] | None, of_data("Column to leave out; may be repeated.")] = None,
    categorical: Annotated[
        list[str] | None, of_data("Column of categories, even if they look like numbers; may be repeated.")
    ] = None,
    numeric: Annotated[list[str] | None, of_data("Column to read as numbers; may be repeated.")] = None,
    drop_missing_target: Annotated[
        bool, of_data("Leave out rows without a target.", "--drop-missing-target")
    ] = False,
    data_dir: Annotated[Path | None, of_data("Folder of named data; by default $EQUIPOISE_DATA.")] = None,
    from_: Annotated[Path | None, of_data("Finished run to train further.", "--from", metavar="RUN")] = None,
    out: Annotated[
        Path | None, of_output("Directory of the run; runs/<data>-<model>-<n> by default.")
    ] = None,
    resume: Annotated[
        Path | None, of_output("Continue an interrupted run as if nothing had happened.", metavar="RUN")
    ] = None,
    no_report: Annotated[bool, of_output("Write no report.html.", "--no-report")] = False,
) -> None:
    """Train an equilibrium network on DATA and say what is guaranteed.

    The data are checked first. If something is wrong with them, the rows and columns are named and nothing is
    written. By default all settings are chosen for you and training is certified: before the first step a
    theorem is proved for this network and these data, and nothing is kept of the training that breaks its
    promise.

    A run is a directory. After a crash, a full disk, a closed terminal or Ctrl-C, --resume continues it. With
    the same number of threads, processor and versions the results are the same, bit for bit; otherwise the
    command says what differs.
    """
    if given.pop("uncertified"):
        given["certified"] = False
    places: dict[str, Any] = {"target": target, "kind": kind, "delimiter": delimiter, "test": test}
    places |= {"test_share": test_share, "rows": rows, "data_dir": data_dir}
    lists = {"drop": drop, "categorical": categorical, "numeric": numeric}
    places |= {"weight": weight, "drop_missing_target": drop_missing_target or None}
    places |= {name: tuple(value) if value else None for name, value in lists.items()}
    from ..tasks.spread import job

    with job() as first:
        if not first:
            _take_part()
        elif resume is not None:
            besides = {"DATA": data, "from": from_, "out": out, **places, **given}
            _resume(resume, besides, output, not no_report)
        else:
            _begin(data, out, from_, places, given, output, not no_report)


def _take_part() -> None:
    """Do the part of a process that torchrun started beside the first one, which alone prints."""
    from ..tasks.fitting import take_part_in_fit

    try:
        take_part_in_fit()
    except (Exception, KeyboardInterrupt) as error:
        import sys

        from ..plain import plain
        from ..theory.shards import rank

        told = str(error).splitlines() or [type(error).__name__]
        print(plain(f"rank {rank()} ends: {told[0]}"), file=sys.stderr)
        raise Ended(Code.FAILED) from None


def _begin(
    data: str | None,
    out: Path | None,
    first: Path | None,
    places: dict[str, Any],
    given: dict[str, Any],
    output: Output,
    report: bool,
) -> None:
    if data is None:
        raise Failure(
            "What is to be trained on?",
            "DATA must be a name such as digits, a file or a folder. Got none.",
            "equipoise data lists the names; equipoise fit --help shows examples.",
            Code.USAGE,
        )
    from ..tasks import Asked, check_memory, read
    from .training import train

    recipe = _recipe(given)
    if first is not None:
        _go_on(first, data, out, places, recipe, output, report)
        return
    asked = Asked.of(data, seed=recipe.seed, **places)
    sample = read(asked, check=partial(check_memory, recipe))
    train(_create(out, asked, recipe, sample), recipe, sample, output, report, fresh=True)


def _go_on(
    first: Path,
    data: str,
    out: Path | None,
    places: dict[str, Any],
    recipe: Recipe,
    output: Output,
    report: bool,
) -> None:
    """Train the network of a finished run further: rows are read as that run read its own."""
    from ..tasks import Asked, check_memory, read
    from ..tasks.origin import Origin
    from ..tasks.stored import Stored
    from .training import train

    stored = Stored.load(first)
    about, fitted = stored.run.data, stored.fitted
    origin = Origin(fitted.model, fitted.preparation)
    recipe = _fitting(lambda: origin.continued(recipe, fitted.recipe))
    asked = Asked.of(data, seed=recipe.seed, **places)
    table = Path(asked.source).is_file() and about.get("features") is not None
    if table:
        asked = replace(asked, target=asked.target or about["target"], kind=asked.kind or about["kind"])
    columns = origin.columns(about["features"]) if table else ()
    sample = read(asked, partial(check_memory, recipe), columns)
    origin.check(sample.train[0].shape[1], sample.kind, sample.provenance.get("image_shape") or ())
    origin.preparation.targets(sample.train[1])  # refuses classes that the network does not know
    run = _create(out, asked, recipe, sample, origin)
    train(run, recipe, sample, output, report, fresh=True)


def _recipe(given: dict[str, Any]) -> Recipe:
    return _fitting(lambda: Recipe(**given))


def _fitting(make: Callable[[], Recipe]) -> Recipe:
    """Make the recipe; an option that does not fit is a failure that names it as on the command line."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        said = re.sub(rf"\b({'|'.join(OPTIONS)})\b", lambda found: OPTIONS[found[0]], str(error))
        advice = "equipoise fit --help explains each option."
        raise Failure("An option does not fit", said, advice, Code.USAGE) from error


def _create(
    out: Path | None, asked: Asked, recipe: Recipe, sample: Sample, origin: Origin | None = None
) -> Run:
    from ..tasks import Run, free_directory

    config: dict[str, Any] = {"data": asked.to_dict(), "recipe": recipe.to_dict()}
    if origin is not None:
        config["from"] = origin.digests()
    while True:
        path = out or free_directory("runs", f"{asked.stem}-{recipe.model}")
        try:
            run = Run.create(path, config, sample.provenance)
            if origin is not None:
                origin.save(run.path)
            return run
        except FileExistsError as error:
            if out is not None:
                raise Failure("The directory is taken", str(error), code=Code.USAGE) from error


def _resume(path: Path, given: dict[str, Any], output: Output, report: bool) -> None:
    from ..report import write as write_report
    from ..report.following import left_behind
    from ..tasks import Run
    from ..tasks.stored import stored_sample
    from .training import train

    if besides := [name for name, value in given.items() if value is not None]:
        named = ", ".join(n if n == "DATA" else f"--{n.replace('_', '-')}" for n in besides)
        raise Failure(
            "A run cannot be changed while it is resumed",
            f"--resume takes everything from the run, so that nothing can be given beside it. Got {named}.",
            "Leave these out, or begin another run.",
            Code.USAGE,
        )
    run = Run.open(path)
    if damaged := run.damaged():
        raise Failure(
            "The run is damaged",
            "\n".join(damaged),
            "Put the files back as they were, from a copy, or begin a new run.",
            Code.DAMAGED,
        )
    if run.state == "finished":
        output.say(f"{path} is finished: there is nothing to resume.")
        page = path / "report.html"
        if report and (not page.exists() or left_behind(page)):  # the process was killed between the two
            write_report(run)
            output.say(f"Its report was missing, and is now at {page}.")
        output.result({"run": str(path), "report": str(page) if page.exists() else None, **run.status})
        return
    train(run, Recipe.from_dict(run.config["recipe"]), stored_sample(run), output, report, fresh=False)
