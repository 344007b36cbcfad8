"""z = σ(W(θ) z + u(x; θ)),  ŷ = z a: what follows for a family of a user's own that registers no facts.

Nothing is known of how its code rounds, so W and u as computed in float64 are taken as exact, and the
certificate says so. The equilibrium is unique where ‖W‖ < 1 or λ_max(sym W) < 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.affine import AffineFamily
from ..enclosure import Enclosure
from ..register import facts_of
from .contracting import ContractingFacts

# What a family may say of itself; all else of AffineFamily decides what its equilibria and outputs are.
_ITS_OWN = AffineFamily.__abstractmethods__ | {
    *("activation", "config", "contraction", "default_gradient", "default_solver", "default_solver_chain"),
    *("described", "diagnosis", "extra_repr", "inputs", "natural_loss", "outputs", "readout_name"),
    *("relu_at_zero", "resolvent_bound", "scaled_name", "settings", "width", "_abc_impl"),
}


@facts_of(AffineFamily)
class GenericFacts(ContractingFacts):
    """What follows from W(θ) and u(X; θ) alone.

    Facts of a family that are derived from these say more: `weight_error` and `injection_error` bound what
    its code rounds, so that `hypotheses` can be (); `input_map` gives Lipschitz bounds.
    """

    family = "AffineFamily"

    def __init__(self, model: AffineFamily) -> None:
        super().__init__(model)
        self.hypotheses = (
            f"W(θ) and u(X; θ) are taken to be exactly what {type(model).__name__} computes in float64, and "
            f"the same at each call",
        )

    @property
    def obstacle(self) -> str:
        """Why nothing follows from W and u: a changed method, or an activation that is rounded."""
        name, activation = type(self.model).__name__, self.model.activation
        if changed := self._changed():
            return (
                f"{name} changes {', '.join(changed)} of AffineFamily, so that its equilibria or outputs may "
                f"be others than those of z = σ(W z + u), ŷ = z a: leave them as they are."
            )
        if not activation.exact:
            return (
                f"the activation {activation.name} of {name} must be computed without rounding, as relu, the "
                f"identity and clamp are: nothing is known of the error of another."
            )
        return ""

    def _changed(self) -> list[str]:
        own = type(self.model).__mro__[: type(self.model).__mro__.index(AffineFamily)]
        named = dict.fromkeys(name for kind in own for name in vars(kind) if hasattr(AffineFamily, name))
        return [n for n in named if n not in _ITS_OWN and (n == "__call__" or not n.startswith("__"))]

    def enclosure(self, X: Tensor) -> Enclosure:
        """W and u as the family computes them, once they have been checked."""
        self._check(X)
        return super().enclosure(X)

    def _check(self, X: Tensor) -> None:
        """Raise a TypeError if the family's parts are not what AffineFamily asks for."""
        model, m = self.model, self.model.width
        parts = {"weight()": (model.weight(), (m, m)), "injection(X)": (model.injection(X), (len(X), m))}
        for what, (value, shape) in parts.items():
            if isinstance(value, Tensor) and tuple(value.shape) == shape and value.dtype == torch.float64:
                continue
            got = (
                f"{value.dtype} of {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else type(value).__name__
            )
            raise TypeError(
                f"{what} of {type(model).__name__} must be a tensor {shape}, in the dtype of its parameters "
                f"(here torch.float64). Got {got} instead."
            )
