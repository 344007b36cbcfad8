import math
from itertools import pairwise

import pytest
import torch

import equipoise as eq
from contracts.model import TIGHT
from contracts.proximal import ProximalContract
from equipoise.models.proximal import DeepOptEq, MultiBlockOptEq, OptEq
from equipoise.models.proximal.properties import L1


class TestDeepOptEq(ProximalContract):
    family = DeepOptEq
    sizes = {"hidden": [5, 7]}  # noqa: RUF012
    equation = "z = f_L∘…∘f_1(z)"
    curved = "layers.0.W"
    learning_rate = 0.02


class TestDeepSkip(ProximalContract):
    family = DeepOptEq
    sizes = {"hidden": [4, 6, 3]}  # noqa: RUF012
    options = {"alpha": 0.4, "activation": "tanh"}  # noqa: RUF012
    equation = "z = f_L∘…∘f_1(z)"
    curved = "layers.1.W"
    learning_rate = 0.02


class TestMultiBlock(ProximalContract):
    family = MultiBlockOptEq
    sizes = {"hidden": [5, 4]}  # noqa: RUF012
    options = {"alpha": 0.6}  # noqa: RUF012
    equation = "z_l = f_l(z_{l−1}), z_0 = z_L"
    curved = "layers.1.W"

    def test_contraction_and_wellposedness(self):
        model, X = self.build(), self.data()
        with torch.no_grad():
            model.layers[0].W.mul_(0.2)
        q, product = model.contraction(), model.deep().contraction()
        assert q == max(model.factors()) < 1
        assert product == pytest.approx(math.prod(model.factors()))
        assert product < 0.9 * q
        c, weights = model.injections(X), model.weights()
        z = torch.zeros(len(X), model.state_size, dtype=X.dtype)
        top = torch.linalg.svd(weights[1]).Vh[0].detach()  # T is linear where its relu is on
        c = [c[0], torch.full_like(c[1], 50.0)]
        w = z.clone()
        w[:, : model.state] = top
        moved = (model.T(w, c, weights) - model.T(z, c, weights)).norm(dim=1)
        torch.testing.assert_close(moved, torch.full_like(moved, q), rtol=1e-12, atol=0)  # the product is not
        with torch.no_grad():
            model.layers[1].W.mul_(1.15)  # one layer may expand, and the loop of both contract
        assert model.contraction() is None
        model.check_wellposed()


def test_averagedness_speaks_of_the_layers_of_a_deep_network_alone():
    model, _ = build()
    with pytest.raises(ValueError, match="for the deep form alone"):
        _ = model.multi_block().averagedness
    with pytest.raises(ValueError, match="for the layers alone"):
        _ = build(regulariser=L1(0.1))[0].averagedness


def build(hidden=(5, 4), alpha=0.5, seed=0, size=None, **options):
    generator = torch.Generator().manual_seed(seed)
    model = DeepOptEq(3, 4, list(hidden), alpha, dtype=torch.float64, generator=generator, **options)
    with torch.no_grad():
        for layer in model.layers:
            layer.b.copy_(torch.randn(len(layer.b), dtype=torch.float64, generator=generator))
            if size is not None:
                layer.W.mul_(size / torch.linalg.matrix_norm(layer.W, 2))
    return model, torch.randn(6, 3, dtype=torch.float64, generator=generator)


def test_layers_have_their_own_weights():
    model = DeepOptEq(3, 4, [5, 6], outputs=2)
    assert [tuple(layer.W.shape) for layer in model.layers] == [(5, 4), (6, 4)]
    assert [tuple(layer.U.shape) for layer in model.layers] == [(5, 3), (6, 3)]
    assert [tuple(layer.b.shape) for layer in model.layers] == [(5,), (6,)]
    for hidden in (5, [], [4, 0], "45"):
        with pytest.raises(ValueError, match=r"hidden(\[1\]|\[0\])? must"):
            DeepOptEq(3, 4, hidden)


def test_one_layer_is_an_opteq():
    model, X = build([5])
    one = OptEq(3, 4, 5, dtype=torch.float64)
    layer = model.layers[0]
    one.load_state_dict({"W": layer.W, "U": layer.U, "b": layer.b, "V": model.V})
    torch.testing.assert_close(model(X, stop=TIGHT), one(X, stop=TIGHT), rtol=0, atol=1e-12)


def test_diagnosis_and_audit_take_the_model():
    model, X = build(alpha=1.0, size=0.6)
    assert eq.audit(model, X[:2], samples=4).ok()
    found = eq.diagnose(model.as_equilibrium(), X)
    assert found.ok
    assert found.spectral_radius_estimate < 1


# -- the three forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_deep_and_multi_block_are_one_network(alpha, activation):
    model, X = build([5, 4, 6], alpha, activation=activation)
    blocks = model.multi_block()
    Z = model.equilibrium(X, stop=TIGHT)
    torch.testing.assert_close(blocks.equilibrium(X, stop=TIGHT), Z, rtol=0, atol=1e-12)
    torch.testing.assert_close(blocks(X, stop=TIGHT), model(X, stop=TIGHT), rtol=0, atol=1e-12)
    want = torch.cat(model.block_states(Z, X), dim=1)
    torch.testing.assert_close(blocks.solve(X, stop=TIGHT).value, want.detach(), rtol=0, atol=1e-12)
    back = blocks.deep()
    assert back.config() == model.config()
    assert torch.equal(back(X), model(X))
    with torch.no_grad():
        back.layers[0].W.zero_()  # a copy
    assert model.layers[0].W.norm() > 0


