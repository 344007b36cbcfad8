import pytest
import torch
from torch import nn

import equipoise as eq
from contracts.gradient import DTYPE, STOP, GradientContract, TanhCell, make_case, relative, shrink
from equipoise.solve import Broyden, Newton, PeacemanRachford


class TestGMRES(GradientContract):
    gradient = eq.Implicit(stop=STOP)
    thorough = ("tanh", "wider state", "relu", "linear")


class TestAnderson(GradientContract):
    gradient = eq.Implicit(solver=eq.Anderson(), stop=STOP)


class TestPicard(GradientContract):
    gradient = eq.Implicit(solver=eq.Picard(), stop=STOP)


def gradients_with(gradient, name="tanh"):
    case = make_case(name)
    return GradientContract().gradients_of(case, case.function(case.layer(gradient)))


@pytest.mark.parametrize(
    "solver",
    [
        eq.GMRES(restart=2),
        [eq.Picard(damping=0.01), eq.Anderson()],
        eq.Anderson(memory=2, damping=0.7),
        Newton(),
        Broyden(),
    ],
    ids=str,
)
def test_every_solver_finds_the_same_adjoint(solver):
    stop = eq.Stop(rtol=1e-13, max_steps=60)
    for name in ("tanh", "tuple"):
        got, want = gradients_with(eq.Implicit(solver, stop), name), gradients_with(eq.Implicit(), name)
        for a, b in zip(got, want, strict=True):
            assert relative(a, b) < 1e-7


def test_third_derivatives_equal_those_of_a_long_unroll():
    case = make_case("tanh")

    def third(f):
        tensors = case.tensors
        value = f(*tensors).pow(3).sum()
        for order in range(3):
            grads = torch.autograd.grad(value, tensors, create_graph=order < 2)
            value = sum((g * torch.linspace(-1, 2, g.numel(), dtype=DTYPE).view_as(g)).sum() for g in grads)
        return grads

    for got, want in zip(
        third(case.function(case.layer(eq.Implicit(stop=STOP)))), third(case.unrolled(150)), strict=True
    ):
        assert want.norm() > 1e-2
        assert relative(got, want) < 1e-9


def test_gmres_differentiates_where_plain_iteration_would_diverge():
    # z = tanh(−3 z) + x + …: ∂f/∂z has eigenvalues near −3, the equilibrium is unique all the same.
    def f(z, x):
        return torch.tanh(-3 * z) + 0.1 * x

    x = torch.linspace(-1, 1, 4, dtype=DTYPE)[:, None].requires_grad_()
    stop = eq.Stop(rtol=1e-12)
    layer = eq.Equilibrium(f, solver=[eq.Picard(damping=0.3), eq.Anderson()], stop=stop)
    z = layer(x)
    (got,) = torch.autograd.grad(z.sum(), x)
    slope = -3 * (1 - torch.tanh(-3 * z.detach()) ** 2)
    assert slope.min() < -2.5
    torch.testing.assert_close(got, 0.1 / (1 - slope), rtol=1e-9, atol=0)

    layer.gradient = eq.Implicit(solver=eq.Picard())
    with pytest.raises(eq.EquilibriumError, match=r"adjoint of the forward solve: . of 4.*after Picard"):
        torch.autograd.grad(layer(x).sum(), x)


# -- the tolerance of a linear equation knows no scale --------------------------------------------------


@pytest.mark.parametrize("solver", [eq.GMRES(), eq.Anderson(), eq.Picard()], ids=str)
@pytest.mark.parametrize("factor", [1e-9, 1e-25, 1e20])
def test_small_and_large_losses_have_proportional_gradients(solver, factor):
    torch.manual_seed(0)
    cell = TanhCell()
    with torch.no_grad():
        cell.w.weight *= 0.5 / torch.linalg.matrix_norm(cell.w.weight, ord=2)
    layer = eq.Equilibrium(cell, gradient=eq.Implicit(solver))
    x = torch.randn(5, 3)
    weight = cell.w.weight
    want = torch.autograd.grad(layer(x).sum(), weight)[0]
    got = torch.autograd.grad(layer(x).sum() * factor, weight)[0]
    torch.testing.assert_close(got / factor, want, rtol=1e-5, atol=0)


# -- failures of the adjoint ----------------------------------------------------------------------------


