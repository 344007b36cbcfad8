"""Tasks: `fit` trains a network; a `Run` is the directory of what was asked, measured and found."""

from ..recipe import Recipe
from .directory import NoRun, NotBegun, Run, RunBusy, free_directory
from .fitted import Fitted
from .fitting import NotProved, fit
from .forecast import Forecast, check_memory
from .keeping import load, save
from .listing import Listed, list_runs
from .preparation import Preparation
from .sources import Asked, Sample, WrongOption, read
from .stored import DataChanged, NotFinished, Stored

__all__ = [
    "Asked",
    "DataChanged",
    "Fitted",
    "Forecast",
    "Listed",
    "NoRun",
    "NotBegun",
    "NotFinished",
    "NotProved",
    "Preparation",
    "Recipe",
    "Run",
    "RunBusy",
    "Sample",
    "Stored",
    "WrongOption",
    "check_memory",
    "fit",
    "free_directory",
    "list_runs",
    "load",
    "read",
    "save",
]
