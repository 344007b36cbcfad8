"""equipoise trajectory RUN: the way of the solver to the equilibria of a trained network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failures import EXIT_CODES, DataDir, Debug, Json, Quiet, command

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

EPILOG = f"""[bold]Examples[/bold]

  $ equipoise trajectory runs/digits-auto-1 --rows 8

[bold]Exit codes[/bold]  {EXIT_CODES}
"""

_MARGIN = 0.12  # around the paths, of their extent
_FLATTEST = 0.1  # of the longer side of the plane, for the shorter
_FEW = 25  # solver steps that are marked one by one
_KINDS = "paths", "residuals", "training"  # figures


@command
def trajectory(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", show_default=False)],
    rows: Annotated[int, typer.Option(help="Rows of the training data to follow, the first.", min=1)] = 8,
    grid: Annotated[int, typer.Option(help="Arrows along each side of the phase portrait.", min=2)] = 15,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; by default RUN/trajectory.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Follow the solver: its path in the plane of principal components, residuals, and steps over training.

    Writes trajectory.json, and figures as SVG and PNG. The paths start at 0 and are those of the family's own
    solver; the arrows are f(z) − z of the first row. Up to 8 rows are named in the figures, more are drawn
    alike.
    """
    import torch

    from ..explore import phase_portrait, solver_paths
    from .output import Output, number
    from .published import publish
    from .stored import load_fitted, stored_sample

    output = Output(quiet, json)
    stored, fitted = load_fitted(run)
    model = fitted.model
    X = fitted.preparation.apply(stored_sample(stored, data_dir).train[0][:rows])
    f = model.affine_map(X)
    found = solver_paths(f, torch.zeros_like(f.bias), solver=model.default_solver(f))
    plane = found.plane()
    paths = [plane.coordinates(z) for z in found.states]
    s, t = _around(paths, grid)
    step = lambda z, b: model.activation(z @ f.weight.T + b)
    arrows = phase_portrait(step, plane, f.bias[:1], (f.bias[:1],), s, t)
    steps = [len(r) - 1 for r in found.residuals]
    content = {
        "paths": [p.tolist() for p in paths],
        "residuals": [r.tolist() for r in found.residuals],
        "shares": list(plane.shares),
        "steps": steps,
        "s": s.tolist(),
        "t": t.tolist(),
        "arrows": arrows.tolist(),
        "unit": "step" if fitted.recipe.certified else "epoch",
        "forward_steps": fitted.history.forward_steps.tolist(),
        "converged": found.solution.converged.tolist(),
    }
    figures = _draw(content)
    files = publish(out or run / "trajectory", "trajectory", content, figures, _KINDS)
    output.facts(
        {
            "rows": f"{len(paths)}, the first of the training data",
            "solver": found.solution.solver,
            "steps": f"{min(steps)} to {max(steps)}",
            "not found": number(int((~found.solution.converged).sum())),
            "plane": f"holds {100 * sum(plane.shares):.0f} % of the variance of the paths",
            "written": ", ".join(str(f) for f in files),
        }
    )
    output.result(content)


def _around(paths: Sequence[np.ndarray], points: int) -> list[np.ndarray]:
    """The two axes of the part of the plane in which the paths (K, 2) are."""
    import numpy as np

    every = np.concatenate(paths)
    low, high = every.min(axis=0), every.max(axis=0)
    longest = float((high - low).max()) or 1.0
    middle, half = (low + high) / 2, np.maximum(high - low, _FLATTEST * longest) * (0.5 + _MARGIN)
    return [np.linspace(m - h, m + h, points) for m, h in zip(middle, half, strict=True)]


def _draw(content: dict[str, Any]) -> dict[str, Figure]:
    from ..plots import curves, trajectories
    from ..plots.curves import draw, finish
    from ..plots.plane import MOST_PATHS
    from ..plots.style import FINE, scale_axis, single

    count, residuals = len(content["paths"]), content["residuals"]
    named = count <= MOST_PATHS
    title = "" if named else f"{count} rows"
    paths = trajectories(
        {f"row {i}": path for i, path in enumerate(content["paths"])},
        arrows=(content["s"], content["t"], content["arrows"]),
        shares=content["shares"],
        x="first component",
        y="second component",
        title=title,
    )
    figure, ax = single()
    marks = named and max(map(len, residuals)) <= _FEW
    for i, r in enumerate(residuals):
        draw(ax, r, f"row {i}" if named else "", at=i if named else 0, marks=marks, log=True)
    for line in () if named else ax.get_lines():
        line.set(linewidth=FINE, alpha=0.6)
    finish(figure, ax, x="solver step", y="‖f(z) − z‖ / ‖z‖", title=title, log_y=True)
    scale_axis(ax, "x", log=False, integers=True)
    figures = {"paths": paths, "residuals": figure}
    if content["forward_steps"]:
        over = curves({"": content["forward_steps"]}, x=content["unit"], y="solver steps of the forward pass")
        scale_axis(over.axes[0], "y", log=False, integers=True)
        figures["training"] = over
    return figures
