"""Callbacks of a Trainer: a class with four methods, none of which is required."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..history import History

if TYPE_CHECKING:
    from .trainer import Trainer
    from .training_run import Progress, Record, TrainingRun


class Callback:
    """Something that follows a run: `trainer.fit(X, y, callbacks=[mine])`. Override what you need.

    If `step` or `epoch` raises KeyboardInterrupt, the run is saved, if it has checkpoints.
    """

    def begin(self, trainer: Trainer) -> None:
        """Before the first step; all options are attributes of the trainer."""

    def step(self, step: int, loss: float) -> None:
        """After each step, with the loss of its batch."""

    def epoch(self, record: dict[str, Any]) -> bool | None:
        """After each epoch, and before the first, with what was measured. Returning True ends the run."""

    def end(self, history: History) -> None:
        """After the last epoch, or when the run stopped early, but not if an error ended it."""


def followed(
    run: TrainingRun, callbacks: Sequence[Callback], record: Record | None, progress: Progress | None
) -> tuple[Record, Progress]:
    """`record` and `progress`, wrapped so that they call the callbacks too."""

    def epoch(found: dict[str, Any]) -> None:
        if record is not None:
            record(found)
        for callback in callbacks:
            if callback.epoch(dict(found)):
                if run.ranks > 1:
                    raise ValueError("a callback may end a run of one process only, and there are several.")
                run.stopped = f"epoch {run.epoch}: {type(callback).__name__} ended the run."

    def step(at: int, loss: float) -> None:
        if progress is not None:
            progress(at, loss)
        for callback in callbacks:
            callback.step(at, loss)

    return epoch, step
