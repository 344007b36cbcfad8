"""One run of a Trainer: weights, optimiser, warm starts and measurements, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..history import History
from ..theory.shards import Shard, gathered, largest, part_of, rank, ranks, total, whole
from ..theory.streams import Input
from .anchoring import Anchoring, penalties
from .augment import augmented
from .batches import Batches
from .checkpoint import Checkpoints
from .distributed import sum_over_ranks
from .early_end import LOST, lost, lost_advice, slower
from .loose import LooseSolves
from .objective import Custom, as_objective, weights_of
from .training_state import save
from .warm_start import WarmStarts, startable

if TYPE_CHECKING:
    from .trainer import Trainer

Record = Callable[[dict[str, Any]], None]
Progress = Callable[[int, float], None]

_GROWN = 1e3  # a loss this many times that of the start has diverged
_SERIES = ("loss", "learning_rate", "times", "forward_steps", "adjoint_steps", "projections", "gradient_norm")
_MAPS = ("test_loss", "test_accuracy", "test_r2", "contraction", "sigma_min", "movement")


class TrainingRun:
    """All that changes while a Trainer fits."""

    def __init__(
        self,
        trainer: Trainer,
        X: Input,
        y: Tensor,
        validation: tuple[Tensor, Tensor] | None,
        sample_weight: Tensor | None,
        measure: int | None,
    ) -> None:
        self.trainer, self.model = trainer, trainer.model
        self.rows, self.N = X, whole(X)  # as they were given, and how many all ranks have
        X = X.rows if isinstance(X, Shard) else X
        # On the layout of a tensor the last bits may depend.
        self.X, self.y = X.contiguous() if isinstance(X, Tensor) else X, y.contiguous()
        self.validation = validation
        self.rank, self.ranks = rank(), ranks()
        self.part = part_of(self.N)
        self.measure = measure if isinstance(self.rows, Tensor) else 0
        self.anchoring: Anchoring | None = None
        if trainer.certificate is not None:
            self.anchoring = Anchoring(self, trainer.certificate, y)
            sample_weight = self.anchoring.weights(sample_weight)
        self.weight = weights_of(sample_weight, self.rows)
        self.objective = as_objective(trainer.loss, self.model, y)
        self.optimiser = trainer.make_optimiser()
        for group in self.optimiser.param_groups:
            group["initial_lr"] = group["lr"]
        self.batch_size = self.N if trainer.batch_size is None else min(trainer.batch_size, self.N)
        self.batches = math.ceil(self.N / self.batch_size)
        self.order = Batches(self.N, self.batch_size, trainer.seed, self.part)
        extrapolated = trainer.warm_start == "extrapolate"
        warm = bool(trainer.warm_start) and isinstance(X, Tensor)
        self.starts = WarmStarts(self.model, len(X), extrapolated, warm, trainer.stop)
        self.warm = self.starts if warm else None
        self.layers = [layer for _, layer in startable(self.model)]
        self.loose = LooseSolves.of(self)
        self.epoch = self.position = self.step = 0  # epochs done, batches done of the next, steps in all
        self.penalties = penalties(self)
        self.sums: dict[str, float] = {}  # of the epoch that is under way
        self.series: dict[str, list[float]] = {name: [] for name in _SERIES}
        self.maps: dict[str, dict[int, float]] = {name: {} for name in _MAPS}
        self.kept: list[dict[str, Tensor]] = []  # weights at the start and before the last two epochs
        self.best: dict[str, Tensor] = {}
        self.best_epoch, self.best_loss = 0, math.inf
        self.stopped = self.advice = ""
        self.about: dict[str, Any] = {}  # what a checkpoint of it agrees with
        self.failed = False  # whether something went wrong, and not only progress ended
        self.Z0: Tensor | None = None
        self.reported = 0  # entries of the series that were reported
        self.began, self.seconds = perf_counter(), 0.0

    @property
    def finished(self) -> bool:
        """Whether the run has stopped or done all of its epochs."""
        return bool(self.stopped) or self.epoch >= self.trainer.epochs

    # -- the epochs ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note what is known before the first step, with the same weights on all ranks."""
        if self.ranks > 1:
            for tensor in self.model.state_dict().values():
                dist.broadcast(tensor, 0)
        if self.anchoring is not None:
            self.anchoring.begin()
        self.kept = [self.weights()]
        try:
            loss = self._loss() if self.anchoring is None else self.anchoring.mean_loss()
        except LOST as error:
            self._stop(f"no equilibrium at the start. {error}", "draw other weights, or project them first")
            loss = math.nan
        self._note(loss, {"forward_steps": self._solver_steps("forward")})

    @property
    def at_last_epoch(self) -> bool:
        """Whether no epoch follows the one that has ended."""
        return self.epoch >= self.trainer.epochs

    def epoch_of_steps(self, progress: Progress | None, checkpoints: Checkpoints | None) -> None:
        """Take the steps that are left of the epoch, and draw the conclusions."""
        if self.position == 0:
            self.kept, self.sums = [self.kept[0], *self.kept[1:][-1:], self.weights()], {}
        for mine, count in self.order.of(self.epoch, self.position):
            loss = self._step(mine, count)
            if self.failed:
                break
            self.position, self.step = self.position + 1, self.step + 1
            if progress is not None and self.rank == 0:
                try:
                    progress(self.step, loss)
                except KeyboardInterrupt:
                    save(self, checkpoints if self.ranks == 1 else None)
                    raise
        ended = not self.failed
        if ended:
            if self.ranks > 1:
                for buffer in self.model.buffers():
                    dist.broadcast(buffer, 0)
            self._share_steps()
            mean = self.sums["loss"] / self.N
            self.epoch, self.position = self.epoch + 1, 0
            if self.anchoring is not None:
                self.anchoring.epoch_ended()
            self._note(mean, self.sums)
        if self.failed:
            self._return_to_good() if self.anchoring is None else self._undo(ended)

    def _undo(self, ended: bool) -> None:
        """After an error end the epoch, but not the run: go back to the weights that were kept last."""
        assert self.anchoring is not None
        reason, self.stopped, self.advice, self.failed = self.stopped.splitlines()[0], "", "", False
        if not ended:
            self.epoch, self.position = self.epoch + 1, 0
        self.anchoring.refuse(reason)
        if not ended:
            self._note(self.anchoring.mean_loss(), {})

    def _return_to_good(self) -> None:
        """Go back to the last weights at which every sample has an equilibrium and the loss has not grown."""
        for weights in reversed(self.kept):
            self.model.load_state_dict(weights)
            try:
                if self._sane(self._loss()):
                    return
            except LOST:
                continue

    def _loss(self) -> float:
        """The mean loss of the training set, in eval mode."""
        yhat = self.trainer.predict(self.X)
        each = self.weight.to(yhat) * self.objective.each(yhat, self.y.to(yhat.device))
        return float(total(each.sum())[0] / self.N) if self.ranks > 1 else float(each.mean())

    def _sane(self, loss: float) -> bool:
        if isinstance(self.objective, Custom):
            return math.isfinite(loss)  # it may be negative, and has no scale
        return math.isfinite(loss) and loss <= _GROWN * max(self.series["loss"][0], 1.0)

    def _step(self, mine: Tensor, count: int) -> float:
        """One step of the optimiser on a batch of `count` rows over all ranks; returns its mean loss."""
        trainer = self.trainer
        factor = trainer.schedule.factor(self.step, trainer.epochs * self.batches)
        for group in self.optimiser.param_groups:
            group["lr"] = group["initial_lr"] * factor
            if self.anchoring is not None:
                group["lr"] *= self.anchoring.state.rate
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        value, error = 0.0, None
        try:
            value = self.differentiate(mine, count, trainer.augment)
        except LOST as caught:
            error = caught
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        value, failed = sum_over_ranks(parameters, value, float(error is not None))
        if failed:
            said = gathered("" if error is None else lost(error, mine + self.part.start))
            named = [f"rank {r}: {why}" if self.ranks > 1 else why for r, why in enumerate(said) if why]
            self._stop("; ".join(named), lost_advice(self))
            return math.nan
        for p, share in self.penalties:
            if p.grad is not None:
                p.grad.add_(p.detach(), alpha=share)
        gradients = [p.grad for p in parameters if p.grad is not None]
        total_norm = torch.nn.utils.get_total_norm(gradients)
        if trainer.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, trainer.clip, total_norm)
        norm = float(total_norm)
        if not (math.isfinite(value) and math.isfinite(norm)):
            self._stop("the loss or its gradient is not finite.", slower(self))
            return value
        self.optimiser.step()
        if not all(bool(torch.isfinite(p).all()) for p in parameters):
            self._stop("the weights are not finite after the step.", slower(self))
            return value
        changed = 0 if trainer.projection is None else trainer.projection.after(self.step, self.model)
        for name, number in (
            ("loss", value * count),
            ("times", self.optimiser.param_groups[0]["lr"]),
            ("projections", changed),
            ("work", self._work()),
        ):
            self.sums[name] = self.sums.get(name, 0) + number
        for name, number in (
            ("forward_steps", self._solver_steps("forward")),
            ("adjoint_steps", self._solver_steps("adjoint")),
            ("gradient_norm", norm),
        ):
            self.sums[name] = max(self.sums.get(name, 0), number)
        return value

    def differentiate(self, mine: Tensor, count: int, augment: Sequence[str] = ()) -> float:
        """Add the gradient of Σ w ℓ/count over these samples to that of the parameters; returns the loss."""
        if not len(mine) and self.loose is None:
            return 0.0
        device, X = self.trainer.device, self.X
        x = X[mine.to(X.device) if isinstance(X, Tensor) else mine].to(device)
        y = self.y[mine.to(self.y.device)].to(device)
        if augment:
            x = augmented(x, augment, (self.trainer.seed * 1_000_003 + self.step) % 2**63)
        yhat = None if self.loose is None else self.loose.outputs(x, mine)
        if yhat is None:
            if not len(mine):
                return 0.0
            with self.starts.using(mine):
                yhat = self.model(x)
        loss = yhat.sum()  # of no row it is 0, and takes part in the adjoint of the batch
        if len(mine):
            share = self.step / max(1, self.trainer.epochs * self.batches)
            each = self.weight[mine].to(yhat) * self.objective.near(x, share).each(yhat, y)
            loss = each.sum() / count
        value = float(loss.detach())
        # Where the loss is not finite no adjoint has a solution, but ranks seek that of a batch together.
        if math.isfinite(value) or (self.loose is not None and self.ranks > 1):
            loss.backward()
        return value

    # -- what is measured ----------------------------------------------------------------------------------

    def _note(self, loss: float, sums: Mapping[str, float]) -> None:
        """The numbers of the epoch that has ended, and whether it was the best."""
        k, series = self.epoch, self.series
        for name in _SERIES:
            series[name].append(sums.get(name, 0))
        series["loss"][-1] = loss
        series["learning_rate"][-1] = self.optimiser.param_groups[0]["lr"]
        if not (self.failed or self._sane(loss)):
            self._stop(f"the loss has grown from {series['loss'][0]:.4g} to {loss:.4g}.", slower(self))
        judged = loss
        try:
            if self.validation is not None and not self.failed:
                judged = self._validate(k)
            if self._due(k) and not self.failed:
                self._measure(k)
        except LOST as error:
            self._stop(f"no equilibrium when measured. {error}", lost_advice(self))
        if self.failed or self.trainer.patience is None:
            return
        kept = self.anchoring is None or self.anchoring.state.fresh
        if kept and judged < self.best_loss:
            self.best_loss, self.best_epoch, self.best = judged, k, self.weights()
        elif k - self.best_epoch >= self.trainer.patience:
            self.stopped = (
                f"epoch {k}: no better loss for {self.trainer.patience} epochs; the weights are those of "
                f"epoch {self.best_epoch}."
            )

    def _validate(self, k: int) -> float:
        assert self.validation is not None
        X, y = self.validation
        found = self.trainer.evaluate(X, y)
        self.maps["test_loss"][k] = found.pop("loss")
        for name, number in found.items():
            self.maps[f"test_{name}"][k] = number
        return self.maps["test_loss"][k]

    def _due(self, k: int) -> bool:
        if self.measure == 0 or not getattr(self.model, "structured", False):
            return False
        return k in (0, self.trainer.epochs) or (self.measure is not None and k % self.measure == 0)

    @torch.no_grad()
    def _measure(self, k: int) -> None:
        model: Any = self.model
        Z = model.equilibrium(self.X[:].to(self.trainer.device)).detach()
        self.Z0 = Z if self.Z0 is None else self.Z0
        if (q := model.contraction()) is not None:
            self.maps["contraction"][k] = float(q)
        self.maps["sigma_min"][k] = float(torch.linalg.svdvals(Z)[-1])
        self.maps["movement"][k] = float((Z - self.Z0).norm() / self.Z0.norm().clamp_min(1e-300))

    def _solver_steps(self, which: str) -> int:
        """The most steps that a sample's last solve took, in any layer."""
        if self.loose is not None and self.loose.steps["forward"]:
            return self.loose.steps[which]
        found = [getattr(layer.last, which) for layer in self.layers]
        return max((int(s.steps.max()) for s in found if s is not None and len(s.steps)), default=0)

    def _share_steps(self) -> None:
        """Take the largest numbers of solver steps over all ranks."""
        names = ("forward_steps", "adjoint_steps")
        if self.ranks > 1:
            self.sums |= zip(names, largest(*(self.sums[name] for name in names)), strict=True)

    def _work(self) -> int:
        """Evaluations of a row in the last solves, forward and adjoint, of all layers."""
        if self.loose is not None and self.loose.steps["forward"]:
            return self.loose.work
        records: list[Any] = [layer.last for layer in self.layers]
        solved = [s for record in records for s in (record.forward, record.adjoint) if s is not None]
        return sum(int(s.steps.sum()) for s in solved)

    def report(self, record: Record | None, checkpoints: Checkpoints | None, every: int = 0) -> None:
        """Report the numbers of the epoch once, and save a checkpoint if that is due."""
        fresh = self.reported < len(self.series["loss"])
        self.reported = len(self.series["loss"])
        if fresh and record is not None and self.rank == 0:
            try:
                record(self._record())
            except KeyboardInterrupt:
                save(self, checkpoints if self.ranks == 1 else None)
                raise
        if every and (self.finished or self.epoch % every == 0):
            save(self, checkpoints)

    def _record(self) -> dict[str, Any]:
        k = self.epoch
        told: dict[str, Any] = {"epoch": k, "step": self.step}
        told |= {name: values[-1] for name, values in self.series.items() if name != "times"}
        told |= {name: values[k] for name, values in self.maps.items() if k in values}
        return told | {"seconds": self.elapsed()}

    def finish(self) -> None:
        """Leave the model at its best weights if `patience` asked for them; anchored, at kept weights."""
        if self.anchoring is not None:
            self.anchoring.finish(self.best, self.best_epoch)
        elif self.best:
            self.model.load_state_dict(self.best)

    def history(self) -> History:
        """What was measured."""
        series = {name: np.array(values) for name, values in self.series.items()}
        return History(
            loss=series["loss"],
            times=np.cumsum(series["times"]),
            step_sizes={"rate": float(self.optimiser.param_groups[0]["initial_lr"])},
            loss_name=f"mean {self.objective.name}",
            forward_steps=series["forward_steps"].astype(int),
            adjoint_steps=series["adjoint_steps"].astype(int),
            learning_rate=series["learning_rate"],
            best=self.best_epoch if self.best else None,
            seconds=self.elapsed(),
            stopped=self.stopped,
            advice=self.advice,
            anchored={} if self.anchoring is None else self.anchoring.told(),
            **self.maps,  # type: ignore[arg-type]
        )

    def weights(self) -> dict[str, Tensor]:
        """A copy of all that the model stores."""
        return {name: t.detach().clone() for name, t in self.model.state_dict().items()}

    def elapsed(self) -> float:
        """Seconds of the run, those before a break included."""
        return self.seconds + perf_counter() - self.began

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Inside, random numbers follow from the seed and the rank alone; outside nothing changes."""
        device = self.trainer.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed((self.trainer.seed * 1_000_003 + self.rank) % 2**63)
            yield

    # -- an early end --------------------------------------------------------------------------------------

    def _stop(self, reason: str, advice: str) -> None:
        self.failed = True
        self.stopped = f"epoch {self.epoch + bool(self.position)}, step {self.step}: {reason}"
        self.advice = advice
