"""equipoise sweep DATA --width 256,512 --rate log:1e-4,1e-2: many recipes tried, the best one trained."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import Code, Ended, Failure, command, explain, option, parameters_of
from .fit import OPTIONS, fit
from .output import Output, number, table

if TYPE_CHECKING:
    from ..tasks import Sample
    from ..tasks.sweep import Sweep, SweepTrial


def _how(words: str, default: Any) -> Any:
    return field(default=default, metadata={"panel": "Sweep", "words": words})


@dataclass(frozen=True)
class _How:
    """What a sweep is told besides the options of `fit`."""

    seeds: int = _how("Train every configuration with this many seeds; 1 by default.", 1)
    draws: int = _how("How often to draw from the ranges, for each combination; 8 by default.", 8)
    validation_share: float = _how("Share of the training rows to choose by; 0.2 by default.", 0.2)
    engine: str = _how("local (the default), or ray, which stops bad trials early.", "local")
    workers: int = _how("How many trials run at a time; 1 by default.", 1)


def _options() -> list[inspect.Parameter]:
    """The options of `fit`: those of the data as they are, those of the recipe with several values."""
    found = []
    for p in inspect.signature(fit).parameters.values():
        about = p.annotation.__metadata__[0]
        if about.rich_help_panel == "Data" and p.name != "from_":  # trials begin anew
            found.append(p)
        elif p.name in OPTIONS or p.name == "uncertified":
            several = p.name not in ("uncertified", "seed")
            found.append(p.replace(annotation=Annotated[str | None, about]) if several else p)
    return found


_OPTIONS = [p for p in _options() if p.name != "data"]
_DATA = {p.name for p in _OPTIONS if p.annotation.__metadata__[0].rich_help_panel == "Data"}


@command(
    """sweep digits --width 128,256 --rate log:1e-3,1e-1 --seeds 3
