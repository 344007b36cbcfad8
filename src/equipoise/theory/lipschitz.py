"""How far outputs move with their inputs at most: the Lipschitz constants behind `robustness`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..linalg import (
    Interval,
    frobenius,
    gamma,
    lambda_min_lower,
    minimum,
    norm_upper,
    row_norms_upper,
    symmetric_part_margin_lower,
)
from ..models.affine import AffineFamily
from ..solve import RELU
from .enclosure import product_rounding
from .instance import Instance
from .verify.network import UnitNetwork, up

Part = tuple[Tensor, Interval, Interval]  # rows (k, ·), ≥ errors, ≥ Lipschitz constant of what they read
DOWN = 1 - 2.0**-48  # a few roundings of a subtraction and a quotient
_TRIALS = 4  # radii tried in the local form


def no_bounds(model: object) -> TypeError:
    """The error that says for which models Lipschitz bounds are known."""
    name = type(model).__name__
    return TypeError(f"Lipschitz bounds know the affine families, OptEq and ConvOptEq. Got {name} instead.")


class RowScores(NamedTuple):
    """Outputs of rows, each row times a positive number s: order and signs are those of the outputs."""

    values: Tensor  # (N, k)
    error: float | Tensor  # ≥ that of a value, and of a difference of two in a row; of each row, (N,)
    scale: float | Tensor = 1.0  # ≥ s, for all rows or for each of them
    excess: float = 0.0  # ≥ scale/s − 1


class Bounds:
    """Lipschitz constants of outputs, from that of the state and the readout's columns."""

    a: Tensor  # (m, k)
    obstacle: str  # why nothing is proved; empty if something is
    believed: tuple[str, ...] = ()  # what the bounds rest on besides the arithmetic
    local: ClassVar[bool] = False  # whether `sharpened` is known

    def checked(self, X: Tensor) -> tuple[Any, str]:
        """X as `scores` takes it, and why nothing can be said of it; a ValueError if it is no input."""
        raise NotImplementedError

    def scores(self, points: Any) -> RowScores:
        """The outputs, or what has their order and signs."""
        raise NotImplementedError

    def sharpened(self, points: Any, prediction: Tensor, margins: Tensor, radius: Tensor) -> Tensor:
        """Radii by bounds on the units that can be active near each row."""
        raise NotImplementedError

    def output_bound(self) -> float:
        """≥ the Lipschitz constant of x ↦ ŷ(x)."""
        if self.obstacle:
            return math.inf
        return (Interval(norm_upper(self.a)) * self.state_bound()).hi

    def pair_bounds(self, units: Tensor | None = None) -> Tensor:
        """≥ the Lipschitz constants of ŷ_p − ŷ_q, (k, k), on all units or on those of a mask."""
        if self.obstacle:
            k = self.a.shape[1]
            infinite = torch.full((k, k), math.inf, dtype=torch.float64, device=self.a.device)
            return infinite.fill_diagonal_(0.0)
        return pairs(self.parts(units))

    def score_bounds(self) -> Tensor:
        """(k, k), or (1, 1): the Lipschitz constants of what decides between two classes, or on a sign."""
        return self.pair_bounds() if self.a.shape[1] > 1 else self.a.new_tensor([[self.output_bound()]])

    def parts(self, units: Tensor | None) -> list[Part]:
        """The readout (k, m) with its error, and the Lipschitz constant of the state that it reads."""
        a = self.a.T if units is None else self.a.T[:, units]
        return [(a, Interval(0.0), Interval(self.state_bound(units)))]

    def state_bound(self, units: Tensor | None = None) -> float:
        """≥ the Lipschitz constant of x ↦ z(x), or of z_S where the active set stays within S."""
        raise NotImplementedError


