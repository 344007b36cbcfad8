"""What is solved: any f(z, *args, *shared), or an affine map whose parts are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from .activation import Activation, as_activation
from .autocast import full_precision
from .jacobian import jacobian_product
from .solution import Counts, State, Unsolvable


class RowMap(ABC):
    """A map z ↦ f(z) of flat rows that holds the data of each row, and can be restricted to some of them."""

    worth: float = 0.15  # dropping rows costs a copy at least: it pays from this share of the batch on

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """f(z), (n, D) like z."""

    @abstractmethod
    def take(self, rows: Tensor) -> RowMap:
        """The same map on some of its rows."""


class AffineMap(RowMap):
    """f(z) = σ(W z + b), in rows `σ(Z Wᵀ + b)`.

    `weight` is (m, m), `bias` is (N, m) with one row for each sample. What the splitting solvers derive from
    W alone (monotonicity margin, Lipschitz constant, factorisations) is computed once and shared by every map
    made from this one with `with_bias`, `take` or `to`.
    """

    def __init__(self, weight: Tensor, bias: Tensor, activation: str | Activation = "relu") -> None:
        if weight.ndim != 2 or weight.shape[0] != weight.shape[1]:
            raise ValueError(f"weight must be square, (m, m). Got shape {tuple(weight.shape)} instead.")
        _check_bias(weight, bias)
        if not bool(
            torch.isfinite(weight.sum()) or torch.isfinite(weight).all()
        ):  # the sum is the quick test
            i, j = torch.nonzero(~torch.isfinite(weight))[0].tolist()
            raise Unsolvable(f"weight must be finite. Got {float(weight[i, j])} at [{i}, {j}] instead.")
        self.weight = weight.detach()
        self.bias = bias.detach()
        self.activation = as_activation(activation)
        self.cache: dict[Any, Any] = {}

    def __call__(self, z: Tensor) -> Tensor:
        return self.activation.overwrite(self.preactivation(z))

    def preactivation(self, z: Tensor) -> Tensor:
        """W z + b, (N, m)."""
        with full_precision(z):
            return torch.addmm(self.bias, z, self.weight.T)  # (N, m)

    def start(self) -> Tensor:
        """f(0) = σ(b), which tells the size of the problem and is a start one step ahead of zero."""
        return self.activation(self.bias)

    def with_bias(self, bias: Tensor) -> AffineMap:
        """The same W on other samples, sharing what was computed from it."""
        _check_bias(self.weight, bias)
        return self._with(self.weight, bias.detach(), self.cache)

    def take(self, rows: Tensor) -> AffineMap:
        """The same map on some of its samples."""
        return self._with(self.weight, self.bias[rows], self.cache)

    def to(self, dtype: torch.dtype) -> AffineMap:
        """The same map in another dtype; the cast W is kept for the next time."""
        if dtype == self.weight.dtype:
            return self
        key = ("weight", dtype)
        if key not in self.cache:
            self.cache[key] = self.weight.to(dtype)
        return self._with(self.cache[key], self.bias.to(dtype), self.cache)

    def _with(self, weight: Tensor, bias: Tensor, cache: dict[Any, Any]) -> AffineMap:
        other = object.__new__(AffineMap)  # parts of a map that was checked when it was made
        other.weight, other.bias, other.activation, other.cache = weight, bias, self.activation, cache
        return other

    @property
    def margin(self) -> float:
        """λ_min(sym(I − W)): positive means strongly monotone, one equilibrium for every bias."""
        if "margin" not in self.cache:
            w = self.weight.double()
            eye = torch.eye(len(w), dtype=w.dtype, device=w.device)
            self.cache["margin"] = float(torch.linalg.eigvalsh(eye - (w + w.T) / 2)[0])
        return self.cache["margin"]

    @property
    def lipschitz(self) -> float:
        """‖I − W‖."""
        if "lipschitz" not in self.cache:
            w = self.weight.double()
            eye = torch.eye(len(w), dtype=w.dtype, device=w.device)
            self.cache["lipschitz"] = float(torch.linalg.matrix_norm(eye - w, ord=2))
        return self.cache["lipschitz"]

    def __repr__(self) -> str:
        return f"AffineMap({self.activation.name}(W z + b), m={len(self.weight)}, N={len(self.bias)})"


def _check_bias(weight: Tensor, bias: Tensor) -> None:
    if bias.ndim != 2 or bias.shape[1] != weight.shape[0]:
        raise ValueError(
            f"bias must be (N, {weight.shape[0]}), one row for each sample. "
            f"Got shape {tuple(bias.shape)} instead."
        )
    if weight.dtype != bias.dtype or weight.device != bias.device:
        raise ValueError(
            f"weight and bias must share dtype and device. Got {weight.dtype} on {weight.device} and "
            f"{bias.dtype} on {bias.device} instead."
        )


@dataclass
class Layout:
    """How a state (a tensor, or a tuple of tensors) lies in flat rows (N, D).

    Images (N, C, H, W) that lie in memory with their channels last stay so: then neither view is a copy.
    """

    shapes: list[torch.Size]  # per part, without the batch
    is_tuple: bool
    channels_last: bool = False

    def __post_init__(self) -> None:
        # States that are flat rows already, as those of small cells are, pass every step untouched.
        self.plain = not self.is_tuple and len(self.shapes[0]) == 1

    @classmethod
    def of(cls, z: State) -> Layout:
        """The layout of a state like this one."""
        parts = z if isinstance(z, tuple) else (z,)
        return cls([p.shape[1:] for p in parts], isinstance(z, tuple), _has_channels_last(z))

    def passes(self, out: Any, z: Tensor) -> bool:
        """Whether `out` is flat rows like z already, as in almost every step of a small cell."""
        return self.plain and isinstance(out, Tensor) and out.shape == z.shape and out.dtype == z.dtype

    def flat(self, z: State) -> Tensor:
        """A state as flat rows, (N, D)."""
        if self.plain:
            return cast(Tensor, z)
        parts = z if isinstance(z, tuple) else (z,)
        if self.channels_last:
            return parts[0].movedim(1, -1).reshape(len(parts[0]), -1)
        rows = [p.reshape(len(p), s.numel()) for p, s in zip(parts, self.shapes, strict=True)]
        return torch.cat(rows, dim=1) if self.is_tuple else rows[0]

    def unflat(self, flat: Tensor) -> State:
        """Flat rows as a state."""
        if self.plain:
            return flat
        n = flat.shape[0]
        if self.channels_last:
            channels, *size = self.shapes[0]
            return flat.reshape(n, *size, channels).movedim(-1, 1)
        if not self.is_tuple:
            return flat.reshape(n, *self.shapes[0])
        parts = flat.split([s.numel() for s in self.shapes], dim=1)
        return tuple(p.reshape(n, *s) for p, s in zip(parts, self.shapes, strict=True))

    @property
    def width(self) -> int:
        """D, the numbers in one sample's state."""
        return sum(s.numel() for s in self.shapes)

    def mismatch(self, out: Any, rows: int) -> str | None:
        """What is wrong with `out` as a new state of `rows` samples; None when it fits."""
        if self.plain and isinstance(out, Tensor) and out.shape == (rows, *self.shapes[0]):
            return None
        if isinstance(out, tuple) != self.is_tuple:
            want = "a tuple of tensors" if self.is_tuple else "one tensor"
            return f"{want}. Got {type(out).__name__} instead."
        parts = out if isinstance(out, tuple) else (out,)
        if len(parts) != len(self.shapes):
            return f"{len(self.shapes)} tensors. Got {len(parts)} instead."
        for i, (part, shape) in enumerate(zip(parts, self.shapes, strict=True)):
            if not isinstance(part, Tensor) or tuple(part.shape) != (rows, *shape):
                got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
                which = f" for part {i} of the state" if self.is_tuple else ""
                return f"shape {(rows, *shape)}{which}. Got {got} instead."
        return None


