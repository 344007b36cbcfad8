"""L(k) ≤ promised(k)·L(0), λ_min(H) ≥ σ_min(Z)², ‖∇L‖² ≥ 2λL: the flight recorder of a training run.

Whatever the optimiser and its step size, at each recorded step sound bounds say what is true of the weights
as they are: every row has one equilibrium; the tangent kernel H ⪰ ZZᵀ is conditioned; the PL inequality holds
with that λ; and the loss is where it was promised to be. Nothing is promised: what did happen is proved.

    recorder = Recorder(model, X, y, every=10)
    gradient_descent(model, X, y, steps=200, step_size=1e-3, progress=recorder)    # or, in any loop,
    recorder.record(step)
    print(recorder.flight)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..checks import integer, one_of, within
from ..kernels import TangentKernel
from ..linalg import Interval
from ..losses import as_loss
from ..models.affine import AffineFamily
from ..solve import EquilibriumError, Stop
from .certificate import FLOAT64_TIER, Certificate
from .claim import Claim
from .instance import Instance
from .pl import SOUND, pl_star, readout_gradient
from .register import facts
from .verification import relied_on

_SCALES = {"half_square": 0.5, "square": 1.0}  # c of L = c‖r‖²
_BELOW = 1 - 2.0**-20  # λ is lowered by this factor, so that rounding leaves no equality undecided
_TIGHT = Stop(rtol=1e-12, max_steps=5000)


@dataclass(frozen=True)
class Moment:
    """One recorded step: claims, each with both sides bounded, and estimates, which prove nothing."""

    step: int
    claims: tuple[Claim, ...]
    loss: Interval
    lambda_min: float  # ≤ λ_min(H), proved
    estimates: Mapping[str, float] = field(default_factory=dict)
    obstacle: str = ""  # why nothing could be said

    @property
    def proved(self) -> bool:
        """Whether every claim of this step holds."""
        return not self.obstacle and all(c.holds for c in self.claims)

    def to_dict(self) -> dict[str, Any]:
        """All that is recorded of the step, floats in hexadecimal."""
        return {
            "step": self.step,
            "claims": [c.to_dict() for c in self.claims],
            "loss": [self.loss.lo.hex(), self.loss.hi.hex()],
            "lambda_min": self.lambda_min.hex(),
            "estimates": {name: float(value).hex() for name, value in self.estimates.items()},
            "obstacle": self.obstacle,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Moment:
        """The moment that `to_dict` wrote."""
        return cls(
            step=data["step"],
            claims=tuple(Claim.from_dict(c) for c in data["claims"]),
            loss=Interval(*(float.fromhex(end) for end in data["loss"])),
            lambda_min=float.fromhex(data["lambda_min"]),
            estimates={name: float.fromhex(value) for name, value in data["estimates"].items()},
            obstacle=data["obstacle"],
        )


@dataclass(frozen=True)
class Flight:
    """What was proved along a run, step by step."""

    moments: tuple[Moment, ...]
    loss_name: str
    promise: str = ""  # what the loss was held against
    hypotheses: tuple[str, ...] = (FLOAT64_TIER,)
    version: str = __version__

    @property
    def proved(self) -> bool:
        """Whether every claim of every recorded step holds."""
        return bool(self.moments) and all(m.proved for m in self.moments)

    @property
    def violations(self) -> list[tuple[int, str]]:
        """(step, claim) for what is certainly false, and (step, obstacle) where nothing can be said."""
        found = []
        for m in self.moments:
            found += [(m.step, m.obstacle)] if m.obstacle else []
            found += [(m.step, c.name) for c in m.claims if c.refuted]
        return found

    @property
    def undecided(self) -> list[tuple[int, str]]:
        """(step, claim) for what is neither proved nor refuted: the margin is below the rounding."""
        return [(m.step, c.name) for m in self.moments for c in m.claims if not (c.holds or c.refuted)]

    def claim(self, step: int, name: str) -> Claim:
        """The claim of that name at that step."""
        for m in self.moments:
            for c in m.claims:
                if (m.step, c.name) == (step, name):
                    return c
        raise KeyError(f"no claim {name!r} at step {step}: recorded are {[m.step for m in self.moments]}.")

    def to_dict(self) -> dict[str, Any]:
        """All that was recorded, floats in hexadecimal."""
        return {
            "library": {"name": "equipoise", "version": self.version},
            "loss_name": self.loss_name,
            "promise": self.promise,
            "hypotheses": list(self.hypotheses),
            "moments": [m.to_dict() for m in self.moments],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Flight:
        """The flight that `to_dict` wrote."""
        try:
            return cls(
                moments=tuple(Moment.from_dict(m) for m in data["moments"]),
                loss_name=data["loss_name"],
                promise=data["promise"],
                hypotheses=tuple(data["hypotheses"]),
                version=data["library"]["version"],
            )
        except KeyError as error:
            raise ValueError(f"a flight must have {error}. It has none.") from None

    def to_json(self) -> str:
        """Exact, with every float in hexadecimal."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Flight:
        """The flight that `to_json` wrote; refused if its claims do not follow from its numbers."""
        return cls.from_dict(json.loads(text))

    def __str__(self) -> str:
        """A table: one row for each step; `?` is not decided, `no` is refuted."""
        names = list(dict.fromkeys(c.name for m in self.moments for c in m.claims))
        head = ["step", "L", "λ_min(H) ≥", "λ_min(H) ~", *names]
        rows = [head]
        for m in self.moments:
            of = {c.name: c for c in m.claims}
            marks = ["" if n not in of else _mark(of[n]) for n in names]
            about = m.estimates.get("lambda_min", math.nan)
            rows.append([str(m.step), f"{m.loss.hi:.4g}", f"{m.lambda_min:.3g}", f"{about:.3g}", *marks])
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
        lines += [f"step {m.step}: {m.obstacle}" for m in self.moments if m.obstacle]
        if self.promise:
            lines.append(f"promised: {self.promise}")
        return "\n".join(lines)


