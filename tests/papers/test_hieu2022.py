"""The experiments of [hieu2022]: what is trained can learn, and what is judged can fail."""

from __future__ import annotations

import pytest
import torch

from equipoise.papers import hieu2022_multiscale as multiscale


@pytest.mark.parametrize("scale", list(multiscale.CHANNELS))
def test_a_multiscale_deq_tells_images_apart_at_every_scale(scale):
    X = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    scores = multiscale.build(X, multiscale.CHANNELS[scale], 0)(X).detach()
    assert float(scores.std(dim=0).min()) > 1e-3
