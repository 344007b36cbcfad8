"""A run as one self-contained page: what was trained, what is guaranteed, what was measured."""

from .findings import findings
from .page import render, write

__all__ = ["findings", "render", "write"]
