"""How far the hidden layer goes at the next step of safeguarded descent, judged by the last steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stride:
    """The hidden step to try next: what the last ones would have borne. If all tries fail, it rests."""

    cap: float
    h: float | None = None
    growth: float = 4.0
    rest: int = 0
    failures: int = 0

    def due(self) -> bool:
        """Whether a hidden update is to be tried at this step."""
        self.rest -= 1
        return self.cap > 0 and self.rest < 0

    def first(self, guess: float) -> float:
        """The hidden step to try first; `guess` is used at the very first step."""
        self.h = min(self.h or guess, self.cap)
        return self.h

    def accepted(self, h: float, reach: float) -> None:
        """Learn from a step that passed."""
        self.h, self.failures = min(h * min(max(reach, 0.5), self.growth), self.cap), 0

    def rejected(self, h: float, reach: float) -> float:
        """Learn from a step that did not pass, and return the next one to try."""
        self.growth, self.h = 1.5, h * reach
        return self.h

    def failed(self) -> None:
        """Rest for a while, and longer each time."""
        self.failures += 1
        self.rest = min(2**self.failures, 16)
