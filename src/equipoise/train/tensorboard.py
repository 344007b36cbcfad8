"""Records of a run as TensorBoard events. Needs the extra `equipoise[tensorboard]`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .callbacks import Callback


class TensorBoard(Callback, AbstractContextManager):
    """A callback that writes each number of a record as a scalar; words are left out.

        with TensorBoard("runs/first") as board:
            trainer.fit(X, y, callbacks=[board])

    The step of an event is the record's "step", or its "epoch" where it has none. Loops that take a function
    of a record take the board: `eq.safeguarded_descent(…, record=board)`.
    """

    def __init__(self, directory: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError(
                "writing TensorBoard events needs tensorboard: pip install 'equipoise[tensorboard]'."
            ) from None
        self.writer = SummaryWriter(str(directory))

    def epoch(self, record: dict[str, Any]) -> None:
        """Write the numbers of one record."""
        step = record.get("step", record.get("epoch"))
        if not isinstance(step, int):
            raise ValueError(f"a record must have a step or an epoch. Got {', '.join(record)} instead.")
        for name, value in record.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and name not in ("step", "seconds"):
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    __call__ = epoch

    def __exit__(self, *_: object) -> None:
        self.writer.close()
