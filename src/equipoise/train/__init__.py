"""Training loops whose dynamics the theorems speak of."""

from .descent import gradient_descent
from .many import train_many
from .safeguarded import safeguarded_descent

__all__ = ["gradient_descent", "safeguarded_descent", "train_many"]
