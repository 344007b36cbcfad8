"""The whole state of a Trainer's run, as a checkpoint: a run that continues from it computes the same bits.

Weights, the optimiser's memory, the random state, warm starts, the place in the epoch (its order follows
from the seed), the best weights and every measurement.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..theory import fingerprint
from ..theory.shards import BLOCKS, Shard, digest_of_rows, gathered, whole
from . import optimisers
from .checkpoint import Checkpoint, Checkpoints
from .checkpoint_parts import cut_part, read_parts, remove_former_parts, save_part

if TYPE_CHECKING:
    from .training_run import TrainingRun

_FACTS = (
    *("epoch", "position", "step", "sums", "series", "maps", "reported"),
    *("best_epoch", "best_loss", "stopped", "advice", "failed"),
)


def about(run: TrainingRun) -> dict[str, Any]:
    """What a checkpoint must agree with to belong to this run; computed once, by all ranks together."""
    if run.about:
        return run.about
    named: dict[str, Any] = {"X": run.X, "y": run.y, "sample_weight": run.weight}
    sizes: dict[str, int] = {}
    if run.validation is not None:
        sizes |= dict.fromkeys(("validation X", "validation y"), whole(run.validation[0]))
        held = run.validation[0]
        named |= {"validation X": held.rows if isinstance(held, Shard) else held}
        named |= {"validation y": run.validation[1]}
    data = {name: digest_of_rows(T, sizes.get(name, run.N)) for name, T in named.items()}
    network = re.sub(r" at 0x[0-9a-f]+", "", repr(run.model))
    run.about = {"network": network, **run.trainer.options(), **data}
    return run.about


def _former(run: TrainingRun, name: str) -> str:
    """A digest as earlier versions wrote it; empty if the batches of this run are not as they were then."""
    named: dict[str, Any] = {"X": run.X, "y": run.y, "sample_weight": run.weight}
    if run.validation is not None:
        named |= {"validation X": run.validation[0], "validation y": run.validation[1]}
    if run.ranks > 1 or run.N >= BLOCKS**2 or name not in (*named, "certificate"):
        return ""
    if name == "certificate":
        return run.trainer.about_certificate()
    return fingerprint(torch.nn.Identity(), named[name])["X"]


def latest(checkpoints: Checkpoints, run: TrainingRun) -> Checkpoint | None:
    """The newest checkpoint, if it is of this run."""
    found = checkpoints.latest()
    if found is None:
        return None
    then = found.facts.get("about", {})
    now = about(run)
    if differ := [n for n, value in now.items() if then.get(n) not in (value, _former(run, n))]:
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
    warm = {f"warm.{name}": state.tensors() for name, state in (run.warm.states if run.warm else {}).items()}
    if run.ranks > 1:
        save_part(checkpoints, run.step, warm, run.part)
    else:
        groups |= warm
    agreed = about(run)
    if run.rank != 0:
        return
    tensors = {f"{group}/{name}": t for group, named in groups.items() for name, t in named.items()}
    facts = {name: getattr(run, name) for name in _FACTS}
    if run.anchoring is not None:
        facts["anchored"] = asdict(run.anchoring.state)
    facts |= {"about": agreed, "optimiser": numbers, "seconds": run.elapsed()}
    checkpoints.save(run.step, tensors, facts)
    remove_former_parts(checkpoints, run.step)


def restore(run: TrainingRun, saved: Checkpoint, checkpoints: Checkpoints) -> None:
    """Continue the run from a checkpoint."""
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
    if run.warm is not None:
        held = {name: t for name, t in groups.items() if name.startswith("warm.")}
        if len(groups["rng"]) == 1:  # one process wrote it, with the rows of all
            held = cut_part(held, run.part)
        elif run.warm.states:
            held = read_parts(checkpoints, saved.step, run.part)
        for name, warm in run.warm.states.items():
            if f"warm.{name}" in held:
                warm.restore(held[f"warm.{name}"], device)
    if str(run.rank) not in groups["rng"]:  # fewer ranks wrote it
        return
    chance, size = groups["rng"][str(run.rank)], len(torch.get_rng_state())
    torch.set_rng_state(chance[:size])
    if device.type == "cuda":
        torch.cuda.set_rng_state(chance[size:], device)


def _rng_states(run: TrainingRun) -> list[Tensor]:
    """The random state of every rank."""
    mine, device = torch.get_rng_state(), run.trainer.device
    if device.type == "cuda":
        mine = torch.cat([mine, torch.cuda.get_rng_state(device)])
    return gathered(mine)
