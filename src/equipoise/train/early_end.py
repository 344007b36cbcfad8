"""What a run that ends early says: which samples were lost, and what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..solve import EquilibriumError
from ..solve.solution import Unsolvable

if TYPE_CHECKING:
    from .training_run import TrainingRun

LOST = EquilibriumError, Unsolvable  # what solves raise where the weights have gone wrong


def slower(run: TrainingRun) -> str:
    """What helps if steps were too long."""
    rate = run.optimiser.param_groups[0]["initial_lr"]
    clip = "" if run.trainer.clip is not None else ", clip=1.0"
    return f"a smaller rate (it was {rate:g}, try {rate / 10:g}){clip}, or inputs scaled to unit variance."


def lost_advice(run: TrainingRun) -> str:
    """What helps if equilibria were not found."""
    projected = "" if run.trainer.projection is not None else "projection=True, which keeps ‖W‖ < 1; "
    return f"{projected}{slower(run)} A solver with more steps helps where the reason says max_steps."


def lost(error: Exception, mine: Tensor) -> str:
    """Which samples have no equilibrium: rows of the training set, then the error, with rows of the batch."""
    if not isinstance(error, EquilibriumError):
        return str(error)
    at = [int(mine[i]) for i in error.solution.failed_rows if i < len(mine)]
    more = f" and {len(at) - 5} more" if len(at) > 5 else ""
    return f"no equilibrium of {', '.join(f'row {i}' for i in at[:5])}{more}. In the batch: {error}"