class AffineBounds(Bounds):
    """The weights of an affine family in float64, as the bounds need them."""

    local = True

    def __init__(self, model: AffineFamily) -> None:
        if getattr(model, "feature_map", None) is not None:
            raise ValueError(
                "a Lipschitz bound in x needs φ(x) = x: nothing is known of a feature_map. "
                "Give the features themselves as inputs to a model without one."
            )
        at = Instance(model, model.readout_weight.new_zeros(1, model.inputs))
        self.original, self.model, self.facts = model, at.model, at.facts
        self.believed = at.facts.rests_on
        self.obstacle = at.obstacle
        self.enclosure = None if at.obstacle else at.enclosure
        failed = [c for c in self.enclosure.unique if not c.holds] if self.enclosure else []
        if failed:
            self.obstacle = f"uniqueness of the equilibrium is not proved: {failed[0]}"
        self.a = at.model.readout_weight.reshape(at.model.width, at.model.outputs)  # (m, k)

    @cached_property
    def predictor(self) -> tuple[Tensor, Interval] | None:
        """M (k, m) and its error where ŷ = Mx; None where outputs are not linear, or nothing is proved."""
        return None if self.obstacle or self.enclosure is None else self.facts.predictor(self.enclosure)

    def output_bound(self) -> float:
        """‖M‖ itself where outputs are linear, else ‖a‖R‖u'‖."""
        if self.predictor is None:
            return self.row_bound() if self.a.shape[1] == 1 and not self.obstacle else super().output_bound()
        M, error = self.predictor
        return (Interval(norm_upper(M)) + error).hi

    def parts(self, units: Tensor | None) -> list[Part]:
        """M where outputs are linear, else the readout with the state's constant."""
        return super().parts(units) if self.predictor is None else [(*self.predictor, Interval(1.0))]

    def pair_bounds(self, units: Tensor | None = None) -> Tensor:
        """(k, k), the better of ‖a_p − a_q‖R‖u'‖ and the ellipsoid's."""
        known = super().pair_bounds(units)
        p, q = torch.triu_indices(len(known), len(known), offset=1, device=known.device)
        better = self._by_ellipsoid((self.a[:, p] - self.a[:, q]).T, units)
        if better is not None:
            known[p, q] = known[q, p] = torch.minimum(known[p, q], better)
        return known

    def row_bound(self, units: Tensor | None = None) -> float:
        """≥ the Lipschitz constant of one output, ŷ = a·z, on all units or on those of a mask."""
        better = self._by_ellipsoid(self.a.T, units)
        inside = self.a if units is None else self.a[units]
        plain = (Interval(norm_upper(inside)) * self.state_bound(units)).hi if inside.numel() else 0.0
        return plain if better is None else min(plain, float(better[0]))

    def _by_ellipsoid(self, rows: Tensor, units: Tensor | None) -> Tensor | None:
        """≥ the Lipschitz constants of v·z for rows v (P, m); None where u(x) is not known to be affine."""
        at, net = self.enclosure, self.affine
        if at is None or net is None or self.predictor is not None or not len(rows):
            return None
        if units is None:
            return ellipsoid_bounds(at.weight, at.weight_error, net.inputs, rows)
        inside = at.weight[units][:, units], at.weight_error, net.inputs[units], rows[:, units]
        return ellipsoid_bounds(*inside) if bool(units.any()) else rows.new_zeros(len(rows))

    @cached_property
    def affine(self) -> UnitNetwork | None:
        """The units, if they are the entries of z itself; otherwise None."""
        try:
            net = None if self.obstacle else self.facts.units(self)
        except TypeError:  # a family of a user's own that does not name its units
            return None
        return net if net is not None and net.width == self.model.width else None

    def state_bound(self, units: Tensor | None = None) -> float:
        """R‖u'‖, on all units or on those of a mask."""
        if self.obstacle:
            return math.inf
        return (self.resolvent(units) * self._injection(units)).hi

    def resolvent(self, units: Tensor | None = None) -> Interval:
        """R = 1/λ_min(sym(I − W_SS)), or what the family's reason gives where that is better."""
        at = self.enclosure
        assert at is not None
        W = at.weight if units is None else at.weight[units][:, units]
        if len(W) == 0:
            return Interval(0.0)
        margin = Interval(symmetric_part_margin_lower(W)) - at.weight_error
        known = Interval(at.resolvent.hi)
        return minimum(known, 1 / Interval(margin.lo)) if margin.lo > 0 else known

    def units(self, U: Tensor, offset: Tensor | None = None) -> UnitNetwork:
        """p = W z + U x + u, z = σ(p), ŷ = z a + c, of exact U (m, d) and u (m,)."""
        at, model = self.enclosure, self.model
        assert at is not None
        shift = model.readout_bias
        return UnitNetwork(
            weight=at.weight.detach(),
            weight_error=at.weight_error,
            inputs=U.detach().contiguous(),
            offset=U.new_zeros(len(U)) if offset is None else offset.detach(),
            readout=self.a.detach().T.contiguous(),
            readout_error=0.0,
            shift=self.a.new_zeros(self.a.shape[1]) if shift is None else shift.detach(),
            resolvent=self.resolvent().hi,
            activation=model.activation,
        )

    def _injection(self, units: Tensor | None) -> Interval:
        """≥ ‖u'‖."""
        U = self.facts.input_map()
        U = U if units is None else U[units]
        return Interval(norm_upper(U)) if U.numel() else Interval(0.0)

    # -- radii -----------------------------------------------------------------------------------------------

    def checked(self, X: Tensor) -> tuple[Instance, str]:
        """The instance of X, and why nothing can be said of it."""
        instance = Instance(self.original, X)
        return instance, instance.obstacle or self.obstacle

    def scores(self, points: Instance) -> RowScores:
        """ŷ = Za, or Za + c, at the computed equilibria."""
        error = score_error(points.Z, points.equilibria.error, self.a, points.model.readout_bias)
        return RowScores(points.model.readout(points.Z).reshape(points.N, -1), error)

    def sharpened(self, points: Instance, prediction: Tensor, margins: Tensor, radius: Tensor) -> Tensor:
        """max over trial radii t of min(t, margin / L(t)), L(t) on the units that can be active within t."""
        if self.model.activation != RELU:
            return radius  # no unit is off; of a linear family the global bound is exact
        radius = radius.clone()
        off, speed = self._off_units(points)
        for row in torch.nonzero(torch.isfinite(radius) & (radius > 0)).flatten().tolist():
            for trial in _trials(float(radius[row])):
                units = ~(off[row] > speed * (trial * (1 + 2.0**-40)))
                if bool(units.all()):
                    break
                if self.a.shape[1] > 1:
                    bounds = self.pair_bounds(units)[prediction[row]]
                    bounds[prediction[row]] = 1.0  # its margin is infinite
                else:
                    bounds = margins.new_tensor([self.row_bound(units)])
                reach = float((margins[row] / bounds).amin()) * DOWN
                radius[row] = max(float(radius[row]), min(trial, reach))
                if reach < trial:
                    break
        return radius

    def _off_units(self, points: Instance) -> tuple[Tensor, Tensor]:
        """How far below zero every pre-activation is at least, (N, m), and how fast it may rise, (m,)."""
        at = points.enclosure
        W, u, Z = at.weight, at.injection, points.Z
        P = torch.addmm(u, Z, W.T)
        off = Interval(at.weight_norm.hi) * points.equilibria.error + frobenius(Z) * at.weight_error
        off += (
            at.injection_error + product_rounding(Z, W.T) + gamma(len(W) + 4) * (frobenius(u) + frobenius(P))
        )
        U = self.facts.input_map()
        up = 1 + 2.0**-40
        follow = (Interval(self.state_bound()) * up).hi
        speed = (row_norms_upper(W) + at.weight_error) * up * follow + row_norms_upper(U)
        return (-P - off.hi) * DOWN - 2.0**-1000, speed * up


