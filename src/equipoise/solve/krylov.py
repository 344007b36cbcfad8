"""‖b − A x‖ minimal over x₀ + span{r, A r, A² r, …}: GMRES for many systems at once, one in each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .norms import combined, products, row_norms

# A cycle aims a little below the tolerance, so that rounding does not put the true residual just above it.
_AIM = 0.9
# A cycle that leaves more than this share of a row's residual ends the row: restarts would repeat it.
_STAGNANT = 0.99


@dataclass(frozen=True)
class Krylov:
    """The result of a linear solve, for every row. `residual` is the true ‖b − A x‖, computed at exit."""

    value: Tensor  # (n, D)
    residual: Tensor  # (n,)
    steps: Tensor  # (n,) Krylov dimensions used
    converged: Tensor  # (n,)
    coupled: Tensor  # (n,) met the tolerance only until other rows moved: the operator mixes rows


def gmres(
    operator: Callable[[Tensor], Tensor],
    b: Tensor,
    x0: Tensor | None = None,
    *,
    rtol: float | Tensor,
    atol: float | Tensor = 0.0,
    max_steps: int = 100,
    restart: int = 30,
) -> Krylov:
    """Solve A x = b in every row until ‖b − A x‖ ≤ atol + rtol·‖b‖, by GMRES(restart) [Saad & Schultz 1986].

    Args:
        operator: X ↦ the rows A_i x_i, (n, D) to (n, D), linear, each row on its own.
        b: right-hand sides, (n, D).
        x0: where to start, zero by default, which saves a product.
        rtol, atol: the tolerance, one for all rows or (n,) of them.
        max_steps: the most Krylov dimensions of a row, over all cycles.
        restart: dimensions of a cycle; the basis takes (n, restart + 1, D) numbers.

    A row ends when it meets the tolerance, when the operator is singular on its Krylov space, when a whole
    cycle gains nothing, or when it is not finite (it then keeps its last finite x); the others go on. If the
    operator mixes rows after all, the residual shows it, since it is computed of all rows as they are
    returned.
    """
    _check(b, x0, max_steps, restart)
    n, d = b.shape
    size = row_norms(b)
    tolerance = atol + rtol * size  # (n,)
    if x0 is None:
        x, r = torch.zeros_like(b), b
    else:
        x = torch.where((size == 0)[:, None], 0.0, x0)
        r = b - operator(x)
    residual = row_norms(r)
    steps = torch.zeros(n, dtype=torch.int64, device=b.device)
    at_work = (residual > tolerance) & torch.isfinite(residual)  # (n,)
    restart = min(restart, d, max_steps)
    basis = b.new_empty(n, restart + 1, d)
    left, seen, whole = max_steps, residual, True
    while left > 0 and bool(at_work.any()):
        dx, used = _cycle(operator, r, residual, _AIM * tolerance, at_work, basis, min(restart, left))
        left -= max(1, int(used.max()))
        candidate = x + dx
        r_new = b - operator(candidate)
        seen = after = row_norms(r_new)
        better = at_work & (after < residual)  # never worse, and never a NaN
        whole = bool((better | ~at_work).all())  # the candidate is what x becomes, in every row
        x = torch.where(better[:, None], candidate, x)
        r = torch.where(better[:, None], r_new, r)
        gained = better & (after <= _STAGNANT * residual)
        residual = torch.where(better, after, residual)
        steps += used
        at_work = gained & (residual > tolerance)
    if not whole:
        seen = row_norms(b - operator(x))
    rounding = 8 * torch.finfo(b.dtype).eps * (size + row_norms(x))
    return _answer(x, residual, seen, steps, tolerance, rounding)


def _answer(
    x: Tensor, residual: Tensor, seen: Tensor, steps: Tensor, tolerance: Tensor, rounding: Tensor
) -> Krylov:
    """x, judged by the residual of all rows together instead of the one that each row had on its own.

    A residual that has grown by no more than the rounding of another product counts as unchanged.
    """
    believed = torch.isfinite(residual) & (residual <= tolerance)
    residual = torch.where(seen <= residual + rounding, residual, seen)
    converged = torch.isfinite(residual) & (residual <= tolerance)
    return Krylov(x, residual, steps, converged, believed & ~converged)


def _cycle(
    operator: Callable[[Tensor], Tensor],
    r: Tensor,
    residual: Tensor,
    aim: Tensor,
    at_work: Tensor,
    basis: Tensor,
    length: int,
) -> tuple[Tensor, Tensor]:
    """The correction of one cycle, (n, D), and the dimensions each row used, (n,).

    A row that ends gets zero basis vectors from there on: they cost it nothing and change nothing.
    `turn` is the orthogonal matrix that makes the Hessenberg matrix triangular; each step adds a Givens
    rotation. Its first column times ‖r‖ is the rotated right-hand side, whose last entry is the residual.
    """
    n = len(r)
    eps = torch.finfo(r.dtype).eps
    turn = torch.eye(length + 1, dtype=r.dtype, device=r.device).repeat(n, 1, 1)
    triangle = r.new_zeros(n, length, length)
    basis[:, 0] = torch.where(at_work[:, None], r / residual[:, None], 0.0)
    used = torch.zeros(n, dtype=torch.int64, device=r.device)
    live = at_work
    k = 0
    for k in range(length):
        span = basis[:, : k + 1]  # (n, k + 1, D)
        w = operator(span[:, k])
        size = torch.linalg.vector_norm(w, dim=1)
        h, w = _orthogonalise(span, w)
        beyond = torch.linalg.vector_norm(w, dim=1)
        column = (turn[:, : k + 1, : k + 1] @ h[:, :, None])[:, :, 0]  # (n, k + 1)
        pivot = torch.hypot(column[:, k], beyond)
        usable = live & torch.isfinite(size) & (pivot > 10 * eps * size)  # else A is singular here
        cosine = torch.where(usable, column[:, k] / pivot, 1.0)[:, None]
        sine = torch.where(usable, beyond / pivot, 0.0)[:, None]
        column[:, k] = pivot
        triangle[:, : k + 1, k] = torch.where(usable[:, None], column, 0.0)
        triangle[:, k, k].masked_fill_(~usable, 1.0)
        upper, lower = turn[:, k].clone(), turn[:, k + 1]
        turn[:, k] = cosine * upper + sine * lower
        turn[:, k + 1] = cosine * lower - sine * upper
        used += usable
        live = usable & (turn[:, k + 1, 0].abs() * residual > aim)
        if not bool(live.any()):
            break
        basis[:, k + 1] = torch.where(live[:, None], w / beyond[:, None], 0.0)
    m = k + 1
    rhs = residual[:, None] * turn[:, :m, 0]
    rhs = torch.where(torch.arange(m, device=r.device) < used[:, None], rhs, 0.0)
    y = torch.linalg.solve_triangular(triangle[:, :m, :m], rhs[:, :, None], upper=True)  # (n, m, 1)
    return combined(y[:, :, 0], basis[:, :m]), used


def _orthogonalise(span: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """w without its part in the span, and the coefficients of that part: Gram-Schmidt, done twice."""
    h = products(span, w)
    w = w - combined(h, span)
    again = products(span, w)
    return h + again, w - combined(again, span)


def _check(b: Tensor, x0: Tensor | None, max_steps: int, restart: int) -> None:
    if b.ndim != 2:
        raise ValueError(f"b must be (n, D), one row for each system. Got shape {tuple(b.shape)} instead.")
    if x0 is not None and (x0.shape != b.shape or x0.dtype != b.dtype):
        raise ValueError(
            f"x0 must be {tuple(b.shape)} and {b.dtype} like b. Got {tuple(x0.shape)} and {x0.dtype} instead."
        )
    for name, value in (("max_steps", max_steps), ("restart", restart)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be an integer ≥ 1. Got {value!r} instead.")
