"""Networks of images as units, matrix-free: W and U are sums of chains of convolutions between blocks.

The first blocks are those of the extractor, each fed by the one before; the others are the core, which feeds
itself: h = σ(W h + U g + b) with ‖h − h'‖ ≤ R‖b − b'‖. A chain of convolutions that is computed in floating
point is off by at most γ times the same chain of absolute values, applied to absolute values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ...linalg import Interval, conv_norm_upper, gamma, row_norms_upper
from ...solve import Anderson, Broyden, Stop, fixed_point
from ..conv_robustness import ConvHead
from .network import Multipliers, UnitNetwork, around, up

if TYPE_CHECKING:
    from .bounds import Problem

Shape = tuple[int, int, int]
_ROUGH = Stop(rtol=1e-5, max_steps=60)  # of multipliers: any of them proves
_TIGHT = Stop(rtol=1e-12, max_steps=2000)
_TIGHTENED = 128  # units of a part in a round: each is a solve
DENSE = 2048  # units up to which the matrices are written out


@dataclass(frozen=True)
class Conv:
    """A convolution of images of `size`, or (`back`) its transpose, which leads to images of that size."""

    kernel: Tensor
    size: tuple[int, int]
    stride: int
    padding: int
    back: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        if not self.back:
            return F.conv2d(x, self.kernel, stride=self.stride, padding=self.padding)
        lost = [
            n - ((m - 1) * self.stride - 2 * self.padding + k)
            for n, m, k in zip(self.size, x.shape[2:], self.kernel.shape[2:], strict=True)
        ]
        return F.conv_transpose2d(
            x, self.kernel, stride=self.stride, padding=self.padding, output_padding=lost
        )

    def norm(self) -> Interval:
        """≥ the norm of the map."""
        return Interval(conv_norm_upper(self.kernel, self.size, self.stride, self.padding))

    def row_norms(self) -> Tensor:
        """≥ the norm of a row of the map, for every channel that it leads to."""
        K = self.kernel.transpose(0, 1) if self.back else self.kernel
        return row_norms_upper(K.flatten(1))


@dataclass(frozen=True)
class Chain:
    """scale · K_r⋆ … K_1⋆, where the scale was rounded once."""

    steps: tuple[Conv, ...] = ()
    scale: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return self.scale * x

    def transposed(self) -> Chain:
        """The transposed chain."""
        return Chain(tuple(replace(s, back=not s.back) for s in reversed(self.steps)), self.scale)

    def absolute(self) -> Chain:
        """The chain of absolute values."""
        return Chain(tuple(replace(s, kernel=s.kernel.abs()) for s in self.steps), abs(self.scale))

    @property
    def terms(self) -> int:
        """≥ the number of roundings in an entry of its product."""
        return sum(s.kernel[0].numel() + s.kernel.numel() // s.kernel.shape[1] + 4 for s in self.steps) + 4

    def norm(self) -> Interval:
        """≥ the norm of the chain."""
        return math.prod((s.norm() for s in self.steps), start=Interval(abs(self.scale)))

    def row_norms(self, channels: int) -> Tensor:
        """≥ the norm of a row of the chain, for every channel that it leads to."""
        rest = Chain(self.steps[:-1], self.scale).norm().hi
        last = self.steps[-1].row_norms() if self.steps else torch.ones(channels, dtype=torch.float64)
        return up(last * rest)


Places = dict[tuple[int, int], tuple[Chain, ...]]  # (to, from) -> a sum of chains; from −1 is the image


@dataclass(frozen=True)
class ImageNetwork(UnitNetwork):
    """Units of images. `weight` and `inputs` are not trusted, and may be empty: see `places`."""

    places: Places = None  # type: ignore[assignment]
    shapes: tuple[Shape, ...] = ()
    image: Shape = (1, 1, 1)
    feed: int = 0  # how many blocks come before the core
    head: ConvHead = None  # type: ignore[assignment]
    reads: tuple[Chain, ...] = ()  # of the core's blocks: the state, whose linear readout is `readout`

    def written_out(self) -> ImageNetwork:
        """The network with W and U as matrices if they are small: they find multipliers and prove nothing."""
        if self.width > DENSE:
            return self
        units, pixels = (torch.eye(n, dtype=torch.float64) for n in (self.width, self.dimension))
        return replace(self, weight=self.forth(units).T, inputs=self.into(pixels).T)

    @property
    def dense(self) -> bool:
        """Whether `weight` and `inputs` are written out."""
        return len(self.weight) > 0

    @property
    def width(self) -> int:
        """n, the units of all blocks."""
        return sum(map(math.prod, self.shapes))

    @property
    def dimension(self) -> int:
        """d, the numbers of an image."""
        return math.prod(self.image)

    @cached_property
    def rows(self) -> int:  # type: ignore[override]
        """How many functionals are evaluated together."""
        return max(8, (1 << 22) // self.width)

    # -- products ----------------------------------------------------------------------------------------

    def forth(self, h: Tensor) -> Tensor:
        """W h."""
        return self._between(h, self.places)

    def back(self, nu: Tensor) -> Tensor:
        """Wᵀν."""
        return self._between(nu, self._turned)

    def into(self, x: Tensor) -> Tensor:
        """U x."""
        return self._entered(x, self.places)

    def onto(self, nu: Tensor) -> Tensor:
        """Uᵀν."""
        images, out = self._split(nu), nu.new_zeros(len(nu), *self.image)
        for (to, start), chains in self.places.items():
            if start < 0:
                out = out + sum(chain.transposed()(images[to]) for chain in chains)
        return out.flatten(1)

    def back_error(self, nu: Tensor) -> Tensor:
        """γ|Wᵀ||ν|."""
        return up(self._gamma * up(self._between(nu.abs(), self._turned_sizes)))

    def forth_error(self, h: Tensor) -> Tensor:
        """γ|W||h|."""
        return up(self._gamma * up(self._between(h.abs(), self._sizes)))

    def onto_error(self, reach: Tensor) -> Tensor:
        """γ|U|reach."""
        return up(self._gamma * up(self._entered(reach, self._sizes)))

    def injection(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """b = U x + u of rows X, and ≥ the error of each entry."""
        b = self.into(X) + self.offset
        return b, up(self._gamma * up(self._entered(X.abs(), self._sizes)) + gamma(4) * b.abs())

    def _between(self, h: Tensor, places: Places) -> Tensor:
        images = self._split(h)
        out = [torch.zeros_like(image) for image in images]
        for (to, start), chains in places.items():
            if start >= 0:
                out[to] = out[to] + sum(chain(images[start]) for chain in chains)
        return torch.cat([image.flatten(1) for image in out], dim=1)

    def _entered(self, x: Tensor, places: Places) -> Tensor:
        image, out = x.reshape(-1, *self.image), [x.new_zeros(len(x), math.prod(s)) for s in self.shapes]
        for (to, start), chains in places.items():
            if start < 0:
                out[to] = out[to] + sum(chain(image) for chain in chains).flatten(1)  # type: ignore[union-attr]
        return torch.cat(out, dim=1)

    def _split(self, h: Tensor) -> list[Tensor]:
        parts = h.split([math.prod(s) for s in self.shapes], dim=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    @cached_property
    def _turned(self) -> Places:
        inner = {at: chains for at, chains in self.places.items() if at[1] >= 0}
        return {(j, i): tuple(c.transposed() for c in chains) for (i, j), chains in inner.items()}

    @cached_property
    def _sizes(self) -> Places:
        return {at: tuple(c.absolute() for c in chains) for at, chains in self.places.items()}

    @cached_property
    def _turned_sizes(self) -> Places:
        return {at: tuple(c.absolute() for c in chains) for at, chains in self._turned.items()}

    @cached_property
    def _gamma(self) -> float:
        """γ for all chains that end in one sum, and for the bounds themselves."""
        return gamma(2 * sum(c.terms for chains in self.places.values() for c in chains) + 16)

    # -- equilibria --------------------------------------------------------------------------------------

    @cached_property
    def norms(self) -> dict[tuple[int, int], float]:
        """≥ the norms between blocks."""
        sums = {at: sum((c.norm() for c in chains), Interval(0.0)) for at, chains in self.places.items()}
        return {at: size.hi for at, size in sums.items()}

    @cached_property
    def weight_norm(self) -> float:
        """≥ ‖W‖ of the core."""
        return sum(
            (Interval(n) for (i, j), n in self.norms.items() if min(i, j) >= self.feed), Interval(0.0)
        ).hi

    @cached_property
    def row_norms(self) -> Tensor:
        """≥ ‖W_i‖ of every unit, (n,)."""
        found = []
        for i, (channels, *size) in enumerate(self.shapes):
            own = torch.zeros(channels, dtype=torch.float64)
            for (to, start), chains in self.places.items():
                if to == i and start >= 0:
                    own = own + sum(c.row_norms(channels) for c in chains)
            found.append(up(own).repeat_interleave(math.prod(size)))
        return torch.cat(found)

    def equilibria(self, b: Tensor, start: Tensor | None = None) -> Tensor:
        """h = σ(W h + b): the extractor block by block, the core by forward-backward splitting."""
        h = torch.zeros_like(b)
        core = self._core
        for _ in range(self.feed):
            h = torch.where(core, 0.0, self.activation(b + self.forth(h)))
        alpha, fixed = 1 / (1 + self.weight_norm), h
        given = (b + self.forth(fixed))[:, core]

        def step(z: Tensor, c: Tensor) -> Tensor:
            full = z.new_zeros(len(z), self.width)
            full[:, core] = z
            return self.activation(z + alpha * (self.forth(full)[:, core] + c - z))

        first = self.activation(given) if start is None else start[:, core]
        stop = replace(_TIGHT, rtol=max(1e-12 * alpha, 2e-15))
        found = fixed_point(step, first, (given,), solver=(Anderson(memory=5), Broyden()), stop=stop).value
        assert isinstance(found, Tensor)
        h[:, core] = torch.where(torch.isfinite(found), found, 0.0)
        return h

    @cached_property
    def _core(self) -> Tensor:
        """(n,) which units are of the core."""
        before = sum(map(math.prod, self.shapes[: self.feed]))
        return torch.arange(self.width) >= before

    def equilibrium_error(self, h: Tensor, b: Tensor, b_error: Tensor) -> Tensor:
        """Block after block: ‖h_i − h_i*‖ ≤ r_i + Σ ‖W_ij‖‖h_j − h_j*‖, and the core as for dense units."""
        rest = [up(row_norms_upper(r.flatten(1))) for r in self._split(self.residuals(h, b, b_error))]
        errors: list[Tensor] = []
        for i in range(self.feed):
            before = sum(self.norms.get((i, j), 0.0) * errors[j] for j in range(i))
            errors.append(up(rest[i] + before))
        off = sum(rest[self.feed :], torch.zeros_like(rest[0]))
        pushed = sum(n * errors[j] for (i, j), n in self.norms.items() if i >= self.feed > j >= 0)
        moved = up(up(off * self.weight_norm) + pushed) * self.resolvent
        size = up(sum(errors, up(off + moved)))
        return torch.where(torch.isfinite(size), size, math.inf)

    def first_bounds(self, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes through the extractor; in the core |Δp_i| ≤ ‖W_i‖R‖Δb‖ + |Δb_i|."""
        sets, b = problem.sets, problem.injection
        h = self.equilibria(b)
        delta = self.equilibrium_error(h, b, problem.injection_error)
        p = b + self.forth(h)
        rounded = up(self.forth_error(h) + gamma(6) * b.abs() + problem.injection_error)
        rounded = up(rounded + up(delta[:, None] * self.row_norms))  # ≥ |p − p exact| of the centre
        core = self._core
        entered = up(up(self._entered(sets.reach, self._sizes)) * (1 + self._gamma))
        reach = torch.zeros_like(b)  # ≥ |Δh|, block after block
        moved = entered
        for _ in range(self.feed):
            moved = up(entered + up(self._between(reach, self._sizes)) * (1 + self._gamma))
            low, high = around(p, moved + rounded)
            range_ = up(self.activation(high) - self.activation(low))
            reach = torch.where(core, 0.0, torch.minimum(moved, range_))
        moved = up(entered + up(self._between(reach, self._sizes)) * (1 + self._gamma))
        size = up(row_norms_upper(moved[:, core]))
        turned = up(size * self.resolvent)  # ≥ ‖Δh‖ of the core
        far = moved + torch.where(core, turned[:, None] * self.row_norms, 0.0)
        low, high = around(p, up(far) + rounded)
        return low, high, self._sizes_of_outputs(h, up(up(turned + delta) * self.state_gain))

    def _sizes_of_outputs(self, h: Tensor, moved: Tensor) -> Tensor:
        """Bounds (N, 2), below and above, of the s that divides outputs: 1 if the head does not normalise."""
        if not self.head.normalised:
            return torch.ones(len(h), 2, dtype=torch.float64)
        s, off = self._divisors(h)
        far = up(up(moved * self.head.slope.hi) + off)
        least = math.sqrt(1e-5) * (1 - 2.0**-40)
        return torch.stack([(s - far).clamp_min(least) * (1 - 2.0**-50), up(s + far)], dim=1)

    def _divisors(self, h: Tensor) -> tuple[Tensor, float]:
        """s (N,) of units h, and ≥ the rounding of each."""
        core = self._split(h)[self.feed :]
        pairs = list(zip(self.reads, core, strict=True))
        z = sum((read(part) for read, part in pairs), torch.zeros(1, dtype=torch.float64))
        size = sum((read.absolute()(part.abs()) for read, part in pairs), torch.zeros_like(z))
        rounded = Interval(self._gamma) * Interval(up(row_norms_upper(size.flatten(1))).amax().item())
        s, off = self.head.divisor(z, rounded)
        return s, off.hi

    @cached_property
    def state_gain(self) -> float:
        """≥ how far the state moves with the core's units."""
        return sum((read.norm() for read in self.reads), Interval(0.0)).hi

    def scores(self, h: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """ŷ, divided by s where the head normalises."""
        bare = replace(self, shift=torch.zeros_like(self.shift))
        linear, off = UnitNetwork.scores(bare, h, error)
        if not self.head.normalised:
            return linear + self.shift, up(off + gamma(4) * (linear.abs() + self.shift.abs()))
        s, s_off = self._divisors(h)
        s_error = up(up(error * (Interval(self.state_gain) * self.head.slope).hi) + s_off)[:, None]
        y = linear / s[:, None] + self.shift
        off = up(off + up(y.abs() + self.shift.abs()) * s_error) / (s[:, None] - s_error).clamp_min(1e-12)
        return y, up(off + gamma(8) * (y.abs() + self.shift.abs()))

    # -- multipliers -------------------------------------------------------------------------------------

    def worth_tightening(self, may: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The units that are farthest from being on or off, a fixed number in each part; all of few."""
        if self.dense:
            return super().worth_tightening(may, low, high)
        open_ = torch.where(may, torch.minimum(high, -low), -1.0).nan_to_num(posinf=1e300)
        size, unit = open_.topk(min(_TIGHTENED, self.width), dim=1)
        part, place = torch.nonzero(size > 0, as_tuple=True)
        return part, unit[part, place]

    def multipliers(self, s: Tensor) -> Multipliers:
        """ν = r + s∘Wᵀν, by iteration if no matrices are written out."""
        return super().multipliers(s) if self.dense else Iterated(self, s)


class Iterated(Multipliers):
    """ν = r + s∘Wᵀν, the equilibrium of a network with the weight Wᵀ, by Anderson's method."""

    def __init__(self, net: ImageNetwork, s: Tensor) -> None:
        self.net, self.s = net, s

    def of(self, part: Tensor, r: Tensor) -> Tensor:
        """ν of rows r (P, n); the last iterate where the solve fails."""
        alpha, found = 1 / (1 + self.net.weight_norm / 2), []

        def step(nu: Tensor, r: Tensor, s: Tensor) -> Tensor:
            return nu + alpha * (r + s * self.net.back(nu) - nu)

        for rows in torch.split(torch.arange(len(r)), self.net.rows):
            args = r[rows], self.s[part[rows]]
            nu = fixed_point(step, args[0], args, solver=Anderson(memory=8), stop=_ROUGH).value
            assert isinstance(nu, Tensor)
            found.append(torch.where(torch.isfinite(nu), nu, 0.0))
        return torch.cat(found) if found else r

    def of_units(self, part: Tensor, unit: Tensor) -> Tensor:
        """ν of r = e_i."""
        return self.of(part, F.one_hot(unit, self.net.width).double())

    def spread(self, part: Tensor, r: Tensor) -> Tensor:
        """r itself: coordinates that scale the ascent less well, but cost nothing."""
        return r

    gathered = spread
