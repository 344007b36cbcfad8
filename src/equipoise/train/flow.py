"""θ'(t) = −∇L(θ(t)), θ(0) the start: the papers' gradient flow, by an ODE solver that watches its own error.

The flow of LinearEquilibrium is stiff, about (1 − γ)⁻²: implicit methods (BDF, Radau, LSODA) take steps of
the size of its slow modes, explicit ones (RK45, DOP853) of its fastest one.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from scipy.integrate import DOP853, LSODA, RK45, OdeSolution, OdeSolver, Radau
from torch import Tensor

from ..checks import integer, one_of, positive
from ..history import History
from ..losses import Loss, as_loss
from ..models.affine import AffineFamily
from ..solve import IDENTITY, EquilibriumError, Stop
from ..theory import Certificate
from .descent import DescentRecorder, check_certificate, require_affine
from .flow_field import FlowField, Path
from .stiff import GaussNewtonBDF

Method = Literal["auto", "BDF", "LSODA", "Radau", "RK45", "DOP853"]
_EXPLICIT: dict[str, type[OdeSolver]] = {"RK45": RK45, "DOP853": DOP853}
_DENSE: dict[str, type[OdeSolver]] = {"LSODA": LSODA, "Radau": Radau}
_METHODS = ("auto", "BDF", *_DENSE, *_EXPLICIT)

# Time × fastest rate up to which "auto" is explicit: some hundred steps of DOP853, or a thousand of RK45,
# which crosses kinks better than any other.
_MILD, _MILD_WITH_KINKS = 300.0, 3000.0
_SLOW = (
    "method='BDF' where the flow is stiff; a larger rtol where it slides along a kink of relu and only tiny "
    "steps are accurate; or a larger max_evaluations."
)
_LOST = "a shorter time, smaller targets, or weights further from ‖W‖ = 1."
_LARGEST_DENSE = 6000  # parameters for which a dense Jacobian is formed: 300 MB


@dataclass(repr=False)
class FlowHistory(History):
    """The History of a flow: `times` are t. With dense output, weights and loss are known at every t."""

    method: str = ""  # that was used
    evaluations: int = 0  # of the gradient
    path: Path | None = field(default=None, compare=False)

    def weights(self, t: float) -> dict[str, Tensor]:
        """θ(t) by name, 0 ≤ t ≤ times[-1]."""
        return self._kept().weights(t)

    def loss_at(self, t: float) -> float:
        """L(θ(t))."""
        return self._kept().loss(t)

    def _kept(self) -> Path:
        if self.path is None:
            raise ValueError("the path was not kept: call gradient_flow with dense=True.")
        return self.path

    def to_dict(self) -> dict[str, Any]:
        """As for a History; the path is left out."""
        kept, self.path = self.path, None
        try:
            return super().to_dict()
        finally:
            self.path = kept


def gradient_flow(
    model: AffineFamily,
    X: Tensor,
    y: Tensor,
    time: float,
    *,
    certificate: Certificate | None = None,
    loss: str | Loss | None = None,
    method: Method = "auto",
    rtol: float = 1e-6,
    atol: float | None = None,
    points: int | Sequence[float] | None = None,
    dense: bool = False,
    X_test: Tensor | None = None,
    y_test: Tensor | None = None,
    measure: int | None = None,
    stop: Stop | None = None,
    max_evaluations: int = 100_000,
    progress: Callable[[float, float], None] | None = None,
) -> FlowHistory:
    """Gradient flow from the model's weights up to t = `time`, in place, measured as it goes.

    Args:
        model, X, y: the network (left at its last weights) and its data. Everything is computed in float64.
        certificate: a proved one about flow ("gao2022.flow", "hieu2022.flow", "kawaguchi2021"), whose bound
            is recorded beside the run, down to the rounding of the loss. One of other weights, data or
            another loss is refused.
        loss: by default that of the family: "half_square", or "square" for LinearEquilibrium.
        method: "BDF" solves with the Gauss-Newton matrix through the tangent kernel, N × N for one output,
            however many parameters there are; "Radau" and "LSODA" form it densely; "RK45" and "DOP853" are
            explicit. "auto" is "BDF" if `time` times the fastest rate at the start is large, and otherwise
            explicit ("DOP853", or "RK45" if there is a relu).
        rtol, atol: the local error of each weight that a step may make. By default atol is a hundredth of
            rtol, relative to the size of a parameter, or of its first fast movement if it starts near 0.
        points: when to record: at the ends of this many equal intervals, or at these times; by default at the
            steps of the solver. The start and the end are always recorded.
        dense: keep the whole path, for `weights(t)` and `loss_at(t)`.
        X_test, y_test: their loss is measured whenever σ_min(Z) is.
        measure: record σ_min(Z), the contraction factor, the movement of Z and the test loss after this many
            points, and at the last. By default at the first and last; 0 means never.
        stop: of the forward and adjoint solves; by default a thousand times tighter than `rtol`.
        max_evaluations: the number of gradients after which the run stops. A flow that slides along a kink of
            relu takes tiny steps, and more of them than anyone would wait for.
        progress: called with (t, loss).

    If the flow loses its equilibria or slides along a kink, or if its solver gives up, it ends there:
    `stopped` says so, `advice` says what to try, and the model is left at the last good weights.
    """
    _check(model, time, method, rtol, atol, max_evaluations, measure)
    certificate = None if certificate is None else check_certificate(certificate, model, X, y)
    solves = stop or Stop(rtol=max(1e-3 * rtol, 1e-13), max_steps=5000)
    run = FlowField(model, X, y, _loss(model, loss, certificate), solves)
    recorder = DescentRecorder(run, _double(X_test), _double(y_test), 0, 0)
    course = _Course(run, recorder, certificate, _due(points, float(time)), dense, progress, measure)
    course.begin(method, float(time), rtol, atol)
    try:
        course.follow(max_evaluations)
    finally:  # also of an error in `progress`, or Ctrl-C
        run.write(course.theta, model)
    return course.history(model)


@dataclass
class _Course:
    """The way of an ODE solver along the flow: what it reached and recorded, and why it ended early."""

    run: FlowField
    recorder: DescentRecorder
    certificate: Certificate | None
    due: list[float] | None  # the times still to be recorded; None for the solver's own
    dense: bool
    progress: Callable[[float, float], None] | None
    measure: int | None
    method: str = ""
    times: list[float] = field(default_factory=lambda: [0.0])
    pieces: list[Any] = field(default_factory=list)  # interpolants between steps, if they are kept
    stopped: str = ""
    advice: str = ""

    def begin(self, method: Method, time: float, rtol: float, atol: float | None) -> None:
        """Record the start, and choose the solver."""
        self.began, run, proof = perf_counter(), self.run, self.certificate
        self.least = 0.0 if proof is None else run.least_loss_within(proof.options.get("radius"))  # L*
        self.theta = run.start  # the last weights at which the loss is known
        self.recorder.at = _Every(self.measure)  # type: ignore[assignment]
        self.recorder.add(0, run.loss_at(run.start))
        fastest = run.curvature(0.0, run.start).fastest
        self.method = _automatic(run.model, time * fastest) if method == "auto" else method
        atols = 0.01 * rtol * run.tolerances(fastest) if atol is None else atol
        self.solver = _solver(self.method, run, time, rtol, atols)

    def follow(self, max_evaluations: int) -> None:
        """Go to the end, or as far as the flow can be followed."""
        while self.solver.status == "running" and not self.stopped:
            try:
                self._step(max_evaluations)
            except EquilibriumError as error:
                self._end(self.solver.t, f"no equilibrium. {error}", _LOST)
        if self.stopped and self.due is not None and self.solver.t > self.times[-1]:
            self._record(self.solver.t, self.solver.y.copy())  # what was reached between two points

    def _step(self, max_evaluations: int) -> None:
        message = self.solver.step()
        if self.solver.status == "failed":
            self._end(self.solver.t, self.run.lost or message, _LOST if self.run.lost else _SLOW)
            return
        if self.run.evaluations > max_evaluations:
            self._end(self.solver.t, f"{max_evaluations} evaluations.", _SLOW)
        t = self.solver.t
        piece = self.solver.dense_output() if self.dense or self.due is not None else None
        self.pieces += [piece] if self.dense else []
        for at in [t] if self.due is None else _up_to(self.due, t):
            found = self.solver.y.copy() if piece is None or at == t else piece(at)
            if not self._record(at, found):
                self._end(self.times[-1], self.run.lost or "the loss is not finite beyond.", _LOST)
                return

    def _record(self, t: float, theta: np.ndarray) -> bool:
        """Whether the loss at θ(t) is finite; it is then recorded, and θ is the last that is good."""
        value = self.run.loss_at(theta)
        if not math.isfinite(value):
            return False
        self.theta = theta
        self.recorder.add(len(self.times), value)
        self.times.append(float(t))
        if self.progress is not None:
            self.progress(self.times[-1], value)
        return True

    def _end(self, t: float, why: str, advice: str) -> None:
        self.stopped, self.advice = f"t = {t:.6g}: {why}", advice

    def history(self, model: AffineFamily) -> FlowHistory:
        """All that was recorded, beside what was promised, and the whole path if it was kept."""
        last = len(self.times) - 1
        if self.measure != 0 and not self.stopped and last not in self.recorder.maps["sigma_min"]:
            with torch.no_grad():
                self.recorder.measure(last)
        found = self.recorder.history(self.stopped, perf_counter() - self.began)
        found.times, found.least_loss, found.advice = np.array(self.times), self.least, self.advice
        if self.certificate is not None:
            gap = max(found.loss[0] - self.least, 1e-300)
            floor = self.run.y.numel() * np.finfo(float).eps * self.least / gap  # the rounding near L*
            found.promised = np.array([max(self.certificate.bound(t), floor) for t in self.times])
        path = None
        if self.pieces:
            path = Path(self.run, OdeSolution([0.0, *(p.t for p in self.pieces)], self.pieces), model)
        kept = {f.name: getattr(found, f.name) for f in fields(History)}
        return FlowHistory(**kept, method=self.method, evaluations=self.run.evaluations, path=path)


def _check(
    model: AffineFamily,
    time: float,
    method: str,
    rtol: float,
    atol: float | None,
    max_evaluations: int,
    measure: int | None,
) -> None:
    """Raise an error that explains it if gradient_flow cannot work with these arguments."""
    require_affine("gradient_flow", model)
    for name, number in (("time", time), ("rtol", rtol), ("atol", 1.0 if atol is None else atol)):
        positive(name, number)
    one_of("method", method, _METHODS)
    integer("max_evaluations", max_evaluations)
    integer("measure", 0 if measure is None else measure, 0, ", or None")


def _automatic(model: AffineFamily, stiffness: float) -> Method:
    """The method for a flow whose time is `stiffness` e-folds of its fastest mode."""
    if model.activation is IDENTITY:
        return "DOP853" if stiffness <= _MILD else "BDF"
    return "RK45" if stiffness <= _MILD_WITH_KINKS else "BDF"


def _solver(method: str, run: FlowField, time: float, rtol: float, atol: float | np.ndarray) -> OdeSolver:
    options: dict[str, Any] = {"rtol": rtol, "atol": atol}
    if method == "BDF":
        return GaussNewtonBDF(run, 0.0, run.start, time, run.curvature, **options)
    if method in _EXPLICIT:
        return _EXPLICIT[method](run, 0.0, run.start, time, **options)
    if len(run.start) > _LARGEST_DENSE:
        raise ValueError(
            f"{method} forms a dense Jacobian, for at most {_LARGEST_DENSE} parameters. "
            f"Got {len(run.start)} instead: use 'BDF'."
        )
    dense = lambda t, theta: run.curvature(t, theta).dense()
    return _DENSE[method](run, 0.0, run.start, time, jac=dense, **options)


class _Every:
    """The points at which to measure: 0, measure, 2·measure, …"""

    def __init__(self, measure: int | None) -> None:
        self.measure = measure

    def __contains__(self, k: int) -> bool:
        return k == 0 if self.measure is None else self.measure > 0 and k % self.measure == 0


def _due(points: int | Sequence[float] | None, time: float) -> list[float] | None:
    """The times to record after 0, the end among them; None for the solver's own."""
    if points is None:
        return None
    if isinstance(points, int):
        integer("points", points, other=", or times")
        return [time * i / points for i in range(1, points)] + [time]
    wanted = [float(t) for t in points]
    if any(not 0 <= t <= time for t in wanted) or sorted(set(wanted)) != wanted:
        raise ValueError(f"points must be increasing times in [0, {time:g}]. Got {wanted} instead.")
    return sorted({*wanted, time} - {0.0})


def _up_to(due: list[float], t: float) -> list[float]:
    """The times up to t, taken from `due`."""
    split = bisect.bisect_right(due, t)
    taken, due[:] = due[:split], due[split:]
    return taken


def _double(T: Tensor | None) -> Tensor | None:
    return None if T is None else T.double()


def _loss(model: AffineFamily, loss: Any, certificate: Certificate | None) -> Loss:
    """The loss of the flow, after making sure that a certificate speaks of it."""
    if certificate is None:
        return as_loss(loss if loss is not None else model.natural_loss)
    if certificate.kind != "flow":
        raise ValueError(f"{certificate.theorem} is about {certificate.kind}, not about gradient flow.")
    options = {"tau": certificate.options["tau"]} if certificate.options.get("tau") else {}
    promised = as_loss(certificate.loss, **options)
    if loss is not None and as_loss(loss) != promised:
        raise ValueError(f"the certificate is about the loss {promised}. Got {loss!r} instead.")
    return promised
