"""How far the values of a user's code move with its inputs, and how far they are from exact ones.

torch.fx records the operations of a module. For every value v on the way three numbers are carried along,

    ‖v(z, x) − v(z', x')‖ ≤ l ‖z − z'‖ + k ‖x − x'‖    for every two samples (z, x) and (z', x'),
    ‖v as computed − v‖ ≤ e                              for each sample at hand,

in the Euclidean norm of all entries of a sample: (1, 0, 0) for z, (0, 1, 0) for x. A linear map multiplies
all three by its norm, an activation by its largest slope, a sum adds them, and each adds its own rounding to
e. Of an operation that is not listed here nothing is known, and neither of the module, unless z has no part
in it: what acts on the input alone does no harm.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..linalg import Interval, conv_norm_upper, gamma, norm_upper, row_norms_upper

ULPS = 16  # of the size of its argument and its value, by which torch may round an activation
RECORDED = (
    "the code does at each call what was recorded of one in float64, in the mode that it was in: it depends "
    "on nothing but its inputs and its tensors, and activations are their functions (torch takes t for "
    "softplus(t) above its threshold, a step of up to 1e-10 of t)"
)
ROUNDED = f"torch computes an activation to within {ULPS} roundings of its argument and its value"

# ≥ the largest slope of functions that act entry by entry, or on each sample with this Lipschitz constant.
SLOPES: dict[type[nn.Module], float] = {
    **dict.fromkeys((nn.Identity, nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh, nn.Softsign), 1.0),
    **dict.fromkeys((nn.Tanhshrink, nn.Softshrink, nn.LogSigmoid), 1.0),
    nn.GELU: 1.14,
    nn.Sigmoid: 0.25,
    nn.SiLU: 1.1,
    nn.SELU: 1.7581,
}
FUNCTIONS: dict[Any, float] = {
    **dict.fromkeys((torch.relu, F.relu, "relu", torch.tanh, F.tanh, "tanh", F.softplus, F.softsign), 1.0),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid"), 0.25),
    F.silu: 1.1,
    F.gelu: 1.14,
    operator.neg: 1.0,
    torch.neg: 1.0,
    "neg": 1.0,
    "contiguous": 1.0,
}
_SUMS = (operator.add, operator.sub, torch.add, torch.sub, "add", "sub")
_PRODUCTS = (operator.mul, torch.mul, "mul")
_QUOTIENTS = (operator.truediv, torch.div, "div")
_MATRIX_PRODUCTS = (operator.matmul, torch.matmul, "matmul")
_TRANSPOSES = ("t", torch.t)
_PICKS = (nn.Embedding, nn.MaxPool2d, nn.AdaptiveMaxPool2d)  # whose values are entries as they stand
# Of these no constant is known, but they act on each sample alone and answer the same at each call.
_OF_THE_INPUT = (nn.AvgPool2d, nn.AdaptiveAvgPool2d, *_PICKS)


class Unknown(Exception):
    """An operation of which nothing is known: `what` says which. (torch.fx adds to the text of an error.)"""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass(frozen=True)
class Moved:
    """A value at some samples, how far it moves with z and with x, and how far it is from the exact one."""

    value: Tensor  # (N, …)
    with_z: Interval
    with_x: Interval
    off: Tensor  # (N,)

    @classmethod
    def given(cls, value: Tensor, with_z: float, with_x: float) -> Moved:
        """An exact input of the code. Integers are no real numbers: their sums and products wrap around."""
        follows = Interval(with_x if value.is_floating_point() else math.inf)
        return cls(value, Interval(with_z), follows, torch.zeros(len(value), dtype=torch.float64))

    def times(self, value: Tensor, factor: float | Interval, rounded: Tensor | float = 0.0) -> Moved:
        """The image under a map with this Lipschitz constant, which rounds by at most `rounded`, (N,)."""
        off = above_all(self.off * Interval(factor).hi + rounded)
        return Moved(value, self.with_z * factor, self.with_x * factor, off)


def above_all(sums: Tensor) -> Tensor:
    """≥ sums of non-negative numbers, (N,); infinite where they are no numbers."""
    return (sums * (1 + 2.0**-40) + 2.0**-1000).nan_to_num(nan=math.inf, posinf=math.inf)


def sizes(value: Tensor) -> Tensor:
    """≥ the norm of each sample, (N,)."""
    return row_norms_upper(value.double().flatten(1))


def rounding(terms: int, sums: Tensor) -> Tensor:
    """≥ the error of sums of so many products, from those of their absolute values, (N,)."""
    lost = (terms + 4) * 2.0**-1000  # where products are subnormal
    return above_all(gamma(terms + 4) * sizes(sums) + lost * sums[:1].numel())


def _entrywise(v: Tensor, value: Tensor) -> Tensor:
    """≥ the error of a function of each entry, (N,)."""
    return above_all(gamma(ULPS) * (sizes(v) + sizes(value)) + value[:1].numel() * 2.0**-1000)


Within = Callable[[nn.Module, str, Moved], Moved | None]


def called_as_recorded(graph: fx.GraphModule, module: nn.Module, *inputs: Tensor) -> Any:
    """What a module answers; Unknown where it runs other operations than those that were recorded of it.

    Code that asks for a value, to go another way elsewhere, runs more than what torch.fx sees.
    """
    with _Listed() as recorded:
        graph(*inputs)
    with _Listed() as called:
        answer = module(*inputs)
    if called.operations != recorded.operations:
        raise Unknown("the code runs other operations than those that were recorded of it.")
    return answer


class _Listed(TorchDispatchMode):
    """Lists what is run; refuses what a recording cannot show: h += z, taken for h = h + z, and chance."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation of torch, as it is run."""
        name = func.overloadpacket.__name__
        self.operations.append(str(func))
        if func._schema.is_mutable:
            raise Unknown(f"the code changes a tensor in place ({name}): h = h + z makes a new one.")
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Unknown(f"the code draws at random ({name}): it gives another answer at each call.")
        return func(*args, **(kwargs or {}))


