"""[hieu2022, (4.1)]: the equation, and what its group norms do."""

import math

import pytest
import torch
import torch.nn.functional as F

import equipoise as eq
from contracts.image_model import TIGHT, C, H, ImageContract, K, W
from equipoise.models.zoo import ResidualConv


class TestResidualConv(ImageContract):
    family = ResidualConv

    def build(self, seed=0, dtype=torch.float64, **options):
        how = {"inputs": (C, H, W), "outputs": K, "groups": 2, **options}
        generator = torch.Generator().manual_seed(seed)
        return ResidualConv(channels=4, hidden=6, dtype=dtype, generator=generator, **how)

    def test_the_printed_equation(self):
        model, x = self.build(), self.images()
        cell, z = model.cell, model.equilibrium(x, stop=TIGHT)
        norm = lambda layer, t: F.group_norm(t, 2, layer.weight, layer.bias)
        inner = norm(cell.norm1, F.conv2d(z, cell.conv1.weight, padding=1).relu())
        outer = norm(cell.norm2, model.extractor(x) + F.conv2d(inner, cell.conv2.weight, padding=1))
        torch.testing.assert_close(norm(cell.norm3, (z + outer).relu()), z, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("times", [1, 6, 11, 18])
    def test_a_repeated_model_is_a_loop_by_hand(self, times):
        model, x = self.build(std=1.0), self.images()  # far from an equilibrium: no two iterates are alike
        z = torch.zeros(len(x), 4, H, W, dtype=torch.float64)
        for _ in range(times):
            z = model.cell(z, model.extractor(x))
        assert torch.equal(model.repeated(times)(x), model.head(z))
        assert not torch.allclose(model.head(model.cell(z, model.extractor(x))), model.head(z), rtol=1e-3)

    def test_the_scale_of_the_first_kernel_is_taken_out_by_its_norm(self):
        model, x = self.build(std=1.0), self.images()
        z = torch.randn(4, 4, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        before = model.cell(z, *model.injection(x))
        with torch.no_grad():
            model.cell.conv1.weight *= 100
        torch.testing.assert_close(model.cell(z, *model.injection(x)), before, rtol=1e-4, atol=1e-4)

    def test_a_large_start_has_no_equilibrium_that_anderson_finds(self):
        x = self.images(6)
        stop = eq.Stop(rtol=1e-6, max_steps=100)
        large, small = (self.build(std=s).solve(x, stop=stop) for s in (1.0, 0.01))
        assert small.converged.all()
        assert large.relative_residual.median() > 1e3 * small.relative_residual.median()

    def test_options_are_checked(self):
        with pytest.raises(ValueError, match="groups must divide"):
            self.build(groups=5)
        with pytest.raises(ValueError, match="the same for every image"):
            ResidualConv((C, H, W), 4, groups=4, pool=1)
        ResidualConv((C, H, W), 4, groups=4, pool=2)
        for std in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match="std must be > 0 and finite"):
                self.build(std=std)
        with pytest.raises(ValueError, match="extractor must hold a stride"):
            self.build(extractor=())
        with pytest.raises(ValueError, match="task must be one of"):
            self.build(task="detection")
