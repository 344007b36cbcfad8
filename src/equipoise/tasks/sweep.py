"""A sweep: one recipe with values left open, trained for each of them, and the best chosen.

    sweep.json     what was asked: [data], the values of every option as they were given, seeds and draws
    trials/        a run each, of four fifths of the rows to train on, scored on the last fifth
    best/          the run of the best configuration, on all rows to train on, certified and tested
    sweep.html     the page

Trials never see a test row: what is chosen is chosen by the validation rows.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from ..checks import integer, within
from ..files import make_directory, read_json, write_atomically
from ..recipe import Recipe
from .directory import NotBegun, Run
from .sources import Asked, WrongOption

EARLY = "it was stopped early, as others that had come as far were better (ASHA)"
_WHOLE = ("augment",)  # options whose one value may hold a comma


@dataclass(frozen=True)
class Range:
    """An interval to draw from: evenly, or so that all orders of magnitude are equally likely."""

    low: float
    high: float
    log: bool
    integers: bool

    def draw(self, chance: np.random.Generator) -> float | int:
        """A number between both ends."""
        ends = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        found = float(chance.uniform(*ends))
        found = min(max(math.exp(found) if self.log else found, self.low), self.high)
        return round(found) if self.integers else float(f"{found:.4g}")


def parse(name: str, text: str) -> Range | list[Any]:
    """The values of an option: `256,512` is a list, `log:1e-4,1e-2` and `lin:0.1,0.9` are ranges."""
    hint = get_type_hints(Recipe)[name]
    kind = next((k for k in (int, float, str) if k is hint or k in get_args(hint)), str)
    words = text if isinstance(text, str) else str(text)
    scale, _, ends = words.partition(":")
    option = f"--{name.replace('_', '-')}"
    try:
        if scale in ("log", "lin") and kind is not str:
            low, high = (float(end) for end in ends.split(","))
            if not (low < high and (scale == "lin" or low > 0) and math.isfinite(high - low)):
                raise ValueError
            return Range(low, high, scale == "log", kind is int)
        found = [words] if name in _WHOLE else [part.strip() for part in words.split(",")]
        values = [kind(part) for part in found]
    except ValueError:
        raise WrongOption(
            f"{option} must be a value, several as in 256,512, or a range as in log:1e-4,1e-2 or "
            f"lin:0.1,0.9 of numbers in ascending order. Got {words}."
        ) from None
    if len(set(values)) < len(values):
        raise WrongOption(f"{option} must name each value once. Got {words}.")
    return values


@dataclass(frozen=True)
class SweepTrial:
    """One configuration with one seed: a run in trials/NAME."""

    name: str
    configuration: int  # the number of the configuration
    recipe: Recipe


@dataclass(frozen=True)
class Sweep:
    """What was asked of a sweep, and the directory it is in."""

    path: Path
    data: dict[str, Any]  # the fields of an Asked, with the share of validation rows
    given: dict[str, Any]  # every option that was given, its values as they were written
    seeds: int = 1
    draws: int = 8

    def __post_init__(self) -> None:
        integer("seeds", self.seeds)
        integer("draws", self.draws)
        within("validation", self.data.get("validation"), "(0, 1)")
        _ = self.configurations  # so that an option that does not fit is an error now

    @property
    def asked(self) -> Asked:
        """The rows of a trial."""
        return Asked(**self.data)

    @property
    def whole(self) -> Asked:
        """The data with all training rows and the test rows, as the best configuration gets them."""
        return Asked(**{name: value for name, value in self.data.items() if name != "validation"})

    @cached_property
    def configurations(self) -> list[Recipe]:
        """Every combination of the lists, each with `draws` draws of the ranges where there are ranges."""
        fixed = {n: v for n, v in self.given.items() if n in ("certified", "seed")}
        space = {n: parse(n, v) for n, v in self.given.items() if n not in fixed}
        lists = {n: v for n, v in space.items() if isinstance(v, list)}
        ranges = {n: v for n, v in space.items() if isinstance(v, Range)}
        chance = np.random.default_rng(int(fixed.get("seed", 0)))
        found: list[Recipe] = []
        for values in itertools.product(*lists.values()):
            for _ in range(self.draws if ranges else 1):
                drawn: dict[str, Any] = {name: one.draw(chance) for name, one in ranges.items()}
                recipe = Recipe(**fixed, **dict(zip(lists, values, strict=True)), **drawn)
                if recipe not in found:
                    found.append(recipe)
        return found

    @property
    def open(self) -> list[str]:
        """The options that differ between configurations."""
        first = self.configurations[0]
        names = [f.name for f in fields(Recipe)]
        return [n for n in names if any(getattr(r, n) != getattr(first, n) for r in self.configurations)]

    @cached_property
    def trials(self) -> list[SweepTrial]:
        """Every configuration with every seed."""
        width = len(str(len(self.configurations) - 1))
        return [
            SweepTrial(f"c{i:0{width}d}-s{recipe.seed + k}", i, _seeded(recipe, recipe.seed + k))
            for i, recipe in enumerate(self.configurations)
            for k in range(self.seeds)
        ]

    def run_of(self, trial: SweepTrial) -> Path:
        """The directory of a trial."""
        return self.path / "trials" / trial.name

    def save(self) -> None:
        """Begin: the directory must be absent or empty."""
        if self.path.exists() and any(self.path.iterdir()):
            raise FileExistsError(
                f"the directory of a new sweep must be absent or empty. {self.path} is not: name another, or "
                f"go on with equipoise sweep --resume {self.path}"
            )
        make_directory(self.path)
        content = {"data": self.data, "given": self.given, "seeds": self.seeds, "draws": self.draws}
        write_atomically(self.path / "sweep.json", json.dumps(content, indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> Sweep:
        """The sweep that was begun in a directory."""
        if not (path / "sweep.json").exists():
            raise WrongOption(f"there is no sweep at {path}: it holds no sweep.json.")
        found = read_json(path / "sweep.json")
        return cls(path, found["data"], found["given"], found["seeds"], found["draws"])

    def outcome(self, trial: SweepTrial) -> dict[str, Any]:
        """How a trial stands: its state, its score on the validation rows, and why it ended early."""
        asked = {name: getattr(trial.recipe, name) for name in self.open}
        found = {"trial": trial.name, "configuration": trial.configuration, "seed": trial.recipe.seed}
        found |= {"options": asked, "state": "waiting", "score": None, "steps": 0, "reason": ""}
        try:
            run = Run.open(self.run_of(trial))
        except (FileNotFoundError, NotBegun):
            return found
        status = run.status
        state = "early" if status["reason"] == EARLY else status["state"]
        results = status["results"]
        found |= {"state": state, "reason": status["reason"]}
        return found | {name: results[name] for name in ("score", "score_name", "steps") if name in results}


def _seeded(recipe: Recipe, seed: int) -> Recipe:
    return Recipe(**{**recipe.to_dict(), "seed": seed})


def ranked(outcomes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Configurations by the mean validation score of their trials, the best first.

    One that was stopped early counts with the score it had then. A configuration of which no trial was
    trained to its end, or of which one failed, cannot be chosen and stands last.
    """
    table = []
    for number, group in itertools.groupby(outcomes, key=lambda one: one["configuration"]):
        trials = list(group)
        scores = [one["score"] for one in trials if one["score"] is not None]
        eligible = len(scores) == len(trials) and any(one["state"] == "finished" for one in trials)
        mean = float(np.mean(scores)) if scores else -math.inf
        spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
        early = sum(one["state"] == "early" for one in trials)
        about = {"configuration": number, "options": trials[0]["options"], "trials": len(trials)}
        table.append(about | {"score": mean, "spread": spread, "early": early, "eligible": eligible})
    return sorted(table, key=lambda one: (not one["eligible"], -one["score"]))
