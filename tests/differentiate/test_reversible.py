import pytest
import torch

import equipoise as eq
from contracts.gradient import DTYPE, GradientContract, make_case, relative

STOP = eq.Stop(rtol=1e-6)


def recorded(case, steps):
    """The same steps, recorded by autograd."""

    def f(x, *rest):
        named = dict(zip(case.names, rest[: len(case.names)], strict=True))
        call = lambda z: torch.func.functional_call(case.cell, named, (z, x))
        y = z = torch.zeros(len(x), *(case.state or x.shape[1:]), dtype=DTYPE)
        for _ in range(steps):
            y = (y + call(z)) / 2
            z = (z + call(y)) / 2
        return z.flatten(1)

    return f


class TestReversible(GradientContract):
    gradient = eq.Reversible(steps=80)
    exact = False  # of 80 steps, which stop short of the equilibrium

    def layer(self, case, **options):
        return case.layer(self.gradient, **{"stop": STOP, **options})

    def test_the_value_is_the_equilibrium(self):
        for name in ("tanh", "tuple", "conv"):
            case = make_case(name)
            layer = self.layer(case)
            z = case.function(layer)(*case.tensors)
            torch.testing.assert_close(z, case.unrolled(150)(*case.tensors), rtol=1e-5, atol=1e-6)
            assert bool(layer.last.forward.converged.all())


@pytest.mark.parametrize("name", ["tanh", "wider state", "relu", "conv"])
@pytest.mark.parametrize("steps", [1, 20, 80])
def test_gradients_are_those_of_the_recorded_steps(name, steps):
    case, contract = make_case(name), TestReversible()
    f = case.function(case.layer(eq.Reversible(steps), on_failure="accept"))
    got, want = (contract.gradients_of(case, g) for g in (f, recorded(case, steps)))
    for a, b in zip(got, want, strict=True):
        assert relative(a, b) < 1e-12


def test_gradients_equal_those_of_as_long_an_unroll():
    case, contract = make_case("tanh"), TestReversible()
    want = contract.gradients_of(case, case.function(case.layer(eq.Unrolled(80))))
    for a, b in zip(contract.gradients(case), want, strict=True):
        assert relative(a, b) < 1e-6


def test_nothing_is_kept_of_the_steps():
    """The backward pass holds one evaluation at a time, however many steps there are."""
    case, kept = make_case("tanh"), {}
    for steps in (5, 50):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, s=saved: s.append(t.numel()) or t, lambda t: t
        ):
            case.layer(eq.Reversible(steps), on_failure="accept")(case.x)
        kept[steps] = sum(saved)
    assert kept[5] == kept[50] > 0


def test_what_it_cannot_do_is_said():
    case = make_case("tanh")
    with pytest.raises(ValueError, match="steps must be at most 90 in"):
        case.layer(eq.Reversible(91))(case.x)
    with pytest.raises(RuntimeError, match="eager mode only"):
        torch.func.jacrev(case.layer(eq.Reversible(20), on_failure="accept"))(case.x)
    with pytest.raises(eq.EquilibriumError, match=r"those of Reversible\(2\): take more"):
        case.layer(eq.Reversible(2))(case.x)
    with pytest.raises(ValueError, match="integer ≥ 1"):
        eq.Reversible(0)
