"""verified.html: the share of rows that is proved against ε, the hardest rows, and those that were broken."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.image import imsave

from .. import plots
from ..tasks.verified import VerifyTask, shares
from .page import filled, publish
from .words import percent

_SHOWN = 12  # pictures of each kind


def write_page(task: VerifyTask, found: dict[str, Any], out: Path, name: str) -> Path:
    """The page of what was found, as out/verified.html."""
    table = shares(found)
    side = _picture_shape(task)
    page = filled(
        "verified.html",
        images=True,
        name=name,
        norm={
            "linf": "each entry of an input moves by at most ε",
            "l2": "an input moves by at most ε in length",
        }[task.norm],
        box="" if task.box is None else f"within [{task.box[0]:g}, {task.box[1]:g}]",
        table=[
            {**line, "proved": percent(line["proved"]), "left": percent(line["not refuted"])}
            for line in table
        ],
        figure=Markup(_curve(table)),
        broken=_broken(task, found, side) if side else [],
        hardest=_hardest(task, found, side) if side else [],
    )
    return publish(out / "verified.html", page)


def _curve(table: list[dict[str, float]]) -> str:
    x = np.array([line["epsilon"] for line in table])
    series: dict[str, Any] = {
        "not refuted by the attack": (x, np.array([line["not refuted"] for line in table])),
        "proved": (x, np.array([line["proved"] for line in table])),
    }
    figure = plots.curves(series, x="ε", y="share of rows")
    words = "; ".join(
        f"at ε = {line['epsilon']:.4g} {percent(line['proved'])} proved, "
        f"{percent(line['not refuted'])} not refuted"
        for line in table
    )
    return plots.inline_svg(figure, "fig-verified", "Share of rows proved against ε", words)


def _picture_shape(task: VerifyTask) -> tuple[int, ...]:
    """The shape of a row as a picture, () if it is none."""
    d = task.X.shape[1]
    if len(task.shape) >= 2 and math.prod(task.shape) == d and task.shape[-1] in (1, 3, task.shape[-2]):
        return task.shape
    return ()


def _broken(task: VerifyTask, found: dict[str, Any], shape: tuple[int, ...]) -> list[dict[str, str]]:
    """Rows that are right as they stand, each beside the input that breaks it at the least ε that does."""
    shown: dict[int, dict[str, str]] = {}
    for epsilon, at in sorted(found["epsilons"].items(), key=lambda item: float(item[0])):
        for key, values in at["broken"].items():
            row, x = int(key), np.array(values)
            clean = task.X[row].numpy()
            if row in shown or len(shown) >= _SHOWN or len(x) != len(clean) or np.array_equal(x, clean):
                continue
            words = f"row {row}, class {task.label(row)}, broken at ε = {float(epsilon):.4g}"
            shown[row] = {"words": words, "clean": _png(clean, shape), "broken": _png(x, shape)}
    return list(shown.values())


def _hardest(task: VerifyTask, found: dict[str, Any], shape: tuple[int, ...]) -> list[dict[str, str]]:
    """The rows that were proved with the most parts, at any ε."""
    costs = [
        (at["nodes"][row], float(epsilon), row)
        for epsilon, at in found["epsilons"].items()
        for row in range(len(at["proved"]))
        if at["proved"][row] and at["nodes"][row] > 1
    ]
    return [
        {
            "words": f"row {row}, class {task.label(row)}: {nodes} parts at ε = {epsilon:.4g}",
            "clean": _png(task.X[row].numpy(), shape),
        }
        for nodes, epsilon, row in sorted(costs, reverse=True)[:_SHOWN]
    ]


def _png(x: np.ndarray, shape: tuple[int, ...]) -> str:
    """A picture as the address of an image in the page."""
    image = x.reshape(shape)
    image = image[..., 0] if image.shape[-1] == 1 else image
    file = io.BytesIO()
    low, high = float(image.min()), float(image.max())
    scaled = (image - min(low, 0.0)) / max(high - min(low, 0.0), 1e-12) if high > 1 or low < 0 else image
    imsave(file, scaled, cmap="gray", vmin=0, vmax=1, format="png", metadata={"Software": ""})
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