def _has_channels_last(z: State) -> bool:
    """Whether z is one batch of images whose channels are next to each other in memory."""
    if not isinstance(z, Tensor) or z.ndim != 4 or z.stride(1) != 1 or z.is_contiguous():
        return False
    return z.movedim(1, -1).is_contiguous()


@dataclass
class Map:
    """The problem as a solver sees it: flat rows in, flat rows out, counted and checked at every call.

    It holds the rows that have not ended. `take` keeps some of them if that is possible (`compactable`).
    Solvers work in float32 at least: for a problem in half precision only f is evaluated there (for an
    AffineMap not even f), and iterates are rounded to `rounding`, the dtype of the problem.
    """

    f: Callable[..., State]
    args: tuple[Any, ...]
    shared: tuple[Any, ...]
    layout: Layout
    rows: int
    counts: Counts = field(default_factory=Counts)
    working: Tensor | None = None  # (n,) rows not yet ended, when some have
    rounding: torch.dtype | None = None
    gap: Tensor | None = None  # f(z) − z, if the last check computed it
    given: int = 0  # evaluations of f that were watched; −1 once f is seen to write into memory it gave away
    last: Tensor | None = None  # the first answer of f, while its memory is watched

    @property
    def affine(self) -> AffineMap | None:
        """f itself where it is an AffineMap, else None."""
        return self.f if isinstance(self.f, AffineMap) else None

    @property
    def compactable(self) -> bool:
        """Whether rows can be dropped: a closure may hold a batch of its own, and then they cannot."""
        return bool(self.args) or isinstance(self.f, RowMap)

    @property
    def worth(self) -> float:
        """The share of the rows that must have ended for dropping them to pay."""
        return self.f.worth if isinstance(self.f, RowMap) else RowMap.worth

    def __call__(self, z: Tensor) -> Tensor:
        self.counts.evaluations += 1
        self.counts.row_evaluations += z.shape[0]
        if self.given > 1 or self.affine is not None:
            return self._flat_output(self._call(z), z)
        return self._watched(z)

    def _watched(self, z: Tensor) -> Tensor:
        """f(z) as a copy, of a copy: f may write into z, or each answer where the one before it is.

        Either would make z equal to f(z) by itself. Two evaluations tell whether f does, and then all others
        are copied too.
        """
        given = z.clone()
        out = self._flat_output(self._call(given), z)
        seen = [given] if self.last is None else [given, self.last]
        changed = not given.is_inference() and given._version > 0
        if changed or any(_memory(out) == _memory(t) for t in seen):
            self.given = -1
        if self.given >= 0:
            self.given, self.last = self.given + 1, None if self.given else out
        return out.clone()

    def _call(self, z: Tensor) -> State:
        if self.rounding is not None and self.affine is None:
            z = z.to(self.rounding)
        return self.f(self.layout.unflat(z), *self.args, *self.shared)

    def _flat_output(self, out: State, z: Tensor) -> Tensor:
        if self.layout.passes(out, z):
            return cast(Tensor, out)
        wrong = self.layout.mismatch(out, z.shape[0])
        if wrong:
            raise ValueError(
                f"f(z, …) must return a state like z: {wrong} "
                f"Give a start z0 of the shape f returns, or reshape inside f."
            )
        flat = self.layout.flat(out)
        if flat.dtype != z.dtype:
            asked = self.rounding or z.dtype
            if flat.dtype != asked and not torch.is_autocast_enabled(z.device.type):
                raise ValueError(
                    f"f(z, …) must return {asked} like z. Got {flat.dtype} instead: "
                    f"give z0 and the arguments one dtype."
                )
            flat = flat.to(z.dtype)
        return flat

    def difference(self, z: Tensor, fz: Tensor) -> Tensor:
        """f(z) − z, from the check of this step if that computed it; the caller may overwrite it."""
        gap, self.gap = self.gap, None
        return fz - z if gap is None else gap

    def linearise(self, z: Tensor) -> Callable[[Tensor], Tensor]:
        """v ↦ J(z) v, the Jacobian-vector product at z for every row, exact and without forming J."""
        if self.affine is not None:
            affine = self.affine
            slope = affine.activation.slope(affine.preactivation(z))

            def affine_product(v: Tensor) -> Tensor:
                self.counts.jvps += 1
                return slope * (v @ affine.weight.T)

            return affine_product

        general = jacobian_product(self, z)

        def product(v: Tensor) -> Tensor:
            self.counts.jvps += 1
            return general(v)

        return product

    def take(self, rows: Tensor) -> Map:
        """The same problem on some of its rows."""
        f = self.f.take(rows) if isinstance(self.f, RowMap) else self.f
        args = tuple(_take(a, rows) for a in self.args)
        return Map(f, args, self.shared, self.layout, len(rows), self.counts, rounding=self.rounding)

    def to(self, dtype: torch.dtype) -> Map:
        """The same problem in another precision."""
        f = self.f.to(dtype) if isinstance(self.f, AffineMap) else self.f
        args, shared = (tuple(_cast(a, dtype) for a in part) for part in (self.args, self.shared))
        return Map(f, args, shared, self.layout, self.rows, self.counts)

    def widened(self, dtype: torch.dtype) -> Map:
        """The same problem in half precision, `dtype`, with its iterates in float32."""
        f = self.f.to(torch.float32) if isinstance(self.f, AffineMap) else self.f
        return Map(f, self.args, self.shared, self.layout, self.rows, self.counts, rounding=dtype)

    def rounded(self, z: Tensor) -> Tensor:
        """An iterate as the dtype of the problem can hold it."""
        return z if self.rounding is None else z.to(self.rounding).to(z.dtype)


