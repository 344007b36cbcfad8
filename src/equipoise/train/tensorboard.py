"""Records of a run as TensorBoard events: a `record` sink of every loop that takes one.

Needs the extra `equipoise[tensorboard]`.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self


class TensorBoard:
    """A function of a record that writes each of its numbers as a scalar.

        with TensorBoard("runs/first") as board:
            trainer.fit(X, y, record=board)

    The step of an event is the record's "step", or its "epoch" where it has none. Words are left out.
    """

    def __init__(self, directory: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError(
                "writing TensorBoard events needs tensorboard: pip install 'equipoise[tensorboard]'."
            ) from None
        self.writer = SummaryWriter(str(directory))

    def __call__(self, record: dict[str, Any]) -> None:
        step = record.get("step", record.get("epoch"))
        if not isinstance(step, int):
            raise ValueError(f"a record must have a step or an epoch. Got {', '.join(record)} instead.")
        for name, value in record.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and name not in ("step", "seconds"):
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
