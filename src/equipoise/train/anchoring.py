"""The checkpoints of a run with the certificate "anchored": only what does not raise F is kept.

At a checkpoint the weights are a candidate (h', a'). It is kept if sound bounds show that every input has one
equilibrium at h' and that F(h', a') ≤ F(h_k, a_k). Otherwise the model goes back to (h_k, a_k), the learning
rate is halved, and the optimiser forgets its moments. After a few refusals in a row the run ends.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..linalg import Interval
from ..theory.anchored import TIGHT, Anchor, Anchored
from ..theory.anchored_objective import EnclosedLoss, Objective, SampleRows
from ..theory.certificate import Certificate
from ..theory.certify import constants_of
from ..theory.read_features import LinearReadout
from ..theory.readout_solver import HeldFeatures
from ..theory.register import facts
from ..theory.shards import largest
from ..theory.verification import relied_on
from .distributed import any_rank_failed, sum_over_ranks
from .early_end import LOST
from .last_good import LastGood

if TYPE_CHECKING:
    from .training_run import TrainingRun

REFUSALS = 4  # so many refusals in a row end a run
_LOOSE = 1e-4  # the tolerance of the solves at a checkpoint, unless their errors decide
_SHARE = 0.3  # a checkpoint may cost this share of the work of the epochs before it
_BESIDES = 6.0  # the cost of injections, gradients and steps of an epoch, in evaluations of a row
_WIDE = 1.3  # the cost of an evaluation in float64, relative to one of training
_SAMPLE = 1024  # at most about so many rows serve to estimate ‖∇_h F‖


class LearnedNothing(UserWarning):
    """A run kept none of its checkpoints: its network is the untrained one with the best readout."""


@dataclass
class AnchoredState:
    """What a checkpoint on disk holds besides the weights (h_k, a_k)."""

    F: list[float]  # the ends of F(h_k, a_k)
    data: list[float]  # of Σ w ℓ alone
    checkpoints: list[dict[str, Any]] = field(default_factory=list)  # all, kept or refused
    refusals: int = 0  # in a row
    rate: float = 1.0  # what learning rates are multiplied by
    rtol: float = _LOOSE
    spacing: int = 1  # epochs from one checkpoint to the next
    last: int = 0  # epoch of the last one
    fresh: bool = True  # whether the weights of the model are (h_k, a_k)
    settled: bool = False  # whether the readout was solved for at the end
    gap: float = math.inf
    least: float = 0.0  # ≤ F*(h_K)
    stationarity: float = math.nan


class Anchoring:
    """The checkpoints of a run: F at the weights that were kept last, and these weights."""

    def __init__(self, run: TrainingRun, certificate: Certificate, y: Tensor) -> None:
        if certificate.kind != "anchored":
            raise ValueError(
                f"a Trainer keeps only the promise of theorem='anchored'. Got {certificate.theorem!r} "
                "instead, which safeguarded_descent, gradient_descent or gradient_flow keep."
            )
        self.run, self.model = run, run.model
        self.certificate = relied_on(certificate, self.model, run.rows, y)
        self.theorem = Anchored(**constants_of(certificate))
        self.terms = self.theorem.terms(y)
        self._readout_of = facts(self.model).reads().readout_of  # which costs nothing more at other weights
        outputs = self.readout.weight.shape[1]
        self.rows = SampleRows(run.rows, y, self.terms, outputs)
        self.zero = float(certificate.constants["F_zero"])
        self.state = AnchoredState([math.inf, math.inf], [math.inf, math.inf])
        self.good = LastGood(self.model)

    def weights(self, given: Tensor | None) -> Tensor | None:
        """The sample weights of the certificate; a ValueError if others are given."""
        known = self.terms.weights
        same = given is None or (known is not None and torch.equal(given.detach().cpu().double(), known))
        if not same:
            raise ValueError("sample_weight must be that of the certificate: certify(…, sample_weight=…).")
        return known

    def begin(self) -> None:
        """Keep the best readout of the untrained features, and train from it or from the model's own."""
        found = self.certificate._witness
        if not isinstance(found, Anchor):
            found = Anchor.of(facts(self.model).reads(), self.rows, self.theorem.gap)
        readout = self.readout
        own = readout.stored().clone()
        readout.store(found.a)
        self._keep(found)
        if not self.run.trainer.start_at_best:
            readout.store(own)
            self.state.fresh, self.state.spacing = False, self.run.trainer.check_every or 1

    def mean_loss(self) -> float:
        """About the mean loss of the weights that were kept."""
        return sum(self.state.data) / 2 / self.total

    @property
    def readout(self) -> LinearReadout:
        """The readout as the model stores it now."""
        return self._readout_of(self.model)

    @property
    def total(self) -> float:
        """The sum of the samples' weights, over all ranks."""
        return self.rows.weight()

    def restore(self, good: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go on from a checkpoint on disk."""
        device = self.run.trainer.device
        self.good.weights = {name: t.to(device) for name, t in good.items()}
        self.state = AnchoredState(**state)

    def epoch_ended(self) -> None:
        """Make a checkpoint if one is due: some epochs after the last one, and after the last epoch."""
        self.state.fresh = False
        if self.run.epoch - self.state.last >= self.state.spacing or self.run.at_last_epoch:
            self.check()

    # -- a checkpoint --------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Keep the weights of the model, or go back to the last that were kept."""
        state = self.state
        state.last = self.run.epoch
        if self.run.trainer.projection is not None:
            self.run.trainer.projection(self.model)
        try:
            objective = self._objective()
        except (ValueError, RuntimeError) as error:  # weights from which nothing can be computed
            return self.refuse(str(error))
        if not objective.reads.unique:
            why = objective.reads.obstacle or "; ".join(str(c) for c in objective.reads.claims if not c.holds)
            return self.refuse(f"one equilibrium for every input is not proved: {why}")
        limit = (Interval(state.F[0]) * (1 - Interval(self.run.trainer.decrease))).lo
        try:
            return self._judged(objective, limit)
        except LOST as error:
            return self.refuse(str(error))

    def _judged(self, objective: Objective, limit: float) -> bool:
        """Keep a candidate of which bounds can be computed, if they say so."""
        state = self.state
        if self.run.at_last_epoch:
            return self._accept_held(objective, limit, TIGHT)
        found = self._decided(objective, limit)
        if found.F.hi <= limit:
            self._accept(found, objective.work)
            return True
        if self.run.trainer.refit and math.isfinite(found.F.hi):
            return self._accept_held(self._objective(), limit, max(state.rtol, TIGHT))
        return self.refuse(_not_lower(found.F, limit))

    def _decided(self, objective: Objective, limit: float) -> EnclosedLoss:
        """F of the candidate, from solves that are tightened until their error does not decide."""
        state, a, starts = self.state, objective.readout.stored(), self._starts()
        while True:
            (found,) = objective.enclosed(objective.blocks(state.rtol, starts), [a])
            margin, width = limit - found.F.hi, found.F.hi - found.F.lo
            decided = margin >= 0 or found.F.lo > limit or state.rtol <= TIGHT or not math.isfinite(width)
            if margin >= 0 and width < 0.02 * margin:
                state.rtol = min(_LOOSE, 10 * state.rtol)
            elif width > 0.3 * abs(margin):
                state.rtol = max(TIGHT, state.rtol / (10 if decided else 100))
            if decided:
                return found

    def _accept_held(self, objective: Objective, limit: float, rtol: float) -> bool:
        """Judge a candidate by held features, with their best readout if that is better than its own."""
        held = HeldFeatures(objective, rtol, self._starts())
        a = objective.readout.stored().cpu()
        (own,) = objective.enclosed(held.blocks(), [a])
        best = Anchor.on(held, start=a) if self.run.trainer.refit and math.isfinite(own.F.hi) else None
        if best is not None and best.F.hi <= min(limit, own.F.hi):
            objective.readout.store(best.a)
            self._accept(EnclosedLoss(best.F, best.data), objective.work)
        elif own.F.hi <= limit:
            self._accept(own, objective.work)
        else:
            F = own.F if best is None or own.F.hi < best.F.hi else best.F
            return self.refuse(_not_lower(F, limit))
        if self.run.at_last_epoch and best is not None:
            self._settled(best.lower)
        return True

    def _accept(self, found: EnclosedLoss, work: int) -> None:
        state = self.state
        fell = (Interval(state.F[0]) - found.F.hi).lo
        state.checkpoints.append(self._entry(found, accepted=True, decrease=fell))
        self._stop_where_little_is_gained(fell / state.F[0] if state.F[0] > 0 else 0.0)
        self.good.take()
        state.F, state.data = [found.F.lo, found.F.hi], [found.data.lo, found.data.hi]
        state.refusals, state.fresh = 0, True
        if self.run.trainer.check_every is None:
            done = torch.tensor([float(work), self.run.sums.get("work", 0.0)])
            check, epoch = self.rows.total(done)[0].tolist()
            epoch += _BESIDES * self.rows.whole
            state.spacing = max(1, math.ceil(_WIDE * check / (_SHARE * epoch)))
        else:
            state.spacing = self.run.trainer.check_every

    def _stop_where_little_is_gained(self, share: float) -> None:
        """End the run if the epochs since the last checkpoint lowered F by next to nothing."""
        run, before = self.run, sum(c["accepted"] for c in self.state.checkpoints[:-1])
        if before and share < run.trainer.enough and not run.at_last_epoch:
            run.stopped = (
                f"epoch {run.epoch}: the objective fell by {100 * share:.2g} % since the last checkpoint: "
                f"at less than {100 * run.trainer.enough:g} % training ends."
            )

    def refuse(self, reason: str) -> bool:
        """Go back to what was kept last, with half the learning rate."""
        state, run = self.state, self.run
        state.checkpoints.append(self._entry(None, accepted=False, reason=reason))
        state.refusals, state.rate, state.fresh = state.refusals + 1, state.rate / 2, True
        self.good.put_back()
        run.optimiser.state.clear()
        if run.warm is not None:
            for warm in run.warm.states.values():
                warm.forget()
        if state.refusals >= REFUSALS:
            run.stopped = (
                f"epoch {run.epoch}: {REFUSALS} checkpoints in a row were not kept; the weights are the last "
                f"that were. The last reason: {reason}"
            )
            run.advice = "a smaller rate, larger batches, or this network as it is."
        return False

    def _entry(self, at: EnclosedLoss | None, **more: Any) -> dict[str, Any]:
        known = {} if at is None else {"F": [at.F.lo, at.F.hi], "data": [at.data.lo, at.data.hi]}
        return {"epoch": self.run.epoch, "step": self.run.step, **known, **more}

    # -- the end -------------------------------------------------------------------------------------------

    def finish(self, best: dict[str, Tensor], epoch: int) -> None:
        """Leave the model at the best of the weights that were kept, or at the last."""
        state, known = self.state, self.certificate.constants
        if best and epoch != self.run.epoch:
            start = {"F": [known["F_least"], known["F_start"]], "data": [0.0, known["data_start"]]}
            kept = [c for c in state.checkpoints if c["accepted"] and c["epoch"] <= epoch]
            self.model.load_state_dict(best)
            self.good.take()
            last = kept[-1] if kept else start
            state.F, state.data, state.fresh, state.settled = last["F"], last["data"], True, False
        elif not state.fresh:  # a callback ended the run between two checkpoints
            self.check()
        self.settle()

    def settle(self) -> None:
        """Solve for the readout at the weights that are left, and measure the gap; only once."""
        state = self.state
        if not state.settled:
            objective = self._objective()
            if why := objective.reads.obstacle:
                raise ValueError(f"nothing can be said of the network any more: {why}")
            held = HeldFeatures(objective, TIGHT)
            best = Anchor.on(held, start=objective.readout.stored().cpu())
            if self.run.trainer.refit and best.F.hi <= state.F[1]:
                objective.readout.store(best.a)
                self.good.take()
                state.F, state.data = [best.F.lo, best.F.hi], [best.data.lo, best.data.hi]
            self._settled(best.lower)
        if not any(c["accepted"] for c in state.checkpoints):
            message = (
                "no checkpoint was kept: the network learned nothing beyond its readout, and is the "
                "untrained one with the best readout of its features"
            )
            self.run.advice = self.run.advice or f"{message}: a smaller rate, or more epochs."
            warnings.warn(f"{message}.", LearnedNothing, stacklevel=4)

    def _settled(self, lower: float) -> None:
        state = self.state
        state.settled, state.least = True, lower
        state.gap = max((Interval(state.F[1]) - lower).hi, 0.0)
        state.stationarity = self._stationarity()

    def _stationarity(self) -> float:
        """About ‖∇_h F‖, from some of the rows."""
        run, N, lost = self.run, self.rows.whole, False
        every = -(-N // _SAMPLE)
        rows = torch.arange(-run.part.start % every, len(self.rows), every)
        run.optimiser.zero_grad(set_to_none=True)
        size = run.batch_size  # of as many parts on every rank: equilibria may be sought together
        for first in range(0, int(largest(len(rows))[0]), size):
            try:
                run.differentiate(rows[first : first + size], -(-N // every))
            except LOST:
                lost = True
        if any_rank_failed(lost):
            return math.nan
        if run.ranks > 1:
            sum_over_ranks([p for p in self.model.parameters() if p.requires_grad], 0.0)
        read, total = self.readout.parameters(self.model), 0.0
        for name, p in self.model.named_parameters():
            if name not in read and p.grad is not None:
                total += float((self.total * p.grad + self.terms.decay * p.detach()).square().sum())
        run.optimiser.zero_grad(set_to_none=True)
        return math.sqrt(total)

    def told(self) -> dict[str, Any]:
        """What a History says about the run and its checkpoints."""
        state, constants = self.state, self.certificate.constants
        return {
            "loss": self.terms.loss.name,
            "total": self.total,
            "ridge": self.terms.ridge,
            "decay": self.terms.decay,
            "F_zero": self.zero,
            "F_start": constants["F_start"],
            "F_start_least": constants["F_least"],
            "data_start": constants["data_start"],
            "F_end": state.F,
            "data_end": state.data,
            "F_end_least": state.least,
            "gap": state.gap,
            "stationarity": state.stationarity,
            "checkpoints": state.checkpoints,
        }

    def _starts(self) -> Tensor | None:
        """Where a solve of all rows may begin, if every sample has been met in training."""
        warm = None if self.run.warm is None else self.run.warm.states.get("network")
        return warm.parts[0] if warm is not None and warm.single and bool(warm.seen.all()) else None

    def _objective(self) -> Objective:
        """F at the present weights."""
        return Objective(facts(self.model).reads(), self.rows)

    def _keep(self, found: Anchor) -> None:
        state = self.state
        state.F, state.data = [found.F.lo, found.F.hi], [found.data.lo, found.data.hi]
        state.least, state.gap = found.lower, found.gap
        self.good.take()


def _not_lower(F: Interval, limit: float) -> str:
    """Why a candidate was not kept."""
    if not math.isfinite(F.hi):
        return "nothing is proved of F there: its equilibria were not found"
    how = "is above" if F.lo > limit else "is not proved to be at most"
    return f"F there, {F.hi:.8g}, {how} {limit:.8g}"


def penalties(run: TrainingRun) -> list[tuple[torch.nn.Parameter, float]]:
    """Trained parameters p, each with the s of its penalty s·p in the gradient of F's mean over samples."""
    trainer, anchoring, N = run.trainer, run.anchoring, float(run.N)
    ridge, decay = trainer.ridge, trainer.decay
    if anchoring is not None:
        ridge, decay = anchoring.terms.ridge, anchoring.terms.decay
        N = anchoring.total
    if not (ridge or decay):
        return []
    readout = facts(run.model).reads().readout_of(run.model) if anchoring is None else anchoring.readout
    read = readout.parameters(run.model)
    named = [(n, p) for n, p in run.model.named_parameters() if p.requires_grad]
    found = [(p, (ridge if n in read else decay) / N) for n, p in named]
    return [(p, min(share, torch.finfo(p.dtype).max)) for p, share in found if share]
