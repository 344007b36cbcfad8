"""equipoise certify RUN: what is proved of a trained network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import EXIT_CODES, Code, DataDir, Debug, Ended, Failure, Json, Quiet, command

if TYPE_CHECKING:
    from ..tasks import Run
    from ..theory import Certificate
    from .output import Output

EPILOG = f"""[bold]Examples[/bold]

  $ equipoise certify runs/digits-auto-1
  $ equipoise certify runs/digits-auto-1 --theorem ling2023 --printed

[bold]Exit codes[/bold]  {EXIT_CODES}
"""


@command
def certify(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", show_default=False)],
    theorem: Annotated[
        str | None,
        typer.Option(
            "--theorem",
            help="Which one: wellposed, safeguarded, two_timescale, gao2022.descent, gao2022.flow, ling2023, "
            "hieu2022.descent, hieu2022.flow, kawaguchi2021.",
            show_default=False,
        ),
    ] = None,
    printed: Annotated[
        bool, typer.Option("--printed", help="Show the paper's own conditions too, where they differ.")
    ] = False,
    tier: Annotated[
        str | None,
        typer.Option("--tier", help="float64, or rigorous: ball arithmetic, slow.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Prove again, from the run's files and data alone, what is guaranteed.

    Without --theorem: the certificate that training was begun with is proved once more of the start's
    weights, and the weights at the end are shown to give every input one equilibrium. With --theorem: that
    theorem, at the weights of the end. Exits with 1 where it is not proved.
    """
    from .output import Output
    from .stored import load_fitted, stored_sample

    for option, given in (("--printed", printed), ("--tier", tier)):
        if theorem is None and given:
            raise Failure("Which theorem?", f"{option} needs --theorem: name one.", code=Code.USAGE)
    output = Output(quiet, json)
    stored, fitted = load_fitted(run)
    sample = stored_sample(stored, data_dir)
    how: dict[str, Any] = {"tier": tier} if tier else {}
    found: dict[str, Certificate] = {}
    if theorem is not None:
        found["end"] = _of_the_end(fitted, sample, theorem, how | ({"printed": True} if printed else {}))
    else:
        if fitted.certificate is not None:
            found["start"] = _of_the_start(stored, fitted, sample, output)
        found["end"] = _of_the_end(fitted, sample, "wellposed", how)
    for where, certificate in found.items():
        output.heading(f"{certificate.theorem}: {certificate.verdict}", f"at the {where} of training")
        output.say(certificate.explain(), "")
    output.result({where: certificate.to_dict() for where, certificate in found.items()})
    if not all(certificate.proved for certificate in found.values()):
        raise Ended(Code.FAILED)


def _of_the_start(run: Run, fitted: Any, sample: Any, output: Output) -> Certificate:
    """The certificate of the run, proved anew of the network the recipe builds; refused if it differs.

    An earlier version may have bounded something otherwise: then it is said what, and the new one counts.
    """
    from ..theory.verification import certified_again, differences
    from .prepared import prepared

    start = fitted.recipe.build(fitted.preparation.inputs, fitted.preparation.outputs)
    X, y = prepared(fitted, sample)
    if not run.earlier:
        found: Certificate = fitted.certificate.verify(start, X, y)
        return found
    found = certified_again(fitted.certificate, start, X, y)
    for what, old, new in differences(fitted.certificate, found):
        output.say(f"  note: an earlier version, which trained this run, said {what} = {old}; it is {new}.")
    return found


def _of_the_end(fitted: Any, sample: Any, theorem: str, how: dict[str, Any]) -> Certificate:
    from ..theory import certify as prove
    from ..theory.certify import make_theorem
    from .prepared import prepared

    X, y = prepared(fitted, sample)
    constants = {name: value for name, value in how.items() if name != "tier"}
    try:
        make_theorem(theorem, **constants)
    except (ValueError, TypeError) as error:
        raise Failure("No such theorem", str(error), code=Code.USAGE) from error
    return prove(fitted.model, X, y, theorem=theorem, **how)
