"""A run as one self-contained page: what was trained, what is guaranteed, what was measured."""

from .comparison import compare
from .findings import findings, headline
from .page import render, write

__all__ = ["compare", "findings", "headline", "render", "write"]
