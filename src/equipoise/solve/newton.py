"""z ← z + δ, (I − J(z)) δ = f(z) − z: semismooth Newton for each sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .activation import RELU
from .krylov import gmres
from .norms import row_norms
from .problem import Map
from .solver import Solver, SolverState

# Full steps without a record (a merit below _RECORD of the lowest) that a row of z = relu(W z + b) may take
# before it is guarded: they usually find the active set sooner than any search along the step.
_SPARE = 8
_RECORD = 0.9
_GROWTH = 100.0  # a full step beyond this multiple of the record is refused at once
# A guarded row needs merit(z + t δ) ≤ (1 − _DECREASE t) merit(z), t = 1, ½, ¼, …, at most _HALVINGS halvings.
_DECREASE = 1e-4
_HALVINGS = 20
# Least and most forcing term of the inexact steps: δ leaves this share of the residual of its equation.
_FORCING = 1e-3, 1e-2
# Building a Jacobian column by column pays up to this width; beyond it, GMRES needs fewer products.
_COLUMNS = 16
# At most this many numbers in a stack of small matrices that are solved together.
_STACK = 1 << 20


@dataclass
class NewtonState(SolverState):
    """What Newton's method carries from step to step."""

    merit: Tensor  # (n,) one step before
    record: Tensor  # (n,) lowest merit
    spare: Tensor  # (n,) full steps without a record still allowed; below 0 the row is guarded


