"""|σ_i(Z) − σ_i(Z_w)| ≤ ‖Z − Z_w‖_F: sound bounds of moving weights and equilibria, mostly without an SVD.

A witness Z_w with proved bounds serves every Z near it at the cost of one difference. Only if that does not
suffice is it renewed, by Cholesky factors of a Gram matrix, and by an SVD only where these are blind.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..linalg import (
    Interval,
    SingularBounds,
    SpectralWitness,
    frobenius,
    gram_bounds,
    norm_upper,
    singular_bounds,
    symmetric_part_margin_lower,
)
from .enclosure import widened

_BLIND = 1e-6  # of ‖Z‖: singular values below about √u‖Z‖ are lost in a Gram matrix
_STALE = 0.25  # of λ_min(sym(I − W)): how far W may drift before it is bounded afresh


class FeatureWatch:
    """σ_min(Z) ≥ floor and ‖Z‖ ≤ ceiling, of equilibria known within an error."""

    def __init__(self, Z: Tensor, bounds: SingularBounds, floor: float, ceiling: float) -> None:
        self.witness = SpectralWitness(Z, bounds)
        self.floor, self.ceiling = floor, ceiling
        self.renewals = self.svds = 0

    def bounds(self, Z: Tensor, error: float) -> SingularBounds:
        """Bounds of the true equilibria, from the witness at hand."""
        return widened(self.witness.bounds(Z), error)

    def admits(self, Z: Tensor, error: float) -> bool:
        """Whether both are proved of every Z* with ‖Z − Z*‖_F ≤ error, renewing the witness if need be."""
        found = self.bounds(Z, error)
        if self._inside(found):
            return True
        if not math.isfinite(error) or found.sigma_min.hi < self.floor or found.norm.lo > self.ceiling:
            return False  # refuted: no better witness can help
        self.renewals += 1
        renewed = SpectralWitness(Z, gram_bounds(Z))
        if not self._inside(widened(renewed.at_matrix, error)):
            if not self.floor < _BLIND * renewed.at_matrix.norm.hi:
                return False
            self.svds += 1
            renewed = SpectralWitness(Z, singular_bounds(Z))
            if not self._inside(widened(renewed.at_matrix, error)):
                return False
        self.witness = renewed
        return True

    def _inside(self, found: SingularBounds) -> bool:
        enough = self.floor <= 0 or found.sigma_min.lo >= self.floor
        return enough and found.norm.hi <= self.ceiling


class WeightWatch:
    """‖W‖ ≤ ‖W_w‖ + ‖W − W_w‖_F and λ_min(sym(I − W)) ≥ λ_min(sym(I − W_w)) − ‖W − W_w‖_F."""

    def __init__(self) -> None:
        self.witness: SpectralWitness | None = None
        self.renewals = 0
        self._margin: tuple[SpectralWitness, float] | None = None  # of a witness, once computed

    def norm(self, W: Tensor) -> Interval:
        """‖W‖, renewed when W has drifted by more than a small part of the margin."""
        if self.witness is not None:
            found, known = self.witness.bounds(W).norm, self.witness.at_matrix.norm
            if found.hi - known.hi <= _STALE * max(1 - known.hi, self._at_witness()):
                return found
        self.renewals += 1
        bounds = SingularBounds(norm=Interval(0.0, norm_upper(W)), sigma_min=Interval(0.0, math.inf))
        self.witness = SpectralWitness(W, bounds)
        return bounds.norm

    def margin(self, W: Tensor) -> float:
        """≤ λ_min(sym(I − W)), from the witness that `norm` left."""
        assert self.witness is not None
        drift = frobenius(W - self.witness.matrix) * (1 + 2.0**-50)
        return (Interval(self._at_witness()) - drift).lo

    def _at_witness(self) -> float:
        assert self.witness is not None
        if self._margin is None or self._margin[0] is not self.witness:
            self._margin = self.witness, symmetric_part_margin_lower(self.witness.matrix)
        return self._margin[1]
