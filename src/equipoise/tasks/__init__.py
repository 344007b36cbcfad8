"""Tasks: fit, what most runs do, and runs, directories of what was asked, measured and found."""

from .directory import NotBegun, Run, RunBusy, free_directory
from .fitting import Fitted, NotProved, fit
from .keeping import load, save
from .listing import Listed, list_runs
from .preparation import Preparation
from .recipe import Recipe

__all__ = [
    "Fitted",
    "Listed",
    "NotBegun",
    "NotProved",
    "Preparation",
    "Recipe",
    "Run",
    "RunBusy",
    "fit",
    "free_directory",
    "list_runs",
    "load",
    "save",
]
