"""H_ij = ⟨∂ŷ_i/∂θ, ∂ŷ_j/∂θ⟩: the exact tangent kernel, by parameter block.

For an affine family every block is a Hadamard product of Gram matrices of Z, X and the adjoint V
(`AffineFamily.gram`): O(N(m + N)) memory, no Jacobian; those of OptEq are in `opteq.py`. For any other module
the Jacobian is contracted in chunks of samples. All are computed by `tiles`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..models.affine import AffineFamily, squeeze_blocks
from ..models.altered import altered
from ..models.base import EquilibriumModel
from ..models.places import call_with
from ..solve import Stop
from .opteq import has_formula, opteq_tiles
from .tiles import Progress, Tile, by_tiles, require_memory, sides


@dataclass(frozen=True)
class TangentKernel:
    """H by parameter block, and their sum: (N, N2), or (N, k, N2, k) for k > 1 outputs."""

    blocks: dict[str, Tensor]

    @property
    def total(self) -> Tensor:
        """The sum of the blocks, (N, N2)."""
        first, *others = self.blocks.values()
        total = first.clone()
        for block in others:
            total += block
        return total

    @property
    def matrix(self) -> Tensor:
        """The total as a matrix, (N k, N2 k)."""
        total = self.total
        return total if total.ndim == 2 else total.reshape(total.shape[0] * total.shape[1], -1)

    def eigenvalues(self) -> Tensor:
        """λ of the total, ascending. Of a square kernel only."""
        H = self.matrix
        if H.shape[0] != H.shape[1]:
            raise ValueError(
                f"eigenvalues need a square kernel (X2 left out). Got shape {tuple(H.shape)} instead."
            )
        return torch.linalg.eigvalsh(H.add(H.T).div_(2))

    @property
    def lambda_min(self) -> float:
        """The smallest eigenvalue of the total, by float64 arithmetic."""
        return float(self.eigenvalues()[0])

    @property
    def lambda_max(self) -> float:
        """The largest eigenvalue of the total, by float64 arithmetic."""
        return float(self.eigenvalues()[-1])

    def __repr__(self) -> str:
        shape = tuple(next(iter(self.blocks.values())).shape)
        return f"TangentKernel({shape}, blocks {', '.join(self.blocks)})"


@torch.no_grad()
def tangent_kernel(
    model: nn.Module,
    X: Tensor,
    X2: Tensor | None = None,
    *,
    stop: Stop | None = None,
    block: int | None = None,
    progress: Progress | None = None,
) -> TangentKernel:
    """The tangent kernel of a model between the rows of X and of X2 (by default X itself).

    Args:
        model: an affine family or OptEq (by formula), or any module with outputs (N,) or (N, k) (by
            Jacobians).
        stop: of the equilibria behind it, and of the adjoints unless the model's `gradient` has its own; by
            default tight for the dtype. A module of your own keeps its tolerance, and is refused one here.
        block: rows of X at a time, by default chosen by size. The result is the same up to rounding.
        progress: called with (rows done, rows in all).

    Beyond the result, (N k, N2 k) for each parameter, it holds the equilibria and adjoints, (N, m) and
    (N, k, m), and tiles of some 8 MB. A kernel that does not fit into memory is refused with a MemoryError
    before anything is computed.
    """
    family: Any = model
    tiles = _affine_tiles if getattr(model, "structured", False) else opteq_tiles
    if (tiles is _affine_tiles or has_formula(model)) and not altered(model, patched=False):
        for inputs in (X,) if X2 is None else (X, X2):
            family._check_inputs(inputs)
        N, N2 = len(X), None if X2 is None else len(X2)
        names = [name for name, _ in model.named_parameters()]
        require_memory(X, N, N if N2 is None else N2, family.outputs, names)
        tile = tiles(family, X, X2, stop or _tight(X.dtype))
        return TangentKernel(by_tiles(tile, N, N2, *sides(block, family.outputs), progress))
    return _jacobian_kernel(model, X, X2, _options(model, stop), block, progress)


def _tight(dtype: torch.dtype, share: float = 1.0) -> Stop:
    """`share`: the part α of the way that a step of the solved map leads, where it is no whole step."""
    least = 2 * Stop.reach(dtype) / share
    return Stop(rtol=max(1e-12 if dtype == torch.float64 else 2e-6, least), max_steps=5000)


def _options(model: nn.Module, stop: Stop | None) -> dict[str, Stop]:
    """What `forward` is called with besides X: the stop, where the model has equilibria."""
    if not isinstance(model, EquilibriumModel):
        if stop is None:
            return {}
        raise ValueError(
            f"stop is for the equilibrium models of the library, which take one at each call. Got "
            f"{type(model).__name__}: leave it out, and give the layers inside a tolerance of their own."
        )
    if stop is not None:
        return {"stop": stop}
    return {"stop": _tight(next(model.parameters()).dtype, model.share)}


def _affine_tiles(model: AffineFamily, X: Tensor, X2: Tensor | None, stop: Stop) -> Tile:
    other = X if X2 is None else X2
    V, Z = _adjoint(model, X, stop)
    V2, Z2 = (V, Z) if X2 is None else _adjoint(model, X2, stop)

    def tile(at: slice, over: slice) -> dict[str, Tensor]:
        return model.gram(V[at], Z[at], X[at], V2[over], Z2[over], other[over])

    return tile


def _adjoint(model: AffineFamily, X: Tensor, stop: Stop) -> tuple[Tensor, Tensor]:
    Z = model.equilibrium(X, stop=stop)
    return model.adjoint(Z, X, stop=stop), Z


def _jacobian_kernel(
    model: nn.Module,
    X: Tensor,
    X2: Tensor | None,
    options: dict[str, Stop],
    block: int | None,
    progress: Progress | None,
) -> TangentKernel:
    tile, rows = _jacobian_tiles(model, X, X2, options), block or 32
    return TangentKernel(by_tiles(tile, len(X), None if X2 is None else len(X2), rows, rows, progress))


def _jacobian_tiles(model: nn.Module, X: Tensor, X2: Tensor | None, options: dict[str, Stop]) -> Tile:
    """J J2ᵀ by parameter, the Jacobians formed for the samples of a tile at a time."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    rest = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    if not parameters:
        raise ValueError("the model must have parameters that require a gradient. Got none.")

    def outputs(some: dict[str, Tensor], x: Tensor) -> Tensor:
        out = call_with(model, {**some, **rest}, (x,), options)
        if not isinstance(out, Tensor) or out.ndim not in (1, 2) or len(out) != len(x):
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"the model must return (N,) or (N, k) for N inputs. Got {got} for {len(x)} instead."
            )
        return out

    def jacobian(x: Tensor) -> dict[str, Tensor]:  # name -> (n, k, parameters)
        rows = torch.func.jacrev(outputs)(parameters, x)
        return {name: J.reshape(len(x), -1, parameters[name].numel()) for name, J in rows.items()}

    other = X if X2 is None else X2
    left: dict[int, dict[str, Tensor]] = {}  # of the rows last asked for, which many tiles share

    def tile(at: slice, over: slice) -> dict[str, Tensor]:
        if at.start not in left:
            left.clear()
            left[at.start] = jacobian(X[at])
        J = left[at.start]
        J2 = J if X2 is None and at == over else jacobian(other[over])
        return squeeze_blocks({n: torch.einsum("ikp,jlp->ikjl", J[n], J2[n]) for n in parameters})

    return tile


