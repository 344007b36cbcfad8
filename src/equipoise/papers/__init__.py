"""What the papers claim, checked: `claims()`, `claim(key)`, `run(key)`, `table()`."""

from . import gao2022_claims, gao2022_practice_claims  # noqa: F401  each module enters its claims
from .claims import Outcome, PaperClaim, claim, claims, run, table

__all__ = ["Outcome", "PaperClaim", "claim", "claims", "run", "table"]
