"""equipoise fit DATA: data in; a trained network, what is proved of it and a report out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .failures import EXIT_CODES, Code, Debug, Failure, Json, Quiet, command

if TYPE_CHECKING:
    from ..tasks import Recipe, Run
    from .output import Output
    from .sources import Asked, Sample

EPILOG = f"""[bold]Examples[/bold]

  $ equipoise fit digits
  $ equipoise fit houses.csv --target price --test-share 0.25
  $ equipoise fit digits --model monotone --width 800 --margin 0.5 --seed 3
  $ equipoise fit digits --uncertified --optimiser adam --epochs 20
  $ equipoise fit --resume runs/digits-auto-1

[bold]Exit codes[/bold]  {EXIT_CODES}
"""


def _of(panel: str) -> Any:
    """Options of one panel of the help."""

    def option(name: str, help: str, **more: Any) -> Any:
        return typer.Option(f"--{name}", help=help, rich_help_panel=panel, show_default=False, **more)

    return option


_data, _network, _output = _of("Data"), _of("Network"), _of("Output")
_certified, _free = _of("Certified training"), _of("Free training (--uncertified)")
_ANY = "A name ([cyan]equipoise data[/cyan] lists them), a file .csv .tsv .parquet .npz, or a folder."

Word: TypeAlias = str | None
Number: TypeAlias = float | None
Count: TypeAlias = int | None


@command
def fit(
    data: Annotated[str | None, typer.Argument(help=_ANY, metavar="DATA", show_default=False)] = None,
    target: Annotated[Word, _data("target", "Column to predict; the last by default.")] = None,
    kind: Annotated[Word, _data("kind", "classification or regression; else told from the target.")] = None,
    delimiter: Annotated[Word, _data("delimiter", "Of a text file; a comma by default.")] = None,
    test_share: Annotated[Number, _data("test-share", "Part of a table held out; 0.2 by default.")] = None,
    test: Annotated[Path | None, _data("test", "A table of its own to test on.")] = None,
    rows: Annotated[Count, _data("rows", "Train on about so many, drawn at random.", min=2)] = None,
    data_dir: Annotated[Path | None, _data("data-dir", "Where named data lie; else EQUIPOISE_DATA.")] = None,
    model: Annotated[Word, _network("model", "linear, scaled-relu, gaussian-relu, monotone or auto.")] = None,
    width: Annotated[Count, _network("width", "Units of the hidden layer.")] = None,
    gamma: Annotated[Number, _network("gamma", "γ of linear and scaled-relu, in (0, 1).")] = None,
    margin: Annotated[Number, _network("margin", "μ > 0 of monotone.")] = None,
    sigma_w2: Annotated[Number, _network("sigma-w2", "σ_w² of gaussian-relu, in (0, 1/8).")] = None,
    dtype: Annotated[Word, _network("dtype", "float64 (by default) or float32.")] = None,
    seed: Annotated[Count, _network("seed", "Of weights, batches and split; 0 by default.")] = None,
    slack: Annotated[Number, _certified("slack", "λ ≥ 0; by default chosen by leave-one-out.")] = None,
    readout: Annotated[Word, _certified("readout", "gauss-newton (by default) or gradient.")] = None,
    eta: Annotated[Number, _certified("eta", "Share of the largest readout step, in (0, 1].")] = None,
    steps: Annotated[Count, _certified("steps", "Full-batch steps.")] = None,
    uncertified: Annotated[
        bool, _free("uncertified", "Train freely; what can be said of the result is said after.")
    ] = False,
    loss: Annotated[Word, _free("loss", "square, half_square, logistic, hinge or cross_entropy.")] = None,
    optimiser: Annotated[Word, _free("optimiser", "sgd, adam, adamw, rmsprop or adagrad.")] = None,
    rate: Annotated[Number, _free("rate", "Learning rate.")] = None,
    momentum: Annotated[Number, _free("momentum", "Of sgd, in [0, 1).")] = None,
    schedule: Annotated[Word, _free("schedule", "Of the rate: constant, cosine, step or poly.")] = None,
    epochs: Annotated[Count, _free("epochs", "Passes over the data.")] = None,
    batch_size: Annotated[Count, _free("batch-size", "Rows a step.")] = None,
    weight_decay: Annotated[Number, _free("weight-decay", "≥ 0.")] = None,
    clip: Annotated[Number, _free("clip", "Largest norm of a gradient.")] = None,
    patience: Annotated[Count, _free("patience", "Epochs without progress before it stops.")] = None,
    out: Annotated[
        Path | None, _output("out", "Directory of the run; runs/<data>-<model>-<n> by default.")
    ] = None,
    resume: Annotated[
        Path | None, _output("resume", "Go on with an interrupted run as if it had not been.", metavar="RUN")
    ] = None,
    no_report: Annotated[bool, _output("no-report", "Write no report.html.")] = False,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train an equilibrium network on DATA and say what is guaranteed of it.

    The data are checked first: whatever is wrong with them is said at once, by row and column, and nothing is
    written. By default everything is chosen and training is certified: a theorem is proved of this network on
    these data before the first step, and kept by every step.

    A run is a directory. After a crash, a full disk, a closed terminal or Ctrl-C it goes on with --resume,
    bit for bit where threads, processor and versions are the same; where they are not, it says so.
    """
    given = {
        "model": model,
        "width": width,
        "gamma": gamma,
        "margin": margin,
        "sigma_w2": sigma_w2,
        "certified": False if uncertified else None,
        "readout": readout,
        "eta": eta,
        "slack": slack,
        "steps": steps,
        "loss": loss,
        "optimiser": optimiser,
        "rate": rate,
        "momentum": momentum,
        "schedule": schedule,
        "epochs": epochs,
        "batch_size": batch_size,
        "weight_decay": weight_decay,
        "clip": clip,
        "patience": patience,
        "dtype": dtype,
        "seed": seed,
    }
    places = {"target": target, "kind": kind, "delimiter": delimiter, "test": test, "data_dir": data_dir}
    from .output import Output

    output = Output(quiet, json)
    if resume is not None:
        besides = {"data": data, "out": out, "rows": rows, "test_share": test_share, **places, **given}
        _resume(resume, [name for name, value in besides.items() if value is not None], output, not no_report)
        return
    if data is None:
        raise Failure(
            "What is to be trained on?",
            "DATA must be a name such as digits, a file or a folder. Got none.",
            "equipoise data lists the names; equipoise fit --help shows examples.",
            Code.USAGE,
        )
    recipe = _recipe({name: value for name, value in given.items() if value is not None})
    asked = _asked(data, places, test_share, rows, recipe.seed)
    from .sources import read
    from .training import check_memory, train

    sample = read(asked, check=partial(check_memory, recipe))
    train(_create(out, asked, recipe, sample), recipe, sample, output, not no_report, fresh=True)


