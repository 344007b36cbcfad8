"""What the network became: its equilibria and its spectra."""

from __future__ import annotations

import numpy as np

from .. import plots
from ..plots.spectra import ROUNDING
from .figures import Drawers, Drawn
from .reading import RunRecord, part
from .words import count, number, percent


def equilibria(record: RunRecord) -> Drawn | None:
    """Where the hidden layer comes to rest, in a plane."""
    found = part(record.findings, "plane")
    if not found:
        return None
    shares, frame = found["shares"], np.array(found["frame"])
    points = np.array(found["points"], dtype=float)
    outside = int(((points < frame[:, 0]) | (points > frame[:, 1])).any(axis=1).sum())
    if "labels" in found:
        figure = plots.plane(points, found["labels"], found["names"], shares=shares, frame=frame)
        look = (
            "Classes that lie apart here are easy for the readout; names stand at the middle of their class."
        )
    else:
        figure = plots.coloured_plane(points, found["targets"], shares=shares, frame=frame)
        look = (
            "Marks show the target in four equally full ranges: an order among them is what the readout uses."
        )
    caption = (
        f"Where the hidden layer comes to rest for {count(len(points), 'training row')}, seen in the two "
        f"directions in which it varies most ({percent(sum(shares))} of all variation). {look}"
    )
    if outside:
        caption += f" {count(outside, 'row')} far from all others lie outside the frame."
    return Drawn(
        "The equilibria in a plane",
        figure,
        caption,
        f"Scatter of {len(found['points'])} equilibria in their principal plane.",
    )


def kernel(record: RunRecord) -> Drawn | None:
    """How fast gradient training can change which predictions."""
    found = part(record.findings, "kernel")
    if not found:
        return None
    spectrum = found["spectrum"]
    figure = plots.spectrum({"tangent kernel": (spectrum["ranks"], spectrum["values"])})
    values = np.array(spectrum["values"], dtype=float)
    positive = values[values > ROUNDING * values.max(initial=0)]
    shares = ", ".join(f"{name} {percent(share)}" for name, share in found["shares"].items())
    rows = count(found["rows"], "training row")
    outputs = f" and {count(found['outputs'], 'output')}" if found["outputs"] > 1 else ""
    caption = (
        f"How fast gradient training can change the predictions of {rows}{outputs}, direction by direction: "
        f"a component of the residual decays at the rate of its eigenvalue, so a long fall to the right "
        f"means fine detail that is learned late or never."
    )
    if positive.size:
        caption += f" The largest is {number(float(positive[0] / positive[-1]))} times the smallest shown."
    caption += f" By weights, the kernel comes from {shares}."
    return Drawn(
        "Spectrum of the tangent kernel",
        figure,
        caption,
        f"Eigenvalues of the tangent kernel, {spectrum['size']} of them.",
    )


def weights(record: RunRecord) -> Drawn | None:
    """Singular values of the weights."""
    found = part(record.findings, "weights")
    if not found:
        return None
    named = {
        ("W of the equation" if name == "effective" else name): (s["ranks"], s["values"])
        for name, s in found.items()
    }
    figure = plots.spectrum(named, y="singular value", levels={"norm 1": 1.0})
    top = float(found["effective"]["values"][0]) if found.get("effective", {}).get("values") else None
    caption = (
        "Singular values of the weights, largest first. The first of the weight W that the equilibrium "
        "equation uses is its norm: below the dotted line at 1, iteration contracts"
    )
    caption += f"; here it is {number(top, 4)}." if top is not None else "."
    if top is not None and top >= 1:
        caption += (
            " Above it, iteration need not contract: uniqueness then needs another reason, such as "
            "monotonicity, and the certificate says whether there is one."
        )
    return Drawn("Spectra of the weights", figure, caption, f"Singular values of {', '.join(named)}.")


NETWORK: Drawers = {
    "equilibria": equilibria,
    "kernel": kernel,
    "weights": weights,
}
