"""Cells that mix the samples of a batch: found out, never answered."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import equipoise as eq
from equipoise.solve import Counts, OnFailure, Solution
from equipoise.solve.driver import finish


def mixing(z, x):
    """Rows of very different speed, each pulled by the mean of all."""
    return torch.tanh(x[:, :1] * z + 3 * z.mean(dim=0) + x)


class AttentionAcrossRows(nn.Module):
    def forward(self, z, x):
        weights = torch.softmax(z @ z.T, dim=1)  # (N, N)
        return 0.5 * torch.tanh(weights @ z + x) + x[:, :1] * z


def rows(n=8):
    x = torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[:, 0] = torch.linspace(0.0, 0.9, n, dtype=torch.float64)
    return x


def true_residual(f, z, x):
    return (f(z, x) - z).norm(dim=1)


@pytest.mark.parametrize("solver", [eq.Picard(), eq.Anderson(), [eq.Picard(), eq.Newton()]], ids=str)
@pytest.mark.parametrize("cell", [mixing, AttentionAcrossRows()], ids=["mean", "attention"])
def test_no_sample_of_a_mixing_map_is_said_to_have_converged_that_has_not(cell, solver):
    x = rows()
    found = eq.fixed_point(cell, torch.zeros_like(x), args=(x,), solver=solver, stop=eq.Stop(max_steps=200))
    residual = true_residual(cell, found.value, x)
    torch.testing.assert_close(found.residual, residual, rtol=1e-6, atol=1e-12)
    assert (residual[found.converged] <= 2e-8 * found.scale[found.converged]).all()


@given(
    st.floats(0.0, 3.0),
    st.sampled_from([eq.Picard(), eq.Anderson(), eq.Broyden(), eq.Newton(), [eq.Picard(), eq.Anderson()]]),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(max_examples=12)
def test_whatever_the_mixing_no_status_is_false(strength, solver, closed, seed):
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    f = lambda z, x: torch.tanh(x[:, :1].sigmoid() * z + strength * z.roll(1, dims=0) + x)
    stop = eq.Stop(max_steps=60)
    if closed:
        found = eq.fixed_point(lambda z: f(z, x), torch.zeros_like(x), solver=solver, stop=stop)
    else:
        found = eq.fixed_point(f, torch.zeros_like(x), args=(x,), solver=solver, stop=stop)
    residual = true_residual(f, found.value, x)
    assert (residual[found.converged] <= 1.01 * found.tolerance[found.converged]).all()
    if strength == 0:
        assert not (found.status == eq.Status.coupled).any()


def test_a_sample_that_ends_before_others_that_stay_in_the_batch_is_looked_at_again():
    """One of eight, too few to be left out, stands still while the others, which it sees, go on to 10."""
    x = torch.full((8, 1), 0.9, dtype=torch.float64)
    x[0] = 0
    f = lambda z, x: torch.where(x == 0, torch.tanh(5 * z[1:].mean(dim=0) - 49), x * z + 1)
    found = eq.fixed_point(f, 0 * x, args=(x,), solver=eq.Picard(), stop=eq.Stop(rtol=1e-3))
    assert [eq.Status(int(s)).name for s in found.status] == ["coupled"] + 7 * ["converged"]
    torch.testing.assert_close(found.residual, true_residual(f, found.value, x))


def test_samples_that_needed_those_left_out_have_a_status_that_says_so():
    x = rows()
    cell = AttentionAcrossRows()
    found = eq.fixed_point(cell, torch.zeros_like(x), args=(x,), solver=eq.Picard())
    assert (found.status == eq.Status.coupled).any()
    with pytest.raises(
        eq.EquilibriumError, match=r"row \d+: coupled.*\n(.*\n)*.*mixes the samples of a batch"
    ):
        found.raise_if_failed()
    whole = eq.fixed_point(lambda z: cell(z, x), torch.zeros_like(x), solver=eq.Picard()).raise_if_failed()
    assert (true_residual(cell, whole.value, x) <= 1e-8 * whole.scale).all()


def test_the_next_solver_of_a_chain_works_without_the_samples_that_were_found():
    x = torch.ones(10, 1, dtype=torch.float64)
    x[0] = 0
    # Sample 0 is z = z/2 + 1, the others z = 1 − 3z + a tenth of all, on which plain iteration diverges.
    f = lambda z, x: torch.where(x == 0, z / 2 + 1, 1 - 3 * z + z.sum(dim=0) / 10)
    found = eq.fixed_point(f, 0 * x, args=(x,), solver=[eq.Picard(), eq.Picard(damping=0.3)])
    assert [eq.Status(int(s)).name for s in found.status] == ["converged"] + 9 * ["coupled"]


def test_samples_that_depend_on_one_that_failed_are_not_answers():
    def f(z):  # the first sample runs away, and the second looks at it
        return torch.stack([3 * z[0] + 1, z[1] / 2 + 1 / (1 + z[0].abs())])

    found = eq.fixed_point(f, torch.zeros(2, 1, dtype=torch.float64), solver=eq.Picard())
    assert [eq.Status(int(s)).name for s in found.status] == ["diverged", "coupled"]


@pytest.mark.parametrize("gradient", [eq.Implicit(), eq.Phantom(2)], ids=["implicit", "phantom"])
@pytest.mark.parametrize("recorded", [True, False], ids=["with gradients", "without"])
@pytest.mark.parametrize("policy", ["raise", OnFailure("mask", share=1.0)], ids=["raise", "mask"])
def test_a_layer_says_that_its_cell_mixes_samples(gradient, recorded, policy):
    layer = eq.Equilibrium(AttentionAcrossRows(), solver=eq.Picard(), gradient=gradient, on_failure=policy)
    with (
        torch.set_grad_enabled(recorded),
        pytest.raises(eq.EquilibriumError, match="The cell mixes the samples"),
    ):
        layer(rows().requires_grad_(recorded))


def test_samples_on_their_own_cost_one_evaluation_more_and_only_where_some_were_left_out():
    counted = []

    def alone(z, x):
        counted.append(len(z))
        return torch.tanh(x[:, :1] * z + x)

    x = rows()
    found = eq.fixed_point(alone, torch.zeros_like(x), args=(x,), solver=eq.Picard()).raise_if_failed()
    assert counted[-1] == 8 > counted[-2]
    assert found.counts.evaluations == len(counted)
    counted.clear()
    same = x[:1].expand(8, 4)
    eq.fixed_point(alone, torch.zeros_like(x), args=(same,), solver=eq.Picard()).raise_if_failed()
    steps = len(counted)
    counted.clear()
    eq.fixed_point(lambda z: alone(z, same), torch.zeros_like(x), solver=eq.Picard()).raise_if_failed()
    assert len(counted) == steps


@pytest.mark.parametrize("closed", [False, True], ids=["by args", "closed over"])
def test_a_chain_confirms_samples_that_ended_at_the_check_at_which_others_failed(closed):
    """The first is there after the one step that the others fail at; the next solver moves these alone."""
    x = torch.ones(3, 1, dtype=torch.float64)
    x[0] = 0
    f = lambda z, x: torch.where(x == 0, torch.tanh(50 * (z[1:].mean(dim=0) - 1.9)), z / 2 + 1)
    chain, stop = [eq.Picard(), eq.Newton()], eq.Stop(max_steps=1)
    if closed:
        found = eq.fixed_point(lambda z: f(z, x), 0 * x, solver=chain, stop=stop)
    else:
        found = eq.fixed_point(f, 0 * x, args=(x,), solver=chain, stop=stop)
    residual = true_residual(f, found.value, x)
    assert (residual[found.converged] <= found.tolerance[found.converged]).all()
    assert found.converged[1:].all()
    assert found.status[0] == eq.Status.coupled


def test_of_two_solves_one_after_the_other_the_second_is_the_answer():
    """A sample that was seen to have converged before others moved has not where f mixes them."""

    def solution(value, *statuses):
        rows = torch.full((2,), value, dtype=torch.float64)
        status = torch.tensor([int(s) for s in statuses], dtype=torch.int8)
        return Solution(
            rows[:, None], status, rows, rows, torch.ones(2, dtype=torch.int64), Counts(), eq.Stop(), ""
        )

    done, short, coupled = eq.Status.converged, eq.Status.max_steps, eq.Status.coupled
    for first, second in ((coupled, done), (done, done), (done, short)):
        found = finish(solution(1.0, done, short), solution(2.0, first, second))
        assert found.status.tolist() == [int(first), int(second)]
        assert found.value.flatten().tolist() == found.residual.tolist() == [2.0, 2.0]
        assert found.steps.tolist() == [2, 2]


@pytest.mark.parametrize(
    "gradient",
    [eq.Implicit(), eq.Phantom(3), eq.Unrolled(20), eq.Reversible(20)],
    ids=lambda g: type(g).__name__,
)
def test_samples_that_depend_on_one_that_is_masked_are_neither_answered_nor_differentiated(gradient):
    """The first is slow, and the others, which have converged, hold a little of the mean of all."""
    rate = torch.tensor([[0.6], [0.0], [0.0], [0.0]], dtype=torch.float64)

    def layer(pulled):
        cell = lambda z, x, rate: rate * z + pulled * z.mean(dim=0) + x
        how = {"solver": eq.Picard(), "stop": eq.Stop(rtol=1e-5, max_steps=20), "gradient": gradient}
        return lambda x: eq.Equilibrium(cell, on_failure=OnFailure("mask", share=0.5), **how)(x, rate)

    x = torch.ones(4, 1, dtype=torch.float64, requires_grad=True)
    with pytest.raises(eq.EquilibriumError, match="The cell mixes the samples"):
        layer(1e-4)(x)
    layer(0.0)(x).sum().backward()
    assert x.grad[0] == 0
    assert (x.grad[1:] - 1).abs().max() <= 1e-5


@pytest.mark.parametrize("policy", ["raise", "warn", "mask"])
def test_one_row_that_failed_among_many_is_not_passed_over(policy):
    """z = 3z + x of the second row runs away, and z = z/2 + x of the first does not."""
    slope, start = torch.tensor([[0.5], [3.0]], dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    found = eq.fixed_point(lambda z: slope * z + 1, start, solver=eq.Picard())
    assert found.converged.tolist() == [True, False]
    judge = OnFailure(policy, share=1.0).judge
    if policy == "mask":
        assert judge(found).tolist() == [0]
    else:
        ends = {"raise": pytest.raises(eq.EquilibriumError), "warn": pytest.warns(eq.EquilibriumWarning)}
        with ends[policy]:
            judge(found)
