"""∂ŷ_i/∂θ for the rows of a data set, from which tangent kernels are computed, in the form a model allows.

For an affine family every block of the kernel is a Hadamard product of Gram matrices of Z, X and the adjoint
V (`AffineFamily.gram`), and no Jacobian is formed; the formulas of OptEq are in `opteq.py`. For any other
module the Jacobian is formed, for the samples of one tile at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..models.affine import AffineFamily, squeeze_blocks
from ..models.altered import altered
from ..models.base import EquilibriumModel
from ..models.places import call_with
from ..solve import Stop
from .opteq import adjoints, has_formula
from .tiles import KernelRows


def has_rows(model: nn.Module) -> bool:
    """Whether there is a formula for the kernel of this model: its family has one and it is not altered."""
    known = getattr(model, "structured", False) or has_formula(model)
    return bool(known) and not altered(model, patched=False)


@torch.no_grad()
def rows_of(model: nn.Module, X: Tensor, stop: Stop | None = None) -> KernelRows:
    """The rows X of a model's kernel: by formula where there is one, else by Jacobians."""
    if not has_rows(model):
        return ModuleRows(model, X, options_of(model, stop))
    family: Any = model
    family._check_inputs(X)
    stop = stop or tight(X.dtype)
    if not getattr(model, "structured", False):
        return adjoints(family, X, stop)
    Z = family.equilibrium(X, stop=stop)
    return AffineRows(family, X, family.adjoint(Z, X, stop=stop), Z)


def tight(dtype: torch.dtype, share: float = 1.0) -> Stop:
    """A tight stop for `dtype`; `share` is the part of the way to f(z) that a step of the solved map goes."""
    least = 2 * Stop.reach(dtype) / share
    return Stop(rtol=max(1e-12 if dtype == torch.float64 else 2e-6, least), max_steps=5000)


def options_of(model: nn.Module, stop: Stop | None) -> dict[str, Stop]:
    """The keywords that `forward` is called with: the stop, if the model has equilibria."""
    if not isinstance(model, EquilibriumModel):
        if stop is None:
            return {}
        raise ValueError(
            f"stop is for the equilibrium models of the library, which take one at each call. Got "
            f"{type(model).__name__}: leave it out, and give the layers inside a tolerance of their own."
        )
    if stop is not None:
        return {"stop": stop}
    return {"stop": tight(next(model.parameters()).dtype, model.share)}


@dataclass(frozen=True, eq=False)
class AffineRows:
    """Inputs, adjoints and equilibria of an affine family."""

    model: AffineFamily
    X: Tensor  # (N, d)
    V: Tensor  # (N, m), or (N, k, m)
    Z: Tensor  # (N, m)

    @property
    def outputs(self) -> int:
        """k."""
        return self.model.outputs

    def __len__(self) -> int:
        return len(self.X)

    def take(self, rows: slice) -> AffineRows:
        """Some of the rows."""
        return replace(self, X=self.X[rows], V=self.V[rows], Z=self.Z[rows])

    def blocks(self, two: AffineRows) -> dict[str, Tensor]:
        """The blocks of the kernel between these rows and others."""
        return self.model.gram(self.V, self.Z, self.X, two.V, two.Z, two.X)

    def pull(self, R: Tensor) -> dict[str, Tensor]:
        """Σ_ip R_ip ∂ŷ_ip/∂θ by parameter, R (N, k)."""
        return self.model.pullback(self.V, R.reshape(self.model.output_shape(len(R))), self.Z, self.X)


@dataclass(frozen=True, eq=False)
class ModuleRows:
    """Inputs of any module with outputs (N,) or (N, k); its Jacobians are formed when they are asked for."""

    model: nn.Module
    X: Tensor
    options: dict[str, Stop]
    held: dict[tuple[int, int], ModuleRows] = field(default_factory=dict, repr=False)  # rows taken last
    formed: dict[str, Tensor] = field(default_factory=dict, repr=False)  # their Jacobian

    def __post_init__(self) -> None:
        if not self._parameters()[0]:
            raise ValueError("the model must have parameters that require a gradient. Got none.")

    def __len__(self) -> int:
        return len(self.X)

    @property
    def outputs(self) -> int:
        """k, found by evaluating the model on the first row."""
        first = replace(self, X=self.X[:1])
        with torch.no_grad():
            said = first._outputs(first._parameters()[0])
        return 1 if said.ndim == 1 else int(said.shape[1])

    def take(self, rows: slice) -> ModuleRows:
        """Some of the rows; the last two selections keep their Jacobians, since many tiles share them."""
        key = rows.start, rows.stop
        if key not in self.held:
            while len(self.held) > 1:
                del self.held[next(iter(self.held))]
            self.held[key] = ModuleRows(self.model, self.X[rows], self.options)
        self.held[key] = self.held.pop(key)
        return self.held[key]

    def blocks(self, two: ModuleRows) -> dict[str, Tensor]:
        """J J2ᵀ by parameter."""
        J, J2 = self.jacobian(), two.jacobian()
        return squeeze_blocks({n: torch.einsum("ikp,jlp->ikjl", J[n], J2[n]) for n in J})

    def jacobian(self) -> dict[str, Tensor]:
        """(n, k, parameters) by name."""
        if not self.formed:
            parameters, _ = self._parameters()
            rows = torch.func.jacrev(self._outputs)(parameters)
            self.formed.update(
                {name: J.reshape(len(self.X), -1, parameters[name].numel()) for name, J in rows.items()}
            )
        return self.formed

    def pull(self, R: Tensor) -> dict[str, Tensor]:
        """Σ_ip R_ip ∂ŷ_ip/∂θ by parameter, by one backward pass."""
        said, back, *_ = torch.func.vjp(self._outputs, self._parameters()[0])
        return back(R.reshape(said.shape))[0]

    def _parameters(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parameters that are trained, and those that are not."""
        named = {name: (p.requires_grad, p.detach()) for name, p in self.model.named_parameters()}
        trained = {name: p for name, (trains, p) in named.items() if trains}
        return trained, {name: p for name, (trains, p) in named.items() if not trains}

    def _outputs(self, some: dict[str, Tensor]) -> Tensor:
        out = call_with(self.model, {**some, **self._parameters()[1]}, (self.X,), self.options)
        if not isinstance(out, Tensor) or out.ndim not in (1, 2) or len(out) != len(self.X):
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"the model must return (N,) or (N, k) for N inputs. Got {got} for {len(self.X)} instead."
            )
        return out
