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

FIXED = 1e-3  # below this share of ‖Z‖ the hidden layer does not learn


def explain(certificate: Certificate, measured_movement: float | None = None) -> str:
    """Sentences: the headline, what is proved, what it rests on, what failed by how much, what to change."""
    parts = []
    movement = _movement(certificate, measured_movement)
    if movement:
        parts.append(movement)
    if certificate.proved:
        parts.append(f"Proved by {certificate.theorem}: {certificate.promise}")
        parts.extend(_rate(certificate))
    else:
        word = "does not apply" if certificate.verdict == "hypotheses_fail" else "is not decided"
        parts.append(f"Not proved: {certificate.theorem} {word} here, so nothing is promised.")
        if certificate.obstacle:
            parts.append(certificate.obstacle)
        parts.extend(_failures(certificate))
    if certificate.hypotheses:
        parts.append("It rests on: " + "; ".join(certificate.hypotheses) + ".")
    printed = [c for c in certificate.claims if c.printed]
    for claim in printed:
        parts.append(f"As printed, {claim.name} {'holds' if claim.holds else 'fails'}: {claim.statement}.")
    return "\n".join(parts)


def _movement(certificate: Certificate, measured: float | None) -> str:
    if certificate.kind == "static" or (certificate.movement is None and measured is None):
        return ""
    certified, lead = certificate.movement, ""
    says = []
    if certified is not None:
        says.append(f"certified to move at most {certified:.1e} of ‖Z(0)‖")
    if measured is not None:
        says.append(f"measured to move {measured:.1e} of it")
    largest = max(v for v in (certified, measured) if v is not None)
    if largest < FIXED:
        lead = "The readout is fitted, the hidden layer is effectively fixed: it is "
    else:
        lead = "The hidden layer is "
    return lead + ", and ".join(says) + "."


def _rate(certificate: Certificate) -> list[str]:
    if certificate.kind == "flow" and certificate.exponent:
        return [f"An e-fold of the loss takes time {1 / certificate.exponent:.3g}."]
    if certificate.kind != "descent":
        return []
    factor = certificate.bound(1) if certificate.floor < 1 else 1.0
    folds = math.inf if factor >= 1 else -1 / math.log(factor) if factor > 0 else 0.0
    lines = [f"An e-fold of the loss takes at most {folds:.3g} steps."]
    if folds > 1e6:
        lines.append("That is true and of no practical use: the theorem is vacuous at this size.")
    if certificate.floor:
        lines.append(f"Below {certificate.floor:.1e} of the first loss, rounding decides.")
    return lines


def _failures(certificate: Certificate) -> list[str]:
    lines = []
    for claim in certificate.claims:
        if claim.holds or claim.printed:
            continue
        how = "fails" if claim.refuted else "is not decided"
        size = f"lhs/rhs = {claim.margin:.3g}" if math.isfinite(claim.margin) else "a side is not finite"
        lines.append(
            f"{claim.name} {how}: needs {claim.lhs:.4g} {claim.relation} {claim.rhs:.4g} ({size}): "
            f"{claim.statement}." + (f" Try {claim.remedy}." if claim.remedy else "")
        )
    return lines


def table(certificate: Certificate, width: int = 110) -> str:
    """The claims with both sides, as plain text."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, no_color=True)
    title = f"{certificate.theorem}: {certificate.verdict} (tier {certificate.tier})"
    grid = Table(title=title, title_justify="left")
    for name in ("claim", "lhs", "", "rhs", "lhs/rhs", "", "what it says"):
        grid.add_column(name)
    for claim in certificate.claims:
        mark = "holds" if claim.holds else "fails" if claim.refuted else "open"
        grid.add_row(
            Text(claim.name + (" printed" if claim.printed else "")),
            f"{claim.lhs:.4g}",
            claim.relation,
            f"{claim.rhs:.4g}",
            f"{claim.margin:.3g}",
            mark,
            Text(claim.statement),
        )
    console.print(grid)
    return out.getvalue()
