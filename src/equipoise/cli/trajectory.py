"""equipoise trajectory RUN: the way of the solver to the equilibria of a trained network."""

from __future__ import annotations

import json as _json
from pathlib import Path
from typing import Annotated

import typer

from .failures import EXIT_CODES, Debug, Json, Quiet, command

EPILOG = f"""[bold]Examples[/bold]

  $ equipoise trajectory runs/digits-auto-1 --rows 12

[bold]Exit codes[/bold]  {EXIT_CODES}
"""


@command
def trajectory(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", show_default=False)],
    rows: Annotated[int, typer.Option(help="Rows of the training data to follow.", min=1)] = 12,
    grid: Annotated[int, typer.Option(help="Arrows along each side of the phase portrait.", min=2)] = 15,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; by default RUN/trajectory.", show_default=False)
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Follow the solver: its path in the plane of principal components, residuals, and steps over training.

    Writes trajectory.json, and figures as SVG and PNG. The paths start at 0 and are those of the family's own
    solver; the arrows are f(z) − z of the first row.
    """
    import numpy as np
    import torch

    from ..explore import phase_portrait, solver_paths
    from ..plots import curves, save, trajectories
    from ..train.checkpoint import write_atomically
    from .output import Output, number
    from .prepared import prepared
    from .stored import load_fitted, stored_sample

    output = Output(quiet, json)
    stored, fitted = load_fitted(run)
    model = fitted.model
    X = prepared(fitted, stored_sample(stored))[0][:rows]
    f = model.affine_map(X)
    found = solver_paths(f, torch.zeros_like(f.bias), solver=model.default_solver(f))
    plane = found.plane()
    paths = [plane.coordinates(z) for z in found.states]
    reach = 1.15 * max(float(np.abs(p).max()) for p in paths) or 1.0
    axis = np.linspace(-reach, reach, grid)
    step = lambda z, b: model.activation(z @ f.weight.T + b)
    arrows = phase_portrait(step, plane, f.bias[:1], (f.bias[:1],), axis, axis)
    where = out or run / "trajectory"
    where.mkdir(parents=True, exist_ok=True)
    steps = [len(r) - 1 for r in found.residuals]
    over_training = fitted.history.forward_steps.tolist()
    content = {
        "paths": [p.tolist() for p in paths],
        "residuals": [r.tolist() for r in found.residuals],
        "shares": list(plane.shares),
        "steps": steps,
        "axis": axis.tolist(),
        "arrows": arrows.tolist(),
        "forward_steps": over_training,
        "converged": found.solution.converged.tolist(),
    }
    write_atomically(where / "trajectory.json", _json.dumps(content, ensure_ascii=False).encode())
    named = {f"row {i}" if i < 8 else "": p for i, p in enumerate(paths[:8])}
    figure = trajectories(named, shares=plane.shares, x="first component", y="second component")
    S, T = np.meshgrid(axis, axis)
    figure.axes[0].quiver(S, T, arrows[..., 0], arrows[..., 1], color="#c9d0d8", width=0.003, zorder=0)
    files = save(figure, where / "paths")
    lines = {f"row {i}": r for i, r in enumerate(found.residuals[:8])}
    files += save(curves(lines, x="solver step", y="‖f(z) − z‖ / ‖z‖", log_y=True), where / "residuals")
    if over_training:
        figure = curves({"": over_training}, x="step", y="solver steps of the forward pass")
        files += save(figure, where / "training")
    output.facts(
        {
            "solver": found.solution.solver,
            "steps": f"{min(steps)} to {max(steps)}",
            "not found": number(int((~found.solution.converged).sum())),
            "plane": f"holds {100 * sum(plane.shares):.0f} % of the variance of the paths",
            "written": ", ".join(str(f) for f in files),
        }
    )
    output.result(content)
