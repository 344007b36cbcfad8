"""Several resolutions in one equilibrium: every one hears of every other."""

import math

import pytest
import torch

from contracts.image_model import TIGHT, C, H, ImageContract, K, W
from equipoise.models.conv import MultiscaleDEQ


class TestMultiscale(ImageContract):
    family = MultiscaleDEQ
    task = "classification"

    def build(self, seed=0, dtype=torch.float64, **options):
        how = {"inputs": (C, H, W), "outputs": K, "groups": 2, "task": self.task, **options}
        generator = torch.Generator().manual_seed(seed)
        return MultiscaleDEQ(channels=(4, 6), dtype=dtype, generator=generator, **how)


class TestMultiscalePixels(TestMultiscale):
    pixels, task = True, "segmentation"


def build(channels, **options):
    generator = torch.Generator().manual_seed(0)
    return MultiscaleDEQ(
        (C, 9, 12), channels, K, groups=2, dtype=torch.float64, generator=generator, **options
    )


def test_shapes_of_three_resolutions():
    model = build((4, 6, 8))
    assert model.state == [(4, 9, 12), (6, 5, 6), (8, 3, 3)]
    x = torch.randn(2, C, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert [tuple(p.shape) for p in model.equilibrium(x)] == [(2, 4, 9, 12), (2, 6, 5, 6), (2, 8, 3, 3)]


def test_every_resolution_depends_on_every_other():
    model = build((4, 6, 8), std=0.1)
    x = torch.randn(1, C, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z = tuple(torch.randn(1, *s, dtype=torch.float64, requires_grad=True) for s in model.state)
    out = model.cell(z, *model.injection(x))
    for part in out:
        weights = torch.randn(part.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        grads = torch.autograd.grad((part * weights).sum(), z, retain_graph=True)
        assert all(g.abs().max() > 0 for g in grads)


def test_a_single_resolution_is_a_residual_block_and_a_norm():
    model = build((4,))
    x = torch.randn(2, C, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (z,) = model.equilibrium(x, stop=TIGHT)
    block, norm = model.cell.blocks[0], model.cell.norms[0]
    torch.testing.assert_close(norm(torch.relu(block(z, *model.injection(x)))), z, rtol=0, atol=1e-10)


def test_options_are_checked():
    for channels, options, words in (
        ((), {}, "channels must be multiples"),
        ((4, 5), {}, "channels must be multiples"),
        ((4, 2), {}, "the same for every image"),
        ((4,), {"extractor": ()}, "extractor must hold a stride"),
        ((4,), {"task": "detection"}, "task must be one of"),
        *(((4,), {"std": std}, "std must be > 0 and finite") for std in (0.0, -1.0, math.inf, math.nan)),
    ):
        with pytest.raises(ValueError, match=words):
            build(channels, **options)
