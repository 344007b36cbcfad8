"""H_ij = ⟨∂ŷ_i/∂θ, ∂ŷ_j/∂θ⟩: the exact tangent kernel, by parameter block.

For an affine family every block is a Hadamard product of Gram matrices of Z, X and the adjoint V
(`AffineFamily.gram`): O(N(m + N)) memory, no Jacobian; those of OptEq are in `opteq.py`. For any other module
the Jacobian is contracted in chunks of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..models.affine import AffineFamily
from ..models.conv import ImageModel
from ..models.opteq import MultiBlockOptEq, OptEq
from ..models.opteq.family import ProximalFamily
from ..models.places import call_with
from ..solve import Stop
from .opteq import has_formula, opteq_kernel


@dataclass(frozen=True)
class TangentKernel:
    """H by parameter block, and their sum: (N, N2), or (N, k, N2, k) for k > 1 outputs."""

    blocks: dict[str, Tensor]

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.blocks.values())).sum(dim=0)

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
        return torch.linalg.eigvalsh((H + H.T) / 2)

    @property
    def lambda_min(self) -> float:
        return float(self.eigenvalues()[0])

    @property
    def lambda_max(self) -> float:
        return float(self.eigenvalues()[-1])

    def __repr__(self) -> str:
        return f"TangentKernel({tuple(self.total.shape)}, blocks {', '.join(self.blocks)})"


@torch.no_grad()
def tangent_kernel(
    model: nn.Module,
    X: Tensor,
    X2: Tensor | None = None,
    *,
    stop: Stop | None = None,
    block: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TangentKernel:
    """The tangent kernel of a model between the rows of X and of X2 (by default X itself).

    Args:
        model: an affine family or OptEq (by formula), or any module with outputs (N,) or (N, k) (by
            Jacobians).
        stop: of the equilibria behind it, and of the adjoints unless the model's `gradient` has its own; by
            default tight for the dtype. A module of your own keeps its tolerance, and is refused one here.
        block: rows of X at a time. The result is the same; the memory of the intermediates is bounded by
            block × N2. By default chosen by size.
        progress: called with (rows done, rows in all).
    """
    if isinstance(model, AffineFamily):
        return _affine_kernel(model, X, X2, stop or _tight(X.dtype), block, progress)
    if has_formula(model):
        assert isinstance(model, OptEq)
        rows = block or _rows(len(X if X2 is None else X2), model.outputs)
        slices = _slices(len(X), rows, progress)
        return TangentKernel(opteq_kernel(model, X, X2, stop or _tight(X.dtype), slices))
    return _jacobian_kernel(model, X, X2, _options(model, stop), block, progress)


def _tight(dtype: torch.dtype, share: float = 1.0) -> Stop:
    """`share`: the part α of the way that a step of the solved map leads, where it is no whole step."""
    least = 2 * Stop.reach(dtype) / share
    return Stop(rtol=max(1e-12 if dtype == torch.float64 else 2e-6, least), max_steps=5000)


def _options(model: nn.Module, stop: Stop | None) -> dict[str, Stop]:
    """What `forward` is called with besides X: the stop, where the model has equilibria."""
    if not isinstance(model, AffineFamily | ProximalFamily | ImageModel):
        if stop is None:
            return {}
        raise ValueError(
            f"stop is for the equilibrium models of the library, which take one at each call. Got "
            f"{type(model).__name__}: leave it out, and give the layers inside a tolerance of their own."
        )
    if stop is not None:
        return {"stop": stop}
    by_shares = isinstance(model, MultiBlockOptEq) or getattr(model, "regulariser", None) is not None
    share = float(model.alpha) if by_shares else 1.0  # type: ignore[arg-type]
    return {"stop": _tight(next(model.parameters()).dtype, share)}


def _affine_kernel(
    model: AffineFamily,
    X: Tensor,
    X2: Tensor | None,
    stop: Stop,
    block: int | None,
    progress: Callable[[int, int], None] | None,
) -> TangentKernel:
    V, Z = _adjoint(model, X, stop)
    V2, Z2, other = (V, Z, X) if X2 is None else (*_adjoint(model, X2, stop), X2)
    rows = block or _rows(len(other), model.outputs)
    parts: list[dict[str, Tensor]] = []
    for at in _slices(len(X), rows, progress):
        parts.append(model.gram(V[at], Z[at], X[at], V2, Z2, other))
    if not parts:
        return TangentKernel(model.gram(V, Z, X, V2, Z2, other))
    return TangentKernel({name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def _rows(other: int, outputs: int) -> int:
    """Rows at a time: Hadamard products make a few temporaries of the result's size, some 64 MB each."""
    return max(1, 8_000_000 // max(1, other * outputs**2))


def _adjoint(model: AffineFamily, X: Tensor, stop: Stop) -> tuple[Tensor, Tensor]:
    Z = model.equilibrium(X, stop=stop)
    return model.adjoint(Z, X, stop=stop), Z


def _jacobian_kernel(
    model: nn.Module,
    X: Tensor,
    X2: Tensor | None,
    options: dict[str, Stop],
    block: int | None,
    progress: Callable[[int, int], None] | None,
) -> TangentKernel:
    """Σ over parameters of J J2ᵀ, the Jacobians formed for `block` samples at a time."""
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

    rows = block or 32
    other = X if X2 is None else X2
    columns = [other[at] for at in _slices(len(other), rows, None)]
    result: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for at in _slices(len(X), rows, progress):
        left = jacobian(X[at])
        strips: dict[str, list[Tensor]] = {name: [] for name in parameters}
        for x in columns:
            right = jacobian(x)
            for name in parameters:
                strips[name].append(torch.einsum("ikp,jlp->ikjl", left[name], right[name]))
        for name in parameters:
            result[name].append(torch.cat(strips[name], dim=2))
    blocks = {name: torch.cat(strips) for name, strips in result.items()}
    return TangentKernel({n: b[:, 0, :, 0] if b.shape[1] == 1 else b for n, b in blocks.items()})


def _slices(n: int, rows: int, progress: Callable[[int, int], None] | None) -> Iterator[slice]:
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))
        if progress is not None:
            progress(min(start + rows, n), n)


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
