"""suggest(model, X, y, theorem): what would make a theorem hold, and what it would then promise.

A change is found by search in plain floats and then proved: `Suggestion.certificate` is the certificate of
the changed network, so that its step size and its steps per e-fold are what the theorem then promises.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..models.affine import AffineFamily
from ..models.norms import spectral_norm
from . import gao2022, hieu2022, kawaguchi2021, ling2023
from .certificate import Certificate
from .certify import Theorem, certify, make_theorem
from .common import dependence
from .explain import VACUOUS
from .instance import Instance
from .register import facts
from .safeguarded import Safeguarded
from .search import log_margin
from .two_timescale import TwoTimescale
from .wellposed import WellPosed

_SLACK = 1e-3  # of ‖Z‖²: what ridge regression leaves of the large directions, and takes from the small
_ROOM = 1.01  # beyond the smallest change that does it, so that rounding cannot matter


@dataclass(frozen=True)
class Suggestion:
    """What to change (`changes`), in words (`lines`), and what is then proved (`certificate`).

    `model` is a copy of the network with the changes made, and `y` the targets for which they were made; both
    are as given if nothing needs to, or can, be changed. `alternatives` might do instead, but are not proved.
    """

    theorem: str
    changes: Mapping[str, Any]
    certificate: Certificate
    lines: tuple[str, ...]
    model: AffineFamily = field(repr=False)
    y: Tensor | None = field(default=None, repr=False)
    alternatives: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the theorem is proved of the changed network."""
        return self.certificate.proved

    @property
    def step_size(self) -> float | Mapping[str, float] | None:
        """The step size that the theorem then allows; None for a flow, or if it does not hold."""
        return (self.certificate.step_sizes or self.certificate.step_size) if self.holds else None

    @property
    def efold(self) -> float:
        """Steps (or the time of a flow) in which the loss is then promised to fall by a factor e."""
        return self.certificate.efold

    @property
    def vacuous(self) -> bool:
        """Whether the promise, if there is one, is of no practical use."""
        return self.certificate.kind == "descent" and not self.efold <= VACUOUS

    def __str__(self) -> str:
        return "\n".join(self.lines)


def suggest(
    model: AffineFamily,
    X: Tensor,
    y: Tensor | None = None,
    theorem: str | Theorem = "wellposed",
    **constants: Any,
) -> Suggestion:
    """What would make a theorem hold for this network and these data. It takes the arguments of `certify`."""
    if isinstance(theorem, str):
        theorem = make_theorem(theorem, **constants)
        constants = {}
    now = certify(model, X, y, theorem=theorem, **constants)
    if not facts(model).affine:
        raise TypeError(f"suggest speaks of the affine families. Got {type(model).__name__} instead.")
    if now.proved:
        lines = (f"{now.theorem} holds as it stands.", *_promise(now))
        return Suggestion(now.theorem, {}, now, lines, model, y)
    if now.obstacle:
        lines = (f"Nothing makes {now.theorem} speak of this network: {now.obstacle}",)
        return Suggestion(now.theorem, {}, now, lines, model, y)
    with torch.no_grad():
        change = _change(theorem, _Draft(copy.deepcopy(model), X, y))
    if change.why_not:
        lines = (
            f"No change was found that makes {now.theorem} hold: {change.why_not}",
            *_instead(model, X, y),
        )
        return Suggestion(now.theorem, {}, now, lines, model, y)
    then = certify(change.model, X, change.y, theorem=change.theorem or theorem)
    if not then.proved:
        lines = (
            f"No change was found that makes {now.theorem} hold. What came nearest:",
            *then.explain().splitlines(),
        )
        return Suggestion(now.theorem, change.changes, then, lines, change.model, change.y)
    lines = (f"{now.theorem} would hold with {change.words}.", *change.notes, *_promise(then))
    if then.kind == "descent" and then.efold > VACUOUS:
        lines += _instead(model, X, y)
    return Suggestion(now.theorem, change.changes, then, lines, change.model, change.y, change.alternatives)


def _promise(certificate: Certificate) -> list[str]:
    if certificate.kind == "static":
        return [f"It says: {certificate.promise}"]
    if certificate.kind == "flow":
        return [f"It promises an e-fold of the loss in the time {certificate.efold:.3g}."]
    steps = certificate.step_sizes or certificate.step_size
    size = (
        " and ".join(f"{name} {value:.3g}" for name, value in steps.items())
        if isinstance(steps, Mapping)
        else f"{steps:.3g}"
    )
    line = f"It promises an e-fold of the loss in {certificate.efold:.3g} steps of size {size}"
    useless = certificate.efold > VACUOUS
    return [f"{line}: true, and of no practical use." if useless else f"{line}."]


