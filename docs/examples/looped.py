"""A looped transformer that solves 4×4 Sudoku: one block, applied until each puzzle has settled.

    python docs/examples/looped.py

trains the same network three times on one core, a minute each: in a loop written by hand that goes on until
the worst puzzle of a batch has settled, as an equilibrium layer in which each puzzle stops by itself, and the
same with a start that learns to lie near the equilibrium. It prints accuracies and evaluations of the block,
and the error of the one-step gradient. Then it tests the first network with both ways to stop.

    python docs/examples/looped.py --seeds 0 1 2 3 4

trains two networks for each seed from the same start, one in the loop and one as a layer, for 400 steps. It
stops the first in several ways on 1,000 new puzzles, and each in the way in which it was trained, and prints
what they reach: for each seed, and the means over the seeds with their standard errors. docs/how-to/looped.md
has the tables, and says what to make of them.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm
from torch.nn.utils.parametrizations import spectral_norm

import equipoise as eq

Loop = Literal["batch maximum", "each sample", "each sample, learned start"]
SETTLED, MOST, BATCH = 1e-2, 60, 128  # a relative residual, evaluations, puzzles
Way: TypeAlias = tuple[Loop, float, Any]  # of stopping: by what, its tolerance, and the solver
Reached: TypeAlias = tuple[float, float, float]  # right cells and solved puzzles in %, evaluations a puzzle
WAYS: tuple[Way, ...] = (
    ("batch maximum", 1e-2, eq.Picard()),
    ("batch maximum", 1e-3, eq.Picard()),
    ("each sample", 1e-2, eq.Picard()),
    ("each sample", 3e-3, eq.Picard()),
    ("each sample", 1e-3, eq.Picard()),
    ("each sample", 1e-3, eq.Anderson()),
)
TRAINED: tuple[Way, ...] = (WAYS[0], WAYS[-1])  # the loop, and the layer that is trained beside it


class Block(nn.Module):
    """f(z, x) = x + s·attention(z) + s·mlp(z), with matrices of norm 1 and keys of norm below 1.

    z and x are (N, T, d), `padded` (N, T) is true where a sequence has no token. A causal block lets each
    token see those before it only. For small s the map contracts, whatever training does.
    """

    def __init__(self, width: int, heads: int = 4, share: float = 0.4, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.share, self.causal = heads, share, causal
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.value, self.out = spectral_norm(nn.Linear(width, width)), spectral_norm(nn.Linear(width, width))
        self.up, self.down = (spectral_norm(nn.Linear(*s)) for s in ((width, 2 * width), (2 * width, width)))

    def forward(self, z: Tensor, x: Tensor, padded: Tensor) -> Tensor:
        """One step of the loop."""
        N, T, d = z.shape

        def heads(t: Tensor) -> Tensor:
            return t.view(N, T, self.heads, -1).transpose(1, 2)

        q, k = (
            t / (1 + t.square().sum(-1, keepdim=True)).sqrt()
            for t in map(heads, (self.query(z), self.key(z)))
        )
        hidden = padded[:, None, None, :]
        if self.causal:
            hidden = hidden | torch.ones(T, T, dtype=torch.bool, device=z.device).triu(1)
        weights = (8 * q @ k.transpose(2, 3)).masked_fill(hidden, -1e9).softmax(-1)
        seen = self.out((weights @ heads(self.value(z))).transpose(1, 2).reshape(N, T, d))
        return (x + self.share * (seen + self.down(torch.relu(self.up(z))))).masked_fill(
            padded[..., None], 0.0
        )


class Solver(nn.Module):
    """Digits in, digits out: an embedding, the looped block, and a linear readout of each cell."""

    def __init__(self, width: int = 48, loop: Loop = "each sample") -> None:
        super().__init__()
        self.loop, self.evaluations = loop, 0
        self.digit, self.place = nn.Embedding(5, width), nn.Embedding(12, width)
        self.block = eq.Equilibrium(
            Block(width),
            gradient=eq.Phantom(1),
            solver=eq.Picard(),
            stop=eq.Stop(rtol=SETTLED, max_steps=MOST),
            on_failure="accept",
        )
        self.begin = nn.Linear(width, width)
        self.read = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4))

    def embed(self, puzzles: Tensor) -> Tensor:
        """x (N, 16, d): a cell knows its digit, its row, its column and its box."""
        at = torch.arange(16)
        places = torch.stack([at // 4, 4 + at % 4, 8 + at // 8 * 2 + at % 4 // 2])
        x = self.digit(puzzles) + self.place(places).sum(0)
        return 3 * layer_norm(x, x.shape[-1:])

    def forward(self, puzzles: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (N, 16, 4) of the digits, and the distance of the start from the equilibrium."""
        x, padded = self.embed(puzzles), torch.zeros(puzzles.shape, dtype=torch.bool)
        if self.loop == "batch maximum":
            z = self._by_hand(x, padded)
            return self.read(z), z.new_zeros(())
        start = x + self.begin(x) if "learned" in self.loop else torch.zeros_like(x)
        z = self.block(x, padded, start=start)
        self.evaluations += self.block.last.forward.counts.row_evaluations
        return self.read(z), (start - z.detach()).square().sum((1, 2)).div(
            z.detach().square().sum((1, 2))
        ).mean()

    def _by_hand(self, x: Tensor, padded: Tensor) -> Tensor:
        """What looped models are usually written as: all puzzles go on until the last has settled."""
        block, z = self.block.cell, torch.zeros_like(x)
        with torch.no_grad():
            block.eval()  # the norms of the weights are estimated once a step, as by the layer
            for _ in range(MOST):
                before, z = z, block(z, x, padded)
                self.evaluations += len(x)
                settled = self.block.stop.rtol * z.flatten(1).norm(dim=1)
                if ((z - before).flatten(1).norm(dim=1) <= settled).all():
                    break
            block.train(self.training)
        return block(z, x, padded)  # the step that is differentiated


