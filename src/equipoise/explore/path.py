"""θ_0, θ_1, …, θ_K: the weights on the way of a training, which is repeated to see them.

A run keeps no weights of its way, but what it rests on: the same rows and recipe make the same steps again.

    path = training_path(X, y, "classification", recipe)
    directions, way, shares = path_plane(list(path.weights.values()))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..history import History
from ..recipe import Kind, Recipe
from ..tasks.fitted import Fitted
from ..tasks.fitting import fit
from ..train.checkpoint import Checkpoints

MOMENTS = 30  # of a training that is repeated, at which its weights are kept
AGREES = 1e-6  # relative: more than the order of sums makes of a training that is the same
_PREFIXES = "parameter.", "model/"  # of the weights in a checkpoint of certified and of free training


@dataclass(frozen=True)
class TrainingPath:
    """The weights at some moments, from the start to those of the network that came out."""

    weights: dict[int, dict[str, Tensor]]  # by step of certified training, by epoch of free training
    fitted: Fitted  # the training's outcome, once more
    departure: float = 0.0  # of that outcome from the network whose training was repeated, relative


class Unrepeated(ArithmeticError):
    """A training that, repeated, came to other weights: `departure` says by how much, relative."""

    def __init__(self, departure: float) -> None:
        super().__init__(
            f"trained again, the weights differ by {departure:.1g} relative, {AGREES:g} is allowed: use the "
            "machine, the number of threads and the versions of the training"
        )
        self.departure = departure


class Moments(Checkpoints):
    """Checkpoints that are not written: of each the parameters are kept, and none is gone on from."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, Tensor]] = {}

    def save(self, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
        """Keep the parameters among the tensors of a checkpoint, by epoch or step."""
        self.weights[facts.get("epoch", step)] = {
            name.removeprefix(prefix): t.detach().cpu().clone()
            for prefix in _PREFIXES
            for name, t in tensors.items()
            if name.startswith(prefix)
        }
        return Path()

    def steps(self) -> list[int]:
        """None: there is no checkpoint to go on from."""
        return []

    def parts(self) -> list[Path]:
        """None: nothing is written."""
        return []


def training_path(X: Any, y: Any, kind: Kind, recipe: Recipe, *, every: int = 1, **how: Any) -> TrainingPath:
    """Train as `fit` does, and keep the weights every so many steps, or epochs of free training, in memory.

    `how` are keywords of `fit`. Where patience has returned to earlier weights, the path ends there.
    """
    kept = Moments()
    fitted = fit(X, y, kind, recipe, checkpoints=kept, every=every, **how)
    start = fitted.start()
    end = last_moment(fitted.history)
    names = [name for name, _ in start.named_parameters()]
    between = {k: {n: w[n] for n in names} for k, w in sorted(kept.weights.items()) if 0 < k < end}
    return TrainingPath({0: _weights(start), **between, end: _weights(fitted.model)}, fitted)


def repeated_path(fitted: Fitted, X: Any, y: Any, kind: Kind, recipe: Recipe, **how: Any) -> TrainingPath:
    """The path of a training that led to `fitted`, at about 30 moments; `Unrepeated` if it ends elsewhere.

    `how` are the keywords that `fit` was given.
    """
    every = -(-last_moment(fitted.history) // MOMENTS)
    path = training_path(X, y, kind, recipe, every=every, **how)
    differs = departure(path.fitted.model, fitted.model)
    if not differs <= AGREES:
        raise Unrepeated(differs)
    return replace(path, departure=differs)


def last_moment(history: History) -> int:
    """The step or epoch whose weights the network was left at."""
    return history.steps if history.best is None else history.best


def departure(model: nn.Module, other: nn.Module) -> float:
    """max ‖p − p'‖/‖p'‖ over the parameters: 0 where all are equal bit for bit."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    doubled = [(p.detach().double(), q.detach().double()) for p, q in pairs]
    return max(float((p - q).norm() / q.norm().clamp_min(1e-300)) for p, q in doubled)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}
