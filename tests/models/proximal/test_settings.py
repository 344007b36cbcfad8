"""What an OptEq model is built with and set to: taken as it is meant, or refused in words."""

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.models.proximal import DeepOptEq, OptEq, from_feedforward, unit_layers
from equipoise.models.proximal.properties import L1, Property
from equipoise.solve import half_squared_distance

ONES = torch.ones(2, 4)


def test_sizes_may_be_numpy_integers(tmp_path):
    model = OptEq(np.int64(4), np.int32(6), np.uint8(9), outputs=np.int64(2))
    sizes = (model.inputs, model.state, model.hidden, model.outputs)
    assert sizes == (4, 6, 9, 2)
    assert all(type(size) is int for size in sizes)
    deep = DeepOptEq(4, 6, list(np.array([5, 7])))
    assert [type(n) for n in deep.hidden] == [int, int]
    for m in (model, deep):
        m.save(tmp_path / "m.safetensors")
        assert torch.equal(eq.load(tmp_path / "m.safetensors")(ONES), m(ONES))


@pytest.mark.parametrize("size", [True, np.True_, 4.0, np.float64(4), "4", 0, np.int64(-1), None])
def test_nothing_else_is_a_size(size):
    with pytest.raises(ValueError, match="inputs must be an integer ≥ 1"):
        OptEq(size, 6, 9)
    with pytest.raises(ValueError, match=r"hidden\[1\] must be an integer ≥ 1"):
        DeepOptEq(4, 6, [5, size])


@pytest.mark.parametrize("name", ["mu", "alpha", "bound"])
@pytest.mark.parametrize("value", ["1", float("nan"), 0.0, -1, [1], complex(1, 1)])
def test_numbers_are_checked_when_built_and_when_set(name, value):
    message = f"{name} must .* Got "
    with pytest.raises(ValueError, match=message):
        OptEq(4, 6, 9, **{name: value})
    model = OptEq(4, 6, 9)
    with pytest.raises(ValueError, match=message):
        setattr(model, name, value)
    setattr(model, name, np.float32(0.5))
    assert getattr(model, name) == 0.5
    assert type(getattr(model, name)) is float


def test_a_bound_that_is_set_scales_the_weights():
    model = OptEq(4, 6, 9)
    model.bound = 0.5
    assert torch.linalg.matrix_norm(model.weight().detach(), 2).item() == pytest.approx(0.5, rel=1e-4)
    model.bound = None
    assert model.weight() is model.W


def test_several_layers_have_no_mu():
    deep = DeepOptEq(4, 6, [5, 7])
    for model in (deep, deep.multi_block()):
        model.mu = 1.0
        with pytest.raises(ValueError, match=r"has no μ\. Got 3\.0"):
            model.mu = 3.0
        assert model.mu == 1.0


def test_a_regulariser_that_is_set_is_a_property():
    model = OptEq(4, 6, 9)
    with pytest.raises(TypeError, match="regulariser must be a property such as L1"):
        model.regulariser = lambda z: z
    before = model.equilibrium(ONES)
    model.regulariser = L1(0.05)
    assert not torch.equal(model.equilibrium(ONES), before)
    blocks = DeepOptEq(4, 6, [5, 7]).multi_block()
    with pytest.raises(ValueError, match="the multi-block form has no place for L1"):
        blocks.regulariser = L1(0.05)


def test_weights_that_are_computed_are_not_projected():
    class Twice(torch.nn.Module):
        def forward(self, W):
            return 2 * W

    parametrised, hooked = OptEq(4, 6, 9), DeepOptEq(4, 6, [5, 7])
    torch.nn.utils.parametrize.register_parametrization(parametrised, "W", Twice())
    torch.nn.utils.parametrize.register_parametrization(hooked.layers[1], "W", Twice())
    for model, layer in ((parametrised, 1), (hooked, 2)):
        with pytest.raises(ValueError, match=f"W of layer {layer} must be a parameter"):
            model.project_(0.5)


def test_half_precision_is_refused_in_words():
    for model in (
        OptEq(4, 6, 9, dtype=torch.float16),
        OptEq(4, 6, 9).half(),
        DeepOptEq(4, 6, [5]).bfloat16(),
    ):
        with pytest.raises(ValueError, match=r"solved for in float32 or float64\. Got parameters of torch\."):
            model(ONES.to(model.V.dtype))


