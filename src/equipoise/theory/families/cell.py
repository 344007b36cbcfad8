"""z = cell(z, x): one equilibrium for every input, where the parts of a cell prove that it contracts in z.

torch.fx records the operations of the cell. For every value v on the way two numbers are carried along,

    ‖v(z, x) − v(z', x')‖ ≤ l ‖z − z'‖ + k ‖x − x'‖    for every two samples (z, x) and (z', x'),

in the Euclidean norm of all entries of a sample: (1, 0) for z, (0, 1) for x. A linear map multiplies both by
its norm, an activation by its largest slope, a sum adds them. At the output, l = q < 1 proves one
equilibrium, which moves by at most k/(1 − q) ‖x − x'‖. Of an operation that is not listed here nothing is
known, and neither of the cell, unless z has no part in it: a norm layer of the input alone does no harm.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...linalg import Interval, conv_norm_upper, norm_upper
from ...models.altered import altered, double
from ...models.cell import Equilibrium
from ..certificate import FLOAT64_TIER, Certificate, fingerprint
from ..claim import Claim
from ..common import declared, not_finite
from ..facts import Facts
from ..lipschitz import Bounds
from ..register import facts_of, has_own_facts

_RECORDED = (
    "the cell does at each call what was recorded of one in float64, in the mode that it was in: it depends "
    "on nothing but z, x and its tensors, and activations are their functions (torch takes t for softplus(t) "
    "above its threshold, a step of up to 1e-10 of t)"
)
_SMALLER = "smaller weights: the bound is made of the norms of the parts of the cell"
# ≥ the largest slope of functions that act entry by entry, or on each sample with this Lipschitz constant.
_SLOPES: dict[type[nn.Module], float] = {
    **dict.fromkeys((nn.Identity, nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh, nn.Softsign), 1.0),
    **dict.fromkeys((nn.Tanhshrink, nn.Softshrink, nn.LogSigmoid), 1.0),
    nn.GELU: 1.14,
    nn.Sigmoid: 0.25,
    nn.SiLU: 1.1,
    nn.SELU: 1.7581,
}
_FUNCTIONS: dict[Any, float] = {
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
# Of these no constant is known, but they act on each sample alone and answer the same at each call.
_OF_THE_INPUT = (
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.Embedding),
    *(nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)


class _Unknown(Exception):
    """An operation of which nothing is known: `what` says which. (torch.fx adds to the text of an error.)"""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass(frozen=True)
class _Moved:
    """A value of the cell at some sample, and how far it moves with z and with x."""

    value: Tensor
    with_z: Interval
    with_x: Interval

    def times(self, value: Tensor, factor: float | Interval) -> _Moved:
        """The image under a map with this Lipschitz constant."""
        return _Moved(value, self.with_z * factor, self.with_x * factor)


@facts_of(Equilibrium)
class CellFacts(Facts):
    """What the recorded operations of a cell say of it."""

    family = "Equilibrium"
    has_error = False  # how a cell's code rounds is not known

    @torch.no_grad()
    def wellposed(self, X: Tensor, tier: str) -> Certificate:
        """q < 1, with R = 1/(1 − q) and the Lipschitz constant k/(1 − q) of the equilibrium in x."""
        if tier == "rigorous":
            raise ValueError("the tier 'rigorous' knows no cell: its parts may be convolutions.")
        model = self.model
        frame: dict[str, Any] = {
            "theorem": "wellposed",
            "hypotheses": (FLOAT64_TIER, _RECORDED, *declared(model)),
            "tier": tier,
            "fingerprint": fingerprint(model, X),
        }
        altered_or_nan = altered(model) or not_finite(model, X)
        if altered_or_nan:
            return Certificate(claims=(), obstacle=altered_or_nan, **frame)
        reason, method, remedy = "the cell contracts in z", "the Lipschitz constants of its parts", _SMALLER
        try:
            moved = self._output(X)
            q, follows = Interval(0.0, moved.with_z.hi), moved.with_x.hi
        except _Unknown as unknown:
            q, follows, remedy = Interval(0.0, math.inf), math.inf, unknown.what
        claim = Claim("‖∂cell/∂z‖ < 1", reason, q, "<", Interval(1.0), method, remedy=remedy)
        if not claim.holds:
            return Certificate(claims=(claim,), constants={"reason": claim.name}, **frame)
        R = 1 / (1 - q)
        constants: dict[str, float | str] = {"R": R.hi, "rate": q.hi, "reason": claim.name}
        lipschitz = (Interval(follows) * R).hi
        if math.isfinite(lipschitz):
            constants["lipschitz"] = lipschitz
        return Certificate(
            claims=(claim,),
            promise=(
                f"every input has exactly one equilibrium ({reason}); each step of plain iteration brings "
                f"the iterate nearer by a factor {q.hi:.6g}."
            ),
            constants=constants,
            **frame,
        )

    def bounds(self) -> Bounds:
        """An error that says where the constant is found: it depends on the shape of x."""
        raise TypeError(
            "the Lipschitz constant of a cell depends on the shape of its inputs: "
            "certify(layer, X).constants['lipschitz'] has it, where it is known."
        )

    def _output(self, X: Tensor) -> _Moved:
        """How the output of the cell moves; _Unknown says why that is not known."""
        model = self.model
        if not has_own_facts(model) or not isinstance(model.cell, nn.Module):
            raise _Unknown("only an Equilibrium of a cell that is an nn.Module can be recorded.")
        exact = double(model, torch.device("cpu"))
        cell: Any = exact.cell
        x = X[:1].detach().cpu()
        x = x.double() if x.is_floating_point() else x
        z = exact.start_of(x)
        if not isinstance(z, Tensor):
            raise _Unknown("the state is a tuple of tensors, and bounds are known of one tensor alone.")
        z = z + torch.linspace(-1, 1, z.numel(), dtype=z.dtype).reshape(z.shape)  # not a point of symmetry
        try:
            graph = fx.GraphModule(cell, fx.Tracer().trace(cell))
        except Exception as error:  # whatever Python of the user's cannot be recorded
            raise _Unknown(f"the operations of the cell cannot be recorded by torch.fx: {error}") from None
        if len(graph.graph.find_nodes(op="placeholder")) != 2:
            raise _Unknown("the cell must take z and x alone, as cell(z, x).")
        zero, one = Interval(0.0), Interval(1.0)
        moved = _Walk(graph).run(_Moved(z, one, zero), _Moved(x, zero, one))
        if not isinstance(moved, _Moved) or moved.value.shape != z.shape:
            raise _Unknown("the cell does not return a tensor that is shaped like the state.")
        with _Unchanging():
            again = cell(z, x)
        if not torch.equal(moved.value, again):
            raise _Unknown("the cell gives another answer than the operations that were recorded of it.")
        return moved


class _Unchanging(TorchDispatchMode):
    """Refuses what a recording cannot show: h += z, taken for h = h + z, and random numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation of torch, as it is run."""
        name = func.overloadpacket.__name__
        if func._schema.is_mutable:
            raise _Unknown(f"the cell changes a tensor in place ({name}): h = h + z makes a new one.")
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise _Unknown(f"the cell draws at random ({name}): it gives another answer at each call.")
        return func(*args, **(kwargs or {}))


class _Walk(fx.Interpreter):
    """Runs the recorded operations on one sample, with the bounds of each value beside it."""

    def run_node(self, n: fx.Node) -> Any:
        """One operation. Errors name it as it stands in the cell."""
        try:
            return super().run_node(n)
        except _Unknown:
            raise
        except Exception as error:
            raise _Unknown(f"the cell fails at {n.format_node()}: {error}") from None

    def call_module(self, target: Any, args: tuple, kwargs: dict) -> Any:
        """A layer of torch, of its very class."""
        layer = self.fetch_attr(target)
        name = f"{target} ({type(layer).__name__})"
        (v,) = args if len(args) == 1 and not kwargs else (None,)
        if not isinstance(v, _Moved):
            raise _Unknown(f"nothing is known of {name} with these arguments.")
        factor = _slope(layer, v.value)
        if factor is None and _alone(layer, v.value) and v.with_z.hi == 0:
            return _Moved(layer(v.value), v.with_z, Interval(math.inf))
        if factor is None or v.value.ndim < 2:
            raise _Unknown(_nothing_of(name))
        return v.times(layer(v.value), factor)

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        """A function of torch, or an operator."""
        return self._operation(target, getattr(target, "__name__", str(target)), args, kwargs)

    def call_method(self, target: Any, args: tuple, kwargs: dict) -> Any:
        """A method of a tensor, by its name."""
        return self._operation(target, f".{target}()", args, kwargs)

    def _operation(self, target: Any, name: str, args: tuple, kwargs: dict) -> Any:
        values = [a.value if isinstance(a, _Moved) else a for a in args]
        moved = [a for a in args if isinstance(a, _Moved)]
        run = getattr(values[0], target) if isinstance(target, str) else None

        def value() -> Tensor:
            return run(*values[1:], **kwargs) if run is not None else target(*values, **kwargs)

        if not moved:
            if target in _TRANSPOSES or (target is getattr and args[1] in ("T", "mT")):
                return value()  # of a weight
            raise _Unknown(_nothing_of(name))
        plain = not kwargs or kwargs == {"inplace": False}
        if plain and target in _FUNCTIONS and len(args) == 1:
            return moved[0].times(value(), _FUNCTIONS[target])
        if (
            plain
            and target is F.linear
            and len(moved) == 1
            and moved[0] is args[0]
            and moved[0].value.ndim > 1
        ):
            return moved[0].times(value(), norm_upper(args[1].detach()))
        if plain and len(args) == 2 and (found := _of_two(target, args, value())) is not None:
            return found
        if target in (torch.flatten, "flatten") and plain and args[1:] == (1,):
            return moved[0].times(value(), 1.0)
        raise _Unknown(_nothing_of(name))


def _of_two(target: Any, args: tuple, value: Tensor) -> _Moved | None:
    """Sums, multiples, quotients and products with a fixed matrix; None of others, and where sizes spread."""
    moved = [a for a in args if isinstance(a, _Moved)]
    if target in _MATRIX_PRODUCTS:
        v, matrix = args
        if (
            not isinstance(v, _Moved)
            or not isinstance(matrix, Tensor)
            or (v.value.ndim, matrix.ndim) != (2, 2)
        ):
            return None
        return v.times(value, norm_upper(matrix.detach()))
    if any(v.value.shape != value.shape for v in moved):
        return None  # an entry that is spread over many moves all of them
    if target in _SUMS:
        with_z = sum((v.with_z for v in moved), Interval(0.0))
        return _Moved(value, with_z, sum((v.with_x for v in moved), Interval(0.0)))
    if len(moved) == 1 and target in (*_PRODUCTS, *_QUOTIENTS):
        (v,), (other,) = moved, [a for a in args if not isinstance(a, _Moved)]
        if isinstance(other, Tensor) and other.is_complex():
            return None
        # In float64, for |−128| is −128 in int8.
        size = float(other.double().abs().amax()) if isinstance(other, Tensor) else abs(float(other))
        if target in _PRODUCTS:
            return v.times(value, size)
        if v is args[0] and not isinstance(other, Tensor) and size:
            return v.times(value, 1 / Interval(size))
    return None


def _alone(layer: nn.Module, v: Tensor) -> bool:
    """Whether a layer of which no constant is known acts on each sample alone."""
    if type(layer) is nn.Softmax:
        return layer.dim is not None and layer.dim % v.ndim > 0
    return type(layer) in _OF_THE_INPUT


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
            # 2e-9/beta; a lower threshold is a step down, over which no constant holds.
            return 1.0 if layer.beta > 0 and layer.threshold >= 20 else None
        case nn.Flatten() if type(layer) is nn.Flatten and layer.start_dim == 1:
            return 1.0
        case nn.Dropout() if type(layer) is nn.Dropout and not layer.training:
            return 1.0
    return _SLOPES.get(type(layer))


def _nothing_of(name: str) -> str:
    return (
        f"no Lipschitz constant is known of {name}, on which the state depends. Known are Linear, Conv2d "
        f"with zero padding, activations with bounded slopes, sums, multiples by numbers or fixed tensors, "
        f"and products with fixed matrices; a norm layer may act on x alone, outside of the loop."
    )
