"""The solvers of other libraries, each as a Contender; those that are not installed say so."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.measure import Absent, Contender, calibrate

MAX_STEPS = 400
OPTIONS: dict[str, dict[str, Any]] = {  # where a peer's defaults do not serve it best
    "torchdeq Anderson": {"lam": 1e-12},  # 1e-4 takes twice as long to 1e-6
    "torchdeq Broyden": {"LBFGS_thres": 30},  # else it stores max_iter vectors for each sample
}


@dataclass(frozen=True)
class Problem:
    """z = f(z) from z0, once for torch and once for jax: f(z, *arrays) with the arrays passed as such."""

    torch_map: Callable[..., Tensor]
    jax_map: Callable[..., Any]
    arrays: tuple[Tensor, ...]
    z0: Tensor
    size: float  # ‖z‖ of the whole batch at the solution, for those who stop on an absolute residual
    answer: Callable[[Tensor], Tensor] = lambda z: z  # from the peer's unknown to z
    # From `arrays` to what f takes, once for each solve and timed with it; for torch and for jax.
    prepare: Callable[..., tuple[Any, ...]] = lambda *arrays: arrays


def contenders(
    problem: Problem,
    verify: Callable[[Tensor], float],
    limit: float,
    which: tuple[str, ...],
    suffix: str = "",
) -> list[Contender | Absent]:
    """The named solvers, each asked for `limit` in its own terms, and for less until `verify` passes it."""
    found: list[Contender | Absent] = []
    for name in which:
        package = name.split()[0]
        label = name + suffix
        try:
            importlib.import_module(package)
        except ImportError:
            found.append(Absent(label, "not installed"))
            continue
        make = _torchdeq if package == "torchdeq" else _jaxopt if package == "jaxopt" else _optimistix
        scale = (
            float(problem.size) if package == "jaxopt" else 1.0
        )  # it stops on ‖f(z) − z‖ of the whole batch
        tolerances = [scale * limit * 2.0**k for k in range(0, -8, -1)]
        build = lambda t, make=make, name=name, label=label: make(problem, name, label, t)
        found.append(calibrate(label, build, verify, limit, tolerances))
    return found


def _torchdeq(problem: Problem, name: str, label: str, tolerance: float) -> Contender:
    from torchdeq.solver.anderson import anderson_solver
    from torchdeq.solver.broyden import broyden_solver
    from torchdeq.solver.fp_iter import fixed_point_iter

    method = {"fixed point": fixed_point_iter, "Anderson": anderson_solver, "Broyden": broyden_solver}[
        name.removeprefix("torchdeq ")
    ]
    options = {"max_iter": MAX_STEPS, "tol": tolerance, "stop_mode": "rel", **OPTIONS.get(name, {})}

    @torch.no_grad()
    def solve() -> Tensor:
        arrays = problem.prepare(*problem.arrays)
        return method(lambda z: problem.torch_map(z, *arrays), problem.z0, **options)[0]

    return Contender(label, solve, problem.answer)


def _jaxopt(problem: Problem, name: str, label: str, tolerance: float) -> Contender:
    import jax
    import jaxopt

    method = {"fixed point": jaxopt.FixedPointIteration, "Anderson": jaxopt.AndersonAcceleration}[
        name.removeprefix("jaxopt ")
    ]
    solver = method(problem.jax_map, maxiter=MAX_STEPS, tol=tolerance, **OPTIONS.get(name, {}))
    run = jax.jit(lambda z, *arrays: solver.run(z, *problem.prepare(*arrays)).params)
    z0, *arrays = (jax.numpy.asarray(a.numpy()) for a in (problem.z0, *problem.arrays))
    return Contender(label, lambda: run(z0, *arrays).block_until_ready(), _from_jax(problem))


def _optimistix(problem: Problem, name: str, label: str, tolerance: float) -> Contender:
    import jax
    import optimistix

    solver = optimistix.FixedPointIteration(rtol=tolerance, atol=tolerance, **OPTIONS.get(name, {}))
    run = jax.jit(
        lambda z, *arrays: (
            optimistix.fixed_point(
                lambda z, a: problem.jax_map(z, *a),
                solver,
                z,
                problem.prepare(*arrays),
                max_steps=MAX_STEPS,
                throw=False,
            ).value
        )
    )
    z0, *arrays = (jax.numpy.asarray(a.numpy()) for a in (problem.z0, *problem.arrays))
    return Contender(label, lambda: run(z0, *arrays).block_until_ready(), _from_jax(problem))


def _from_jax(problem: Problem) -> Callable[[Any], Tensor]:
    import numpy

    return lambda z: problem.answer(torch.from_numpy(numpy.array(z)))
