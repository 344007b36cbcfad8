"""What the papers claim, checked: `claims()`, `claim(key)`, `run(key)`, `table()`."""

from . import (  # noqa: F401  each module enters its claims
    gao2022_claims,
    gao2022_practice_claims,
    hieu2022_background_claims,
    hieu2022_claims,
    kawaguchi2021_claims,
    ling2023_claims,
    ling2023_width_claims,
    xie2021_claims,
    xie2021_training_claims,
)
from .claims import Outcome, PaperClaim, claim, claims, run, table

__all__ = ["Outcome", "PaperClaim", "claim", "claims", "run", "table"]
