"""audit: right gradients pass, wrong ones are found, and the layer is left as it was."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from equipoise import Anderson, Equilibrium, EquilibriumError, Implicit, Phantom, Picard, SharedDropout, Stop
from equipoise.differentiate import Unrolled
from equipoise.models.audit import Audit, AuditRow, audit


class Cell(nn.Module):
    """σ(W z + U x + b) with ‖W‖ = q."""

    def __init__(self, m: int = 6, d: int = 4, q: float = 0.7, act=torch.tanh, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        w, u, b = (torch.randn(*shape, generator=generator) for shape in ((m, m), (m, d), (m,)))
        self.W = nn.Parameter(w * q / torch.linalg.matrix_norm(w, ord=2))
        self.U = nn.Parameter(u / d**0.5)
        self.b = nn.Parameter(b / 2)
        self.act = act

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.act(z @ self.W.T + x @ self.U.T + self.b)


def inputs(n: int = 5, d: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Wrong(Implicit):
    """The exact gradient, but for one tensor whose gradient is scaled."""

    tensor: int = 0
    factor: float = 1.01

    def attach(self, equation, z, tensors, record):
        bent = list(tensors)
        t = tensors[self.tensor]
        bent[self.tensor] = self.factor * t + (1 - self.factor) * t.detach()
        return super().attach(equation, z, bent, record)


def test_exact_modes_agree_with_finite_differences_and_phantom_does_not():
    found = audit(Equilibrium(Cell(), state=(6,)), inputs())
    error = {(r.mode, r.tensor): r.error for r in found.rows}
    assert {r.tensor for r in found.rows} == {"cell.W", "cell.U", "cell.b", "x"}
    assert found.own == "Implicit"
    for tensor in ("cell.W", "cell.U", "cell.b", "x"):
        assert error["Implicit", tensor] < 1e-7
        assert error["Unrolled(200)", tensor] < 1e-7
        assert 1e-3 < error["Phantom(5)", tensor] < error["Phantom(1)", tensor] < 1
    assert found.ok(1e-7)
    assert found.worst.mode == "Implicit"
    assert all(r.kinks == 0 and 0.8 < r.cosine <= 1 for r in found.rows)
    small = next(r for r in found.rows if r.tensor == "cell.b")
    assert (small.compared, small.shape) == (6, (6,))  # all of a small tensor
    assert all(r.compared == 12 for r in found.rows if r.tensor in ("cell.W", "x"))


@pytest.mark.parametrize(("index", "name"), [(0, "x"), (1, "cell.W"), (2, "cell.U"), (3, "cell.b")])
def test_a_wrong_gradient_is_found_and_named(index, name):
    layer = Equilibrium(Cell(), state=(6,), gradient=Wrong(tensor=index))
    found = audit(layer, inputs(), samples=3, modes=[])
    assert not found.ok(1e-3)
    assert (found.worst.mode, found.worst.tensor) == ("Wrong", name)
    assert found.worst.error == pytest.approx(0.01, rel=1e-4)
    assert all(r.error < 1e-7 for r in found.rows if r.mode == "Wrong" and r.tensor != name)
    assert not audit(Equilibrium(Cell(), state=(6,)), inputs(), samples=1, modes=[Wrong(tensor=index)]).ok()


def test_a_gradient_that_should_vanish_is_found_however_small_the_true_one():
    class Idle(Cell):
        def forward(self, z, x):
            return super().forward(z, x) + 0 * self.idle

    cell = Idle()
    cell.idle = nn.Parameter(torch.zeros(6))
    good = audit(Equilibrium(cell, state=(6,)), inputs(), modes=[], samples=3)
    idle = next(r for r in good.rows if r.tensor == "cell.idle")
    assert idle.error == 0
    assert math.isnan(idle.cosine)
    assert good.ok()

    @dataclass(frozen=True)
    class Leaky(Implicit):
        def attach(self, equation, z, tensors, record):
            out = super().attach(equation, z, tensors, record)
            idle = tensors[equation.batched + equation.names.index("idle")]
            return out + 1e-3 * (idle - idle.detach())

    bad = audit(Equilibrium(cell, state=(6,), gradient=Leaky()), inputs(), modes=[], samples=3)
    assert bad.worst.tensor == "cell.idle"
    assert bad.worst.error == pytest.approx(1, rel=1e-6)


def test_kinks_are_counted_and_left_out():
    class Hinge(nn.Module):  # z = |θ| + x z / 2: a kink at θ = 0, where central differences agree on 0
        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Parameter(torch.tensor([0.3, 0.0, 2e-5, 1e-4 / 3, -1.0]))

        def forward(self, z, x):
            return self.theta.abs() + 0.5 * x * z

    x = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    found = audit(Equilibrium(Hinge()), x, modes=[])
    row = next(r for r in found.rows if r.tensor == "cell.theta")
    assert (row.compared, row.kinks) == (2, 3)
    assert found.ok(1e-7)
    assert "3 kinks" in str(found)


def test_relu_cells_pass():
    assert audit(Equilibrium(Cell(act=torch.relu, m=10), state=(10,)), inputs(), modes=[]).ok(1e-7)


def test_curved_functions_are_differenced_to_fourth_order():
    class Wave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Parameter(torch.tensor([0.3, 0.4]))

        def forward(self, x, *, stop):
            return torch.sin(50 * self.theta) * x

    assert audit(Wave(), inputs(d=2)).ok(1e-8)


def test_parametrised_weights_in_training_are_held():
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = spectral_norm(nn.Linear(4, 4))

        def forward(self, z, x):
            return torch.tanh(0.8 * self.inner(z)) + x

    torch.manual_seed(0)
    layer = Equilibrium(Spectral()).train()
    with torch.no_grad():
        layer.cell.inner.parametrizations.weight.original.normal_()  # the power iteration is far behind
    found = audit(layer, inputs(), samples=4, modes=[])
    assert found.ok(1e-7)
    assert "cell.inner.weight" in str(found)


def test_a_tensor_of_kinks_only_is_not_ok():
    class Corner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Parameter(torch.zeros(4))

        def forward(self, z, x):
            return self.theta.abs() + 0.5 * z + x

    found = audit(Equilibrium(Corner()), inputs(), modes=[])
    assert not found.ok()
    assert found.worst.tensor == "cell.theta"
    assert found.worst.compared == 0
    assert "not known" in str(found)


def test_the_layer_is_left_as_it_was():
    layer = Equilibrium(Cell(), state=(6,), gradient=Phantom(2), stop=Stop(rtol=1e-3), on_failure="mask")
    layer.eval()
    layer.cell.train()
    x = inputs().requires_grad_()
    layer(x).sum().backward()
    grads = [p.grad.clone() for p in (*layer.parameters(), x)]
    weights, last, method = copy.deepcopy(layer.state_dict()), layer.last.forward.value, layer.method
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with torch.no_grad():
        found = audit(layer, x, samples=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, (*layer.parameters(), x), strict=True))
    assert all(torch.equal(a, weights[n]) for n, a in layer.state_dict().items())
    assert torch.equal(layer.last.forward.value, last)
    assert layer.method is method
    assert layer.gradient == Phantom(2)
    assert not layer.training
    assert layer.cell.training
    assert layer.cell.W.dtype == torch.float32
    assert found.own == "Phantom(2)"
    assert not found.ok()  # the layer's own gradient is asked to be exact, whatever it is


def test_the_seed_settles_everything():
    layer, x = Equilibrium(Cell(), state=(6,)), inputs()
    assert str(audit(layer, x, samples=1, seed=1)) == str(audit(layer, x, samples=1, seed=1))
    assert audit(layer, x, samples=1, seed=1) != audit(layer, x, samples=1, seed=2)


def test_masks_are_held_tuple_states_frozen_parameters_and_further_inputs():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Cell(m=4)
            self.inner.U.requires_grad_(False)
            self.drop = SharedDropout(0.4)

        def forward(self, z, x, keep, scale):
            a, b = z
            a = self.inner(self.drop(a), x) * keep[:, None]
            return a, 0.4 * torch.sin(b * scale + a)

    layer = Equilibrium(Pair(), state=[(4,), (4,)])
    keep = torch.tensor([True, True, False, True, True])
    audits = []
    for state in (1, 2):
        torch.manual_seed(state)
        audits.append(audit(layer, inputs(), keep, shared=(torch.tensor(0.8),), samples=4, modes=[]))
    found, again = audits
    assert found == again  # whatever the global random state
    assert {r.tensor for r in found.rows} == {"cell.inner.W", "cell.inner.b", "x", "shared[0]"}
    assert found.ok(1e-7)


def test_a_layer_inside_a_network_and_tokens_as_input():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Embedding(7, 4),
        Equilibrium(Cell(), state=(6,)),
        Equilibrium(Cell(d=6), state=(6,)),
        nn.Linear(6, 2),
    )
    found = audit(network, torch.tensor([0, 3]), samples=1, modes=[])
    assert {r.tensor for r in found.rows} == {n for n, _ in network.named_parameters()}
    assert found.ok(1e-7)
    network[2].gradient = Wrong(tensor=1)
    again = audit(network, torch.tensor([0, 3]), samples=1, modes=[])
    assert again.own == "Implicit and Wrong"
    assert again.worst.tensor == "2.cell.W"


def test_a_model_that_takes_a_stop_has_one_gradient():
    class Family(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([0.5, 0.2]))

        def forward(self, x, *, stop):
            assert stop.rtol == 1e-13
            return x / (1 - self.w)

    found = audit(Family(), inputs(d=2))
    assert found.ok(1e-8)
    assert found.own == "its own"
    with pytest.raises(ValueError, match="one gradient only"):
        audit(Family(), inputs(d=2), modes=[Implicit()])


def test_a_layer_with_a_solver_that_fits_it_badly():
    """Picard cycles on ‖W‖ > 1 with negative eigenvalues; Anderson does not: the layer's solver is kept."""
    flip = lambda z, x: -1.5 * torch.sin(z) + x
    x = inputs()
    assert audit(Equilibrium(flip, solver=Anderson()), x, modes=[]).ok(1e-7)
    with pytest.raises(EquilibriumError, match=r"audit in float64: .* samples have no equilibrium"):
        audit(Equilibrium(flip, solver=Picard()), x, modes=[])


