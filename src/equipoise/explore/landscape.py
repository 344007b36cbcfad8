"""Φ(s, t) = L(θ + s d₁ + t d₂): the loss on a line or a plane of weights    [hieu2022, §4.2].

A point of the plane is other weights, and an equilibrium model may have no unique equilibrium there, or none
that is found: such a point is masked, with its reason, and never given a number. The grid is walked so that
neighbours follow each other, each solve starting at the equilibria of the one before.

    d1, d2 = random_directions(model, 2, generator)
    slice = landscape(model, affine_loss(X, y), (d1, d2), axis, axis)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..linalg.products import FactorisationError
from ..losses import Loss
from ..models.base import EquilibriumModel
from ..models.saving import Saved
from ..solve import EquilibriumError, Stop
from ..theory.certify import certify
from ..train.objective import as_objective
from .trajectory import equilibria_plane

Direction = Mapping[str, Tensor]  # one tensor for each parameter; a parameter that is left out stays
Measure = Callable[[Tensor, Tensor], Tensor]  # from outputs ŷ and targets y to a scalar


@dataclass(frozen=True)
class Reading:
    """The loss at one point; or the reason why it has none."""

    loss: float = float("nan")
    state: Any = None  # where the next solve may start
    reason: str = ""


Evaluate = Callable[[nn.Module, Any], Reading]  # called with a model, and the state of a neighbour or None


@dataclass(frozen=True)
class Landscape:
    """The loss on a grid: `loss` is (len(s),) or (len(t), len(s)), NaN where it is masked."""

    s: np.ndarray
    t: np.ndarray | None
    loss: np.ndarray
    reasons: Mapping[str, int]  # why points are masked, and how many
    solves: int = 0

    @property
    def masked(self) -> np.ndarray:
        """Which points have no loss."""
        return np.isnan(self.loss)

    def share_below(self, level: float) -> float:
        """The share of the slice where the loss is known and at most `level`: what is masked is not low."""
        with np.errstate(invalid="ignore"):
            return float(np.mean(self.loss <= level))

    def share_error(self, level: float) -> float:
        """How much a grid of half the resolution differs in that share: what the grid leaves open."""
        coarse = self.loss[::2] if self.loss.ndim == 1 else self.loss[::2, ::2]
        with np.errstate(invalid="ignore"):
            return abs(self.share_below(level) - float(np.mean(coarse <= level)))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, in which a loss that is masked is null."""
        loss = self.loss.astype(object)
        loss[self.masked] = None
        return {
            "s": self.s.tolist(),
            "t": None if self.t is None else self.t.tolist(),
            "loss": loss.tolist(),
            "reasons": dict(self.reasons),
            "solves": self.solves,
        }


# -- directions ----------------------------------------------------------------------------------------------


def random_directions(
    model: nn.Module, count: int, generator: torch.Generator, ignore: Collection[str] = ()
) -> list[dict[str, Tensor]]:
    """Normal directions, each filter scaled to the norm of the model's own filter.

    A filter is a row of a matrix, an output channel of a convolution, or a whole vector. Because of this
    scaling, the picture does not change if one layer's weights are scaled up and the next ones' down so that
    the network stays the same. Parameters in `ignore` do not move.
    """
    for name in ignore:
        _refuse_unknown(model, name, "ignore")
    found = []
    for _ in range(count):
        direction = {}
        for name, p in model.named_parameters():
            if name in ignore:
                continue
            d = torch.randn(p.shape, dtype=p.dtype, generator=generator).to(p.device)
            direction[name] = d * _filter_norms(p.detach()) / _filter_norms(d).clamp_min(1e-300)
        found.append(direction)
    _refuse_empty(found)
    return found


def _filter_norms(p: Tensor) -> Tensor:
    """‖p_f‖ of each filter f, shaped to multiply p."""
    if p.ndim < 2:
        return p.norm()
    return p.flatten(1).norm(dim=1).reshape(-1, *[1] * (p.ndim - 1))


def between(model: nn.Module, other: nn.Module) -> dict[str, Tensor]:
    """θ' − θ: the line on which s = 0 is this model and s = 1 the other.

    Only parameters move on a line, so nothing else may differ, as far as `differences` can tell.
    """
    if differ := differences(model, other):
        raise ValueError(
            f"both models must be the same except for their weights. They differ in {', '.join(differ)}."
        )
    theirs = dict(other.named_parameters())
    return {n: (theirs[n] - p).detach() for n, p in model.named_parameters()}


