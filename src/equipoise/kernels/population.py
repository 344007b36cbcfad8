"""K_ij = s_i s_j Q(cosθ_ij)/(1−σ_w²),  cosθ = σ_w² Q(cosθ) + (1−σ_w²) c: [ling2023] at infinite width.

The network is `Z = relu(Z Wᵀ + X Uᵀ)`, `ŷ = Z a`, drawn as in [ling2023, Assumption 1]:
`W_ij ~ N(0, 2σ_w²/m)`, `U_ij ~ N(0, 2/d)`, `a_i ~ N(0, 1/m)`. As the width m grows, `Z Zᵀ/m → K`.

The paper takes rows of norm √d. Here rows have any norm: relu is positively homogeneous, so
`z(s x) = s z(x)` at every width, and with `s_i = ‖x_i‖/√d` and `c_ij` the cosine of rows i and j,
every kernel entry is `s_i s_j` times a function of `c_ij` alone. No gradient flows through this module.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from ..solve.norms import row_norms
from .tiles import Progress, TileFile, digest_of, require_memory, to_file

_BLOCK = 1 << 16  # entries of a row block: its few buffers stay in a core's cache
_DEGREE = 8  # of the polynomial that starts the iteration
_NEAR_ONE = 0.95  # σ_w² beyond which that start is poor

# Kernel entries, at s = 1, of a block of pairs with cosines c; scratch is four buffers of the shape of c.
_Entries = Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, ...]]

# ---------------------------------------------------------------- the dual activation of relu


@torch.no_grad()
def dual_relu(x: Tensor) -> Tensor:
    """Q(x) = (√(1−x²) + (π − arccos x) x)/π = 2 E[relu(u) relu(v)], u, v ~ N(0,1) of correlation x.

    [ling2023, (11)], as (sin ψ − ψ cos ψ)/π with ψ = π − arccos x: full relative accuracy on [−1, 1].
    """
    _require_correlation(x)
    return _p(torch.acos(-x), ((1 - x) * (1 + x)).sqrt(), -x)


@torch.no_grad()
def dual_relu_derivative(x: Tensor) -> Tensor:
    """Q'(x) = (π − arccos x)/π = 2 P(u > 0, v > 0), u, v ~ N(0,1) of correlation x."""
    _require_correlation(x)
    return torch.acos(-x) / math.pi


# ---------------------------------------------------------------- the Gram matrix


