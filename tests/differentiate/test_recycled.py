"""Recycled: a gradient by the history of the forward solver, of which the error is measured."""

import gc
import json
import weakref

import pytest
import torch
from torch import nn

import equipoise as eq
from contracts.gradient import DTYPE, STOP, GradientContract, make_case, relative
from equipoise.differentiate import Method
from equipoise.models.methods import method_config, spelled_out

CLOSE = eq.Stop(rtol=1e-10)


class TestRecycled(GradientContract):
    gradient = eq.Recycled(200)  # refined to the tolerance of the layer
    exact = False

    def test_refined_it_comes_to_the_exact_gradient(self):
        for name in ("tanh", "wider state", "relu", "linear", "tuple", "conv", "shared"):
            case = make_case(name)
            exact = self.gradients_of(case, case.unrolled(150))
            for got, want in zip(self.gradients(case), exact, strict=True):
                assert relative(got, want) < 1e-10


def linear_case(m: int, rows: int, steps: int) -> tuple[eq.Equilibrium, torch.Tensor, torch.Tensor]:
    """z = W z + x with W symmetric, of a few slow directions, and how it is solved."""
    torch.manual_seed(3)
    basis = torch.linalg.qr(torch.randn(m, m, dtype=DTYPE)).Q
    W = (basis * torch.linspace(0.9, -0.2, m, dtype=DTYPE)) @ basis.T
    layer = eq.Equilibrium(lambda z, x, W: z @ W.T + x, gradient=eq.Recycled(steps), stop=CLOSE)
    return layer, torch.randn(rows, m, dtype=DTYPE, requires_grad=True), W


def adjoint(layer: eq.Equilibrium, x: torch.Tensor, W: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(layer(x, shared=(W,)), x, g)[0]


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("solver", [eq.Anderson(), eq.Anderson(3, damping=0.5), eq.Broyden(), eq.Picard()])
def test_the_residual_on_record_is_the_true_one(solver, steps):
    layer, x, W = linear_case(12, 5, steps)
    layer.solver = solver
    g = torch.randn(5, 12, dtype=DTYPE)
    u = adjoint(layer, x, W, g)  # ∂f/∂x = I, so that the gradient in x is u itself
    told = layer.last.adjoint
    residual = (g + u @ W - u).norm(dim=1)
    torch.testing.assert_close(told.residual, residual, rtol=1e-9, atol=1e-14)
    assert torch.equal(told.converged, residual <= told.tolerance)
    assert bool((residual > 1e-4).any())  # an approximation, and called one
    assert "history" in told.solver


def test_a_solver_that_has_learned_everything_gives_the_exact_gradient():
    layer, x, W = linear_case(4, 6, 0)  # in four dimensions every direction has been taken
    layer.solver = eq.Anderson(20)
    g = torch.randn(6, 4, dtype=DTYPE)
    want = g @ torch.linalg.inv(torch.eye(4, dtype=DTYPE) - W)
    assert relative(adjoint(layer, x, W, g), want) < 1e-4
    assert relative(g, want) > 0.3  # what the Jacobian-free gradient is off by


def trace(layer: eq.Equilibrium, x: torch.Tensor, W: torch.Tensor) -> eq.solve.Trace:
    how = {"solver": layer.solver, "stop": layer.stop, "trace": True}
    return eq.fixed_point(lambda z, x, W: z @ W.T + x, 0 * x.detach(), (x.detach(),), (W,), **how).trace


def test_what_broyden_has_learned_holds_for_its_last_step():
    """H y = s for s = Δz and y = Δg, so that ⟨B g, y⟩ = −⟨g, H y⟩ = −⟨g, s⟩ for every g."""
    layer, x, W = linear_case(12, 3, 0)
    layer.solver = eq.Broyden(40)
    for g in torch.randn(4, 3, 12, dtype=DTYPE):
        u, traced = adjoint(layer, x, W, g), trace(layer, x, W)
        for row in range(3):
            last = int(layer.last.forward.steps[row])
            assert last <= 40  # later it starts afresh
            before, z = traced.iterates(row)[last - 2 : last]
            s = z - before
            torch.testing.assert_close(u[row] @ (s @ W.T - s), -(g[row] @ s), rtol=1e-5, atol=1e-9 * s.norm())


def test_what_anderson_has_learned_is_the_multisecant_inverse():
    """B = I − ΔG (ΔGᵀΔG)⁻¹ ΔFᵀ of the last differences of each row, from the trace of its iterates."""
    layer, x, W = linear_case(12, 3, 0)
    layer.solver, layer.stop = eq.Anderson(4), eq.Stop(rtol=1e-5)
    g = torch.randn(3, 12, dtype=DTYPE)
    u = adjoint(layer, x, W, g)
    traced = trace(layer, x, W)
    for row in range(3):
        last = int(layer.last.forward.steps[row])
        assert 5 <= last <= 24  # later it would keep more differences
        z = traced.iterates(row)[last - 5 : last]
        f = z @ W.T + x[row].detach()
        F, G = f.diff(dim=0).T, (f - z).diff(dim=0).T
        B = torch.eye(12, dtype=DTYPE) - G @ torch.linalg.inv(G.T @ G) @ F.T
        assert relative(u[row], B @ g[row]) < 1e-3


def test_its_steps_make_the_error_smaller():
    errors = []
    for steps in (0, 2, 6, 20):
        layer, x, W = linear_case(30, 4, steps)
        g = torch.ones(4, 30, dtype=DTYPE)
        adjoint(layer, x, W, g)
        errors.append(float(layer.last.adjoint.residual.max()))
        assert layer.last.adjoint.counts.evaluations <= steps + 2
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3 * errors[0]


def test_the_backward_pass_takes_one_product():
    calls = []

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(0.5, dtype=DTYPE))

        def forward(self, z, x):
            out = torch.tanh(self.w * z) + x
            if out.requires_grad:
                out.register_hook(lambda g: calls.append(1))
            return out

    layer = eq.Equilibrium(Cell(), gradient=eq.Recycled())
    layer(torch.ones(2, 3, dtype=DTYPE)).sum().backward()
    assert len(calls) == 1
    assert layer.last.adjoint.counts.evaluations == 1


