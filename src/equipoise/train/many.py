"""Many runs as one tensor program: seeds and step sizes along a leading dimension, trained together.

Parameters are stacked to (runs, …); a step of all runs is a handful of batched products instead of a loop
over small ones. Families: those whose map contracts by a norm, and LinearEquilibrium.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checks import within
from ..history import History
from ..losses import Loss, as_loss
from ..models.affine import AffineFamily
from ..models.affine.ties import settled
from ..models.places import call_with
from ..solve import Picard, Stop, extrapolate, fixed_point

Parameters = dict[str, Tensor]
Test = Callable[[int], tuple[Tensor, Tensor] | None]  # what is to be measured at a step


def train_many(
    models: Sequence[AffineFamily],
    X: Tensor,
    y: Tensor,
    steps: int,
    step_sizes: Sequence[float] | float,
    *,
    loss: str | Loss | None = None,
    momentum: float = 0.0,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    X_test: Tensor | None = None,
    y_test: Tensor | None = None,
    measure: int | None = None,
    stop: Stop | None = None,
) -> list[History]:
    """Train every model with its own step size, all at once.

    Args:
        models: of one family and one size; they may differ in weights (seeds), not in shape or options.
        X, y: shared by the runs, (N, d) and like one model's output, or with a leading dimension of runs.
        steps: the number of gradient steps. With `batch_size`, `generator` draws mini-batches, the same for
            all runs and shuffled every epoch; the recorded loss is that of the batch, scaled to the full set.
        step_sizes: one for all runs, or one for each.
        momentum: β of v ← βv + ∇L, θ ← θ − ηv.
        X_test, y_test, measure: the test loss is measured every `measure` steps, and at the last.
        stop: of a run's equilibria, tested on the Frobenius norm over its samples.

    A run whose loss is not finite stops and says so; the others go on. Whatever ends the runs, each model is
    left at its last weights with a finite loss.
    """
    stack = _Stack(models, X, y, loss, stop)
    rates = torch.as_tensor(step_sizes, dtype=X.dtype).expand(len(models)).clone()
    if not bool((torch.isfinite(rates) & (rates >= 0)).all()):
        raise ValueError(f"step_sizes must be finite numbers ≥ 0. Got {step_sizes} instead.")
    within("momentum", momentum, "[0, 1)")
    within("batch_size", stack.N if batch_size is None else batch_size, f"[1, {stack.N}]")
    began = time.perf_counter()
    test = None if X_test is None or y_test is None else (X_test, y_test)
    at = {0, steps} if measure is None else {*range(0, steps + 1, measure), steps}
    batches = _Batches(stack.N, batch_size, generator)
    losses, tests = stack.train(rates, momentum, batches, steps, lambda k: test if k in at else None)
    seconds = time.perf_counter() - began
    return [
        _history(losses[:, i], float(rates[i]), stack.loss.name, tests[i], seconds / len(models))
        for i in range(len(models))
    ]


def _of(alive: Tensor, values: Tensor, others: Tensor | float) -> Tensor:
    """The values of the runs that are alive, and `others` for the rest."""
    return torch.where(alive.reshape(-1, *[1] * (values.ndim - 1)), values, others)


def _history(loss: np.ndarray, rate: float, name: str, tests: dict[int, float], seconds: float) -> History:
    bad = np.nonzero(~np.isfinite(loss))[0]
    stopped = f"step {bad[0]}: the loss is not finite; a smaller step size may help." if len(bad) else ""
    kept = loss[: bad[0] + 1] if len(bad) else loss
    return History(
        loss=kept,
        times=np.arange(len(kept)) * rate,
        step_sizes={"all": rate},
        loss_name=name,
        test_loss=tests,
        stopped=stopped,
        seconds=seconds,
    )


def _norms(W: Tensor, products: int = 8) -> Tensor:
    """About ‖W‖ of every run, by power iteration, kept below 1."""
    x = W.sum(dim=1)[:, :, None]  # (runs, m, 1)
    norm = x
    for _ in range(products):
        x = W @ (x / x.norm(dim=1, keepdim=True).clamp_min(torch.finfo(W.dtype).tiny))
        norm, x = x.norm(dim=1), W.mT @ x
    return norm[:, 0].nan_to_num(nan=0.999).clamp_max(0.999)


class _Batches:
    """Row numbers of one mini-batch after another, reshuffled every epoch; None for the full batch."""

    def __init__(self, N: int, size: int | None, generator: torch.Generator | None) -> None:
        self.N, self.size, self.generator = N, size, generator
        self.order = torch.empty(0, dtype=torch.int64)

    def next(self) -> Tensor | None:
        if self.size is None:
            return None
        if not len(self.order):
            self.order = torch.randperm(self.N, generator=self.generator)
        batch, self.order = self.order[: self.size], self.order[self.size :]
        return batch


class _Method(nn.Module):
    """Any method of a model as a forward, so that functional_call and vmap reach it."""

    def __init__(self, model: AffineFamily) -> None:
        super().__init__()
        self.model = model

    def forward(self, method: str, *args: Tensor) -> Any:
        return getattr(self.model, method)(*args)


class _Stack:
    """The parameters of all runs, stacked, and the gradients of all losses."""

    def __init__(
        self, models: Sequence[AffineFamily], X: Tensor, y: Tensor, loss: str | Loss | None, stop: Stop | None
    ) -> None:
        if not models:
            raise ValueError("models must hold at least one model. Got none.")
        first = models[0]
        if first.scaled_name is None and not first.direct:
            raise TypeError(
                f"many runs are batched for maps that contract by a norm; train a {type(first).__name__} by "
                f"gradient_descent."
            )
        for i, model in enumerate(models):
            if type(model) is not type(first) or repr(model) != repr(first):
                raise ValueError(
                    f"models must be alike but for their weights. Model {i} is {model}, the first {first}."
                )
        self.models, self.runs, self.stop = models, len(models), stop or Stop()
        self.loss = as_loss(loss if loss is not None else first.natural_loss)
        self.method = _Method(first)
        names = [name for name, _ in first.named_parameters()]
        self.parameters: Parameters = {
            n: torch.stack([m.get_parameter(n).detach() for m in models]).clone() for n in names
        }
        X, y = X.contiguous(), y.contiguous()  # the last bits may depend on the layout
        self.X = X if X.ndim == 3 else X.expand(self.runs, *X.shape)
        shape = first.output_shape(self.X.shape[1])
        self.y = y if y.ndim == len(shape) + 1 else y.expand(self.runs, *y.shape)
        if tuple(self.y.shape[1:]) != shape or self.X.shape[0] != self.runs or self.y.shape[0] != self.runs:
            raise ValueError(
                f"X must be (N, d) or ({self.runs}, N, d), and y like one model's output {shape}, or one for "
                f"each run. Got {tuple(X.shape)} and {tuple(y.shape)} instead."
            )
        self.N = self.X.shape[1]
        self.loss.check(self.y[0], self.y[0])
        self.Z: Tensor | None = None
        self.Z_before: Tensor | None = None
        self.V: Tensor | None = None

    def train(
        self, rates: Tensor, momentum: float, batches: _Batches, steps: int, due: Test
    ) -> tuple[np.ndarray, list[dict[int, float]]]:
        """The losses of all runs (steps + 1, runs), and their test losses by step, where they are due."""
        losses = np.full((steps + 1, self.runs), math.nan)
        tests: list[dict[int, float]] = [{} for _ in self.models]
        alive = torch.ones(self.runs, dtype=torch.bool)
        velocity = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        good = {name: p.clone() for name, p in self.parameters.items()}
        try:
            for k in range(steps + 1):
                rows = batches.next()
                value, gradients = self.evaluate(rows, gradient=k < steps)
                losses[k] = (value * (self.N / len(rows) if rows is not None else 1)).double().numpy()
                alive &= torch.isfinite(value)
                good = {n: _of(alive, self.parameters[n], good[n]) for n in good}
                if (test := due(k)) is not None:
                    for i, number in enumerate(self.test_loss(*test).tolist()):
                        tests[i][k] = number
                for name, gradient in gradients.items():
                    clean = _of(alive, gradient, 0.0)
                    velocity[name] = momentum * velocity[name] + clean if momentum else clean
                    step = rates.reshape(-1, *[1] * (clean.ndim - 1)) * velocity[name]
                    self.parameters[name].sub_(_of(alive, step, 0.0))
        finally:
            self.write_back(good)
        return losses, tests

    def call(self, method: str, *args: Tensor) -> Any:
        """A method of every run at once, over its own arguments."""

        def one(parameters: Parameters, *some: Tensor) -> Any:
            named = {f"model.{n}": p for n, p in parameters.items()}
            return call_with(self.method, named, (method, *some))

        return torch.func.vmap(one)(self.parameters, *args)

    @torch.no_grad()
    def evaluate(self, rows: Tensor | None, gradient: bool) -> tuple[Tensor, Parameters]:
        X, y = (self.X, self.y) if rows is None else (self.X[:, rows], self.y[:, rows])
        if self.models[0].direct:
            return self._linear(X, y, gradient)
        W, u = self.call("weight"), self.call("injection", X)
        Z = self._equilibria(W, u, warm=rows is None)
        yhat = self.call("readout", Z)
        value = self.loss.value(yhat, y).flatten(1).sum(dim=1)
        if not gradient:
            return value, {}
        V = self._adjoint(W, u, Z, warm=rows is None)
        return value, self.call("pullback", V, self.loss.slope(yhat, y), Z, X)

    def _linear(self, X: Tensor, y: Tensor, gradient: bool) -> tuple[Tensor, Parameters]:
        """M = B(I − γS)⁻¹ of every run, and back: one batched LU serves both, as in LinearEquilibrium."""
        model: Any = self.models[0]
        A, B, gamma = self.parameters["A"], self.parameters["B"], model.gamma
        S = torch.softmax(A, dim=1)
        umat = -gamma * S
        umat.diagonal(dim1=1, dim2=2).add_(1)
        LU, pivots = torch.linalg.lu_factor(umat.mT)  # of the transpose, which LAPACK takes as it lies
        M = torch.linalg.lu_solve(LU, pivots, B.mT).mT  # (runs, k, m)
        Phi = X if model.feature_map is None else self.call("injection", X)
        yhat = Phi @ M.mT
        value = self.loss.value(yhat, y).flatten(1).sum(dim=1)
        if not gradient:
            return value, {}
        G = self.loss.slope(yhat, y).mT @ Phi  # ∇L₀(M), (runs, k, m)
        Q = torch.linalg.lu_solve(LU, pivots, G.mT, adjoint=True).mT  # ∇B
        c = ((M - B) * Q).sum(dim=1, keepdim=True)
        left = torch.cat([gamma * M, -torch.ones_like(c)], dim=1)  # (runs, k + 1, m)
        return value, {"A": (left.mT @ torch.cat([Q, c], dim=1)).mul_(S), "B": Q}

    def _equilibria(self, W: Tensor, u: Tensor, warm: bool) -> Tensor:
        activation = self.models[0].activation
        start = activation(u)
        if warm and self.Z is not None:
            start = extrapolate(self.Z, self.Z_before)
        solution = fixed_point(
            lambda z, W, u: activation(torch.baddbmm(u, z, W.mT)),
            torch.where(torch.isfinite(start), start, 0.0),
            args=(W, u),
            solver=Picard(),
            stop=self.stop,
        )
        assert isinstance(solution.value, Tensor)
        if warm:
            self.Z_before, self.Z = self.Z, solution.value
        # A run that lost its equilibria is marked by a loss that is not a number.
        return torch.where(solution.converged[:, None, None], solution.value, math.nan)

    def _masks(self, W: Tensor, u: Tensor, Z: Tensor) -> Tensor:
        """σ' at the equilibria, with ties as a model reads them."""
        model = self.models[0]
        P = torch.baddbmm(u, Z, W.mT)
        if bool((u == 0).any()):
            error = 2 * (model.activation(P) - Z).norm(dim=2) / (1 - _norms(W))[:, None]  # (runs, N)
            near = (u == 0) & (P.abs() <= error[:, :, None] * W.norm(dim=2)[:, None])
            P = settled(P, W, u, model.activation, near) if bool(near.any()) else P
        return model.slope(P)

    def _adjoint(self, W: Tensor, u: Tensor, Z: Tensor, warm: bool) -> Tensor:
        D = self._masks(W, u, torch.nan_to_num(Z))
        a = self.parameters[self.models[0].readout_name]  # (runs, m) or (runs, m, k)
        k = self.models[0].outputs
        rows = a.reshape(self.runs, -1, k).mT[:, None]  # (runs, 1, k, m)
        runs, N, m = Z.shape
        bias = rows.expand(runs, N, k, m).reshape(runs, N * k, m)
        mask = D[:, :, None].expand(runs, N, k, m).reshape(runs, N * k, m)
        solution = fixed_point(
            lambda v, W, b, D: D * torch.baddbmm(b, v, W),
            self.V if warm and self.V is not None else mask * bias,
            args=(W, bias, mask),
            solver=Picard(),
            stop=self.stop,
        )
        assert isinstance(solution.value, Tensor)
        if warm:
            self.V = solution.value
        V = torch.where(solution.converged[:, None, None], solution.value, math.nan)
        return V if k == 1 else V.reshape(runs, N, k, m)

    @torch.no_grad()
    def test_loss(self, X: Tensor, y: Tensor) -> Tensor:
        X, y = X.expand(self.runs, *X.shape[-2:]), y.expand(self.runs, *y.shape[-(self.y.ndim - 1) :])
        if self.models[0].direct:
            return self._linear(X, y, gradient=False)[0]
        Z = self._equilibria(self.call("weight"), self.call("injection", X), warm=False)
        return self.loss.value(self.call("readout", Z), y).flatten(1).sum(dim=1)

    @torch.no_grad()
    def write_back(self, parameters: Parameters) -> None:
        for i, model in enumerate(self.models):
            for name, values in parameters.items():
                model.get_parameter(name).copy_(values[i])
