"""Branch and bound on the signs of units: many parts of many samples' inputs as one batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .ascend import ascended
from .bounds import Functionals, Problem, lower_bounds
from .outputs import Wanted
from .program import programmed
from .tighten import slopes, tightened, unstable


@dataclass(frozen=True)
class Effort:
    """How much is spent on a part before it is split, and on a sample in all."""

    nodes: int = 2000  # parts of a sample
    rounds: int = 12  # of tightening at the root, at most
    gain: float = 1e-3  # a round must narrow the bounds by this share, or it is the last
    child_rounds: int = 2  # of tightening after a split
    steps: int = 20  # of ascent
    batch: int = 128  # parts that are split together


@dataclass(frozen=True)
class Parts:
    """Parts of input sets: those inputs of a sample whose pre-activations lie between bounds."""

    sample: Tensor  # (B,)
    low: Tensor  # (B, n)
    high: Tensor  # (B, n)
    wanted: Tensor  # (B, T): which inequalities are still to be shown
    worst: Tensor  # (B,): the least bound of those
    unit: Tensor  # (B,): where to split, −1 where nothing is left to split

    def take(self, rows: Tensor) -> Parts:
        """Some of them."""
        return Parts(*(getattr(self, name)[rows] for name in Parts.__dataclass_fields__))

    @staticmethod
    def joined(several: list[Parts]) -> Parts:
        """All of them."""
        return Parts(*(torch.cat([getattr(p, n) for p in several]) for n in Parts.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.sample)


@dataclass
class Search:
    """What is known of every sample, and the parts that are still open."""

    problem: Problem
    wanted: Wanted
    effort: Effort
    nodes: Tensor = field(init=False)  # (N,) parts looked at
    margin: Tensor = field(init=False)  # (N, T): the least bound at the root
    least: Tensor = field(init=False)  # (N,): the least of the bounds that closed something
    stuck: Tensor = field(init=False)  # (N,) whether a part could neither be shown nor split
    shown: Tensor = field(init=False)  # (N,) whether all of the set is shown
    last: Tensor = field(init=False)  # the samples whose parts were just split
    candidates: Tensor = field(init=False)  # (B, d): inputs where the parts just opened are worst

    def __post_init__(self) -> None:
        N = len(self.problem.injection)
        self.nodes = torch.zeros(N, dtype=torch.long)
        self.margin = torch.full((N, self.wanted.count), torch.inf, dtype=torch.float64)
        self.least = torch.full((N,), torch.inf, dtype=torch.float64)
        self.stuck, self.shown = torch.zeros(N, dtype=torch.bool), torch.zeros(N, dtype=torch.bool)

    def root(self, low: Tensor, high: Tensor) -> Parts:
        """The whole sets, tightened and bounded; those samples that are not yet shown."""
        N = len(low)
        asked = self.wanted.asked(N)
        parts = Parts(torch.arange(N), low, high, asked, low[:, 0], torch.zeros(N, dtype=torch.long))
        parts, rows, values = self.settled(parts, self.effort.rounds, steps=0)
        self.nodes += 1
        self.margin[rows[0], rows[1]] = values
        self.shown[:] = True
        self.shown[parts.sample] = False
        return parts

    def settled(self, parts: Parts, rounds: int, steps: int) -> tuple[Parts, tuple[Tensor, Tensor], Tensor]:
        """The parts that stay open after tightening and bounding; bounds by sample and inequality."""
        parts = self._narrowed(parts, rounds)
        s = slopes(self.problem.network, parts.low, parts.high)
        solver = self.problem.network.multipliers(s)
        node, target = torch.nonzero(parts.wanted, as_tuple=True)
        sample = parts.sample[node]
        what = self.wanted.functionals(self.problem, sample, target)
        nu = solver.of(node, s[node] * what.w)
        value = self._value(parts, node, what, nu)
        climbed = partial(self._climbed, solver=solver, steps=steps)
        for better in (climbed, self._programmed):
            rows = torch.nonzero(~(value > 0)).flatten()
            rows, tried = better(parts, node, what, nu, rows)
            if len(rows):
                found = self._value(parts, node[rows], what.take(rows), tried)
                won = found > value[rows]
                nu[rows[won]], value[rows[won]] = tried[won], found[won]
        closed = value > 0
        self.least.scatter_reduce_(0, sample[closed], value[closed], "amin")
        return self._open(parts, node, target, value, nu, what), (sample, target), value

    def _climbed(
        self, parts: Parts, node: Tensor, what: Functionals, nu: Tensor, rows: Tensor, **how: Any
    ) -> tuple[Tensor, Tensor]:
        """Multipliers of some rows by ascent."""
        if not how["steps"] or not len(rows):
            return rows[:0], nu[:0]
        at = node[rows]
        where = parts.sample[at], parts.low[at], parts.high[at]
        solved = how["solver"], at
        return rows, ascended(self.problem, *where, what.take(rows), nu[rows], solved, steps=how["steps"])

    def _programmed(
        self, parts: Parts, node: Tensor, what: Functionals, nu: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Multipliers of those rows in whose parts nothing is left to split, by a linear program."""
        whole = ~unstable(self.problem.network, parts.low, parts.high).any(dim=1)
        rows = rows[whole[node[rows]]] if self.problem.network.dense else rows[:0]
        tried = nu[rows]
        for k, row in enumerate(rows.tolist()):
            at = int(node[row])
            bounds = parts.low[at], parts.high[at]
            tried[k] = programmed(self.problem, int(parts.sample[at]), *bounds, what.w[row], nu[row])
        return rows, tried

    def _value(self, parts: Parts, node: Tensor, what: Functionals, nu: Tensor) -> Tensor:
        return lower_bounds(self.problem, parts.sample[node], parts.low[node], parts.high[node], what, nu)

    def _narrowed(self, parts: Parts, rounds: int) -> Parts:
        """The parts with tighter bounds, without those that hold no input."""
        working = torch.arange(len(parts))
        low, high = parts.low.clone(), parts.high.clone()
        for _ in range(rounds):
            at = low[working], high[working]
            solver = self.problem.network.multipliers(slopes(self.problem.network, *at))
            before = (at[1] - at[0]).sum(dim=1)
            tight = tightened(self.problem, parts.sample[working], *at, solver)
            low[working], high[working] = tight
            after = (tight[1] - tight[0]).sum(dim=1)
            more = (after < (1 - self.effort.gain) * before) & ~(tight[0] > tight[1]).any(dim=1)
            working = working[more]
            if not len(working):
                break
        filled = torch.nonzero(~(low > high).any(dim=1)).flatten()  # bounds that are no numbers keep a part
        return replace(parts, low=low, high=high).take(filled)

    def _open(
        self, parts: Parts, node: Tensor, target: Tensor, value: Tensor, nu: Tensor, what: Functionals
    ) -> Parts:
        """The parts with an inequality that is not shown, the worst of which says where to split."""
        wanted = parts.wanted.clone()
        wanted[node, target] = ~(value > 0)
        table = torch.full(wanted.shape, torch.inf, dtype=torch.float64)
        table[node, target] = value
        worst, which = table.min(dim=1)
        row = torch.full(wanted.shape, -1, dtype=torch.long)
        row[node, target] = torch.arange(len(node))
        rows = row[torch.arange(len(row)), which]
        g = (what.w[rows] + self.problem.network.back(nu[rows])).abs()
        low, high = parts.low, parts.high
        may = unstable(self.problem.network, low, high)
        score = torch.where(may, g * (-high * low / (high - low)), -1.0).nan_to_num(nan=0.0)
        unit = torch.where(may.any(dim=1), score.argmax(dim=1), -1)
        still = torch.nonzero(wanted.any(dim=1)).flatten()
        at = parts.sample[still]
        to = self.problem.sets.step_to(self.problem.network.onto(nu[rows[still]]), at)
        sets = self.problem.sets.take(at)
        self.candidates = sets.projected(sets.centre + to)
        return replace(parts, wanted=wanted, worst=worst, unit=unit).take(still)

    def run(self, stack: Parts, alive: Tensor) -> Iterator[Parts]:
        """Split until nothing is open, yielding the parts that each step left open.

        Parts of a sample whose `alive` (N,) is cleared in between are given up. `shown` is then true of the
        samples of which every part is closed.
        """
        while len(stack):
            stack = self._worth(stack, alive)
            if not len(stack):
                return
            at = torch.arange(len(stack))
            now, stack = stack.take(at[-self.effort.batch :]), stack.take(at[: -self.effort.batch])
            children, _, _ = self.settled(_split(now), self.effort.child_rounds, self.effort.steps)
            self.last = now.sample
            self.nodes.index_add_(0, now.sample, torch.full_like(now.sample, 2))
            yield children
            stack = Parts.joined([stack, children])
            closed = torch.ones_like(self.shown)
            closed[stack.sample] = False
            self.shown[now.sample] = closed[now.sample]

    def _worth(self, stack: Parts, alive: Tensor) -> Parts:
        """The stack without the samples that are given up: decided, beyond the limit, or stuck."""
        self.stuck[stack.sample[stack.unit < 0]] = True
        dead = ~alive | self.stuck | (self.nodes >= self.effort.nodes)
        return stack.take(torch.nonzero(~dead[stack.sample]).flatten())


def _split(parts: Parts) -> Parts:
    """Both signs of the unit of each part."""
    at = torch.arange(len(parts))
    high, low = parts.high.clone(), parts.low.clone()
    high[at, parts.unit], low[at, parts.unit] = 0.0, 0.0
    return Parts.joined([replace(parts, high=high), replace(parts, low=low)])
