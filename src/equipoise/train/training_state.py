"""All that a run of a Trainer is, as a checkpoint: the run that goes on from it computes the same bits.

Weights, the optimiser's memory, the state of chance, warm starts, the place in the epoch (its order follows
from the seed), the best weights and every measurement.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..theory import fingerprint
from . import optimisers
from .checkpoint import Checkpoint, Checkpoints

if TYPE_CHECKING:
    from .training_run import TrainingRun

_FACTS = (
    *("epoch", "position", "step", "sums", "series", "maps", "reported"),
    *("best_epoch", "best_loss", "stopped", "advice", "failed"),
)


def about(run: TrainingRun) -> dict[str, Any]:
    """What a checkpoint must agree with to be one of this run."""
    named = {"X": run.X, "y": run.y, "sample_weight": run.weight}
    if run.validation is not None:
        named |= {"validation X": run.validation[0], "validation y": run.validation[1]}
    data = {name: fingerprint(torch.nn.Identity(), T)["X"] for name, T in named.items()}
    network = re.sub(r" at 0x[0-9a-f]+", "", repr(run.model))
    return {"network": network, **run.trainer.options(), **data, "ranks": run.ranks}


def latest(checkpoints: Checkpoints, run: TrainingRun) -> Checkpoint | None:
    """The newest checkpoint, if it is of this run."""
    found = checkpoints.latest()
    if found is None:
        return None
    then = found.facts.get("about", {})
    if differ := [name for name, value in about(run).items() if then.get(name) != value]:
        raise ValueError(
            f"{found.path} must be a checkpoint of this run. It is of one with other {', '.join(differ)}: "
            f"begin with the data and options of that run, or save into another directory."
        )
    return found


def save(run: TrainingRun, checkpoints: Checkpoints | None) -> None:
    """Write a checkpoint; every rank calls it, and the first one writes."""
    if checkpoints is None:
        return
    memory, numbers = optimisers.state_of(run.optimiser)
    groups = {"model": run.weights(), "optimiser": memory, "best": run.best}
    groups["rng"] = {str(rank): state for rank, state in enumerate(_rng_states(run))}
    groups |= {f"kept.{i}": weights for i, weights in enumerate(run.kept)}
    if run.Z0 is not None:
        groups["measured"] = {"Z0": run.Z0}
    if run.anchoring is not None:
        groups["anchor"] = run.anchoring.good.weights
    for name, warm in (run.warm.states if run.warm else {}).items():
        groups[f"warm.{name}"] = _gathered(run, warm.tensors())
    if run.rank != 0:
        return
    tensors = {f"{group}/{name}": t for group, named in groups.items() for name, t in named.items()}
    facts = {name: getattr(run, name) for name in _FACTS}
    if run.anchoring is not None:
        facts["anchored"] = asdict(run.anchoring.state)
    facts |= {"about": about(run), "optimiser": numbers, "seconds": run.elapsed()}
    checkpoints.save(run.step, tensors, facts)


def restore(run: TrainingRun, saved: Checkpoint) -> None:
    """Go on from there."""
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in saved.tensors.items():
        group, name = key.split("/", 1)
        groups.setdefault(group, {})[name] = tensor
    for name in _FACTS:
        setattr(run, name, saved.facts[name])
    run.maps = {name: {int(k): v for k, v in found.items()} for name, found in run.maps.items()}
    run.seconds = saved.facts["seconds"]
    device = run.trainer.device
    run.model.load_state_dict(groups["model"])
    optimisers.restore(run.optimiser, groups.get("optimiser", {}), saved.facts["optimiser"])
    run.best = {n: t.to(device) for n, t in groups.get("best", {}).items()}
    if run.anchoring is not None:
        run.anchoring.restore(groups["anchor"], saved.facts["anchored"])
    kept = sorted(group for group in groups if group.startswith("kept."))
    run.kept = [{n: t.to(device) for n, t in groups[group].items()} for group in kept]
    run.Z0 = groups["measured"]["Z0"].to(device) if "measured" in groups else None
    for name, warm in (run.warm.states if run.warm else {}).items():
        warm.restore(groups[f"warm.{name}"], device)
    chance, size = groups["rng"][str(run.rank)], len(torch.get_rng_state())
    torch.set_rng_state(chance[:size])
    if device.type == "cuda":
        torch.cuda.set_rng_state(chance[size:], device)


def _rng_states(run: TrainingRun) -> list[Tensor]:
    """The state of chance of every rank."""
    mine, device = torch.get_rng_state(), run.trainer.device
    if device.type == "cuda":
        mine = torch.cat([mine, torch.cuda.get_rng_state(device)])
    if run.ranks == 1:
        return [mine]
    states = [torch.empty_like(mine) for _ in range(run.ranks)]
    dist.all_gather(states, mine)
    return states


def _gathered(run: TrainingRun, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The warm states of all samples: each rank has those of its own, and zeros for the others."""
    if run.ranks == 1:
        return tensors
    tensors = {name: t.clone() for name, t in tensors.items()}
    for name, t in tensors.items():
        if name != "single":
            dist.all_reduce(t)
    return tensors