def test_rows_that_are_masked_have_no_gradient_and_others_keep_their_history():
    layer, x, W = linear_case(4, 5, 0)
    layer.solver = eq.Anderson(20)
    layer.on_failure = eq.OnFailure("mask", share=0.5)
    g = torch.randn(5, 4, dtype=DTYPE)
    want = g @ torch.linalg.inv(torch.eye(4, dtype=DTYPE) - W)
    bad = x.detach().clone()
    bad[2] = torch.inf
    u = adjoint(layer, bad.requires_grad_(), W, g)
    assert bool((u[2] == 0).all())
    rows = [0, 1, 3, 4]
    assert relative(u[rows], want[rows]) < 1e-4
    assert layer.last.masked == 1


def test_history_is_let_go_with_the_graph():
    layer, x, W = linear_case(6, 2, 0)
    z = layer(x, shared=(W,))
    assert layer.last.forward.inverse is None
    assert layer.last.inverse is None
    seen = weakref.ref(z.grad_fn)
    del z
    gc.collect()
    assert seen() is None


def test_it_is_first_order_and_eager_and_says_so():
    case = make_case("tanh")
    layer = case.layer(eq.Recycled(), stop=STOP)
    x = case.x.clone().requires_grad_()
    (got,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        got.sum().backward()
    with pytest.raises(RuntimeError, match=r"Recycled reads the history.*Implicit\(\)"):
        torch.func.grad(lambda x: layer(x).sum())(case.x)
    w = (torch.eye(3, dtype=DTYPE) / 2).requires_grad_()
    closed = eq.Equilibrium(lambda z, x: z @ w + x, gradient=eq.Recycled())
    with pytest.raises(RuntimeError, match=r"closes over `w`, to which Recycled has no gradient"):
        closed(case.x)


def test_audit_measures_its_error_and_does_not_call_it_exact():
    case = make_case("tanh")
    own = eq.audit(case.layer(eq.Recycled()), case.x, modes=[])
    assert not own.ok()
    beside = eq.audit(case.layer(), case.x, modes=[eq.Recycled()])
    assert beside.ok()
    assert not any(row.held for row in beside.rows if row.mode.startswith("Recycled"))


def test_a_file_holds_it():
    kept = json.loads(json.dumps(method_config(Method(gradient=eq.Recycled(2)))))
    assert spelled_out(kept)["gradient"] == eq.Recycled(2)


@pytest.mark.parametrize("steps", [-1, 1.5, True, None])
def test_wrong_options_are_refused(steps):
    with pytest.raises(ValueError, match="steps must be an integer ≥ 0"):
        eq.Recycled(steps)