class Walk(fx.Interpreter):
    """Runs the recorded operations, with the bounds of each value beside it.

    `within` knows layers that torch does not: it takes a layer, its name and its input, and returns what
    comes out, or None. `read` is the last linear layer, with what it read and what came out.
    """

    def __init__(self, graph: fx.GraphModule, within: Within | None = None) -> None:
        super().__init__(graph)
        self.within = within
        self.slopes: dict[tuple, float | Interval | None] = {}  # by layer and shape: some take long to find
        self.read: tuple[nn.Linear, Moved, Moved] | None = None

    def run_node(self, n: fx.Node) -> Any:
        """One operation. Errors name it as it stands in the code."""
        try:
            return super().run_node(n)
        except Unknown:
            raise
        except Exception as error:
            raise Unknown(f"the code fails at {n.format_node()}: {error}") from None

    def call_module(self, target: Any, args: tuple, kwargs: dict) -> Any:
        """A layer of torch, of its very class, or one that `within` knows."""
        layer = self.fetch_attr(target)
        name = f"{target} ({type(layer).__name__})"
        (v,) = args if len(args) == 1 and not kwargs else (None,)
        if not isinstance(v, Moved):
            raise Unknown(f"nothing is known of {name} with these arguments.")
        if self.within is not None and (found := self.within(layer, str(target), v)) is not None:
            return found
        key = target, v.value.shape[1:]
        if key not in self.slopes:
            self.slopes[key] = _slope(layer, v.value)
        factor = self.slopes[key]
        if factor is None and v.with_z.hi == 0 and (found := _of_the_input(layer, v)) is not None:
            return found
        if factor is None or v.value.ndim < 2:
            raise Unknown(_nothing_of(name))
        value = layer(v.value)
        moved = v.times(value, factor, _rounded(layer, v.value, value))
        if type(layer) is nn.Linear:
            self.read = layer, v, moved
        return moved

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        """A function of torch, or an operator."""
        return self._operation(target, getattr(target, "__name__", str(target)), args, kwargs)

    def call_method(self, target: Any, args: tuple, kwargs: dict) -> Any:
        """A method of a tensor, by its name."""
        return self._operation(target, f".{target}()", args, kwargs)

    def _operation(self, target: Any, name: str, args: tuple, kwargs: dict) -> Any:
        values = [a.value if isinstance(a, Moved) else a for a in args]
        moved = [a for a in args if isinstance(a, Moved)]
        run = getattr(values[0], target) if isinstance(target, str) else None

        def value() -> Tensor:
            return run(*values[1:], **kwargs) if run is not None else target(*values, **kwargs)

        if not moved:
            if target in _TRANSPOSES or (target is getattr and args[1] in ("T", "mT")):
                return value()  # of a weight
            raise Unknown(_nothing_of(name))
        plain = not kwargs or kwargs == {"inplace": False}
        if plain and target in FUNCTIONS and len(args) == 1:
            v, out = moved[0], value()
            step = _softplus_step(v.value, 1.0, 20.0) if target is F.softplus else 0.0
            return v.times(out, FUNCTIONS[target], _entrywise(v.value, out) + step)
        linear = plain and target is F.linear and len(moved) == 1 and moved[0] is args[0]
        if linear and moved[0].value.ndim > 1:
            W, b = args[1].detach(), args[2] if len(args) > 2 else None
            return moved[0].times(value(), norm_upper(W), _linear_rounding(moved[0].value, W, b))
        if plain and len(args) == 2 and (found := _of_two(target, args, value())) is not None:
            return found
        if target in (torch.flatten, "flatten") and plain and args[1:] == (1,):
            return moved[0].times(value(), 1.0)
        raise Unknown(_nothing_of(name))


