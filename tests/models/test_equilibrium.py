"""The layer: starts, failure policies, precision, copies, memory, and misuse."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import textwrap
import weakref

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.solve import Newton, PeacemanRachford

DTYPE = torch.float64


class Affine(nn.Module):
    """z = tanh(W z + U x) with ‖W‖ = q."""

    def __init__(self, d: int = 3, m: int = 3, q: float = 0.5, dtype: torch.dtype = DTYPE) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        w = torch.randn(m, m, dtype=DTYPE, generator=generator)
        self.W = nn.Parameter((q * w / torch.linalg.matrix_norm(w, ord=2)).to(dtype))
        self.U = nn.Parameter(torch.randn(m, d, dtype=DTYPE, generator=generator).to(dtype))

    def forward(self, z, x):
        return torch.tanh(z @ self.W.T + x @ self.U.T)


def inputs(n=4, d=3, dtype=DTYPE):
    return torch.randn(n, d, dtype=DTYPE, generator=torch.Generator().manual_seed(1)).to(dtype)


def iterate(cell, z, *args, steps=200):
    for _ in range(steps):
        z = cell(z, *args)
    return z


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
    assert torch.equal(z[0], z[3])
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


# -- memory ---------------------------------------------------------------------------------------------


def test_a_thousand_training_steps_leave_nothing_behind():
    stop = eq.Stop(rtol=0.1)
    cell = Affine(q=0.1, dtype=torch.float32)
    layer = eq.Equilibrium(cell, solver=eq.Picard(), stop=stop, gradient=eq.Implicit(eq.Picard(), stop))
    optimiser = torch.optim.SGD(layer.parameters(), lr=1e-4)
    x = inputs(dtype=torch.float32)

    def tensors():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()), len(gc.get_objects())

    def train(steps):
        for _ in range(steps):
            optimiser.zero_grad()
            layer(x).square().sum().backward()
            optimiser.step()

    train(20)
    before = tensors()
    train(1000)
    after = tensors()
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 50


def test_a_step_frees_its_graph_without_the_garbage_collector():
    layer = eq.Equilibrium(Affine())
    gc.collect()
    gc.disable()
    try:
        z = layer(inputs())
        (node,) = {parent for parent, _ in z.grad_fn.next_functions}
        graph = weakref.ref(node.graph)  # of the evaluation at the equilibrium
        del node
        z.sum().backward()
        assert graph() is not None
        del z
        assert graph() is None
    finally:
        gc.enable()


def test_memory_of_a_step_does_not_grow_with_the_iterations():
    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.tensor(0.95, dtype=DTYPE))

        def forward(self, z, x):
            return self.a * torch.sin(z) + x

    def measure(gradient, rtol):
        """Bytes that autograd keeps, tensors of the size of the state that live on, and steps taken."""
        kept = {}

        def pack(t):
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t.detach()

        layer = eq.Equilibrium(Slow(), solver=eq.Picard(), gradient=gradient, stop=eq.Stop(rtol=rtol))
        x = 0.05 * inputs(64, 32)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            layer(x)
        gc.collect()
        z = layer(x)
        live = sum(issubclass(type(o), torch.Tensor) and o.numel() == z.numel() for o in gc.get_objects())
        return sum(kept.values()), live, int(layer.last.forward.steps.max())

    few, many = measure(eq.Implicit(), 1e-2), measure(eq.Implicit(), 1e-10)
    assert many[2] > 4 * few[2]
    assert many[:2] == few[:2]
    assert measure(eq.Unrolled(200), 1e-2)[0] > 10 * few[0]  # the measure does see what is kept


# -- misuse ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tolerance": 1e-3}, TypeError, "tolerance"),
        ({"solver": eq.Anderson}, TypeError, r"solver must be a Solver such as Anderson\(\)"),
        ({"solver": "anderson"}, TypeError, "solver must be a Solver"),
        ({"solver": []}, ValueError, "at least one"),
        ({"solver": [eq.Picard(), eq.Anderson]}, TypeError, "solver must be a Solver"),
        ({"solver": PeacemanRachford()}, TypeError, "PeacemanRachford splits an AffineMap.*use Anderson"),
        ({"gradient": eq.Implicit}, TypeError, r"gradient must be a Gradient such as eq\.Implicit\(\)"),
        ({"gradient": "implicit"}, TypeError, "gradient must be a Gradient"),
        ({"stop": 1e-4}, TypeError, r"stop must be a Stop such as eq\.Stop\(rtol=1e-6\)"),
        ({"on_failure": "ignore"}, ValueError, r"on_failure must be one of .*'raise'.* Got 'ignore'"),
        ({"precision": "half"}, ValueError, "precision must be 'native' or 'mixed'"),
        ({"state": 5}, ValueError, r"state must be the shape of one sample's state.* Got 5 instead"),
        ({"state": (0,)}, ValueError, "sizes ≥ 1"),
        ({"state": [(3,), (0, 2)]}, ValueError, "sizes ≥ 1"),
        ({"state": (2.0,)}, ValueError, "state must be"),
        ({"state": "zeros"}, ValueError, "state must be"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_when_the_layer_is_made(options, error, message):
    with pytest.raises(error, match=message):
        eq.Equilibrium(Affine(), **options)


@pytest.mark.parametrize(
    ("cell", "message"),
    [(Affine, "Got the class Affine instead"), (None, "Got NoneType instead"), (3, "Got int instead")],
)
def test_a_cell_must_be_callable_and_no_class(cell, message):
    with pytest.raises(TypeError, match=rf"cell must be callable as cell\(z, x\)\. {message}"):
        eq.Equilibrium(cell)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.tensor(1.0, dtype=DTYPE), ValueError, r"x must be batch-first.*Got shape \(\)"),
        (torch.ones(3, dtype=DTYPE), ValueError, r"Got shape \(3,\) instead: a single sample is x\[None\]"),
        (torch.ones(2, 0, dtype=DTYPE), ValueError, "the state must not be empty"),
        ([[1.0]], TypeError, "x must be a tensor"),
        (None, TypeError, "x must be a tensor"),
        (
            torch.ones(2, 3, dtype=torch.bfloat16),
            ValueError,
            r"float32 or float64\. Got a state of torch\.bfloat16",
        ),
        (torch.ones(2, 3).numpy(), TypeError, r"Got ndarray for input 0.*torch\.as_tensor"),
        ((torch.ones(2, 3),), TypeError, "each tensor as an input of its own"),
    ],
    ids=lambda v: "" if isinstance(v, str) else str(v)[:20],
)
def test_inputs_that_are_no_batch_are_refused(x, error, message):
    with pytest.raises(error, match=message):
        eq.Equilibrium(Affine())(x)


def test_wrong_calls_are_refused():
    layer = eq.Equilibrium(Affine())
    x = inputs()
    with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
        layer(x, mask=x)
    with pytest.raises(ValueError, match=r"args\[0\] must have 4 rows.*Got shape \(3,\).*shared="):
        layer(x, torch.ones(3))
    with pytest.raises(TypeError, match=r"shared must be a sequence, such as shared=\(t,\)\. Got Tensor"):
        layer(x, shared=torch.ones(3))
    with pytest.raises(TypeError, match="each tensor as an input of its own"):
        layer(x, {"mask": x})
    with pytest.raises(ValueError, match=r"x must have 2 rows, as the state has\. Got shape \(4, 3\)"):
        layer(x, start=torch.zeros(2, 3, dtype=DTYPE))
    with pytest.raises(ValueError, match=r"start must be of shape \(4, 3\), as state= says\. Got \(4, 5\)"):
        eq.Equilibrium(Affine(), state=(3,))(x, start=torch.zeros(4, 5, dtype=DTYPE))
    with pytest.raises(TypeError, match="z0 must be a tensor or a tuple of tensors"):
        eq.Equilibrium(Affine(), state=lambda x: None)(x)
    with pytest.raises(ValueError, match="z0 must be of a floating dtype"):
        layer(x, start=torch.zeros(4, 3, dtype=torch.int64))


def test_a_cell_that_changes_the_state_is_refused():
    x = inputs()
    cases = [
        (lambda z, x: z[:, :2], r"shape \(4, 3\)\. Got \(4, 2\) instead\. Give the layer state="),
        (lambda z, x: z.sum(), r"Got \(\) instead"),
        (lambda z, x: (z, z), "one tensor. Got tuple instead"),
        (lambda z, x: None, "Got NoneType instead"),
        (lambda z, x: z.float(), r"torch\.float64 like .* Got torch\.float32 instead: .*one dtype"),
    ]
    for cell, message in cases:
        with pytest.raises(ValueError, match=rf"the cell must return (a state like.*)?.*{message}"):
            eq.Equilibrium(cell)(x)
    pair = lambda z, x: (0.5 * z[0] + x, 0.5 * z[1].float())
    with pytest.raises(ValueError, match=r"Got torch\.float32 instead"):
        eq.Equilibrium(pair, state=[(3,), (3,)])(x)


def test_a_tolerance_below_reach_and_no_steps_are_refused():
    with pytest.raises(ValueError, match="max_steps must be an integer ≥ 1"):
        eq.Stop(max_steps=0)
    layer = eq.Equilibrium(Affine(dtype=torch.float32), stop=eq.Stop(rtol=1e-9))
    with pytest.raises(
        ValueError, match=r"rtol must be at least .* what torch\.float32 arithmetic can reach"
    ):
        layer(inputs(dtype=torch.float32))


def test_a_batch_held_by_the_cell_itself_is_refused_by_name():
    x, y = inputs(), inputs() + 1
    with pytest.raises(ValueError, match=r"over `y`, a batch of 4, and fails on .*layer\(x, more\)"):
        eq.Equilibrium(lambda z, x: 0.5 * z + x + y)(x)
    torch.testing.assert_close(eq.Equilibrium(lambda z, x, y: 0.5 * z + x + y)(x, y), 2 * (x + y))

    class Injected(nn.Module):
        def forward(self, z, x):
            return 0.5 * z + self.injection

    cell = Injected()
    cell.injection = x
    with pytest.raises(ValueError, match="closes over `injection`"):
        eq.Equilibrium(cell)(x)
    square = 0.1 * torch.ones(3, 3, dtype=DTYPE)  # as many rows as the batch, but no batch
    eq.Equilibrium(lambda z, x: torch.tanh(z @ square) + x)(inputs(3))


def test_rows_of_an_empty_batch():
    layer = eq.Equilibrium(Affine(3, 5), state=(5,))
    assert layer(inputs()[:0]).shape == (0, 5)


def test_rows_of_an_empty_batch_with_a_tuple_state():
    layer = eq.Equilibrium(lambda z, x: (0.5 * z[0] + x, 0.5 * z[1]), state=[(3,), (2, 2)])
    assert [tuple(part.shape) for part in layer(inputs()[:0])] == [(0, 3), (0, 2, 2)]


# -- compiled and distributed ---------------------------------------------------------------------------


@pytest.mark.slow  # the compiler takes its time
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")
def test_a_compiled_cell_gives_the_same_gradients():
    cell = Affine()
    x = inputs()
    try:
        compiled = torch.compile(cell)
        compiled(torch.zeros_like(x), x)
    except Exception as error:
        pytest.skip(f"no compiler here: {type(error).__name__}")
    z = eq.Equilibrium(compiled, stop=eq.Stop(rtol=1e-12))(x)
    want = eq.Equilibrium(cell, stop=eq.Stop(rtol=1e-12))(x)
    torch.testing.assert_close(z, want, rtol=1e-10, atol=1e-12)
    got = torch.autograd.grad(z.sum(), list(cell.parameters()))
    for g, h in zip(got, torch.autograd.grad(want.sum(), list(cell.parameters())), strict=True):
        torch.testing.assert_close(g, h, rtol=1e-8, atol=1e-10)


WORKER = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w, self.u = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, z, x):
        return 0.5 * torch.tanh(self.w(z)) + self.u(x)


rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.set_default_dtype(torch.float64)
stop = eq.Stop(rtol=1e-12)
model = nn.Sequential(eq.Equilibrium(Cell(), stop=stop, gradient=eq.Implicit(stop=stop)), nn.Linear(3, 1))
x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
x[:4] *= 1e-3  # the ranks take different numbers of steps
parallel = DistributedDataParallel(model)
parallel(x[4 * rank : 4 * rank + 4]).square().mean().backward()
got = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
model(x).square().mean().backward()
for p, g in zip(model.parameters(), got):
    torch.testing.assert_close(p.grad, g, rtol=1e-9, atol=1e-12)
dist.destroy_process_group()
print("same gradients")
"""


def test_two_processes_have_the_gradients_of_one(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "store")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for worker in workers:
            out, err = worker.communicate(timeout=120)
            assert worker.returncode == 0, err[-2000:]
            assert "same gradients" in out
    finally:
        for worker in workers:
            worker.kill()