def test_the_regulariser_of_sam_must_fit_the_state():
    sam = eq.SAM(half_squared_distance(torch.ones(5)))
    with pytest.raises(ValueError, match="half_squared_distance of SAM must take states of 6 entries"):
        OptEq(4, 6, 9).solve(ONES, solver=sam)
    model = OptEq(4, 6, 9, solver=sam, gradient=3, on_failure="accept")
    with pytest.raises(ValueError, match="half_squared_distance of SAM must take states of 6 entries"):
        model(ONES)
    assert OptEq(4, 5, 9, solver=sam, gradient=3, on_failure="accept")(ONES).isfinite().all()


def test_too_few_unrolled_steps_are_told_as_what_they_are():
    model = OptEq(4, 6, 9, alpha=0.1, gradient=eq.Unrolled(20), generator=torch.Generator().manual_seed(0))
    with pytest.raises(eq.EquilibriumError, match="max_steps after 20 steps") as failure:
        model(ONES)
    assert "max_steps=20" in str(failure.value)
    assert "those of Unrolled(20): take more of them, or accept z_K as it is by on_failure='accept'" in str(
        failure.value
    )
    assert model.last.forward.steps.tolist() == [20, 20]
    assert model(ONES, on_failure="accept").isfinite().all()


@pytest.mark.parametrize("convert", [from_feedforward, unit_layers])
def test_a_network_with_nan_is_not_told_of_overflow(convert):
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)).double()
    with torch.no_grad():
        network[2].bias[0] = float("nan")
    with pytest.raises(ValueError, match=r"finite weights\. Got NaN or infinity in linear layer 2"):
        convert(network)


@pytest.mark.parametrize("gradient", [eq.Phantom(3, 0.5), eq.Unrolled(7), eq.Unrolled(7, eq.Picard(0.5))])
def test_files_hold_the_gradients_that_are_not_exact(tmp_path, gradient):
    for model in (OptEq(4, 6, 9, gradient=gradient), eq.ConvOptEq((1, 6, 6), 4, [5], gradient=gradient)):
        model.save(tmp_path / "m.safetensors")
        assert eq.load(tmp_path / "m.safetensors").gradient == gradient


def test_a_property_is_solved_under_autocast_to_what_its_arithmetic_can_reach():
    model = OptEq(4, 6, 9, alpha=0.5, regulariser=L1(1e-3), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(ValueError, match=r"rtol must be at least .* in torch\.bfloat16 with α = 0\.5"):
            model.equilibrium(ONES, stop=eq.Stop(rtol=0.07))
        z = model.equilibrium(ONES, stop=eq.Stop(rtol=0.2))
    assert (z - model.equilibrium(ONES)).norm() < 0.5 * model.equilibrium(ONES).norm()


def test_a_regulariser_of_another_size_is_refused_by_networks_of_images():
    how = {"gradient": 3, "on_failure": "accept"}
    sam = lambda n: eq.SAM(half_squared_distance(torch.ones(n)))
    build = lambda n: eq.ConvOptEq((1, 2, 2), 4, [5], solver=sam(n), **how)
    with pytest.raises(ValueError, match="of SAM must take states of 16 entries"):
        build(5)(torch.ones(2, 1, 2, 2))
    assert build(16)(torch.ones(2, 1, 2, 2)).isfinite().all()


def test_a_property_may_be_a_module_and_no_other_module_is_one():
    class Halving(torch.nn.Module, Property):
        nonexpansive = True

        def forward(self, z):
            return z / 2

        def config(self):
            return {}

    generator = lambda: torch.Generator().manual_seed(0)
    for build in (
        lambda **how: OptEq(4, 6, 9, generator=generator(), **how),
        lambda **how: eq.ConvOptEq((1, 2, 2), 4, [5], generator=generator(), **how),
    ):
        x = ONES if isinstance(build(), OptEq) else torch.ones(2, 1, 2, 2)
        given, later = build(regulariser=Halving()), build()
        plain = later.equilibrium(x)
        later.regulariser = Halving()
        assert isinstance(later.regulariser, Halving)
        assert torch.equal(later.equilibrium(x), given.equilibrium(x))
        assert not torch.allclose(later.equilibrium(x), plain)
        with pytest.raises(TypeError, match="regulariser must be a property"):
            later.regulariser = torch.nn.ReLU()
        later.regulariser = L1(0.1)
        assert later.regulariser == L1(0.1)


def test_autocast_lowers_no_float64():
    model = OptEq(4, 6, 9, alpha=0.5, regulariser=L1(1e-3), dtype=torch.float64)
    x = ONES.double()
    z = model.equilibrium(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.equilibrium(x), z)
