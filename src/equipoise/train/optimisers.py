"""An optimiser by name or by a factory, and its state as tensors and numbers, so that nothing is pickled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import nonnegative, one_of, within
from ..solve.compilers import uncompiled

Factory = Callable[[Iterable[nn.Parameter]], Optimizer]

# name: torch's class, the default rate, and whether it knows momentum
OPTIMISERS: dict[str, tuple[type[Optimizer], float, bool]] = {
    "sgd": (torch.optim.SGD, 1e-2, True),
    "rmsprop": (torch.optim.RMSprop, 1e-3, True),
    "adam": (torch.optim.Adam, 1e-3, False),
    "adamw": (torch.optim.AdamW, 1e-3, False),
    "adagrad": (torch.optim.Adagrad, 1e-2, False),
}


def make_optimiser(
    which: str | Factory,
    model: nn.Module,
    rate: float | None,
    momentum: float | None,
    weight_decay: float,
) -> Optimizer:
    """The optimiser of the parameters that are trained."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter to train: all are frozen, or there is none.")
    for name, value in (("rate", rate), ("momentum", momentum), ("weight_decay", weight_decay)):
        nonnegative(name, value or 0.0)
    if callable(which):
        if rate is not None or momentum is not None or weight_decay:
            raise ValueError("rate, momentum and weight_decay belong in the factory of the optimiser.")
        made = which(parameters)
        if not isinstance(made, Optimizer):
            raise TypeError(f"a factory must return a torch optimiser. Got {type(made).__name__} instead.")
    else:
        one_of("optimiser", which, OPTIMISERS, ", or a function from parameters to a torch optimiser")
        kind, usual, moves = OPTIMISERS[which]
        if momentum is not None and not moves:
            raise ValueError(f"{which} takes no momentum: use 'sgd', or give its betas by a factory.")
        options: dict[str, Any] = {"momentum": momentum or 0.0} if moves else {}
        if which in ("adam", "adamw") and all(p.device.type == "cpu" for p in parameters):
            options["fused"] = True  # one kernel for a step, which on small networks is a tenth of the time
        if which == "sgd":
            within("momentum", momentum or 0.0, "[0, 1)")
        made = _without_compiler(kind)(
            parameters, lr=usual if rate is None else rate, weight_decay=weight_decay, **options
        )  # type: ignore[call-arg]
    if isinstance(made, torch.optim.LBFGS):
        raise TypeError("LBFGS evaluates the loss several times a step, which mini-batches do not offer.")
    return made


def _without_compiler(kind: type[Optimizer]) -> type[Optimizer]:
    """The optimiser as it is, without the two seconds that torch would take to import its compiler for it.

    It needs the compiler only to ask it not to compile these methods.
    """
    for method in (Optimizer.add_param_group, Optimizer.zero_grad, Optimizer.state_dict):
        plain: Any = getattr(method, "__wrapped__", None)
        if plain is not None and not hasattr(plain, "__dynamo_disable"):
            plain.__dynamo_disable = uncompiled(plain)
    return type(kind.__name__, (kind,), {"step": torch.no_grad()(inspect.unwrap(kind.step))})


def state_of(optimiser: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimiser's memory: tensors and numbers by "parameter.name", and the numbers of its groups."""
    known = optimiser.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, entries in known["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            elif isinstance(value, bool | int | float | str | None):
                numbers[f"{index}.{name}"] = value
            else:
                raise ValueError(
                    f"{type(optimiser).__name__} keeps {name!r}, a {type(value).__name__}, which no "
                    f"checkpoint can hold: train without checkpoints, or with another optimiser."
                )
    groups = [
        {k: v for k, v in group.items() if isinstance(v, bool | int | float | str | None)}
        for group in known["param_groups"]
    ]
    return tensors, {"numbers": numbers, "groups": groups}


def restore(optimiser: Optimizer, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Take back what `state_of` gave."""
    fresh = optimiser.state_dict()
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **facts["numbers"]}.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    groups = [{**group, **old} for group, old in zip(fresh["param_groups"], facts["groups"], strict=True)]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
