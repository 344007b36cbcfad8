"""A solver to be chosen by trial: the fastest of several on the layer and the batch at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from .anderson import Anderson
from .broyden import Broyden
from .picard import Picard
from .problem import Map
from .solver import Solver


@dataclass(frozen=True)
class Auto(Solver):
    """argmin over the candidates of the seconds that a solve takes, at a residual that was verified.

    For layers and models: `Equilibrium(cell, solver=eq.Auto())`. The first call solves its batch by each of
    `candidates` to the tolerance of the call, and chooses the one that solves most samples or, among equals,
    takes least time. Rows on which it fails go to the default chain. Since weights move, the trial is
    repeated after `every` calls. `layer.chosen` holds what was measured.
    """

    candidates: tuple[Solver, ...] = (Anderson(), Picard(), Anderson(12), Broyden())
    every: int = 200

    def __post_init__(self) -> None:
        bad = [one for one in self.candidates if not isinstance(one, Solver) or isinstance(one, Auto)]
        if bad or not self.candidates:
            raise ValueError(f"candidates must be solvers such as Anderson(). Got {bad or 'none'} instead.")
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise ValueError(f"every must be an integer ≥ 1. Got {self.every!r} instead.")

    def require(self, f: Map) -> NoReturn:
        """Refused: a single solve has nothing to gain from a trial."""
        raise TypeError(
            "Auto() chooses the solver of a layer or model, once for many calls: Equilibrium(cell, "
            "solver=Auto()). Got it for a single solve, or in a chain, instead: name a solver such as "
            "Anderson()."
        )

    def step(self, f: Map, z: Tensor, fz: Tensor, state: Any) -> NoReturn:
        """Never taken: a model puts the chosen solver in its place."""
        self.require(f)
