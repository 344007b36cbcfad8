"""θ_0, θ_1, …, θ_K: the weights during a training, which is repeated to see them.

A run does not keep the weights of its steps, but the same rows and recipe make the same steps again.

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

MOMENTS = 30  # about how many times the weights of a repeated training are kept
AGREES = 1e-6  # relative difference: larger than what another order of sums makes in the same training
_PREFIXES = "parameter.", "model/"  # of the weights in checkpoints of safeguarded and of batch training


@dataclass(frozen=True)
class TrainingPath:
    """The weights at some moments, from the start to those of the network that came out."""

    weights: dict[int, dict[str, Tensor]]  # by step of safeguarded training, by epoch of any other
    fitted: Fitted  # the outcome of the training when it was repeated
    departure: float = 0.0  # its relative difference from the network whose training was repeated


class Unrepeated(ArithmeticError):
    """A training that, repeated, came to other weights: `departure` says by how much, relative."""

    def __init__(self, departure: float) -> None:
        super().__init__(
            f"trained again, the weights have a relative difference of {departure:.1g}, and {AGREES:g} is "
            "allowed: use the machine, the number of threads and the versions of the training"
        )
        self.departure = departure


class Moments(Checkpoints):
    """Checkpoints that are not written: their parameters are kept in memory, and none is resumed."""

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
        """Always empty: there is no checkpoint to resume from."""
        return []

    def parts(self) -> list[Path]:
        """Always empty: nothing is written."""
        return []


def training_path(X: Any, y: Any, kind: Kind, recipe: Recipe, *, every: int = 1, **how: Any) -> TrainingPath:
    """Train as `fit` does, and keep the weights after every so many epochs, or steps if it is safeguarded.

    `how` are keywords of `fit`. If patience has returned to earlier weights, the path ends there.
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
