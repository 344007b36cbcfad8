"""z = cell(z, x): one equilibrium for every input, where the parts of a cell prove that it contracts in z.

`moves` says how far the output of the recorded cell moves with z and x, and how it is rounded, and `recorded`
what follows of equilibria.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...linalg import Interval, frobenius
from ...models.altered import altered
from ...models.cell import Equilibrium
from ..certificate import FLOAT64_TIER, Certificate, fingerprint
from ..claim import Claim
from ..common import declared, not_finite
from ..facts import Facts
from ..lipschitz import Bounds
from ..moves import RECORDED, ROUNDED, Unknown
from ..recorded import AT_ONCE, RecordedCell, exact_inputs
from ..register import facts_of
from ..wellposed import check_shape

_SMALLER = "smaller weights: the bound is made of the norms of the parts of the cell"


@facts_of(Equilibrium)
class CellFacts(Facts):
    """What the recorded operations of a cell say of it."""

    family = "Equilibrium"

    @torch.no_grad()
    def wellposed(self, X: Tensor, tier: str) -> Certificate:
        """q < 1, with R = 1/(1 − q), the constant k/(1 − q) of the equilibrium in x, and the error."""
        if tier == "rigorous":
            raise ValueError("the tier 'rigorous' knows no cell: its parts may be convolutions.")
        model = self.model
        frame: dict[str, Any] = {
            "theorem": "wellposed",
            "hypotheses": (FLOAT64_TIER, RECORDED, ROUNDED, *declared(model)),
            "tier": tier,
            "fingerprint": fingerprint(model, X),
        }
        altered_or_nan = altered(model) or not_finite(model, X)
        if altered_or_nan:
            return Certificate(claims=(), obstacle=altered_or_nan, **frame)
        reason, method, remedy = "the cell contracts in z", "the Lipschitz constants of its parts", _SMALLER
        x, error = exact_inputs(X), math.inf
        try:
            cell = RecordedCell(model)
            moved = cell.anywhere(x)
            q, follows = Interval(0.0, moved.with_z.hi), moved.with_x.hi
            if q.hi < 1:
                error = _error(cell, cell.solve(x), x)
        except Unknown as unknown:
            q, follows, remedy = Interval(0.0, math.inf), math.inf, unknown.what
        claim = Claim("‖∂cell/∂z‖ < 1", reason, q, "<", Interval(1.0), method, remedy=remedy)
        if not claim.holds:
            return Certificate(claims=(claim,), constants={"reason": claim.name}, **frame)
        R = 1 / (1 - q)
        constants: dict[str, float | str] = {"R": R.hi, "rate": q.hi, "reason": claim.name}
        lipschitz = (Interval(follows) * R).hi
        if math.isfinite(lipschitz):
            constants["lipschitz"] = lipschitz
        if math.isfinite(error):
            constants["error"] = error
        return Certificate(
            claims=(claim,),
            promise=(
                f"every input of this shape has exactly one equilibrium ({reason}); each step of plain "
                f"iteration brings the iterate nearer by a factor {q.hi:.6g}."
            ),
            constants=constants,
            **frame,
        )

    @torch.no_grad()
    def equilibrium_error(self, X: Tensor, Z: Tensor) -> float:
        """≥ ‖Z − Z*‖_F by (‖z − cell(z, x)‖ + e)/(1 − q), where the cell rounds by e."""
        if altered(self.model) or not_finite(self.model, X):
            return math.inf
        x = exact_inputs(X)
        try:
            cell = RecordedCell(self.model)
            check_shape(Z, tuple(cell.start(x).shape))
            return _error(cell, Z.detach().cpu().double(), x)
        except Unknown:
            return math.inf

    def bounds(self) -> Bounds:
        """An error that says what is missing: the constant depends on the shape of x."""
        raise TypeError(
            "the Lipschitz constant of a cell depends on the shape of its inputs: give one, as in "
            "lipschitz_bound(model, X)."
        )


def _error(cell: RecordedCell, Z: Tensor, x: Tensor) -> float:
    """≥ ‖Z − Z*‖_F; infinite where the rounding of a part is not known."""
    errors = [cell.errors(z, part) for z, part in zip(Z.split(AT_ONCE), x.split(AT_ONCE), strict=True)]
    every = torch.cat(errors)
    return frobenius(every).hi if bool(torch.isfinite(every).all()) else math.inf