def _instead(model: AffineFamily, X: Tensor, y: Tensor | None) -> tuple[str, ...]:
    """What 'safeguarded' promises of the network as it is, for comparison."""
    other, slack = certify(model, X, y, theorem="safeguarded"), ""
    instance = Instance(model, X)
    if not other.proved and instance.unique and (size := _slack(instance)) > 0:
        other, slack = certify(model, X, y, theorem="safeguarded", slack=size), f" with slack={size:.3g}"
    if not other.proved:
        return ()
    return (
        f"For comparison: theorem='safeguarded'{slack} promises an e-fold in {other.efold:.3g} steps of this "
        f"network as it is.",
    )


# -- the changes ---------------------------------------------------------------------------------------------


@dataclass
class _Draft:
    """A network under change."""

    model: Any
    X: Tensor
    y: Any
    theorem: Theorem | None = None  # with constants of its own, where the change has some
    changes: dict[str, Any] = field(default_factory=dict)
    alternatives: dict[str, Any] = field(default_factory=dict)
    words: str = ""
    notes: list[str] = field(default_factory=list)
    why_not: str = ""

    def also(self, words: str, **changes: Any) -> None:
        self.words = f"{self.words}, {words}" if self.words else words
        self.changes |= changes

    def contract(self, to: float) -> None:
        """Set ‖W‖ = `to`, if the facts of the family know how."""
        if found := facts(self.model).contract(to):  # type: ignore[attr-defined]
            self.also(found[0], **found[1])


@singledispatch
def _change(theorem: Any, draft: _Draft) -> _Draft:
    """The smallest change known that makes the theorem hold; or `why_not`."""
    draft.why_not = "none is known for it."
    return draft


@_change.register
def _(theorem: WellPosed, draft: _Draft) -> _Draft:
    draft.contract(0.9)
    return draft


@_change.register(gao2022.Flow)
@_change.register(gao2022.Descent)
def _(theorem: gao2022.Flow | gao2022.Descent, draft: _Draft) -> _Draft:
    """§5.1: W times β, A = ‖W‖I, b = 0 and γ(‖A‖ + 1) = ½, with the smallest β that does it at C = 1."""
    model, X = draft.model, draft.X.double()
    W, size = model.W.double(), spectral_norm(model.W)
    sigma = _least_singular(torch.relu(X @ W))
    if sigma == 0:
        draft.why_not = f"relu(XW) has dependent rows. Try {dependence(Instance(model, draft.X))}."
        return draft
    x, r, C = float(X.norm()), float(draft.y.double().norm()), (1.0, 1.0, 1.0)

    def margin(beta: float) -> float:
        gamma = 1 / (2 * (beta * size + 1))
        a0 = beta * sigma / (1 - gamma * beta * size)
        needed = theorem.sides(gao2022.Gao2022Ball.of(gamma, beta * size, beta * size, 0.0, C, max), x, r)
        return log_margin(*((a0**p, needed[label]) for label, (p, _) in theorem.conditions.items()))

    beta = _smallest(margin)
    if beta is None:
        draft.why_not = f"σ_min(relu(XW)) = {sigma:.3g} is too small: no beta up to 1e60 does it."
        return draft
    model.W.mul_(beta)
    norm = spectral_norm(model.W)
    model.A.copy_(norm * torch.eye(model.width, dtype=model.A.dtype))
    model.b.zero_()
    model.gamma = 1 / (2 * (norm + 1))
    draft.theorem = dataclasses.replace(theorem, C=C)
    draft.also(
        f"the start of §5.1 from these W: W multiplied by beta = {beta:.4g}, A = ‖W‖ I, b = 0, "
        f"gamma = {model.gamma:.4g}, C = (1, 1, 1)",
        beta=beta,
        gamma=model.gamma,
        C=C,
    )
    return draft


