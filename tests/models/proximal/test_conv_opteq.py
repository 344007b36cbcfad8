"""OptEq of images: an optimisation layer where ‖W_l‖ ≤ 1, in the norm of convolutions and in no other."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import equipoise as eq
from contracts.image_model import TIGHT, C, H, ImageContract, K, W
from equipoise.linalg import norm_lower, norm_upper
from equipoise.models.images import parameters_of
from equipoise.models.proximal import ConvOptEq
from equipoise.models.proximal.properties import L1, GradientStep, SquaredL2, differentiable
from equipoise.models.zoo import MultiscaleDEQ, ResidualConv, xie2021_guess
from equipoise.theory.conv_wellposed import images_wellposed


class TestConvOptEq(ImageContract):
    family = ConvOptEq
    options: dict = {}  # noqa: RUF012

    def build(self, seed=0, dtype=torch.float64, **options):
        how = {"inputs": (C, H, W), "outputs": K, "features": 3, **self.options, **options}
        generator = torch.Generator().manual_seed(seed)
        return ConvOptEq(state=4, hidden=(3, 5), dtype=dtype, generator=generator, **how)


class TestStridedSkip(TestConvOptEq):
    options = {"strides": (2, 3), "alpha": 0.6, "reach": 3, "activation": "tanh", "extractor": (1, 1)}  # noqa: RUF012


class TestSegmenter(TestConvOptEq):
    pixels = True
    options = {"task": "segmentation", "extractor": (2,), "limit": 0.9, "norm": 0.9}  # noqa: RUF012


def build(seed=0, dtype=torch.float64, **options):
    how = {"inputs": (C, H, W), "outputs": K, "features": 3, "hidden": (3, 5), **options}
    return ConvOptEq(state=4, dtype=dtype, generator=torch.Generator().manual_seed(seed), **how)


def images(n=4, seed=1, shape=(C, H, W)):
    return torch.randn(n, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense(layer):
    """W as a matrix on flattened states."""
    n = layer.W.shape[1] * layer.size[0] * layer.size[1]
    basis = torch.eye(n, dtype=torch.float64).view(n, -1, *layer.size)
    return F.conv2d(basis, layer.W.detach(), stride=layer.stride, padding=layer.padding).flatten(1).T


def test_the_printed_equation_as_matrices():
    model, x = build(alpha=0.7, strides=(1, 2)), images()
    z = model.equilibrium(x, stop=TIGHT)
    flat, g = z.flatten(1), model.extractor(x)
    for layer in model.layers:
        M = dense(layer)
        c = F.conv2d(g, layer.U, layer.b, stride=layer.stride).flatten(1)
        flat = 0.7 * (flat @ M.T + c).relu() @ M + 0.3 * flat
    torch.testing.assert_close(flat, z.flatten(1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_the_start_is_one_step_from_zero_and_unrolling_begins_at_zero(alpha):
    model, x = build(alpha=alpha, strides=(1, 2)), images()
    c, zero = model.injection(x), torch.zeros(4, 4, H, W, dtype=torch.float64)
    step = model.cell(zero, *c, *model.shared())
    torch.testing.assert_close(model.default_start(c), step, rtol=0, atol=1e-14)
    one = build(alpha=alpha, strides=(1, 2), gradient=1, on_failure="accept")
    torch.testing.assert_close(one.equilibrium(x), step, rtol=0, atol=1e-14)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [(6, 7), (5, 5), (8, 4)])
def test_the_bound_is_above_the_norm_of_the_matrix_and_the_reshaped_kernel_is_not(stride, size):
    below = 0
    for seed in range(4):
        model = build(seed, inputs=(C, *size), strides=(stride, stride))
        for layer in model.layers:
            truth = norm_lower(dense(layer))
            assert truth <= layer.norm_upper() <= 1.6 * truth
            below += norm_upper(layer.W.flatten(1)) < truth
    assert below > 0 or stride == 3  # the reshaped kernel is no bound where windows overlap


def test_each_layer_is_firmly_nonexpansive_at_norm_one():
    model, x = build(limit=1.0, norm=1.0), images()
    c = model.injection(x)
    for one, layer in enumerate(model.layers):
        assert layer.norm_upper() <= 1
        only = build(limit=1.0, hidden=(len(layer.b),))
        f = lambda z, only=only, one=one, layer=layer: only.cell(z, c[one], layer.W, layer.transposed())
        for seed in range(5):
            z, w = images(8, seed, (4, H, W)).chunk(2)
            moved, way = f(z) - f(w), z - w
            assert (
                (moved.square().sum((1, 2, 3)) - (moved * way).sum((1, 2, 3))) <= 1e-12
            ).all()  # a proximal map


@pytest.mark.parametrize(("alpha", "limit"), [(1.0, 0.9), (0.4, 0.95), (0.1, 0.5)])
def test_the_statement_of_wellposedness_bounds_the_lipschitz_constant(alpha, limit):
    model, x = build(alpha=alpha, limit=limit, norm=limit), images()
    said = images_wellposed(model)
    assert said.verdict == "proved"
    exact = math.prod(1 - alpha + alpha * n**2 for n in said.norms)
    assert exact <= said.contraction <= exact * (1 + 1e-12)
    assert said.averaged == pytest.approx(2 * alpha / (2 + alpha))
    assert "one equilibrium" in said.explain()
    c = model.injection(x)
    z, w = images(8, 5, (4, H, W)).chunk(2)
    ratio = (model.cell(z, *c, *model.shared()) - model.cell(w, *c, *model.shared())).flatten(1).norm(dim=1)
    assert (ratio <= said.contraction * (z - w).flatten(1).norm(dim=1)).all()


def test_nothing_is_proved_where_nothing_holds():
    model = build(limit=1.0)
    with torch.no_grad():
        model.layers[0].W.mul_(3)
    said = images_wellposed(model)
    assert said.verdict == "inconclusive"
    assert said.averaged is None
    assert "nothing is proved" in said.explain()
    with torch.no_grad():  # a kernel whose norm is exactly 1
        for layer in model.layers:
            layer.W.zero_()
            layer.W[0, 0, 1, 1] = 1.0
    said = images_wellposed(model)
    assert said.verdict == "inconclusive"  # strict: ‖W‖ = 1 is not proved
    model.project_()
    said = images_wellposed(model)
    assert said.verdict == "proved"
    assert 1 - 1e-5 < said.contraction < 1


def test_a_property_that_may_expand_leaves_nothing_proved():
    R = differentiable(lambda z: -z.square().sum(1), lipschitz=2.0, convex=False)
    model = build(activation="tanh", hidden=(4,), norm=0.95, regulariser=GradientStep(R, step=1.0))
    x = torch.zeros(1, C, H, W, dtype=torch.float64)  # T is odd there
    apart = [model.solve(x, start=s * torch.ones(1, 4, H, W, dtype=torch.float64)) for s in (5.0, -5.0)]
    assert all(one.converged.all() for one in apart)
    assert (apart[0].value - apart[1].value).norm() > 1  # two equilibria
    said = images_wellposed(model)
    assert (said.verdict, said.contraction, said.averaged) == ("inconclusive", math.inf, None)
    assert "GradientStep(R, step=1) is not known to be nonexpansive" in said.explain()
    kept = images_wellposed(build(norm=0.9, regulariser=L1(0.1)))  # contracts still, and is no proximal map
    assert kept.verdict == "proved"
    assert kept.averaged is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [1.0, 0.95, 0.3])
def test_projection_leaves_nothing_above_the_limit(dtype, limit):
    for seed in range(6):
        model = build(seed, dtype, limit=limit, norm=limit, strides=(1, 2))
        with torch.no_grad():
            for layer, scale in zip(model.layers, (50.0, 0.5), strict=True):
                layer.W.mul_(scale)
        directions = [layer.W / layer.W.norm() for layer in model.layers]
        small = model.layers[1].W.detach().clone()
        before = model.norms()
        assert model.project_() is model
        assert before[0] > limit >= before[1]
        assert all(n <= limit for n in model.norms())
        assert model.norms()[0] > 0.999 * limit
        assert torch.equal(model.layers[1].W, small)  # what is small enough is left alone
        torch.testing.assert_close(model.layers[0].W / model.layers[0].W.norm(), directions[0])


@pytest.mark.parametrize("bound", [0.99, 0.5])
def test_projection_to_a_bound_of_its_own_never_exceeds_the_limit(bound):
    model = build(limit=0.95, norm=0.9)
    model.project_(bound)
    assert all(n <= bound for n in model.norms())
    with torch.no_grad():
        model.layers[0].W.mul_(50)
    model.project_(bound=bound)
    assert 0.999 * min(bound, 0.95) < model.norms()[0] <= min(bound, 0.95)
    assert model.limit == 0.95
    for wrong in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="bound must lie in"):
            model.project_(wrong)
    model.limit = math.nan
    with pytest.raises(ValueError, match="limit must lie in"):
        model.project_()


def test_a_weight_that_is_computed_of_others_is_not_projected():
    class Double(torch.nn.Module):
        def forward(self, W):
            return 2 * W

    model = build(norm=0.9)
    torch.nn.utils.parametrize.register_parametrization(model.layers[1], "W", Double())
    with pytest.raises(ValueError, match="W_2 must be a parameter of its own to be projected"):
        model.project_()


def test_a_weight_that_is_not_finite_is_named():
    model = build()
    with torch.no_grad():
        model.layers[1].W[0, 0, 0, 0] = math.nan
    with pytest.raises(ValueError, match="W_2 must be finite"):
        model.project_()


def train(model, steps, projected, rate=0.1):
    """SGD with momentum on random labels: the largest bound of ‖W_l‖ on the way, or the step that failed."""
    x = images(20)
    y = torch.randint(K, (20,), generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    if projected:
        model.keep_projected(optimiser)
    largest = 0.0
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        largest = max(largest, *model.norms())
    return largest, loss.item()


def test_training_at_a_large_rate_stays_finite_with_projection_and_leaves_the_ball_without():
    options = {"limit": 0.95, "stop": eq.Stop(rtol=1e-5), "normalise": False}
    largest, loss = train(build(**options), 40, projected=True)
    assert largest <= 0.95
    assert math.isfinite(loss)
    assert loss < 1.1
    model = build(**options, on_failure="accept", gradient=eq.Unrolled(6))
    largest, _ = train(model, 40, projected=False)
    assert largest > 1  # no theorem speaks of these weights any more


def test_a_hook_projects_every_so_many_steps():
    model = build(limit=0.95)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    model.keep_projected(optimiser, every=3)
    with torch.no_grad():
        model.layers[0].W.mul_(10)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    seen = []
    for _ in range(3):
        optimiser.step()
        seen.append(model.norms()[0] <= 0.95)
    assert seen == [False, False, True]


def test_a_regularised_layer_is_the_last_of_the_composition():
    x = images()
    z = build(regulariser=L1(0.05)).equilibrium(x, stop=TIGHT)
    assert (z == 0).double().mean() > 0.1  # exact zeros
    plain = build()
    again = plain.cell(z, *plain.injection(x), *plain.shared())
    torch.testing.assert_close(F.softshrink(again, 0.05), z, rtol=0, atol=1e-9)
    model = build(regulariser=SquaredL2(0.5))
    assert model.equilibrium(x).norm() < plain.equilibrium(x).norm()
    assert model.config()["regulariser"] == {"kind": "SquaredL2", "weight": 0.5}


def test_sam_is_trained_unrolled_and_shrinks_the_state():
    x = images()
    model = build(solver=eq.SAM(), gradient=20)
    z = model.equilibrium(x)
    assert z.norm() < build().equilibrium(x).norm()
    state = torch.zeros(4, 4, H, W, dtype=torch.float64)
    c, T = model.injection(x), model.cell
    for k in range(1, 21):  # (10) of the paper, R = ½‖z‖²: γ = ½, η = ½
        beta, decay = 0.5 / k**0.34, 0.5 / k**0.32
        state = beta * ((1 - decay / 2) * state - state / 2) + (1 - beta) * T(state, *c, *model.shared())
    torch.testing.assert_close(z, state, rtol=0, atol=1e-12)
    model.readout(z).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    with pytest.raises(ValueError, match="Train it unrolled"):
        build(solver=eq.SAM())(x)


def test_presets_have_the_numbers_of_parameters_of_the_paper():
    for which, count, convolutions in (("199k", 198_842, 3), ("162k", 162_010, 1)):
        model = xie2021_guess(which, inputs=(3, 4, 4))
        assert parameters_of(model) == count
        assert len([m for m in model.extractor if isinstance(m, torch.nn.Conv2d)]) == convolutions
        assert [tuple(layer.W.shape[1:]) for layer in model.layers] == [(54, 3, 3)] * 5
    assert "guess" in xie2021_guess.__doc__
    with pytest.raises(ValueError, match="'199k', '162k'"):
        xie2021_guess("200k")


def test_options_are_checked():
    for options, words in (
        ({"alpha": 0.0}, "alpha must lie in"),
        ({"limit": 1.5}, "limit must lie in"),
        ({"norm": 0.99}, "norm must lie in"),
        ({"kernel": 2}, "kernel must be odd"),
        ({"strides": (1,)}, "1 strides for 2 layers"),
        ({"hidden": ()}, "there must be a layer"),
        ({"strides": (1, 0)}, "strides must be a sequence"),
        ({"task": "detection"}, "task must be one of"),
        ({"inputs": 8}, r"inputs must be \(channels, height, width\)"),
        ({"inputs": (1, True, 4)}, r"inputs must be \(channels, height, width\)"),
        ({"pool": True}, "pool must be an integer"),
        ({"pool": 2.0}, "pool must be an integer"),
        ({"hidden": (4, 2.0)}, "hidden must be a sequence"),
        ({"activation": "sine"}, "activation must be one of"),
    ):
        with pytest.raises(ValueError, match=words):
            build(**options)
    steep = eq.solve.Activation("double", lambda p: 2 * p, lambda p: 2 + 0 * p, lipschitz=2.0)
    with pytest.raises(ValueError, match="1-Lipschitz"):
        build(activation=steep)


def test_a_property_is_checked_when_it_is_set():
    model = build()
    with pytest.raises(TypeError, match="regulariser must be a property such as L1"):
        model.regulariser = lambda z: z
    assert eq.certify(model, images()).proved
    model.regulariser = L1(0.1)
    assert "regulariser" in model.config()


def test_integers_of_numpy_are_integers(tmp_path):
    two, three = np.int64(2), np.int32(3)
    model = ConvOptEq((two, three, three), three, (two,), two, kernel=three, pool=two, strides=[np.int8(1)])
    model.save(tmp_path / "m.safetensors")  # as JSON holds them
    assert eq.load(tmp_path / "m.safetensors").config() == model.config()
    assert model.config()["kernel"] == 3
    with pytest.raises(ValueError, match="outputs must be an integer"):
        ConvOptEq((2, 3, 3), 3, (2,), np.bool_(True))


FAMILIES = [
    lambda **o: build(**o),
    lambda **o: ResidualConv((C, H, W), 4, outputs=K, groups=2, dtype=torch.float64, **o),
    lambda **o: MultiscaleDEQ((C, H, W), (4, 4), K, groups=2, dtype=torch.float64, **o),
]


@pytest.mark.parametrize("family", FAMILIES, ids=["opteq", "residual", "multiscale"])
def test_a_file_keeps_how_the_state_is_found_or_asks_for_it(family, tmp_path):
    path, x = tmp_path / "m.safetensors", images()
    for how in (
        {"gradient": 2},
        {"gradient": eq.Unrolled(3, eq.Picard(damping=0.5))},
        {"gradient": 3, "solver": eq.SAM(rho=0.5, c=0.1)},
    ):
        model = family(on_failure="accept", **how)
        model.save(path)
        twin = eq.load(path, on_failure="accept")
        assert torch.equal(twin(x), model(x))
        assert not torch.allclose(family(on_failure="accept", gradient=5)(x), model(x), atol=1e-9)
    for solver in (eq.SAM(eq.solve.inverse_norm(0.5)), [eq.SAM(), eq.Picard()]):
        family(solver=solver).save(path)
        with pytest.raises(TypeError, match=r"pass such a SAM to load\(path, solver=…\)"):
            eq.load(path)
        assert eq.load(path, solver=solver).method.solver == solver


def test_short_steps_are_solved_as_near_as_a_cell_too():
    model, x = build(alpha=0.02, stop=eq.Stop(rtol=1e-4)), images()
    exact, near = model.solve(x, stop=TIGHT).value, model.as_equilibrium()(x)
    assert ((near - exact).flatten(1).norm(dim=1) <= 5e-4 * exact.flatten(1).norm(dim=1)).all()


def test_unrolled_steps_with_a_skip_run_in_half_precision():
    model, x = build(dtype=torch.float32, alpha=0.6, gradient=30), images().float()
    y = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = model(x)
    assert 1e-4 < (near - y).norm() / y.norm() < 0.05


def test_sam_in_a_chain_has_no_implicit_gradient_either():
    model, x = build(), images()
    chain = [eq.SAM(), eq.Picard()]
    with pytest.raises(ValueError, match="SAM chooses among many equilibria"):
        model(x, solver=chain)
    with torch.no_grad():
        assert model(x, solver=chain, stop=eq.Stop(max_steps=200, patience=200)).isfinite().all()
    with pytest.raises(ValueError, match="takes steps of its own solver"):
        build(gradient=150)(x, solver=eq.Anderson())
