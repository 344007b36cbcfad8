"""A network, its data, and every number a theorem asks of them, each enclosed in an interval."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..linalg import Interval, SingularBounds, frobenius, gamma, one_norm_upper, singular_bounds
from ..models.affine import AffineFamily
from ..models.altered import altered, double
from ..solve import Newton, Stop
from .certificate import FLOAT64_TIER, fingerprint
from .enclosure import SVD, Enclosure, Equilibria, product_rounding
from .register import facts, unknown

if TYPE_CHECKING:
    from .facts import AffineFacts

T = TypeVar("T")

# Tight enough that the equilibrium's error is lost in the margins, loose enough for float64 to reach.
_TIGHT = Stop(rtol=1e-13, max_steps=5000)
_TIGHT_ENOUGH = Stop(rtol=1e-11, max_steps=100)


class Instance:
    """(model, X, y) in float64: the exact values of the stored numbers, whatever their dtype.

    Everything is computed when first asked for and kept.
    """

    tier: ClassVar[str] = "float64"
    arithmetic: ClassVar[str] = FLOAT64_TIER  # the hypothesis every bound rests on
    method: ClassVar[str] = SVD

    def __init__(self, model: AffineFamily, X: Tensor, y: Tensor | None = None) -> None:
        if not facts(model).affine:
            raise unknown(model)
        self.original, self.fingerprint = model, fingerprint(model, X, y)
        # One device throughout, where float64 exists.
        self.model = double(model, _home(model.readout_weight))
        self.facts: AffineFacts = facts(self.model)  # type: ignore[assignment]
        self._norms: dict[str, Interval] = {}
        self._kept: dict[str, Any] = {}
        self.X = self._inputs(X)
        self.y = None if y is None else self._targets(y)

    @cached_property
    def obstacle(self) -> str:
        """Why no theorem can speak of this at all; empty if one can."""
        return altered(self.original) or self.facts.obstacle or self._nonfinite() or self._overflow()

    def _inputs(self, X: Tensor) -> Tensor:
        d = self.model.inputs
        of_map = getattr(self.model, "feature_map", None) is not None  # which takes X of any shape, (N, …)
        if not isinstance(X, Tensor) or X.is_complex() or (not of_map and (X.ndim != 2 or X.shape[1] != d)):
            got = f"{X.dtype} of {tuple(X.shape)}" if isinstance(X, Tensor) else type(X).__name__
            raise ValueError(f"X must be a real tensor (N, {d}), one row for each sample. Got {got} instead.")
        if X.ndim == 0 or len(X) == 0:
            raise ValueError("X must have at least one row: a certificate is about data. Got none.")
        return X.detach().to(_home(X)).double().contiguous()  # the last bits may depend on the layout

    def _targets(self, y: Tensor) -> Tensor:
        if self.model.readout_bias is not None:
            raise ValueError(
                "a theorem about training needs ŷ = Z u, without an output bias. Got a model with "
                "output_bias=True: take one without, and subtract a constant from the targets."
            )
        N, k = len(self.X), self.model.outputs
        zero = torch.zeros(N, self.model.width, dtype=torch.float64, device=self.X.device)
        shape = tuple(self.model.readout(zero).shape)
        if not isinstance(y, Tensor) or y.is_complex() or tuple(y.shape) != shape:
            got = f"{y.dtype} of {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            hint = ""
            if isinstance(y, Tensor) and k == 1 and y.numel() == N:
                hint = " Try y[:, None]." if len(shape) == 2 else " Try y.reshape(-1)."
            raise ValueError(
                f"y must be a real tensor {shape} like the network's output. Got {got} instead.{hint}"
            )
        return y.detach().to(self.X.device).double().contiguous()

    def _nonfinite(self) -> str:
        named = [("X", self.X), ("y", self.y), *self.model.state_dict().items()]
        features = getattr(self.model, "feature_map", None)
        if features is not None:
            named.append(("feature_map(X)", features(self.X)))
        for name, value in named:
            if value is not None and not bool(torch.isfinite(value).all()):
                where = ""
                if name in ("X", "y", "feature_map(X)"):
                    bad = ~torch.isfinite(value).reshape(len(value), -1).all(dim=1)
                    where = f" in row {int(torch.nonzero(bad)[0])}"
                return f"{name} holds NaN or infinity{where}: nothing can be said of it."
        return ""

    def _overflow(self) -> str:
        at = self.enclosure
        for name, value in (("W(θ)", at.weight), ("u(X; θ)", at.injection)):
            if not bool(torch.isfinite(value).all()):
                return f"{name} overflows in float64: scale the parameters or the data down."
        return ""

    @property
    def N(self) -> int:
        """The number of samples."""
        return len(self.X)

    def keep(self, name: str, compute: Callable[[], T]) -> T:
        """A number of one theorem, computed when first asked for and kept."""
        if name not in self._kept:
            self._kept[name] = compute()
        return self._kept[name]

    # -- the arithmetic of the tier -------------------------------------------------------------------------

    def singular(self, M: Tensor) -> SingularBounds:
        """‖M‖ and σ_min(M)."""
        return singular_bounds(M)

    def frobenius(self, M: Tensor) -> Interval:
        """‖M‖_F."""
        return frobenius(M)

    def one_norm(self, M: Tensor) -> Interval:
        """‖M‖₁ = max_j Σ_i |M_ij|."""
        upper = one_norm_upper(M)
        return Interval((upper * (1 - Interval(gamma(4 * len(M) + 8)))).lo, upper)

    @cached_property
    def enclosure(self) -> Enclosure:
        """W and u in float64, and the reason for uniqueness."""
        with torch.no_grad():
            return self.facts.enclosure(self.X)

    def equilibria_of(self, Z: Tensor) -> Equilibria:
        """Z (N, m), offered as the equilibria of X, with its error."""
        return Equilibria(self.model, self.enclosure, Z)

    # -- weights and data -----------------------------------------------------------------------------------

    def norm(self, name: str) -> Interval:
        """‖θ‖ of one parameter: the operator norm of a matrix, the Euclidean of a vector."""
        if name not in self._norms:
            value = self.model.get_parameter(name)
            known = self.enclosure.norms.get(name)
            self._norms[name] = known or (
                self.frobenius(value) if value.ndim == 1 else self.singular(value).norm
            )
        return self._norms[name]

    @cached_property
    def X_frobenius(self) -> Interval:
        """‖X‖_F."""
        return self.frobenius(self.X)

    # -- equilibria -----------------------------------------------------------------------------------------

    @property
    def unique(self) -> bool:
        """Whether every input is proved to have one equilibrium."""
        return all(c.holds for c in self.enclosure.unique)

    @cached_property
    def equilibria(self) -> Equilibria:
        """The equilibria of X as near as float64 finds them, with their error."""
        solution = self.model.solve(self.X, stop=_TIGHT)
        if solution.failed_rows:
            solution = self.model.solve(
                self.X, stop=_TIGHT_ENOUGH, start=_finite(solution.value), solver=Newton()
            )
        return self.equilibria_of(_finite(solution.value))

    @property
    def Z(self) -> Tensor:
        """The computed equilibria, (N, m)."""
        return self.equilibria.Z

    @cached_property
    def sigma_N(self) -> Interval:
        """√λ_min(ZZᵀ): σ_min(Z) where the width allows N independent rows, 0 where m < N."""
        return self.equilibria.spectrum.sigma_min if self.model.width >= self.N else Interval(0.0)

    @cached_property
    def readout_norm(self) -> Interval:
        """‖a‖, the operator norm for k > 1 outputs."""
        return self.norm(self.model.readout_name)

    @cached_property
    def residual_norm(self) -> Interval:
        """‖r(0)‖ = ‖readout(Z*) − y‖ (Frobenius for k > 1)."""
        size = self._residual_of(self.Z)
        off = Interval.within((self.frobenius(self.model.readout_weight) * self.equilibria.error).hi)
        found = size + off
        return Interval(max(found.lo, 0.0), found.hi)

    def _residual_of(self, Z: Tensor) -> Interval:
        """‖readout(Z) − y‖_F of a computed Z."""
        if self.y is None:
            raise ValueError("y is required: this theorem is about a loss.")
        computed = self.model.readout(Z) - self.y
        rounding = product_rounding(Z, self.model.readout_weight)
        rounding += gamma(4) * (frobenius(self.y) + frobenius(computed))
        return frobenius(computed) + Interval.within(rounding.hi)


def _home(tensor: Tensor) -> torch.device:
    """Where the tensor is, or the CPU where its device has no float64."""
    return torch.device("cpu") if tensor.device.type == "mps" else tensor.device


def _finite(Z: object) -> Tensor:
    """Z with zeros where a solve overflowed; the error bound then says how far that is from the truth."""
    assert isinstance(Z, Tensor)
    return torch.where(torch.isfinite(Z), Z, 0.0)
