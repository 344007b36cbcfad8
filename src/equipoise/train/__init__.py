"""Training loops whose dynamics the theorems speak of."""

from .descent import gradient_descent
from .distributed import any_rank_failed, raise_together
from .flow import Flow, gradient_flow
from .many import train_many
from .safeguarded import safeguarded_descent

__all__ = [
    "Flow",
    "any_rank_failed",
    "gradient_descent",
    "gradient_flow",
    "raise_together",
    "safeguarded_descent",
    "train_many",
]
