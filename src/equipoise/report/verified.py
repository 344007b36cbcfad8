"""verified.html: the share of rows that is proved against ε, how far rows may move, and the hardest."""

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
from ..tasks.verified import SHARES, VerifyTask, shares, spread
from .page import filled, publish
from .words import percent

_SHOWN = 12  # pictures of each kind
_ENDS = "proved", "refuted"


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
        counted=task.counted,
        box="" if task.box is None else f" and stays within [{task.box[0]:g}, {task.box[1]:g}]",
        table=[
            {
                "ε": f"{line['epsilon']:.4g}",
                "Rows": int(line["rows"]),
                "Proved": percent(line["proved"]),
                "Not refuted": percent(line["not refuted"]),
                "Parts per row": f"{line['parts a row']:.1f}",
                "Seconds per row": f"{line['seconds a row']:.2g}",
            }
            for line in table
        ],
        radii=[_in_words(one) for one in spread(found)],
        # One ε is two points, which the table tells better.
        figure=Markup(_curve(table, found["radii"], task.counted))
        if len(table) > 1 or found["radii"]
        else "",
        broken=_broken(task, found, side) if side else [],
        hardest=_hardest(task, found, side) if side else [],
        nearest=_nearest(task, found, side) if side else [],
    )
    return publish(out / "verified.html", page)


def _curve(table: list[dict[str, float]], radii: dict[str, Any], counted: str) -> str:
    """The shares at each ε that was given, or of all ε where radii are known."""
    if radii:
        most = max(radii, key=float)
        held, left = (_falling(radii[most][end], float(most)) for end in _ENDS)
        words = f"the share of rows for every ε up to {float(most):.4g}"
    else:
        x = np.array([line["epsilon"] for line in table])
        held, left = ((x, np.array([line[name] for line in table])) for name in ("proved", "not refuted"))
        words = "; ".join(
            f"at ε = {line['epsilon']:.4g} {percent(line['proved'])} proved, "
            f"{percent(line['not refuted'])} not refuted"
            for line in table
        )
    series: dict[str, Any] = {"not refuted by the attack": left, "proved": held}
    figure = plots.curves(series, x=f"ε, {counted}", y="share of rows")
    figure.axes[0].set_ylim(0, 1.04)  # a difference of some rows is not to look like one of all
    return plots.inline_svg(figure, "fig-verified", "Share of rows proved against ε", words)


def _falling(ends: list[float | None], most: float) -> tuple[np.ndarray, np.ndarray]:
    """The steps of the share of rows whose end is at least ε; None is an end beyond `most`."""
    below = np.sort([v for v in ends if v is not None and v < most])
    x = np.concatenate([[0.0], np.repeat(below, 2), [most]])
    return x, 1 - np.repeat(np.arange(len(below) + 1), 2) / len(ends)


def _in_words(radii: dict[str, Any]) -> dict[str, Any]:
    """The spread of the radii as the table shows it."""
    rows = [
        {"Share of rows": words}
        | {
            f"{share:.0%}": "never" if v == math.inf else f"{v:.3g}"
            for share, v in zip(SHARES, radii[end], strict=True)
        }
        for end, words in zip(_ENDS, ("Proved up to", "Refuted from"), strict=True)
    ]
    return {
        "table": rows,
        "most": f"{radii['most']:g}",
        "rows": radii["rows"],
        "wrong": percent(radii["wrong"]),
    }


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
            row = int(key)
            if row in shown or len(shown) >= _SHOWN:
                continue
            x, clean = task.seen(row, values).numpy(), task.X[row].numpy()
            if np.allclose(x, clean):
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


def _nearest(task: VerifyTask, found: dict[str, Any], shape: tuple[int, ...]) -> list[dict[str, str]]:
    """The rows that are right as they stand and are refuted nearest to themselves."""
    if not found["radii"]:
        return []
    at = found["radii"][max(found["radii"], key=float)]
    shown = []
    for v, row in sorted((v, row) for row, v in enumerate(at["refuted"]) if v)[:_SHOWN]:
        ends = f"proved to {at['proved'][row]:.3g}, refuted at {v:.3g}"
        words = f"row {row}, class {task.label(row)}: {ends}"
        shown.append({"words": words, "clean": _png(task.X[row].numpy(), shape)})
    return shown


def _png(x: np.ndarray, shape: tuple[int, ...]) -> str:
    """A picture as the address of an image in the page."""
    image = x.reshape(shape)
    image = image[..., 0] if image.shape[-1] == 1 else image
    file = io.BytesIO()
    low, high = float(image.min()), float(image.max())
    scaled = (image - min(low, 0.0)) / max(high - min(low, 0.0), 1e-12) if high > 1 or low < 0 else image
    imsave(file, scaled, cmap="gray", vmin=0, vmax=1, format="png", metadata={"Software": ""})
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