def _linear_rounding(v: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    return rounding(W.shape[1] + 1, F.linear(v.abs(), W.abs(), None if b is None else b.detach().abs()))


def _rounded(layer: nn.Module, v: Tensor, value: Tensor) -> Tensor:
    """≥ the error that a layer of `_slope` adds to each sample, (N,)."""
    if isinstance(layer, nn.Linear):
        return _linear_rounding(v, layer.weight.detach(), layer.bias)
    if isinstance(layer, nn.Conv2d):
        kernel = layer.weight.detach().abs()
        sums = layer._conv_forward(v.abs(), kernel, None if layer.bias is None else layer.bias.detach().abs())
        return rounding(kernel[0].numel() + 1, sums)
    if isinstance(layer, nn.Flatten | nn.Dropout | nn.Identity):
        return torch.zeros(len(v), dtype=torch.float64)
    step = _softplus_step(v, layer.beta, layer.threshold) if isinstance(layer, nn.Softplus) else 0.0
    return _entrywise(v, value) + step


def _softplus_step(v: Tensor, beta: float, threshold: float) -> Tensor:
    """≥ by how much torch's softplus differs where it takes t for it, above the threshold, (N,)."""
    above = (beta * v >= 0.99 * threshold).flatten(1).sum(dim=1).double()
    return above * (math.exp(-threshold) * 1.01 / beta)


def _of_two(target: Any, args: tuple, value: Tensor) -> Moved | None:
    """Sums, multiples, quotients and products with a fixed matrix; None of others, and where sizes spread."""
    moved = [a for a in args if isinstance(a, Moved)]
    if target in _MATRIX_PRODUCTS:
        v, matrix = args
        if (
            not isinstance(v, Moved)
            or not isinstance(matrix, Tensor)
            or (v.value.ndim, matrix.ndim) != (2, 2)
        ):
            return None
        sums = v.value.abs() @ matrix.detach().abs()
        return v.times(value, norm_upper(matrix.detach()), rounding(len(matrix), sums))
    if any(v.value.shape != value.shape for v in moved):
        return None  # an entry that is spread over many moves all of them
    if target in _SUMS:
        if any(_too_long(a) for a in args):
            return None
        with_z = sum((v.with_z for v in moved), Interval(0.0))
        with_x = sum((v.with_x for v in moved), Interval(0.0))
        off = above_all(sum((v.off for v in moved), rounding(1, value)))
        return Moved(value, with_z, with_x, off)
    if len(moved) == 1 and target in (*_PRODUCTS, *_QUOTIENTS):
        (v,), (other,) = moved, [a for a in args if not isinstance(a, Moved)]
        if isinstance(other, Tensor) and other.is_complex():
            return None
        # In float64, for |−128| is −128 in int8.
        size = float(other.double().abs().amax()) if isinstance(other, Tensor) else abs(float(other))
        if target in _PRODUCTS:
            return v.times(value, size, rounding(1, value))
        if v is args[0] and not isinstance(other, Tensor) and size:
            return v.times(value, 1 / Interval(size), rounding(1, value))
    return None


def _too_long(number: Any) -> bool:
    """Whether a number, or a fixed tensor, may hold an integer that float64 would round."""
    if isinstance(number, int):
        return float(number) != number
    wide = isinstance(number, Tensor) and number.dtype in (torch.int64, torch.uint64)
    return wide and bool((number.double().abs() > 2.0**53).any())


def _of_the_input(layer: nn.Module, v: Moved) -> Moved | None:
    """What a layer makes of a value that z has no part in; None if it is not known to do no harm."""
    if type(layer) in (nn.LayerNorm, nn.GroupNorm):
        return _normalised(layer, v)
    alone = type(layer) in _OF_THE_INPUT
    if type(layer) is nn.Softmax:
        alone = layer.dim is not None and layer.dim % v.value.ndim > 0
    if not alone:
        return None
    exact = type(layer) in _PICKS and bool((v.off < 2.0**-900).all())
    off = torch.full_like(v.off, 0.0 if exact else math.inf)
    return Moved(layer(v.value), v.with_z, Interval(math.inf), off)


def _normalised(layer: Any, v: Moved) -> Moved:
    """A LayerNorm or a GroupNorm: c/s γ + β in each group, c the centred entries, s = √(‖c‖²/n + ε).

    c/s moves by at most 1/√ε times as far as v does, for its Jacobian is (P − c cᵀ/(n s²))/s with P the
    projection v ↦ c. What torch computes is compared with c/s as it is computed here, of which every
    rounding is counted.
    """
    value, n_dims = layer(v.value), len(layer.normalized_shape) if type(layer) is nn.LayerNorm else 0
    x = v.value
    groups = x.flatten(-n_dims) if n_dims else x.reshape(len(x), layer.num_groups, -1)
    n, eps = groups.shape[-1], layer.eps
    c = groups - groups.mean(dim=-1, keepdim=True)
    s = (c.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    own = (c / s).reshape(x.shape)
    steep, added = Interval(1.0), torch.zeros(len(x), dtype=torch.float64)
    if layer.weight is not None:
        shape = layer.weight.shape if n_dims else (-1, *[1] * (x.ndim - 2))
        scale, shift = layer.weight.detach().reshape(shape), layer.bias
        steep = Interval(float(scale.abs().amax()))
        shift = torch.zeros_like(scale) if shift is None else shift.detach().reshape(shape)
        own, added = own * scale + shift, sizes(shift.expand_as(own))
    # c errs by γ of the entries and their mean; s follows c/√n, and ‖c‖ ≤ √n s.
    at_c = gamma(n + 4) * (groups.abs() + groups.abs().mean(dim=-1, keepdim=True))
    off = 2 * sizes(at_c / s) * (1 + 2.0**-20) + gamma(n + 16) * sizes(c / s)
    off = steep.hi * off + rounding(4, own) + gamma(4) * added + sizes(value - own) * (1 + 2.0**-50)
    factor = steep / Interval(eps).sqrt() if eps > 0 else Interval(math.inf)
    return v.times(value, factor, above_all(off))


def _at_least_one(slope: float) -> float:
    return 1.0 if abs(slope) <= 1 else abs(slope)  # NaN stays NaN, of which nothing is proved


def _slope(layer: nn.Module, v: Tensor) -> float | Interval | None:
    """≥ the Lipschitz constant of a layer on samples shaped like those of v; None where it is not known."""
    if getattr(layer, "inplace", False):
        return None  # it changes a value that others may read
    match layer:
        case nn.Linear() if type(layer) is nn.Linear:
            return norm_upper(layer.weight.detach())
        case nn.Conv2d() if type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and v.ndim == 4:
            padding = None if isinstance(layer.padding, str) else layer.padding
            size, how = tuple(v.shape[2:]), (layer.stride, padding, layer.dilation, layer.groups)
            return conv_norm_upper(layer.weight.detach(), size, *how)  # type: ignore[arg-type]
        case nn.LeakyReLU() if type(layer) is nn.LeakyReLU:
            return _at_least_one(layer.negative_slope)
        case nn.ELU() if type(layer) is nn.ELU:
            return _at_least_one(layer.alpha)
        case nn.Softplus() if type(layer) is nn.Softplus:
            # Above `threshold` torch takes t for softplus(t). From 20 on both differ by rounding, less than
            # 2e-9/beta; a lower threshold is a step down, over which no constant holds. Below one above 88
            # it takes ∞, for exp overflows in float32.
            return 1.0 if layer.beta > 0 and 20 <= layer.threshold <= 80 else None
        case nn.Flatten() if type(layer) is nn.Flatten and layer.start_dim == 1:
            return 1.0
        case nn.Dropout() if type(layer) is nn.Dropout and not layer.training:
            return 1.0
    return SLOPES.get(type(layer))


def _nothing_of(name: str) -> str:
    return (
        f"no Lipschitz constant is known of {name}, on which the state depends. Known are Linear, Conv2d "
        f"with zero padding, activations with bounded slopes, sums, multiples by numbers or fixed tensors, "
        f"and products with fixed matrices; a norm layer may act on x alone, outside of the loop."
    )