@functools.cache
def grids() -> Tensor:
    """All 288 filled grids, (288, 16), digits 0 to 3."""
    rows, found = list(itertools.permutations(range(4))), []
    for four in itertools.product(rows, repeat=4):
        boxes = [{*four[i][j : j + 2], *four[i + 1][j : j + 2]} for i in (0, 2) for j in (0, 2)]
        if all(len(box) == 4 for box in boxes) and all(
            len({*column}) == 4 for column in zip(*four, strict=True)
        ):
            found.append([digit for row in four for digit in row])
    return torch.tensor(found)


def puzzles(all_grids: Tensor, of: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Puzzles of 4 to 8 clues with one solution: (digits 1 to 4, or 0 where to fill in; the solution)."""
    asked, solved = [], []
    while sum(map(len, asked)) < count:
        grid = all_grids[of[torch.randint(len(of), (2048,), generator=generator)]]
        clues = torch.randint(4, 9, (2048, 1), generator=generator)
        shown = torch.rand(2048, 16, generator=generator).argsort(1) < clues
        one = ((grid[:, None] == all_grids) | ~shown[:, None]).all(2).sum(1) == 1
        asked.append(torch.where(shown, grid + 1, 0)[one])
        solved.append(grid[one])
    return torch.cat(asked)[:count], torch.cat(solved)[:count]


def data(rows: int = 20_000, held_out: int = 1_000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Puzzles to train on, and puzzles of other grids to test on."""
    generator = torch.Generator().manual_seed(0)
    every = grids()
    order = torch.randperm(len(every), generator=generator)
    train, test = (
        puzzles(every, of, n, generator) for of, n in ((order[:232], rows), (order[232:], held_out))
    )
    return *train, *test


def train(model: Solver, asked: Tensor, solved: Tensor, steps: int, batch: int = BATCH) -> int:
    """Train in place; returns how often the block was evaluated for a puzzle, without gradients."""
    generator = torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=steps)
    model.train()
    model.evaluations = 0
    for _ in range(steps):
        rows = torch.randint(len(asked), (batch,), generator=generator)
        scores, distance = model(asked[rows])
        loss = cross_entropy(scores.flatten(0, 1), solved[rows].flatten()) + 0.1 * distance
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.evaluations


@torch.no_grad()
def evaluate(model: Solver, asked: Tensor, solved: Tensor) -> tuple[float, float, int]:
    """The share of blank cells that are right, that of puzzles solved, and evaluations of the block."""
    model.eval()
    model.evaluations = 0
    right = torch.cat([model(part)[0].argmax(2) for part in asked.split(BATCH)]) == solved
    return right[asked == 0].float().mean().item(), right.all(1).float().mean().item(), model.evaluations


def one_step_error(model: Solver, asked: Tensor, solved: Tensor) -> tuple[float, float]:
    """‖g₁ − g‖/‖g‖ and the cosine between the one-step gradient g₁ and the exact one, g, of the block."""
    found = []
    for gradient in (eq.Phantom(1), eq.Implicit()):
        x = model.embed(asked).detach()
        z = model.block(
            x, torch.zeros(asked.shape, dtype=torch.bool), gradient=gradient, stop=eq.Stop(rtol=1e-4)
        )
        loss = cross_entropy(model.read(z).flatten(0, 1), solved.flatten())
        parts = torch.autograd.grad(loss, list(model.block.parameters()))
        found.append(torch.cat([part.flatten() for part in parts]))
    cheap, exact = found
    return float((cheap - exact).norm() / exact.norm()), float(torch.cosine_similarity(cheap, exact, dim=0))


