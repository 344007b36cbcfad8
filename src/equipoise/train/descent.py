"""θ ← θ − η ∇L(θ), on the full batch: the descent that the theorems are about, measured at every step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checks import integer
from ..history import History
from ..losses import Loss, as_loss
from ..models.affine import AffineFamily
from ..models.altered import altered
from ..solve import AffineMap, EquilibriumError, Stop, extrapolate
from ..solve.driver import Precision
from ..theory import Certificate
from ..theory.common import trained_features
from ..theory.verification import relied_on
from .last_good import LastGood
from .readout import Readout


def gradient_descent(
    model: AffineFamily,
    X: Tensor,
    y: Tensor,
    steps: int,
    step_size: float | Mapping[str, float] | Certificate,
    *,
    loss: str | Loss | None = None,
    X_test: Tensor | None = None,
    y_test: Tensor | None = None,
    measure: int | None = None,
    stop: Stop | None = None,
    precision: Precision = "auto",
    progress: Callable[[int, float], None] | None = None,
) -> History:
    """Full-batch gradient descent, in place, with what was measured at every step.

    Args:
        model, X, y: the network and its data. Whatever ends the run, the network is left at the last weights
            whose equilibria were found and whose loss is finite.
        step_size: one number; one for "readout" and one for "hidden", or one for each parameter; or a proved
            Certificate, whose step sizes are used and whose bound is recorded beside the run. A certificate
            of other weights, data or another loss is refused.
        loss: by default that of the family: "half_square", or "square" for LinearEquilibrium.
        X_test, y_test: their loss is measured whenever σ_min(Z) is.
        measure: record σ_min(Z), the contraction factor, the movement of Z and the test loss after this many
            steps, and at the last. Each time costs an SVD, so by default only the first and last step are
            measured; 0 means never.
        stop: of the forward and adjoint solves, verified at every step.
        precision: "mixed" solves in float32 first, then finishes and verifies in float64; "auto" does so if
            it is faster.
        progress: called with (step, loss).

    If the loss is not finite, or equilibria are lost, the run stops there and says so in `stopped`.
    """
    require_affine("gradient_descent", model)
    integer("steps", steps, 0)
    certificate = None
    if isinstance(step_size, Certificate):
        certificate = check_certificate(step_size, model, X, y)
        _check_run(certificate, loss)
        loss, step_size = certificate.loss, certificate.step_sizes or certificate.step_size  # type: ignore[assignment]
    chosen = as_loss(loss if loss is not None else model.natural_loss)
    rates = block_steps(model, step_size)  # type: ignore[arg-type]
    run = DescentRun(model, X, y, chosen, rates, certificate, stop, precision)
    recorder = DescentRecorder(run, X_test, y_test, steps, measure)
    began = time.perf_counter()
    stopped = _follow(run, recorder, steps, progress or (lambda k, value: None))
    return recorder.history(stopped, time.perf_counter() - began)


def _follow(
    run: DescentRun, recorder: DescentRecorder, steps: int, progress: Callable[[int, float], None]
) -> str:
    """Take the steps, and leave the model at its last good weights; why the run ended early, if it did."""
    good = LastGood(run.model)
    try:
        for k in range(steps + 1):
            try:
                value = run.evaluate(last=k == steps)
            except EquilibriumError as error:
                return f"step {k}: no equilibrium. {error}"
            if math.isfinite(value):
                good.take()
            recorder.add(k, value)
            progress(k, value)
            if not math.isfinite(value):
                return f"step {k}: the loss is not finite; a smaller step size may help."
            if k < steps:
                run.step()
        return ""
    finally:
        good.put_back()


def require_affine(what: str, model: object) -> None:
    """Raise a TypeError unless one adjoint of the model serves all residuals, as for affine families."""
    if not getattr(model, "structured", False):
        raise TypeError(
            f"{what} needs an affine family, whose adjoint serves all residuals. Got "
            f"{type(model).__name__} instead: Trainer(model, batch_size=None) trains any module."
        )
    assert isinstance(model, torch.nn.Module)
    if why := altered(model):
        raise ValueError(f"{what} goes by the formulas of the family: {why}")


def block_steps(model: AffineFamily, step_size: float | Mapping[str, float] | None) -> dict[str, float]:
    """A step size for every parameter, from one number, from {"readout", "hidden"}, or from names."""
    names = [name for name, _ in model.named_parameters()]
    if isinstance(step_size, Mapping):
        if set(step_size) == {"readout", "hidden"}:
            rates = {n: step_size["readout" if n == model.readout_name else "hidden"] for n in names}
        elif set(step_size) == set(names):
            rates = dict(step_size)
        else:
            raise ValueError(
                f"step_size must be a number, or give one for 'readout' and 'hidden', or for each of "
                f"{', '.join(names)}. Got {', '.join(step_size)} instead."
            )
    elif step_size is None:
        raise ValueError(
            "the certificate gives no step size: certify a descent theorem, such as 'two_timescale'."
        )
    else:
        rates = dict.fromkeys(names, step_size)
    for name, rate in rates.items():
        if not (isinstance(rate, int | float) and math.isfinite(rate) and rate >= 0):
            raise ValueError(f"step sizes must be finite numbers ≥ 0. Got {rate!r} for {name} instead.")
    return {name: float(rate) for name, rate in rates.items()}


def _check_run(certificate: Certificate, loss: Any) -> None:
    """Refuse a certificate that does not speak of this run."""
    if certificate.theorem == "safeguarded":
        raise ValueError(
            "a 'safeguarded' certificate is kept by safeguarded_descent, not by gradient_descent."
        )
    if certificate.kind != "descent":
        raise ValueError(f"{certificate.theorem} is about {certificate.kind}, not about gradient descent.")
    if loss is not None and as_loss(loss) != as_loss(certificate.loss):
        raise ValueError(f"the certificate is about the loss {certificate.loss!r}. Got {loss!r} instead.")


def check_certificate(certificate: Certificate, model: AffineFamily, X: Tensor, y: Tensor) -> Certificate:
    """A proved certificate of these weights and data, certified again if it was read or altered."""
    if why := trained_features(model):
        raise ValueError(why)
    return relied_on(certificate, model, X, y)


def _run_stop(stop: Stop | None, constants: Mapping[str, Any]) -> Stop:
    """The tolerance of a run as given; an error if it is looser than the floor of the promise allows."""
    if "rtol" not in constants:
        return stop or Stop()
    promised = Stop(rtol=constants["rtol"], atol=constants["atol"], max_steps=5000)
    if stop is None:
        return promised
    for name in ("rtol", "atol"):
        given, allowed = getattr(stop, name), constants[name]
        if given is not None and given > allowed:
            raise ValueError(
                f"stop.{name} must be at most {allowed:.3g}, which the certificate rests on. Got {given:.3g} "
                f"instead: certify with a larger rtol."
            )
    return replace(promised, max_steps=stop.max_steps, patience=stop.patience)


class DescentRun:
    """The weights during the descent; solves start at the point to which the last two steps lead."""

    def __init__(
        self,
        model: AffineFamily,
        X: Tensor,
        y: Tensor,
        loss: Loss,
        rates: dict[str, float],
        certificate: Certificate | None,
        stop: Stop | None,
        precision: Precision,
    ) -> None:
        X, y = X.contiguous(), y.contiguous()  # the last bits may depend on the layout
        self.model, self.X, self.loss, self.rates = model, X, loss, rates
        with torch.no_grad():
            shape = model.readout(torch.zeros(len(X), model.width, dtype=X.dtype, device=X.device)).shape
        if tuple(y.shape) != tuple(shape):
            raise ValueError(
                f"y must be {tuple(shape)} like the network's output. Got {tuple(y.shape)} instead."
            )
        self.y = y
        constants = certificate.constants if certificate else {}
        self.stop = _run_stop(stop, constants)
        self.precision, self.certificate = precision, certificate
        own = constants.get("readout") == "gauss-newton" or constants.get("slack", 0.0) > 0
        a = model.readout_weight.detach().reshape(model.width, model.outputs)
        self.readout = (
            Readout(a, y.reshape(len(X), -1), constants["slack"], constants["readout"]) if own else None
        )
        self.closed_form = model.direct and self.readout is None
        self.Z: Tensor | None = None
        self.V: Tensor | None = None
        self._Z_before: Tensor | None = None
        self._image: Tensor | None = None  # f(Z)
        self._problem: AffineMap | None = None  # of the current weights
        self._V_before: Tensor | None = None
        self.forward_steps = self.adjoint_steps = 0
        self.residual = 0.0
        self.gradients: dict[str, Tensor] = {}
        self._R: Tensor | None = None

    def evaluate(self, last: bool) -> float:
        """The loss at the current weights, and (unless it is the last) every gradient."""
        if self.closed_form:
            return self._evaluate_closed(last)
        Z = self._equilibria()
        with torch.no_grad():
            if self.readout is not None:
                self.readout.a = self.model.readout_weight.detach().reshape(self.model.width, -1)
                R = self.readout.residual(Z)
                scale = 1.0 if self.loss == as_loss("square") else 0.5
                value = scale * float(R.square().sum())
                R = (2 * scale * R).reshape(self.y.shape)
            else:
                yhat = self.model.readout(Z)
                value = float(self.loss(yhat, self.y))
                R = self.loss.gradient(yhat, self.y)
        self._R = R
        if not last and math.isfinite(value):
            self.gradients = self._pullback(Z, R)
        return value

    def _evaluate_closed(self, last: bool) -> float:
        parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}  # φ may be frozen
        value = self.loss(self.model(self.X), self.y)
        if not last:
            found = torch.autograd.grad(value, list(parameters.values()))
            self.gradients = dict(zip(parameters, found, strict=True))
        return float(value.detach())

    def _equilibria(self) -> Tensor:
        start = None if self.Z is None else extrapolate(self.Z, self._Z_before)
        problem = self._problem = self.model.affine_map(self.X)
        solution = self.model.solve(
            self.X, stop=self.stop, start=start, precision=self.precision, problem=problem
        )
        solution.raise_if_failed()
        assert isinstance(solution.value, Tensor)
        self._Z_before, self.Z, self._image = self.Z, solution.value, solution.image
        self.forward_steps = int(solution.steps.max()) if len(solution.steps) else 0
        self.residual = float(solution.relative_residual.max()) if len(solution.steps) else 0.0
        return solution.value

    def _pullback(self, Z: Tensor, R: Tensor) -> dict[str, Tensor]:
        """∂L/∂θ by one adjoint: for one output that of 1, which hardly changes in a step; otherwise of R."""
        start = None if self.V is None else extrapolate(self.V, self._V_before)
        single = self.model.outputs == 1
        adjoint = self.model.solve_adjoint(
            Z,
            self.X,
            weights=None if single else R,
            image=self._image,
            stop=self.stop,
            start=start,
            precision=self.precision,
            problem=self._problem,
        )
        if adjoint.failed_rows:
            raise EquilibriumError(f"adjoint solve: {adjoint.explain_failure()}", adjoint)
        assert isinstance(adjoint.value, Tensor)
        self._V_before, self.V = self.V, adjoint.value
        self.adjoint_steps = int(adjoint.steps.max()) if len(adjoint.steps) else 0
        with torch.no_grad():
            if single:
                return self.model.pullback(adjoint.value, R, Z, self.X)
            once = R.new_ones(len(R), 1)
            found = self.model.pullback(adjoint.value[:, None], once, Z, self.X)
            readout = Z.T @ R  # (m, k); LinearEquilibrium keeps its transpose
            like = self.model.readout_weight.shape
            if self.model.readout_bias_name in found:
                found[self.model.readout_bias_name] = R.sum(dim=0)
            return found | {self.model.readout_name: readout if readout.shape == like else readout.T}

    @torch.no_grad()
    def least_loss(self) -> float:
        """L*, if the promise is about the gap to it; otherwise 0."""
        return 0.0 if self.certificate is None else float(self.certificate.constants.get("least", 0.0))

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter by its rate along its gradient, and the readout by a step of its own."""
        if self.readout is not None:
            assert self.Z is not None
            eta = self.rates[self.model.readout_name]
            r = self.readout.residual(self.Z)
            factor = 2.0 if self.loss == as_loss("square") and self.readout.kind == "gradient" else 1.0
            a, self.readout.e = self.readout.stepped(self.Z, r, factor * eta)
        for name, parameter in self.model.named_parameters():
            if name in self.gradients and (self.readout is None or name != self.model.readout_name):
                parameter.sub_(self.gradients[name], alpha=self.rates[name])
        if self.readout is not None:
            self.model.readout_weight.copy_(a.reshape(self.model.readout_weight.shape))


