"""z = tanh(W z + U x + b), ŷ = V z: an equilibrium network on handwritten digits, in a minute.

    python -m equipoise.demo

solves, differentiates, audits, trains and diagnoses it. The exit code is 0 when everything shown holds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.padding import Padding
from rich.progress import Progress
from rich.text import Text
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from .data import load
from .differentiate.audit import audit
from .differentiate.regularise import jacobian_penalty, spectral_radius_penalty
from .models import Equilibrium
from .models.diagnose import diagnose
from .solve import EquilibriumError, Stop

WIDTH = 64
BATCH = 128
RATE = 1e-2  # Adam's
PENALTY = 0.1
ACCURACY = 0.9  # on images not trained on; a linear classifier gets about 0.95


class Cell(nn.Module):
    """z ↦ tanh(W z + U x + b), with ‖W‖ held near 0.8, so that it contracts."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.W = spectral_norm(nn.Linear(width, width, bias=False))
        self.U = nn.Linear(inputs, width)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(0.8 * self.W(z) + self.U(x))


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1797 images of 8 × 8 as rows of 64 numbers in [0, 1], from scikit-learn: training, then test."""
    data = load("digits")
    x_train, x_test = (torch.from_numpy(x).flatten(1).float() / 16 for x in (data.x_train, data.x_test))
    return x_train, torch.from_numpy(data.y_train), x_test, torch.from_numpy(data.y_test)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m equipoise.demo", description="An equilibrium network.")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the training images (default 6)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default 0)")
    options = parser.parse_args(argv)
    if options.epochs < 1:
        parser.error(f"--epochs must be ≥ 1. Got {options.epochs} instead.")
    torch.manual_seed(options.seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are small: threads would wait for each other
    try:
        return _show(Console(highlight=False), options.epochs)
    finally:
        torch.set_num_threads(threads)


def _show(console: Console, epochs: int) -> int:
    begin = time.perf_counter()
    x, y, x_test, y_test = digits()
    layer, readout = Equilibrium(Cell(x.shape[1], WIDTH), state=(WIDTH,)), nn.Linear(WIDTH, 10)

    _heading(console, "An equilibrium network on handwritten digits")
    console.print(
        f"One layer, whose output is the state that it leaves alone: [bold]z = tanh(W z + U x + b)[/]. It is "
        f"a network of any depth with the parameters of one layer. ‖W‖ is held near 0.8, so that the layer "
        f"contracts. {len(x)} images to train on, {len(x_test)} to test."
    )
    solved = _solve(console, layer, x)
    exact = _audit(console, layer, x)
    accuracy = _train(console, layer, readout, (x, y), (x_test, y_test), epochs)

    _heading(console, "4. Diagnose what came out of training")
    diagnosis = diagnose(layer, x_test[:BATCH])
    console.print(diagnosis)

    right = f"{accuracy:.1%} of the test images are read correctly; {ACCURACY:.0%} were asked for"
    checks = {
        "every image had its equilibrium before training": solved,
        "the layer's gradient agreed with finite differences": exact,
        right: accuracy >= ACCURACY,
        "after training the layer converges still, and its gradient is still right": diagnosis.ok,
    }
    _heading(console, f"What this showed, in {time.perf_counter() - begin:.0f} s")
    for what, holds in checks.items():
        console.print(Text.assemble((" ✓ ", "green") if holds else (" ✗ ", "bold red"), what))
    return 0 if all(checks.values()) else 1


def _solve(console: Console, layer: Equilibrium, x: Tensor) -> bool:
    _heading(console, "1. Solve, and know it")
    solution = layer.solve(x)
    console.print(
        f"Each image has a stopping test of its own, on the true residual ‖f(z) − z‖. "
        f"{int(solution.converged.sum())} of {len(x)} converged, in at most {int(solution.steps.max())} "
        f"steps, to a relative residual of {float(solution.relative_residual.max()):.0e} or less. Given too "
        f"few steps, the layer does not pretend:\n"
    )
    hasty = Equilibrium(layer.cell, state=(WIDTH,), stop=Stop(max_steps=2))
    try:
        hasty(x[:BATCH])
    except EquilibriumError as error:
        for line in [*str(error).splitlines()[:2], "…"]:
            console.print(Padding(Text(line.strip(), "yellow"), (0, 0, 0, 2)))
    return not solution.failed_rows


def _audit(console: Console, layer: Equilibrium, x: Tensor) -> bool:
    _heading(console, "2. Differentiate, and check it")
    console.print(
        "The exact gradient comes from the equilibrium alone, by one linear solve (Implicit): no iterate is "
        "stored. Beside it stand unrolling, which stores all iterates, and the cheap gradient through the "
        "last few steps only (Phantom), which is not exact.\n"
    )
    found = audit(layer, x[:8], samples=4)
    console.print(found)
    return found.ok()


def _train(
    console: Console,
    layer: Equilibrium,
    readout: nn.Linear,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    epochs: int,
) -> float:
    """The accuracy on the test images after `epochs` of Adam."""
    _heading(console, "3. Train, and keep it contracting")
    console.print(
        f"The loss is the cross-entropy plus {PENALTY} times an estimate of ‖∂f/∂z‖² at the equilibrium, "
        f"which keeps the solves short.\n"
    )
    (x, y), (x_test, y_test) = train, test
    optimiser = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=RATE)
    accuracy = 0.0
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("training", total=epochs * -(-len(x) // BATCH))
        for epoch in range(1, epochs + 1):
            total = 0.0
            for rows in torch.randperm(len(x)).split(BATCH):
                z = layer(x[rows])
                loss = nn.functional.cross_entropy(readout(z), y[rows])
                optimiser.zero_grad()
                (loss + PENALTY * jacobian_penalty(layer, x[rows], z=z)).backward()
                optimiser.step()
                total += loss.item() * len(rows)
                progress.advance(bar)
            with torch.no_grad():
                z = layer(x_test)
                accuracy = (readout(z).argmax(dim=1) == y_test).double().mean().item()
                radius = spectral_radius_penalty(layer, x_test, z=z).item()
            solution = layer.last.forward
            assert solution is not None
            progress.console.print(
                f"  epoch {epoch}   loss {total / len(x):.3f}   test accuracy {accuracy:.1%}   "
                f"steps ≤ {int(solution.steps.max())}   ρ(∂f/∂z) ≈ {radius:.2f}"
            )
    return accuracy


def _heading(console: Console, title: str) -> None:
    console.print()
    console.rule(Text(title, "bold"), align="left", style="dim")


if __name__ == "__main__":
    sys.exit(main())