def test_a_start_is_used():
    calls = 0

    def counted(z, x):
        nonlocal calls
        calls += 1
        return 0.9 * torch.cos(z) + x

    layer, x = Equilibrium(counted, solver=Picard()), inputs().double()
    z = Equilibrium(counted, stop=Stop(rtol=1e-14)).solve(x).value
    spent = []
    for start in (None, z):
        calls = 0
        assert audit(layer, x, start=start, modes=[], samples=1).ok(1e-7)
        spent.append(calls)
    cold = Equilibrium(counted, solver=Picard(), stop=Stop(rtol=1e-13)).solve(x).counts.evaluations
    assert spent[1] < 0.8 * spent[0] < 0.8 * 5 * cold  # of 7 solves, 5 start near the first one's answer


def test_bad_use_is_refused_in_words():
    layer, x = Equilibrium(Cell(), state=(6,)), inputs()
    with pytest.raises(ValueError, match="samples must be ≥ 1"):
        audit(layer, x, samples=0)
    with pytest.raises(TypeError, match="modes must be gradients"):
        audit(layer, x, modes=["implicit"])
    with pytest.raises(TypeError, match="Got Linear instead"):
        audit(nn.Linear(4, 4), x)
    with pytest.raises(TypeError, match="Got function instead"):
        audit(lambda z: z, x)
    weight = torch.eye(4) / 2
    with pytest.raises(TypeError, match="closes over `weight`"):
        audit(Equilibrium(lambda z, x: z @ weight + x), x)
    with pytest.raises(ValueError, match="nothing to audit"):
        audit(Equilibrium(lambda z, x: z / 2 + 1, state=(2,)), torch.tensor([1, 2]))


