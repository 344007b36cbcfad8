"""The looped transformer of docs/examples: what it sees, when it stops, and how good its gradient is."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import equipoise as eq

FILE = Path(__file__).parent.parent / "docs" / "examples" / "looped.py"
_spec = importlib.util.spec_from_file_location("looped", FILE)
looped = importlib.util.module_from_spec(_spec)
sys.modules["looped"] = looped
_spec.loader.exec_module(looped)

TIGHT = eq.Stop(rtol=1e-10, max_steps=500)


def layer(causal):
    torch.manual_seed(0)
    return eq.Equilibrium(
        looped.Block(8, heads=2, causal=causal).double().eval(), solver=eq.Picard(), stop=TIGHT
    )


@pytest.fixture
def sequences():
    x = torch.randn(3, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(6).expand(3, 6) >= torch.tensor([6, 4, 2])[:, None]


@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_nothing_and_is_zero(causal, sequences):
    block, (x, padded) = layer(causal), sequences
    z = block(x, padded)
    other = torch.where(padded[..., None], 100.0, x)  # what stands where nothing is
    torch.testing.assert_close(block(other, padded), z, rtol=0, atol=1e-8)
    assert (z[padded] == 0).all()
    for row, length in enumerate((6, 4, 2)):
        alone = block(x[row : row + 1, :length], padded[row : row + 1, :length])
        torch.testing.assert_close(alone[0], z[row, :length], rtol=0, atol=1e-8)


def test_a_causal_block_does_not_see_what_comes_later(sequences):
    x, _ = sequences
    none = torch.zeros(3, 6, dtype=torch.bool)
    later = x.clone()
    later[:, 4:] += 1.0
    for causal in (True, False):
        one, two = (layer(causal)(t, none)[:, :4].detach() for t in (x, later))
        assert (float((one - two).abs().max()) < 1e-8) == causal


def test_every_puzzle_has_one_solution_and_no_grid_is_in_both_parts():
    asked, solved, new, answers = looped.data(400, 100)
    every = looped.grids()
    assert len(every) == 288
    for puzzles, solutions in ((asked, solved), (new, answers)):
        fits = ((puzzles[:, None] == 0) | (puzzles[:, None] == every + 1)).all(2)
        assert (fits.sum(1) == 1).all()
        assert torch.equal(every[fits.float().argmax(1)], solutions)
    assert not {tuple(row) for row in solved.tolist()} & {tuple(row) for row in answers.tolist()}


def test_each_puzzle_stops_by_itself_at_the_answer_of_the_loop():
    """The loop goes on until its worst puzzle has settled; the layer evaluates each as often as it needs."""
    _, _, new, answers = looped.data(10, 100)
    torch.manual_seed(0)
    model = looped.Solver(16, loop="batch maximum")
    with torch.no_grad():
        model.block.cell.share = 0.8  # a map that is slow for some puzzles
    scores = model(new)[0]
    by_hand = looped.evaluate(model, new, answers)
    model.loop = "each sample"
    each = looped.evaluate(model, new, answers)
    steps = model.block.last.forward.steps
    assert steps.min() < steps.max()
    assert model.block.last.forward.converged.all()
    assert steps.sum() < by_hand[2]
    assert each[2] <= by_hand[2] + len(new)  # rows that have ended leave the batch only where that pays
    assert (model(new)[0] - scores).abs().max() < 20 * looped.SETTLED * scores.abs().max()


ROW = re.compile(r"^((?:batch|each)\D*?) +(\de-\d\d) +(.*?)  +(.*?)  +(.*?)  +(.*?)  +(\d) of (\d)$", re.M)


def numbers(printed):
    """The mean and the standard error of a cell such as 83.1 ± 2.0."""
    return [float(part) for part in printed.split(" ± ")]


def test_the_command_prints_the_rows_of_the_page_for_each_seed_and_their_means(monkeypatch, capsys):
    small = looped.data(40, 20)
    monkeypatch.setattr(looped, "data", lambda: small)
    looped.over_seeds([0, 1], steps=1)
    parts = re.split(r"^(?:seed|2 seeds).*\n", capsys.readouterr().out, flags=re.M)[1:]
    one, own_one, two, own_two, means, own = ([*map(list, ROW.findall(part))] for part in parts)
    page = (FILE.parents[1] / "how-to" / "looped.md").read_text()
    table = re.findall(r"^\| ((?:batch|each)[^|]*) \| (\de-\d) \|", page, re.M)
    assert [(name, float(tolerance)) for name, tolerance in table] == [
        (r[0], float(r[1])) for r in [*means, *own]
    ]
    for ways in ((one, two, means), (own_one, own_two, own)):
        loops = [numbers(row[5])[0] for row in (ways[0][0], ways[1][0])]
        for first, second, mean in zip(*ways, strict=True):
            for at in (2, 3, 4, 5):
                a, b = numbers(first[at])[0], numbers(second[at])[0]
                assert numbers(mean[at]) == pytest.approx([(a + b) / 2, abs(a - b) / 2], abs=0.11)
            used = [numbers(row[5])[0] for row in (first, second)]
            assert int(mean[6]) == sum(a < b for a, b in zip(used, loops, strict=True))


def test_the_distance_of_the_start_trains_the_start_alone():
    _, _, new, _ = looped.data(10, 20)
    torch.manual_seed(0)
    model = looped.Solver(16, loop="each sample, learned start")
    before = model(new)[1]
    parts = torch.autograd.grad(before, [*model.begin.parameters()], retain_graph=True)
    inside = torch.autograd.grad(before, [*model.block.parameters()], allow_unused=True)
    assert all(part is None for part in inside)
    with torch.no_grad():
        for p, g in zip(model.begin.parameters(), parts, strict=True):
            p -= 0.1 * g / g.norm()
    assert model(new)[1] < before


def test_the_one_step_gradient_is_off_by_what_the_map_contracts():
    """Phantom(k) leaves out powers of the Jacobian from the k-th on: its error falls with k."""
    x = torch.randn(4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    none, block = torch.zeros(4, 6, dtype=torch.bool), layer(False)

    def gradient(kind):
        z = block(x, none, gradient=kind)
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(z.square().sum(), list(block.parameters()))]
        )

    exact = gradient(eq.Implicit(stop=TIGHT))
    errors = [float((gradient(eq.Phantom(k)) - exact).norm() / exact.norm()) for k in (1, 4, 16)]
    assert 0.05 < errors[0] < 1
    assert errors[1] < 0.5 * errors[0]
    assert errors[2] < 0.1 * errors[1]
