"""relu'(0) = 0 in networks of images: black ones tie everywhere, from every start."""

import pytest
import torch

import equipoise as eq


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_black_images_have_the_gradient_of_a_tie_from_a_warm_start(alpha):
    generator = torch.Generator().manual_seed(0)
    model = eq.ConvOptEq((1, 6, 6), 3, (5,), alpha=alpha, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        for p in model.extractor.parameters():
            if p.ndim == 1:
                p.zero_()
    x, other = torch.zeros(2, 3, 1, 6, 6, dtype=torch.float64)
    x[1] = torch.randn(1, 6, 6, dtype=torch.float64, generator=generator)
    other += torch.rand(3, 1, 6, 6, dtype=torch.float64, generator=generator)
    warm = model.solve(other).value
    weights = [model.layers[0].W, model.layers[0].U, model.layers[0].b]
    Z = model.equilibrium(x, start=warm)
    assert Z[1].any()
    assert not Z[[0, 2]].any()
    for g in torch.autograd.grad(Z[[0, 2]].sum(), weights):
        assert not g.any()