def _trials(radius: float) -> Iterator[float]:
    for i in range(_TRIALS):
        yield radius * 1.5 ** (i + 1)


def score_error(Z: Tensor, error: float, a: Tensor, shift: Tensor | None = None) -> float:
    """≥ the error of a difference of two computed scores Za + c in a row, with Z off by at most `error`."""
    largest, columns = (Interval(row_norms_upper(M).amax().item()) for M in (Z, a.T))
    c = 0.0 if shift is None else shift.abs().amax().item()
    one = columns * error + gamma(len(a) + 6) * (largest * columns + c)
    return (2 * one + 2.0**-1000).hi


def above(sums: Tensor) -> Tensor:
    """≥ sums of products, with their rounding and what products lose where they are subnormal."""
    return sums * (1 + 2.0**-48) + 2.0**-1000


def joint(parts: list[Part]) -> float:
    """≥ Σ ‖rows‖ gain."""
    sizes = (gain * (Interval(norm_upper(rows)) + error) for rows, error, gain in parts)
    return sum(sizes, Interval(0.0)).hi


def pairs(parts: list[Part]) -> Tensor:
    """(k, k): ≥ Σ ‖row_p − row_q‖ gain."""
    k = len(parts[0][0])
    bounds = parts[0][0].new_zeros(k, k)
    for p in range(k):
        for q in range(p):
            sizes = (gain * (_distance(rows[p], rows[q]) + 2 * error) for rows, error, gain in parts)
            bounds[p, q] = bounds[q, p] = sum(sizes, Interval(0.0)).hi
    return bounds


