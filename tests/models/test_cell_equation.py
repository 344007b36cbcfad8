"""What a cell may hold: random masks, buffers, names; and cells that are no one map."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import equipoise as eq
from equipoise.differentiate import Method
from equipoise.models.cell_equation import CellEquation
from equipoise.solve.problem import Layout

DTYPE = torch.float64
STOP = eq.Stop(rtol=1e-12)


class DropCell(nn.Module):
    """z = a · dropout(W z) + x, a per sample: rows end at different steps and leave the batch."""

    def __init__(self, dropout: nn.Module, m: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        w = torch.randn(m, m, dtype=DTYPE)
        self.w = nn.Parameter(w / torch.linalg.matrix_norm(w, ord=2))
        self.dropout = dropout

    def forward(self, z, x, a):
        return torch.tanh(a * self.dropout(z @ self.w.T) + x)


def rates_and_inputs(n=12, m=5):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, m, dtype=DTYPE, generator=generator)
    return x, torch.linspace(0.01, 0.45, n, dtype=DTYPE)[:, None]


# -- SharedDropout --------------------------------------------------------------------------------------


def test_the_mask_is_held_by_sample_while_rows_leave_the_batch():
    torch.manual_seed(3)
    layer = eq.Equilibrium(DropCell(eq.SharedDropout(0.5)), stop=STOP, gradient=eq.Implicit(stop=STOP))
    x, a = rates_and_inputs()
    x.requires_grad_()
    z = layer(x, a)
    forward = layer.last.forward
    assert len(set(forward.steps.tolist())) > 2
    assert forward.counts.row_evaluations < forward.counts.evaluations * len(x)  # rows did leave
    mask = layer.cell.dropout.mask
    assert mask.shape == x.shape
    assert set(mask.unique().tolist()) == {0.0, 2.0}
    assert len({tuple(row) for row in mask.tolist()}) > 1  # each sample has its own

    w = layer.cell.w
    other = x.detach().clone().requires_grad_()
    want = torch.zeros_like(other)
    for _ in range(200):
        want = torch.tanh(a * (want @ w.T) * mask + other)
    torch.testing.assert_close(z, want, rtol=1e-10, atol=1e-12)
    got = torch.autograd.grad(z.square().sum(), (x, w))
    for g, h in zip(got, torch.autograd.grad(want.square().sum(), (other, w)), strict=True):
        torch.testing.assert_close(g, h, rtol=1e-9, atol=1e-11)


def test_second_derivatives_hold_the_mask_too():
    layer = eq.Equilibrium(DropCell(eq.SharedDropout(0.5)), stop=STOP, gradient=eq.Implicit(stop=STOP))
    x, a = rates_and_inputs(3)
    x.requires_grad_()
    z = layer(x, a)
    mask = layer.cell.dropout.mask.clone()
    want = torch.zeros_like(x)
    for _ in range(200):
        want = torch.tanh(a * (want @ layer.cell.w.T) * mask + x)
    layer(x, a)  # a later call draws another mask, which is not that of z
    results = []
    for value in (z, want):
        first = torch.autograd.grad(value.square().sum(), layer.cell.w, create_graph=True)[0]
        results.append(torch.autograd.grad(first.square().sum(), (x, layer.cell.w)))
    for g, h in zip(*results, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-8, atol=1e-10)


def test_each_call_draws_a_mask_and_eval_mode_none():
    layer = eq.Equilibrium(DropCell(eq.SharedDropout(0.5)))
    x, a = rates_and_inputs()
    torch.manual_seed(0)
    first = layer(x, a)
    second = layer(x, a)
    torch.manual_seed(0)
    again = layer(x, a)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    layer.eval()
    plain = eq.Equilibrium(DropCell(nn.Identity()))
    assert torch.equal(layer(x, a), plain(x, a))


@pytest.mark.parametrize("gradient", [eq.Unrolled(80), eq.Phantom(80)], ids=str)
def test_other_gradients_hold_the_mask(gradient):
    cell = DropCell(eq.SharedDropout(0.5))
    x, a = rates_and_inputs()
    torch.manual_seed(0)
    exact = torch.autograd.grad(eq.Equilibrium(cell, stop=STOP)(x, a).sum(), cell.w)[0]
    torch.manual_seed(0)
    got = torch.autograd.grad(eq.Equilibrium(cell, stop=STOP, gradient=gradient)(x, a).sum(), cell.w)[0]
    torch.testing.assert_close(got, exact, rtol=1e-7, atol=1e-9)


def test_the_mean_of_many_masks_is_one():
    torch.manual_seed(0)
    drop = eq.SharedDropout(0.3)
    h = torch.ones(200, 200)
    assert drop(h).mean() == pytest.approx(1, abs=0.02)
    assert not torch.equal(drop(h), drop(h))  # outside of a layer, a new mask every time
    assert drop.mask is None
    assert torch.equal(drop.eval()(h), h)


def test_masks_work_under_mixed_precision_and_mask_policy():
    x, a = rates_and_inputs()
    x[4, 1] = torch.nan
    cell = DropCell(eq.SharedDropout(0.5))
    layer = eq.Equilibrium(cell, stop=STOP, precision="mixed", on_failure="mask")
    z = layer(x, a)
    z.sum().backward()
    good = [i for i in range(len(x)) if i != 4]
    mask = cell.dropout.mask
    fz = torch.tanh(a * (z @ cell.w.T) * mask + x)
    torch.testing.assert_close(z[good], fz[good], rtol=1e-10, atol=1e-12)
    assert bool(torch.isfinite(cell.w.grad).all())


def test_masks_under_vmap_need_leave_to_be_random():
    layer = eq.Equilibrium(DropCell(eq.SharedDropout(0.5)))
    x, a = rates_and_inputs(4)
    z = torch.func.vmap(layer, randomness="different")(torch.stack([x, x]), torch.stack([a, a]))
    assert not torch.equal(z[0], z[1])
    assert layer.cell.dropout.mask is None
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(layer)(torch.stack([x, x]), torch.stack([a, a]))


def test_a_mask_is_not_copied_pickled_or_saved():
    layer = eq.Equilibrium(DropCell(eq.SharedDropout(0.5)))
    layer(*rates_and_inputs())
    assert layer.cell.dropout.mask is not None
    assert copy.deepcopy(layer).cell.dropout.mask is None
    assert pickle.loads(pickle.dumps(layer)).cell.dropout.mask is None
    assert list(layer.state_dict()) == ["cell.w"]


def test_misuse_of_shared_dropout():
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\). Got 1.0"):
        eq.SharedDropout(1.0)
    assert repr(eq.SharedDropout(0.3)) == "SharedDropout(p=0.3)"

    class Twice(DropCell):
        def forward(self, z, x):
            return self.dropout(0.1 * z) + self.dropout(z[:, :2]).sum(dim=1, keepdim=True) * 0.1 + x

    x, _ = rates_and_inputs()
    with pytest.raises(ValueError, match="use one SharedDropout for each place"):
        eq.Equilibrium(Twice(eq.SharedDropout(0.5)))(x)

    class Turned(DropCell):
        def forward(self, z, x):
            return self.dropout(0.1 * z.T).T + x

    with pytest.raises(ValueError, match=r"batch-first, of 12 rows\. Got shape \(5, 12\)"):
        eq.Equilibrium(Turned(eq.SharedDropout(0.5)))(x)


# -- cells that are no one map --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (nn.Dropout(0.1), r"`part` \(Dropout\) draws anew.*eq\.SharedDropout.*set its p to 0"),
        (nn.AlphaDropout(0.1), r"eq\.SharedDropout"),
        (nn.RReLU(), r"`part` \(RReLU\) draws anew.*LeakyReLU"),
        (nn.MultiheadAttention(4, 1, dropout=0.1), r"MultiheadAttention.*set its dropout to 0"),
        (nn.LSTM(4, 4, num_layers=2, dropout=0.1), r"LSTM.*set its dropout to 0"),
        (
            nn.BatchNorm1d(4),
            r"`part` \(BatchNorm1d\) mixes the samples.*nn\.GroupNorm",
        ),
        (nn.BatchNorm1d(4, track_running_stats=False), "mixes the samples"),
        (nn.SyncBatchNorm(4), "mixes the samples"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), r"`part\.1` \(Dropout\)"),
    ],
    ids=lambda p: type(p).__name__ if isinstance(p, nn.Module) else "",
)
def test_modules_that_change_or_mix_are_refused_in_training(part, message):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = part

        def forward(self, z, x):
            return 0.5 * z + x

    layer = eq.Equilibrium(Cell())
    with pytest.raises(ValueError, match=message):
        layer(torch.ones(3, 4))
    layer.eval()
    if not getattr(part, "track_running_stats", True):
        with pytest.raises(ValueError, match=message):
            layer(torch.ones(3, 4))
    else:
        layer(torch.ones(3, 4))


def test_modules_without_chance_pass():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(
                [nn.Dropout(0.0), nn.MultiheadAttention(4, 1), nn.GRU(4, 4), nn.LayerNorm(4)]
            )

        def forward(self, z, x):
            return 0.5 * z + x

    eq.Equilibrium(Cell())(torch.ones(3, 4))


@pytest.mark.parametrize("policy", ["raise", "mask"])
def test_functional_dropout_is_found_out(policy):
    torch.manual_seed(0)
    layer = eq.Equilibrium(
        lambda z, x: 0.5 * F.dropout(z, 0.5) + x, stop=eq.Stop(max_steps=30), on_failure=policy
    )
    with pytest.raises(eq.EquilibriumError, match=r"another answer each time.*\n?.*eq\.SharedDropout"):
        layer(torch.ones(4, 3))


@pytest.mark.parametrize("solver", [eq.Anderson(), eq.Picard()])
def test_chance_that_only_shows_after_the_solve_is_found_out(solver):
    calls, last = [], [math.inf]

    def f(z, x):
        calls.append(1)
        return 0.5 * z + x + (0.01 * len(calls) if len(calls) > last[0] else 0.0)  # changes once it is solved

    layer = eq.Equilibrium(f, solver=solver)
    x = torch.ones(2, 3, requires_grad=True)
    with torch.no_grad():
        layer(x)
    last[0], calls[:] = layer.last.forward.counts.evaluations - isinstance(solver, eq.Picard), []
    with pytest.raises((RuntimeError, eq.EquilibriumError), match="each time"):
        layer(x)


def test_a_buffer_that_moves_during_the_solve_is_named():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, z, x):
            self.mean.mul_(0.9).add_(0.1 * z.mean(dim=0))
            return 0.5 * z + x - 0.1 * self.mean

    with pytest.raises(RuntimeError, match=r"one map for the whole solve.* changes `mean`"):
        eq.Equilibrium(Cell())(torch.ones(2, 3))


def test_tensors_are_named_as_the_user_knows_them():
    cell = DropCell(eq.SharedDropout(0.5))
    x, a = rates_and_inputs()
    layout, masks = Layout.of(x), {cell.dropout: torch.ones_like(x)}
    equation = CellEquation(cell, layout, (x, None, a), (torch.ones(2),), Method(), x, masks)
    assert [equation.name(i) for i in range(len(equation.tensors))] == [
        "input 0",
        "input 1",
        "dropout mask",
        "shared tensor 0",
        "parameter `w`",
    ]
