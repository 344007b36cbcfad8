"""Training loops: those that the theorems are about, and a free one."""

from . import schedules
from .callbacks import Callback
from .descent import gradient_descent
from .distributed import any_rank_failed, raise_together
from .flow import FlowHistory, gradient_flow
from .many import train_many
from .projection import Projectable, Projection
from .robust import CertifiedBox, CertifiedMargin
from .safeguarded import safeguarded_descent
from .trainer import Trainer
from .warm_start import WarmStart

__all__ = [
    "Callback",
    "CertifiedBox",
    "CertifiedMargin",
    "FlowHistory",
    "Projectable",
    "Projection",
    "Trainer",
    "WarmStart",
    "any_rank_failed",
    "gradient_descent",
    "gradient_flow",
    "raise_together",
    "safeguarded_descent",
    "schedules",
    "train_many",
]
