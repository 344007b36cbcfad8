"""on_failure="count": what a budget of steps reaches is used, and rows that it does not solve are told."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq

DTYPE = torch.float64


class Cell(nn.Module):
    """tanh(W z) + x; where `hard`, −3 sign(z) + x, which jumps for ever."""

    def __init__(self) -> None:
        super().__init__()
        w = torch.randn(3, 3, dtype=DTYPE, generator=torch.Generator().manual_seed(0))
        self.W = nn.Parameter(0.6 * w / torch.linalg.matrix_norm(w, ord=2))

    def forward(self, z: Tensor, x: Tensor, hard: Tensor) -> Tensor:
        return torch.where(hard, -3 * z.sign(), torch.tanh(z @ self.W.T)) + x


X = torch.randn(6, 3, dtype=DTYPE, generator=torch.Generator().manual_seed(1))
HARD = torch.tensor([False, True, False, False, True, False])[:, None]
GOOD, BAD = [0, 2, 3, 5], [1, 4]


def layer(on_failure: object = "count") -> eq.Equilibrium:
    return eq.Equilibrium(Cell(), on_failure=on_failure)


def told(switch: object, *args: object) -> list[str]:
    """What a call warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        switch(*args)
    assert all(issubclass(one.category, eq.EquilibriumWarning) for one in caught)
    return [str(one.message) for one in caught]


def test_statuses_are_true_and_a_call_takes_no_more_steps_than_it_may():
    counted = layer(eq.OnFailure("count", steps=12))
    z = counted(X, HARD).detach()
    found = counted.last.forward
    assert found.failed_rows == BAD
    assert int(found.steps.max()) == 12
    residual = (counted.cell(z, X, HARD) - z).norm(dim=1)
    torch.testing.assert_close(found.residual, residual, rtol=1e-6, atol=1e-14)
    assert bool((residual[BAD] > 1).all())
    assert bool((residual[GOOD] <= found.tolerance[GOOD]).all())
    assert counted.last.used == 2


def test_rows_that_converge_have_the_exact_gradient_beside_rows_that_do_not():
    counted, exact = layer(), layer("raise")
    x, alone = X.clone().requires_grad_(), X[GOOD].clone().requires_grad_()
    g = torch.linspace(1, 2, 18, dtype=DTYPE).view(6, 3)
    (counted(x, HARD) * g).sum().backward()
    (exact(alone, HARD[GOOD]) * g[GOOD]).sum().backward()
    assert counted.last.adjoint.failed_rows == []
    torch.testing.assert_close(x.grad[GOOD], alone.grad, rtol=1e-6, atol=0)
    torch.testing.assert_close(x.grad[BAD], g[BAD])  # ∂f/∂z = 0 at the last iterates of these
    torch.testing.assert_close(counted.cell.W.grad, exact.cell.W.grad, rtol=1e-6, atol=0)


def test_training_is_told_once_and_evaluation_at_its_first_call():
    counted = layer()
    for _ in range(3):  # a warning here would be an error
        counted(X, HARD).sum().backward()
    (message,) = told(counted.eval)
    assert message.startswith("6 of 18 samples did not converge since the last train() or eval()")
    before = counted(X[GOOD], HARD[GOOD])
    (message,) = told(counted, X, HARD)
    assert message.startswith("2 of 6 samples have no equilibrium")
    assert "row 4: max_steps after 30 steps" in message
    assert told(counted, X, HARD) == []
    (message,) = told(counted.train)  # of the calls that have not been told of
    assert message.startswith("2 of 10 samples did not converge")
    assert told(counted.eval) == []
    torch.testing.assert_close(before, counted(X[GOOD], HARD[GOOD]), rtol=0, atol=0)


def test_training_and_evaluation_give_the_same_state():
    counted = layer()
    trained = counted(X, HARD).detach()
    told(counted.eval)
    with pytest.warns(eq.EquilibriumWarning):
        torch.testing.assert_close(counted(X, HARD).detach(), trained, rtol=0, atol=1e-12)


def test_an_adjoint_that_is_cut_short_is_on_record_and_told():
    """z = Q z/1.01 + x turns in 40 dimensions: four steps do not solve that, even from the solution."""
    q = torch.linalg.qr(torch.randn(40, 40, dtype=DTYPE, generator=torch.Generator().manual_seed(2))).Q / 1.01
    x = torch.ones(2, 40, dtype=DTYPE, requires_grad=True)
    start = torch.linalg.solve(torch.eye(40, dtype=DTYPE) - q, x.detach().T).T
    counted = eq.Equilibrium(lambda z, x, q: z @ q.T + x, on_failure="count")
    z = counted(x, shared=(q,), start=start)
    assert counted.last.used == 0
    (z * torch.linspace(0, 1, 40, dtype=DTYPE)).sum().backward()
    assert counted.last.adjoint.failed_rows == [0, 1]
    assert int(counted.last.adjoint.steps.max()) == 4
    (message,) = told(counted.eval)
    assert message.startswith("2 of 2 samples had a truncated gradient since")
    exact = eq.Equilibrium(lambda z, x, q: z @ q.T + x)
    told(counted.train)
    counted.gradient = eq.Implicit(stop=eq.Stop(max_steps=500))  # a gradient that is named is taken
    found = [torch.autograd.grad(one(x, shared=(q,), start=start).sum(), x)[0] for one in (counted, exact)]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_solve_and_a_stricter_call_are_not_limited():
    counted = layer()
    assert counted.solve(X[GOOD], HARD[GOOD]).stop.max_steps == eq.Stop().max_steps
    with pytest.raises(eq.EquilibriumError, match="max_steps=500") as caught:
        counted(X, HARD, on_failure="raise")
    assert "on_failure='count'" not in str(caught.value).splitlines()[0]
    assert counted.last.used is None


def test_a_family_that_is_no_cell_takes_its_own_steps_and_gradient():
    torch.manual_seed(0)
    x = torch.randn(5, 3, dtype=DTYPE)
    model = eq.GaussianReLU(inputs=3, width=20, dtype=DTYPE)
    model(x).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.on_failure = eq.OnFailure("count", steps=1)
    model(x).sum().backward()
    assert bool(model.last.forward.converged.all())
    for grad, p in zip(grads, model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-9, atol=1e-12)


def test_a_last_iterate_that_is_not_finite_is_refused():
    x = X.clone()
    x[3] = torch.nan
    with pytest.raises(eq.EquilibriumError, match=r"row 3: nonfinite[\s\S]*which must be finite"):
        layer()(x, HARD)


@pytest.mark.parametrize("steps", [0, -3, 2.5, True, None])
def test_a_budget_is_a_number_of_steps(steps):
    with pytest.raises(ValueError, match=r"steps must be an integer ≥ 1\. Got"):
        eq.OnFailure("count", steps=steps)


@pytest.mark.parametrize("solver", [None, eq.Picard(), eq.Anderson(), eq.Broyden(), eq.Newton()])
def test_the_error_of_a_layer_names_the_policies_and_no_solver_that_has_run(solver):
    strict = eq.Equilibrium(Cell(), solver=solver)
    with pytest.raises(eq.EquilibriumError) as caught:
        strict(X, HARD)
    message = str(caught.value)
    for policy in ("'raise'", "'mask'", "'count'", "'warn'", "'accept'"):
        assert policy in message
    advice = [line.split("; try ")[1] for line in message.splitlines() if "; try " in line]
    assert advice
    for ran in caught.value.solution.solver.split(" → "):
        assert not any(ran in line for line in advice)
