"""F(h_k, a_k) ≤ F*(h₀) + gap, whatever trained the network: never worse than the best readout of its start.

    F(h, a) = Σ_i w_i ℓ(φ_i(h) a, y_i) + (λ/2)‖a‖² + (κ/2)‖h‖²,    F*(h) = min over a

Before training the readout is solved for at h₀, and F*(h₀) is enclosed: for every ã,
F(h₀, ã) − ‖∇_a F(h₀, ã)‖²/(2λ) ≤ F*(h₀) ≤ F(h₀, a₀). A `Trainer` that is given the certificate may then use
any optimiser. At a checkpoint it keeps what it reached only if sound bounds show that every input has one
equilibrium and that F did not rise; otherwise it goes back. So F falls, from F(h₀, a₀) on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..linalg import Interval
from .anchored_objective import EnclosedLoss, Objective, SampleRows, Terms
from .certificate import FLOAT64_TIER, Certificate, fingerprint
from .claim import Claims
from .convex_losses import CONVEX, TRUSTED, convex_loss
from .instance import Instance
from .read_features import ReadFeatures
from .readout_solver import HeldFeatures, solve_readout
from .register import facts
from .shards import largest, whole

CHECKED = (
    "what training reached is kept only where sound bounds show that every input has one equilibrium and "
    "that F did not rise, as a Trainer that is given this certificate checks it"
)
TIGHT = 1e-9  # tolerance of the solves where a small gap is measured
_SMALL = 512  # up to so many rows a small gap costs next to nothing
_CARE = 5e-3  # divided by the number of rows: the tolerance of the solves for many rows
_START, _END = 1e-3, 1e-6  # the gaps, as shares of F, that are solved for with many rows at first, and else


@dataclass(frozen=True)
class Anchored:
    """F(h_k, a_k) ≤ F*(h₀) + gap at every checkpoint of a run, F(h, a) = Σ w ℓ + (λ/2)‖a‖² + (κ/2)‖h‖².

    Args:
        loss: "half_square", "square", "cross_entropy", "logistic" or "smoothed_hinge"; by default the cross
            entropy where y are integers, else "half_square".
        ridge: λ > 0, of the sum over samples.
        decay: κ ≥ 0. With κ > 0 the promise is about F with the weight decay of the hidden parameters: the
            loss of the data may grow by as much as the decay falls.
        gap: how far above F*(h₀) the start may be, as a share of F(h₀, 0).
        sample_weight: w ≥ 0, one number for each sample; ones by default.
    """

    loss: str | None = None
    ridge: float = 1.0
    decay: float = 0.0
    gap: float = 1e-3
    sample_weight: Any = None

    name: ClassVar[str] = "anchored"
    needs_targets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.loss is not None:
            object.__setattr__(self, "loss", convex_loss(self.loss).name)
        for name, least in (("ridge", False), ("gap", False), ("decay", True)):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and (0 < value < math.inf or (least and value == 0))):
                kind = "≥ 0" if least else "> 0"
                raise ValueError(f"{name} must be a finite number {kind}. Got {value!r} instead.")
        if self.sample_weight is not None:
            w = torch.as_tensor(self.sample_weight, dtype=torch.float64).detach().cpu()
            if w.ndim != 1 or not bool((torch.isfinite(w) & (w >= 0)).all()) or not bool(w.any()):
                raise ValueError("sample_weight must be (N,), finite, ≥ 0 and not all zero.")
            object.__setattr__(self, "sample_weight", tuple(w.tolist()))

    def prove(self, instance: Instance) -> Certificate:
        """The verdict on the model of an instance."""
        assert instance.y is not None
        return self.prove_of(instance.original, instance.X, instance.y)

    def terms(self, y: Any) -> Terms:
        """The terms of F, with the loss that y suggests if none is given."""
        whole = not torch.as_tensor(y[:1]).is_floating_point()
        name = self.loss or ("cross_entropy" if whole else "half_square")
        w = None if self.sample_weight is None else torch.tensor(self.sample_weight, dtype=torch.float64)
        return Terms(CONVEX[name], float(self.ridge), float(self.decay), w)

    def prove_of(self, model: nn.Module, X: Any, y: Any) -> Certificate:
        """The verdict on a model of any family whose facts say what its readout reads."""
        reads = facts(model).reads()
        terms = self.terms(y)
        frame: dict[str, Any] = {
            "theorem": self.name,
            "kind": "anchored",
            "loss": terms.loss.name,
            "hypotheses": (CHECKED, FLOAT64_TIER, TRUSTED, *reads.hypotheses),
            "options": self._options(),
            "fingerprint": fingerprint(model, X, y),
        }
        claims = Claims(list(reads.claims))
        if obstacle := reads.obstacle or _not_finite(X, y):
            return Certificate(claims=(), obstacle=obstacle, **frame)
        if not reads.unique:
            return Certificate(claims=tuple(claims.items), **frame)
        found = Anchor.of(reads, SampleRows(X, y, terms, outputs_of(reads)), self.gap)
        allowed = found.lower + Interval(self.gap) * found.zero.lo
        claims.need(
            "(A1)",
            found.F.hi,
            "<=",
            allowed.lo,
            f"the readout of the start is the best one, to {self.gap:g} of F without a readout",
            method="strong convexity and the enclosed gradient, rounded outward",
            remedy="a larger ridge, a larger gap=, or inputs scaled to unit variance",
        )
        certificate = Certificate(
            claims=tuple(claims.items),
            factor=min((found.F / Interval(found.zero.lo)).hi, 1.0) if found.zero.lo > 0 else 1.0,
            constants=self._constants(found, reads, terms),
            promise=found.words(terms, whole(X)),
            **frame,
        )
        object.__setattr__(certificate, "_witness", found)
        return certificate

    def _options(self) -> dict[str, Any]:
        named = {"loss": self.loss, "ridge": float(self.ridge), "decay": float(self.decay), "gap": self.gap}
        if self.sample_weight is not None:
            named["sample_weight"] = self.sample_weight
        return {name: value for name, value in named.items() if value is not None}

    def _constants(self, found: Anchor, reads: ReadFeatures, terms: Terms) -> dict[str, Any]:
        return {
            "loss": terms.loss.name,
            "beta": terms.loss.smoothness,
            "F_zero": found.zero.hi,  # F(h₀, 0)
            "F_start": found.F.hi,  # ≥ F(h₀, a₀)
            "F_least": found.lower,  # ≤ F*(h₀)
            "data_start": found.data.hi,  # ≥ Σ w ℓ at (h₀, a₀)
            "rho": found.decay.hi,  # (κ/2)‖h₀‖²
            "R": reads.resolvent,
            "error": found.error,
        }


@dataclass(frozen=True, eq=False)
class Anchor:
    """The start that a run is held to: a₀ as the model stores it, and what is proved of F there."""

    a: Tensor
    F: Interval  # F(h₀, a₀)
    data: Interval
    lower: float  # ≤ F*(h₀)
    zero: Interval  # F(h₀, 0)
    decay: Interval
    error: float
    work: int = field(default=0)

    @staticmethod
    def of(reads: ReadFeatures, rows: SampleRows, gap: float = 0.0) -> Anchor:
        """Solve for the readout of the present features, and enclose F there.

        With many rows a gap of this share of F(h, 0) is tried first, from features that are no more precise
        than that takes. Their errors add to the gap a part that grows with the square of the number of rows.
        """
        objective = Objective(reads, rows)
        if rows.whole > _SMALL:
            found = Anchor.on(HeldFeatures(objective, max(TIGHT, _CARE / rows.whole)), tolerance=_START)
            if found.gap <= gap * found.zero.lo:
                return found
        return Anchor.on(HeldFeatures(objective, TIGHT))

    @staticmethod
    def on(held: HeldFeatures, start: Tensor | None = None, tolerance: float = _END) -> Anchor:
        """The same with features that are held; `start` is where the solve for the readout begins."""
        objective = held.objective
        zero = torch.zeros_like(objective.readout.stored())
        free = solve_readout(held, (zero if start is None else start).cpu(), tolerance)
        a = objective.readout.rounded(free)
        if not bool(torch.isfinite(a).all()):
            a = zero.cpu()
        stored, exact = objective.enclosed(held.blocks(), [a, free], gradient=True)
        lower = max((exact.F - exact.gap(objective.terms.ridge)).lo, 0.0)
        without = objective.at_zero()
        if not stored.F.hi <= without.lo:  # not proved better than no readout, whose F needs no features
            a, stored = zero.cpu(), EnclosedLoss(without, without - objective.decay)
        return Anchor(
            a=a,
            F=stored.F,
            data=stored.data,
            lower=min(lower, stored.F.hi),
            zero=without,
            decay=objective.decay,
            error=largest(held.error)[0] if objective.rows.shared else held.error,
            work=objective.work,
        )

    @property
    def gap(self) -> float:
        """≥ F(h, a) − F*(h)."""
        return (Interval(self.F.hi) - self.lower).hi

    def words(self, terms: Terms, N: int) -> str:
        """The promise in words."""
        of = f"the {terms.loss.name} loss of all {N} rows plus ½·{terms.ridge:g}‖a‖²"
        of += f" plus ½·{terms.decay:g}‖h‖²" if terms.decay else ""
        return (
            f"F, {of}, never ends above {self.F.hi:.6g}, that of the best readout of the features at the "
            f"start (without a readout it is {self.zero.hi:.6g}); what is kept of the training only lowers "
            f"it, and every input has one equilibrium throughout."
        )


def outputs_of(reads: ReadFeatures) -> int:
    """k."""
    return reads.readout_of(reads.model).weight.shape[1]


def _not_finite(X: Any, y: Any) -> str:
    """The data that are NaN or infinite, by their row; empty if none are."""
    for name, value in (("X", X), ("y", y)):
        for i in range(0, len(value), 1 << 16):
            part = torch.as_tensor(value[i : i + (1 << 16)])
            if part.is_floating_point() and not bool(torch.isfinite(part).all()):
                bad = torch.nonzero(~torch.isfinite(part).reshape(len(part), -1).all(dim=1))
                return f"{name} holds NaN or infinity in row {i + int(bad[0])}: nothing can be said of it."
    return ""
