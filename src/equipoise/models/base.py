"""z = f(z; x),  ŷ = readout(z): what every equilibrium model of the library shares.

A family says what its equation is (`equation`) and how its outputs come from the state (`readout`). How the
equation is solved and differentiated is its `Method`; solving, judging, differentiating and recording happen
here, once.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..differentiate import Equation, Gradient, Implicit, Method, Record
from ..differentiate.equation import under_transform
from ..differentiate.gradient import SolvedGradient
from ..differentiate.method import KEYWORDS, Solvers
from ..solve import Auto, EquilibriumError, EquilibriumWarning, Solution, Solver
from ..solve.compilers import NOT_EXPORTED, uncompiled
from ..solve.driver import DEFAULT_CHAIN
from ..solve.problem import Layout
from .choice import Trial, chosen
from .methods import spelled_out, trained_by
from .saving import Saved

# What is told of the rows of each count.
_TOLD = {
    "masked": "had no equilibrium (or no adjoint) {}: on_failure='mask' gave them no gradient.",
    "used": "did not converge {}: on_failure='count' used what was reached.",
    "cut": "had a truncated gradient {}: on_failure='count' gives the adjoint an eighth of the steps.",
}
Start = Any  # a state (a tensor or a tuple of tensors), an earlier Solution, or None


def _setting(name: str) -> property:
    """One setting of the method as an attribute of the model: assigning to it changes the method."""

    def get(self: EquilibriumModel) -> Any:
        return getattr(self.method, name)

    def set_(self: EquilibriumModel, value: Any) -> None:
        self.method = replace(self.method, **spelled_out({name: value}))

    return property(get, set_, doc=f"`method.{name}`.")


class EquilibriumModel(Saved, ABC):
    """z = f(z; x),  ŷ = readout(z).

    `equilibrium(x)` and `forward(x)` are differentiable and apply the failure policy to every sample;
    `solve(x)` returns the Solution as it is, without a gradient. All three take `start=`, where to begin, and
    the keywords of a `Method` (`stop=`, `solver=`, `precision=`, `gradient=`, `on_failure=`), which change
    the method of the model for that call.

    `last` records the last call: `last.forward` and, after a backward pass, `last.adjoint`. It is neither
    copied nor saved with the model.
    """

    method: Method
    structured: ClassVar[bool] = False  # whether one adjoint serves every residual: `pullback` and `gram`
    any_cell: ClassVar[bool] = False  # whether f is a cell of the user's, of which nothing is known
    natural_loss: ClassVar[str] = "half_square"  # the loss of the family's paper

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.method = Method().changed(**spelled_out(how))
        self._last = Record()
        self._tally: Counter[str] = Counter()  # rows seen, masked, used and cut, not yet reported
        self.chosen: tuple[Trial, ...] = ()  # what solver=Auto() measured last, the solver it took first
        self._since = 0  # calls since then

    # -- what a family is --------------------------------------------------------------------------------

    @abstractmethod
    def equation(self, x: Any, *args: Any, start: Start = None, method: Method) -> Equation:
        """The problem on these inputs, checked, together with every tensor it depends on.

        If the gradient of `method` records steps, or its solver chooses among equilibria, every step of f
        counts and not only the equilibrium.
        """

    def readout(self, z: Any) -> Any:
        """ŷ from the state; the state itself if the family has no readout."""
        return z

    def default_gradient(self) -> Gradient:
        """How equilibria are differentiated if the method names no gradient."""
        return Implicit()

    def default_solver_chain(self) -> Solvers | None:
        """The solver if the method names none; None leaves the choice to the equation."""
        return None

    @property
    def share(self) -> float:
        """How much of the way from z to f(z) one step of the solved map goes, in (0, 1]."""
        return 1.0

    def begin(self) -> None:
        """What is done before a call that will be differentiated, such as one step of a power iteration."""

    def diagnosis(self, error: EquilibriumError, equation: Equation) -> str:
        """What in the model is to blame for samples without an equilibrium; it may be empty.

        These are the weights, if the family can tell. It takes an SVD, so it is asked only after a failure.
        """
        check = getattr(self, "check_wellposed", None)
        if check is None:
            return ""
        try:
            check()
        except ValueError as refused:
            return str(refused)
        return "The weights are well-posed: each of these samples has exactly one equilibrium."

    # -- equilibria --------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, start: Start = None, **how: Any) -> Any:
        """ŷ = readout(z)."""
        return self.readout(self.equilibrium(*inputs, start=start, **how))

    @uncompiled
    def equilibrium(self, *inputs: Any, start: Start = None, **how: Any) -> Any:
        """z of every sample, differentiable."""
        if torch.compiler.is_exporting():
            raise NotImplementedError(NOT_EXPORTED)
        self.begin()
        equation = self.posed(inputs, start, how, differentiated=True)
        self._count()
        record = self._last = Record()
        gradient = equation.method.gradient
        assert gradient is not None
        try:
            flat = gradient.equilibrium(equation, equation.start, equation.tensors, record)  # type: ignore[arg-type]
        except EquilibriumError as error:
            if error.solution is not record.forward:
                raise  # it comes from a layer inside the cell, or from the adjoint
            record.forward = shaped(error.solution, equation.layout)
            blame = self.diagnosis(error, equation)
            raise EquilibriumError(f"{error}\n{blame}" if blame else str(error), record.forward) from None
        if record.forward is not None:
            record.forward = shaped(record.forward, equation.layout)
            if equation.method.on_failure.policy == "count":
                self._use(record, record.forward)
        return self.state_of(equation.layout.unflat(flat))

    @uncompiled
    @torch.no_grad()
    def solve(self, *inputs: Any, start: Start = None, **how: Any) -> Solution:
        """The Solution behind `equilibrium`, without a gradient, also if samples failed."""
        equation = self.posed(inputs, start, how)
        return shaped(equation.solve(equation.start, equation.tensors), equation.layout)  # type: ignore[arg-type]

    def state_of(self, solved: Any) -> Any:
        """z from what is solved for, which may hold more than z."""
        return solved

    def posed(
        self, inputs: tuple[Any, ...], start: Start, how: dict[str, Any], differentiated: bool = False
    ) -> Equation:
        """The equation of one call, with a method that leaves nothing open."""
        given = spelled_out({name: value for name, value in how.items() if name in KEYWORDS})
        more = {name: value for name, value in how.items() if name not in KEYWORDS}
        method = self.method.changed(**given)
        method = replace(method, solver=method.solver or self.default_solver_chain())
        gradient = method.gradient or self.default_gradient()
        if differentiated:
            if method.on_failure.policy == "count" and self.any_cell:
                method = replace(method, stop=method.on_failure.limited(method.stop))
                gradient = method.gradient or Implicit.truncated(method.stop)
            named, tensors = given.get("solver") is not None, (*inputs, *self.parameters())
            gradient = trained_by(gradient, method.solver, named, tensors)
        elif not isinstance(gradient, SolvedGradient):
            gradient = self.default_gradient()  # what is asked for is the equilibrium itself
        equation = self.equation(*inputs, start=start, method=replace(method, gradient=gradient), **more)
        if isinstance(method.solver, Auto):
            equation.method = replace(equation.method, solver=self._tried(equation, method.solver))
        return equation

    def _tried(self, equation: Equation, auto: Auto) -> Solvers:
        """The solver that a trial found fastest, and after it the default chain."""
        self._since += 1
        stale = self._since > auto.every or {one.solver for one in self.chosen} != set(auto.candidates)
        if stale and not under_transform():
            self.chosen, self._since = chosen(equation, auto), 1
        first = self.chosen[0].solver if self.chosen else auto.candidates[0]
        assert isinstance(first, Solver)
        return [first, *(one for one in DEFAULT_CHAIN if one != first)]

    # -- housekeeping ------------------------------------------------------------------------------------

    solver, stop = _setting("solver"), _setting("stop")
    precision, on_failure = _setting("precision"), _setting("on_failure")

    @property
    def gradient(self) -> Gradient:
        """How equilibria are differentiated."""
        return self.method.gradient or self.default_gradient()

    @gradient.setter
    def gradient(self, gradient: Gradient | None) -> None:
        self.method = replace(self.method, **spelled_out({"gradient": gradient}))

    @property
    def last(self) -> Record:
        """The forward and adjoint Solution of the last call."""
        return self._last

    def _use(self, record: Record, found: Solution) -> None:
        """Note the rows that are used although they failed; in eval mode warn of the first at once."""
        record.used = len(found.failed_rows)
        if record.used and not (self.training or self._tally["warned"]):
            what = f"{found.explain_failure()}\non_failure='count' uses what was reached, now and later."
            warnings.warn(what, EquilibriumWarning, stacklevel=3)
            record.counted, self._tally["warned"] = True, 1

    def _count(self) -> None:
        """Add the rows of the last call to the counts, once its backward pass is over."""
        last = self._last
        if last.forward is not None and not last.counted:
            self._tally.update(seen=len(last.forward.status), masked=last.masked, used=last.used or 0)
            if last.used is not None and last.adjoint is not None:
                self._tally.update(cut=len(last.adjoint.failed_rows))
            last.counted = True

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation, and report the rows that failed, as "mask" and "count" ask.

        Most loops call this once in each epoch, and so get one report for each epoch.
        """
        self._count()
        told, since = self._tally, f"since the last train() or eval() of the {type(self).__name__}"
        for name, what in _TOLD.items():
            if told[name]:
                message = f"{told[name]} of {told['seen']} samples {what.format(since)}"
                warnings.warn(message, EquilibriumWarning, stacklevel=2)
        told.clear()
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": Record(), "_tally": Counter(), "chosen": (), "_since": 0}


def shaped(solution: Solution, layout: Layout) -> Solution:
    """A solution in flat rows with its value in the shape of the state, free of any transform."""
    assert isinstance(solution.value, Tensor)
    value = layout.unflat(solution.value.detach())
    plain: dict[str, Any] = {name: _plain(t) for name, t in vars(solution).items() if isinstance(t, Tensor)}
    plain["value"] = tuple(map(_plain, value)) if isinstance(value, tuple) else _plain(value)
    return replace(solution, **plain)


def _plain(t: Tensor) -> Tensor:
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t
