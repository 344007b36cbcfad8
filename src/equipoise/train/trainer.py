"""θ ← optimiser(θ, ∇ mean_i ℓ(ŷ_i, y_i)) on mini-batches: any network trained freely, watched, resumable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import integer, within
from ..history import History
from ..solve import Stop
from ..theory.certificate import Certificate, digest_of
from ..theory.shards import Shard, gathered, part_of, ranks
from ..theory.streams import Input, Stream, as_data, as_input, parts
from .augment import named
from .callbacks import Callback, followed
from .checkpoint import Checkpoints
from .distributed import begin_together, cut, versions
from .objective import as_objective, scores
from .optimisers import Factory, make_optimiser
from .projection import Projection
from .schedules import Schedule, as_schedule
from .training_run import TrainingRun
from .training_state import about, latest, restore

Data = tuple[Any, Tensor]


class Trainer:
    """Mini-batch training of any nn.Module: a family, a network with Equilibrium layers, or a plain network.

        trainer = eq.Trainer(model, optimiser="adam", rate=1e-3, schedule="cosine", epochs=30, batch_size=64)
        history = trainer.fit(X, y, validation=(X_val, y_val))
        trainer.evaluate(X_test, y_test)          # {"loss": …, "accuracy": …}

    Args:
        model: trained in place.
        loss: "square", "half_square", "logistic", "hinge", "cross_entropy", a Loss, or a function of (ŷ, y)
            that returns a number for each sample. By default the cross entropy if y are integers, otherwise
            that of the family or "half_square". Batches and records show the mean over samples.
        optimiser: "sgd", "adam", "adamw", "rmsprop", "adagrad", or a function from parameters to a torch
            optimiser.
        rate, momentum, weight_decay: of an optimiser given by name. The default rate is 1e-2 for "sgd" and
            "adagrad", and 1e-3 for the others.
        schedule: "constant", "cosine", "step", "poly", or a Schedule of `equipoise.train.schedules`.
        batch_size, epochs: an epoch is one pass in a new order, which follows from `seed` and its number; the
            last batch may be smaller. A batch_size of None is the full batch.
        clip: the largest norm of a gradient; longer gradients are scaled down to it.
        patience: stop after this many epochs without a better loss (of the validation set, if there is one),
            and leave the model at its best weights.
        projection: keep weights well-posed after every step: True for Projection(0.99), or a Projection.
            Modules that are well-posed whatever their parameters, and plain networks, are left alone.
        warm_start: begin the solve of each sample at its last equilibrium; with "extrapolate", at the point
            to which its last two equilibria lead.
        seed: of the order of samples, and of all that is random in the network while it trains.
        rtol: the tolerance of equilibria during training; by default that of the model.
        loose: where ‖W‖ < 1 is kept, and of images, find the equilibria of a batch by plain iteration until
            the batch as a whole has settled to `rtol`, without judging rows. On small batches this is several
            times as fast. A batch that does not settle is solved as always.
        ridge, decay: λ and κ of (λ/2)‖a‖² + (κ/2)‖h‖², added to the sum of the loss over all samples; by
            default those of the certificate, or none.
        certificate: of theorem "anchored", for this model and the data that `fit` is given. Training is the
            same, but at checkpoints its weights are kept only if F is proved not to have risen; otherwise the
            run goes back to the last that were kept. It ends with those, and with the best readout for them.
        check_every: epochs from one checkpoint to the next; by default as many as keep the checkpoints cheap.
        refit: solve for the best readout at the end, and at a checkpoint that would not pass without it.
        start_at_best: train from the best readout of the untrained features. From the readout of the model
            (False) the hidden layer learns from more than residuals, and the first checkpoint comes later.
        augment: for images, "shifts", "flips" or "shifts,flips": random changes of the samples of each step.
            The losses that are measured, and the certificate, are about the images without changes.
        decrease: the share by which every checkpoint must be proved to lower F; 0 by default.
        enough: end at a checkpoint that lowered F by less than this share since the last one; 0 by default,
            so that every epoch is trained.

    Under `torchrun` (after `torch.distributed.init_process_group`), each process trains on a part of the
    rows: on its own, given as a `Shard`, or on a part of the data that every process was given. Gradients and
    what a certificate rests on are summed, so that the result is that of one process. Only rank 0 writes and
    reports. If a process has other data, options or versions than the rest, all processes stop at the start
    with an error that names its rank.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any = None,
        *,
        optimiser: str | Factory = "sgd",
        rate: float | None = None,
        momentum: float | None = None,
        weight_decay: float = 0.0,
        schedule: str | Schedule = "constant",
        batch_size: int | None = 64,
        epochs: int = 10,
        clip: float | None = None,
        patience: int | None = None,
        projection: bool | Projection = True,
        warm_start: bool | Literal["extrapolate"] = True,
        seed: int = 0,
        rtol: float | None = None,
        ridge: float | None = None,
        decay: float | None = None,
        certificate: Certificate | None = None,
        check_every: int | None = None,
        refit: bool = True,
        decrease: float = 0.0,
        start_at_best: bool = True,
        augment: str | None = None,
        loose: bool = False,
        enough: float = 0.0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module. Got {type(model).__name__} instead.")
        if certificate is not None and (ridge is not None or decay is not None):
            raise ValueError("ridge and decay are those of the certificate: give them to certify alone.")
        if not isinstance(projection, bool | Projection):
            raise TypeError(f"projection must be True, False or a Projection. Got {projection!r} instead.")
        self.model, self.loss = model, loss
        self.optimiser, self.rate, self.momentum, self.weight_decay = optimiser, rate, momentum, weight_decay
        self.schedule = as_schedule(schedule)
        self.batch_size, self.epochs, self.clip, self.patience = batch_size, epochs, clip, patience
        self.projection = Projection() if projection is True else projection or None
        self.warm_start, self.seed = warm_start, seed
        self.stop = None if rtol is None else Stop(rtol=rtol)
        self.ridge, self.decay, self.certificate = ridge or 0.0, decay or 0.0, certificate
        self.check_every, self.refit, self.decrease = check_every, refit, decrease
        self.start_at_best, self.augment = start_at_best, named(augment)
        self.loose, self.enough = loose, enough
        self._check_options()
        self.make_optimiser()  # so that wrong options are named at once

    def _check_options(self) -> None:
        """Raise an error that names an option that is out of range or does not go with another."""
        for name, least in (
            ("epochs", 0),
            ("seed", 0),
            ("batch_size", 1),
            ("patience", 1),
            ("check_every", 1),
        ):
            value = getattr(self, name)
            if value is None and least:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be an integer ≥ {least}. Got {value!r} instead.")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be a finite number > 0. Got {self.clip!r} instead.")
        for name in ("decrease", "enough"):
            within(name, getattr(self, name), "[0, 1)", ", a share of F")
        if self.loose and self.stop is None:
            raise ValueError("loose solves need a tolerance. Got none: give rtol, such as 1e-2.")
        if self.warm_start not in (True, False, "extrapolate"):
            raise ValueError(
                f"warm_start must be True, False or 'extrapolate'. Got {self.warm_start!r} instead."
            )

    def fit(
        self,
        X: Any,
        y: Any = None,
        validation: Data | None = None,
        *,
        sample_weight: Tensor | None = None,
        checkpoints: Checkpoints | None = None,
        every: int = 1,
        measure: int | None = None,
        record: Callable[[dict[str, Any]], None] | None = None,
        progress: Callable[[int, float], None] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> History:
        """Train, and return what was measured: `loss[0]` at the start, `loss[k]` as the mean over epoch k.

        X may be a numpy array that is mapped from a file, or a Dataset of pairs (x, y) with y left out. Rows
        are then read as they are needed, and their equilibria are not kept to start from.

        Args:
            validation: (X, y), measured after every epoch: `test_loss`, `test_accuracy`, `test_r2`.
            sample_weight: (N,) ≥ 0, scaled to a mean of 1.
            checkpoints: where everything is saved after every `every` epochs, at the end, and on Ctrl-C
                raised by `progress` or `record`. If there is one already, the run continues from it and
                computes, bit for bit, what it would have computed without a break.
            measure: record the contraction factor, σ_min(Z) and the movement of Z of an affine family after
                this many epochs. By default at the first and last; 0 means never.
            record: called after each epoch with what was measured, as one flat dict.
            progress: called after each step with (step, loss of the batch).
            callbacks: called at the beginning, after each step and epoch, and at the end; one may end the
                run.

        The run ends early if the loss is not finite or has grown a thousandfold, or if a sample has no
        equilibrium. `stopped` then says why, `advice` says what to try, and the model has the weights of the
        last good epoch.
        """
        integer("every", every)
        integer("measure", 0 if measure is None else measure, 0)
        X, y = as_data(X, y)
        run = self._begin(X, y, validation, sample_weight, measure)
        record, progress = followed(run, callbacks, record, progress)
        saved = None if checkpoints is None else latest(checkpoints, run)
        with run.seeded(), _left_good(run):
            for callback in callbacks:
                callback.begin(self)
            if saved is not None and checkpoints is not None:
                restore(run, saved, checkpoints)
            else:
                run.begin()
                run.report(record, checkpoints)
            while not run.finished:
                run.epoch_of_steps(progress, checkpoints)
                run.report(record, checkpoints, every)
            run.finish()
        history = run.history()
        for callback in callbacks:
            callback.end(history)
        return history

    def _begin(
        self, X: Input, y: Tensor, validation: Data | None, sample_weight: Tensor | None, measure: int | None
    ) -> TrainingRun:
        """The run, once every process has made the same one."""
        given: dict[str, str] = {}  # digests of what every rank has whole
        try:
            self.check(X, y)
            if validation is not None:
                self.check(*validation)
            if ranks() > 1 and validation is not None and not isinstance(validation[0], Shard):
                held, targets, known = cut(*validation)
                validation = held, targets
                given |= {f"validation {name}": digest for name, digest in known.items()}
            if ranks() > 1 and not isinstance(X, Shard):
                if sample_weight is not None:
                    sample_weight = sample_weight[part_of(len(X))]
                X, y, known = cut(X, y)
                given |= known
        except Exception as error:
            begin_together(versions(), error)
            raise
        begin_together({**versions(), **given})
        run = TrainingRun(self, X, y, validation, sample_weight, measure)
        if run.ranks > 1:
            begin_together({**about(run), "epochs": self.epochs, "measure": measure})
        return run

    @torch.no_grad()
    def predict(self, X: Any) -> Tensor:
        """ŷ of every row, in eval mode, batch by batch."""
        was_training = self.model.training
        self.model.eval()
        if isinstance(X, Shard):  # each rank answers its own rows
            X = X.rows
        rows = as_input(X)
        # The states of 1,024 images do not fit into the cache: batches of 256 took a quarter of the time.
        least = 256 if isinstance(rows, Tensor) and rows.ndim > 2 else 1024
        size = least if self.batch_size is None else max(self.batch_size, least)
        rows = rows.contiguous() if isinstance(rows, Tensor) else rows
        try:
            found = [(self.model(part.to(self.device)).detach(), part.device) for part in parts(rows, size)]
            return torch.cat([yhat.to(device) for yhat, device in found])
        finally:
            self.model.train(was_training)

    def evaluate(self, X: Any, y: Any = None) -> dict[str, float]:
        """The mean loss, and the accuracy of classes or the R² of numbers."""
        X, y = as_data(X, y)
        self.check(X, y)
        objective, yhat = as_objective(self.loss, self.model, y), self.predict(X)
        if isinstance(X, Shard):
            yhat, y = (torch.cat(parts) for parts in zip(*gathered((yhat, y)), strict=True))
        with torch.no_grad():
            return {"loss": float(objective.each(yhat, y).mean()), **scores(objective, yhat, y)}

    def make_optimiser(self) -> Optimizer:
        """A new optimiser of the trained parameters, by the options."""
        return make_optimiser(self.optimiser, self.model, self.rate, self.momentum, self.weight_decay)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.model.parameters()).device

    def check(self, X: Input, y: Tensor) -> None:
        """Raise a ValueError unless X and y have a finite row for each sample, and at least one."""
        first = X.first if isinstance(X, Shard) else 0
        X = X.rows if isinstance(X, Shard) else X
        for name, T in (("X", X), ("y", y)):
            if not isinstance(T, Tensor | Stream) or T.ndim < 1:
                raise TypeError(
                    f"{name} must be a tensor, one row for each sample. Got {type(T).__name__} instead."
                )
            before = first
            for part in parts(T) if isinstance(T, Stream) else (T,) if len(T) else ():
                bad = torch.nonzero(~torch.isfinite(part).reshape(len(part), -1).all(dim=1))
                if len(bad):
                    row = before + int(bad[0, 0])
                    raise ValueError(f"{name} must be finite. Got NaN or infinity in row {row}.")
                before += len(part)
        if len(X) == 0 or len(X) != len(y):
            raise ValueError(
                f"X and y must have the same number of rows, and at least one. Got {len(X)} and {len(y)}."
            )

    def options(self) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        named = self.optimiser if isinstance(self.optimiser, str) else "a factory"
        constant = self.schedule == as_schedule("constant")
        return {
            "loss": getattr(self.loss, "__qualname__", None) or repr(self.loss),
            "optimiser": f"{named}, {self.rate}, {self.momentum}, {self.weight_decay}",
            "schedule": repr(self.schedule) if constant else f"{self.schedule!r}, {self.epochs} epochs",
            "batch_size": self.batch_size,
            "clip": self.clip,
            "patience": self.patience,
            "projection": repr(self.projection),
            "warm_start": self.warm_start,
            "seed": self.seed,
            **self._newer_options(),
        }

    def _newer_options(self) -> dict[str, Any]:
        """Options that runs of earlier versions did not have, where they are not at their defaults."""
        found: dict[str, Any] = {}
        if self.augment:
            found["augment"] = ",".join(self.augment)
        if self.loose:
            found["loose"] = True
        if self.stop is not None:
            found["rtol"] = self.stop.rtol
        if self.ridge or self.decay:
            found["penalty"] = [self.ridge, self.decay]
        if self.certificate is not None:
            found["certificate"] = self.about_certificate(("sample_weight",))  # compared on its own
            found["checkpoints"] = [self.check_every, self.refit, self.decrease]
            found |= {"enough": self.enough} if self.enough else {}
            found |= {} if self.start_at_best else {"start": "the model's own readout"}
        return found

    def about_certificate(self, left_out: tuple[str, ...] = ()) -> str:
        """A digest of what a certificate is about; its numbers may differ in the last bits elsewhere."""
        assert self.certificate is not None
        said = self.certificate.to_dict()
        for name in left_out:
            said["options"]["map"].pop(name, None)
        return digest_of({name: said[name] for name in ("options", "fingerprint")})


@contextmanager
def _left_good(run: TrainingRun) -> Iterator[None]:
    """Leave the network in its mode, and after an error an anchored one at its last good weights."""
    model = run.trainer.model
    was_training = model.training
    try:
        yield
    except BaseException:
        if run.anchoring is not None:
            run.anchoring.good.put_back()
        raise
    finally:
        model.train(was_training)
