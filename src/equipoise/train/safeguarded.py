"""θ ← θ − h d beside the readout's step, if that is proved to keep ‖r⁺‖ ≤ (1 − (1−θ)ν)‖r‖.

This is the training loop of the theorem `safeguarded`. Every step tries a hidden update of any size and
direction, together with the step of the readout, both from the old point. The update is accepted if sound
bounds, which include the error of the computed equilibria and all rounding, show (S1)-(S4); otherwise it is
made smaller, in the end zero.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checks import integer, nonnegative
from ..history import History
from ..linalg import Interval
from ..models.affine import AffineFamily
from ..theory import Certificate
from ..theory.certify import certify
from .checkpoint import Checkpoint, Checkpoints
from .descent import check_certificate
from .guarded_run import Direction, GuardedRun, Step


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
    classes: bool = True,
    measure: int | None = None,
    progress: Callable[[int, float], None] | None = None,
    checkpoints: Checkpoints | None = None,
    every: int = 10,
    record: Callable[[dict[str, Any]], None] | None = None,
) -> History:
    """Full-batch training that keeps the promise of its certificate while the hidden layer learns.

    Args:
        model, X, y: the network and its data. Whatever ends the run, the network is left at the weights of
            the last step that was completed.
        certificate: a proved one of theorem "safeguarded", for these weights and data; made here if None.
        hidden_step: the largest hidden step to try. By default steps are found as the run goes.
        direction: "gradient", or a function from the hidden gradients by name to the directions d of
            θ ← θ − h d, such as those of another optimiser. A gradient is exact to about 1e-4.
        X_test, y_test: their loss and accuracy are measured every `measure` steps, at the first and the last.
        classes: False if y are numbers, which have no accuracy; otherwise accuracy is measured if y_test look
            like labels.
        progress: called with (step, loss).
        checkpoints: where everything is saved after every `every` steps, at the last, and on Ctrl-C raised by
            `progress` or `record`. If there is one already, the run continues from it, with the model, data
            and certificate it began with, and computes, bit for bit, what it would have without a break.
        record: called with what was measured at each step, as one flat dict.

    Returns a History. Its `loss` is the one that the promise is about (with slack, `plain_loss` is that of
    the predictions), `promised` is the bound, and `sigma_min` a sound lower bound. `accepted` holds for each
    step `hidden`, the hidden step that was taken, the number of `tries`, and `verified`, whether (S1) was
    proved. At rounding level it cannot be proved: there only the readout moves, as long as the measured loss
    falls as promised, and `stopped` says so when it no longer does.
    """
    _check(steps, hidden_step, direction, measure, every)
    if (X_test is None) != (y_test is None):
        raise ValueError("X_test and y_test go together.")
    if checkpoints is not None and direction != "gradient":
        raise ValueError("checkpoints need direction='gradient': what a function remembers is not saved.")
    certificate = _certified(certificate, model, X, y)
    about = {**certificate.fingerprint, "options": dict(certificate.options), "hidden_step": hidden_step}
    saved = None if checkpoints is None else _latest(checkpoints, about, steps)
    began = time.perf_counter()
    with torch.no_grad():
        run = GuardedRun(model, X, y, certificate, hidden_step, direction)
        recorder = _Recorder(run, certificate, steps, X_test, y_test, classes, measure, began)
        told = _Told(record, progress, checkpoints, every, steps, about)
        try:
            told.follow(run, recorder, saved)
        finally:
            run.good.put_back(model)
    return recorder.history()


def _check(steps: int, hidden_step: float | None, direction: Any, measure: int | None, every: int) -> None:
    """Raise an error that explains it if safeguarded_descent cannot work with these arguments."""
    integer("steps", steps, 0)
    nonnegative("hidden_step", hidden_step or 0.0)
    if direction != "gradient" and not callable(direction):
        raise ValueError(f"direction must be 'gradient' or a function of the gradients. Got {direction!r}.")
    integer("measure", 1 if measure is None else measure)
    integer("every", every)


def _certified(certificate: Certificate | None, model: AffineFamily, X: Tensor, y: Tensor) -> Certificate:
    """The certificate of the run, made here if there is none."""
    certificate = certificate or certify(model, X, y, theorem="safeguarded")
    certificate = check_certificate(certificate, model, X, y)
    if certificate.theorem != "safeguarded":
        raise ValueError(
            f"the certificate must be of theorem 'safeguarded'. Got {certificate.theorem!r} instead: "
            f"its run is gradient_descent's."
        )
    return certificate


@dataclass(frozen=True)
class _Told:
    """Who is told of each step, and where it is saved."""

    record: Callable[[dict[str, Any]], None] | None
    progress: Callable[[int, float], None] | None
    checkpoints: Checkpoints | None
    every: int
    steps: int
    about: Mapping[str, Any]

    def follow(self, run: GuardedRun, recorder: _Recorder, saved: Checkpoint | None) -> None:
        """All steps of the run, or those that are left of it."""
        if saved is None:
            self._note(0, run, recorder)
        else:
            run.restore(saved.tensors, saved.facts["run"])
            recorder.restore(saved.facts["recorder"])
        for k in range(1 if saved is None else saved.step + 1, self.steps + 1):
            recorder.taken.append(run.step())
            self._note(k, run, recorder)

    def _note(self, k: int, run: GuardedRun, recorder: _Recorder) -> None:
        recorder.add(k)
        try:
            if self.record is not None:
                self.record(recorder.record(k))
            if self.progress is not None:
                self.progress(k, run.loss)
        except KeyboardInterrupt:
            self._save(k, run, recorder)
            raise
        if k > 0 and (k % self.every == 0 or k == self.steps):
            self._save(k, run, recorder)

    def _save(self, k: int, run: GuardedRun, recorder: _Recorder) -> None:
        if self.checkpoints is not None:
            tensors, facts = run.state()
            kept = {"about": self.about, "run": facts, "recorder": recorder.state()}
            self.checkpoints.save(k, tensors, kept)


def _latest(checkpoints: Checkpoints, about: Mapping[str, Any], steps: int) -> Checkpoint | None:
    """The newest checkpoint, if it is of this run."""
    found = checkpoints.latest()
    if found is None:
        return None
    then = found.facts.get("about", {})
    if differ := [name for name, value in about.items() if then.get(name) != value]:
        raise ValueError(
            f"{found.path} must be a checkpoint of this run. It is of one with other {', '.join(differ)}: "
            f"begin with the model, data and options of that run, or save into another directory."
        )
    if found.step > steps:
        raise ValueError(f"steps must be at least {found.step}, where {found.path} stands. Got {steps}.")
    return found


class _Recorder:
    """Collects the series of a run."""

    def __init__(
        self,
        run: GuardedRun,
        certificate: Certificate,
        steps: int,
        X_test: Tensor | None,
        y_test: Tensor | None,
        classes: bool,
        measure: int | None,
        began: float,
    ) -> None:
        self.run, self.certificate, self.taken, self.began = run, certificate, list[Step](), began
        self.classes = classes
        self.test = None if X_test is None or y_test is None else (X_test.double(), y_test.double())
        self.at = {0, steps} if measure is None else {*range(0, steps + 1, measure), steps}
        self.series: dict[str, list[float]] = {n: [] for n in ("loss", "plain_loss", "forward", "adjoint")}
        self.norms: dict[str, list[float]] = {name: [] for name in run.start}
        self.maps: dict[str, dict[int, float]] = {
            n: {} for n in ("test_loss", "test_accuracy", "contraction", "sigma_min", "movement")
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
        self.maps["sigma_min"][k] = (Interval(max(bound, 0.0)) ** 2 + run.slack).sqrt().lo
        self.maps["movement"][k] = float((run.point.Z - run.Z0).norm() / run.Z0.norm().clamp_min(1e-300))
        if run.point.weight_norm < 1:
            self.maps["contraction"][k] = run.point.weight_norm
        elif k in self.at and (q := run.model.contraction()) is not None:
            self.maps["contraction"][k] = q
        if k in self.at and self.test is not None:
            X, y = self.test
            yhat = run.model(X)
            self.maps["test_loss"][k] = run.scale * float((yhat - y).square().sum())
            if self.classes and (share := accuracy(yhat, y)) is not None:
                self.maps["test_accuracy"][k] = share

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def record(self, k: int) -> dict[str, Any]:
        """What was measured at step k, and the hidden step that led there."""
        series = {"forward": "forward_steps", "adjoint": "adjoint_steps"}
        found: dict[str, Any] = {series.get(n, n): values[k] for n, values in self.series.items()}
        if not self.run.slack:
            del found["plain_loss"]
        found |= {n: values[k] for n, values in self.maps.items() if k in values}
        if k > 0:
            found["hidden"] = self.taken[k - 1].hidden
        promise = {"promised": self.certificate.bound(k), "least_loss": self.run.least}
        return {"step": k, **found, **promise, "seconds": self.seconds}

    def state(self) -> dict[str, Any]:
        """All that was measured so far, as JSON holds it."""
        taken = [[s.hidden, s.tries, s.verified, s.held] for s in self.taken]
        names = ("series", "norms", "maps", "travelled")
        return {name: getattr(self, name) for name in names} | {"taken": taken, "seconds": self.seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.series, self.norms = state["series"], state["norms"]
        self.maps, self.travelled = (
            {name: {int(k): v for k, v in values.items()} for name, values in state[kind].items()}
            for kind in ("maps", "travelled")
        )
        self.taken = [Step(*step) for step in state["taken"]]
        self.began -= state["seconds"]

    def history(self) -> History:
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
            step_sizes=dict(self.certificate.step_sizes),
            loss_name=self.certificate.loss,
            least_loss=self.run.least,
            plain_loss=np.array(self.series["plain_loss"]) if self.run.slack else None,
            norms={name: np.array(values) for name, values in self.norms.items()},
            travelled=self.travelled,
            forward_steps=np.array(self.series["forward"], dtype=int),
            adjoint_steps=np.array(self.series["adjoint"], dtype=int),
            promised=np.array([self.certificate.bound(k) for k in range(len(loss))]),
            accepted=taken,
            stopped=stopped,
            seconds=self.seconds,
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