def differences(model: nn.Module, other: nn.Module) -> list[str]:
    """In what two models differ besides their weights: ["gamma (0.2 and 0.7)"], or nothing.

    The class and constants of each module are compared (`config()`, else what its repr shows); if those
    agree, the shapes and types of parameters, and buffers. A constant that none of these shows is not known.
    """
    if type(model) is not type(other):
        return [f"class ({type(model).__name__} and {type(other).__name__})"]
    if found := _unlike(_constants(model), _constants(other)):
        return found
    shapes = [
        {f"parameter {n}": (*p.shape, p.dtype) for n, p in m.named_parameters()} for m in (model, other)
    ]
    mine, theirs = dict(model.named_buffers()), dict(other.named_buffers())
    same = {n for n in mine.keys() & theirs.keys() if torch.equal(mine[n], theirs[n])}
    return _unlike(*shapes) + [f"buffer {n}" for n in sorted((mine.keys() | theirs.keys()) - same)]


def _constants(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, part in model.named_modules():
        at = f"{name}." if name else ""
        found[f"{at}class"] = type(part).__name__
        try:
            own = part.config() if isinstance(part, Saved) else {"constants": part.extra_repr()}
        except NotImplementedError:  # a family of someone's own that cannot be saved
            own = {"constants": part.extra_repr()}
        found |= {f"{at}{key}": value for key, value in own.items()}
    return found


def _unlike(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    names = [n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n)]
    return [f"{n} ({mine.get(n, 'none')} and {theirs.get(n, 'none')})" for n in names]


def path_plane(
    path: Sequence[Direction],
) -> tuple[list[dict[str, Tensor]], np.ndarray, tuple[float, float]]:
    """θ_K + s a₁ + t a₂: the plane through the end of a training path, along its first two components.

    a₁ and a₂, of norm 1, are the principal components of the weights θ_0, …, θ_K about their mean. Returned
    are both as directions, the path in their coordinates (K + 1, 2), which ends in (0, 0), and the share of
    the path's variance that each holds. The path itself is kept while training:

        path = []
        keep = lambda measured: path.append({n: p.detach().clone() for n, p in model.named_parameters()})
        Trainer(model, "half_square", epochs=20).fit(X, y, record=keep)
        directions, way, shares = path_plane(path)
        s, t = (np.linspace(c.min() - 0.1, c.max() + 0.1, 21) for c in way.T)
        found = landscape(model, affine_loss(X, y), directions, s, t)  # the model is at the path's end
        contours(found.s, found.t, found.loss, paths={"training": way})
    """
    if len(path) < 3:
        raise ValueError(f"a plane needs a path of 3 points or more. Got {len(path)} instead.")
    last = path[-1]
    flat = torch.stack([torch.cat([p[n].detach().double().flatten() for n in last]) for p in path])
    if bool((flat == flat[-1]).all()):
        raise ValueError(f"a plane needs a path that moves. Got {len(path)} times the same weights instead.")
    plane = equilibria_plane(flat)
    sizes = [p.numel() for p in last.values()]
    directions = []
    for axis in torch.from_numpy(plane.axes):
        parts = zip(last.items(), axis.split(sizes), strict=True)
        directions.append({n: part.reshape(p.shape).to(p) for (n, p), part in parts})
    way = plane.coordinates(flat)
    return directions, way - way[-1], plane.shares


def _refuse_empty(directions: Sequence[Direction]) -> None:
    if not directions or any(not d for d in directions):
        raise ValueError("a direction must move at least one parameter. Got none: ignore fewer.")


def _refuse_unknown(model: nn.Module, name: str, what: str) -> None:
    names = [n for n, _ in model.named_parameters()]
    if name not in names:
        known = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        raise ValueError(f"{what} must name parameters of the model ({known}). Got {name!r} instead.")


def _refuse_unfit(model: nn.Module, directions: Sequence[Direction]) -> None:
    """Directions are of the model's parameters and have their shapes: nothing is left out or broadcast."""
    _refuse_empty(directions)
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
    for direction in directions:
        for name, d in direction.items():
            _refuse_unknown(model, name, "a direction")
            if tuple(d.shape) != shapes[name]:
                raise ValueError(
                    f"a direction must be {shapes[name]} in {name}, like the parameter. "
                    f"Got shape {tuple(d.shape)} instead."
                )


# -- evaluation ----------------------------------------------------------------------------------------------


def affine_loss(
    X: Tensor, y: Tensor, loss: str | Loss | Measure | None = None, stop: Stop | None = None
) -> Evaluate:
    """Evaluate an affine family. A point is masked unless its weights are well-posed and every row's
    equilibrium is found.

    The loss is summed over the rows. It is one that a Trainer knows by name ("cross_entropy" too, whose y are
    labels or probabilities), by default the family's own; or any function of (ŷ, y) that returns a scalar.
    """
    if not len(X):
        raise ValueError(f"X must hold at least one row. Got shape {tuple(X.shape)} instead.")

    def evaluate(model: Any, state: Any) -> Reading:
        if not isinstance(model, EquilibriumModel) or model.any_cell:
            raise TypeError(
                f"affine_loss takes families whose equilibria can be proved unique. Got "
                f"{type(model).__name__} instead: module_loss(loss) takes any model."
            )
        if callable(loss):
            measure = loss
        else:
            objective = as_objective(loss, model, y)
            measure = lambda yhat, y: objective.each(yhat, y).sum()
        weight = getattr(model, "weight", None)  # it may hold products of parameters, which overflow
        if callable(weight) and not bool(torch.isfinite(weight()).all()):
            return Reading(reason="weights not finite")
        if not _unique(model, X):
            return Reading(reason="equilibrium not proved unique")
        try:
            solution = model.solve(X, start=state, stop=stop)
        except FactorisationError:  # weights so large that they cannot be decomposed
            return Reading(reason="equilibrium not found")
        if solution.failed_rows:
            return Reading(reason="equilibrium not found")
        assert isinstance(solution.value, Tensor)
        with torch.no_grad():
            value = measure(model.readout(solution.value), y).item()
        return Reading(value, solution.value) if np.isfinite(value) else Reading(reason="loss not finite")

    return evaluate


def _unique(model: Any, X: Tensor) -> bool:
    """Whether the weights are known to give every input one equilibrium."""
    if not hasattr(model, "check_wellposed"):
        return certify(model, X[:1], theorem="wellposed").proved
    try:
        model.check_wellposed()
    except ValueError:
        return False
    return True


def module_loss(loss: Callable[..., Any]) -> Evaluate:
    """Evaluate any model by `loss(model, state)`, which returns a number, or a number and the next state.

    A point is masked if an equilibrium is not found (an EquilibriumError) or the number is not finite.
    Whether the equilibria of a general cell are unique is not checked.
    """

    def evaluate(model: nn.Module, state: Any) -> Reading:
        try:
            with torch.no_grad():
                found = loss(model, state)
        except EquilibriumError:
            return Reading(reason="equilibrium not found")
        value, after = found if isinstance(found, tuple) else (found, None)
        if not np.isfinite(float(value)):
            return Reading(reason="loss not finite")
        return Reading(float(value), after)

    return evaluate


@torch.no_grad()
def shifted(model: nn.Module, directions: Sequence[Direction], coordinates: Sequence[float]) -> nn.Module:
    """A copy of the model at θ + Σ s_i d_i."""
    _refuse_unfit(model, directions)
    if len(coordinates) != len(directions):
        raise ValueError(
            f"coordinates must be {len(directions)}, one for each direction. Got {len(coordinates)} instead."
        )
    twin = copy.deepcopy(model)
    _place(twin, {n: p.detach() for n, p in model.named_parameters()}, directions, coordinates)
    return twin


@torch.no_grad()
def _place(
    model: nn.Module, centre: Direction, directions: Sequence[Direction], coordinates: Sequence[float]
) -> None:
    for name, p in model.named_parameters():
        value = centre[name].clone()
        for direction, c in zip(directions, coordinates, strict=True):
            if name in direction:
                value += c * direction[name]
        p.copy_(value)


def landscape(
    model: nn.Module,
    evaluate: Evaluate,
    directions: Sequence[Direction],
    s: Sequence[float] | np.ndarray,
    t: Sequence[float] | np.ndarray | None = None,
    progress: Callable[[float], None] | None = None,
) -> Landscape:
    """The loss at θ + s d₁ (+ t d₂) on a grid. The model itself is left as it is."""
    _refuse_unfit(model, directions)
    if len(directions) != (1 if t is None else 2):
        raise ValueError(f"a line takes one direction, a plane (t given) two. Got {len(directions)} instead.")
    columns = _coordinates("s", s)
    rows = np.zeros(1) if t is None else _coordinates("t", t)
    centre = {n: p.detach().clone() for n, p in model.named_parameters()}
    twin = copy.deepcopy(model)
    values = np.full((len(rows), len(columns)), np.nan)
    reasons: dict[str, int] = {}
    state, solves = None, 0
    for i, b in enumerate(rows):
        order = range(len(columns)) if i % 2 == 0 else reversed(range(len(columns)))
        for j in order:  # to and fro: the next point is a neighbour of the last
            place = (columns[j],) if t is None else (columns[j], b)
            _place(twin, centre, directions, place)
            finite = all(bool(torch.isfinite(p).all()) for p in twin.parameters())
            reading = evaluate(twin, state) if finite else Reading(reason="weights not finite")
            solves += 1
            if reading.reason:
                reasons[reading.reason] = reasons.get(reading.reason, 0) + 1
            else:
                values[i, j], state = reading.loss, reading.state
        if progress is not None:
            progress((i + 1) / len(rows))
    return Landscape(
        s=columns,
        t=None if t is None else rows,
        loss=values[0] if t is None else values,
        reasons=reasons,
        solves=solves,
    )


def _coordinates(name: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
    found = np.asarray(values, dtype=float)
    if found.ndim != 1 or not len(found):
        raise ValueError(f"{name} must be coordinates (K,), at least one. Got shape {found.shape} instead.")
    if len(wrong := np.flatnonzero(~np.isfinite(found))):
        raise ValueError(f"{name} must be finite. Got {found[wrong[0]]} at {wrong[0]} instead.")
    return found