def _memory(t: Tensor) -> int:
    """Where the numbers of a tensor lie; a number of its own for those of torch.func, which lie nowhere."""
    try:
        return t.untyped_storage().data_ptr() or id(t)
    except (RuntimeError, NotImplementedError):
        return id(t)


def _take(a: Any, rows: Tensor) -> Any:
    return a[rows] if isinstance(a, Tensor) else a


def _cast(a: Any, dtype: torch.dtype) -> Any:
    return a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a


def make_map(f: Callable[..., State], z: State, args: Sequence[Any], shared: Sequence[Any]) -> Map:
    """Check, before anything runs, that the pieces of a problem fit together."""
    if not callable(f):
        raise TypeError(f"f must be callable as f(z, *args, *shared). Got {type(f).__name__} instead.")
    parts = z if isinstance(z, tuple) else (z,)
    if not parts or not all(isinstance(p, Tensor) for p in parts):
        raise TypeError(f"z0 must be a tensor or a tuple of tensors. Got {type(z).__name__} instead.")
    for part in parts:
        if part.ndim < 1:
            raise ValueError(
                "z0 must be batch-first, (N, …): a single sample is z0[None]. Got a scalar instead."
            )
        if not part.is_floating_point():
            raise ValueError(f"z0 must be of a floating dtype. Got {part.dtype} instead.")
        if part.dtype != parts[0].dtype or part.device != parts[0].device:
            raise ValueError("the tensors of a state must share dtype and device.")
        if part.shape[0] != parts[0].shape[0]:
            raise ValueError(
                f"the tensors of a state must share their batch size. Got {[len(p) for p in parts]} instead."
            )
    layout, rows = Layout.of(z), parts[0].shape[0]
    if layout.width == 0:
        raise ValueError(f"the state must not be empty. Got shape {[tuple(p.shape) for p in parts]} instead.")
    for i, a in enumerate(args):
        if isinstance(a, Tensor) and (a.ndim < 1 or a.shape[0] != rows):
            raise ValueError(
                f"args are batch-first: args[{i}] must have {rows} rows like z0. "
                f"Got shape {tuple(a.shape)} instead. What every sample shares goes into shared=."
            )
    if isinstance(f, AffineMap):
        if args or shared:
            raise ValueError("an AffineMap holds its own data: args and shared must be empty.")
        if tuple(parts[0].shape) != tuple(f.bias.shape) or len(parts) > 1:
            raise ValueError(
                f"z0 must be {tuple(f.bias.shape)} like the bias of the AffineMap. "
                f"Got {[tuple(p.shape) for p in parts]} instead."
            )
    return Map(f, tuple(args), tuple(shared), layout, rows)
