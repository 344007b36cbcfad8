"""z = relu(W z + b), n = 1000 samples, width m, to a relative residual of 1e-6 in every sample, in float64.

W and b as in ling2023 (σ_w² = .08, ‖W‖ ≈ .8; inputs on the sphere of radius √d). Cold: each library starts
where it does of itself, the peers at 0 and ours at relu(b). Warm: all start at the equilibrium of a W that
is off by 1e-3, as after a step of training. Each is asked for 1e-6 in its own terms (a peer's is tightened
until its answer passes our test).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import equipoise as eq
from bench.measure import Contender, Row, side_by_side
from bench.peers import Problem, contenders

LIMIT = 1e-6
TARGETS = {"torchdeq": 2.5, "jaxopt": 2.2, "optimistix": 2.2}
COLD = (
    "torchdeq fixed point",
    "torchdeq Anderson",
    "torchdeq Broyden",
    "jaxopt fixed point",
    "jaxopt Anderson",
    "optimistix fixed point",
)
WARM = ("torchdeq fixed point", "jaxopt fixed point", "optimistix fixed point")


def run(quick: bool = False) -> list[Row]:
    rows = []
    for m in (500,) if quick else (500, 1000, 2000):
        rows += _at(m, n=1000, repeats=5)
    return rows


def _at(m: int, n: int, repeats: int) -> list[Row]:
    weight, bias = problem(m, n)
    verify = lambda z: relative_residual(weight, bias, z)
    stop, exact, near = eq.Stop(rtol=LIMIT), _equilibrium(weight, bias), _equilibrium(_off(weight), bias)
    rows = []
    for name, start, which in (("cold", None, COLD), ("warm", near, WARM)):

        def ours(start: Tensor | None = start) -> Tensor:
            fresh = eq.AffineMap(weight, bias)  # what it derives from W is timed too
            return eq.fixed_point(fresh, start, solver=eq.Picard(), stop=stop, precision="mixed").value

        peers = contenders(
            Problem(
                lambda z, w, b: torch.relu(torch.addmm(b, z, w.T)),
                _jax_map,
                (weight, bias),
                torch.zeros_like(bias) if start is None else start,
                float(exact.norm()),
            ),
            verify,
            LIMIT,
            which,
        )
        rows += side_by_side(
            f"forward {name}, m={m}, n={n}",
            Contender("mixed Picard", ours),
            peers,
            verify,
            repeats,
            TARGETS if start is None else {},
        )
    return rows


def _jax_map(z, w, b):  # type: ignore[no-untyped-def]
    import jax

    return jax.nn.relu(z @ w.T + b)


def problem(m: int, n: int, d: int = 1000, sigma_w2: float = 0.08) -> tuple[Tensor, Tensor]:
    """W (m, m) ~ N(0, 2σ_w²/m) and b = U x (n, m), U ~ N(0, 2/d)."""
    generator = torch.Generator().manual_seed(m)
    normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)
    x = normal(n, d)
    x *= math.sqrt(d) / x.norm(dim=1, keepdim=True)
    return normal(m, m) * math.sqrt(2 * sigma_w2 / m), x @ normal(d, m) * math.sqrt(2 / d)


def relative_residual(weight: Tensor, bias: Tensor, z: Tensor) -> float:
    """The worst ‖f(z) − z‖/‖f(z)‖ of a sample, in float64."""
    fz = torch.relu(torch.addmm(bias, z, weight.T))
    return float(((fz - z).norm(dim=1) / fz.norm(dim=1)).max())


def _off(weight: Tensor) -> Tensor:
    """A W that differs by a thousandth of its norm."""
    off = torch.randn(weight.shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(1))
    return weight + off * (1e-3 * weight.norm() / off.norm())


def _equilibrium(weight: Tensor, bias: Tensor) -> Tensor:
    solution = eq.fixed_point(eq.AffineMap(weight, bias), solver=eq.Picard(), stop=eq.Stop(rtol=1e-10))
    value = solution.raise_if_failed().value
    assert isinstance(value, Tensor)
    return value