sweep houses.csv --target price --model monotone,gaussian-relu --workers 2
sweep digits --rate log:1e-4,1e-2 --draws 50 --engine ray --workers 16
sweep --resume sweeps/digits-1""",
    more=[*_OPTIONS, *parameters_of(_How)],
)
def sweep(
    output: Output,
    given: dict[str, Any],
    data: Annotated[
        str | None, typer.Argument(help="The data, as in fit.", metavar="DATA", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, option("Directory of the sweep; sweeps/<data>-<n> by default.", panel="Output")
    ] = None,
    resume: Annotated[
        Path | None, option("Continue an interrupted sweep.", metavar="SWEEP", panel="Output")
    ] = None,
) -> None:
    """Train with every combination of the values given, choose the best and train it on all rows.

    An option of fit may have several values (--width 256,512) or a range to draw from (--rate
    log:1e-4,1e-2). Each trial is a run in a directory of its own. The best is chosen on validation rows,
    which are held out of the training rows; only the best is measured on the test rows, once.

    With --engine ray the trials run on a Ray cluster, and ASHA stops those that fall behind. After a kill
    --resume continues with the trials that are not finished.
    """
    how = {name: given.pop(name) for name in list(given) if name in _How.__dataclass_fields__}
    options = _How(**how)
    from ..engines import Workers

    workers = Workers(options.workers, options.engine)
    asked = _resumed(resume, data, out, given) if resume else _begun(data, out, given, options)
    output.heading(str(asked.path), f"{len(asked.configurations)} configurations, {len(asked.trials)} trials")
    (_by_tune if options.engine == "ray" else _in_turn)(asked, workers, output)
    _finish(asked, output)


def _begun(data: str | None, out: Path | None, given: dict[str, Any], how: _How) -> Sweep:
    if data is None:
        raise Failure(
            "What is to be trained on?",
            "DATA must be a name such as digits, a file or a folder. Got none.",
            "equipoise data lists the names; equipoise sweep --help shows examples.",
            Code.USAGE,
        )
    from ..tasks import Asked, free_directory
    from ..tasks.sweep import Sweep

    places = {name: given.pop(name) for name in list(given) if name in _DATA}
    places = {n: tuple(v) if isinstance(v, list) else v for n, v in places.items() if v not in (False, [])}
    if given.pop("uncertified", False):
        given["certified"] = False
    asked = Asked.of(data, seed=given.get("seed", 0), validation=how.validation_share, **places)
    try:
        path = out or free_directory("sweeps", asked.stem)
        found = Sweep(path, asked.to_dict(), given, how.seeds, how.draws)
    except (ValueError, TypeError) as error:
        raise Failure(
            "An option does not fit", str(error), "equipoise sweep --help explains each.", Code.USAGE
        ) from error
    _sample(tuple(sorted(found.data.items(), key=str)))  # so that wrong data are an error now
    try:
        found.save()
    except FileExistsError as error:
        raise Failure("The directory is taken", str(error), code=Code.USAGE) from error
    return found


def _resumed(path: Path, data: str | None, out: Path | None, given: dict[str, Any]) -> Sweep:
    from ..tasks.sweep import Sweep

    besides = ["DATA"] * (data is not None) + ["--out"] * (out is not None)
    besides += [OPTIONS.get(n, f"--{n.replace('_', '-')}") for n, v in given.items() if v not in (False, [])]
    if besides:
        raise Failure(
            "A sweep cannot be changed while it is resumed",
            f"--resume takes everything but --engine and --workers from the sweep. Got {', '.join(besides)}.",
            "Leave these out, or begin another sweep.",
            Code.USAGE,
        )
    return Sweep.load(path)


@lru_cache(maxsize=1)
def _sample(data: tuple[tuple[str, Any], ...]) -> Sample:
    """The rows of the trials, which a process reads once."""
    from ..tasks import Asked, read

    return read(Asked(**dict(data)))


# -- trials --------------------------------------------------------------------------------------------------


def _train(asked: Sweep, trial: SweepTrial, tell: Any = lambda measured: None) -> None:
    """Train a trial in its directory, from its last checkpoint if there is one; a failure is kept there."""
    from ..tasks import Run
    from ..tasks.directory import NoRun, RunBusy
    from .training import train

    outcome = asked.outcome(trial)
    if outcome["state"] in ("finished", "stopped", "failed", "early"):
        return
    sample, path = _sample(tuple(sorted(asked.data.items(), key=str))), asked.run_of(trial)
    try:
        run, fresh = Run.open(path), False
    except NoRun:
        config = {"data": asked.data, "recipe": trial.recipe.to_dict()}
        run, fresh = Run.create(path, config, sample.provenance), True
    try:
        train(run, trial.recipe, sample, Output(quiet=True), report=False, fresh=fresh, tell=tell)
    except Ended:
        pass  # it diverged, as its directory says
    except (Failure, RunBusy):
        raise  # it was interrupted, or a process that Ray gave up for lost still works on it
    except (ArithmeticError, ValueError, RuntimeError) as error:
        _failed(asked, trial, sample, error)


def _failed(asked: Sweep, trial: SweepTrial, sample: Sample, error: Exception) -> None:
    """Record why a trial failed, even before its first step, when `train` leaves no directory."""
    from ..tasks import Run
    from ..tasks.directory import NoRun

    path, told = asked.run_of(trial), explain(error)
    try:
        run = Run.open(path)
    except NoRun:
        run = Run.create(path, {"data": asked.data, "recipe": trial.recipe.to_dict()}, sample.provenance)
    run.finish("failed", f"{told.title}: {told.message}", told.advice, told.code)


def _work(asked: Sweep, trial: SweepTrial) -> None:
    _train(asked, trial)


def _in_turn(asked: Sweep, workers: Any, output: Output) -> None:
    from ..engines import each
    from ..report.sweep import write_page

    left = [t for t in asked.trials if asked.outcome(t)["state"] in ("waiting", "interrupted", "running")]
    for done, (at, _) in enumerate(each(_work, asked, left, workers)):
        _say(asked, left[at], done + 1, len(left), output)
        write_page(asked)


def _say(asked: Sweep, trial: SweepTrial, done: int, total: int, output: Output) -> None:
    found = asked.outcome(trial)
    what = ", ".join(f"{name} {value}" for name, value in found["options"].items())
    score = number(found["score"], 4)
    output.say(f"  {done} of {total}  {trial.name}  {what}: {found['state']}, validation {score}")


# -- Ray Tune ------------------------------------------------------------------------------------------------


def _by_tune(asked: Sweep, workers: Any, output: Output) -> None:
    """Run the trials by Ray Tune, where ASHA stops those that fall behind."""
    import os

    from ..engines import connect
    from ..tasks import Run
    from ..tasks.sweep import EARLY

    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    connect()
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    left = {t.name: t for t in asked.trials if asked.outcome(t)["state"] in ("waiting", "interrupted")}
    if not left:
        return
    sample = _sample(tuple(sorted(asked.data.items(), key=str)))
    sizes = len(sample.train[0]), sample.kind, len(sample.provenance["classes"])
    longest = max(t.recipe.resolved(*sizes).total for t in left.values())
    scheduler = ASHAScheduler(
        time_attr="at", max_t=longest + 1, grace_period=max(1, longest // 9), reduction_factor=3
    )
    function = partial(_tuned, str(asked.path.resolve()))
    found = tune.Tuner(
        tune.with_resources(function, {"cpu": 1}),
        param_space={"trial": tune.grid_search(list(left))},
        tune_config=tune.TuneConfig(
            metric="score", mode="max", scheduler=scheduler, max_concurrent_trials=workers.count
        ),
        run_config=tune.RunConfig(
            name="ray",
            storage_path=str(asked.path.resolve()),
            failure_config=tune.FailureConfig(max_failures=16),  # a node that is lost
            verbose=0,
        ),
    ).fit()
    results: list[Any] = [found[i] for i in range(len(found))]
    for done, result in enumerate(results):
        name = (result.config or {}).get("trial", "")
        trial = left.get(name)
        if trial is None:
            continue
        if result.error is not None:
            output.say(f"  {name}: {str(result.error).splitlines()[-1]}")
        elif asked.outcome(trial)["state"] == "interrupted":
            kept = {n: result.metrics[n] for n in ("score", "score_name")} | {"steps": result.metrics["at"]}
            Run.open(asked.run_of(trial)).finish("interrupted", EARLY, results=kept)
        _say(asked, trial, done + 1, len(left), output)


def _tuned(path: str, config: dict[str, Any]) -> None:
    """A trial of Ray Tune: it reports its validation score after each epoch, and may be ended there."""
    import torch
    from ray import tune

    from ..tasks.sweep import Sweep

    torch.set_num_threads(1)
    asked = Sweep.load(Path(path))
    trial = next(t for t in asked.trials if t.name == config["trial"])

    def tell(step: dict[str, Any]) -> None:
        name = next((n for n in ("test_accuracy", "test_r2") if n in step), None)
        if name is not None:
            at = step.get("epoch", step.get("step", 0))
            tune.report({"score": step[name], "score_name": name.removeprefix("test_"), "at": at})

    _train(asked, trial, tell)


# -- the best ------------------------------------------------------------------------------------------------


def _finish(asked: Sweep, output: Output) -> None:
    """Choose, train the best on all rows to train on, and say what came of it."""
    from ..report.sweep import write_page
    from ..tasks.sweep import ranked

    outcomes = [asked.outcome(trial) for trial in asked.trials]
    ranks = ranked(outcomes)
    if not ranks[0]["eligible"]:
        page = write_page(asked)
        reasons = sorted({one["reason"] for one in outcomes if one["reason"]})
        raise Failure("No configuration can be chosen", "\n".join(reasons[:5]), f"{page} shows the trials.")
    best = _refit(asked, asked.configurations[ranks[0]["configuration"]])
    page = write_page(asked, best)
    shown = table("configuration", *asked.open, "validation", "trials", "stopped early")
    for one in ranks[:10]:
        cells = [str(value) for value in one["options"].values()]
        shown.add_row(
            str(one["configuration"]), *cells, number(one["score"], 4), str(one["trials"]), str(one["early"])
        )
    output.say(shown)
    said = f"{best['score_name']} {number(best['score'], 4)} on the {best['part']} rows"
    output.say(f"  the best, trained on all rows: {said}; certificate {best['verdict']}")
    output.say(f"  {asked.path / 'best'}", f"  {page}")
    output.result(
        {
            "sweep": str(asked.path),
            "page": str(page),
            "best": best,
            "configurations": ranks,
            "trials": outcomes,
        }
    )


def _refit(asked: Sweep, recipe: Any) -> dict[str, Any]:
    from ..tasks import Run, read
    from ..tasks.directory import NoRun
    from .training import train

    path, sample = asked.path / "best", read(asked.whole)
    config = {"data": asked.whole.to_dict(), "recipe": recipe.to_dict()}
    try:
        run, fresh = Run.open(path), False
    except NoRun:
        run, fresh = Run.create(path, config, sample.provenance), True
    if run.state != "finished":
        train(run, recipe, sample, Output(quiet=True), report=True, fresh=fresh)
    results = run.status["results"]
    part = "test" if "test" in results["scores"] else "training"
    found = {name: results[name] for name in ("score", "score_name", "steps")}
    verdict = results["verdict"] or "none, as training was free"
    return found | {"run": str(path), "options": recipe.to_dict(), "part": part, "verdict": verdict}
