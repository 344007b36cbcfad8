"""The layer: starts, failure policies, precision and copies."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.solve import Newton
from problems import Affine, inputs

DTYPE = torch.float64


# -- starts ---------------------------------------------------------------------------------------------


def test_the_start_is_zero_of_the_shape_of_x_or_of_one_given():
    seen = []

    class Spy(Affine):
        def forward(self, z, x):
            seen.append(z.clone())
            return super().forward(z, x)

    eq.Equilibrium(Spy())(inputs())
    assert torch.equal(seen[0], torch.zeros(4, 3, dtype=DTYPE))
    seen.clear()
    z = eq.Equilibrium(Spy(3, 5), state=(5,))(inputs())
    assert torch.equal(seen[0], torch.zeros(4, 5, dtype=DTYPE))
    assert z.shape == (4, 5)
    seen.clear()
    eq.Equilibrium(Spy(3, 5), state=lambda x: x.new_ones(len(x), 5))(inputs())
    assert torch.equal(seen[0], torch.ones(4, 5, dtype=DTYPE))


def test_a_list_of_shapes_is_a_tuple_state():
    def f(z, x):
        a, b = z
        return torch.tanh(0.5 * a + x), 0.3 * b + a.reshape(-1, 1, 3)

    layer = eq.Equilibrium(f, state=[(3,), (1, 3)])
    z = layer(inputs())
    assert isinstance(z, tuple)
    assert [tuple(part.shape) for part in z] == [(4, 3), (4, 1, 3)]
    assert [tuple(part.shape) for part in layer.last.forward.value] == [(4, 3), (4, 1, 3)]
    torch.testing.assert_close(z[1], z[0].reshape(-1, 1, 3) / 0.7, rtol=1e-6, atol=1e-8)


def test_an_earlier_solution_is_a_start_from_which_nothing_moves():
    layer = eq.Equilibrium(Affine())
    x = inputs()
    z = layer(x)
    for start in (z, layer.last.forward, layer.solve(x)):
        again = layer(x, start=start)
        assert layer.last.forward.steps.tolist() == [0] * 4
        torch.testing.assert_close(again, z, rtol=0, atol=1e-8)
    near = layer(x + 1e-3, start=z)
    warm = int(layer.last.forward.steps.max())
    layer(x + 1e-3)
    assert warm < int(layer.last.forward.steps.max())
    near.sum().backward()  # the start is no part of the graph
    assert not layer.last.forward.value.requires_grad


@pytest.mark.parametrize("gradient", [eq.Implicit(), eq.Unrolled(60), eq.Phantom(3)], ids=str)
def test_a_start_is_no_part_of_the_graph(gradient):
    layer = eq.Equilibrium(Affine(), gradient=gradient)
    start = torch.ones(4, 3, dtype=DTYPE, requires_grad=True)
    layer(inputs(), start=start).sum().backward()
    assert start.grad is None


def test_a_start_that_depends_on_x_gets_no_gradient_but_does_no_harm():
    cell = Affine()
    x = inputs().requires_grad_()
    plain = torch.autograd.grad(eq.Equilibrium(cell)(x).sum(), x)[0]
    learned = eq.Equilibrium(cell, state=lambda x: 0.1 * x.sin())
    torch.testing.assert_close(torch.autograd.grad(learned(x).sum(), x)[0], plain, rtol=1e-6, atol=1e-8)
    func = torch.func.grad(lambda x: learned(x).sum())(x.detach())
    torch.testing.assert_close(func, plain, rtol=1e-6, atol=1e-8)


def test_integer_inputs_take_the_dtype_of_the_cell():
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 3, dtype=DTYPE)

        def forward(self, z, index):
            return 0.5 * torch.tanh(z) + self.table(index)

    layer = eq.Equilibrium(Embedded(), state=(3,))
    z = layer(torch.tensor([1, 5, 6, 1]))
    assert z.dtype == DTYPE
    # A vector instruction may round the last entries of a batch otherwise than the first.
    torch.testing.assert_close(z[0], z[3], rtol=1e-12, atol=0)
    z.sum().backward()
    assert bool((layer.cell.table.weight.grad[[0, 2, 3, 4]] == 0).all())
    assert bool((layer.cell.table.weight.grad[[1, 5, 6]] > 0).all())


def test_further_inputs_may_be_masks_numbers_strings_or_none():
    def f(z, x, keep, scale, name, nothing, bias):
        assert name == "relu"
        assert nothing is None
        return torch.where(keep, scale * torch.relu(z) + x + bias, 0.0)

    x = inputs().requires_grad_()
    keep = torch.arange(12).reshape(4, 3) % 2 == 0
    bias = torch.ones(3, dtype=DTYPE, requires_grad=True)
    layer = eq.Equilibrium(f)
    z = layer(x, keep, 0.5, "relu", None, shared=(bias,))
    assert bool((z[~keep] == 0).all())
    z.sum().backward()
    assert bool((x.grad[~keep] == 0).all())
    assert bias.grad.shape == (3,)


# -- failures -------------------------------------------------------------------------------------------


class Growing(nn.Module):
    """z = z/2 + w x where x ≤ 1; z + z² + w, which has no equilibrium, where x > 1."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=DTYPE))

    def forward(self, z, x):
        return torch.where(x > 1, z + z.square() + self.w, 0.5 * z + self.w * x)