def _recipe(given: dict[str, Any]) -> Recipe:
    from ..tasks import Recipe

    try:
        return Recipe.from_dict(given)
    except (ValueError, TypeError) as error:
        free = "of free training" in str(error)
        advice = "--uncertified trains freely." if free else "equipoise fit --help explains each option."
        raise Failure("An option does not fit", str(error), advice, Code.USAGE) from error


def _asked(data: str, places: dict[str, Any], share: Number, rows: Count, seed: int) -> Asked:
    from .sources import Asked, is_named, resolve

    source = resolve(data)
    named = is_named(source)
    wrong = ""
    if share is not None and not 0 <= share < 1:
        wrong = f"--test-share must lie in [0, 1). Got {share}."
    elif share is not None and places["test"] is not None:
        wrong = "--test and --test-share exclude each other: give one of them."
    elif named and share is not None:
        wrong = f"--test-share is of tables: {source} has a test part of its own."
    elif places["kind"] not in (None, "classification", "regression"):
        wrong = f"--kind must be classification or regression. Got {places['kind']}."
    if wrong:
        raise Failure("An option does not fit", wrong, code=Code.USAGE)
    paths = {n: str(places[n].expanduser().resolve()) for n in ("test", "data_dir") if places[n] is not None}
    own_test = named or "test" in paths
    return Asked(
        source=source,
        **{**places, **paths},
        test_share=None if own_test else (0.2 if share is None else share),
        rows=rows,
        split_seed=None if own_test and rows is None else seed,
    )


def _create(out: Path | None, asked: Asked, recipe: Recipe, sample: Sample) -> Run:
    from ..tasks import Run, free_directory

    config = {"data": asked.to_dict(), "recipe": recipe.to_dict()}
    while True:
        path = out or free_directory("runs", f"{asked.stem}-{recipe.model}")
        try:
            return Run.create(path, config, sample.provenance)
        except FileExistsError as error:
            if out is not None:
                raise Failure("The directory is taken", str(error), code=Code.USAGE) from error


def _resume(path: Path, besides: list[str], output: Output, report: bool) -> None:
    from ..report import write as write_report
    from ..tasks import Recipe
    from .stored import open_run, stored_sample
    from .training import train

    if besides:
        raise Failure(
            "Nothing can be changed on the way",
            f"--resume takes everything from the run. Got {', '.join(besides)} besides.",
            "Leave these out, or begin another run.",
            Code.USAGE,
        )
    run = open_run(path)
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
        if report and not page.exists():  # the process was killed between the two
            write_report(run)
            output.say(f"Its report was missing, and is now at {page}.")
        output.result({"run": str(path), "report": str(page) if page.exists() else None, **run.status})
        return
    train(run, Recipe.from_dict(run.config["recipe"]), stored_sample(run), output, report, fresh=False)
