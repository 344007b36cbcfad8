"""Boxes and balls of inputs, and the least value of a linear functional over them, rounded down."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...linalg import row_norms_upper
from .network import LEAST, UP, up

_ROUNDS = 4  # of the search for the ball's multiplier
_DOWN, _UP = -math.inf, math.inf


def _below(t: Tensor) -> Tensor:
    return torch.nextafter(t, torch.full_like(t, _DOWN))


def _above(t: Tensor) -> Tensor:
    return torch.nextafter(t, torch.full_like(t, _UP))


@dataclass(frozen=True)
class InputSets:
    """One set of inputs for each of N samples: a box, or what a ball and a box have in common.

    The exact set lies within [lower, upper]. Every point of [inner_lower, inner_upper] that is also within
    the ball, if there is one, lies in the exact set.
    """

    lower: Tensor  # (N, d)
    upper: Tensor  # (N, d)
    inner_lower: Tensor  # (N, d)
    inner_upper: Tensor  # (N, d)
    centre: Tensor  # (N, d), where functionals are read
    reach: Tensor  # (N, d) ≥ |x − centre|
    epsilon: Tensor | None = None  # (N, 1), of the balls around the centres, in the Euclidean norm

    @staticmethod
    def of_box(lower: Tensor, upper: Tensor) -> InputSets:
        """The boxes [lower, upper] as they are given."""
        centre = lower / 2 + upper / 2
        return InputSets(lower, upper, lower, upper, centre, _reach(lower, upper, centre))

    @staticmethod
    def around(X: Tensor, epsilon: float | Tensor, norm: str, low: Tensor, high: Tensor) -> InputSets:
        """‖x − X_i‖ ≤ ε in the norm "linf" or "l2", and low ≤ x ≤ high; ε is a number or (N, 1)."""
        lower, upper = X - epsilon, X + epsilon
        outer = torch.maximum(_below(lower), low), torch.minimum(_above(upper), high)
        inner = torch.maximum(_above(lower), low), torch.minimum(_below(upper), high)
        inner = torch.minimum(inner[0], X), torch.maximum(inner[1], X)  # X itself, whatever was rounded
        centre = X if norm == "l2" else outer[0] / 2 + outer[1] / 2
        ball = torch.as_tensor(epsilon, dtype=torch.float64).expand(len(X), 1) if norm == "l2" else None
        return InputSets(*outer, *inner, centre, _reach(*outer, centre), ball)

    def take(self, rows: Tensor) -> InputSets:
        """The sets of some samples."""
        tensors: dict[str, Any] = {name: t[rows] for name, t in vars(self).items() if isinstance(t, Tensor)}
        return replace(self, **tensors)

    def length(self) -> Tensor:
        """≥ ‖x − centre‖, (N,)."""
        size = up(row_norms_upper(self.reach))
        return size if self.epsilon is None else torch.minimum(size, self.epsilon[:, 0])

    def contains(self, x: Tensor) -> Tensor:
        """Whether x (N, d) lies in the exact set for certain, (N,)."""
        inside = ((x >= self.inner_lower) & (x <= self.inner_upper)).all(dim=1)
        if self.epsilon is None:
            return inside
        moved = (x - self.centre).abs() * UP
        peak = moved.amax(dim=1, keepdim=True).clamp_min(LEAST)  # so that no square is lost or overflows
        length = (moved / peak).square().sum(dim=1).sqrt() * (1 + x.shape[1] * 2.0**-50) * peak[:, 0]
        return inside & (length * UP <= self.epsilon[:, 0])

    def projected(self, x: Tensor) -> Tensor:
        """A point of the set near x (N, d)."""
        x = torch.minimum(torch.maximum(x, self.inner_lower), self.inner_upper)
        if self.epsilon is None:
            return x
        delta = x - self.centre
        scale = (self.epsilon * (1 - 1e-9) / delta.norm(dim=1, keepdim=True).clamp_min(1e-300)).clamp_max(1.0)
        x = self.centre + scale * delta
        return torch.minimum(torch.maximum(x, self.inner_lower), self.inner_upper)

    def fall(self, a: Tensor, sample: Tensor, both: bool) -> tuple[Tensor, Tensor]:
        """≥ how far a·x can fall below a·centre, and with `both` rise above it, for rows a (P, d).

        The rounding of a itself is not included, but for what subnormal products lose.
        """
        size = a.abs() + LEAST
        box = up((size * self.reach[sample]).sum(dim=1) * (1 + a.shape[1] * 2.0**-52))
        if self.epsilon is None:
            return box, box
        fall = torch.minimum(box, self._fall_in_ball(a, size, sample))
        return fall, torch.minimum(box, self._fall_in_ball(-a, size, sample)) if both else fall

    def step_to(self, a: Tensor, sample: Tensor) -> Tensor:
        """Where a·x is about least, minus the centre: (P, d)."""
        if self.epsilon is None:
            return -torch.sign(a) * self.reach[sample]
        room = self._room(a, sample)
        t = self._multiplier(a.abs(), room, self.epsilon[sample])
        return -torch.sign(a) * torch.minimum(room, a.abs() / t)

    def _room(self, a: Tensor, sample: Tensor) -> Tensor:
        """How far each coordinate may move where a·x falls."""
        down, rise = self.centre - self.lower, self.upper - self.centre
        return torch.where(a > 0, down[sample], rise[sample]) * UP

    def _multiplier(self, size: Tensor, room: Tensor, epsilon: Tensor) -> Tensor:
        """About the t at which δ = min(room, |a|/t) has the length ε, (P, 1)."""
        tiny = 1e-300
        t = size.norm(dim=1, keepdim=True).clamp_min(tiny) / epsilon.clamp_min(tiny)
        for _ in range(_ROUNDS):
            full = size >= t * room
            left = epsilon**2 - torch.where(full, room, 0.0).square().sum(dim=1, keepdim=True)
            free = torch.where(full, 0.0, size).norm(dim=1, keepdim=True)
            t = torch.where((left > 0) & (free > 0), free / left.clamp_min(tiny).sqrt(), t)
        return t.clamp_min(tiny)

    def _fall_in_ball(self, a: Tensor, size: Tensor, sample: Tensor) -> Tensor:
        """Σ max over δ in [0, room] of |a|δ − tδ²/2, plus tε²/2: ≥ the fall in ball and box for any t."""
        assert self.epsilon is not None
        room, epsilon = self._room(a, sample), self.epsilon[sample]
        t = self._multiplier(size, room, epsilon)
        full = size > t * room * UP  # then the maximum is at δ = room
        most = torch.where(full, size * room - (t / 2) * room.square(), size * (size / (2 * t)))
        most = most + 2.0**-50 * size * room  # the rounding of the difference
        ball = (t * epsilon / 2 * epsilon)[:, 0]  # in this order, as ε² may underflow
        total = most.sum(dim=1) * (1 + a.shape[1] * 2.0**-52) + ball
        fall = up(total)
        return torch.where(torch.isfinite(fall), fall, math.inf)


def _reach(lower: Tensor, upper: Tensor, centre: Tensor) -> Tensor:
    return _above(torch.maximum(upper - centre, centre - lower)).clamp_min(0.0)
