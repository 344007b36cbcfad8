"""How far outputs move with their inputs at most: the Lipschitz constants behind `robustness`, by family."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..linalg import Interval, frobenius, gamma, minimum, norm_upper, symmetric_part_margin_lower
from ..models.affine import AffineFamily
from ..models.conv import ConvOptEq
from ..models.conv.parts import PixelHead
from ..models.linear import LinearEquilibrium
from ..models.scaled_relu import ScaledReLU
from .conv_robustness import ConvNetwork, Part
from .enclosure import product_rounding
from .instance import Instance
from .opteq import is_opteq
from .opteq_robustness import OptEqNetwork


def bounds_of(model: nn.Module) -> AffineBounds | OptEqBounds | ConvBounds:
    """The bounds of a model's family."""
    if isinstance(model, ConvOptEq):
        return ConvBounds(model)
    return OptEqBounds(model) if is_opteq(model) else AffineBounds(model)  # type: ignore[arg-type]


class Bounds:
    """Lipschitz constants of outputs, from that of the state and the readout's columns."""

    a: Tensor  # (m, k)
    obstacle: str

    def output_bound(self) -> float:
        if self.obstacle:
            return math.inf
        return (Interval(norm_upper(self.a)) * self.state_bound()).hi

    def pair_bounds(self, units: Tensor | None = None) -> Tensor:
        """(k, k), on all units or on those of a mask."""
        if self.obstacle:
            k = self.a.shape[1]
            infinite = torch.full((k, k), math.inf, dtype=torch.float64, device=self.a.device)
            return infinite.fill_diagonal_(0.0)
        return _pairs(self.parts(units))

    def score_bounds(self) -> Tensor:
        """(k, k), or (1, 1): the Lipschitz constants of what decides between two classes, or on a sign."""
        return self.pair_bounds() if self.a.shape[1] > 1 else self.a.new_tensor([[self.output_bound()]])

    def parts(self, units: Tensor | None) -> list[Part]:
        """What makes the outputs of the state, (k, m), its error, and the state's Lipschitz constant."""
        a = self.a.T if units is None else self.a.T[:, units]
        return [(a, Interval(0.0), Interval(self.state_bound(units)))]

    def state_bound(self, units: Tensor | None = None) -> float:
        """≥ the Lipschitz constant of x ↦ z(x), or of z_S where the active set stays within S."""
        raise NotImplementedError


class OptEqBounds(Bounds, OptEqNetwork):
    """Of an OptEq, on all units."""

    def state_bound(self, units: Tensor | None = None) -> float:
        return OptEqNetwork.state_bound(self)


class ConvBounds(Bounds, ConvNetwork):
    """Of a ConvOptEq."""

    def output_bound(self) -> float:
        if self.obstacle:
            return math.inf
        return _joint(self.outputs())

    def parts(self, units: Tensor | None) -> list[Part]:
        return self.outputs()

    def score_bounds(self) -> Tensor:
        if not self.head.normalised:
            return super().score_bounds()
        v, linear = self.head.v, self.undivided()  # of Vc + sv
        slope = (self.state * self.head.slope).hi
        if len(v) == 1:
            return _above(v.new_tensor([[_joint(linear)]]) + v.abs() * slope)
        return _above(_pairs(linear) + (v[:, None] - v).abs() * slope).fill_diagonal_(0.0)

    def checked(self, X: Tensor) -> Tensor:
        if isinstance(self.model.head, PixelHead):
            raise ValueError(
                "a radius is about the one class of an image. Got task='segmentation' instead, a class for "
                "every pixel: lipschitz_bound says how far all outputs move together."
            )
        return ConvNetwork.checked(self, X)


class AffineBounds(Bounds):
    """The weights of an affine family in float64, as the bounds need them."""

    def __init__(self, model: AffineFamily) -> None:
        if getattr(model, "feature_map", None) is not None:
            raise ValueError(
                "a Lipschitz bound in x needs φ(x) = x: nothing is known of a feature_map. "
                "Give the features themselves as inputs to a model without one."
            )
        if not isinstance(model, AffineFamily):
            raise TypeError(
                f"Lipschitz bounds know the affine families, OptEq and ConvOptEq. Got "
                f"{type(model).__name__} instead."
            )
        at = Instance(model, model.readout_weight.new_zeros(1, model.inputs))
        self.obstacle = at.obstacle
        self.model, self.enclosure = at.model, None if at.obstacle else at.enclosure
        failed = [c for c in self.enclosure.unique if not c.holds] if self.enclosure else []
        if failed:
            self.obstacle = f"uniqueness of the equilibrium is not proved: {failed[0]}"
        self.a = at.model.readout_weight.reshape(at.model.width, at.model.outputs)  # (m, k)

    @property
    def linear(self) -> bool:
        return isinstance(self.model, LinearEquilibrium)

    def output_bound(self) -> float:
        if self.obstacle or not self.linear:
            return super().output_bound()
        M, error = self._predictor()
        return (Interval(norm_upper(M)) + error).hi

    def parts(self, units: Tensor | None) -> list[Part]:
        return [(*self._predictor(), Interval(1.0))] if self.linear else super().parts(units)

    def state_bound(self, units: Tensor | None = None) -> float:
        if self.obstacle:
            return math.inf
        return (self._resolvent(units) * self._injection(units)).hi

    def _resolvent(self, units: Tensor | None) -> Interval:
        """R = 1/λ_min(sym(I − W_SS)), or what the family's reason gives where that is better."""
        at = self.enclosure
        assert at is not None
        W = at.weight if units is None else at.weight[units][:, units]
        if len(W) == 0:
            return Interval(0.0)
        margin = Interval(symmetric_part_margin_lower(W)) - at.weight_error
        known = Interval(at.resolvent.hi)
        return minimum(known, 1 / Interval(margin.lo)) if margin.lo > 0 else known

    def _injection(self, units: Tensor | None) -> Interval:
        """‖u'‖: u = Ux (+ bias), or relu(Wᵀx), which moves no further than Wᵀx."""
        U = self.injection_weight
        U = U if units is None else U[units]
        return Interval(norm_upper(U)) if U.numel() else Interval(0.0)

    @property
    def injection_weight(self) -> Tensor:
        """(m, d)."""
        return self.model.W.T if isinstance(self.model, ScaledReLU) else self.model.U  # type: ignore[return-value]

    def _predictor(self) -> tuple[Tensor, Interval]:
        """M ≈ B Umat⁻¹ (k, m), and a bound of the error: (M Umat − B) Umat⁻¹."""
        at = self.enclosure
        assert at is not None
        assert isinstance(self.model, LinearEquilibrium)
        B, W = self.model.B, at.weight
        M = self.model.predictor()
        size = frobenius(M)
        rest = frobenius(M - M @ W - B) + size * at.weight_error + product_rounding(M, W)
        rest += gamma(4) * (size + frobenius(M @ W) + frobenius(B))
        return M, Interval(0.0, (rest * at.resolvent).hi)


def _above(sums: Tensor) -> Tensor:
    """≥ sums of products, with their rounding and what products lose where they are subnormal."""
    return sums * (1 + 2.0**-48) + 2.0**-1000


def _joint(parts: list[Part]) -> float:
    """≥ Σ ‖rows‖ gain."""
    sizes = (gain * (Interval(norm_upper(rows)) + error) for rows, error, gain in parts)
    return sum(sizes, Interval(0.0)).hi


def _pairs(parts: list[Part]) -> Tensor:
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
