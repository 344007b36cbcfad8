"""The evaluation that verifies an equilibrium is the one its gradient is recorded from."""

import warnings

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.solve.driver import approach, confirm

RTOL = 1e-9


class Counted(nn.Module):
    """f(z, x) = σ(Wz + x), and how often it was asked."""

    def __init__(self, W, curved=True):
        super().__init__()
        self.W, self.curved, self.calls = nn.Parameter(W), curved, 0

    def forward(self, z, x):
        self.calls += 1
        p = z @ self.W.T + x
        return torch.tanh(p) if self.curved else p


def contraction(m=6, norm=0.5, seed=0):
    W = torch.randn(m, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return norm * W / torch.linalg.matrix_norm(W, 2)


def rows(n=5, m=6, seed=1):
    return torch.randn(n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def two_speeds():
    """Residuals fall at .05 a step first and at .9 later: a forecast by the first rate falls short."""
    return Counted(torch.diag(torch.tensor([0.05, 0.9], dtype=torch.float64)), curved=False)


SLOW_START = torch.tensor([[1.0, 1e-8]], dtype=torch.float64)


def test_a_gradient_costs_no_evaluation_of_its_own():
    cell = Counted(contraction())
    layer = eq.Equilibrium(cell, solver=eq.Picard(), stop=eq.Stop(rtol=RTOL))
    with torch.no_grad():
        layer(rows())
    plain, cell.calls = cell.calls, 0
    z = layer(rows())
    # Without a gradient, one more evaluation confirms that samples which ended sooner were rightly left out.
    assert cell.calls in (plain, plain - 1)
    cell.calls = 0
    z.sum().backward()
    assert cell.calls == 0


@pytest.mark.parametrize("solver", [eq.Picard(), eq.Picard(damping=0.7), (eq.Picard(), eq.Anderson())])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_reported_is_true(solver, seed):
    cell, x = Counted(contraction(norm=0.8, seed=seed)), rows(seed=seed + 10)
    layer = eq.Equilibrium(cell, solver=solver, stop=eq.Stop(rtol=RTOL))
    z = layer(x).detach()
    found = layer.last.forward
    with torch.no_grad():
        fz = cell(z, x)
    assert found.converged.all()
    torch.testing.assert_close(found.residual, (fz - z).norm(dim=1), rtol=1e-6, atol=1e-15)
    assert (found.residual <= found.stop.tolerance(fz.norm(dim=1))).all()
    assert layer.last.graph is None


def test_a_row_that_falls_short_of_its_forecast_is_solved_on():
    cell, x = two_speeds(), SLOW_START
    start = torch.zeros_like(x)
    forecast = approach(cell, start, (x,), solver=eq.Picard(), stop=eq.Stop(rtol=1e-9))
    assert forecast.converged.all()
    with torch.no_grad():
        judged = confirm(forecast, cell(forecast.value, x))
    assert not judged.converged.any()  # the forecast was wrong, and that is seen

    layer = eq.Equilibrium(cell, solver=eq.Picard(), stop=eq.Stop(rtol=1e-9))
    x = x.clone().requires_grad_()
    z = layer(x)
    found = layer.last.forward
    assert found.converged.all()
    assert found.steps.max() > forecast.steps.max()
    with torch.no_grad():
        torch.testing.assert_close(found.residual, (cell(z, x) - z).norm(dim=1), rtol=1e-6, atol=1e-15)
    z.sum().backward()
    torch.testing.assert_close(x.grad, 1 / (1 - torch.diag(cell.W.detach()))[None], rtol=1e-7, atol=0)


def test_a_slow_row_beside_a_fast_one_is_not_taken_for_a_runaway():
    class Scaled(nn.Module):
        def forward(self, z, x):  # x = the slope, z* = 1
            return x * z + (1 - x)

    slopes = torch.tensor([[0.3], [0.95]], dtype=torch.float64, requires_grad=True)
    start = torch.tensor([[1 - 6e-3 / 0.7], [1 - 1.9e-3 / 0.05]], dtype=torch.float64)  # 6 and 1.9 tolerances
    layer = eq.Equilibrium(Scaled(), solver=eq.Picard(), stop=eq.Stop(rtol=1e-3), state=(1,))
    layer(slopes, start=start)
    assert layer.last.forward.converged.all()


def test_rows_without_an_equilibrium_end_as_they_do_without_a_gradient():
    class Scaled(nn.Module):
        def forward(self, z, x):  # x = the slope: one row contracts, one grows, one is not a number
            return x * z + 1

    slopes = torch.tensor([[0.5], [1.5], [float("nan")]], dtype=torch.float64, requires_grad=True)
    layer = eq.Equilibrium(
        Scaled(), solver=eq.Picard(), stop=eq.Stop(rtol=1e-8, max_steps=60), on_failure="accept"
    )
    with torch.no_grad():
        layer(slopes)
    plain = layer.last.forward
    layer(slopes)
    found = layer.last.forward
    assert found.status.tolist() == plain.status.tolist()
    assert found.status.tolist()[0] == eq.Status.converged
    assert eq.Status.converged not in found.status.tolist()[1:]


@pytest.mark.parametrize("policy", ["raise", "warn", "mask", "accept"])
def test_no_graph_outlives_the_call(policy):
    class Scaled(nn.Module):
        def forward(self, z, x):
            return x * z + 1

    slopes = torch.tensor([[0.5], [0.4], [1.5]], dtype=torch.float64, requires_grad=True)
    layer = eq.Equilibrium(
        Scaled(), solver=eq.Picard(), stop=eq.Stop(max_steps=60), on_failure=eq.OnFailure(policy, share=0.5)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eq.EquilibriumWarning)
        try:
            layer(slopes)
        except eq.EquilibriumError:
            assert policy == "raise"
    assert layer.last.graph is None


def test_the_limit_on_steps_holds():
    cell = Counted(contraction(norm=0.99))
    layer = eq.Equilibrium(
        cell, solver=eq.Picard(), stop=eq.Stop(rtol=1e-12, max_steps=7), on_failure="accept"
    )
    z, x = layer(rows()).detach(), rows()
    found = layer.last.forward
    assert found.steps.tolist() == [7] * 5
    with torch.no_grad():
        torch.testing.assert_close(found.residual, (cell(z, x) - z).norm(dim=1))


# -- the adjoint ---------------------------------------------------------------------------------------------


class Passed(torch.autograd.Function):
    """The identity, which counts how often a gradient comes through."""

    count = 0

    @staticmethod
    def forward(ctx, p):
        return p.clone()

    @staticmethod
    def backward(ctx, g):
        Passed.count += 1
        return g


class Watched(Counted):
    def forward(self, z, x):
        return Passed.apply(super().forward(z, x))


@pytest.mark.parametrize("seed", range(4))
def test_the_product_that_verifies_an_adjoint_gives_the_gradient(seed):
    x, stop = rows(seed=seed), eq.Stop(rtol=RTOL)
    found = {}
    for name, solver in (("Picard", eq.Picard()), ("GMRES", eq.GMRES())):
        cell = Watched(contraction(norm=0.7, seed=seed))
        layer = eq.Equilibrium(cell, gradient=eq.Implicit(solver, stop), stop=eq.Stop(rtol=1e-12))
        z = layer(x)
        Passed.count = 0
        z.cos().sum().backward()
        adjoint = layer.last.adjoint
        assert adjoint.converged.all()
        found[name] = cell.W.grad
        extra = Passed.count - adjoint.counts.evaluations
        assert extra == 0  # the product that verifies is counted, and serves the gradient
    torch.testing.assert_close(found["Picard"], found["GMRES"], rtol=1e-7, atol=1e-9)


def test_an_adjoint_that_falls_short_of_its_forecast_is_solved_on():
    cell = two_speeds()
    layer = eq.Equilibrium(
        cell, gradient=eq.Implicit(eq.Picard(), eq.Stop(rtol=1e-9)), stop=eq.Stop(rtol=1e-12)
    )
    x = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    (layer(x) * SLOW_START).sum().backward()
    adjoint = layer.last.adjoint
    assert adjoint.converged.all()
    W = torch.diag(cell.W.detach())[None]
    u = SLOW_START / (1 - W)
    torch.testing.assert_close(x.grad, u, rtol=0, atol=1e-7)
    torch.testing.assert_close(adjoint.value, u, rtol=0, atol=1e-7)
    torch.testing.assert_close(
        adjoint.residual, (SLOW_START + W * adjoint.value - adjoint.value).norm(dim=1), rtol=1e-4, atol=1e-17
    )
