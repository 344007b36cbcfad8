"""Training loops whose dynamics the theorems speak of."""

from .descent import gradient_descent
from .many import train_many

__all__ = ["gradient_descent", "train_many"]