def stop_by(model: Solver, way: Way) -> Solver:
    """The same network, which now stops in this way."""
    model.loop, tolerance, model.block.solver = way
    model.block.stop = eq.Stop(rtol=tolerance, max_steps=MOST)
    return model


def reached(model: Solver, ways: Sequence[Way], asked: Tensor, solved: Tensor) -> list[Reached]:
    """What one network reaches in each way to stop."""
    found = (evaluate(stop_by(model, way), asked, solved) for way in ways)
    return [(100 * cells, 100 * whole, used / len(asked)) for cells, whole, used in found]


def show(ways: Sequence[Way], rows: Sequence[Sequence[Reached]]) -> None:
    """Print for each way means over networks, their standard errors, and the differences from the first."""
    n = len(rows)

    def mean(values: Iterable[float], sign: str = "") -> str:
        each = list(values)
        error = f" ± {statistics.stdev(each) / n**0.5:.1f}" if n > 1 else ""
        return f"{statistics.fmean(each):{sign}.1f}{error}"

    form = "{:24} {:>9} {:>13} {:>14} {:>13} {:>13} {:>8}"
    print(
        form.format("stops by", "tolerance", "cells, %", "than the loop", "solved, %", "evaluations", "fewer")
    )
    by_way = list(zip(*rows, strict=True))
    for (loop, tolerance, solver), found in zip(ways, by_way, strict=True):
        name = f"{loop}, Anderson" if isinstance(solver, eq.Anderson) else loop
        more = mean((a[0] - b[0] for a, b in zip(found, by_way[0], strict=True)), "+")
        fewer = sum(a[2] < b[2] for a, b in zip(found, by_way[0], strict=True))
        cells, whole, used = (mean(column) for column in zip(*found, strict=True))
        print(form.format(name, f"{tolerance:.0e}", cells, more, whole, used, f"{fewer} of {n}"), flush=True)


def over_seeds(seeds: Sequence[int], steps: int = 400) -> None:
    """Train a network in the loop and one as a layer for each seed, and print what they reach."""
    torch.set_num_threads(1)
    asked, solved, new, answers = data()
    one: list[list[Reached]] = []  # the network of the loop, stopped in each of WAYS
    both: list[list[Reached]] = []  # both networks, each stopped as it was trained
    spent: list[list[float]] = []  # evaluations of the block for each puzzle of a step of training
    for seed in seeds:
        both.append([])
        spent.append([])
        for way in TRAINED:
            torch.manual_seed(seed)
            model = stop_by(Solver(), way)
            spent[-1].append(train(model, asked, solved, steps) / steps / BATCH)
            both[-1] += reached(model, [way], new, answers)
            if way is TRAINED[0]:
                one.append(reached(model, WAYS, new, answers))
        _told(f"seed {seed}", one[-1:], both[-1:], spent[-1:])
    if len(seeds) > 1:
        _told(f"{len(seeds)} seeds, mean ± standard error", one, both, spent)


def _told(what: str, one: list[list[Reached]], both: list[list[Reached]], spent: list[list[float]]) -> None:
    print(f"{what}: the network that was trained in the loop, stopped in each way")
    show(WAYS, one)
    print(f"{what}: two networks, each stopped as it was trained")
    show(TRAINED, both)
    loop, layer = (statistics.fmean(column) for column in zip(*spent, strict=True))
    print(f"evaluations for each puzzle of a step of training: {loop:.1f} and {layer:.1f}\n", flush=True)


def main(steps: int = 600) -> None:
    """Train the three, side by side, and print what came of it."""
    torch.set_num_threads(1)
    asked, solved, new, answers = data()
    loops: tuple[Loop, ...] = ("batch maximum", "each sample", "each sample, learned start")
    print(f"{'stops by':28} {'cells':>7} {'solved':>7} {'in training':>12} {'in testing':>11}")
    trained = {}
    for loop in loops:
        torch.manual_seed(0)
        model = trained[loop] = Solver(loop=loop)
        spent = train(model, asked, solved, steps)
        cells, whole, used = evaluate(model, new, answers)
        print(
            f"{loop:28} {cells:7.3f} {whole:7.3f} {spent / steps / 128:12.2f} {used / len(new):11.2f}",
            flush=True,
        )
    error, cosine = one_step_error(model, new[:200], answers[:200])
    print(f"one-step gradient: relative error {error:.3f}, cosine {cosine:.4f}")
    show(WAYS, [reached(trained["batch maximum"], WAYS, new, answers)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", help="print what networks of these seeds reach")
    given = parser.parse_args()
    main() if given.seeds is None else over_seeds(given.seeds)
