"""equipoise diagnose RUN: why the network's equilibria are found, or are not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .failures import EXIT_CODES, Code, DataDir, Debug, Ended, Json, Quiet, command

EPILOG = f"""[bold]Examples[/bold]

  $ equipoise diagnose runs/digits-auto-1

[bold]Exit codes[/bold]  {EXIT_CODES}
"""


@command
def diagnose(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", show_default=False)],
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows to look at.")] = 64,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Look at the network on its own data: residuals, contraction, every solver, and an audit of gradients.

    Nothing here is a proof: certify is. Exits with 1 where a row did not converge or the audit failed.
    """
    from ..models.diagnose import diagnose as look
    from .output import Output
    from .prepared import prepared
    from .stored import load_fitted, stored_sample

    output = Output(quiet, json)
    stored, fitted = load_fitted(run)
    X, _ = prepared(fitted, stored_sample(stored, data_dir))
    found = look(fitted.model, X[:rows])
    output.say(found)
    output.result(
        {
            "ok": found.ok,
            "rows": found.rows,
            "residual": float(found.residual.max()),
            "contraction_estimate": found.contraction_estimate,
            "spectral_radius_estimate": found.spectral_radius_estimate,
            "jacobian_norm_estimate": found.jacobian_norm_estimate,
            "advice": list(found.advice),
        }
    )
    if not found.ok:
        raise Ended(Code.FAILED)