@_change.register
def _(theorem: ling2023.Descent, draft: _Draft) -> _Draft:
    """a(0) = 0, and targets so small that Condition 1 has a δ; or a width for which they need not be."""
    model, X = draft.model, draft.X.double()
    if spectral_norm(model.W) >= 1:
        draft.contract(0.5)
    sigma = _least_singular(Instance(model, draft.X).Z)
    if sigma == 0:
        draft.why_not = f"the equilibria are dependent. Try {dependence(Instance(model, draft.X))}."
        return draft
    if bool(model.a.any()):
        model.a.zero_()
        draft.also("a(0) = 0 (start='zero_readout')", a=0.0)
    W, U, x = spectral_norm(model.W), spectral_norm(model.U), float(X.norm())
    allowed, delta = 0.0, 0.0
    for d in np.geomspace(1e-8, 0.999, 2000) * (1 - W):
        needed = ling2023.Ling2023Ball.of(W, U, 0.0, float(d), max).sides(x, 1.0, math.sqrt(2))
        r = min(sigma**2 / needed["(7)"], sigma**3 / needed["(8)"])
        if needed["(9)"] * _ROOM <= sigma**2 and r > allowed:
            allowed, delta = r, float(d)
    if allowed == 0:
        draft.why_not = f"λ₀ = {sigma**2:.3g} is too small for (9) at every δ."
        return draft
    draft.theorem = dataclasses.replace(theorem, delta=delta)
    draft.changes["delta"] = delta
    target = float(draft.y.double().norm())
    if target > allowed / _ROOM:
        scale = allowed / _ROOM / target
        draft.y = scale * draft.y
        draft.also(f"targets multiplied by {scale:.3g}", target_scale=scale)
        width = math.ceil(model.width / scale**2)
        draft.alternatives["width"] = width
        draft.notes.append(
            f"Or, as what is allowed grows like √m, with a width of about {width:.3g} for the targets as "
            f"they are (a rule of thumb, not a proof)."
        )
    return draft


@_change.register(hieu2022.Flow)
@_change.register(hieu2022.Descent)
def _(theorem: hieu2022.Flow | hieu2022.Descent, draft: _Draft) -> _Draft:
    """The start of `hieu2022.certified_start`."""
    model = draft.model
    before = spectral_norm(model.U)
    try:
        radii = hieu2022.certified_start(model, draft.X, draft.y, kind=theorem.kind)
    except ValueError as error:
        draft.why_not = str(error)
        return draft
    factor = spectral_norm(model.U) / before
    draft.theorem = dataclasses.replace(theorem, radii=radii)
    draft.also(
        f"certified_start(model, X, y, kind={theorem.kind!r}), which multiplies U by {factor:.4g} and sets "
        f"u = 0, and the radii it returns",
        U=factor,
        u=0.0,
        radii=radii,
    )
    return draft


@_change.register
def _(theorem: kawaguchi2021.Theorem1, draft: _Draft) -> _Draft:
    """τ > 0 of the logistic loss: R = ∞ then does."""
    if not Instance(draft.model, draft.X).singular(draft.model.injection(draft.X)).sigma_min.lo > 0:
        draft.why_not = (
            "the features do not have full rank: remove features, or samples, that depend on others."
        )
        return draft
    tau = theorem.tau or 0.01
    draft.theorem = dataclasses.replace(theorem, tau=tau, radius=None)
    draft.also(f"tau = {tau:g} and no radius", tau=tau, radius=None)
    draft.notes.append("The time is inversely proportional to tau.")
    return draft


@_change.register(TwoTimescale)
@_change.register(Safeguarded)
def _(theorem: TwoTimescale | Safeguarded, draft: _Draft) -> _Draft:
    """Weights that contract, and slack, which makes the features independent for every N and m."""
    if not Instance(draft.model, draft.X).unique:
        draft.contract(0.5)
    if certify(draft.model, draft.X, draft.y, theorem=theorem).proved:
        return draft
    slack = _slack(Instance(draft.model, draft.X))
    if slack == 0:
        draft.why_not = "the equilibria are zero: there is nothing to read out."
        return draft
    draft.theorem = dataclasses.replace(theorem, slack=slack)
    draft.also(f"slack = {slack:.3g}, a thousandth of ‖Z‖²: ridge regression at its end", slack=slack)
    N, m = len(draft.X), draft.model.width
    if m < N:
        draft.alternatives["width"] = N
        draft.notes.append(f"Or with a width of at least {N}, the number of samples.")
    return draft


# -- numbers -------------------------------------------------------------------------------------------------


def _smallest(margin: Callable[[float], float]) -> float | None:
    """The smallest β (a little more) at which an increasing log-margin is 0, by bisection of log β."""

    def good(log: float) -> bool:
        try:
            return margin(math.exp(log)) >= 0
        except (OverflowError, ZeroDivisionError):
            return False

    low, high = math.log(1e-60), math.log(1e60)
    if not good(high):
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return _ROOM * math.exp(high)


def _least_singular(Z: Tensor) -> float:
    """σ_N(Z), or 0 where it is lost in rounding."""
    N = len(Z)
    if Z.shape[1] < N:
        return 0.0
    values = torch.linalg.svdvals(Z)
    least = float(values[N - 1])
    return least if least > 1e3 * N * torch.finfo(Z.dtype).eps * float(values[0]) else 0.0


def _slack(instance: Instance) -> float:
    """λ = 1e-3 ‖Z‖², rounded to two digits."""
    return float(f"{_SLACK * instance.equilibria.spectrum.norm.hi**2:.1e}")
