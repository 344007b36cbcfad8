"""The suite every equilibrium model of images must pass. A new one joins with a subclass that builds itself:

class TestResidualConv(ImageContract):
    def build(self, seed=0, dtype=torch.float64, **options): ...
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.func import functional_call

import equipoise as eq
from equipoise.models.images import ImageModel
from equipoise.models.saving import load
from equipoise.solve.failure import OnFailure
from memory import stored_bytes

TIGHT = eq.Stop(rtol=1e-12, atol=1e-14, max_steps=2000)
C, H, W, N, K = 2, 6, 7, 4, 3


def parts(z):
    return z if isinstance(z, tuple) else (z,)


class ImageContract:
    family: type[ImageModel]
    pixels = False  # ŷ is (N, K, H, W)
    smooth_seed = 0  # a start at which no relu is at its kink

    def build(self, seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> ImageModel:
        raise NotImplementedError

    def images(self, n: int = N, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.randn(n, C, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(
            dtype
        )

    # -- the equation ------------------------------------------------------------------------------------

    def test_the_equilibrium_solves_its_equation(self):
        model, x = self.build(), self.images()
        z = model.equilibrium(x, stop=TIGHT)
        again = model.cell(z, *model.injection(x), *model.shared())
        for a, b in zip(parts(z), parts(again), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        y = model(x, stop=TIGHT)
        assert y.shape == ((N, K, H, W) if self.pixels else (N, K))
        torch.testing.assert_close(y, model.readout(z), rtol=0, atol=1e-9)
        solution = model.solve(x, stop=TIGHT)
        assert solution.converged.all()
        assert solution.status.shape == (N,)
        assert [tuple(p.shape[1:]) for p in parts(solution.value)] == [
            tuple(s) for s in (model.state if isinstance(z, tuple) else [model.state])
        ]

    def test_a_sample_alone_equals_the_same_in_a_batch(self):
        model, x = self.build(), self.images(7)
        together = model(x, stop=TIGHT)
        for row in (0, 3, 6):
            torch.testing.assert_close(
                model(x[row : row + 1], stop=TIGHT)[0], together[row], rtol=0, atol=1e-9
            )
        order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
        torch.testing.assert_close(model(x[order], stop=TIGHT), together[order], rtol=0, atol=1e-9)

    def test_starts_change_the_cost_and_not_the_answer(self):
        model, x = self.build(), self.images()
        cold = model.solve(x, stop=TIGHT)
        warm = model.solve(x, start=cold, stop=TIGHT)
        assert warm.steps.tolist() == [0] * N
        assert cold.steps.min() > 0
        torch.testing.assert_close(
            model(x, start=cold.value, stop=TIGHT), model(x, stop=TIGHT), rtol=0, atol=1e-9
        )

    # -- gradients ---------------------------------------------------------------------------------------

    def gradients(self, model, x, **how):
        y = model(x, **how)
        R = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(7))
        return torch.autograd.grad((y * R).sum(), [x, *model.parameters()])

    def test_implicit_gradients_are_those_of_a_long_unroll(self):
        x = self.images().requires_grad_()
        implicit = self.gradients(self.build(), x, stop=TIGHT)
        unrolled = self.gradients(self.build(gradient=eq.Unrolled(150)), x)
        names = ["x", *(name for name, _ in self.build().named_parameters())]
        for name, a, b in zip(names, implicit, unrolled, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")

    def test_gradients_by_finite_differences(self):
        model, x = self.build(self.smooth_seed), self.images(2).requires_grad_()
        names, parameters = zip(*model.named_parameters(), strict=True)

        def f(x, *values):
            return functional_call(model, dict(zip(names, values, strict=True)), (x,), {"stop": TIGHT})

        assert torch.autograd.gradcheck(f, (x, *parameters), fast_mode=True, eps=1e-7, atol=1e-4, rtol=1e-3)

    def test_stored_memory_does_not_grow_with_the_solver(self):
        x = self.images()
        sizes = {}
        for steps in (10, 40):
            stop = eq.Stop(rtol=1e-14, atol=1e-300, max_steps=steps)
            model = self.build(on_failure="accept", stop=stop, solver=eq.Picard(damping=0.3))
            sizes[steps] = stored_bytes(lambda m=model: m(x))
            assert model.last.forward.steps.max() == steps
        assert sizes[10] == sizes[40] > 0
        unrolled = [
            stored_bytes(lambda k=k: self.build(gradient=k, on_failure="accept")(x)) for k in (10, 40)
        ]
        assert unrolled[1] > 2 * unrolled[0] > 2 * sizes[10]

    # -- what fails --------------------------------------------------------------------------------------

    def test_failures_are_told_by_row_and_treated_by_the_policy(self):
        x = self.images()
        hasty = eq.Stop(rtol=1e-12, max_steps=1)
        model = self.build()
        assert not model.solve(x, stop=hasty).converged.any()
        with pytest.raises(eq.EquilibriumError, match="row 0: max_steps"):
            model(x, stop=hasty)
        assert model.last.forward.failed_rows == [0, 1, 2, 3]
        with pytest.warns(eq.EquilibriumWarning, match="row 1"):
            self.build(on_failure="warn")(x, stop=hasty)
        with pytest.raises(eq.EquilibriumError, match="unrolled steps"):
            self.build(gradient=1, stop=eq.Stop(rtol=1e-9))(x)

    def test_masked_rows_get_no_gradient(self):
        good = self.build()
        x = self.images()
        start = tuple(p.clone() for p in parts(good.solve(x, stop=TIGHT).value))
        for p in start:
            p[2] += 1.0  # one row starts far away and cannot get there in no time
        model = self.build(
            on_failure=eq.OnFailure("mask", share=0.5),
            stop=eq.Stop(rtol=1e-7, max_steps=1),
            gradient=eq.Implicit(stop=eq.Stop(rtol=1e-7)),
        )
        leaf = x.clone().requires_grad_()
        y = model(leaf, start=start if isinstance(good.solve(x).value, tuple) else start[0])
        assert model.last.forward.converged.tolist() == [True, True, False, True]
        y[:, 0].sum().backward()
        assert leaf.grad[2].abs().sum() == 0
        assert leaf.grad[0].abs().sum() > 0

    # -- copies, files, words ----------------------------------------------------------------------------

    def test_copies_and_pickles_give_the_same_answers_without_the_records(self):
        model, x = self.build(), self.images()
        y = model(x)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert twin.last.forward is None
            assert torch.equal(twin(x), y)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_file_holds_the_model_whole(self, tmp_path, dtype):
        model, x = self.build(dtype=dtype), self.images(dtype=dtype)
        path = tmp_path / "model.safetensors"
        model.save(path)
        for read in (load, ImageModel.load, self.family.load):
            twin = read(path).train(model.training)
            assert type(twin) is type(model)
            assert twin.config() == model.config()
            assert twin.method.stop == model.method.stop
            torch.testing.assert_close(twin(x), model(x))

    def test_float32_is_close_to_float64(self):
        single, double = self.build(dtype=torch.float32), self.build()
        double.load_state_dict(single.state_dict())
        x = self.images(dtype=torch.float32)
        torch.testing.assert_close(single(x).double(), double(x.double()), rtol=1e-2, atol=1e-2)

    def test_a_seed_determines_everything_and_the_global_one_is_left_alone(self):
        before = torch.get_rng_state()
        x = self.images()
        first, again, other = (self.build(seed=s)(x) for s in (3, 3, 4))
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_repeats_approach_the_equilibrium(self):
        model, x = self.build(), self.images()
        y = model(x, stop=TIGHT)
        gaps = [(model.repeated(k)(x) - y).norm().item() for k in (1, 6, 18)]
        assert gaps[2] < 0.2 * gaps[0]
        assert len(list(model.repeated(6).parameters())) == len(list(model.parameters()))

    def test_a_file_holds_the_tolerance_and_not_the_failure_policy(self, tmp_path):
        stop = eq.Stop(rtol=1e-11, max_steps=1234)
        self.build(stop=stop, on_failure="accept").save(tmp_path / "model.safetensors")
        twin = load(tmp_path / "model.safetensors")
        assert twin.method.stop == stop
        assert twin.method.on_failure == OnFailure("raise")
        assert load(tmp_path / "model.safetensors", stop=TIGHT).method.stop == TIGHT

    def test_options_that_are_none_are_refused_at_once(self):
        with pytest.raises(TypeError, match=r"stop must be a Stop such as .* Got 1e-06 instead"):
            self.build(stop=1e-6)
        with pytest.raises(TypeError, match=r"solver must be a Solver such as Picard\(\)"):
            self.build(solver=eq.Picard)
        with pytest.raises(ValueError, match="on_failure must be one of"):
            self.build(on_failure="ignore")

    def test_it_can_be_diagnosed(self):
        model, x = self.build(), self.images()[:1]  # every image takes dense Jacobians
        found = eq.diagnose(model, x, samples=1)
        assert found.layer == type(model).__name__
        assert found.trials[0].solves_all
        assert found.audit is not None
        known = [row.error for row in found.audit.rows if row.mode == "Implicit" and row.error == row.error]
        assert known
        assert max(known) < 1e-5
        layer = model.as_equilibrium()
        for a, b in zip(parts(layer(x)), parts(model.equilibrium(x)), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)

    def test_what_cannot_be_used_is_refused_in_words(self):
        model, x = self.build(), self.images()
        with pytest.raises(ValueError, match=r"x must be \(N, 2, 6, 7\)\. Got shape \(4, 2, 6, 6\)"):
            model(x[..., 1:])
        with pytest.raises(ValueError, match=r"A single image is x\[None\]"):
            model(x[0])
        with pytest.raises(TypeError, match="x must be a tensor"):
            model(x.tolist())
        with pytest.raises(ValueError, match=r"x must be torch\.float64 .* Got torch\.float32"):
            model(x.float())
        bad = x.clone()
        bad[3, 0, 0, 0], bad[1] = torch.nan, torch.inf
        with pytest.raises(ValueError, match="NaN or infinity in row 1, row 3"):
            model(bad)
        with pytest.raises(ValueError, match="outputs must be an integer ≥ 1"):
            self.build(outputs=0)
        with pytest.raises(ValueError, match="inputs must be"):
            self.build(inputs=(2, 6))
        with pytest.raises(TypeError):
            self.build(chanels=3)
        assert self.family.__doc__.split(",  ŷ")[0].split(" for every")[0].strip()[:12] in repr(model)
