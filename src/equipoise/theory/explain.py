"""A certificate in words and as a table."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from .certificate import Certificate
    from .claim import Claim

FIXED = 1e-3  # below this share of ‖Z‖ the hidden layer does not learn
VACUOUS = 1e6  # steps per e-fold beyond which a promise is of no practical use


def explain(certificate: Certificate, measured_movement: float | None = None) -> str:
    """Sentences: the headline, what is proved, what it rests on, what failed by how much, what to change."""
    parts = [_movement(certificate, measured_movement)]
    if certificate.proved:
        parts.append(f"Proved by {certificate.theorem}: {certificate.promise}")
        parts.extend(_rate(certificate))
    else:
        word = "does not apply" if certificate.verdict == "hypotheses_fail" else "is not decided"
        parts.append(f"Not proved: {certificate.theorem} {word} here, so nothing is promised.")
        parts.append(certificate.obstacle)
        parts.extend(_failure(c) for c in certificate.claims if not (c.holds or c.printed))
    if certificate.hypotheses:
        parts.append("It rests on: " + "; ".join(certificate.hypotheses) + ".")
    for claim in certificate.claims:
        if claim.printed:
            left, right = claim.sides
            verb = "holds" if claim.holds else "fails"
            parts.append(
                f"As printed, {claim.name} {verb} ({left} {claim.relation} {right}): {claim.statement}."
            )
    if "printed" in certificate.constants:
        parts.append(f"As printed, {certificate.constants['printed']}.")
    return "\n".join(part for part in parts if part)


def _movement(certificate: Certificate, measured: float | None) -> str:
    if certificate.kind == "static":
        return ""
    certified = certificate.movement if certificate.proved else None
    says = []
    if certified is not None:
        says.append(f"certified to move by at most {certified:.1e} times ‖Z(0)‖")
    if measured is not None:
        says.append(f"measured to move by {measured:.1e} times ‖Z(0)‖")
    if not says:
        return ""
    largest = max(v for v in (certified, measured) if v is not None)
    fixed = "The readout is fitted, the hidden layer is effectively fixed: it is "
    return (fixed if largest < FIXED else "The hidden layer is ") + ", and ".join(says) + "."


def _rate(certificate: Certificate) -> list[str]:
    if certificate.kind == "anchored":
        return [
            "Any optimiser may be used: a checkpoint that does not pass is undone. Nothing is promised of "
            "data that were not trained on."
        ]
    if certificate.kind == "static":
        return []
    if certificate.kind == "flow":
        return [f"An e-fold of the loss takes at most the time {certificate.efold:.3g}."]
    lines = [f"An e-fold of the loss takes at most {certificate.efold:.3g} steps."]
    if certificate.efold > VACUOUS:
        lines.append("That is true and of no practical use: the theorem is vacuous at this size.")
    if certificate.floor >= 1:
        lines.append("The first loss is so small that rounding decides from the first step on.")
    elif certificate.floor:
        lines.append(f"Below {certificate.floor:.1e} of the first loss, rounding decides.")
    return lines


def _failure(claim: Claim) -> str:
    how = "fails" if claim.refuted else "is not decided"
    if math.isfinite(claim.short):
        how += f" by a factor {claim.short:.3g}" if claim.short > 1.001 else " by a hair"
    left, right = claim.sides
    remedy = f" Try {claim.remedy}." if claim.remedy else ""
    return f"{claim.name} {how}: it needs {left} {claim.relation} {right}: {claim.statement}.{remedy}"


def table(certificate: Certificate, width: int = 110) -> str:
    """The claims with both sides, as plain text."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, no_color=True)
    grid = Table()
    for name in ("claim", "lhs", "", "rhs", "lhs/rhs", "", "what it says"):
        grid.add_column(name)
    for claim in certificate.claims:
        left, right = claim.sides
        grid.add_row(
            Text(claim.name + (" printed" if claim.printed else "")),
            left,
            claim.relation,
            right,
            f"{claim.margin:.3g}",
            "holds" if claim.holds else "fails" if claim.refuted else "open",
            Text(claim.statement),
        )
    console.print(Text(f"{certificate.theorem}: {certificate.verdict} (tier {certificate.tier})"))
    if certificate.obstacle:
        console.print(Text(certificate.obstacle))
    if certificate.claims:
        console.print(grid)
    return out.getvalue().rstrip()
