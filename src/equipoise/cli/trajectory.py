"""equipoise trajectory RUN: the path of the solver to the equilibria of a trained network."""

from __future__ import annotations

from typing import Annotated

import typer

from .failures import DataDir, Out, RunPath, command
from .output import Output, number

_KINDS = "paths", "residuals", "training"  # figures


@command("trajectory runs/digits-auto-1 --rows 8")
def trajectory(
    output: Output,
    run: RunPath,
    rows: Annotated[int, typer.Option(help="How many of the first training rows to follow.", min=1)] = 8,
    grid: Annotated[int, typer.Option(help="Arrows along each side of the phase portrait.", min=2)] = 15,
    out: Out = None,
    data_dir: DataDir = None,
) -> None:
    """Follow the solver: its path in the plane of principal components, residuals, and steps over training.

    The command writes trajectory.json and figures as SVG and PNG. The paths start at 0 and are those of the
    solver that the family uses by default; the arrows show f(z) − z for the first row. The figures name the
    rows if they are 8 or fewer; otherwise all are drawn alike.
    """
    from ..explore.trajectory import follow
    from ..report.published import publish
    from ..report.views import draw_trajectory
    from ..tasks import Stored

    stored = Stored.load(run, data_dir)
    content, found = follow(stored.fitted, stored.sample.train[0][:rows], grid)
    figures = draw_trajectory(content)
    files = publish(out or run / "trajectory", "trajectory", content, figures, _KINDS)
    steps = content["steps"]
    output.facts(
        {
            "rows": f"{len(steps)}, the first of the training data",
            "solver": found.solution.solver,
            "steps": f"{min(steps)} to {max(steps)}",
            "not found": number(int((~found.solution.converged).sum())),
            "plane": f"holds {100 * sum(content['shares']):.0f} % of the variance of the paths",
            "written": ", ".join(str(f) for f in files),
        }
    )
    output.result(content)