MIXED = torch.tensor([[0.5], [2.0], [0.25], [torch.nan], [1.0], [-1.0]], dtype=DTYPE)
GOOD, BAD = [0, 2, 4, 5], [1, 3]


def test_raise_names_the_rows_and_what_to_try():
    layer = eq.Equilibrium(Growing())
    with pytest.raises(eq.EquilibriumError) as caught:
        layer(MIXED)
    message = str(caught.value)
    assert message.startswith("forward solve: 2 of 6 samples have no equilibrium")
    for part in ("row 1:", "row 3: nonfinite", "try"):
        assert part in message
    assert caught.value.solution.failed_rows == BAD
    assert caught.value.solution.value.shape == (6, 1)
    assert layer.last.forward.failed_rows == BAD


def test_warn_uses_the_last_iterates():
    layer = eq.Equilibrium(Growing(), on_failure="warn")
    with pytest.warns(eq.EquilibriumWarning, match="2 of 6 samples"):
        z = layer(MIXED[:3].repeat(2, 1)[:6])
    assert bool(torch.isfinite(z[[0, 2]]).all())


def test_accept_is_silent_and_on_record():
    layer = eq.Equilibrium(Growing(), on_failure="accept")
    layer(MIXED)
    assert layer.last.forward.failed_rows == BAD
    assert layer.last.masked == 0


@pytest.mark.parametrize("gradient", [eq.Implicit(), eq.Phantom(60), eq.Unrolled(60)], ids=str)
def test_masked_rows_get_no_gradient_and_the_others_the_one_they_have_alone(gradient):
    layer = eq.Equilibrium(Growing(), gradient=gradient, on_failure=eq.OnFailure("mask", share=0.5))
    x = MIXED.clone().requires_grad_()
    z = layer(x)
    assert layer.last.masked == 2
    assert bool(torch.isfinite(z).all())
    (z * torch.arange(1.0, 7.0, dtype=DTYPE)[:, None]).sum().backward()
    assert bool((x.grad[BAD] == 0).all())
    torch.testing.assert_close(
        x.grad[GOOD, 0], torch.tensor([2.0, 6, 10, 12], dtype=DTYPE), rtol=1e-7, atol=0
    )
    # z = 2 w x, so w̄ = Σ 2 g x over the good rows
    want = 2 * (1 * 0.5 + 3 * 0.25 + 5 * 1.0 + 6 * -1.0)
    torch.testing.assert_close(layer.cell.w.grad, torch.tensor([want], dtype=DTYPE), rtol=1e-7, atol=0)


def test_a_masked_row_that_is_not_finite_comes_out_as_zero():
    layer = eq.Equilibrium(Growing(), on_failure=eq.OnFailure("mask", share=0.5))
    start = torch.tensor([[0.0], [torch.nan]], dtype=DTYPE)
    torch.testing.assert_close(layer(MIXED[[0, 2]], start=start), torch.tensor([[1.0], [0.0]], dtype=DTYPE))


