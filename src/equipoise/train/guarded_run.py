"""One step of safeguarded descent: the readout moves, and the hidden layer as far as (S1)-(S4) are proved.

Weights live in float64 at values that the model's own dtype can hold, so what is proved is about the stored
weights. The error of the computed equilibria is bounded a posteriori, whatever the solver says, and with all
rounding goes into every bound; solves are therefore only as tight as the step at hand needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..linalg import Interval, SingularBounds, SpectralWitness, frobenius, gamma
from ..models.affine import AffineFamily
from ..solve import Stop
from ..theory import Certificate
from ..theory.enclosure import Enclosure, Equilibria, product_rounding
from ..theory.features import reachable_targets
from ..theory.instance import Instance
from ..theory.watch import FeatureWatch, WeightWatch
from .last_good import LastGood
from .readout import Readout
from .stride import Stride

Direction = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]

_TRIES = 3  # hidden updates tried at one step before the readout moves alone
_ADJOINT = Stop(rtol=1e-4, max_steps=1000)  # any direction is allowed, so a rough gradient will do
_LOOSEST = 1e-5  # relative residual of a solve
_PART = 0.02  # of what a step may use up, left to the error of its solve
_MARGIN = 0.8  # of the hidden step that the last one shows to be possible
_SHRINK = 0.25  # of the last hidden step, if it shows nothing


@dataclass(frozen=True)
class Step:
    """What became of one step."""

    hidden: float = 0.0  # the hidden step accepted, 0 if the readout moved alone
    tries: int = 0
    verified: bool = False  # (S1) was proved
    held: bool = False  # nothing moved: rounding decides here


@dataclass(frozen=True)
class GuardedPoint:
    """Equilibria of some hidden weights."""

    Z: Tensor  # (N, m)
    error: float  # ≥ ‖Z − Z*‖_F
    weight_norm: float  # ≥ ‖W‖
    gain: float  # 1 + ‖W‖R: what a residual of the equation may grow to in Z
    solver_steps: int


@dataclass(frozen=True)
class Residual:
    """r = Z a + √λ e − y as computed, and its true norm enclosed."""

    value: Tensor  # (N, k)
    norm: float  # of `value`
    size: Interval  # of the true one, at Z*


@dataclass(frozen=True)
class Tried:
    """A hidden update judged: `reach` is about the share of it that (S1) would have borne."""

    safe: bool
    reach: float
    point: GuardedPoint | None = None
    residual: Residual | None = None


class GuardedRun:
    """The weights on their way, in float64, at values that the model's own dtype can hold."""

    def __init__(
        self,
        model: AffineFamily,
        X: Tensor,
        y: Tensor,
        certificate: Certificate,
        hidden_step: float | None,
        direction: str | Direction,
    ) -> None:
        instance = Instance(model, X, y)
        assert instance.y is not None
        known = certificate.constants
        self.model, self.X, self.y = instance.model, instance.X, instance.y
        self.facts = instance.facts
        self.dtype = model.readout_weight.dtype
        fixed = (self.model.readout_name, "feature_map")  # the first has a step of its own
        named = self.model.named_parameters()
        self.hidden = {n: p for n, p in named if n.partition(".")[0] not in fixed}
        self.good = LastGood(self.model)  # of the last step that was completed
        self.start = self.good.weights
        reachable = reachable_targets(instance, known["slack"])
        self.least, self.target_error = reachable.least, reachable.error
        a = self.model.readout_weight.reshape(self.model.width, -1).clone()
        self.readout = Readout(a, reachable.y, known["slack"], known["readout"])
        self.scale = 1.0 if certificate.loss == "square" else 0.5  # L = scale·‖r‖²
        self.eta = certificate.step_sizes["readout"]
        if known["readout"] == "gradient":
            self.eta *= 2 * self.scale
        self.rate, self.slack, self.R_bar = (float(known[n]) for n in ("rate", "slack", "R_bar"))
        self.direction, self.Z_norm = direction, float(known["Z_norm"])
        self.stride = Stride(math.inf if hidden_step is None else hidden_step)
        self.weights = WeightWatch()
        self.point = self._equilibria(self._enclosure(), None, 1e-10)
        self.Z0 = self.point.Z
        self.features = _feature_watch(self.point, known)
        self.residual = self._residual(self.point, self.readout.a, self.readout.e)
        self.V: Tensor | None = None  # in float32, like `last_move`: both only start solves
        self.adjoint_steps = 0
        self.last_move: tuple[Tensor, float] | None = None  # ΔZ of the last hidden update, and its h‖r‖
        self.held = False
        self._watches: dict[str, WeightWatch | FeatureWatch] = {
            "weights": self.weights,
            "features": self.features,
        }
        self._first = {name: watch.witness for name, watch in self._watches.items()}

    @property
    def loss(self) -> float:
        """The loss that the promise is about."""
        return self.scale * self.residual.norm * self.residual.norm + self.least  # ** would raise on overflow

    @property
    def plain_loss(self) -> float:
        """The loss of the predictions, without the slack."""
        r = self.point.Z @ self.readout.a - self.y.reshape(self.readout.y.shape)
        return self.scale * float(r.square().sum())

    # -- one step -------------------------------------------------------------------------------------------

    def step(self) -> Step:
        """Move the readout, and the hidden layer where that is proved to be safe."""
        if self.held:
            return Step(held=True)
        point, (a, e, base, limit) = self.point, self._readout_step(self.point)
        if base.size.hi > limit:  # perhaps only for want of a more accurate Z
            room = (1 - self.rate) * self.residual.norm
            point = self._equilibria(self._enclosure(), point.Z, self._tolerance(a, room))
            a, e, base, limit = self._readout_step(point)
        if base.size.hi > limit:
            taken = self._unproved_step(base)
        else:
            self.point = point
            taken = self._hidden_step(a, e, base, limit) if self.stride.due() else Step(verified=True)
        if not taken.held:
            self.readout.a, self.readout.e = a, e
            self.model.readout_weight.copy_(a.reshape(self.model.readout_weight.shape))
            self.residual = base if not taken.hidden else self.residual
            self.good.take()
        return taken

    def _readout_step(self, point: GuardedPoint) -> tuple[Tensor, Tensor, Residual, float]:
        """(a⁺, e⁺), what they leave at the old Z, and how much (S1) allows to be left."""
        now = self._residual(point, self.readout.a, self.readout.e)
        a, e = self.readout.stepped(point.Z, now.value, self.eta)
        a = a.to(self.dtype).double()
        # From the true residual and the one on record alike, so that the record keeps the promise too.
        limit = (self.rate * Interval(max(min(now.size.lo, self.residual.norm), 0.0))).lo
        return a, e, self._residual(point, a, e), limit

    def _unproved_step(self, base: Residual) -> Step:
        """At rounding level the readout moves alone, while what is measured falls as promised."""
        self.held = not base.norm <= self.rate * self.residual.norm
        return Step(held=self.held)

    def _hidden_step(self, a: Tensor, e: Tensor, base: Residual, limit: float) -> Step:
        """Try, shrink and try again; the hidden weights stay as they were if nothing is accepted."""
        gradients = self._gradients()
        d = gradients if self.direction == "gradient" else _directions(self.direction, gradients)
        slope = abs(sum(float((gradients[n] * d[n]).sum()) for n in gradients))
        if not 0 < slope < math.inf:
            return Step(verified=True)  # nowhere to go
        old, Z, r = {n: p.clone() for n, p in self.hidden.items()}, self.point.Z, self.residual.norm
        room = limit - base.size.hi
        h = self.stride.first(2 * self.scale * room * r / slope)  # takes `room` off ‖r‖, to first order
        start, rtol = self._foreseen(h * r), self._tolerance(a, room)
        for tries in range(1, _TRIES + 1):
            for name, p in self.hidden.items():
                p.copy_((old[name] - h * d[name]).to(self.dtype))
            trial = self._try(a, e, base, limit, start, rtol)
            if trial.safe:
                assert trial.point is not None
                assert trial.residual is not None
                self.last_move = (trial.point.Z - Z).float(), h * r
                self.point, self.residual = trial.point, trial.residual
                self.stride.accepted(h, trial.reach)
                return Step(h, tries, verified=True)
            start = Z if trial.point is None else torch.lerp(Z, trial.point.Z, trial.reach)
            h = self.stride.rejected(h, trial.reach)
        for name, p in self.hidden.items():
            p.copy_(old[name])
        self.stride.failed()
        return Step(tries=_TRIES, verified=True)

    def _try(self, a: Tensor, e: Tensor, base: Residual, limit: float, start: Tensor, rtol: float) -> Tried:
        """Judge the hidden weights as they now are, with the readout (a, e)."""
        if not all(bool(torch.isfinite(p).all()) for p in self.hidden.values()):
            return Tried(safe=False, reach=_SHRINK)
        at = self._enclosure()
        known = bool(torch.isfinite(at.weight).all() and torch.isfinite(at.injection).all())
        if not (known and all(c.holds for c in at.unique) and at.resolvent.hi <= self.R_bar):  # (S4)
            return Tried(safe=False, reach=_SHRINK)
        point = self._equilibria(at, start, rtol)
        left = self._residual(point, a, e)
        reach = _largest(base.value, left.value - base.value, limit - (left.size.hi - left.norm))
        if not _within(left.size, limit):  # (S1)
            return Tried(False, min(max(_MARGIN * reach, _SHRINK**2), 0.5), point, left)
        if not self.features.admits(point.Z, point.error):  # (S2), (S3)
            return Tried(False, _SHRINK, point, left)
        return Tried(True, _MARGIN * reach, point, left)

    # -- what is needed for it ------------------------------------------------------------------------------

    def _enclosure(self) -> Enclosure:
        return self.facts.enclosure_near(self.X, self.weights)

    def _equilibria(self, at: Enclosure, start: Tensor | None, rtol: float) -> GuardedPoint:
        """Z of the hidden weights as they now are, with a bound of its error whatever the solver says."""
        if start is not None and not bool(torch.isfinite(start).all()):
            start = None  # a forecast that overflowed
        size = (self.Z_norm if start is None else float(start.norm())) / math.sqrt(len(self.X))
        stop = Stop(rtol=rtol, atol=rtol * size, max_steps=2000, patience=10)
        solution = self.model.solve(self.X, stop=stop, start=start, precision="mixed")
        assert isinstance(solution.value, Tensor)
        Z = solution.value
        finite = bool(torch.isfinite(Z).all())
        error = Equilibria(self.model, at, Z).error if finite else math.inf
        gain = (1 + at.weight_norm * at.resolvent).hi
        return GuardedPoint(Z, error, at.weight_norm.hi, gain, int(solution.steps.max()))

    def _residual(self, point: GuardedPoint, a: Tensor, e: Tensor) -> Residual:
        kept, self.readout.a, self.readout.e = (self.readout.a, self.readout.e), a, e
        r = self.readout.residual(point.Z)
        self.readout.a, self.readout.e = kept
        size = frobenius(r)
        shift = frobenius(self.readout.y) + self.readout.root * frobenius(e) + size
        off = product_rounding(point.Z, a) + gamma(6) * shift + self.target_error
        off += frobenius(a) * Interval(0.0, point.error)
        found = size + Interval.within(off.hi)
        return Residual(r, float(r.norm()), Interval(max(found.lo, 0.0), found.hi))

    def _gradients(self) -> dict[str, Tensor]:
        """∂L/∂θ of the hidden parameters at the old point, from the adjoint of r̂ = r/‖r‖."""
        size = max(self.residual.norm, 1e-300)
        problem = self.model.affine_map(self.X)
        problem.cache = {}  # so that nothing here depends on how Z was found, which no checkpoint holds
        start = None if self.V is None else self.V.double()
        adjoint = self.model.solve_adjoint(
            self.point.Z,
            self.X,
            weights=self.residual.value / size,
            stop=_ADJOINT,
            start=start,
            precision="mixed",
            problem=problem,
        )
        assert isinstance(adjoint.value, Tensor)
        self.V, self.adjoint_steps = adjoint.value.float(), int(adjoint.steps.max())
        once = torch.full((len(self.X), 1), 2 * self.scale * size, dtype=torch.float64, device=self.X.device)
        found = self.model.pullback(adjoint.value[:, None], once, self.point.Z, self.X)
        return {name: found[name] for name in self.hidden}

    def _foreseen(self, size: float) -> Tensor:
        """Z moved along the last hidden update, as far as a step with this h‖r‖ should move it."""
        if self.last_move is None or self.last_move[1] == 0:
            return self.point.Z
        move, of = self.last_move
        return self.point.Z + min(size / of, 2.0) * move

    def _tolerance(self, a: Tensor, room: float) -> float:
        """The tolerance of a solve whose error takes a small part of `room` and of the floor of σ_min."""
        least = room / max(float(a.norm()), 1e-300)
        if self.features.floor > 0:
            least = min(least, self.features.floor)
        rtol = _PART * least / (self.point.gain * max(float(self.point.Z.norm()), 1e-300))
        tightest = 4 * Stop.reach(torch.float64)
        return tightest if math.isnan(rtol) else min(max(rtol, tightest), _LOOSEST)

    # -- to and from a checkpoint ---------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All by which this run differs from one at its start: tensors, and numbers as JSON holds them."""
        tensors: dict[str, Tensor] = {f"parameter.{n}": p for n, p in self.model.named_parameters()}
        tensors |= {"a": self.readout.a, "e": self.readout.e, "Z": self.point.Z, "r": self.residual.value}
        facts: dict[str, Any] = {
            "point": [self.point.error, self.point.weight_norm, self.point.gain, self.point.solver_steps],
            "residual": [self.residual.norm, self.residual.size.lo, self.residual.size.hi],
            "stride": vars(self.stride),
            "adjoint_steps": self.adjoint_steps,
            "held": self.held,
        }
        if self.V is not None:
            tensors["V"] = self.V
        if self.last_move is not None:
            tensors["move"], facts["move"] = self.last_move
        for name, watch in self._watches.items():
            if watch.witness is not None and watch.witness is not self._first[name]:
                tensors[f"witness.{name}"], bounds = watch.witness.matrix, watch.witness.at_matrix
                facts[name] = [bounds.norm.lo, bounds.norm.hi, bounds.sigma_min.lo, bounds.sigma_min.hi]
        return tensors, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, of a run that began as this one did."""
        tensors = {name: t.to(self.X.device) for name, t in tensors.items()}
        for name, p in self.model.named_parameters():
            p.copy_(tensors[f"parameter.{name}"])
        self.good.take()
        self.readout.a, self.readout.e = tensors["a"], tensors["e"]
        self.point = GuardedPoint(tensors["Z"], *facts["point"])
        norm, *size = facts["residual"]
        self.residual = Residual(tensors["r"], norm, Interval(*size))
        self.stride = Stride(**facts["stride"])
        self.adjoint_steps, self.held = facts["adjoint_steps"], facts["held"]
        self.V = tensors.get("V")
        self.last_move = (tensors["move"], facts["move"]) if "move" in facts else None
        for name, watch in self._watches.items():
            if name in facts:
                bounds = SingularBounds(Interval(*facts[name][:2]), Interval(*facts[name][2:]))
                watch.witness = SpectralWitness(tensors[f"witness.{name}"], bounds)


def _feature_watch(point: GuardedPoint, known: Mapping[str, Any]) -> FeatureWatch:
    """(S2) and (S3) on Z alone: σ_min([Z, √λ I])² = σ_min(Z)² + λ; at the start, from the certificate."""
    slack, off = Interval(known["slack"]), Interval(0.0, point.error)
    below, above = Interval(known["sigma_floor"]) ** 2 - slack, Interval(known["S_bar"]) ** 2 - slack
    bounds = SingularBounds(
        norm=Interval(0.0, (known["Z_norm"] + off).hi),
        sigma_min=Interval(max((known["Z_sigma_min"] - off).lo, 0.0), math.inf),
    )
    return FeatureWatch(
        point.Z, bounds, floor=below.sqrt().hi if below.hi > 0 else 0.0, ceiling=above.sqrt().lo
    )


def _within(size: Interval, limit: float) -> bool:
    """Whether the true size is certainly within the limit."""
    return size.hi <= limit


def _largest(base: Tensor, change: Tensor, limit: float) -> float:
    """The largest t with ‖base + t·change‖ ≤ limit; 0 where there is none."""
    A, B = float(change.square().sum()), float((base * change).sum())
    C = float(base.square().sum()) - limit * limit
    if not (limit > 0 and C <= 0 and math.isfinite(A)):
        return 0.0
    return math.inf if A == 0 else (math.sqrt(B * B - A * C) - B) / A


def _directions(direction: Any, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the caller's function makes of the hidden gradients, checked."""
    found = direction({name: g.clone() for name, g in gradients.items()})
    if not isinstance(found, Mapping) or set(found) != set(gradients):
        got = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise ValueError(
            f"direction must return a tensor for each of {', '.join(gradients)}. Got {got} instead."
        )
    for name, g in gradients.items():
        d = found[name]
        if not isinstance(d, Tensor) or d.shape != g.shape or not bool(torch.isfinite(d).all()):
            got = f"shape {tuple(d.shape)}" if isinstance(d, Tensor) else type(d).__name__
            asked = tuple(g.shape)
            raise ValueError(f"direction[{name!r}] must be finite, of shape {asked}. Got {got} instead.")
    return {name: found[name].to(g.dtype) for name, g in gradients.items()}
