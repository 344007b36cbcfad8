"""Cells of a user's own: their parts prove that they contract, or nothing is proved."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import equipoise as eq
from equipoise.theory import moves

F64 = torch.float64
M, D = 5, 3


def rows(n=3, *shape, seed=0):
    return torch.randn(n, *(shape or (D,)), dtype=F64, generator=torch.Generator().manual_seed(seed))


class Parts(nn.Module):
    """W (M, M) of a norm that is given, U (M, D), and what a test makes of them."""

    def __init__(self, make=None, norm=0.5, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.W, self.U, self.make = nn.Linear(M, M, dtype=F64), nn.Linear(D, M, dtype=F64), make
        self.more = nn.Linear(M, M, dtype=F64)
        self.norm = nn.LayerNorm(M, dtype=F64)
        self.batch = nn.BatchNorm1d(M, dtype=F64).eval()
        self.fixed = nn.Parameter(torch.full((M,), 0.75, dtype=F64))
        with torch.no_grad():
            for layer in (self.W, self.more):
                layer.weight.mul_(norm / torch.linalg.matrix_norm(layer.weight, 2))

    def forward(self, z, x):
        return self.make(self, z, x)


def certified(make, X=None, **how):
    layer = eq.Equilibrium(Parts(make, **how), state=(M,))
    return layer, eq.certify(layer, rows() if X is None else X)


# Each with a norm of W of .5, and the constant that its parts give.
PROVED = {
    "tanh": (lambda c, z, x: torch.tanh(c.W(z) + c.U(x)), 0.5),
    "method": (lambda c, z, x: (c.W(z) - c.U(x)).relu(), 0.5),
    "sum": (lambda c, z, x: 0.25 * z + torch.sigmoid(c.W(z)) + c.U(x), 0.375),
    "negative": (lambda c, z, x: -c.W(z) / 2 + c.U(x), 0.25),
    "two layers": (lambda c, z, x: c.more(F.silu(c.W(z))) + c.U(x), 0.275),
    "fixed tensor": (lambda c, z, x: c.fixed * c.W(z) + c.U(x) + c.fixed, 0.375),
    "matrix": (lambda c, z, x: torch.relu(z @ c.W.weight.T + c.U(x)), 0.5),
    "functional": (lambda c, z, x: F.gelu(F.linear(z, c.W.weight, c.W.bias)) + c.U(x), 0.57),
    "norm of the input": (lambda c, z, x: torch.tanh(c.W(z) + c.norm(c.U(x))), 0.5),
    "no state": (lambda c, z, x: c.U(x), 0.0),
}


@pytest.mark.parametrize("name", PROVED)
def test_the_constant_is_that_of_the_parts_and_no_jacobian_exceeds_it(name):
    make, q = PROVED[name]
    layer, found = certified(make)
    assert found.proved
    assert found.constants["rate"] == pytest.approx(q, rel=1e-9, abs=1e-12)
    assert found.constants["rate"] >= q * (1 - 1e-15)
    assert found.constants["R"] == pytest.approx(1 / (1 - q), rel=1e-9)
    bound = found.constants["lipschitz"]
    for seed in range(5):
        z, x = rows(1, M, seed=seed), rows(1, seed=seed + 100)
        J = torch.autograd.functional.jacobian(lambda z, x=x: layer.cell(z, x), z).reshape(M, M)
        assert torch.linalg.matrix_norm(J, 2) <= found.constants["rate"] * (1 + 1e-12)
        at = torch.autograd.functional.jacobian(layer, x).reshape(M, D)
        assert torch.linalg.matrix_norm(at, 2) <= bound * (1 + 1e-6)


OPEN = {
    "norm in the loop": (lambda c, z, x: c.norm(c.W(z) + c.U(x)), "norm (LayerNorm)"),
    "mean of the batch": (lambda c, z, x: 0.1 * z.mean(0) + c.U(x), "mean"),
    "product": (lambda c, z, x: torch.tanh(c.W(z)) * torch.sigmoid(c.U(x)), "mul"),
    "spread": (lambda c, z, x: c.W(z)[:, :1] * 0.5 + c.U(x), "getitem"),
    "moved bias": (lambda c, z, x: F.linear(c.U(x), c.W.weight, 2 * z), "linear"),
    "in place": (lambda c, z, x: F.relu(c.W(z), inplace=True) + c.U(x), "relu"),
    "keyword": (lambda c, z, x: torch.add(c.U(x), c.W(z), alpha=3), "add"),
    "random": (lambda c, z, x: 0.5 * z + torch.rand(1, dtype=F64) + c.U(x), "another answer"),
    "weight as computed": (lambda c, z, x: z @ (c.W.weight - c.W.weight.T) + c.U(x), "sub"),
    "branch": (lambda c, z, x: c.U(x) if z.sum() > 0 else 0.5 * z, "cannot be recorded"),
    "another shape": (lambda c, z, x: x, "shaped like the state"),
    "divided by the state": (lambda c, z, x: 1 / (z + 3) + c.U(x), "truediv"),
}


@pytest.mark.parametrize("name", OPEN)
def test_of_what_is_not_known_nothing_is_proved(name):
    make, named = OPEN[name]
    _, found = certified(make)
    assert found.verdict == "inconclusive"
    assert named in found.explain().replace("\n", " ")
    assert "tlparse" not in found.explain()


def test_sizes_that_spread_and_weights_that_are_large_prove_nothing():
    spread = lambda c, z, x: 0.9 * z + c.U(x)
    layer = eq.Equilibrium(Parts(spread), state=(1,))  # (N, 1) + (N, M)
    assert eq.certify(layer, rows()).verdict == "inconclusive"
    _, large = certified(PROVED["tanh"][0], norm=1.0)
    assert large.verdict == "inconclusive"
    assert "smaller weights" in large.explain()


def test_batch_norms_are_not_known():
    _, found = certified(lambda c, z, x: torch.tanh(c.W(z)) + c.batch(c.U(x)))
    assert found.verdict == "inconclusive"


def test_what_changes_the_cell_is_refused():
    layer, found = certified(PROVED["tanh"][0])
    assert found.proved
    layer.cell.W.register_forward_hook(lambda module, given, out: 10 * out)
    assert eq.certify(layer, rows()).verdict == "hypotheses_fail"

    class Louder(nn.Linear):
        def forward(self, x):
            return 10 * super().forward(x)

    layer, _ = certified(PROVED["tanh"][0])
    layer.cell.W = Louder(M, M, dtype=F64)
    assert not eq.certify(layer, rows()).proved
    layer, _ = certified(PROVED["tanh"][0])
    with torch.no_grad():
        layer.cell.W.weight[0, 0] = math.nan
    assert eq.certify(layer, rows()).verdict == "hypotheses_fail"

    class Doubled(eq.Equilibrium):
        def equilibrium(self, x, **how):
            return 2 * super().equilibrium(x, **how)

    assert not eq.certify(Doubled(Parts(PROVED["tanh"][0]), state=(M,)), rows()).proved
    assert not eq.certify(eq.Equilibrium(lambda z, x: 0.5 * z + x), rows()).proved
    assert not eq.certify(
        eq.Equilibrium(Parts(lambda c, z, x: (c.W(z[0]), z[1])), state=[(M,), (M,)]), rows()
    ).proved


def test_a_cell_that_answers_otherwise_than_it_was_recorded_is_told():
    calls = []

    def moody(c, z, x):
        calls.append(1)
        return (0.5 if len(calls) == 1 else 5.0) * z + c.U(x)

    _, found = certified(moody)
    assert not found.proved
    assert "than the operations that were recorded" in found.explain().replace("\n", " ")


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_convolutions_of_any_stride_of_input_move_the_state_no_further(seed):
    draw = torch.Generator().manual_seed(seed)
    k, n = (int(torch.randint(1, 4, (), generator=draw)) for _ in range(2))
    side = 3 + int(torch.randint(0, 3, (), generator=draw))
    groups = n if seed % 2 else 1

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Conv2d(n, n, 2 * k - 1, padding=k - 1, groups=groups, dtype=F64)
            self.a = nn.LeakyReLU(0.1)

        def forward(self, z, x):
            return self.a(self.W(z) + x)

    layer = eq.Equilibrium(Cell())
    X = torch.randn(2, n, side, side, dtype=F64, generator=draw)
    found = eq.certify(layer, X)
    q = found.claims[0].left.hi
    J = torch.autograd.functional.jacobian(lambda z: layer.cell(z, X[:1]), X[1:]).reshape(X[0].numel(), -1)
    assert torch.linalg.matrix_norm(J, 2) <= q * (1 + 1e-12)
    assert found.proved == (q < 1)


def test_slopes_are_at_least_those_of_the_functions():
    x = torch.linspace(-12, 12, 200_001, dtype=F64).requires_grad_()
    for kind, bound in moves.SLOPES.items():
        (slope,) = torch.autograd.grad(kind()(x).sum(), x)
        assert float(slope.abs().max()) <= bound, kind
        assert float(slope.abs().max()) >= 0.98 * bound, kind
    for function, bound in moves.FUNCTIONS.items():
        value = getattr(x, function)() if isinstance(function, str) else function(x)
        (slope,) = torch.autograd.grad(value.sum(), x)
        assert float(slope.abs().max()) <= bound, function
    steep = {nn.LeakyReLU(3.0): 3.0, nn.ELU(2.0): 2.0, nn.GELU("tanh"): 1.14}
    for kind, bound in {**steep, nn.LeakyReLU(0.1): 1.0, nn.ELU(0.5): 1.0}.items():
        (slope,) = torch.autograd.grad(kind(x).sum(), x)
        assert float(slope.abs().max()) <= moves._slope(kind, x) == bound


def in_place(c, z, x):
    """torch.fx records a new tensor where the cell changes one that is read again."""
    h = c.W(z)
    kept = h
    h += 50 * F.relu(z - 10)  # zero where the cell was recorded
    return kept + c.U(x)


def counting(c, z, x):
    c.batch.num_batches_tracked += 1
    return (0.5 if int(c.batch.num_batches_tracked) < 5 else 5.0) * z + c.U(x)


@pytest.mark.parametrize("make", [in_place, counting])
def test_a_cell_that_changes_tensors_in_place_is_not_what_was_recorded(make):
    layer, found = certified(make)
    assert found.verdict == "inconclusive"
    assert "in place (add_)" in found.claims[0].remedy
    z = torch.full((1, M), 20.0, dtype=F64)
    for _ in range(5):
        with torch.no_grad():
            moved = layer.cell(z + 1, rows(1)) - layer.cell(z, rows(1))
    assert float(moved.norm()) > 2 * math.sqrt(M)  # a factor above 2


def by_value(c, z, x):
    return c.W(z) * (9 if isinstance(z, torch.Tensor) and z.max() > 9 else 1) + c.U(x)


class Louder(Parts):
    def __call__(self, z, x):
        return super().__call__(z, x) + 9 * F.relu(z - 9)


def test_a_cell_that_goes_another_way_elsewhere_is_not_what_was_recorded():
    for cell in (Parts(by_value), Louder(PROVED["tanh"][0])):
        z, x = torch.full((1, M), 20.0, dtype=F64), rows(1)
        with torch.no_grad():
            assert float((cell(z + 1, x) - cell(z, x)).norm()) > 2 * math.sqrt(M)  # a factor above 2
        found = eq.certify(eq.Equilibrium(cell, state=(M,)), rows())
        assert found.verdict == "inconclusive"
        assert "other operations than those that were recorded" in found.claims[0].remedy


@pytest.mark.parametrize("make", [lambda x: 0.01 * (100 * x), lambda x: 0.01 * (x + x)])
def test_integers_wrap_so_that_no_constant_holds_in_them(make):
    layer = eq.Equilibrium(Parts(lambda c, z, x: 0.5 * z + make(x)), state=(M,)).eval()
    layer.cell.batch = None
    X = torch.tensor([[1] * M, [2] * M, [63] * M, [64] * M], dtype=torch.int8)
    found = eq.certify(layer, X)
    assert found.proved
    assert "lipschitz" not in found.constants
    y, x = layer(X).detach(), X.double()
    steepest = max(float((y[i] - y[i + 1]).norm() / (x[i] - x[i + 1]).norm()) for i in (0, 2))
    assert steepest > 1.5 * eq.certify(layer, x).constants["lipschitz"]  # that of numbers that do not wrap


def test_narrow_integers_are_as_large_as_they_are():
    for number, q in ((-128, math.inf), (3, 0.75)):
        layer = eq.Equilibrium(Parts(lambda c, z, x: 0.25 * (z * c.narrow) + c.U(x)), state=(M,))
        layer.cell.register_buffer("narrow", torch.tensor([number], dtype=torch.int8))
        found = eq.certify(layer, rows())
        assert found.proved == (q < 1)
        assert found.claims[0].left.hi == pytest.approx(min(q, 32))


@pytest.mark.parametrize("part", [nn.LeakyReLU(math.nan), nn.ELU(math.nan)])
def test_a_slope_that_is_no_number_proves_nothing(part):
    layer = eq.Equilibrium(Parts(lambda c, z, x: c.act(c.W(z) + c.U(x) + 100)), state=(M,))
    layer.cell.act = part  # NaN below zero alone, where it was not recorded
    assert not eq.certify(layer, rows()).proved


@pytest.mark.parametrize(("dim", "alone"), [(0, False), (-2, False), (1, True), (-1, True), (None, False)])
def test_a_softmax_over_the_batch_gives_an_input_another_equilibrium_in_another_batch(dim, alone):
    layer = eq.Equilibrium(Parts(lambda c, z, x: torch.tanh(c.W(z) + c.soft(c.U(x)))), state=(M,))
    layer.cell.soft = nn.Softmax(dim)
    X = rows()
    if dim is None:
        assert not eq.certify(layer, X).proved
        return
    assert eq.certify(layer, X).proved == alone
    with torch.no_grad():
        assert torch.allclose(layer(X)[:1], layer(X[:1])) == alone


def test_a_single_number_that_is_not_finite_is_named():
    layer = eq.Equilibrium(Parts(lambda c, z, x: c.gain * z + c.U(x)), state=(M,))
    layer.cell.gain = nn.Parameter(torch.tensor(math.nan, dtype=F64))
    assert "cell.gain holds NaN" in eq.certify(layer, rows()).obstacle


def test_a_certificate_of_a_cell_is_saved_and_verified(tmp_path):
    layer, found = certified(PROVED["tanh"][0])
    found.save(tmp_path / "certificate.json")
    again = eq.Certificate.load(tmp_path / "certificate.json")
    assert again.verify(layer, rows()).proved
    with torch.no_grad():
        layer.cell.W.weight.mul_(1.5)
    with pytest.raises(ValueError, match="weights"):
        again.verify(layer, rows())


def test_the_lipschitz_constant_is_found_in_the_certificate():
    layer, found = certified(PROVED["tanh"][0])
    with pytest.raises(TypeError, match=r"give one, as in lipschitz_bound\(model, X\)"):
        eq.lipschitz_bound(layer)
    assert found.constants["lipschitz"] == pytest.approx(eq.lipschitz_bound(layer, rows()), rel=1e-12)
    assert found.constants["lipschitz"] >= torch.linalg.matrix_norm(layer.cell.U.weight, 2)


def test_the_rigorous_tier_knows_no_cell():
    layer, _ = certified(PROVED["tanh"][0])
    with pytest.raises(ValueError, match="knows no cell"):
        eq.certify(layer, rows(), tier="rigorous")


@pytest.mark.parametrize(("threshold", "proved"), [(0.1, False), (19, False), (20, True)])
def test_a_softplus_that_steps_down_at_its_threshold_contracts_nothing(threshold, proved):
    layer = eq.Equilibrium(Parts(lambda c, z, x: c.act(c.W(z) + c.U(x))), state=(M,))
    layer.cell.act = act = nn.Softplus(threshold=threshold)
    found = eq.certify(layer, rows())
    assert found.proved == proved
    assert proved or "act (Softplus)" in found.claims[0].remedy
    below, above = act(torch.tensor([threshold, math.nextafter(threshold, 99)], dtype=F64))
    assert proved == bool(below - above < 3e-9)  # how far it falls over one rounding


def test_a_softplus_whose_exponential_overflows_below_its_threshold_contracts_nothing():
    layer = eq.Equilibrium(Parts(lambda c, z, x: c.act(c.W(z) + c.U(x))), state=(M,))
    layer.cell.act = act = nn.Softplus(threshold=100)
    assert act(torch.tensor(95.0)) == math.inf
    assert not eq.certify(layer, rows()).proved


def test_an_integer_that_float64_rounds_has_no_error_that_is_known():
    layer = eq.Equilibrium(Parts(lambda c, z, x: 0.5 * z + (x + (2**60 + 1))), state=(M,))
    X = torch.full((1, M), -(2.0**60), dtype=F64)  # the sum is 1, and 0 in float64
    Z = torch.zeros(1, M, dtype=F64)
    assert eq.equilibrium_error(layer, X, Z) >= 2 * math.sqrt(M)  # z = 2
    layer.cell.make = lambda c, z, x: 0.5 * z + (x + c.long)
    layer.cell.register_buffer("long", torch.tensor(2**60 + 1))
    assert eq.equilibrium_error(layer, X, Z) >= 2 * math.sqrt(M)


def test_a_cell_that_no_layer_solves_is_not_certified():
    layer = eq.Equilibrium(Parts(PROVED["tanh"][0]), state=(M,))
    layer.cell.unused = nn.RReLU()  # a layer refuses it in training
    found = eq.certify(layer, rows())
    assert found.verdict == "inconclusive"
    assert "draws anew" in found.claims[0].remedy
    assert eq.certify(layer.eval(), rows()).proved


def test_a_cell_that_goes_another_way_for_many_rows_is_not_certified():
    def by_size(c, z, x):
        return c.W(z) * (9 if isinstance(x, torch.Tensor) and len(x) > 2 else 1) + c.U(x)

    _, found = certified(by_size)
    assert found.verdict == "inconclusive"
    assert "another answer" in found.claims[0].remedy