def test_more_than_the_share_of_failures_raises():
    with pytest.raises(eq.EquilibriumError, match=r"allows 30% of a batch to fail\. Got 2 of 6 instead"):
        eq.Equilibrium(Growing(), on_failure=eq.OnFailure("mask", share=0.3))(MIXED)


def test_a_batch_that_fails_altogether_may_be_masked_when_the_share_allows_it():
    layer = eq.Equilibrium(Growing(), on_failure=eq.OnFailure("mask", share=1.0))
    z = layer(MIXED[BAD])
    z.sum().backward()
    assert layer.last.masked == 2
    assert bool((layer.cell.w.grad == 0).all())


def test_a_chain_of_solvers_takes_over_where_the_first_fails():
    x = torch.linspace(-2, 2, 5, dtype=DTYPE)[:, None].requires_grad_()
    f = lambda z, x: torch.tanh(-4 * z) + x
    alone = eq.Equilibrium(f, solver=eq.Picard())
    with pytest.raises(eq.EquilibriumError):
        alone(x)
    layer = eq.Equilibrium(f, solver=[eq.Picard(), eq.Anderson(), Newton()])
    z = layer(x)
    assert layer.last.forward.counts.retried > 0
    assert "Picard → Anderson → Newton" in repr(layer.last.forward)
    torch.testing.assert_close(f(z, x), z, rtol=1e-7, atol=1e-9)
    got = torch.autograd.grad(z.sum(), x)[0]
    torch.testing.assert_close(got, 1 / (1 + 4 * (1 - torch.tanh(-4 * z.detach()) ** 2)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["W", "U"])
def test_weights_that_are_not_finite_are_named(name):
    layer = eq.Equilibrium(Affine())
    with torch.no_grad():
        getattr(layer.cell, name)[0, 1] = torch.inf if name == "W" else torch.nan
    with pytest.raises(eq.EquilibriumError, match=rf"Not finite in the layer itself: `cell\.{name}`\."):
        layer(inputs())


# -- precision ------------------------------------------------------------------------------------------


def test_mixed_precision_casts_the_parameters_and_is_verified_in_float64():
    cell = Affine(q=0.9)
    stop = eq.Stop(rtol=1e-12)
    layer = eq.Equilibrium(cell, precision="mixed", stop=stop)
    native = eq.Equilibrium(cell, stop=stop)
    x = inputs()
    z = layer(x)
    assert z.dtype == torch.float64
    torch.testing.assert_close(z, native(x), rtol=1e-10, atol=1e-12)
    assert (layer.last.forward.relative_residual <= 1e-12).all()
    for got, want in zip(
        torch.autograd.grad(z.sum(), list(cell.parameters())),
        torch.autograd.grad(native(x).sum(), list(cell.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)


def test_mixed_precision_of_a_closure_is_refused_by_name():
    weight = 0.1 * torch.eye(3, dtype=DTYPE)
    layer = eq.Equilibrium(lambda z, x: torch.tanh(z @ weight) + x, precision="mixed")
    with pytest.raises(ValueError, match=r"precision='mixed' cannot cast what a cell closes over: `weight`"):
        layer(inputs())
    with pytest.raises(ValueError, match="z0 must be float64"):
        eq.Equilibrium(Affine(dtype=torch.float32), precision="mixed")(inputs(dtype=torch.float32))


def test_float32():
    layer, exact = eq.Equilibrium(Affine(dtype=torch.float32)), eq.Equilibrium(Affine())
    x = inputs(dtype=torch.float32)
    z = layer(x)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.double(), exact(x.double()), rtol=1e-3, atol=1e-4)
    z.sum().backward()
    exact(x.double()).sum().backward()
    torch.testing.assert_close(layer.cell.W.grad.double(), exact.cell.W.grad, rtol=2e-3, atol=2e-4)


AUTOCAST = {torch.float16: eq.Stop(), torch.bfloat16: eq.Stop(rtol=0.07)}


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", [eq.Implicit, eq.Phantom])
def test_autocast_iterates_in_half_precision_with_its_tolerance(half, mode):
    stop = AUTOCAST[half]
    gradient = eq.Implicit(stop=stop) if mode is eq.Implicit else eq.Phantom(8)
    layer = eq.Equilibrium(Affine(8, 8, dtype=torch.float32), stop=stop, gradient=gradient)
    exact = eq.Equilibrium(Affine(8, 8))
    x = inputs(6, 8, torch.float32)
    with torch.autocast("cpu", dtype=half):
        z = layer(x)
        assert layer(x.to(half)).dtype == torch.float32  # as a layer before this one would give it
    assert z.dtype == torch.float32
    rtol = stop.resolve(half).rtol
    want = exact(x.double())
    assert ((z.double() - want).norm(dim=1) <= rtol / (1 - 0.5) * 1.1 * want.norm(dim=1)).all()
    z.sum().backward()
    want.sum().backward()
    for p, q in zip(layer.parameters(), exact.parameters(), strict=True):
        assert p.grad.dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(p.grad.double().flatten(), q.grad.flatten(), dim=0)
        assert cosine > 0.99


def test_the_adjoint_under_autocast_has_the_tolerance_of_its_arithmetic():
    layer = eq.Equilibrium(Affine(8, 8, dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.float16):
        z = layer(inputs(6, 8, torch.float32))
    z.sum().backward()
    assert layer.last.adjoint.stop.rtol == eq.Stop().resolve(torch.float16).rtol


def test_autocast_has_a_tolerance_of_its_own():
    layer = eq.Equilibrium(Affine(dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(inputs(dtype=torch.float32)).sum().backward()


# -- copies and records ---------------------------------------------------------------------------------


def test_records_are_detached_and_not_copied_pickled_or_saved():
    layer = eq.Equilibrium(Affine(), solver=eq.Picard(), on_failure="warn", gradient=eq.Phantom(3))
    x = inputs()
    z = layer(x)
    assert not layer.last.forward.value.requires_grad
    assert sorted(layer.state_dict()) == ["cell.U", "cell.W"]
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(buffer, weights_only=False),
    ):
        assert other.last.forward is None
        assert torch.equal(other(x), z)
        assert other.gradient == layer.gradient
        assert other.method == layer.method
        assert other.cell.W is not layer.cell.W
    assert layer.last.forward is not None
    fresh = eq.Equilibrium(Affine(q=0.1))
    fresh.load_state_dict(layer.state_dict())
    torch.testing.assert_close(fresh(x), z, rtol=1e-6, atol=1e-8)


def test_the_representation_says_what_it_does():
    text = repr(eq.Equilibrium(Affine(), gradient=eq.Unrolled(5)))
    for part in ("z = cell(z, x)", "Anderson()", "Unrolled(steps=5", "(cell): Affine()"):
        assert part in text


def test_parameters_train():
    torch.manual_seed(0)
    layer = eq.Equilibrium(Affine(dtype=torch.float32))
    x, target = inputs(16, dtype=torch.float32), 0.5 * torch.sin(inputs(16, dtype=torch.float32))
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = (layer(x) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


def test_masked_rows_are_told_once_when_training_ends():
    class Cell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(0.5))

        def forward(self, z, x):
            return torch.where(x > 0, self.weight * z + x, -3 * z.sign() + x)  # row with x ≤ 0 jumps for ever

    layer = eq.Equilibrium(Cell(), on_failure="mask", stop=eq.Stop(max_steps=30))
    x = torch.ones(20, 1)
    x[3] = 0.0
    for _ in range(3):  # and says nothing in a batch
        layer(x, start=torch.ones(20, 1)).sum().backward()
    assert layer.last.masked == 1
    with pytest.warns(eq.EquilibriumWarning, match="3 of 60 samples had no equilibrium"):
        layer.eval()
    layer.train()  # told once


def test_a_state_that_does_not_fit_into_the_cell_is_named():
    layer = eq.Equilibrium(lambda z, x: torch.tanh(z @ (torch.eye(4) / 2) + x), state=(3,))
    with pytest.raises(ValueError, match=r"state=….*one sample's state"):
        layer(torch.ones(2, 4))
