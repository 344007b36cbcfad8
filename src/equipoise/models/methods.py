"""The settings of a Method as a user writes them, in a constructor or a call, and as a file keeps them.

A call or a constructor may say `gradient=20` for Unrolled(20). A file holds what z or its gradient depends
on: unrolled steps, phantom gradients, SAM, the tolerance. It holds no function and no failure policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from ..differentiate import Gradient, Implicit, Method, Phantom, Recycled, Reversible, Unrolled
from ..differentiate.equation import needs_gradient, under_transform
from ..differentiate.gradient import SolvedGradient
from ..differentiate.method import Solvers
from ..differentiate.unrolled import UnrolledSAM
from ..solve import SAM, Picard, Solver, Stop, half_squared_norm


def spelled_out(how: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a Method as objects, from what a user may write or a file holds."""
    made = {"solver": _as_solver, "gradient": _as_gradient, "stop": _as_stop}
    return {name: made[name](value) if name in made else value for name, value in how.items()}


def _as_gradient(gradient: Gradient | Mapping[str, Any] | str | int | None) -> Gradient | None:
    """Implicit() for "implicit", Unrolled(K) for a number K, else what is given or what a file holds."""
    if gradient is None or isinstance(gradient, Gradient):
        return gradient
    if gradient == "implicit":
        return Implicit()
    if isinstance(gradient, int) and not isinstance(gradient, bool):
        return Unrolled(gradient)
    if isinstance(gradient, Mapping):
        if "reversible" in gradient:
            return Reversible(gradient["reversible"])
        if "recycled" in gradient:
            return Recycled(gradient["recycled"])
        damping = gradient["damping"]
        if "phantom" in gradient:
            return Phantom(gradient["phantom"], damping)
        return Unrolled(gradient["steps"], Picard(damping))
    raise TypeError(
        f"gradient must be 'implicit', a number of unrolled steps, or a Gradient such as eq.Implicit() or "
        f"eq.Unrolled(20). Got {gradient!r} instead; a file holds no other, so pass yours to "
        f"load(path, gradient=…)."
    )


def _as_solver(solver: Solvers | Mapping[str, Any] | str | None) -> Solvers | None:
    """A solver as it is, or the SAM that a file holds."""
    if isinstance(solver, Mapping):
        return SAM(**solver)
    if isinstance(solver, str):
        raise TypeError(
            f"solver must be a Solver such as eq.Anderson(). Got {solver!r} instead; a file holds no "
            f"function, and no chain, so pass such a SAM to load(path, solver=…)."
        )
    return solver


def _as_stop(stop: Stop | Mapping[str, Any] | None) -> Stop | None:
    """A Stop as it is, or the one that a file holds."""
    return Stop(**stop) if isinstance(stop, Mapping) else stop


# -- what a file keeps -----------------------------------------------------------------------------------


def method_config(method: Method) -> dict[str, Any]:
    """What a file keeps of a Method: what z or its gradient depends on.

    What JSON cannot hold is kept as its repr, and `load` asks for the object. The failure policy is not kept:
    what was let through in one program is not let through in the next, unless that asks for it too.
    """
    kept: dict[str, Any] = {}
    gradient, solver = method.gradient, method.solver
    if method.stop != Stop():
        kept["stop"] = asdict(method.stop)
    if isinstance(gradient, Unrolled) and type(gradient.solver) is Picard:
        damping = gradient.solver.damping
        kept["gradient"] = gradient.steps if damping == 1 else {"steps": gradient.steps, "damping": damping}
    elif isinstance(gradient, Reversible):
        kept["gradient"] = {"reversible": gradient.steps}
    elif isinstance(gradient, Recycled):
        kept["gradient"] = {"recycled": gradient.steps}
    elif isinstance(gradient, Phantom):
        kept["gradient"] = {"phantom": gradient.steps, "damping": gradient.damping}
    elif gradient is not None and not isinstance(gradient, SolvedGradient):
        kept["gradient"] = repr(gradient)
    if selects(solver):
        kept["solver"] = _sam_config(solver) if type(solver) is SAM else repr(solver)
    return kept


def _sam_config(sam: SAM) -> Any:
    """What a file keeps of SAM: its settings for R = ½‖z‖², only a description for any other regulariser."""
    if sam.regulariser.name == half_squared_norm().name:
        return {"rho": sam.rho, "c": sam.c}
    return f"SAM({sam.regulariser.name}, rho={sam.rho:g}, c={sam.c:g})"


# -- SAM chooses among equilibria ------------------------------------------------------------------------


def selects(solver: Any) -> bool:
    """Whether a solver, or one of a chain, chooses among equilibria as SAM does."""
    chain = solver if isinstance(solver, Sequence) else [solver]
    return any(isinstance(one, Solver) and one.selects for one in chain)


def returned(method: Method) -> str:
    """A description of what a model returns in place of an equilibrium; empty if it returns one."""
    if selects(method.solver):
        return "iterates of SAM"
    unrolled = method.gradient is not None and not isinstance(method.gradient, SolvedGradient)
    return f"the last iterate of {method.gradient}" if unrolled else ""


def trained_by(how: Gradient, solver: Solvers | None, named: bool, tensors: Iterable[Any]) -> Gradient:
    """`how` itself, or unrolled SAM if `solver` is SAM; `named` says that the call named a solver."""
    if not selects(solver):
        if named and isinstance(how, Unrolled | Reversible):
            raise ValueError(
                f"{how} takes steps of its own solver, which Unrolled(K, Picard(damping=…)) names. Got "
                f"solver={solver!r} as well: leave it out, or use gradient=Implicit()."
            )
        return how
    chain = list(solver) if isinstance(solver, Sequence) else [solver]
    if isinstance(how, Unrolled) and len(chain) == 1 and isinstance(chain[0], SAM):
        return UnrolledSAM(how.steps, chain[0])
    if needs_gradient([t for t in tensors if isinstance(t, Tensor)]) or under_transform():
        raise ValueError(
            f"SAM chooses among many equilibria, where I − ∂T/∂z is singular and "
            f"{type(how).__name__} has no gradient to give. Train it unrolled, solver=SAM(…) with "
            f"gradient=Unrolled(20); or call the model under torch.no_grad()."
        )
    return how


def check_sam(solver: Any, z: Tensor) -> None:
    """Raise a ValueError unless the regulariser of SAM, if that is the solver, takes states like z (N, m)."""
    for sam in solver if isinstance(solver, Sequence) else [solver]:
        if not isinstance(sam, SAM):
            continue
        R = sam.regulariser
        try:
            got = f"a gradient of shape {tuple(shape)}" if (shape := R.gradient(z).shape) != z.shape else ""
        except RuntimeError as error:
            got = str(error).splitlines()[0]
        if got:
            raise ValueError(
                f"{R.name} of SAM must take states of {z.shape[1]} entries, as the network has. "
                f"Got {got} instead."
            )
