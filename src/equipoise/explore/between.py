"""Whether two runs compare: on a line between two networks nothing but their weights may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..tasks import Stored, WrongOption
from .landscape import differences
from .measured import loss_name


def refuse_unlike(one: Stored, other: Stored) -> None:
    """Refuse two runs that differ in more than their weights: between them the loss means nothing."""
    sample, theirs = one.sample, other.sample
    differ = differences(one.fitted.model, other.fitted.model)
    if (mine := loss_name(one.fitted)) != (its := loss_name(other.fitted)):
        differ.append(f"loss ({mine} and {its})")
    pairs = zip(one.tensors, other.tensors, strict=True)
    if not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs):
        if sample.provenance["sha256"] != theirs.provenance["sha256"]:
            names = [f"{s.provenance['name']}, {s.provenance['rows']} rows" for s in (sample, theirs)]
            options = _unlike(one.run.config["data"], other.run.config["data"])
            told = f"{names[0]}; and {names[1]}" if names[0] != names[1] else f"{names[0]} each; {options}"
            differ.append(f"data ({told})")
        else:
            ours, others = vars(one.fitted.preparation), vars(other.fitted.preparation)
            parts = [n for n in ours if n != "sharpness" and not np.array_equal(ours[n], others[n])]
            differ.append(f"preparation of the rows ({', '.join(parts)})")
    if differ:
        raise WrongOption(
            f"On a line between two networks nothing but their weights may differ. {one.run.path} and "
            f"{other.run.path} differ in {', '.join(differ)}.\n\n{_alike([one, other])}"
        )


def _unlike(mine: Mapping[str, Any], its: Mapping[str, Any]) -> str:
    """The options of fit in which the [data] of two configurations differ."""
    names = [n for n in {**mine, **its} if n != "data_dir" and mine.get(n) != its.get(n)]
    option = {n: f"--{n.removeprefix('split_').replace('_', '-')}" for n in names}
    return ", ".join(f"{option[n]} {mine.get(n, 'none')} and {its.get(n, 'none')}" for n in names)


def _alike(runs: Sequence[Stored]) -> str:
    """What may differ in training: also the seed, but only with the options for which it draws no rows."""
    length = f"--{runs[0].fitted.recipe.unit}s"
    drawn = {
        "without --rows": any(s.run.config["data"].get("rows") for s in runs),
        "with --test-share 0": any(s.run.config["data"].get("test_share") for s in runs),
        "without --patience": any(s.fitted.recipe.patience for s in runs),
    }
    only = " and ".join(how for how, is_drawn in drawn.items() if is_drawn)
    return f"Train both alike: only {length} may differ, and --seed{f' {only}' if only else ''}."
