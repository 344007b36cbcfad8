import pytest
import torch

import equipoise as eq
from contracts.gradient import DTYPE, GradientContract, make_case, relative


class TestUnrolled(GradientContract):
    gradient = eq.Unrolled(steps=70)


def test_the_gradient_is_that_of_the_last_state_even_when_it_is_no_equilibrium():
    case = make_case("tanh")
    for steps in (1, 4):
        f = case.function(case.layer(eq.Unrolled(steps), on_failure="accept"))
        got, want = f(*(tensors := case.tensors)), case.unrolled(steps)(*(others := case.tensors))
        assert torch.equal(got, want)
        for a, b in zip(
            torch.autograd.grad(got.square().sum(), tensors, materialize_grads=True),
            torch.autograd.grad(want.square().sum(), others, materialize_grads=True),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-15)


def test_damped_steps_reach_the_same_gradient():
    case = make_case("tuple")
    contract = TestUnrolled()
    damped = case.layer(eq.Unrolled(steps=120, solver=eq.Picard(damping=0.8)))
    for got, want in zip(
        contract.gradients_of(case, case.function(damped)), contract.gradients(case), strict=True
    ):
        assert relative(got, want) < 1e-10


def test_every_call_of_the_map_is_counted():
    case = make_case("tanh")
    layer = case.layer(eq.Unrolled(70))
    layer(case.x)
    solution = layer.last.forward
    assert solution.steps.tolist() == [70] * len(case.x)
    assert solution.counts.evaluations == 71  # the last one judges z_K
    assert solution.counts.row_evaluations == 71 * len(case.x)
    assert "71 evaluations, Picard" in str(solution)


def test_too_few_steps_are_never_an_answer():
    case = make_case("tanh")
    with pytest.raises(eq.EquilibriumError, match="3 unrolled steps: 2 of 2 samples have no equilibrium"):
        case.layer(eq.Unrolled(3))(case.x)


def test_rows_that_do_not_get_there_are_masked():
    def f(z, x):  # contracts at the rate x
        return x * z + 1

    x = torch.tensor([[0.1], [0.999], [0.2], [torch.nan]], dtype=DTYPE, requires_grad=True)
    layer = eq.Equilibrium(f, gradient=eq.Unrolled(30), on_failure=eq.OnFailure("mask", share=0.5))
    z = layer(x)
    assert layer.last.masked == 2
    assert layer.last.forward.status.tolist() == [0, int(eq.Status.max_steps), 0, int(eq.Status.nonfinite)]
    assert bool(torch.isfinite(z).all())
    z.sum().backward()
    want = torch.tensor([[0.9**-2], [0.0], [0.8**-2], [0.0]], dtype=DTYPE)  # z = 1/(1 − x)
    torch.testing.assert_close(x.grad, want, rtol=1e-12, atol=0)
    with pytest.raises(eq.EquilibriumError, match="allows 10% of a batch"):
        eq.Equilibrium(f, gradient=eq.Unrolled(30), on_failure="mask")(x)


def test_solvers_that_work_in_place_are_refused():
    with pytest.raises(TypeError, match=r"solver must be a Picard.*use Implicit\(\)"):
        eq.Unrolled(solver=eq.Anderson())
    with pytest.raises(ValueError, match="steps must be an integer ≥ 1"):
        eq.Unrolled(steps=0)
