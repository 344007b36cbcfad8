"""What the papers claim, checked: `claims()`, `claim(key)`, `run(key)`, `table()`."""

from importlib import import_module

from .framework.claims import Outcome, PaperClaim, claim, claims, run, table

_ENTERED = (  # each module enters its claims
    "gao2022.claims",
    "gao2022.practice_claims",
    "hieu2022.background_claims",
    "hieu2022.claims",
    "kawaguchi2021.claims",
    "ling2023.claims",
    "ling2023.width_claims",
    "xie2021.claims",
    "xie2021.training_claims",
)
for _name in _ENTERED:
    import_module(f".{_name}", __package__)

__all__ = ["Outcome", "PaperClaim", "claim", "claims", "run", "table"]