def test_the_stacked_form_is_the_printed_matrix_equation():
    """z̃ = αW̃ᵀσ(W̃Pz̃ + Ũx + b̃) + (1−α)Pz̃ with a block-diagonal W̃ and a cyclic P    [xie2021, (6), (13)]."""
    model, X = build([5, 4, 6], 0.4)
    blocks = model.multi_block()
    W = torch.block_diag(*(layer.W for layer in model.layers))
    U = torch.cat([layer.U for layer in model.layers])
    b = torch.cat([layer.b for layer in model.layers])
    P = torch.kron(torch.eye(3, dtype=torch.float64).roll(1, dims=0), torch.eye(4, dtype=torch.float64))
    assert torch.equal(P @ P.T, torch.eye(12, dtype=torch.float64))
    z = torch.randn(6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    moved = z @ P.T
    printed = 0.4 * torch.relu(moved @ W.T + X @ U.T + b) @ W + 0.6 * moved
    torch.testing.assert_close(
        blocks.T(z, blocks.injections(X), blocks.weights()), printed, rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_as_alpha_falls_every_block_tends_to_the_wide_network_at_first_order(activation):
    model, X = build([5, 4, 6], activation=activation, size=0.8)
    wide = model.wide()
    assert isinstance(wide, OptEq)
    assert (wide.mu, wide.hidden) == (3.0, 15)
    y = wide.equilibrium(X, stop=TIGHT).detach()
    states = [model.layer_map(y, c, W) for c, W in zip(model.injections(X), model.weights(), strict=True)]
    mean = sum((s - 0.5 * y) / 0.5 for s in states) / 3  # each layer at α = ½ is ½W_lᵀσ + ½y
    torch.testing.assert_close(mean, y, rtol=0, atol=1e-12)  # y = L⁻¹ΣW_lᵀσ(W_ly + c_l)
    errors = []
    for alpha in (0.02, 0.01, 0.005):
        model.alpha = alpha
        Z = model.equilibrium(X, stop=eq.Stop(rtol=1e-13, atol=1e-14, max_steps=20000)).detach()
        errors.append(max((block - y).norm().item() for block in model.block_states(Z, X)))
    assert errors[0] < 0.2 * y.norm()
    for a, b in pairwise(errors):
        assert a / b == pytest.approx(2, rel=0.02)  # O(α), slope 1


def test_wide_and_multi_block_forms_are_of_a_network_without_a_property():
    model, _ = build(regulariser=L1(0.1))
    with pytest.raises(ValueError, match="no place for L1"):
        model.multi_block()
    with pytest.raises(ValueError, match="without L1"):
        model.wide()
    with pytest.raises(ValueError, match="no place for L1"):
        MultiBlockOptEq(3, 4, [5], regulariser=L1(0.1))


# -- averaged maps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("hidden", [[5], [5, 4], [6, 3, 4]])
def test_layers_and_their_composition_are_averaged_at_norm_one(alpha, hidden):
    model, X = build(hidden, alpha, size=1.0)
    L = len(hidden)
    assert model.averagedness == pytest.approx(L * alpha / (2 + (L - 1) * alpha))
    injections, weights = model.injections(X), model.weights()
    generator = torch.Generator().manual_seed(5)

    def reflected(T, constant, z):  # nonexpansive where T is averaged with the constant
        return (1 - 1 / constant) * z + T(z) / constant

    maps = [(lambda z: model.T(z, injections, weights), model.averagedness)]
    maps += [
        (lambda z, c=c, W=W: model.layer_map(z, c, W), alpha / 2)
        for c, W in zip(injections, weights, strict=True)
    ]
    for T, constant in maps:
        for scale in (0.1, 1.0, 10.0):
            x, y = scale * torch.randn(2, 6, 4, dtype=torch.float64, generator=generator)
            moved = (reflected(T, constant, x) - reflected(T, constant, y)).norm(dim=1)
            assert (moved <= (x - y).norm(dim=1) * (1 + 1e-12)).all()
    assert model.contraction() is None or model.contraction() > 1 - 1e-12


# -- the extractor -------------------------------------------------------------------------------------------


def test_an_extractor_is_trained_with_the_rest_and_takes_inputs_of_any_shape(tmp_path):
    extractor = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 3), torch.nn.Tanh()).double()
    model, _ = build(feature_map=extractor)
    X = torch.randn(6, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    plain, _ = build()
    torch.testing.assert_close(model(X), plain(extractor(X)), rtol=0, atol=1e-9)
    model(X).sum().backward()
    assert all(p.grad is not None and p.grad.norm() > 0 for p in extractor.parameters())
    model.save(tmp_path / "m.safetensors")
    with pytest.raises(TypeError, match=r"pass it to load\(path, feature_map=…\)"):
        eq.load(tmp_path / "m.safetensors")
    fresh = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 3), torch.nn.Tanh()).double()
    twin = eq.load(tmp_path / "m.safetensors", feature_map=fresh)
    torch.testing.assert_close(twin(X), model(X), rtol=0, atol=1e-12)
    assert eq.certify(model, X).proved
    wrong, _ = build(feature_map=lambda x: x[:, :2])
    with pytest.raises(ValueError, match=r"feature_map must return \(6, 3\)"):
        wrong(torch.randn(6, 3, dtype=torch.float64))


# -- training ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", ["implicit", 20])
def test_sgd_at_rate_one_tenth_with_momentum_stays_finite_with_projection(gradient):
    generator = torch.Generator().manual_seed(0)
    model = DeepOptEq(8, 16, [24, 12], outputs=3, generator=generator, gradient=gradient, on_failure="accept")
    X = 3 * torch.randn(64, 8, generator=generator)
    labels = torch.randint(3, (64,), generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(X), labels)
        loss.backward()
        optimiser.step()
        model.project_()
        losses.append(loss.item())
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert all(eq.linalg.norm_upper(layer.W) <= 1 for layer in model.layers)
    assert losses[-1] < 0.5 * losses[0]
