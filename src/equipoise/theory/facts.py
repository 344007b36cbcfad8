"""What a theorem may ask of a family. Each family answers in a file of its own, in `families/`.

A theorem knows no family: it asks the facts of the model at hand, `facts(model)`, which are found by the
model's class. A family of a user's own brings its facts with it:

    @facts_of(MyFamily)
    class MyFacts(AffineFacts):
        ...
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ..linalg import Interval, frobenius, norm_upper
from ..models.altered import altered, family_of
from .certificate import Certificate, fingerprint
from .enclosure import Enclosure, Iteration
from .geometry import Geometry
from .instance import Instance
from .lipschitz import AffineBounds, Bounds, no_bounds
from .read_features import AffineReads, ReadFeatures
from .register import facts, facts_of, find_facts, is_about, unknown
from .rigorous import BallEnclosure, RigorousInstance
from .verify.network import UnitNetwork
from .watch import WeightWatch
from .wellposed import WellPosed, check_shape

if TYPE_CHECKING:
    from .certify import Theorem

__all__ = ["AffineFacts", "Facts", "facts", "facts_of", "find_facts", "is_about", "unknown"]


class Facts(ABC):
    """What is known of one model: why equilibria are unique, how near computed ones are, how far they move.

    Theorems about training, apart from "anchored", are proved of the affine families alone (`AffineFacts`).
    """

    family: ClassVar[str]  # the name of the family whose theorems speak of the model
    paper: ClassVar[str] = ""  # the paper whose theorems are about this family, if there is one
    affine: ClassVar[bool] = False
    has_error: ClassVar[bool] = True  # whether `equilibrium_error` is known
    hypotheses: tuple[str, ...] = ()  # what is believed of the family, besides what is computed

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def rests_on(self) -> tuple[str, ...]:
        """The hypotheses of a certificate about these facts: that they are right, if a user gave them."""
        kind, name = type(self), type(self.model).__name__
        given = (f"the facts {kind.__name__}, which are registered for {name}, are right",)
        return self.hypotheses if family_of(kind) is kind else (*self.hypotheses, *given)

    def prove(self, theorem: Theorem, X: Tensor, y: Tensor | None, tier: str) -> Certificate:
        """The verdict of a theorem on the model and its data; here of "wellposed", the only one known."""
        if theorem.name != WellPosed.name:
            raise unknown(self.model)
        if not isinstance(X, Tensor):
            raise TypeError(f"X must be a tensor, one row for each sample. Got {type(X).__name__} instead.")
        if why := altered(self.model):
            about = fingerprint(self.model, X)
            return Certificate(theorem.name, claims=(), obstacle=why, tier=tier, fingerprint=about)
        return self.wellposed(X, tier)

    @abstractmethod
    def wellposed(self, X: Tensor, tier: str) -> Certificate:
        """The certificate that every input has exactly one equilibrium."""

    def equilibrium_error(self, X: Tensor, Z: Tensor) -> float:
        """≥ ‖Z − Z*‖_F for any Z offered as the equilibria of X; infinite if nothing is proved."""
        raise unknown(self.model)

    def reads(self) -> ReadFeatures:
        """The features that a linear readout reads, with their error."""
        raise TypeError(
            f"what a linear readout reads must be known with its error, and is not of "
            f"{type(self.model).__name__}."
        )

    def bounds(self) -> Bounds:
        """Lipschitz constants of the outputs."""
        raise no_bounds(self.model)

    def unit_network(self) -> UnitNetwork:
        """The form in which predictions are verified; an error where a family or a model has none."""
        raise TypeError(
            f"predictions are verified of the affine families, OptEq and DeepOptEq, and of images "
            f"ConvMonotone and ConvOptEq. Got {type(self.model).__name__} instead."
        )


class AffineFacts(Facts):
    """What may be asked of z = σ(W(θ) z + u(x; θ)) with the readout ŷ = z a.

    A family must define its `enclosure`. If a theorem needs anything else that the family does not define, an
    error says what to add.
    """

    affine = True
    spans_injection: ClassVar[bool] = False  # whether col(Z) = col(u(X)) for all hidden weights
    linear_injection: ClassVar[bool] = False  # whether u(x) = Ux + b, with U the `input_map`

    @property
    def obstacle(self) -> str:
        """Why nothing can be said of this model at all; empty if something can."""
        return ""

    # -- in float64 and in balls -----------------------------------------------------------------------------

    @abstractmethod
    def enclosure(self, X: Tensor) -> Enclosure:
        """W and u(X) in float64 with bounds of their rounding, and the reason for uniqueness."""

    def enclosure_of_weights(self) -> Enclosure:
        """The enclosure of W alone, at no input."""
        return self.enclosure(self.model.readout_weight.new_zeros(1, self.model.inputs))

    def injection_error(self, X: Tensor) -> float:
        """≥ ‖u − u exact‖_F of the computed injection."""
        raise self._missing("how u(X; θ) is rounded", "injection_error(X)")

    def enclosure_near(self, X: Tensor, watch: WeightWatch) -> Enclosure:
        """The enclosure of weights that move, with ‖W‖ from the watch where the reason is a norm."""
        return self.enclosure(X)

    def enclosure_in_balls(self, X: Tensor) -> BallEnclosure:
        """The enclosure in ball arithmetic, of the tier "rigorous"."""
        raise self._missing("W and u in ball arithmetic", "enclosure_in_balls(X)")

    # -- what theorems need besides --------------------------------------------------------------------------

    def geometry(self, instance: Instance) -> Geometry:
        """How a hidden step moves the equilibria: the constants of the two-timescale argument."""
        what = "how a step of the hidden weights moves the equilibria"
        raise self._missing(what, "geometry(instance)", " Theorem 'safeguarded' does not need it.")

    def rate(self, instance: Instance) -> tuple[float, str]:
        """≥ the factor by which a step brings the iterate nearer, and the name of that iteration.

        Forward-backward splitting contracts by √(1 − (μ/ℓ)²) at the step μ/ℓ², with μ = 1/R and ℓ ≥ ‖I − W‖.
        """
        at = instance.enclosure
        if at.unique[0] is at.contraction:
            return at.unique[0].left.hi, "plain iteration"
        eye = torch.eye(self.model.width, dtype=torch.float64, device=at.weight.device)
        # The rounding of I − W is included.
        lipschitz = instance.singular(eye - at.weight).norm.hi * Interval(1 + 2.0**-52) + at.weight_error
        share = 1 / (Interval(at.resolvent.hi) * lipschitz)
        return min((1 - share**2).sqrt().hi, 1.0), "forward-backward splitting"

    def input_map(self) -> Tensor:
        """U (m, d) with |u(x) − u(x')| ≤ |U(x − x')|, coordinate by coordinate."""
        raise self._missing("how u(x; θ) follows x", "input_map(), the matrix U of an injection Ux + b")

    def injection_bound(self, radius: float) -> Interval:
        """≥ ‖u(x)‖ for every ‖x‖ ≤ radius, which is at most ‖u(0)‖ + ‖U‖ radius with U the `input_map`."""
        into = Interval(norm_upper(self.input_map().detach()))
        at = self.enclosure(self.model.readout_weight.new_zeros(1, self.model.inputs))
        return into * radius + frobenius(at.injection) + at.injection_error

    def iteration(self, weight: Tensor, shift: Tensor) -> Iteration:
        """How z ← σ((1−α)z + α(Wz + u)) contracts with the weight that an export stores.

        `weight` is the stored one, and W(θ) as computed in float64 differs from it by `shift`.
        """
        raise self._missing("how the iteration contracts", "iteration(weight, shift)")

    def units(self, known: AffineBounds) -> UnitNetwork:
        """p = W z + U x + u, of the exact model whose bounds are `known`."""
        raise self._missing("how u(x; θ) is made of units", "units(known), such as known.units(U, u)")

    def predictor(self, at: Enclosure) -> tuple[Tensor, Interval] | None:
        """M (k, d) with ŷ = Mx and a bound of its error; None where outputs are not linear in x."""
        return None

    def contract(self, to: float) -> tuple[str, dict[str, float]] | None:
        """Change the model so that ‖W‖ = `to`; what was done, in words and by name, or None if nothing."""
        return None

    # -- what follows for every affine family ----------------------------------------------------------------

    def prove(self, theorem: Theorem, X: Tensor, y: Tensor | None, tier: str) -> Certificate:
        """The verdict of a theorem on the model and its data, in the arithmetic of the tier."""
        kind = RigorousInstance if tier == "rigorous" else Instance
        return theorem.prove(kind(self.model, X, y if theorem.needs_targets else None))

    def wellposed(self, X: Tensor, tier: str) -> Certificate:
        """The certificate that every input has exactly one equilibrium."""
        return self.prove(WellPosed(), X, None, tier)

    def equilibrium_error(self, X: Tensor, Z: Tensor) -> float:
        """≥ ‖Z − Z*‖_F by ‖z − z*‖ ≤ (1 + ‖W‖R)‖z − f(z)‖."""
        instance = Instance(self.model, X)
        check_shape(Z, (instance.N, instance.model.width))
        if instance.obstacle or not bool(torch.isfinite(Z).all()) or not instance.unique:
            return math.inf
        return instance.equilibria_of(Z.detach().to(instance.X.device).double()).error

    def reads(self) -> AffineReads:
        """The features φ(x) = z."""
        return AffineReads(self.model, type(self))

    def bounds(self) -> Bounds:
        """Lipschitz constants of the outputs, from R, `input_map` or the `predictor`."""
        return AffineBounds(self.model)

    def unit_network(self) -> UnitNetwork:
        """W, U and the readout with their rounding, and R by the family's reason or a Cholesky witness."""
        known = AffineBounds(self.model)
        if known.obstacle or known.enclosure is None:
            raise ValueError(f"nothing can be verified of this model: {known.obstacle}")
        return known.facts.units(known)

    def _missing(self, what: str, method: str, more: str = "") -> TypeError:
        return TypeError(
            f"{what} must be known, and is not of {type(self.model).__name__}: register facts of it "
            f"(@equipoise.theory.facts_of) with {method}.{more}"
        )
