"""θ ← θ − h d beside the readout's step, wherever that is proved to keep ‖r⁺‖ ≤ (1 − (1−θ)ν)‖r‖.

The trainer behind the theorem `safeguarded`: every step tries a hidden update, of whatever size and
direction, together with the readout's own step, both taken at the old point. It is accepted if sound bounds,
with the error of the computed equilibria and all rounding, show (S1)-(S4); else it is shrunk, in the end to
nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..history import History
from ..models.affine import AffineFamily
from ..theory import Certificate
from ..theory.certify import certify
from .descent import check_certificate
from .guarded_run import Direction, Run, Step


def safeguarded_descent(
    model: AffineFamily,
    X: Tensor,
    y: Tensor,
    steps: int = 200,
    certificate: Certificate | None = None,
    *,
    hidden_step: float | None = None,
    direction: str | Direction = "gradient",
    X_test: Tensor | None = None,
    y_test: Tensor | None = None,
    measure: int | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> History:
    """Full-batch training that keeps the promise of its certificate while the hidden layer learns.

    Args:
        model, X, y: the network (left at its last weights) and its data.
        certificate: a proved one of theorem "safeguarded", for these weights and data; made here if None.
        hidden_step: the largest hidden step to try. By default steps are found as the run goes.
        direction: "gradient", or a function from the hidden gradients by name to the directions d to follow,
            θ ← θ − h d, such as another optimiser's. A gradient is exact to about 1e-4.
        X_test, y_test: their loss and accuracy are measured every `measure` steps, at the first and the last.
        progress: called with (step, loss).

    Returns a History. Its `loss` is the one the promise is about (with slack, `plain_loss` is that of the
    predictions), `promised` the bound, `sigma_min` a sound lower bound, and `accepted` holds by step
    `hidden`, the hidden steps taken; `tries`; and `verified`, whether (S1) was proved. At rounding level it
    cannot be: there the readout moves alone while its measured loss falls as promised, and `stopped` says so
    once it no longer does.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ValueError(f"steps must be an integer ≥ 0. Got {steps!r} instead.")
    if hidden_step is not None and not 0 <= hidden_step < math.inf:
        raise ValueError(f"hidden_step must be a finite number ≥ 0. Got {hidden_step} instead.")
    if direction != "gradient" and not callable(direction):
        raise ValueError(f"direction must be 'gradient' or a function of the gradients. Got {direction!r}.")
    if measure is not None and not (isinstance(measure, int) and measure >= 1):
        raise ValueError(f"measure must be an integer ≥ 1. Got {measure!r} instead.")
    if (X_test is None) != (y_test is None):
        raise ValueError("X_test and y_test go together.")
    certificate = certificate or certify(model, X, y, theorem="safeguarded")
    check_certificate(certificate, model, X, y)
    if certificate.theorem != "safeguarded":
        raise ValueError(
            f"the certificate must be of theorem 'safeguarded'. Got {certificate.theorem!r} instead: "
            f"its run is gradient_descent's."
        )
    began = time.perf_counter()
    with torch.no_grad():
        run = Run(model, X, y, certificate, hidden_step, direction)
        recorder = _Recorder(run, steps, X_test, y_test, measure)
        try:
            for k in range(steps + 1):
                recorder.add(k)
                if progress is not None:
                    progress(k, run.loss)
                if k < steps:
                    recorder.taken.append(run.step())
        finally:
            run.write_to(model)
    return recorder.history(certificate, time.perf_counter() - began)


class _Recorder:
    """Collects the series of a run."""

    def __init__(
        self, run: Run, steps: int, X_test: Tensor | None, y_test: Tensor | None, measure: int | None
    ) -> None:
        self.run, self.taken = run, list[Step]()
        self.test = None if X_test is None or y_test is None else (X_test.double(), y_test.double())
        self.at = {0, steps} if measure is None else {*range(0, steps + 1, measure), steps}
        self.series: dict[str, list[float]] = {n: [] for n in ("loss", "plain_loss", "forward", "adjoint")}
        self.norms: dict[str, list[float]] = {name: [] for name in run.start}
        self.maps: dict[str, dict[int, float]] = {
            n: {} for n in ("test_loss", "test_accuracy", "sigma_min", "movement")
        }
        self.travelled: dict[str, dict[int, float]] = {name: {} for name in run.start}

    def add(self, k: int) -> None:
        run = self.run
        numbers = (run.loss, run.plain_loss, run.point.solver_steps, run.adjoint_steps)
        for series, number in zip(self.series.values(), numbers, strict=True):
            series.append(number)
        for name, p in run.model.named_parameters():
            self.norms[name].append(float(p.norm()))
            self.travelled[name][k] = float((p - run.start[name]).norm())
        bound = run.features.bounds(run.point.Z, run.point.error).sigma_min.lo
        self.maps["sigma_min"][k] = math.sqrt(max(bound, 0.0) ** 2 + run.slack)
        self.maps["movement"][k] = float((run.point.Z - run.Z0).norm() / run.Z0.norm().clamp_min(1e-300))
        if k in self.at and self.test is not None:
            X, y = self.test
            yhat = run.model(X)
            self.maps["test_loss"][k] = run.scale * float((yhat - y).square().sum())
            if (share := accuracy(yhat, y)) is not None:
                self.maps["test_accuracy"][k] = share

    def history(self, certificate: Certificate, seconds: float) -> History:
        held = next((k for k, step in enumerate(self.taken) if step.held), None)
        stopped = (
            ""
            if held is None
            else f"step {held}: rounding level; no step is measured to make the promised progress."
        )
        taken = {
            "hidden": np.array([s.hidden for s in self.taken]),
            "tries": np.array([s.tries for s in self.taken], dtype=int),
            "verified": np.array([s.verified for s in self.taken], dtype=bool),
        }
        loss = np.array(self.series["loss"])
        return History(
            loss=loss,
            times=np.arange(len(loss)) * math.nan,
            step_sizes=dict(certificate.step_sizes),
            loss_name=certificate.loss,
            least_loss=self.run.least,
            plain_loss=np.array(self.series["plain_loss"]) if self.run.slack else None,
            norms={name: np.array(values) for name, values in self.norms.items()},
            travelled=self.travelled,
            forward_steps=np.array(self.series["forward"], dtype=int),
            adjoint_steps=np.array(self.series["adjoint"], dtype=int),
            promised=np.array([certificate.bound(k) for k in range(len(loss))]),
            accepted=taken,
            stopped=stopped,
            seconds=seconds,
            **self.maps,  # type: ignore[arg-type]
        )


def accuracy(yhat: Tensor, y: Tensor) -> float | None:
    """The share of samples classified right: by the nearer of two labels, or by the largest of k outputs."""
    if y.ndim == 2 and y.shape[1] > 1:
        one_hot = bool(((y == y.amax()).sum(dim=1) == 1).all())
        return float((yhat.argmax(dim=1) == y.argmax(dim=1)).double().mean()) if one_hot else None
    labels = y.unique()
    if len(labels) != 2:
        return None
    return float(((yhat > labels.mean()) == (y > labels.mean())).double().mean())
