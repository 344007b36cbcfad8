"""History: what was measured at each step of a training run, next to what was promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class History:
    """Measurements of a run. `loss[0]` is the start, `loss[k]` the loss after k steps.

    Series that are measured at every step are arrays of `steps + 1` numbers; those that are measured at
    chosen steps are maps from step to number.
    """

    loss: np.ndarray  # (steps + 1,)
    times: np.ndarray  # (steps + 1,) time of the dynamics: k·η for descent with one step size, t for a flow
    step_sizes: Mapping[str, float] = field(default_factory=dict)
    loss_name: str = "half_square"
    plain_loss: np.ndarray | None = None  # without the penalty of the readout that `loss` has with slack
    test_loss: dict[int, float] = field(default_factory=dict)
    test_accuracy: dict[int, float] = field(default_factory=dict)
    test_r2: dict[int, float] = field(default_factory=dict)
    norms: dict[str, np.ndarray] = field(default_factory=dict)  # ‖θ‖_F by parameter, (steps + 1,)
    contraction: dict[int, float] = field(default_factory=dict)  # q of the map, where measured
    sigma_min: dict[int, float] = field(default_factory=dict)  # σ_min(Z), where measured
    movement: dict[int, float] = field(default_factory=dict)  # ‖Z − Z(0)‖_F / ‖Z(0)‖_F
    travelled: dict[str, dict[int, float]] = field(default_factory=dict)  # ‖θ − θ(0)‖_F by parameter
    forward_steps: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))  # solver steps
    adjoint_steps: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))
    residual: np.ndarray = field(default_factory=lambda: np.zeros(0))  # largest relative residual of Z
    least_loss: float = 0.0  # L*, where a promise is on the gap L − L*
    promised: np.ndarray | None = None  # bound of relative_loss, when a certificate gave one
    accepted: dict[str, np.ndarray] = field(default_factory=dict)  # safeguarded runs: what each step accepted
    anchored: dict[str, Any] = field(default_factory=dict)  # anchored runs: the objective F and checkpoints
    learning_rate: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (steps,), where it changes
    best: int | None = None  # the step whose weights the model was left at, where that is not the last
    seconds: float = 0.0
    stopped: str = ""  # why the run ended early, if it did
    advice: str = ""  # what to try then

    @property
    def steps(self) -> int:
        """The number of steps that were taken."""
        return len(self.loss) - 1

    @property
    def relative_loss(self) -> np.ndarray:
        """(L(k) − L*)/(L(0) − L*), with L* = 0 unless the run says otherwise."""
        gap = self.loss - self.least_loss
        return gap / gap[0] if gap[0] > 0 else np.zeros_like(gap)

    def violations(self) -> list[int]:
        """The steps at which the loss is above what was promised: there should be none."""
        if self.promised is None:
            return []
        return np.nonzero(~(self.relative_loss <= self.promised))[0].tolist()

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""

        def plain(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value.tolist()
            if isinstance(value, Mapping):
                return {str(k): plain(v) for k, v in value.items()}
            return value

        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        end = f", stopped: {self.stopped}" if self.stopped else ""
        return f"History({self.steps} steps, loss {self.loss[0]:.4g} → {self.loss[-1]:.4g}{end})"
