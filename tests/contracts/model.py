"""The suite every affine family must pass. A new family joins with a subclass that builds itself:

class TestGaussianReLU(ModelContract):
    def build(self, **options): ...
    def kronecker(self, model, X, D): ...
"""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, jacfwd, jacrev, vmap

import equipoise as eq
from equipoise.models.affine import AffineFamily
from problems import exact_affine

from .model_files import D_IN, TIGHT, FilesContract, N


class ModelContract(FilesContract):
    family: type[AffineFamily]
    inputs = D_IN
    iterates = True  # equilibria are found by a solver, not in closed form
    column_outputs = False  # ŷ is (N, k) for k = 1 too
    equation: str  # as the repr tells it
    curved: str  # a parameter in which ŷ is not quadratic
    learning_rate = 0.01
    loss_falls_to = 0.7  # of the first loss, in 30 steps

    def build(self, outputs: int = 1, seed: int = 0, dtype: torch.dtype = torch.float64, **options):
        """A small well-posed model, width ≤ 6, with no tie at 0 and a readout that is not zero."""
        generator = torch.Generator().manual_seed(seed)
        return self.family(
            self.inputs, 6, outputs=outputs, dtype=dtype, generator=generator, **{**self.options, **options}
        )

    options: dict = {}  # noqa: RUF012

    def kronecker(self, model, X, Z, D) -> dict[str, torch.Tensor]:
        """∂ŷ/∂vec(θ) of k = 1 for every parameter, (N, numel) row-major, as the paper prints it."""
        raise NotImplementedError

    def data(self, n: int = N, seed: int = 1, dtype: torch.dtype = torch.float64):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(n, self.inputs, dtype=torch.float64, generator=generator).to(dtype)

    def jacobians(self, model, X):
        """∂ŷ/∂θ by torch.autograd, a backward pass an output: (N·k, numel)."""
        y = model(X, stop=TIGHT).flatten()
        names, parameters = zip(*model.named_parameters(), strict=True)
        rows = [
            torch.autograd.grad(y[i], parameters, retain_graph=True, allow_unused=True) for i in range(len(y))
        ]
        return {
            name: torch.stack(
                [torch.zeros_like(p).flatten() if r[j] is None else r[j].flatten() for r in rows]
            )
            for j, (name, p) in enumerate(zip(names, parameters, strict=True))
        }

    # -- the equation ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("outputs", [1, 3])
    def test_the_equilibrium_solves_its_equation_and_the_readout_is_linear(self, outputs):
        model, X = self.build(outputs), self.data()
        Z = model.equilibrium(X, stop=TIGHT)
        f = model.activation(Z @ model.weight().T + model.injection(X))
        torch.testing.assert_close(Z, f, rtol=0, atol=1e-13)
        y = model(X, stop=TIGHT)
        assert y.shape == ((N,) if outputs == 1 and not self.column_outputs else (N, outputs))
        torch.testing.assert_close(y, model.readout(Z), rtol=0, atol=1e-12)
        assert torch.equal(model.solve(X, stop=TIGHT).value, Z)
        assert model.solve(X).converged.all()

    def test_the_equilibrium_is_the_one_an_independent_method_finds(self):
        model, X = self.build(), self.data(9)
        problem = model.affine_map(X)
        if model.activation.name == "identity":
            eye = torch.eye(model.width, dtype=X.dtype)
            exact = torch.linalg.solve(eye - problem.weight, problem.bias.T).T
        else:
            exact = exact_affine(problem.weight, problem.bias)
        torch.testing.assert_close(model.equilibrium(X, stop=TIGHT), exact, rtol=0, atol=1e-12)

    def test_resolvent_bound_holds_for_changes_of_the_injection(self):
        model, X = self.build(), self.data()
        problem, bound = model.affine_map(X), model.resolvent_bound()
        assert bound < torch.inf
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            move = 10 ** (-seed / 4) * torch.randn(N, model.width, dtype=X.dtype, generator=generator)
            z, moved = (
                eq.fixed_point(p, solver=model.default_solver(p), stop=TIGHT).raise_if_failed().value
                for p in (problem, problem.with_bias(problem.bias + move))
            )
            assert ((moved - z).norm(dim=1) <= bound * move.norm(dim=1) + 1e-12).all()

    def test_contraction_and_wellposedness(self):
        model, X = self.build(), self.data()
        model.check_wellposed()
        q = model.contraction()
        if q is not None:
            assert 0 <= q < 1
            f = model.affine_map(X)
            norm = 1 if model.activation.name == "identity" else 2  # the linear family contracts in ℓ₁
            z, w = (torch.randn(N, model.width, dtype=X.dtype) for _ in range(2))
            assert ((f(z) - f(w)).norm(p=norm, dim=1) <= q * (z - w).norm(p=norm, dim=1) * (1 + 1e-12)).all()

    # -- gradients ---------------------------------------------------------------------------------------

    @pytest.mark.parametrize("outputs", [1, 3])
    def test_autograd_equals_the_structured_pullback(self, outputs):
        model, X = self.build(outputs), self.data()
        y = model(X, stop=TIGHT)
        R = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(7))
        (y * R).sum().backward()
        Z = model.solve(X, stop=TIGHT).value
        V = model.adjoint(Z, X, stop=TIGHT)
        assert V.shape == (
            (N, model.width) if outputs == 1 and not self.column_outputs else (N, outputs, model.width)
        )
        gradients = model.pullback(V, R, Z, X)
        assert gradients.keys() == dict(model.named_parameters()).keys()
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.grad, gradients[name], rtol=1e-10, atol=1e-12)
            assert p.grad.norm() > 1e-6

    def test_autograd_equals_the_printed_kronecker_formulas(self):
        model, X = self.build(), self.data()
        Z = model.solve(X, stop=TIGHT).value
        printed = self.kronecker(model, X, Z, model.masks(Z, X))
        for name, jacobian in self.jacobians(model, X).items():
            torch.testing.assert_close(jacobian, printed[name], rtol=1e-10, atol=1e-11)

    @pytest.mark.parametrize("outputs", [1, pytest.param(3, marks=pytest.mark.slow)])
    def test_gradients_of_first_and_second_order_by_finite_differences(self, outputs):
        model, X = self.build(outputs), self.data(2).requires_grad_()
        names, parameters = zip(*model.named_parameters(), strict=True)

        def f(X, *values):
            return functional_call(model, dict(zip(names, values, strict=True)), (X,), {"stop": TIGHT})

        assert torch.autograd.gradcheck(f, (X, *parameters), fast_mode=True)
        assert torch.autograd.gradgradcheck(f, (X, *parameters), fast_mode=True)
        assert torch.autograd.gradcheck(lambda X: model.equilibrium(X, stop=TIGHT), (X,))

    def test_third_order_by_finite_differences_of_the_second(self):
        model, X = self.build(), self.data(3)
        name, p = self.curved, model.get_parameter(self.curved)
        directions = torch.randn(
            3, *p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(3)
        ).unbind()

        def second(value):
            y = functional_call(model, {name: value}, (X,), {"stop": TIGHT}).sum()
            (g,) = torch.autograd.grad(y, value, create_graph=True)
            (h,) = torch.autograd.grad((g * directions[0]).sum(), value, create_graph=True)
            return (h * directions[1]).sum()

        at = p.detach().requires_grad_()
        third = (torch.autograd.grad(second(at), at)[0] * directions[2]).sum()
        eps = 1e-5
        moved = [second((at.detach() + s * eps * directions[2]).requires_grad_()) for s in (1, -1)]
        torch.testing.assert_close(third, (moved[0] - moved[1]) / (2 * eps), rtol=1e-5, atol=1e-7)

    @pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # forward mode
    def test_function_transforms_give_the_same_jacobians(self):
        model, X = self.build(), self.data(3)
        parameters = dict(model.named_parameters())

        def f(parameters, x):
            return functional_call(model, parameters, (x,), {"stop": TIGHT}).flatten()

        want = self.jacobians(model, X)
        for transform in (jacrev, jacfwd):
            for name, jacobian in transform(f)(parameters, X).items():
                torch.testing.assert_close(jacobian.flatten(1), want[name], rtol=1e-10, atol=1e-11)
        alone = vmap(jacrev(lambda p, x: f(p, x[None])[0]), in_dims=(None, 0))(parameters, X)
        for name, jacobian in alone.items():
            torch.testing.assert_close(jacobian.flatten(1), want[name], rtol=1e-10, atol=1e-11)

    def test_an_ensemble_of_parameters_under_vmap(self):
        models, X = [self.build(seed=s) for s in (0, 5)], self.data(3)
        stacked = {
            name: torch.stack([dict(m.named_parameters())[name].detach() for m in models])
            for name, _ in models[0].named_parameters()
        }
        run = lambda p: functional_call(models[0], p, (X,), {"stop": TIGHT}).sum()
        gradients = vmap(torch.func.grad(run))(stacked)
        for i, model in enumerate(models):
            model(X, stop=TIGHT).sum().backward()
            for name, p in model.named_parameters():
                torch.testing.assert_close(gradients[name][i], p.grad, rtol=1e-10, atol=1e-11)

    def test_small_gradients_keep_their_relative_accuracy(self):
        gradients = []
        for scale in (1.0, 1e-20):
            model, X = self.build(), self.data()
            (scale * model(X, stop=eq.Stop(rtol=1e-12)).sum()).backward()
            gradients.append([p.grad / scale for p in model.parameters()])
        for big, small in zip(*gradients, strict=True):
            torch.testing.assert_close(big, small, rtol=1e-9, atol=1e-11)

    # -- the tangent kernel ------------------------------------------------------------------------------

    @pytest.mark.parametrize("outputs", [1, 3])
    def test_kernel_blocks_equal_the_contracted_jacobians(self, outputs):
        model, X, X2 = self.build(outputs), self.data(), self.data(3, seed=8)
        Z, Z2 = (model.solve(x, stop=TIGHT).value for x in (X, X2))
        V, V2 = model.adjoint(Z, X, stop=TIGHT), model.adjoint(Z2, X2, stop=TIGHT)
        blocks = model.gram(V, Z, X, V2, Z2, X2)
        left, right = self.jacobians(model, X), self.jacobians(model, X2)
        assert blocks.keys() == left.keys()
        for name, block in blocks.items():
            assert block.shape == ((N, 3) if outputs == 1 else (N, outputs, 3, outputs))
            want = (left[name] @ right[name].T).reshape(block.shape)
            torch.testing.assert_close(block, want, rtol=1e-10, atol=1e-10)
        same = model.gram(V, Z, X, V, Z, X)
        for name, block in same.items():
            square = block.reshape(N * outputs, N * outputs)
            torch.testing.assert_close(square, square.T, rtol=1e-12, atol=1e-13)
            assert torch.linalg.eigvalsh(square)[0] > -1e-10 * square.norm(), name

    def test_the_readout_block_is_the_gram_matrix_an_output(self):
        model, X = self.build(3), self.data()
        Z = model.solve(X, stop=TIGHT).value
        V = model.adjoint(Z, X, stop=TIGHT)
        block = model.gram(V, Z, X, V, Z, X)[model.readout_name]
        for p in range(3):
            for q in range(3):
                torch.testing.assert_close(block[:, p, :, q], (p == q) * Z @ Z.T, rtol=0, atol=1e-12)
        shift = {n for n, p in model.named_parameters() if p is getattr(model, "readout_bias", None)}
        assert {*model.hidden_names, model.readout_name, *shift} == {n for n, _ in model.named_parameters()}
        assert not shift & {*model.hidden_names, model.readout_name}

    # -- samples, starts, precision ----------------------------------------------------------------------

    def test_a_sample_alone_equals_the_same_in_a_batch(self):
        model, X = self.build(3), self.data(20)
        together = model(X, stop=TIGHT)
        for row in (0, 7, 19):
            torch.testing.assert_close(
                model(X[row : row + 1], stop=TIGHT)[0], together[row], rtol=0, atol=1e-12
            )
        order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(model(X[order], stop=TIGHT), together[order], rtol=0, atol=1e-12)

    def test_starts_change_the_cost_and_not_the_answer(self):
        model, X = self.build(3), self.data()
        cold = model.solve(X)
        warm = model.solve(X, start=cold)
        assert warm.steps.tolist() == [0] * N
        V = model.solve_adjoint(cold.value, X)
        assert model.solve_adjoint(cold.value, X, start=V).steps.max() == 0
        assert model.solve_adjoint(cold.value, X, masks=model.masks(cold.value, X)).converged.all()
        if self.iterates:
            assert cold.steps.max() > 0
            assert V.steps.max() > 0
        generator = torch.Generator().manual_seed(4)
        far = 3 * torch.randn(N, model.width, dtype=X.dtype, generator=generator)
        gradients = []
        for start in (None, torch.zeros_like(far), far, cold.value):
            model.zero_grad()
            model(X, start=start, stop=TIGHT).sum().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        for other in gradients[1:]:
            for a, b in zip(gradients[0], other, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)

    def test_other_solvers_give_the_same_answer_and_gradient(self):
        model, X = self.build(), self.data()
        want = self.jacobians(model, X)
        y = model(X, solver=eq.Anderson(), stop=eq.Stop(rtol=1e-13, max_steps=2000))
        grads = torch.autograd.grad(y.sum(), list(model.parameters()))
        for (name, p), g in zip(model.named_parameters(), grads, strict=True):
            torch.testing.assert_close(g, want[name].sum(dim=0).reshape(p.shape), rtol=1e-9, atol=1e-10)

    def test_float32_and_mixed_precision(self):
        single, double = self.build(dtype=torch.float32), self.build()
        double.load_state_dict(single.state_dict())
        X = self.data(dtype=torch.float32)
        y = single(X)
        assert y.dtype == torch.float32
        torch.testing.assert_close(y.double(), double(X.double()), rtol=2e-3, atol=2e-3)
        y.sum().backward()
        double(X.double(), stop=eq.Stop(rtol=1e-12), precision="mixed").sum().backward()
        want = self.jacobians(double, X.double())
        for (name, p), q in zip(double.named_parameters(), single.parameters(), strict=True):
            exact = want[name].sum(dim=0).reshape(p.shape)
            torch.testing.assert_close(p.grad, exact, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(q.grad.double(), exact, rtol=2e-2, atol=2e-2)

    def test_inputs_that_are_not_contiguous(self):
        model, X = self.build(), self.data()
        strided = X.T.contiguous().T
        assert not strided.is_contiguous()
        torch.testing.assert_close(model(strided), model(X), rtol=0, atol=1e-12)
        every = torch.stack([X, X], dim=1)[:, 0]
        torch.testing.assert_close(model(every), model(X), rtol=0, atol=1e-12)

    def test_the_layout_of_the_rows_changes_no_bit(self):
        model, X = self.build(), self.data().repeat(9, 1)
        columns = X.T.contiguous().T
        assert torch.equal(model(columns), model(X))
        assert torch.equal(model.solve(columns).value, model.solve(X).value)

    def test_an_empty_batch(self):
        for outputs in (1, 2):
            model, X = self.build(outputs), self.data(0)
            y = model(X)
            assert y.shape == ((0,) if outputs == 1 and not self.column_outputs else (0, outputs))
            y.sum().backward()
            assert all(p.grad is None or p.grad.abs().sum() == 0 for p in model.parameters())
            Z = model.equilibrium(X)
            V = model.adjoint(Z, X)
            for block in model.gram(V, Z, X, V, Z, X).values():
                assert block.shape == ((0, 0) if outputs == 1 else (0, outputs, 0, outputs))
            for gradient in model.pullback(V, y.detach(), Z, X).values():
                assert gradient.abs().sum() == 0

    def test_a_seed_determines_everything_and_the_global_one_is_left_alone(self):
        before = torch.get_rng_state()
        first, again, other = self.build(seed=3), self.build(seed=3), self.build(seed=4)
        X = self.data()
        y = first(X)
        y.sum().backward()
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(y, again(X))
        assert not torch.equal(y, other(X))

    # -- training ----------------------------------------------------------------------------------------

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
                losses.append(loss.item())
            runs.append(losses)
        assert runs[0][-1] < self.loss_falls_to * runs[0][0]
        assert all(b < a for a, b in zip(runs[0], runs[0][1:], strict=False))
        assert runs[0] == runs[1]
