"""The suite every OptEq model must pass: that of the families, without what is said of affine maps alone."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from contracts.model import TIGHT, ModelContract, N
from equipoise.models.saving import Saved, load


class ProximalContract(ModelContract):
    sizes: dict = {}  # noqa: RUF012
    affine_only = None  # what is tested below in its own way, or not at all

    def build(self, outputs: int = 1, seed: int = 0, dtype: torch.dtype = torch.float64, **options):
        generator = torch.Generator().manual_seed(seed)
        settings = {**self.sizes, "outputs": outputs, **self.options, **options}
        model = self.family(self.inputs, 6, dtype=dtype, generator=generator, **settings)
        with torch.no_grad():  # a bias that is not zero
            for name, p in model.named_parameters():
                if name.endswith("b"):
                    p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2)
        return model

    test_the_equilibrium_is_the_one_an_independent_method_finds = affine_only
    test_resolvent_bound_holds_for_changes_of_the_injection = affine_only
    test_autograd_equals_the_structured_pullback = affine_only
    test_autograd_equals_the_printed_kronecker_formulas = affine_only
    test_kernel_blocks_equal_the_contracted_jacobians = affine_only
    test_the_readout_block_is_the_gram_matrix_an_output = affine_only
    test_an_ensemble_of_parameters_under_vmap = affine_only

    @pytest.mark.parametrize("outputs", [1, 3])
    def test_the_equilibrium_solves_its_equation_and_the_readout_is_linear(self, outputs):
        model, X = self.build(outputs), self.data()
        Z = model.equilibrium(X, stop=TIGHT)
        T = model.T(model.solve(X, stop=TIGHT).value, model.injections(X), model.weights())
        torch.testing.assert_close(Z, model.state_of(T), rtol=0, atol=1e-12)
        y = model(X, stop=TIGHT)
        assert y.shape == ((N,) if outputs == 1 else (N, outputs))
        torch.testing.assert_close(y, Z @ model.V, rtol=0, atol=1e-12)
        assert model.solve(X).converged.all()
        assert set(model.hidden_names) | {"V"} == {n for n, _ in model.named_parameters()}

    def test_contraction_and_wellposedness(self):
        model, X = self.build(), self.data()
        model.check_wellposed()
        q = model.contraction()
        assert 0 < q < 1
        injections, weights = model.injections(X), model.weights()
        generator = torch.Generator().manual_seed(3)
        for _ in range(10):
            z, w = torch.randn(2, N, model.width, dtype=X.dtype, generator=generator)
            moved = model.T(z, injections, weights) - model.T(w, injections, weights)
            assert (moved.norm(dim=1) <= q * (z - w).norm(dim=1) * (1 + 1e-12)).all()

    @pytest.mark.parametrize("outputs", [1, 2])
    def test_the_tangent_kernel_contracts_the_jacobians(self, outputs):
        model, X, X2 = self.build(outputs, stop=TIGHT), self.data(), self.data(3, seed=8)
        model.gradient = eq.Implicit(stop=TIGHT)
        kernel = eq.tangent_kernel(model, X, X2, stop=TIGHT)
        left, right = self.jacobians(model, X), self.jacobians(model, X2)
        assert kernel.blocks.keys() == left.keys()
        for name, block in kernel.blocks.items():
            assert block.shape == ((N, 3) if outputs == 1 else (N, outputs, 3, outputs))
            want = (left[name] @ right[name].T).reshape(block.shape)
            torch.testing.assert_close(block, want, rtol=1e-9, atol=1e-9)
        same = eq.tangent_kernel(model, X, stop=TIGHT)
        assert same.lambda_min > -1e-9 * same.lambda_max

    def test_starts_change_the_cost_and_not_the_answer(self):
        model, X = self.build(3), self.data()
        cold = model.solve(X)
        assert cold.steps.max() > 0
        assert model.solve(X, start=cold).steps.tolist() == [0] * N
        generator = torch.Generator().manual_seed(4)
        far = 3 * torch.randn(cold.value.shape, dtype=X.dtype, generator=generator)
        gradients = []
        for start in (None, torch.zeros_like(far), far, cold):
            model.zero_grad()
            model(X, start=start, stop=TIGHT).sum().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        for other in gradients[1:]:
            for a, b in zip(gradients[0], other, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)

    def test_an_empty_batch(self):
        for outputs in (1, 2):
            model, X = self.build(outputs), self.data(0)
            y = model(X)
            assert y.shape == ((0,) if outputs == 1 else (0, outputs))
            y.sum().backward()
            assert all(p.grad is None or p.grad.abs().sum() == 0 for p in model.parameters())

    @pytest.mark.parametrize("outputs", [pytest.param(1, marks=pytest.mark.slow), 3])
    def test_plain_sgd_lowers_the_loss_and_repeats_exactly(self, outputs):
        runs = []
        for _ in range(2):
            model, X = self.build(outputs), self.data()
            y = torch.randn(model(X).shape, dtype=X.dtype, generator=torch.Generator().manual_seed(2))
            optimiser = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
            losses = []
            for _ in range(30):
                optimiser.zero_grad()
                loss = 0.5 * (model(X) - y).square().sum()
                loss.backward()
                optimiser.step()
                model.project_(0.95)
                losses.append(loss.item())
            runs.append(losses)
        assert runs[0][-1] < self.loss_falls_to * runs[0][0]
        assert runs[0] == runs[1]

    @pytest.mark.parametrize("gradient", [eq.Unrolled(400), eq.Phantom(200)], ids=["unrolled", "phantom"])
    def test_other_gradients_are_the_implicit_one_at_convergence(self, gradient):
        model, X = self.build(), self.data()
        found = []
        for how in ("implicit", gradient):
            y = model(X, gradient=how, stop=eq.Stop(rtol=1e-13, atol=1e-14, max_steps=3000))
            found.append(torch.autograd.grad(y.square().sum(), list(model.parameters())))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_file_holds_the_model_whole(self, tmp_path, dtype):
        model, X = self.build(2, dtype=dtype), self.data(dtype=dtype)
        path = tmp_path / "model.safetensors"
        model.save(path)
        for read in (load, eq.load, Saved.load, self.family.load):
            twin = read(path)
            assert type(twin) is type(model)
            assert twin.config() == model.config()
            assert torch.equal(twin(X), model(X))

    def test_what_cannot_be_used_is_refused_in_words(self):
        model, X, d = self.build(), self.data(), self.inputs
        with pytest.raises(
            ValueError, match=rf"X must be \(N, {d}\), one row for each sample\. Got shape \(5, {d - 1}"
        ):
            model(X[:, 1:])
        with pytest.raises(ValueError, match=r"A single sample is X\[None\]"):
            model(X[0])
        with pytest.raises(TypeError, match="X must be a tensor"):
            model(X.tolist())
        with pytest.raises(ValueError, match=r"X must be torch\.float64 .* Got torch\.float32"):
            model(X.float())
        bad = X.clone()
        bad[3, 0], bad[1, 1] = torch.nan, torch.inf
        for call in (model, model.equilibrium, model.solve):
            with pytest.raises(ValueError, match="NaN or infinity in row 1, row 3"):
                call(bad)
        size = model.state_size
        with pytest.raises(ValueError, match=rf"start must be \(5, {size}\), 5 rows like X\. Got \(4, 6\)"):
            model.solve(X, start=torch.zeros(4, 6, dtype=X.dtype))
        for options in ({"outputs": 0}, {"outputs": 2.0}, {"outputs": True}):
            with pytest.raises(ValueError, match="outputs must be an integer ≥ 1"):
                self.build(**options)
        for alpha in (0.0, 1.2, float("nan")):
            with pytest.raises(ValueError, match=r"alpha must lie in \(0, 1\]"):
                self.build(alpha=alpha)
        with pytest.raises(ValueError, match="activation must be one of"):
            self.build(activation="gelu")
        with pytest.raises(TypeError, match="gradient must be 'implicit', a number"):
            model(X, gradient="exact")
        with pytest.raises(ValueError, match="takes steps of its own solver"):
            model(X, gradient=20, solver=eq.Anderson())
        with pytest.raises(TypeError):
            self.build(wdith=3)
        with pytest.raises(TypeError):
            model(X, tolerance=1e-3)

    def test_an_adjoint_that_fails_raises_and_is_never_a_gradient(self):
        model, X = self.build(), self.data()
        Z = model.solve(X, stop=TIGHT).value
        hasty = eq.Stop(rtol=1e-13, max_steps=1)
        y = model(X, start=Z, stop=hasty, gradient=eq.Implicit(eq.Picard(), stop=hasty))
        with pytest.raises(
            eq.EquilibriumError, match=r"adjoint of the forward solve: .*\n  row 0: max_steps"
        ):
            y.sum().backward()
        assert all(model.get_parameter(name).grad is None for name in model.hidden_names)

    def test_the_failure_policy_is_that_of_the_layers(self):
        model, X = self.build(3), self.data()
        hasty = eq.Stop(rtol=1e-13, max_steps=2)
        accepted = model(X, stop=hasty, on_failure="accept", gradient=eq.Phantom(1))
        assert accepted.shape == (N, 3)
        assert not model.last.forward.converged.all()
        with pytest.warns(eq.EquilibriumWarning, match=r"row \d: max_steps"):
            model(X, stop=hasty, on_failure="warn", gradient=eq.Phantom(1))
        with pytest.raises(eq.EquilibriumError, match="on_failure='mask' allows 10%"):
            model(X, stop=hasty, on_failure="mask")
        with pytest.raises(ValueError, match="on_failure must be one of"):
            model(X, on_failure="ignore")

    def test_the_tools_for_any_cell_take_it_as_an_equilibrium(self):
        model, X = self.build(), self.data()
        layer = model.as_equilibrium()
        want = model.equilibrium(X)
        torch.testing.assert_close(model.state_of(layer(X)), want, rtol=0, atol=1e-7)  # both to rtol 1e-8
        q = model.contraction()
        size = model.T(torch.zeros(N, model.state_size, dtype=X.dtype), model.injections(X), model.weights())
        offset, radius = size.norm(dim=1).max().item(), X.norm(dim=1).max().item()
        plain = eq.unroll(layer, error=1e-6, radius=radius, contraction=q, offset=offset)
        assert (model.state_of(plain(X)) - want).norm(dim=1).max() < 1e-5

    def test_the_weights_can_be_bounded_by_their_parameterisation(self):
        model, X = self.build(bound=0.7), self.data()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(10)
        for W in model.weights():
            norm = torch.linalg.matrix_norm(W, 2).item()
            assert norm == pytest.approx(0.7 * model.proximal_norm, rel=1e-12)
        raw = [layer.W.detach().clone() for layer in model.blocks]
        model(X).sum().backward()  # the gradient is of what is used: scaling W changes nothing
        for layer, W in zip(model.blocks, raw, strict=True):
            assert abs((layer.W.grad * W).sum()) < 1e-8 * layer.W.grad.norm() * W.norm()
        model.check_wellposed()

    def test_projection_bounds_every_layer_for_certain_and_leaves_small_ones_alone(self):
        for dtype in (torch.float32, torch.float64):
            model = self.build(dtype=dtype)
            before = [layer.W.detach().clone() for layer in model.blocks]
            assert model.project_() is model
            assert all(torch.equal(layer.W, W) for layer, W in zip(model.blocks, before, strict=True))
            with torch.no_grad():
                for layer in model.blocks:
                    layer.W.mul_(7.3)
            for bound in (1.0, 0.6):
                model.project_(bound)
                for layer, W in zip(model.blocks, before, strict=True):
                    upper = eq.linalg.norm_upper(layer.W)
                    assert upper <= bound * model.proximal_norm
                    assert upper > bound * model.proximal_norm * (1 - 1e-5)
                    scaled = layer.W * (W.norm() / layer.W.norm())
                    torch.testing.assert_close(scaled, W, rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            model.blocks[0].W[0, 0] = torch.nan
        with pytest.raises(ValueError, match="W of layer 1 holds NaN"):
            model.project_()
        with pytest.raises(ValueError, match=r"bound must lie in \(0, 1\]"):
            model.project_(1.5)
