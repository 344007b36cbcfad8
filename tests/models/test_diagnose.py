"""diagnose: known maps get the right numbers, the right solver and the right words."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from equipoise import Anderson, Equilibrium, Implicit, Phantom, Picard, SharedDropout, Stop
from equipoise.models.advice import advise
from equipoise.models.affine import ScaledReLU
from equipoise.models.choice import best_of
from equipoise.models.diagnose import Diagnosis, diagnose
from equipoise.solve import Newton


class Linear(nn.Module):
    """W z + x: J = W everywhere."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.W = nn.Parameter(weight)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return z @ self.W.T + x


class Tanh(Linear):
    """tanh(W z + x)."""

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(super().forward(z, x))


def symmetric(*eigenvalues: float, seed: int = 0) -> Tensor:
    """A symmetric matrix with these eigenvalues, in float64."""
    m = len(eigenvalues)
    q = torch.linalg.qr(
        torch.randn(m, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    )[0]
    return q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ q.T


def inputs(n: int, m: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(n, m, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def said(d: Diagnosis, *words: str) -> bool:
    return all(any(word in line for line in d.advice) for word in words)


def solver(d: Diagnosis, name: str):
    return next(one for one in d.trials if one.name == name)


def test_the_numbers_of_a_linear_map_are_its_own():
    d = diagnose(Equilibrium(Linear(symmetric(0.8, -0.3, 0.1, 0.0))), inputs(6, 4))
    assert d.spectral_radius_estimate == pytest.approx(0.8, rel=1e-6)
    assert d.jacobian_norm_estimate == pytest.approx(0.8, rel=1e-6)
    assert d.contraction_estimate == pytest.approx(0.8, rel=1e-3)
    assert 0.3 < d.stretch_estimate <= 0.8 + 1e-9
    assert d.at_equilibrium
    assert d.ok
    assert (d.rows, d.width, d.dtype) == (6, 4, torch.float64)
    assert d.residual.shape == (6,)
    assert float(d.residual.max()) <= 1e-8
    assert said(d, "Every sample converges", "no proof", "The layer's gradient is right")


def test_norm_and_radius_of_a_map_that_is_not_normal_differ():
    weight = torch.tensor([[0.5, 3.0], [0.0, 0.4]], dtype=torch.float64)
    d = diagnose(Equilibrium(Linear(weight)), inputs(3, 2), samples=0)
    assert d.spectral_radius_estimate == pytest.approx(0.5, rel=1e-6)
    assert d.jacobian_norm_estimate == pytest.approx(float(torch.linalg.matrix_norm(weight, ord=2)), rel=1e-6)
    assert said(d, "no contraction ensures that each sample has only one equilibrium")


def test_picard_on_a_map_that_flips_is_told_to_change_solver():
    """ρ = 1.5 with a negative eigenvalue: Picard diverges, damping, Anderson, Broyden and Newton do not."""
    layer = Equilibrium(Linear(symmetric(-1.5, 0.2, 0.1)), solver=Picard())
    d = diagnose(layer, inputs(5, 3))
    assert not d.ok
    assert [one.solves_all for one in d.trials] == [False, True, True, True, True]
    assert solver(d, "Picard()").failures == "5 diverged"
    assert d.contraction_estimate == pytest.approx(1.5, rel=1e-6)
    assert d.spectral_radius_estimate == pytest.approx(1.5, rel=1e-6)
    assert said(d, "Picard() fails on 5 of 5 samples, but the tolerance is within reach", "ρ(J) ≈ 1.50")
    assert d.audit is not None  # found by another solver than the layer's
    assert d.audit.ok(1e-6)


def ranked(trials, seconds: dict[str, float]):
    return best_of([replace(one, seconds=seconds.get(one.name, 9.0)) for one in trials])


def test_the_fastest_solver_of_all_samples_is_advised():
    """By measured time, not by evaluations: Broyden needs as few as Anderson and is slower a step."""
    d = diagnose(Equilibrium(Linear(symmetric(0.97, 0.5, -0.5)), solver=Picard()), inputs(4, 3), samples=0)
    assert ranked(d.trials, {"Picard()": 1.0, "Anderson()": 2.0}).name == "Picard()"
    assert ranked(d.trials, {"Picard()": 2.0, "Anderson()": 1.0}).name == "Anderson()"
    told = lambda own: advise(replace(d, trials=(replace(d.trials[0], seconds=own), *d.trials[1:])), [])[0]
    assert "is faster here" in told(1e3)
    assert "Picard() is a good choice here" in told(0.0)


def test_a_solver_that_fails_is_never_the_fastest():
    d = diagnose(Equilibrium(Linear(symmetric(-1.5, 0.2)), solver=Picard()), inputs(4, 2), samples=0)
    assert ranked(d.trials, {"Picard()": 1e-9, "Broyden()": 1.0}).name == "Broyden()"


def test_a_cheaper_solver_is_cheaper():
    d = diagnose(Equilibrium(Linear(symmetric(0.97, 0.5, -0.5)), solver=Picard()), inputs(4, 3), samples=0)
    own, anderson = d.trials[0], solver(d, "Anderson()")
    assert own.own
    assert own.solves_all
    assert anderson.cost < own.cost / 10
    assert said(d, "ρ(J) ≈ 0.970")


def test_a_map_without_equilibria():
    """z ≥ 0 is sent below 0 and z < 0 above: nothing stays where it is."""
    d = diagnose(Equilibrium(lambda z, x: -2 * z - torch.where(z >= 0, 1, -1) * x.exp()), inputs(4, 2))
    assert not any(one.converged for one in d.trials)
    assert not d.at_equilibrium
    assert said(d, "on_failure='count'")
    assert d.spectral_radius_estimate == pytest.approx(2, rel=1e-6)
    assert d.audit is None
    assert said(d, "The gradient was not audited: no sample has an equilibrium to differentiate")
    assert said(d, "No solver does better", "drives its iterates apart")
    assert "0 of 4" in str(d)


def test_one_bad_row_among_good_ones_is_named():
    x = inputs(5, 3, torch.float32)
    x[3, 0] = torch.nan
    d = diagnose(Equilibrium(Tanh(symmetric(0.5, 0.2, 0.1).float())), x)
    assert d.trials[0].converged == 4
    assert d.trials[0].failures == "1 nonfinite"
    assert said(d, "Mend this first. Not finite: x in row 3")
    assert d.spectral_radius_estimate < 0.5 + 1e-6
    assert d.audit is not None
    assert solver(d, "Newton()").converged == 4


def test_weights_that_are_not_finite_are_named():
    layer = Equilibrium(Tanh(torch.full((2, 2), torch.inf)))
    d = diagnose(layer, inputs(3, 2, torch.float32))
    assert said(d, "Mend this first. Not finite: parameter `cell.W`")
    assert d.spectral_radius_estimate is None
    assert "unknown" in str(d)


def test_a_tolerance_at_the_level_of_rounding():
    shake = lambda z, x: x * torch.where(z / x >= 1, 1 - 3e-6, 1 + 3e-6)  # no residual below 3e-6
    d = diagnose(Equilibrium(shake, stop=Stop(rtol=1e-6)), inputs(4, 2, torch.float32))
    assert d.trials[0].converged == 0
    assert said(d, "at the level of rounding", "Ask for rtol=1e-05")


def test_rows_that_converge_in_low_precision_only_are_left_out_of_the_audit():
    def shaken(z, x):  # rows with x > 0 have no residual below 3e-6
        return torch.where(x > 0, x * torch.where(z / x >= 1, 1 - 3e-6, 1 + 3e-6), torch.sin(z) / 2 + x)

    x = torch.tensor([[0.5], [-0.5], [0.7], [-0.7]])
    d = diagnose(Equilibrium(shaken), x)
    assert d.trials[0].solves_all
    assert {row.shape for row in d.audit.rows} == {(2, 1)}
    assert d.audit.ok(1e-6)


def test_too_few_steps():
    layer = Equilibrium(Linear(symmetric(*[0.999 * k / 40 for k in range(1, 41)])), stop=Stop(max_steps=2))
    d = diagnose(layer, inputs(3, 40), samples=0)
    assert said(d, "when max_steps=2 was reached: a larger one may do")


def test_an_inexact_gradient_is_told_by_how_much():
    d = diagnose(Equilibrium(Tanh(symmetric(0.9, -0.9)), gradient=Phantom(1)), inputs(3, 2))
    assert not d.ok
    assert said(d, "The layer's gradient, Phantom(1), is off by", "Implicit() is exact here")
    assert diagnose(Equilibrium(Tanh(symmetric(0.9, -0.9)), gradient=Implicit()), inputs(3, 2)).ok


def test_the_layer_and_the_random_state_are_left_alone_in_training_too():
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop = spectral_norm(nn.Linear(4, 4)), SharedDropout(0.3)

        def forward(self, z, x):
            return 0.9 * torch.tanh(self.inner(self.drop(z))) + x

    torch.manual_seed(3)
    layer = Equilibrium(Cell(), on_failure="mask").train()
    x = torch.randn(6, 4)
    weights, method, gradient = copy.deepcopy(layer.state_dict()), layer.method, layer.gradient
    before = torch.get_rng_state()
    first = diagnose(layer, x, samples=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, weights[name]) for name, value in layer.state_dict().items())
    assert layer.last.forward is None
    assert (layer.method, layer.gradient) == (method, gradient)
    assert layer.training
    assert all(p.grad is None for p in layer.parameters())
    assert first.ok
    again = diagnose(layer, x, samples=2)
    assert again.spectral_radius_estimate == first.spectral_radius_estimate
    assert again.audit == first.audit


def test_tuple_states_further_inputs_and_chains():
    def pair(z, x, keep, scale):
        a, b = z
        return 0.5 * torch.sin(a + x) * keep[:, None], scale * torch.tanh(b + a.sum(dim=1, keepdim=True))

    layer = Equilibrium(pair, state=[(3,), (1,)], solver=(Picard(), Anderson()))
    keep = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    d = diagnose(layer, inputs(4, 3), keep, shared=(torch.tensor(0.4, dtype=torch.float64),))
    assert d.ok
    assert d.width == 4
    assert d.trials[0].name == "Picard() → Anderson()"
    assert {row.tensor for row in d.audit.rows} == {"x", "args[0]", "shared[0]"}


def test_a_cell_without_products_is_diagnosed_all_the_same():
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            return z / 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g / 2

    d = diagnose(Equilibrium(lambda z, x: Half.apply(z) + x), inputs(3, 2))
    assert "Newton()" not in [one.name for one in d.trials]
    assert d.spectral_radius_estimate is None
    assert d.contraction_estimate == pytest.approx(0.5)


def test_mixed_precision_is_the_layers_own_way_only():
    layer = Equilibrium(Tanh(symmetric(0.8, 0.2, -0.4)), precision="mixed")
    assert diagnose(layer, inputs(4, 3), samples=0).trials[0].solves_all


def test_a_model_family_gets_the_splitting_solvers_too():
    model = ScaledReLU(inputs=3, width=8, gamma=0.5, generator=torch.Generator().manual_seed(0)).double()
    d = diagnose(model, inputs(5, 3))
    assert {"ForwardBackward()", "PeacemanRachford()"} <= {one.name for one in d.trials}
    assert all(one.solves_all for one in d.trials)
    assert d.layer == "ScaledReLU"
    assert d.ok


def test_an_empty_batch_and_bad_use():
    d = diagnose(Equilibrium(Tanh(symmetric(0.5, 0.1))), inputs(0, 2))
    assert said(d, "The batch is empty")
    assert "0 of 0" in str(d)
    with pytest.raises(TypeError, match="of a network, diagnose the layer"):
        diagnose(nn.Linear(2, 2), inputs(3, 2))


def test_the_report_reads_well_in_eighty_columns(capsys):
    d = diagnose(Equilibrium(Tanh(symmetric(0.8, 0.2))), inputs(4, 2))
    for word in ("Diagnosis of Equilibrium: 4 samples", "spectral radius", "estimate", "Newton()", "Advice"):
        assert word in str(d)
    assert "tensor(" not in repr(d)
    d.print()
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


def test_names_are_what_one_would_write():
    d = diagnose(Equilibrium(Tanh(symmetric(0.8, 0.2)), solver=Newton(krylov=7)), inputs(4, 2), samples=0)
    assert [one.name for one in d.trials] == [
        "Newton(krylov=7)", "Picard()", "Picard(damping=0.5)", "Anderson()", "Broyden()", "Newton()"
    ]  # fmt: skip