def _distance(p: Tensor, q: Tensor) -> Interval:
    """‖p − q‖ of two exact vectors."""
    return frobenius(p - q) * (1 + gamma(2))


# -- one linear form of the state, by the ellipsoid of its moves ---------------------------------------------


@torch.no_grad()
def ellipsoid_bounds(W: Tensor, error: float, U: Tensor, rows: Tensor) -> Tensor:
    """(P,): ≥ the Lipschitz constants of v·z for rows v (P, n), each of whose entries was rounded once.

    v·z moves by at most ½(‖UᵀS⁻¹v‖ + ‖S^{−½}v‖‖S^{−½}U‖)‖x − x'‖ with S = sym(I − W). Two equilibria of
    p = W z + U x + u, z = σ(p), σ non-decreasing with slopes up to 1, differ by a δ with δ·Sδ ≤ δ·U(x − x').
    That is an ellipsoid with its centre at ½S⁻¹U(x − x'), and v·δ is largest on its border. Since S ⪰ μI it
    is never above ‖v‖‖U‖/μ, and far below where S is no multiple of I, as in trained networks.

    W (n, n) is within `error` of the exact weight in the Frobenius norm, and U (n, d) is exact. Whatever y is
    taken for S⁻¹v, with r = v − Sy,

        v·S⁻¹v ≤ v·y + ‖y‖‖r‖ + ‖r‖²/μ,    ‖UᵀS⁻¹v‖ ≤ ‖Uᵀy‖ + ‖U‖‖r‖/μ,

    and ‖S^{−½}U‖² ≤ t + s/μ where tS − UUᵀ ⪰ −sI: no factorisation is trusted.
    """
    infinite = torch.full_like(rows[:, 0], math.inf)
    n, wide = len(W), Interval(norm_upper(U)) if U.numel() else Interval(0.0)
    S = torch.eye(n, dtype=W.dtype, device=W.device) - (W + W.T) / 2
    off = error + gamma(4) * (frobenius(W) + math.sqrt(n) * (1 + 2.0**-50))  # ≥ ‖S − S exact‖_F
    margin = (Interval(lambda_min_lower(S)) - off).lo
    L, info = torch.linalg.cholesky_ex(S)
    if not margin > 0 or int(info) or not math.isfinite(margin):
        return infinite
    steep = _squared_norm(S, off, U, L, margin)
    y = torch.cholesky_solve(rows.T, L).T
    long, size = up(row_norms_upper(y)), up(row_norms_upper(rows))
    rest = up(row_norms_upper(rows - y @ S))
    rest = up(rest + up(gamma(n + 6) * up(size + long * frobenius(S).hi)) + long * off.hi)
    square = up(((rows * y).sum(dim=1) + gamma(n + 4) * size * long).clamp_min(0.0))
    square = up(square + up(long * rest) + up(rest.square() / margin))
    straight = up(row_norms_upper(y @ U) + gamma(n + 4) * long * frobenius(U).hi)
    straight = up(straight + up(rest * (wide / margin).hi))
    bound = up((straight + up(square.sqrt() * Interval(steep).sqrt().hi)) / 2)
    bound = up(bound + 2.0**-52 * up(size * (wide / margin).hi))  # the entries of v were rounded
    return torch.where(torch.isfinite(bound), bound, infinite)


def _squared_norm(S: Tensor, off: Interval, U: Tensor, L: Tensor, margin: float) -> float:
    """≥ ‖S^{−½}U‖²."""
    G = U @ U.T
    inner = torch.linalg.solve_triangular(L, U, upper=False)
    if not bool(torch.isfinite(inner).all()):
        return math.inf
    size = float(torch.linalg.matrix_norm(inner, 2)) if U.numel() else 0.0
    t = size * size * (1 + 2.0**-40)
    if not math.isfinite(t):
        return math.inf
    rounded = product_rounding(U, U.T) + gamma(4) * (t * frobenius(S) + frobenius(G)) + t * off
    below = (Interval(lambda_min_lower(t * S - G)) - rounded - 2.0**-1000).lo
    return (Interval(t) + Interval(max(-below, 0.0)) / margin).hi
