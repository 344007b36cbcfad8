"""W = (1−μ)I − Aᵀ⋆A⋆ + B⋆ − Bᵀ⋆ on images: what makes it monotone, against the dense matrix."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, grad, vmap

import equipoise as eq
from contracts.image_model import TIGHT, C, H, ImageContract, K, W
from equipoise.models.affine import ConvMonotone
from equipoise.solve import AffineMap


def dense(model):
    """W as a matrix of flattened images."""
    unit = torch.eye(math.prod(model.state), dtype=torch.float64).reshape(-1, *model.state)
    return model.weight(unit).flatten(1).T.detach()


class TestConvMonotone(ImageContract):
    family = ConvMonotone

    def build(self, seed=0, dtype=torch.float64, **options):
        how = {"inputs": (C, H, W), "outputs": K, "features": 3, "margin": 0.8, **options}
        generator = torch.Generator().manual_seed(seed)
        return ConvMonotone(channels=4, hidden=5, dtype=dtype, generator=generator, **how)

    @pytest.mark.parametrize("norm", [0.7, 4.0])
    def test_the_printed_equation(self, norm):
        model, x = self.build(norm=norm), self.images()
        z = model.equilibrium(x, stop=TIGHT)
        c = F.conv2d(model.extractor(x), model.U, model.b)
        A_z = F.conv2d(z, model.A, padding=1)
        W_z = 0.2 * z - F.conv_transpose2d(A_z, model.A, padding=1)
        W_z = W_z + F.conv2d(z, model.B, padding=1) - F.conv_transpose2d(z, model.B, padding=1)
        torch.testing.assert_close(model.weight(z), W_z, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.relu(W_z + c), z, rtol=0, atol=1e-10)

    @settings(max_examples=15, deadline=None)
    @given(st.integers(0, 10**6), st.floats(0.01, 3), st.floats(0.1, 20), st.sampled_from([1, 3, 5]))
    def test_the_symmetric_part_is_margin_and_a_gram_matrix(self, seed, margin, norm, kernel):
        model = self.build(seed, margin=margin, norm=norm, kernel=kernel, inputs=(C, 4, 3))
        M = torch.eye(math.prod(model.state), dtype=torch.float64) - dense(model)
        least = torch.linalg.eigvalsh((M + M.T) / 2)[0].item()
        assert least >= margin - 1e-12 * (1 + norm**2)
        assert abs(torch.linalg.matrix_norm(M - M.T, 2).item() / 2 - norm) < 0.2 * norm  # about `norm`
        assert 0.5 / torch.linalg.matrix_norm(M, 2) < model.step_size() < 1.2 / torch.linalg.matrix_norm(M, 2)

    def test_it_is_found_where_plain_iteration_diverges_and_equals_the_dense_solution(self):
        model, x = self.build(norm=3.0), self.images()
        c = model.injection(x)[0].flatten(1).detach()
        W_dense = dense(model)
        assert torch.linalg.matrix_norm(W_dense, 2) > 5
        plain = eq.fixed_point(
            lambda z, c: torch.relu(z @ W_dense.T + c), torch.zeros_like(c), (c,), solver=eq.Picard()
        )
        assert not plain.converged.any()
        splitting = eq.fixed_point(
            AffineMap(W_dense, c), torch.zeros_like(c), solver=eq.PeacemanRachford(), stop=TIGHT
        )
        assert splitting.converged.all()
        z = model.solve(x, stop=TIGHT).value.flatten(1)
        torch.testing.assert_close(z, splitting.value, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("norm", [0.7, 3.0])
    def test_what_is_called_converged_is_as_near_as_the_tolerance_says(self, norm):
        """‖z − z*‖ ≤ 20 rtol ‖z*‖, though a step of the splitting leads a small part of the way."""
        model, x = self.build(norm=norm), self.images()
        exact = model.solve(x, stop=TIGHT).value.flatten(1)
        near = model.solve(x, stop=eq.Stop(rtol=1e-4)).value.flatten(1)
        assert ((near - exact).norm(dim=1) <= 20e-4 * exact.norm(dim=1)).all()

    def test_the_same_map_as_a_cell_is_as_near(self):
        x, stop = self.images(), eq.Stop(rtol=1e-4)
        model = self.build(norm=3.0, stop=stop)
        exact, near = model.solve(x, stop=TIGHT).value, model.as_equilibrium()(x)
        assert ((near - exact).flatten(1).norm(dim=1) <= 5e-4 * exact.flatten(1).norm(dim=1)).all()

    def test_one_channel_of_one_pixel_has_no_skew_part(self):
        """z = relu((1 − μ − a²) z + c), c ≥ 0, is z = c/(μ + a²)."""
        for image, kernel in (((1, 1, 1), 3), ((1, 1, 1), 1)):
            generator = torch.Generator().manual_seed(0)
            model = ConvMonotone(image, 1, kernel=kernel, dtype=torch.float64, generator=generator)
            assert model.norms()[1] == 0
            x = self.images()[:, :1, :1, :1]
            c, a = model.injection(x)[0], model.A[0, 0, kernel // 2, kernel // 2]
            expected = torch.relu(c) / (0.5 + a**2)
            torch.testing.assert_close(model.equilibrium(x, stop=TIGHT), expected, rtol=0, atol=1e-11)
        assert ConvMonotone((1, 4, 4), 1, kernel=1).norms()[1] == 0

    def test_transforms_of_functions_go_through_it(self):
        model, x = self.build(), self.images()
        each = vmap(lambda one: model(one[None], stop=TIGHT)[0])(x)
        torch.testing.assert_close(each, model(x, stop=TIGHT), rtol=0, atol=1e-9)
        loss = lambda p: functional_call(model, p, (x,), {"stop": TIGHT}).square().sum()
        found = grad(loss)(dict(model.named_parameters()))
        loss(dict(model.named_parameters())).backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(found[name], p.grad, rtol=1e-8, atol=1e-8)

    def test_the_margin_stays_positive(self):
        model = self.build()
        for wrong in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match="margin must be > 0 and finite"):
                model.margin = wrong
        model.margin = 2
        assert model.config()["margin"] == 2.0

    def test_in_half_precision_the_tolerance_is_what_it_can_reach(self):
        model, x = self.build(dtype=torch.float32), self.images(dtype=torch.float32)
        y = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            near = model(x, stop=eq.Stop(rtol=0.25))
            with pytest.raises(ValueError, match=r"in torch\.bfloat16 with α = .* ask for less"):
                model(x)
        assert 1e-4 < (near - y).norm() / y.norm() < 0.25

    def test_the_certificate_needs_no_condition_but_finite_kernels(self):
        model, x = self.build(norm=50.0), self.images()
        certificate = eq.certify(model, x)
        assert certificate.verdict == "proved"
        assert certificate.constants["R"] >= 1 / 0.8
        with torch.no_grad():
            model.B[0, 0, 0, 0] = math.nan
        assert eq.certify(model, x).verdict == "hypotheses_fail"

    def test_the_certified_rate_is_that_of_splitting_at_its_step(self):
        """Forward-backward at the certified α: no pair of states ends further apart than the rate says."""
        model = self.build(norm=1.3)
        certificate = eq.certify(model, self.images())
        alpha, rate = certificate.constants["step_size"], certificate.constants["rate"]
        M = torch.eye(math.prod(model.state), dtype=torch.float64) - dense(model)
        true = torch.linalg.matrix_norm(torch.eye(len(M), dtype=M.dtype) - alpha * M, 2).item()
        assert true <= rate < 1
        assert 1 - rate > 0.02 * (1 - true)  # not vacuous

    def test_large_kernels_are_solved_as_near_as_the_dtype_tells_unless_more_is_asked_for(self):
        model, x = self.build(norm=15.0, dtype=torch.float32), self.images(dtype=torch.float32)
        assert model.step_size() < 0.005
        z = model.equilibrium(x)
        c = model.injection(x)[0]
        assert ((torch.relu(model.weight(z) + c) - z).norm() / z.norm()).item() < 1e-2
        with pytest.raises(ValueError, match="rtol must be at least"):
            model.equilibrium(x, stop=eq.Stop(rtol=1e-4))

    def test_unrolled_steps_are_judged_by_the_equation_not_by_the_short_step(self):
        stop = eq.Stop(rtol=1e-4)
        how = {"norm": 9.0, "margin": 0.05, "stop": stop, "on_failure": "accept"}
        model, x = self.build(gradient=120, **how), self.images()
        with torch.no_grad():
            model.B.mul_(0.01)
        z = model.equilibrium(x)
        residual = torch.relu(model.weight(z) + model.injection(x)[0]) - z
        share = residual.flatten(1).norm(dim=1) / z.flatten(1).norm(dim=1)
        assert (stop.rtol < share).all()
        assert (model.step_size() * share < stop.rtol).all()  # what the last step moves by
        assert not model.last.forward.converged.any()

    def test_training_needs_no_projection(self):
        model, x = self.build(), self.images(12)
        y = torch.arange(12) % K
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(40):
            loss = F.cross_entropy(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[-1] < 0.2 * losses[0]
        assert eq.certify(model, x).verdict == "proved"

    def test_options_are_checked(self):
        for options, words in [
            ({"margin": 0.0}, "margin must be > 0 and finite"),
            ({"margin": math.nan}, "margin must be > 0 and finite"),
            ({"norm": -1.0}, "norm must be > 0 and finite"),
            ({"kernel": 2}, "kernel must be odd"),
            ({"extractor": (0,)}, "extractor must be a sequence of integers"),
            ({"task": "detection"}, "task must be one of"),
        ]:
            with pytest.raises(ValueError, match=words):
                self.build(**options)


class TestSegmentation(ImageContract):
    family = ConvMonotone
    pixels = True

    def build(self, seed=0, dtype=torch.float64, **options):
        how = {"inputs": (C, H, W), "outputs": K, "features": 3, "extractor": (2,), "margin": 0.8, **options}
        generator = torch.Generator().manual_seed(seed)
        return ConvMonotone(channels=3, task="segmentation", dtype=dtype, generator=generator, **how)
