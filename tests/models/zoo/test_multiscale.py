"""Several resolutions in one equilibrium: every one hears of every other."""

import math

import pytest
import torch
import torch.nn.functional as F

from contracts.image_model import TIGHT, C, H, ImageContract, K, W
from equipoise.models.zoo import MultiscaleDEQ


class TestMultiscale(ImageContract):
    family = MultiscaleDEQ
    task = "classification"

    def build(self, seed=0, dtype=torch.float64, **options):
        how = {"inputs": (C, H, W), "outputs": K, "groups": 2, "task": self.task, **options}
        generator = torch.Generator().manual_seed(seed)
        return MultiscaleDEQ(channels=(4, 6), dtype=dtype, generator=generator, **how)


@pytest.mark.slow  # the same equilibria behind another head, which other networks have too
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


def by_hand(cell, z, c):
    """One step of the cell, with its weights and torch's functions only; 3 resolutions, norms of 2 groups."""
    norm = lambda layer, t: F.group_norm(t, 2, layer.weight, layer.bias)
    h = []
    for block, zj, cj in zip(cell.blocks, z, c, strict=True):
        inner = norm(block.norms[0], F.conv2d(zj, block.conv1.weight, padding=1).clamp_min(0))
        outer = norm(block.norms[1], cj + F.conv2d(inner, block.conv2.weight, padding=1))
        h.append(norm(block.norms[2], (zj + outer).clamp_min(0)))
    sums = [sum(fused(cell.fuse[i][j], h[j], h[i], i - j) for j in range(3)) for i in range(3)]
    return tuple(norm(layer, total.clamp_min(0)) for layer, total in zip(cell.norms, sums, strict=True))


def fused(path, h, to, levels):
    if levels == 0:
        return h
    if levels > 0:
        return strided(path, h, levels)
    h = torch.einsum("oi,nihw->nohw", path.conv.weight[:, :, 0, 0], h)
    rows, columns = (torch.arange(n) * m // n for n, m in zip(to.shape[2:], h.shape[2:], strict=True))
    return h[:, :, rows][:, :, :, columns]  # pixel i of n is pixel ⌊i m/n⌋ of m


def strided(path, h, levels):
    """3×3 convolutions of stride 2 without biases, relu between them."""
    *first, last = path.parameters()
    assert len(first) == levels - 1
    for kernel in first:
        h = F.conv2d(h, kernel, stride=2, padding=1).clamp_min(0)
    return F.conv2d(h, last, stride=2, padding=1)


def some(model, seed=1):
    """Images, and a state that is no equilibrium; norms with weights that are not all one."""
    make = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p += 0.3 * torch.randn(p.shape, dtype=p.dtype, generator=make)
    draw = lambda *shape: torch.randn(2, *shape, dtype=torch.float64, generator=make)
    return draw(C, 9, 12), tuple(draw(*shape) for shape in model.state)


def test_the_cell_and_its_injection_are_their_equations():
    model = build((4, 6, 8), std=0.3)
    x, z = some(model)
    g = F.conv2d(x, model.extractor[0].weight, model.extractor[0].bias, padding=1).clamp_min(0)
    c = [g, strided(model.inject[0], g, 1), strided(model.inject[1], g, 2)]
    for found, expected in zip(model.injection(x), c, strict=True):
        torch.testing.assert_close(found, expected)
    for found, expected in zip(model.cell(z, *c), by_hand(model.cell, z, c), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_heads_are_their_equations():
    classes = build((4, 6, 8))
    _, z = some(classes)
    means = torch.cat([part.flatten(2).sum(dim=2) / part[0, 0].numel() for part in z], dim=1)
    torch.testing.assert_close(classes.readout(z), means @ classes.head.weight.T + classes.head.bias)
    pixels = build((4, 6, 8), task="segmentation", extractor=(2,))
    _, z = some(pixels)
    assert z[0].shape[2:] == (5, 6)
    resize = lambda t, size: F.interpolate(t, size, mode="bilinear", align_corners=False)
    same = torch.cat([resize(part, (5, 6)) for part in z], dim=1)
    kernel, bias = pixels.head.conv.weight[:, :, 0, 0], pixels.head.conv.bias
    y = torch.einsum("oi,nihw->nohw", kernel, same) + bias[:, None, None]
    torch.testing.assert_close(pixels.readout(z), resize(y, (9, 12)))


def test_a_repeated_model_is_a_loop_by_hand():
    model = build((4, 6, 8), std=0.3)
    x, z = some(model)
    z = tuple(torch.zeros_like(part) for part in z)
    for _ in range(6):
        z = by_hand(model.cell, z, model.injection(x))
    torch.testing.assert_close(model.repeated(6)(x), model.readout(z), rtol=0, atol=1e-9)
    assert (model.repeated(7)(x) - model.readout(z)).abs().max() > 1e-4


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
