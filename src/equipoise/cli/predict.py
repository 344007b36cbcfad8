"""equipoise predict RUN DATA: answers for new rows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import Code, DataDir, Failure, RunPath, Spread, command, option, parameters_of, workers_of
from .output import Output, as_csv

if TYPE_CHECKING:
    from ..data.dataset import Array
    from ..tasks import Fitted

_NEW = (
    "A table with the columns trained on, in any order (other columns are ignored), a folder of images, or "
    "the name of a data set, whose test part is taken."
)


@command(
    """predict runs/houses-auto-1 new.csv
predict runs/houses-auto-1 new.csv --out answers.csv
predict runs/houses-auto-1 new.parquet --out answers.csv --workers 4
predict runs/digits-auto-1 digits --json""",
    more=parameters_of(Spread),
)
def predict(
    output: Output,
    given: dict[str, Any],
    run: RunPath,
    data: Annotated[str, typer.Argument(help=_NEW, metavar="DATA", show_default=False)],
    out: Annotated[
        Path | None, option("File for the answers, .csv or .npz. Without it they are printed as CSV.")
    ] = None,
    delimiter: Annotated[str | None, option("Separator of cells; by default ',' (a tab in .tsv).")] = None,
    data_dir: DataDir = None,
) -> None:
    """Predict new rows with a trained network: for each a label with probabilities, or a number.

    If DATA also holds the targets, the predictions are scored. The column p(CLASS) holds the probability of a
    class; it is called probability(CLASS) if the target itself is called p(CLASS).

    If the run was trained with --coverage, the columns set(CLASS) say whether a class is in the row's set,
    and TARGET low and TARGET high are the ends of its interval. On average over rows like those of the run,
    sets and intervals hold the truth as often as was asked for.

    In CSV an apostrophe is put before text that a spreadsheet would run as a formula (text that begins with
    =, +, − or @ and is not a number). In .npz the characters that a file name cannot hold, and %, are written
    as in %2F.

    With --workers several processes share the rows. With --out as well, the same command continues where a
    killed one stopped.
    """
    import numpy as np

    from ..files import write_atomically
    from ..plain import plain
    from ..tasks import Stored
    from ..tasks.predicting import decided
    from ..tasks.rows import read_rows

    _check_ending(out)
    workers = workers_of(given)
    stored = Stored.load(run)
    encoding = stored.fitted.preparation.encoding
    rows = read_rows(data, stored.run.data, encoding.columns if encoding else (), delimiter, data_dir)
    notes = encoding.surprises(rows.X, rows.places) if encoding else []
    fitted = decided(stored, rows.X, workers, out)
    answers = _answers(fitted, rows.X, rows.target)
    found = {} if rows.y is None else _score(fitted, answers, rows.X, rows.y)
    answers |= _bounds(fitted, rows.X, answers)
    if rows.images:
        answers = {"image file" if "image" in answers else "image": np.array(rows.images), **answers}
    columns = {name: column.tolist() for name, column in answers.items()}
    if out is not None:
        write_atomically(out, _npz(answers) if out.suffix.lower() == ".npz" else as_csv(columns).encode())
        fitted.written()
    elif not output.json:
        typer.echo(plain(as_csv(columns)), nl=False)
    if output.talks:
        for note in notes:
            typer.echo(plain(f"note: {note}"), err=True)
        where = f" in {out}" if out else ""
        typer.echo(plain(f"{len(rows.X)} rows answered{where}{_in_words(found)}"), err=True)
    told = {"run": str(run), "rows": len(rows.X), "out": str(out) if out else None, "score": found}
    output.result({**told, "notes": notes, **({} if out else {"answers": columns})})


def _check_ending(out: Path | None) -> None:
    if out is not None and out.suffix.lower() not in (".csv", ".npz"):
        raise Failure(
            "An option does not fit", f"--out must end in .csv or .npz. Got {out.name}.", code=Code.USAGE
        )


def _answers(fitted: Fitted, X: Array, target: str) -> dict[str, Array]:
    """The columns of the answers: the predicted target and, for classes, the probability of each."""
    said = fitted.predict(X)
    if fitted.preparation.classes is None:
        if said.ndim == 1:
            return {target: said}
        names = target.split(",")
        if len(names) != said.shape[1]:
            names = [f"{target}_{j}" for j in range(said.shape[1])]
        return {name: said[:, j] for j, name in enumerate(names)}
    names, shares = fitted.preparation.classes.tolist(), fitted.predict_proba(X)
    p = "probability" if target in {f"p({name})" for name in names} else "p"
    return {target: said, **{f"{p}({name})": shares[:, j] for j, name in enumerate(names)}}


def _bounds(fitted: Fitted, X: Array, answers: dict[str, Array]) -> dict[str, Array]:
    """The columns of sets or intervals, for a run with a coverage; none for any other run."""
    if fitted.conformal is None:
        return {}
    if fitted.preparation.classes is not None:
        sets = fitted.predict_set(X)
        names = fitted.preparation.classes.tolist()
        inside = "in set" if any(f"set({name})" in answers for name in names) else "set"
        return {f"{inside}({name})": sets[:, j] for j, name in enumerate(names)}
    ends = fitted.predict_interval(X).reshape(len(X), -1, 2)
    words = ("low", "high")
    if any(f"{name} {end}" in answers for name in answers for end in words):
        words = ("lower end", "upper end")
    return {f"{name} {words[i]}": ends[:, j, i] for j, name in enumerate(answers) for i in (0, 1)}


def _score(fitted: Fitted, answers: dict[str, Array], X: Array, y: Array) -> dict[str, float]:
    """How good the answers are; for a run with a coverage also the share of rows covered, and the sizes."""
    import numpy as np

    from ..tasks.covered import covered
    from ..tasks.scores import score

    width = 1 if y.ndim == 1 else y.shape[1]
    said = np.column_stack(list(answers.values())[:width]).reshape(y.shape)
    found: dict[str, float | None] = score(said, y, fitted.preparation.classes is not None)
    if fitted.conformal is not None:
        found |= covered(fitted, fitted.decide(X), y)
    told = ("accuracy", "r2", "covered", "size")
    return {name: value for name in told if (value := found.get(name)) is not None}


def _in_words(found: dict[str, float]) -> str:
    return "".join(f"; {name} {value:.4g}" for name, value in found.items())


def _npz(answers: dict[str, Array]) -> bytes:
    """An .npz with safe names; numpy's own writer cannot store an array that is called `file`."""
    import zipfile

    import numpy as np

    from ..data.archive import safe_name

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, column in answers.items():
            array = io.BytesIO()
            np.save(array, column, allow_pickle=False)
            archive.writestr(f"{safe_name(name)}.npy", array.getvalue())
    return file.getvalue()