def stiff_layer(**options):
    """z = a(x) z + b with a = 1 − 1e-6 in row 1: started at its solution, but slow to differentiate."""

    class Stiff(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Parameter(torch.ones(2, dtype=DTYPE))

        def forward(self, z, x):
            return x * z + (1 - x) * self.b

    x = torch.tensor([[0.5, 0.4], [1 - 1e-6, 0.9], [0.2, 0.3]], dtype=DTYPE)
    gradient = eq.Implicit(eq.Picard(), eq.Stop(max_steps=40))
    return eq.Equilibrium(Stiff(), gradient=gradient, **options), x


def test_an_adjoint_that_does_not_converge_is_an_error_that_names_the_row():
    layer, x = stiff_layer()
    z = layer(x, start=torch.ones_like(x))
    with pytest.raises(eq.EquilibriumError, match="adjoint of the forward solve: 1 of 3") as caught:
        z.sum().backward()
    assert "row 1: max_steps after 40 steps" in str(caught.value)
    assert layer.last.adjoint.failed_rows == [1]
    assert layer.last.forward.converged.all()


def test_an_adjoint_that_fails_is_masked_row_by_row():
    layer, x = stiff_layer(on_failure=eq.OnFailure("mask", share=0.4))
    x.requires_grad_()
    z = layer(x, start=torch.ones_like(x).detach())
    (z * torch.tensor([[1.0], [2.0], [3.0]], dtype=DTYPE)).sum().backward()
    assert layer.last.masked == 1
    # u = g/(1 − x) row by row, b̄ = Σ u (1 − x) = Σ g over the good rows
    torch.testing.assert_close(layer.cell.b.grad, torch.full((2,), 4.0, dtype=DTYPE), rtol=1e-6, atol=0)
    assert bool((x.grad[1] == 0).all())

    layer, x = stiff_layer(on_failure="mask")
    with pytest.raises(eq.EquilibriumError, match=r"on_failure='mask' allows 10% of a batch to fail"):
        layer(x, start=torch.ones_like(x)).sum().backward()


def test_a_masked_adjoint_with_an_infinite_derivative_does_not_spoil_the_others():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.tensor(0.5, dtype=DTYPE))

        def forward(self, z, x):  # at z = 0 the root has an infinite slope in z and in a
            return torch.sqrt(self.a * z) * x

    x = torch.tensor([[1.0], [0.8], [1.0]], dtype=DTYPE)
    start = torch.tensor([[0.5], [0.32], [0.0]], dtype=DTYPE)  # the solutions a x², and 0
    layer = eq.Equilibrium(Root(), on_failure=eq.OnFailure("mask", share=0.5))
    layer(x, start=start).sum().backward()
    assert layer.last.masked == 1
    # z = a x², dz/da = x²
    torch.testing.assert_close(layer.cell.a.grad, torch.tensor(1 + 0.64, dtype=DTYPE), rtol=1e-7, atol=0)


def test_warned_and_accepted_adjoints_are_used_as_they_are():
    layer, x = stiff_layer(on_failure="warn")
    with pytest.warns(eq.EquilibriumWarning, match="adjoint of the forward solve"):
        layer(x, start=torch.ones_like(x)).sum().backward()
    warned = layer.cell.b.grad
    layer, x = stiff_layer(on_failure="accept")
    layer(x, start=torch.ones_like(x)).sum().backward()
    assert torch.equal(layer.cell.b.grad, warned)
    assert layer.last.adjoint.failed_rows == [1]


def test_second_derivatives_follow_the_policy_too():
    layer, x = stiff_layer(on_failure="accept")
    z = layer(x, start=torch.ones_like(x))
    torch.autograd.grad(z.sum(), layer.cell.b, create_graph=True)
    for policy, message in (
        ("raise", "adjoint solve: 1 of 3 samples"),
        (eq.OnFailure("mask", share=0.9), "not of a torch.func transform or a second derivative"),
    ):
        layer, x = stiff_layer(on_failure=policy)
        z = layer(x, start=torch.ones_like(x))
        with pytest.raises(eq.EquilibriumError, match=message):
            torch.autograd.grad(z.sum(), layer.cell.b, create_graph=True)


def test_a_nonfinite_gradient_from_above_names_its_row():
    case = make_case("tanh")
    z = case.layer()(case.x)
    with pytest.raises(eq.EquilibriumError, match=r"adjoint(.|\n)*row 1: nonfinite"):
        z.backward(torch.tensor([[1.0, 1, 1], [torch.nan, 1, 1]], dtype=DTYPE))


def test_the_adjoint_is_on_record_and_its_own_tolerance_is_kept():
    case = make_case("tanh")
    layer = case.layer(eq.Implicit(eq.Picard(), eq.Stop(rtol=1e-3)))
    layer(case.x).sum().backward()
    loose = layer.last.adjoint
    layer.gradient = eq.Implicit(eq.Picard(), eq.Stop(rtol=1e-13, atol=1e-16))
    layer(case.x).sum().backward()
    tight = layer.last.adjoint
    assert loose.converged.all()
    assert tight.converged.all()
    assert (tight.relative_residual <= 1e-13).all()
    assert loose.counts.evaluations < tight.counts.evaluations
    assert not tight.value.requires_grad


# -- misuse ---------------------------------------------------------------------------------------------


def test_parameters_changed_before_the_backward_pass_are_noticed():
    case = make_case("tanh")
    loss = case.layer()(case.x).sum()
    with torch.no_grad():
        case.cell.w.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of torch's own forward mode
def test_batched_vectors_of_the_old_kind_are_refused_with_the_remedy():
    case = make_case("tanh")
    for options in ({}, {"strategy": "forward-mode"}):
        with pytest.raises(RuntimeError, match=r"use torch\.func\.vjp, jacrev or hessian"):
            torch.autograd.functional.jacobian(case.layer(), case.x, vectorize=True, **options)


@pytest.mark.parametrize(
    "solver",
    [eq.GMRES, eq.Anderson, "gmres", PeacemanRachford(), [eq.GMRES(), eq.Picard()], [eq.Picard]],
    ids=str,
)
def test_solvers_that_cannot_serve_are_refused(solver):
    with pytest.raises(TypeError, match=r"solver must be GMRES\(\), a solver for a general f"):
        eq.Implicit(solver=solver)


def test_other_wrong_options_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        eq.Implicit(solver=[])
    with pytest.raises(TypeError, match="stop must be a Stop"):
        eq.Implicit(stop=1e-6)
    with pytest.raises(ValueError, match="restart must be an integer ≥ 1"):
        eq.GMRES(restart=0)
    cell = shrink(TanhCell()).float()
    layer = eq.Equilibrium(cell, gradient=eq.Implicit(stop=eq.Stop(rtol=1e-12)))
    with pytest.raises(ValueError, match=r"rtol must be at least .* what torch.float32 arithmetic can reach"):
        layer(torch.ones(2, 3)).sum().backward()
