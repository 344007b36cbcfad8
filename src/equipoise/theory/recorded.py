"""Cells of a user's own, and modules around them: what is computed of each sample, with all that bounds it.

A cell whose parts prove that it contracts in z, l = q < 1, has one equilibrium, which moves by at most
k/(1 − q) ‖x − x'‖, and whatever z was found is within (‖z − cell(z, x)‖ + e)/(1 − q) of it. A module of known
layers around such equilibria is bounded the same way: an equilibrium is one more layer on the way.
"""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..linalg import Interval
from ..models.altered import altered, double
from ..models.cell import Equilibrium
from ..models.cell_equation import refuse_unsteady
from ..solve import Stop
from .common import declared, not_finite
from .lipschitz import Bounds, RowScores
from .moves import RECORDED, ROUNDED, Moved, Unknown, Walk, above_all, called_as_recorded, sizes
from .register import has_own_facts

AT_ONCE = 2048  # samples that are bounded together
TIGHT = Stop(rtol=1e-13, max_steps=2000)


def recorded(model: nn.Module, inputs: int, like: str) -> fx.GraphModule:
    """The operations of a module; equilibria in it stay as layers."""
    try:
        graph = fx.GraphModule(model, _Tracer().trace(model))
    except Exception as error:  # whatever Python of the user's cannot be recorded
        raise Unknown(f"the operations of the {like} cannot be recorded by torch.fx: {error}") from None
    if len(graph.graph.find_nodes(op="placeholder")) != inputs:
        takes = "z and x alone, as cell(z, x)" if inputs == 2 else "one input alone, as model(x)"
        raise Unknown(f"the {like} must take {takes}.")
    return graph


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_cell_layer(m) or super().is_leaf_module(m, module_qualified_name)


def is_cell_layer(module: nn.Module) -> bool:
    """Whether a module is an Equilibrium, or derived from it."""
    return bool(getattr(module, "any_cell", False))


def exact_inputs(X: Tensor) -> Tensor:
    """X on the CPU, in float64 unless it holds integers."""
    X = X.detach().cpu()
    return X.double() if X.is_floating_point() else X


class RecordedCell:
    """The cell of an Equilibrium in float64, recorded once; Unknown says why nothing is known of it."""

    def __init__(self, layer: Equilibrium) -> None:
        self.layer = double(layer, torch.device("cpu"))
        cell: Any = self.layer.cell
        if not has_own_facts(layer) or not isinstance(cell, nn.Module):
            raise Unknown("only an Equilibrium of a cell that is an nn.Module can be recorded.")
        self.cell = cell
        self.graph = recorded(cell, 2, "cell")
        self.walk = Walk(self.graph)
        try:
            refuse_unsteady(cell)
        except ValueError as unsteady:  # a layer that draws anew, even one that plays no part in f
            raise Unknown(str(unsteady)) from None

    def start(self, x: Tensor) -> Tensor:
        """Where solves begin."""
        z = self.layer.start_of(x)
        if not isinstance(z, Tensor) or z.is_complex():
            raise Unknown("bounds are known where the state is one tensor of real numbers.")
        return z.double()

    def at(self, z: Tensor, x: Tensor) -> Moved:
        """cell(z, x) of samples, whose tensors are in float64."""
        moved = self.walk.run(Moved.given(z, 1.0, 0.0), Moved.given(x, 0.0, 1.0))
        if not isinstance(moved, Moved) or moved.value.shape != z.shape:
            raise Unknown("the cell does not return a tensor that is shaped like the state.")
        if not torch.equal(moved.value, called_as_recorded(self.graph, self.cell, z, x)):
            raise Unknown("the cell gives another answer than the operations that were recorded of it.")
        return moved

    def anywhere(self, x: Tensor) -> Moved:
        """cell(z, x) of one sample at a state that is no point of symmetry: for its constants."""
        z = self.start(x[:1])
        return self.at(z + torch.linspace(-1, 1, z.numel(), dtype=z.dtype).reshape(z.shape), x[:1])

    def solve(self, x: Tensor) -> Tensor:
        """The equilibria as near as float64 finds them."""
        z = self.layer.solve(x, stop=TIGHT, precision="native").value
        assert isinstance(z, Tensor)
        return torch.where(torch.isfinite(z), z, 0.0)

    def errors(self, z: Tensor, x: Tensor) -> Tensor:
        """≥ the distance of each z to the equilibrium of x, (N,); infinite where none is proved."""
        finite = torch.isfinite(z.flatten(1)).all(dim=1)
        z = torch.where(torch.isfinite(z), z, 0.0)
        moved = self.at(z, x)
        gap = 1 - Interval(0.0, moved.with_z.hi)
        if not gap.lo > 0:
            return torch.full((len(z),), math.inf, dtype=torch.float64)
        errors = above_all(above_all(sizes(z - moved.value) + moved.off) / gap.lo)
        return errors.where(finite, math.inf)

    def solved(self, v: Moved) -> Moved:
        """The equilibria of the exact inputs that v is near to."""
        constants = self.anywhere(v.value)
        q = constants.with_z.hi
        if not q < 1:
            raise Unknown(f"the cell is not proved to contract: q = {q:.6g} is found, and q < 1 is needed.")
        z = self.solve(v.value)
        follows = constants.with_x / (1 - Interval(0.0, q))
        moved = v.times(z, Interval(0.0, follows.hi))
        return Moved(z, moved.with_z, moved.with_x, above_all(moved.off + self.errors(z, v.value)))


