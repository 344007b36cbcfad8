"""h'(t) = f(h(t), t),  h(0) = [g(x), 0],  ŷ = head(h(1)): neural ODEs, as [xie2021, Table 1b] compares.

Needs the package torchdiffeq (`pip install 'equipoise[ode]'`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...checks import integer, one_of
from ..checks import all_counts, counts
from ..images.parts import ClassHead, Extractor, Maker, checked_image, images_of
from ..saving import Saved

METHODS = ("dopri5", "rk4", "euler", "midpoint")


class Field(nn.Module):
    """f(h, t) = K₂⋆relu(K₁⋆[h, t] + b₁) + b₂: t joins as a channel."""

    def __init__(self, channels: int, hidden: int, make: Maker) -> None:
        super().__init__()
        self.conv1 = make.conv(channels + 1, hidden)
        self.conv2 = make.conv(hidden, channels, std=0.1 * (hidden * 9) ** -0.5)
        self.calls, self.evaluations = 0, 0  # so far, and of the last solve for h(1)

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """f(h, t), of the shape of h."""
        self.calls += 1
        time = t.to(h).expand(len(h), 1, *h.shape[2:])
        return self.conv2(torch.relu(self.conv1(torch.cat([h, time], dim=1))))


class NeuralODE(Saved):
    """h'(t) = f(h(t), t),  h(0) = [g(x), 0],  ŷ = head(h(1)).

    Args:
        inputs: (channels, height, width) of an image.
        channels, hidden: of g(x) and inside the field.
        augment: channels of zeros appended to g(x); more than none is an augmented neural ODE.
        method: "dopri5" (adaptive, to `rtol` ≥ 0 and `atol` > 0), or "rk4", "midpoint", "euler" in `steps`
            steps. The steps of dopri5 follow the mean error of the whole batch: the h(1) of an image depends
            on the other images, by about the tolerance. With fixed steps every image is solved on its own.
        adjoint: gradients by the adjoint equation, whose memory does not grow with the steps (its error is
            that of the solver), instead of through the solver.
    """

    settings = (
        *("inputs", "channels", "hidden", "outputs", "augment", "method", "steps", "rtol", "atol"),
        *("adjoint", "pool"),
    )
    described = "h'(t) = f(h(t), t), ŷ = head(h(1)); augment={0.augment}, method={0.method}"

    def __init__(
        self,
        inputs: Sequence[int],
        channels: int = 16,
        hidden: int = 32,
        outputs: int = 10,
        *,
        augment: int = 0,
        extractor: Sequence[int] = (1,),
        method: str = "dopri5",
        steps: int = 8,
        rtol: float = 1e-3,
        atol: float = 1e-3,
        adjoint: bool = True,
        pool: int = 4,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        channels, hidden, outputs, steps, pool = counts(
            channels=channels, hidden=hidden, outputs=outputs, steps=steps, pool=pool
        )
        integer("augment", augment, 0)
        one_of("method", method, METHODS)
        if not (0 <= rtol < math.inf and 0 < atol < math.inf):
            raise ValueError(
                f"rtol must be ≥ 0 and atol > 0, both finite. Got rtol={rtol!r} and atol={atol!r} instead."
            )
        make = Maker(dtype, device, generator)
        self.inputs, self.outputs, self.augment, self.hidden = checked_image(inputs), outputs, augment, hidden
        self.method, self.steps, self.rtol, self.atol = method, steps, float(rtol), float(atol)
        self.adjoint, self.pool = adjoint, pool
        self.extractor = Extractor(self.inputs, channels, all_counts("extractor", extractor), make)
        self.channels = self.extractor.channels
        self.field = Field(self.channels + augment, hidden, make)
        self.head = ClassHead(self.channels + augment, self.extractor.size, outputs, pool, make)

    def state(self, x: Tensor) -> Tensor:
        """h(1), (N, channels + augment, h, w)."""
        ode = _torchdiffeq()
        g = self.extractor(images_of(self.inputs, x, next(self.parameters())))
        h = torch.cat([g, g.new_zeros(len(g), self.augment, *g.shape[2:])], dim=1)
        if not len(h):
            return h  # no image has an error that dopri5 could measure
        span = torch.tensor([0.0, 1.0], dtype=h.dtype, device=h.device)
        before = self.field.calls
        solve = ode.odeint_adjoint if self.adjoint else ode.odeint
        options = None if self.method == "dopri5" else {"grid_constructor": self._grid}
        try:
            path = solve(
                self.field, h, span, rtol=self.rtol, atol=self.atol, method=self.method, options=options
            )
        except AssertionError as error:  # which is how torchdiffeq reports it
            raise ArithmeticError(
                f"{self.method} must come to t = 1, and its steps became too small or h(t) infinite: the "
                f"field is too steep for rtol={self.rtol} and atol={self.atol} in {h.dtype}. Loosen them, "
                f"take smaller weights, or a method of fixed steps."
            ) from error
        self.field.evaluations = self.field.calls - before  # the adjoint's, later, are not counted
        return path[-1]

    def _grid(self, field: Any, h: Tensor, t: Tensor) -> Tensor:
        """`steps` equal steps, for the adjoint from 1 to 0; a step size would be rounded to one more."""
        return torch.linspace(float(t[0]), float(t[-1]), self.steps + 1, dtype=t.dtype, device=t.device)

    def forward(self, x: Tensor) -> Tensor:
        """ŷ = head(h(1))."""
        return self.head(self.state(x))

    def config(self) -> dict[str, Any]:
        """The settings, and the strides of g."""
        return super().config() | {"extractor": self.extractor.strides}


def _torchdiffeq() -> Any:
    try:
        return importlib.import_module("torchdiffeq")
    except ImportError as error:
        raise ImportError(
            "a neural ODE requires the package torchdiffeq, which is not installed: "
            "pip install 'equipoise[ode]'"
        ) from error