@dataclass(frozen=True)
class Newton(Solver):
    """z ← z + t δ, (I − J(z)) δ = f(z) − z.

    It converges quadratically near a solution; on a piecewise linear map it ends at rounding level once it
    has found the right piece. The equation for δ is solved directly for an AffineMap up to the width
    `dense_limit`, on the coordinates where σ has a slope; otherwise by GMRES in at most `krylov` dimensions,
    each of which takes a Jacobian-vector product, to a tolerance that tightens as the residual falls.

    Every row is guarded: t is halved until the residual falls. For z = relu(W z + b) full steps are taken on
    trust at first. A row that they do not help follows the Fischer-Burmeister function. Its norm is a smooth
    merit function without false minima if I − W is a P-matrix (as for contractions and strongly monotone
    maps), so the row reaches the one equilibrium from any start [De Luca, Facchinei & Kanzow 1996]. A row
    whose system is singular, or whose search fails, takes the plain step f(z), which is counted.
    """

    dense_limit: int = 256
    krylov: int = 50

    def __post_init__(self) -> None:
        for name, low in (("dense_limit", 0), ("krylov", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ValueError(f"{name} must be an integer ≥ {low}. Got {value!r} instead.")

    def init(self, f: Map, z: Tensor) -> NewtonState:
        """The state before the first step."""
        inf = z.new_full((len(z),), torch.inf)
        spare = torch.full((len(z),), _SPARE if _is_relu(f) else -1, dtype=torch.int64, device=z.device)
        return NewtonState(merit=inf, record=inf, spare=spare)

    def step(self, f: Map, z: Tensor, fz: Tensor, state: NewtonState) -> tuple[Tensor, NewtonState]:
        """One safeguarded Newton step of every row."""
        p = None if f.affine is None else f.affine.preactivation(z)
        merit, guarded = _merit(f, z, fz - z, p), state.spare < 0
        working = torch.isfinite(merit) if f.working is None else torch.isfinite(merit) & f.working
        state.record = torch.minimum(state.record, merit.nan_to_num(nan=torch.inf))

        delta = self._direction(f, z, fz - z, p, working, guarded, _forcing(merit, state.merit))
        usable = working & torch.isfinite(delta).all(dim=1) & (delta != 0).any(dim=1)
        z_new = torch.where((working & ~usable)[:, None], fz, z)

        full = z + delta
        after = _merit_at(f, full)
        trusted = usable & ~guarded & (after <= _GROWTH * state.record)
        state.spare = state.spare - (trusted & (after > _RECORD * state.record)).long()
        trusted &= state.spare >= 0
        state.spare = state.spare.masked_fill(usable & ~trusted, -1)
        z_new = torch.where(trusted[:, None], full, z_new)

        searched = usable & guarded
        if bool(searched.any()):
            found, failed = _search(f, z, delta, merit, after, searched)
            z_new = torch.where(searched[:, None], torch.where(failed[:, None], fz, found), z_new)
            usable &= ~failed
        f.counts.fallbacks += int((working & ~usable).sum())
        state.merit = merit
        return z_new, state

    def _direction(
        self,
        f: Map,
        z: Tensor,
        g: Tensor,
        p: Tensor | None,
        working: Tensor,
        guarded: Tensor,
        forcing: Tensor,
    ) -> Tensor:
        """δ of every row, (n, D); not finite where its system is singular, 0 where the row is not at work."""
        rhs, idle = g, ~working[:, None]
        if f.affine is not None and p is not None:
            affine, slope = f.affine, f.affine.activation.slope(p)
            if _is_relu(f) and bool(guarded.any()):
                smooth_slope, smooth_rhs = _fischer_burmeister_system(z, z - p)
                slope = torch.where(guarded[:, None], smooth_slope, slope)
                rhs = torch.where(guarded[:, None], smooth_rhs, rhs)
            rhs, slope = rhs.masked_fill(idle, 0.0), slope.masked_fill(idle, 0.0)
            if z.shape[1] <= self.dense_limit:
                return _solve_affine(affine.weight, slope, rhs)

            def affine_product(v: Tensor) -> Tensor:
                f.counts.jvps += 1
                return slope * (v @ affine.weight.T)

            product: Callable[[Tensor], Tensor] = affine_product
        else:
            rhs, product = rhs.masked_fill(idle, 0.0), f.linearise(z)
            if z.shape[1] <= min(self.dense_limit, _COLUMNS):
                return _solve_columns(product, rhs, working)
        return gmres(
            lambda v: v - product(v), rhs, rtol=forcing, max_steps=self.krylov, restart=self.krylov
        ).value


def _is_relu(f: Map) -> bool:
    return f.affine is not None and f.affine.activation is RELU


def _forcing(merit: Tensor, before: Tensor) -> Tensor:
    """0.9 (‖g‖ / ‖g_last‖)²: loose while far, tight where the steps succeed [Eisenstat & Walker 1996]."""
    return torch.where(before.isinf(), _FORCING[1], 0.9 * (merit / before) ** 2).clamp(*_FORCING)


def _merit(f: Map, z: Tensor, g: Tensor, p: Tensor | None) -> Tensor:
    """What a step must lower: ‖f(z) − z‖, or its smooth equivalent where f(z) = relu(p)."""
    if _is_relu(f) and p is not None:
        g = _fischer_burmeister(z, z - p)
    return row_norms(g)


def _merit_at(f: Map, z: Tensor) -> Tensor:
    if f.affine is None:
        return _merit(f, z, f(z) - z, None)
    f.counts.evaluations += 1
    f.counts.row_evaluations += len(z)
    p = f.affine.preactivation(z)
    return _merit(f, z, f.affine.activation(p) - z, p)


def _search(
    f: Map, z: Tensor, delta: Tensor, merit: Tensor, after: Tensor, searched: Tensor
) -> tuple[Tensor, Tensor]:
    """z + t δ with the first t = 1, ½, ¼, … that lowers the merit, and which rows have none."""
    found, t = z + delta, 1.0
    pending = searched & ~(after <= (1 - _DECREASE) * merit)
    for _ in range(_HALVINGS):
        rows = torch.nonzero(pending).flatten()
        if not len(rows):
            break
        t /= 2
        trial = z + t * delta
        if f.compactable:
            after = torch.full_like(merit, torch.inf)
            after[rows] = _merit_at(f.take(rows), trial[rows])
        else:
            after = _merit_at(f, trial)
        lower = pending & (after <= (1 - _DECREASE * t) * merit)
        found = torch.where(lower[:, None], trial, found)
        pending = pending & ~lower
    return found, pending


def _fischer_burmeister(a: Tensor, b: Tensor) -> Tensor:
    """φ = √(a² + b²) − a − b, zero where a ≥ 0, b ≥ 0, ab = 0; z = relu(p) is that for a = z, b = z − p."""
    h, s = torch.hypot(a, b), a + b
    return torch.where(s > 0, -2 * a * (b / (h + s)), h - s)


def _fischer_burmeister_system(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The slope s and right-hand side r with which (I − diag(s) W) δ = r is Newton's equation of φ = 0.

    It is (diag(α) + diag(β)(I − W)) δ = φ, α = −∂φ/∂a, β = −∂φ/∂b, divided by α + β > ½.
    """
    h = torch.hypot(a, b)
    kink = h == 0
    h = h.masked_fill(kink, 1.0)
    alpha = (1 - a / h).masked_fill(kink, 1 - 0.5**0.5)
    beta = (1 - b / h).masked_fill(kink, 1 - 0.5**0.5)
    return beta / (alpha + beta), _fischer_burmeister(a, b) / (alpha + beta)


def _solve_affine(weight: Tensor, slope: Tensor, rhs: Tensor) -> Tensor:
    """(I − diag(s) W) δ = r: δ = r where s = 0, so that only the other coordinates need a solve."""
    if len(rhs) > 1 and torch.equal(slope, slope[:1].expand_as(slope)):
        return _solve(_system(weight, slope[:1]), rhs.T[None])[0].T  # one matrix for all: σ is linear
    delta = rhs.clone()
    active = slope != 0
    size = max(1, int(active.sum(dim=1).max())) if len(rhs) else 1
    for part in torch.arange(len(rhs), device=rhs.device).split(max(1, _STACK // size**2)):
        at = torch.argsort(active[part], dim=1, descending=True, stable=True)[:, :size]  # (n, size)
        s, r = slope[part], rhs[part]
        rest = r.scatter(1, at, 0.0) @ weight.T  # W acting on the coordinates already known
        inner = (r + s * rest).gather(1, at)
        matrix = _system(weight[at[:, :, None], at[:, None, :]], s.gather(1, at))
        delta[part] = r.scatter(1, at, _solve(matrix, inner[:, :, None])[:, :, 0])
    return delta


def _solve_columns(product: Callable[[Tensor], Tensor], rhs: Tensor, working: Tensor) -> Tensor:
    """(I − J) δ = r with J built by its products with the unit vectors."""
    eye = torch.eye(rhs.shape[1], dtype=rhs.dtype, device=rhs.device)
    columns = [product(unit.expand_as(rhs)) for unit in eye]
    matrix = eye - torch.stack(columns, dim=2)
    matrix = torch.where(working[:, None, None], matrix, eye)
    return _solve(matrix, rhs[:, :, None])[:, :, 0]


def _system(weight: Tensor, slope: Tensor) -> Tensor:
    """I − diag(s) W for every row of s, (n, D, D)."""
    matrix = -slope[:, :, None] * weight
    matrix.diagonal(dim1=1, dim2=2).add_(1)
    return matrix


def _solve(matrix: Tensor, rhs: Tensor) -> Tensor:
    solution, info = torch.linalg.solve_ex(matrix, rhs)
    return solution.masked_fill((info > 0)[:, None, None], torch.nan)
