"""Equilibrium networks you can trust: found fast, differentiated exactly, proved to exist."""

__version__ = "0.1.0"

import lazy_loader

# The names stand in __init__.pyi, and a room is imported when one of its names is first asked for.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
