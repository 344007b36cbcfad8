"""The layer in use and in misuse: memory, refusals, compilers and processes."""

import gc
import os
import subprocess
import sys
import textwrap
import weakref

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq
from equipoise.solve import PeacemanRachford
from memory import sizes, stored_bytes
from problems import Affine, inputs

DTYPE = torch.float64


# -- memory ---------------------------------------------------------------------------------------------


def test_hundreds_of_training_steps_leave_nothing_behind():
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
    train(300)
    after = tensors()
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 50


def test_a_step_frees_its_graph_without_the_garbage_collector():
    layer = eq.Equilibrium(Affine())
    gc.collect()
    gc.disable()
    try:
        z = layer(inputs())
        graph = weakref.ref(z.grad_fn.graph)  # of the evaluation at the equilibrium
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
        """Bytes that autograd keeps, memories of the size of the state that live on, and steps taken."""
        layer = eq.Equilibrium(Slow(), solver=eq.Picard(), gradient=gradient, stop=eq.Stop(rtol=rtol))
        x = 0.05 * inputs(64, 32)
        by_autograd = stored_bytes(lambda: layer(x))
        gc.collect()
        z = layer(x)
        tensors = [o for o in gc.get_objects() if type(o) in (torch.Tensor, nn.Parameter)]
        live = sizes(t for t in tensors if t.numel() == z.numel() and t.device == z.device)
        return by_autograd, len(live), int(layer.last.forward.steps.max())

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
        ({"gradient": eq.Implicit}, TypeError, r"gradient must be .* a Gradient such as eq\.Implicit\(\)"),
        ({"gradient": "explicit"}, TypeError, "gradient must be 'implicit'"),
        ({"stop": 1e-4}, TypeError, r"stop must be a Stop such as eq\.Stop\(rtol=1e-6\)"),
        ({"on_failure": "ignore"}, ValueError, r"on_failure must be one of .*'raise'.* Got 'ignore'"),
        ({"precision": "half"}, ValueError, "precision must be 'auto', 'native' or 'mixed'"),
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


def test_a_process_of_a_group_has_the_gradients_of_one_without(tmp_path):
    """The hooks by which processes share gradients see every parameter: here, with a group of one."""
    stop, x = eq.Stop(rtol=1e-12), inputs()
    model = nn.Sequential(
        eq.Equilibrium(Affine(), stop=stop, gradient=eq.Implicit(stop=stop)), nn.Linear(3, 1, dtype=DTYPE)
    )
    model(x).square().mean().backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(model)
        seen = []
        parallel.register_comm_hook(seen, shared)
        parallel(x).square().mean().backward()
    finally:
        distributed.destroy_process_group()
    assert {id(p) for p in seen} == {id(p) for p in model.parameters()}
    for p, g in zip(model.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-9, atol=1e-12)


def shared(seen: list, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    seen.extend(bucket.parameters())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@pytest.mark.slow
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
            out, err = worker.communicate()
            assert worker.returncode == 0, err[-2000:]
            assert "same gradients" in out
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
