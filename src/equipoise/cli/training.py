"""Training into the directory of a run: progress, saving, summary, and what an interrupt does."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from ..files import write_atomically
from ..plain import plain
from ..report import findings, headline
from ..report import write as write_report
from ..report.following import Following, left_behind
from ..report.words import beside, held, kept
from ..tasks import Fitted, Recipe, Run, Sample, save
from ..tasks import fit as fit_network
from ..tasks.arrays import rows_at
from ..tasks.raw import calibrates
from ..tasks.spread import RankLost
from ..tasks.stored import stored_origin
from .failures import Code, Ended, Failure, explain
from .output import Output, duration, number, percent, table
from .watching import Watch

_LONG = 20  # columns that are all shown
_MANY = 10_000  # rows beyond which a certified step takes minutes


def train(
    run: Run,
    recipe: Recipe,
    sample: Sample,
    output: Output,
    report: bool,
    fresh: bool,
    tell: Callable[[dict[str, Any]], None] = lambda measured: None,
) -> None:
    """Train and save the result; a run that is not `fresh` continues from its last checkpoint."""
    X, y = sample.shaped, sample.train[1]
    trained = len(X) if recipe.coverage is None else len(X) - -(-len(X) // 4)  # the others calibrate
    chosen = recipe.resolved(trained, sample.kind, len(sample.provenance["classes"]))
    watch = Watch(chosen.total, chosen.unit, shown=not output.quiet, batches=_batches(chosen, trained))
    follow = Following(run) if report else None

    def record(step: dict[str, Any]) -> None:
        run.record(step)
        watch.record(step)
        if follow is not None:
            follow()
        tell(step)

    with run.working():
        if not fresh:
            run.resume()
        _announce(run, sample, output, fresh, recipe.path == "safeguarded")
        try:
            with watch.running():
                fitted = fit_network(
                    X,
                    y,
                    sample.kind,
                    recipe,
                    sample_weight=sample.weights,
                    encoding=sample.encoding,
                    test=sample.test,
                    origin=stored_origin(run),
                    checkpoints=run.checkpoints,
                    record=record,
                    progress=watch.progress,
                    begin=watch.begin,
                )
                found = findings(fitted, _trained_on(sample, recipe), *_about(sample, recipe))
            save(fitted, run.path)
            write_atomically(run.path / "findings.json", json.dumps(found).encode())
        except KeyboardInterrupt:
            raise _interrupted(run) from None
        except Exception as error:
            _failed(run, error, fresh)
            raise
        diverged = bool(fitted.stopped and fitted.advice) and not recipe.certified
        code, results = (Code.DIVERGED if diverged else Code.OK), headline(fitted, found)
        run.finish("stopped" if diverged else "finished", fitted.stopped, fitted.advice, code, results)
        page = write_report(run) if report else None
    _tell(run, fitted, page, output)
    if diverged:
        raise Ended(code)


def _about(sample: Sample, recipe: Recipe) -> tuple[Any, Any, Any]:
    """The test rows, the shape of an image, and the weights of the rows."""
    return sample.test, sample.provenance.get("image_shape"), _weights(sample, recipe)


def _trained_on(sample: Sample, recipe: Recipe) -> tuple[Any, Any]:
    """The rows that were trained on, without those that calibrate a coverage."""
    X, y = sample.train
    if recipe.coverage is None:
        return X, y
    weights = np.ones(len(y)) if sample.weights is None else sample.weights
    rows = np.flatnonzero(~calibrates(weights, recipe.seed))
    return rows_at(X, rows), rows_at(y, rows)


def _weights(sample: Sample, recipe: Recipe) -> Any:
    """The weights of all rows, where all are trained on."""
    return sample.weights if recipe.coverage is None else None


def _batches(recipe: Recipe, rows: int) -> int:
    """Steps in an epoch; 1 where training is counted in steps."""
    return 1 if recipe.unit == "step" else -(-rows // (recipe.batch_size or rows))


def _announce(run: Run, sample: Sample, output: Output, fresh: bool, whole: bool) -> None:
    about = sample.provenance
    what = f"{len(about['classes'])} classes" if sample.kind == "classification" else "numbers to predict"
    output.heading(
        about["name"],
        f"{about['rows']} rows to train on, {about['test_rows']} to test on; "
        f"{about['columns']} columns, {what}",
    )
    notes = list(about["warnings"])
    if whole and about["rows"] > _MANY:
        notes.append("safeguarded training takes every row at every step; anchored training is quicker.")
    if about.get("described"):
        _show_columns(about["described"], output)
    for note in notes:
        output.say(f"  note: {note}")
    steps = run.checkpoints.steps()
    after = f", after step {steps[-1]}" if steps else ""
    output.say(f"  {'training' if fresh else 'going on'} in {run.path}{after}")


def _show_columns(described: list[dict[str, str]], output: Output) -> None:
    """What the columns hold and what is done with each; of a long list, those that are only standardised are
    counted."""
    told = [c for c in described if len(described) <= _LONG or c["treatment"] != "standardised"]
    shown = table("column", "holds", "values", "what is done with it", fold=("what is done with it",))
    for column in told:
        shown.add_row(*(Text(plain(cell)) for cell in column.values()))
    if told:
        output.say(shown)
    if len(told) < len(described):
        output.say(f"  {len(described) - len(told)} columns of numbers are standardised")


def _interrupted(run: Run) -> Failure:
    again = f"equipoise fit --resume {run.path}"
    run.finish(
        "interrupted",
        "it was asked to stop (Ctrl-C, SIGTERM or SIGHUP)",
        f"go on with: {again}",
        Code.INTERRUPTED,
    )
    _bring_up(run)
    at = run.checkpoints.steps()
    saved = f"What was trained is saved, up to step {at[-1]}." if at else "No step was taken yet."
    return Failure("Interrupted", saved, f"Go on with: {again}", Code.INTERRUPTED)


def _failed(run: Run, error: Exception, fresh: bool) -> None:
    """Remove a run that failed before its first step; otherwise keep it, with the reason.

    One that lost a process is always kept, and the error then says where it can be resumed.
    """
    if isinstance(error, RankLost):
        steps, again = run.checkpoints.steps(), f"equipoise fit --resume {run.path}"
        saved = f"is saved up to step {steps[-1]}" if steps else "has no checkpoint yet and begins anew"
        error.args = (f"{error}\n\nThe run {saved}. Go on with: {again}, by any number of processes.",)
    elif fresh and not run.checkpoints.steps() and not run.metrics.path.exists():
        run.discard()
        return
    told = explain(error)
    with suppress(OSError):  # on a full disk it will say that it was killed, and resume all the same
        run.finish("failed", f"{told.title}: {told.message}", told.advice, told.code)
    _bring_up(run)


def _bring_up(run: Run) -> None:
    """Write the page of a followed run again, so that it says how the run ended."""
    with suppress(OSError):
        if left_behind(run.path / "report.html"):
            write_report(run)


def _tell(run: Run, fitted: Fitted, page: Path | None, output: Output) -> None:
    results, certificate = run.status["results"], fitted.certificate
    output.result({"run": str(run.path), "report": str(page) if page else None, **run.status})
    model = fitted.model
    network = f"{type(model).__name__}({model.extra_repr()})"  # without the modules inside
    facts = {"network": network, **_scores(results["scores"])}
    if results["score"] is not None:
        facts["comparison"] = beside(results["score_name"], results["score"], results["baselines"])
    if robust := results.get("robust"):
        facts["near inputs"] = held(robust)
    if covered := results.get("coverage"):
        what = "classes in a set" if "by class" in covered else "long"
        facts["coverage"] = (
            f"{percent(covered['asked'])} promised, {percent(covered['covered'])} of {covered['rows']} test "
            f"rows covered; {number(covered['size'], 3)} {what} on average"
        )
    if certificate is not None:
        facts["training"] = f"{certificate.verdict}: {certificate.promise} {kept(fitted.history.anchored)}"
    if ridge := fitted.validation.get("ridge"):
        facts["penalty"] = (
            f"λ = {number(ridge, 3)}, chosen by leave-one-out errors with the untrained hidden layer"
        )
    facts["equilibria"] = f"{fitted.wellposed.verdict}: {fitted.wellposed.promise}"
    steps, loss = results["steps"], number(results["loss"], 4)
    unit = fitted.recipe.unit if steps == 1 else f"{fitted.recipe.unit}s"
    facts["took"] = f"{steps} {unit}, {duration(results['seconds'])}; loss {loss}"
    if fitted.stopped:
        facts["stopped"] = fitted.stopped + (f" To try: {fitted.advice}" if fitted.advice else "")
    facts["run"] = str(run.path)
    if page is not None:
        facts["report"] = str(page)
    output.facts(facts)


def _scores(scores: dict[str, Any]) -> dict[str, str]:
    """The scores, those of the test part first, since they count."""
    found: dict[str, list[str]] = {}
    for part in ("test", "training"):
        if score := scores.get(part):
            rows = f"on {score['rows']} {part} rows"
            if "accuracy" in score:
                found.setdefault("accuracy", []).append(f"{percent(score['accuracy'])} {rows}")
            else:
                found.setdefault("R²", []).append(f"{number(score['r2'], 4)} {rows}")
                found.setdefault("typical error", []).append(f"{number(score['rmse'], 4)} {rows}")
    return {name: ", ".join(parts) for name, parts in found.items()}