def _when(steps: int, measure: int | None) -> set[int]:
    """The steps at which to measure."""
    if measure is None:
        return {0, steps}
    integer("measure", measure, 0, ", or None")
    return {*range(0, steps + 1, measure), steps} if measure else set()


class DescentRecorder:
    """Collects the series of a run, and at chosen steps what costs an SVD."""

    def __init__(
        self, run: DescentRun, X_test: Tensor | None, y_test: Tensor | None, steps: int, measure: int | None
    ) -> None:
        if (X_test is None) != (y_test is None):
            raise ValueError("X_test and y_test go together.")
        self.run, self.X_test, self.y_test = run, X_test, y_test
        self.at = _when(steps, measure)
        self.series: dict[str, list[float]] = {}
        self.norms: dict[str, list[float]] = {name: [] for name, _ in run.model.named_parameters()}
        self.maps: dict[str, Any] = {n: {} for n in ("test_loss", "contraction", "sigma_min", "movement")}
        self.Z0: Tensor | None = None

    @torch.no_grad()
    def add(self, k: int, value: float) -> None:
        """Record step k, at which the loss has this value."""
        run = self.run
        for name, number in (
            ("loss", value),
            ("forward_steps", run.forward_steps),
            ("adjoint_steps", run.adjoint_steps),
            ("residual", run.residual),
        ):
            self.series.setdefault(name, []).append(number)
        for name, parameter in run.model.named_parameters():
            self.norms[name].append(float(parameter.norm()))
        if k in self.at and math.isfinite(value):
            self.measure(k)

    def measure(self, k: int) -> None:
        """Measure what costs an SVD, at step k."""
        model = self.run.model
        Z = self.run.Z if self.run.Z is not None else model.equilibrium(self.run.X).detach()
        self.Z0 = Z if self.Z0 is None else self.Z0
        q = model.contraction()
        if q is not None:
            self.maps["contraction"][k] = float(q)
        self.maps["sigma_min"][k] = float(torch.linalg.svdvals(Z)[-1]) if Z.numel() else 0.0
        self.maps["movement"][k] = float((Z - self.Z0).norm() / self.Z0.norm().clamp_min(1e-300))
        if self.X_test is not None and self.y_test is not None:
            self.maps["test_loss"][k] = float(self.run.loss(model(self.X_test), self.y_test))

    def history(self, stopped: str, seconds: float) -> History:
        """All that was recorded, and why the run ended."""
        run, loss = self.run, np.array(self.series.get("loss", []), dtype=float)
        one_step = len(set(run.rates.values())) == 1
        step = next(iter(run.rates.values())) if one_step else math.nan
        promised = None
        if run.certificate is not None:
            promised = np.array([run.certificate.bound(k) for k in range(len(loss))])
        return History(
            loss=loss,
            times=np.arange(len(loss)) * step,
            step_sizes=dict(run.rates),
            loss_name=run.loss.name,
            norms={name: np.array(values) for name, values in self.norms.items()},
            forward_steps=np.array(self.series.get("forward_steps", []), dtype=int),
            adjoint_steps=np.array(self.series.get("adjoint_steps", []), dtype=int),
            residual=np.array(self.series.get("residual", []), dtype=float),
            least_loss=run.least_loss(),
            promised=promised,
            stopped=stopped,
            seconds=seconds,
            **self.maps,
        )