class RecordedBounds(Bounds):
    """Lipschitz constants of a module of known layers around equilibria, for inputs of one shape."""

    believed: tuple[str, ...] = (RECORDED, ROUNDED)

    def __init__(self, model: nn.Module, X: Tensor) -> None:
        self.obstacle = altered(model, outside=()) or not_finite(model, X)
        self.a = torch.ones(1, 1, dtype=torch.float64)
        if self.obstacle:
            return
        layers = [m for m in model.modules() if is_cell_layer(m)]
        self.believed = (*self.believed, *dict.fromkeys(h for m in layers for h in declared(m)))
        around = double(nn.Sequential(model) if is_cell_layer(model) else model, torch.device("cpu"))
        self.shape, self.exact = X.shape[1:], around
        try:
            self.cells = {n: RecordedCell(m) for n, m in around.named_modules() if is_cell_layer(m)}
            self.walk = Walk(recorded(around, 1, "model"), self._within)
            moved, last = self._at(exact_inputs(X[:1]))
        except Unknown as unknown:
            self.obstacle = unknown.what
            return
        self.state = moved.with_x.hi
        self.a = torch.eye(moved.value.shape[1], dtype=torch.float64)
        if last is not None:
            self.a, self.state = last[0].weight.detach().T, last[1].with_x.hi
        if not self.state < math.inf:
            self.obstacle = "no Lipschitz constant is known of a layer that acts on the inputs."

    def state_bound(self, units: Tensor | None = None) -> float:
        """≥ the Lipschitz constant of what the last linear layer reads."""
        return math.inf if self.obstacle else self.state

    def checked(self, X: Tensor) -> tuple[Tensor, str]:
        """X as the recorded operations take it, and why nothing can be said of it."""
        if self.obstacle:
            return X, self.obstacle
        if X.shape[1:] != self.shape:
            wanted = ", ".join(["N", *map(str, self.shape)])
            raise ValueError(f"X must be ({wanted}). Got {tuple(X.shape)} instead.")
        return exact_inputs(X), not_finite(self.exact, X)

    @torch.no_grad()
    def scores(self, points: Tensor) -> RowScores:
        """The outputs at computed equilibria; each row has an error of its own."""
        found = [self._at(part)[0] for part in points.split(AT_ONCE)]
        # Two numbers of a row are together off by at most √2 times the distance.
        errors = above_all(torch.cat([one.off for one in found]) * 1.4142135623730954)
        return RowScores(torch.cat([one.value for one in found]), errors)

    def _at(self, x: Tensor) -> tuple[Moved, tuple[nn.Linear, Moved, Moved] | None]:
        """What the model makes of x, and its last linear layer if its output is what comes out of that."""
        answers: dict[str, list[Tensor]] = {}
        self.walk.read, self.answers = None, answers
        moved = self.walk.run(Moved.given(x, 0.0, 1.0))
        if not isinstance(moved, Moved) or moved.value.ndim != 2:
            raise Unknown("the model must return one row of outputs for each sample, (N, k).")
        same = copy.deepcopy(self.exact)
        for name, found in answers.items():
            parent, _, own = name.rpartition(".")
            setattr(same.get_submodule(parent), own, _Answers(found))
        try:
            again = called_as_recorded(fx.GraphModule(same, self.walk.graph), same, x)
        except Unknown:
            raise
        except Exception as error:
            raise Unknown(f"the model fails where it was recorded: {error}") from None
        if not torch.equal(moved.value, again):
            raise Unknown("the model gives another answer than the operations that were recorded of it.")
        read = self.walk.read
        return moved, read if read is not None and read[2] is moved else None

    def _within(self, layer: nn.Module, name: str, v: Moved) -> Moved | None:
        if not is_cell_layer(layer):
            return None
        found = self.cells[name].solved(v)
        self.answers.setdefault(name, []).append(found.value)
        return found


class _Answers(nn.Module):
    """An equilibrium layer that says again what was found, one call after the other, as often as asked."""

    def __init__(self, answers: list[Tensor]) -> None:
        super().__init__()
        self.answers = itertools.cycle(answers)

    def forward(self, x: Tensor) -> Tensor:
        """The equilibria of the next call."""
        return next(self.answers)