def _mark(claim: Claim) -> str:
    return "yes" if claim.holds else "no" if claim.refuted else "?"


class Recorder:
    """Sound bounds at chosen steps of any run of an affine family, by any optimiser.

    Args:
        model, X, y: the network while it is trained, its data and its targets.
        theorem_rate: what the loss is held against, if anything: a proved Certificate of descent (of the
            weights at the first record), or a factor per step in (0, 1].
        every: as a callback `recorder(step, loss)`, record the multiples of this.
        loss: "half_square" or "square", the family's own by default.
        kernel: also estimate λ_min(H) of the whole kernel and ‖∇L‖, at the cost of an adjoint and an
            eigenvalue problem of size N·k.
    """

    def __init__(
        self,
        model: AffineFamily,
        X: Tensor,
        y: Tensor,
        theorem_rate: Certificate | float | None = None,
        every: int = 1,
        *,
        loss: str | None = None,
        kernel: bool = True,
    ) -> None:
        integer("every", every)
        if isinstance(theorem_rate, Certificate):
            loss = _checked(theorem_rate, loss)
        elif theorem_rate is not None:
            within("theorem_rate", theorem_rate, "(0, 1]", ", a factor per step")
        self.loss = loss or str(getattr(model, "natural_loss", "half_square"))
        one_of("loss", self.loss, _SCALES)
        self.model, self.X, self.y = model, X, y
        self.theorem_rate, self.every, self.kernel = theorem_rate, every, kernel
        self.moments: list[Moment] = []
        self._last: Tensor | None = None  # the weights at the last record
        self._first: Tensor | None = None
        self._path = 0.0

    def __call__(self, step: int, loss: float | None = None) -> None:
        """`record`, at multiples of `every`; the loss of the run itself is not trusted."""
        if step % self.every == 0:
            self.record(step)

    def record(self, step: int | None = None) -> Moment:
        """What is true of the weights now. Steps must increase; by default by one."""
        before = self.moments[-1].step if self.moments else None
        if step is None:
            step = 0 if before is None else before + 1
        if before is not None and step <= before:
            raise ValueError(f"steps must increase. Got {step} after {before}.")
        if before is None and isinstance(self.theorem_rate, Certificate):
            self.theorem_rate = relied_on(self.theorem_rate, self.model, self.X, self.y)
        moment = self._moment(step)
        self.moments.append(moment)
        return moment

    @property
    def flight(self) -> Flight:
        """What was proved until now."""
        rate = self.theorem_rate
        if isinstance(rate, Certificate):
            promise = f"{rate.theorem}: {rate.promise}"
        else:
            promise = "" if rate is None else f"L(k) ≤ {rate:g}^k L(0)"
        believed = facts(self.model).rests_on
        return Flight(tuple(self.moments), self.loss, promise, (FLOAT64_TIER, *believed))

    # -- one moment ------------------------------------------------------------------------------------------

    def _moment(self, step: int) -> Moment:
        instance = Instance(self.model, self.X, self.y)
        unknown = Moment(step, (), Interval(0.0, math.inf), 0.0, obstacle=instance.obstacle)
        if instance.obstacle:
            return unknown
        unique = instance.enclosure.unique
        if not all(c.holds for c in unique):
            return replace(unknown, claims=unique)
        scale = _SCALES[self.loss]
        loss = scale * instance.residual_norm**2
        kernel = self._conditioning(instance)
        gradient = Interval((readout_gradient(instance, 2 * scale)).lo, math.inf)
        # ‖∇L‖² = 4c² rᵀHr ≥ 4cλ·L, since L = c‖r‖².
        inequality = pl_star(gradient, loss, 4 * scale * Interval(kernel.left.lo * _BELOW))
        claims = [
            *unique,
            kernel,
            replace(inequality, statement="‖∇L‖² ≥ μL with the proved λ_min(H)", method=SOUND),
        ]
        if (promised := self._promise(step, loss)) is not None:
            claims.append(promised)
        return Moment(step, tuple(claims), loss, kernel.left.lo, self._estimates(instance))

    def _conditioning(self, instance: Instance) -> Claim:
        m, N = instance.model.width, instance.N
        return Claim(
            "λ_min(H) > 0",
            "the tangent kernel is positive: H ⪰ ZZᵀ",
            Interval((Interval(instance.sigma_N.lo) ** 2).lo, math.inf),
            ">",
            Interval(0.0),
            SOUND,
            remedy=f"a width of at least {N}" if m < N else "removing duplicate or zero rows",
        )

    def _promise(self, step: int, loss: Interval) -> Claim | None:
        if self.theorem_rate is None:
            return None
        start = self.moments[0] if self.moments else None
        k = step - start.step if start else 0
        first = start.loss if start else loss
        if isinstance(self.theorem_rate, Certificate):
            share = Interval(self.theorem_rate.bound(k))
        else:
            share = Interval(self.theorem_rate) ** k
        if k == 0:
            loss = first = Interval(loss.hi)  # L(0) ≤ L(0), whatever L(0) is
        return Claim(
            "descent",
            f"the loss {k} steps after the start is no more than promised",
            loss,
            "<=",
            share * first,
            "the residual at the computed equilibria, with their error",
        )

    def _estimates(self, instance: Instance) -> dict[str, float]:
        """Plain float64: the whole kernel, the whole gradient, and how far the weights have come."""
        model, Z, X = instance.model, instance.Z, instance.X
        now = torch.cat([p.detach().double().flatten().cpu() for p in self.model.parameters()])
        self._first = now.clone() if self._first is None else self._first
        self._path += float((now - self._last).norm()) if self._last is not None else 0.0
        self._last = now
        found = {"travelled": float((now - self._first).norm()), "path": self._path}
        if not self.kernel:
            return found
        try:
            V = model.adjoint(Z, X, stop=_TIGHT)
        except EquilibriumError:
            return found
        kernel = TangentKernel(model.gram(V, Z, X, V, Z, X))
        slope = as_loss(self.loss).gradient(model.readout(Z), instance.y)  # type: ignore[arg-type]
        parts = model.pullback(V, slope, Z, X).values()
        gradient = math.sqrt(sum(float(p.square().sum()) for p in parts))
        return found | {"lambda_min": kernel.lambda_min, "gradient": gradient}


def _checked(certificate: Certificate, loss: str | None) -> str:
    """The loss of a certificate whose promise can be recorded."""
    if not certificate.proved or certificate.kind != "descent":
        raise ValueError(
            f"theorem_rate must be a proved certificate of descent. Got {certificate.theorem}, "
            f"{certificate.verdict}, about {certificate.kind}."
        )
    for name, other in (("slack", "a loss with slack"), ("least", "the gap to a least loss above 0")):
        if certificate.constants.get(name):
            raise ValueError(f"the certificate speaks of {other}, not of the loss that is recorded here.")
    if loss is not None and loss != certificate.loss:
        raise ValueError(f"the certificate is about the loss {certificate.loss!r}. Got {loss!r} instead.")
    return certificate.loss
