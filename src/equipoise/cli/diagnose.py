"""equipoise diagnose RUN: why the equilibria of a network are found, or why they are not."""

from __future__ import annotations

from typing import Annotated

import typer

from .failures import Code, DataDir, Ended, RunPath, command
from .output import Output


@command("diagnose runs/digits-auto-1")
def diagnose(
    output: Output,
    run: RunPath,
    rows: Annotated[int, typer.Option(min=1, help="How many of the training rows to measure on.")] = 64,
    data_dir: DataDir = None,
) -> None:
    """Measure the network on its own data: residuals, contraction, every solver, and an audit of gradients.

    These are measurements, not proofs; certify proves. The exit code is 1 if a row did not converge or the
    audit failed.
    """
    from ..models.diagnose import diagnose as look
    from ..tasks import Stored

    stored = Stored.load(run, data_dir)
    found = look(stored.fitted.model, stored.tensors[0][:rows])
    output.say(found)
    told = ["ok", "rows", "contraction_estimate", "spectral_radius_estimate", "jacobian_norm_estimate"]
    output.result(
        {name: getattr(found, name) for name in told}
        | {"residual": float(found.residual.max()), "advice": list(found.advice)}
    )
    if not found.ok:
        raise Ended(Code.FAILED)