def test_what_a_cell_closes_over_is_said_to_be_unseen():
    weight = (torch.eye(4, dtype=torch.float64) / 2).requires_grad_()
    found = audit(Equilibrium(lambda z, x: z @ weight + x), inputs(), modes=[])
    assert found.unseen == ("`weight`",)
    assert "Not audited, since a cell only closes over it: `weight`" in str(found)


def test_the_table_says_what_a_reader_needs(capsys):
    found = audit(Equilibrium(Cell(), state=(6,)), inputs(), samples=3)
    text = str(found)
    assert max(len(line) for line in text.splitlines()) <= 80
    for word in ("cell.W", "3 of 36", "Implicit", "the layer's", "Phantom", "Unrolled"):
        assert word in text
    found.print()
    assert "cell.W" in capsys.readouterr().out


def test_worst_puts_the_unknown_first():
    def row(error: float, held: bool = True) -> AuditRow:
        return AuditRow("m", "t", (1,), 1, 0, error, 1.0, 0.0, held)

    assert Audit((row(0.5, held=False), row(0.1), row(0.2)), "m").worst.error == 0.2
    assert math.isnan(Audit((row(0.1), row(math.nan)), "m").worst.error)
    assert not Audit((row(math.nan),), "m").ok(1e9)
    assert Audit((row(0.5, held=False), row(1e-9)), "m").ok()


def test_two_modes_of_one_name_keep_apart():
    layer = Equilibrium(Cell(), state=(6,))
    found = audit(layer, inputs(), samples=1, modes=[Unrolled(40), Unrolled(40, solver=Picard(damping=0.5))])
    assert len({r.mode for r in found.rows}) == 3


class Losing(Cell):
    """Puts a plain tensor in place of its parameter, as a careless swap does."""

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        out = super().forward(z, x)
        if torch.is_grad_enabled():
            self._parameters["W"] = self.W.detach()
        return out


def test_a_parameter_that_is_none_any_more_is_not_ok():
    found = audit(Equilibrium(Losing(), state=(6,)), inputs())
    assert found.lost == ("cell.W",)
    assert not found.ok(math.inf)
    assert "No longer parameters after a backward pass: cell.W." in str(found)


def test_a_submodule_under_two_names_is_ok():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = Cell()

        def forward(self, z: Tensor, x: Tensor) -> Tensor:
            return (self.a(z, x) + self.b(-z, x)) / 2

    found = audit(Equilibrium(Twice(), state=(6,)), inputs(), samples=3)
    assert found.ok()
    assert not found.lost