@torch.no_grad()
def population_gram(
    X: Tensor,
    sigma_w2: float,
    depth: int | None = None,
    X2: Tensor | None = None,
    *,
    out: str | Path | TileFile | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """K_ij^(l) = 2 E[relu(u) relu(v)],  (u, v) ~ N(0, σ_w² K^(l−1) + C) at i, j;  C = X Xᵀ/d, K^(0) = 0.

    The limit of `Z Zᵀ/m` as the width m grows, [ling2023, Def. 1 and Thm 3]: after `depth` layers, or at the
    equilibrium (`depth=None`). `X` is (N, d) with rows of any norm; with `X2` (N2, d) it is the cross-Gram
    (N, N2). The error of an entry is a few units of rounding of √(K_ii K_jj), for every σ_w² in (0, 1).

    With `out`, a .npy file or a `TileFile`, it is computed tile by tile into that file, from which it is
    mapped; `progress` is called with the tiles done and the tiles in all. The same call resumes a killed run.
    """
    require_rows(X, "X")
    _require_variance(sigma_w2)
    _require_depth(depth)
    if out is not None:
        known = {"kernel": "population_gram", "sigma_w2": sigma_w2, "depth": depth, "X": digest_of(X)}
        known |= {} if X2 is None else {"X2": digest_of(X2)}
        shape = len(X), None if X2 is None else len(X2), 1
        return to_file(_Tiles(X, sigma_w2, depth, X2), shape, X.dtype, out, known, progress)
    if depth is None:
        excess = _limit(float(sigma_w2), X.dtype, X.device)
        return _assemble(X, X2, lambda c, scratch: (excess(c, scratch).add_(c).mul_(1 / (1 - sigma_w2)),))[0]
    return _assemble(X, X2, lambda c, _: (_gram_after(c, sigma_w2, depth),))[0]


@dataclass(frozen=True)
class _Tiles:
    """Tiles of the Gram matrix. Each tile is itself a Gram matrix, of fewer rows."""

    X: Tensor
    sigma_w2: float
    depth: int | None
    X2: Tensor | None

    def __call__(self, at: slice, over: slice) -> dict[str, Tensor]:
        alone = self.X2 is None and at == over
        other = None if alone else (self.X if self.X2 is None else self.X2)[over]
        return {"total": population_gram(self.X[at], self.sigma_w2, self.depth, other)}


def population_lambda_min(X: Tensor, sigma_w2: float, depth: int | None = None) -> float:
    """λ* = λ_min(K), computed in float64. It is zero, up to rounding, when two rows of X are equal."""
    require_rows(X, "X")
    return float(torch.linalg.eigvalsh(population_gram(X.double(), sigma_w2, depth))[0])


@lru_cache(maxsize=16)
def _limit(
    sigma_w2: float, dtype: torch.dtype, device: torch.device
) -> Callable[[Tensor, Sequence[Tensor]], Tensor]:
    """c ↦ e = Q(cosθ) − c, where cosθ = c + σ_w² e is the fixed point of [ling2023, (14)]."""
    if sigma_w2 > _NEAR_ONE:
        return lambda c, _: _excess_near_one(c, sigma_w2)
    return _Excess.fit(sigma_w2, dtype, device).solve


@dataclass(frozen=True)
class _Excess:
    """h(e) = (1−σ_w²) e − p(c + σ_w² e) = 0,  p(x) = Q(x) − x = (sin θ − θ cos θ)/π.

    One scalar function of c serves every entry, and its inverse, θ to (c, e), is explicit: the start
    `e ≈ g R(√g)`, g = 1 − c, is a polynomial fitted to it, and as many steps of Halley's cubically
    convergent iteration follow as a fine grid of c shows to be needed (one or two). The rounding error is a
    few units at most, as h' = 1 − σ_w² + σ_w² θ/π is not small where p is not.
    """

    sigma_w2: float
    coefficients: tuple[Tensor, ...]  # of R, highest power first
    one: Tensor
    offset: Tensor  # π (1−σ_w²)
    steps: int = 0

    @classmethod
    def fit(cls, sigma_w2: float, dtype: torch.dtype, device: torch.device) -> "_Excess":
        kappa = sigma_w2 / (1 - sigma_w2)
        p = lambda theta: (np.sin(theta) - theta * np.cos(theta)) / math.pi
        gap = lambda theta: 2 * np.sin(theta / 2) ** 2 + kappa * p(theta)  # g at the angle θ
        antipodal = brentq(lambda theta: gap(theta) - 2, 0, math.pi)  # θ at c = −1
        theta = antipodal * (1 + np.cos(math.pi * (np.arange(64) + 0.5) / 64)) / 2
        g = gap(theta)
        R = np.polynomial.polynomial.polyfit(np.sqrt(g), p(theta) / ((1 - sigma_w2) * g), _DEGREE)
        numbers = torch.tensor([1.0, math.pi * (1 - sigma_w2), *R[::-1]], dtype=dtype, device=device)
        one, offset, *coefficients = numbers.unbind()
        excess = cls(sigma_w2, tuple(coefficients), one, offset)

        t = torch.logspace(-16, 0, 1024, dtype=torch.float64, device=device)
        c = torch.cat([1 - 2 * t, 2 * t - 1]).to(dtype)  # dense at both ends of [−1, 1]
        scratch = c.new_empty(4, *c.shape).unbind()
        e = excess.start(c, scratch)
        steps, correction = -1, math.inf
        while correction > 4 * torch.finfo(dtype).eps:
            before = e.clone()
            excess.improve(c, e, scratch)
            steps, correction = steps + 1, float((e - before).abs().max())
        return replace(excess, steps=steps)

    def solve(self, c: Tensor, scratch: Sequence[Tensor]) -> Tensor:
        e = self.start(c, scratch)
        for _ in range(self.steps):
            self.improve(c, e, scratch)
        return e

    def start(self, c: Tensor, scratch: Sequence[Tensor]) -> Tensor:
        g, root, _, e = scratch
        torch.sub(self.one, c, out=g)
        torch.sqrt(g, out=root)
        R = self.coefficients[0]
        for r in self.coefficients[1:]:
            R = torch.addcmul(r, R, root, out=e)
        return e.mul_(g)

    def improve(self, c: Tensor, e: Tensor, scratch: Sequence[Tensor]) -> None:
        """e ← e − h h'/(h'² − h h''/2), in place, with h'' = −σ_w⁴/(π sin θ); h and h' are held times π."""
        v = self.sigma_w2
        x, theta, sine, _ = scratch
        torch.add(c, e, alpha=v, out=x)  # cosθ: never beyond ±1, as 0 ≤ σ_w² e < 1 − c up to the fit's error
        torch.sub(self.one, x, out=sine)
        sine.mul_(torch.add(self.one, x, out=theta)).sqrt_()  # √((1−x)(1+x)), without cancellation
        torch.acos(x, out=theta)
        h = torch.addcmul(sine, x, theta, value=-1, out=x).sub_(e, alpha=math.pi * (1 - v))  # −π h
        slope = torch.add(self.offset, theta, alpha=v, out=theta)
        sine.clamp_(min=torch.finfo(c.dtype).eps)  # it is 0 at c = 1 only, where h = 0
        numerator = sine.mul_(slope)  # multiplied by sin θ, and so is the denominator
        denominator = slope.mul_(numerator).sub_(h, alpha=v * v / 2)
        e.addcdiv_(numerator.mul_(h), denominator)


def _excess_near_one(c: Tensor, sigma_w2: float) -> Tensor:
    """F(t) = t + κ p(1 − t) − (1 − c) = 0,  κ = σ_w²/(1−σ_w²),  e = (1 − c − t)/σ_w²: by Newton's iteration.

    The same equation in t = 1 − cosθ, which is tiny for σ_w² near 1 and would be lost in 1 − t. F increases
    and is convex, so the iterates fall from t = 1 − c to the root.
    """
    kappa = sigma_w2 / (1 - sigma_w2)
    g = 1 - c
    t = g.clone()
    while True:
        sine = ((2 - t) * t).sqrt_()
        theta = torch.atan2(sine, 1 - t)
        correction = (t - g).add_(_p(theta, sine, 1 - t), alpha=kappa).div_(1 + (kappa / math.pi) * theta)
        t.sub_(correction).clamp_(min=0)
        if not correction.abs().max() > 4 * torch.finfo(c.dtype).eps:
            return (g - t).div_(sigma_w2)


def _p(theta: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
    """(sin θ − θ cos θ)/π with relative accuracy: a series at small θ, where the difference cancels."""
    square = theta * theta
    series = torch.zeros_like(theta)
    for k in range(7, 0, -1):
        series = 2 * k / math.factorial(2 * k + 1) - square * series
    return torch.where(theta < 0.5, theta * square * series, sine - theta * cosine) / math.pi


def _gram_after(c: Tensor, sigma_w2: float, depth: int) -> Tensor:
    """K^(l) = ρ^(l) Q(cosθ^(l)) [ling2023, (12)]."""
    rho, x = deque(_cosines(c, sigma_w2, depth), maxlen=1).pop()
    return _dual(x).mul_(rho)


def _cosines(c: Tensor, sigma_w2: float, depth: int) -> Iterator[tuple[float, Tensor]]:
    """cosθ^(l) = (1 − 1/ρ^(l)) Q(cosθ^(l−1)) + c/ρ^(l),  ρ^(l) = 1 + σ_w² ρ^(l−1): ρ^(l), cosθ^(l) by layer.

    This is [ling2023, (13)] with ρ^(l), as in its proof; the printed equation has ρ^(l−1) instead.
    """
    rho, x = 1.0, c
    yield rho, x
    for _ in range(depth - 1):
        rho = 1 + sigma_w2 * rho
        x = _dual(x).sub_(c).mul_(1 - 1 / rho).add_(c).clamp_(-1, 1)
        yield rho, x


def _dual(x: Tensor) -> Tensor:
    """Q(x) with absolute accuracy, for x known to be in [−1, 1]."""
    return ((1 - x) * (1 + x)).sqrt_().addcmul_(torch.acos(-x), x).div_(math.pi)


def _assemble(X: Tensor, X2: Tensor | None, entries: _Entries) -> tuple[Tensor, ...]:
    """s_i s_j · entries(c_ij) for all pairs of rows, by row blocks. Without X2 the lower half is a copy."""
    unit, scale = _directions(X, "X")
    unit2, scale2 = (unit, scale) if X2 is None else _directions(X2, "X2", like=X)
    N, N2 = len(unit), len(unit2)
    buffers = X.new_empty(5, max(_BLOCK, N2))  # reused by every block
    outputs: tuple[Tensor, ...] = ()
    i = 0
    while i < N:
        first = i if X2 is None else 0
        columns = N2 - first
        j = min(N, i + len(buffers[0]) // columns)
        c, *scratch = (buffer[: (j - i) * columns].view(j - i, columns) for buffer in buffers)
        torch.mm(unit[i:j], unit2[first:].mT, out=c).clamp_(-1, 1)
        if X2 is None:
            c.diagonal().fill_(1)
        blocks = entries(c, scratch)
        if not outputs:
            require_memory(X, N, N2, 1, ["a", "W", "U"][: len(blocks)])
            outputs = tuple(X.new_empty(N, N2) for _ in blocks)
        for output, block in zip(outputs, blocks, strict=True):
            torch.mul(block.mul_(scale[i:j, None]), scale2[first:], out=output[i:j, first:])
            if X2 is None:
                square = output[i:j, i:j]
                square.copy_(square.triu() + square.triu(1).mT)
                output[j:, i:j] = output[i:j, j:].mT
        i = j
    return outputs


# ---------------------------------------------------------------- the tangent kernel


@dataclass(frozen=True, eq=False)
class PopulationTangentKernel:
    """H(m) ≈ m (H_a + H_W) + H_U: the tangent kernel at a large width m, by parameter block.

    The parameters are those of the paper, not rescaled by the width. The blocks of a and W grow like m, and
    `blocks["a"]` and `blocks["W"]` are the limits of the quotients by m. The block of U stays bounded, and
    `blocks["U"]` is its limit.
    """

    blocks: dict[str, Tensor]  # "a", "W", "U": (N, N2)

    def at_width(self, m: int) -> Tensor:
        """m (H_a + H_W) + H_U: each block to its leading order."""
        return m * (self.blocks["a"] + self.blocks["W"]) + self.blocks["U"]


@torch.no_grad()
def population_tangent_kernel(
    X: Tensor, sigma_w2: float, depth: int | None = None, X2: Tensor | None = None
) -> PopulationTangentKernel:
    """H_a = K, H_W = K ∘ B, H_U = X Xᵀ ∘ B,  B = (Q'/2)/(1 − σ_w² Q') at cosθ: the limit of V Vᵀ.

    From H = G + (G + X Xᵀ) ∘ (V Vᵀ) with the adjoint V = D ∘ (1 aᵀ + V W). In the limit 1 aᵀ + V W is
    Gaussian, independent of the masks D, with covariance (1 + 2σ_w² B)/m between rows, and both masks of a
    pair of rows are 1 with probability Q'/2: hence B = (Q'/2)(1 + 2σ_w² B).

    A network of `depth` tied layers has V^(l) = D^(l) ∘ 1aᵀ and V^(k) = D^(k) ∘ (V^(k+1) W), which are
    uncorrelated between layers: H_U = X Xᵀ ∘ Σ_k B^(k) and H_W = Σ_k K^(k−1) ∘ B^(k).

    Q' behaves like a square root near equal rows: off-diagonal entries of duplicates are right to √eps only.
    """
    require_rows(X, "X")
    _require_variance(sigma_w2)
    _require_depth(depth)
    if depth is None:
        excess = _limit(float(sigma_w2), X.dtype, X.device)
        a, W, U = _assemble(X, X2, lambda c, scratch: _tangent_limit(c, excess(c, scratch), sigma_w2))
    else:
        a, W, U = _assemble(X, X2, lambda c, _: _tangent_after(c, sigma_w2, depth))
    return PopulationTangentKernel({"a": a, "W": W, "U": U.mul_(X.shape[1])})  # C = X Xᵀ/d


def _tangent_limit(c: Tensor, e: Tensor, sigma_w2: float) -> tuple[Tensor, Tensor, Tensor]:
    """K, K ∘ B and C ∘ B at the equilibrium, from the excess e."""
    slope = torch.acos(-torch.add(c, e, alpha=sigma_w2).clamp_(max=1)).div_(math.pi)
    B = slope / (2 - 2 * sigma_w2 * slope)
    K = (c + e).div_(1 - sigma_w2)
    return K, K * B, c * B


def _tangent_after(c: Tensor, sigma_w2: float, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """K^(l), Σ_k K^(k−1) ∘ B^(k) and C ∘ Σ_k B^(k),  B^(l) = Q'/2, B^(k) = σ_w² Q' B^(k+1): by Horner."""
    K = sum_KB = sum_B = torch.zeros_like(c)
    for rho, x in _cosines(c, sigma_w2, depth):
        slope = torch.acos(-x).div_(math.pi)
        sum_KB = slope * (K / 2 + sigma_w2 * sum_KB)
        sum_B = slope * (0.5 + sigma_w2 * sum_B)
        K = _dual(x).mul_(rho)
    return K, sum_KB, c * sum_B


# ---------------------------------------------------------------- what is required of the arguments


def _directions(X: Tensor, name: str, like: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x̂_i = x_i/‖x_i‖ and s_i = ‖x_i‖/√d. A zero row has s = 0 and x̂ = 0."""
    require_rows(X, name)
    if like is not None and (X.shape[1], X.dtype, X.device) != (like.shape[1], like.dtype, like.device):
        raise ValueError(
            f"{name} must have X's columns, dtype and device: {like.shape[1]}, {like.dtype}, {like.device}; "
            f"got {X.shape[1]}, {X.dtype}, {X.device}"
        )
    norm = row_norms(X)  # (N,)
    bad = (~norm.isfinite()).nonzero().flatten()
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"{name} must have rows of finite norm: row {row} has norm {float(norm[row])} in {X.dtype} "
            f"({len(bad)} such rows). Remove or rescale them"
        )
    size = X.abs().amax(dim=1)
    unit = X / torch.where(size > 0, size, 1)[:, None]  # so that no square overflows
    length = torch.linalg.vector_norm(unit, dim=1)
    return unit / torch.where(length > 0, length, 1)[:, None], norm / math.sqrt(X.shape[1])


def require_rows(X: Tensor, name: str) -> None:
    """A TypeError or ValueError unless X is (N, d), in float32 or float64 and not empty."""
    if not isinstance(X, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor (N, d); got {type(X).__name__}: try torch.as_tensor")
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(
            f"{name} must be (N, d), one row for each sample; got shape {tuple(X.shape)}: try {name}[None, :]"
        )
    if X.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float32 or float64; got {X.dtype}: try {name}.double()")


def _require_variance(sigma_w2: float) -> None:
    if not 0 < sigma_w2 < 1:
        raise ValueError(
            "sigma_w2 must be in (0, 1), where the limit exists (the paper asks for less than 1/8); "
            f"got {sigma_w2}"
        )


def _require_depth(depth: int | None) -> None:
    if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool) or depth < 1):
        raise ValueError(
            f"depth must be a positive number of layers, or None for the equilibrium; got {depth!r}"
        )


def _require_correlation(x: Tensor) -> None:
    if x.numel() and not x.abs().max() <= 1:
        raise ValueError(
            f"correlations must be in [-1, 1]; the largest in magnitude is {float(x.abs().max())}"
        )
