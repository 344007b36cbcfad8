"""verify_predictions: whether a network's answers hold on whole sets of inputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..register import facts
from .attack import attacked, broken
from .bounds import Problem
from .branch import Effort, Search
from .network import UnitNetwork
from .outputs import Wanted
from .radius import VerifiedRadii, bisected, distances
from .result import HYPOTHESES, VerifiedPredictions
from .sets import InputSets

Bound = float | Tensor
_ENTRIES = 1 << 22  # of the matrices that are inverted together


@torch.no_grad()
def verify_predictions(
    model: nn.Module,
    X: Tensor,
    y: Tensor | None = None,
    *,
    epsilon: Bound | None = None,
    norm: str = "linf",
    box: tuple[Bound, Bound] | None = None,
    inequalities: tuple[Tensor, Tensor] | None = None,
    nodes: int | None = None,
    seconds: float = math.inf,
    attack: tuple[int, int] = (20, 3),
    progress: Callable[[int, int], None] | None = None,
) -> VerifiedPredictions:
    """Whether every input of a set around each row gets the answer that is wanted.

    Args:
        model: of a family whose units are known: the affine families, OptEq and DeepOptEq, and of images
            ConvMonotone and ConvOptEq.
        X: (N, …) of any float dtype, taken as the exact numbers they are.
        y: classes (N,), or −1 and 1 of one output: ŷ_y must be the largest output, strictly.
        epsilon, norm: the set is ‖x − X_i‖ ≤ ε in the norm "linf" or "l2", within the box; ε is a number, or
            (N,), one for each row. Without ε the set is the box itself.
        box: (low, high), numbers or tensors (d,) or (N, d), the domain of the data; without it no bounds.
        inequalities: (Q, q) in place of y, (T, k) and (T,): Q ŷ + q > 0 must hold, row by row.
        nodes: parts of its set that are bounded for a row before it is given up as unknown: by default 2000,
            or 20 of a network of images with more than 2048 units, whose matrices are not written out.
        seconds: the same limit in time, with which results may differ from run to run.
        attack: steps and starts of the search for a counterexample; (0, 1) only looks at the row itself.
        progress: called with (rows done, rows in all).

    Bounds follow from multipliers that are not trusted, by one evaluation with outward rounding each, and
    speak of the exact network of the stored parameters.
    """
    net, believed = _network(model)
    flat = _rows(X, net)
    sets = _sets(flat, epsilon, norm, box)
    wanted = _wanted(net, len(flat), y, inequalities)
    effort = Effort() if net.dense else Effort(nodes=20, rounds=2, child_rounds=1)
    effort = effort if nodes is None else replace(effort, nodes=_positive("nodes", nodes))
    effort = replace(effort, batch=max(8, min(effort.batch, _ENTRIES // net.width**2)))
    chunk = max(8, min(256, 4 * _ENTRIES // net.width**2))
    found: list[VerifiedPredictions] = []
    for rows in torch.split(torch.arange(len(flat)), chunk):
        problem = Problem.of(net, sets.take(rows))
        some = wanted if wanted.labels is None else replace(wanted, labels=wanted.labels[rows])
        found.append(_verified(problem, some, flat[rows], effort, seconds, attack))
        if progress is not None:
            progress(int(rows[-1]) + 1, len(flat))
    result = VerifiedPredictions.joined(found)
    shaped = result.counterexample.reshape(X.shape)
    return replace(result, counterexample=shaped, hypotheses=(*HYPOTHESES, *believed))


@torch.no_grad()
def verified_radius(
    model: nn.Module,
    X: Tensor,
    y: Tensor | None = None,
    *,
    norm: str = "linf",
    box: tuple[Bound, Bound] = (-math.inf, math.inf),
    most: float = 1.0,
    steps: int = 8,
    **how: Any,
) -> VerifiedRadii:
    """For every row an ε up to `most` for which ‖x − X_i‖ ≤ ε within the box is proved, and one refuted.

    By bisection, `steps` times for each of both; `how` are options of `verify_predictions`, such as `nodes`.
    """
    net, _ = _network(model)
    flat = _rows(X, net)
    _wanted(net, len(flat), y, how.get("inequalities"))
    if not 0 < float(most) < math.inf:
        raise ValueError(f"most must be a finite number > 0. Got {most} instead.")
    low, high = (_side(side, flat) for side in box)

    def verify(rows: Tensor, epsilon: Tensor, thorough: bool) -> VerifiedPredictions:
        some = None if y is None else y.cpu()[rows]
        more = how if thorough else {**how, "nodes": 1}
        sets: dict[str, Any] = {"epsilon": epsilon, "norm": norm, "box": (low[rows], high[rows])}
        return verify_predictions(model, flat[rows], some, **sets, **more)

    def far(rows: Tensor, x: Tensor) -> Tensor:
        return distances(flat[rows], x, norm)

    found = bisected(verify, len(flat), most=float(most), steps=_positive("steps", steps), far=far)
    return replace(found, counterexample=found.counterexample.reshape(X.shape))


def _verified(
    problem: Problem, wanted: Wanted, X: Tensor, effort: Effort, seconds: float, attack: tuple[int, int]
) -> VerifiedPredictions:
    """One chunk: the row itself, bounds of the whole set, an attack on what is left, and branching."""
    N = len(X)
    clock, spent = time.perf_counter(), torch.zeros(N, dtype=torch.float64)
    counter = torch.full_like(X, math.nan)
    refuted = broken(problem, wanted, X)
    counter[refuted] = X[refuted]
    low, high, scale = problem.network.first_bounds(problem)
    problem = replace(problem, scale=scale)
    search = Search(problem, wanted, effort)
    parts = search.root(low, high)
    left = torch.zeros(N, dtype=torch.bool)
    left[parts.sample] = True
    rows = torch.nonzero(left & ~refuted).flatten()
    spent += (time.perf_counter() - clock) / N
    clock = time.perf_counter()
    if len(rows) and attack[0] > 0:
        some = wanted if wanted.labels is None else replace(wanted, labels=wanted.labels[rows])
        x = attacked(problem.take(rows), some, steps=attack[0], restarts=attack[1])
        _found(problem, wanted, rows, x, refuted, counter)
        spent[rows] += (time.perf_counter() - clock) / len(rows)
    alive = ~refuted
    clock = time.perf_counter()
    for children in search.run(parts, alive):
        _found(problem, wanted, children.sample, search.candidates, refuted, counter)
        shared = search.last.bincount(minlength=N).double()
        spent += (time.perf_counter() - clock) * shared / shared.sum()
        clock = time.perf_counter()
        alive &= ~refuted & (spent <= seconds)
    proved = search.shown & ~refuted
    margin = torch.where(proved, search.least, search.margin.amin(dim=1))
    margin = margin / torch.where(margin > 0, scale[:, 1], scale[:, 0]) * (1 - torch.sign(margin) * 2.0**-50)
    return VerifiedPredictions(proved, refuted, counter, margin, search.nodes, spent)


def _found(
    problem: Problem, wanted: Wanted, rows: Tensor, x: Tensor, refuted: Tensor, counter: Tensor
) -> None:
    """Keep those of the candidates x of some rows that are counterexamples."""
    if not len(rows):
        return
    some = wanted if wanted.labels is None else replace(wanted, labels=wanted.labels[rows])
    bad = broken(problem.take(rows), some, x) & ~refuted[rows]
    counter[rows[bad]] = x[bad]
    refuted[rows[bad]] = True


# -- what was asked ------------------------------------------------------------------------------------------


def _network(model: nn.Module) -> tuple[UnitNetwork, tuple[str, ...]]:
    known = facts(model)
    return known.unit_network().on_cpu(), tuple(getattr(known, "rests_on", ()))


def _rows(X: Tensor, net: UnitNetwork) -> Tensor:
    """X as exact float64 rows (N, d)."""
    d = net.dimension
    if not isinstance(X, Tensor) or not X.is_floating_point():
        got = X.dtype if isinstance(X, Tensor) else type(X).__name__
        raise TypeError(
            f"X must be a tensor of floats, one row for each sample. Got {got} instead: try X.double()."
        )
    if X.ndim < 2 or X[0:1].numel() not in (0, d) or math.prod(X.shape[1:]) != d:
        hint = " A single sample is X[None]." if X.ndim == 1 else ""
        raise ValueError(
            f"X must be (N, {d}), one row for each sample. Got shape {tuple(X.shape)} instead.{hint}"
        )
    if not len(X):
        raise ValueError("X must have at least one row. Got none.")
    flat = X.detach().cpu().double().reshape(len(X), d).contiguous()
    if bool((bad := ~torch.isfinite(flat).all(dim=1)).any()):
        raise ValueError(f"X must be finite. Got NaN or infinity in row {int(torch.nonzero(bad)[0])}.")
    return flat


def _sets(X: Tensor, epsilon: Bound | None, norm: str, box: tuple[Bound, Bound] | None) -> InputSets:
    if norm not in ("linf", "l2"):
        raise ValueError(f"norm must be 'linf' or 'l2'. Got {norm!r} instead.")
    if epsilon is None and box is None:
        raise ValueError("epsilon or box must say how far inputs may move. Got neither.")
    far = None if epsilon is None else torch.as_tensor(epsilon, dtype=torch.float64).detach().cpu()
    shapes = (), (len(X),)
    if far is not None and not (far.shape in shapes and bool(((far >= 0) & (far < math.inf)).all())):
        raise ValueError(f"epsilon must be a finite number ≥ 0, or one for each row, (N,). Got {epsilon}.")
    low, high = (_side(side, X) for side in ((-math.inf, math.inf) if box is None else box))
    outside = ~((low <= X) & (high >= X)).all(dim=1)
    if bool(outside.any()):
        row = int(torch.nonzero(outside)[0])
        raise ValueError(
            f"box must hold every row of X. Row {row} lies outside of it, with entries from "
            f"{float(X[row].min()):.6g} to {float(X[row].max()):.6g}: scale X, or widen the box."
        )
    if far is not None:
        return InputSets.around(X, far.expand(len(X))[:, None], norm, low, high)
    if not bool(torch.isfinite(low).all() & torch.isfinite(high).all()):
        raise ValueError("box must be finite where there is no epsilon.")
    return InputSets.of_box(low.contiguous(), high.contiguous())


def _side(side: Any, X: Tensor) -> Tensor:
    """One end of the box for every entry of X."""
    t = torch.as_tensor(side, dtype=torch.float64)
    try:
        t = t.reshape(t.shape[0], -1) if t.ndim > 2 else t
        return t.flatten().expand(X.shape) if t.ndim <= 1 else t.expand(X.shape)
    except RuntimeError:
        shape = tuple(t.shape)
        raise ValueError(f"box must be numbers, or tensors like a row or all of X. Got {shape}.") from None


def _wanted(net: UnitNetwork, N: int, y: Tensor | None, inequalities: Sequence[Tensor] | None) -> Wanted:
    k = len(net.readout)
    if (y is None) == (inequalities is None):
        raise ValueError("either y or inequalities must say what is wanted, and not both.")
    if inequalities is not None:
        Q, q = (torch.as_tensor(t, dtype=torch.float64).detach().cpu() for t in inequalities)
        if Q.ndim != 2 or Q.shape[1] != k or tuple(q.shape) != (len(Q),) or not len(Q):
            shapes = f"{tuple(Q.shape)} and {tuple(q.shape)}"
            raise ValueError(f"inequalities must be Q (T, {k}) and q (T,). Got {shapes} instead.")
        if not bool(torch.isfinite(Q).all() & torch.isfinite(q).all()):
            raise ValueError("inequalities must be finite. Got NaN or infinity.")
        return Wanted(len(Q), matrix=Q, constant=q)
    want = f"classes 0 to {k - 1}" if k > 1 else "−1 or 1"
    if not isinstance(y, Tensor) or tuple(y.shape) != (N,):
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"y must be ({N},), {want}. Got {got} instead.")
    y = y.detach().cpu()
    good = (y.long() == y) & ((y >= 0) & (y < k) if k > 1 else y.abs() == 1)
    if not bool(good.all()):
        row = int(torch.nonzero(~good)[0])
        raise ValueError(f"y must be {want}. Got {y[row].item()} in row {row} instead.")
    return Wanted(k, labels=y.long())


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer ≥ 1. Got {value!r} instead.")
    return value
