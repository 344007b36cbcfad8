"""A run is a directory: what was asked, what was measured, what came out."""

from .directory import Listed, Run, RunBusy, free_directory, list_runs

__all__ = ["Listed", "Run", "RunBusy", "free_directory", "list_runs"]