def kernel_prediction(
    model: nn.Module,
    X: Tensor,
    y: Tensor,
    X_test: Tensor,
    time: float | None = None,
    stop: Stop | None = None,
) -> Tensor:
    """ŷ(x) + H(x, X) H⁻¹ (1 − e^{−Ht}) (y − ŷ(X)): gradient flow of the linearised model on ½‖r‖².

    At `time=None` the flow is followed to its end, by the pseudo-inverse: directions that the kernel cannot
    see keep their start. `stop` is that of `tangent_kernel`, and of ŷ.
    """
    if time is not None and not time >= 0:
        raise ValueError(f"time must be ≥ 0, or None for the end of the flow. Got {time} instead.")
    H = tangent_kernel(model, X, stop=stop).matrix
    cross = tangent_kernel(model, X_test, X, stop=stop).matrix
    with torch.no_grad():
        options = _options(model, stop)
        start, at_test = model(X, **options), model(X_test, **options)
        residual = (y.reshape(start.shape) - start).reshape(-1)
        values, vectors = torch.linalg.eigh((H + H.T) / 2)
        seen = values > values[-1].clamp_min(0) * len(values) * torch.finfo(H.dtype).eps
        gain = torch.where(seen, 1 / torch.where(seen, values, 1.0), 0.0)
        if time is not None:  # (1 − e^{−λt})/λ, which tends to t as λ → 0
            gain = torch.where(seen, -torch.expm1(-values * time) * gain, torch.full_like(values, time))
        move = cross @ (vectors @ (gain * (vectors.T @ residual)))
        return at_test + move.reshape(at_test.shape)
