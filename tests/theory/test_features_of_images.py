"""Features of images, found in parts and in float32 first, are as near the exact ones as is claimed."""

import pytest
import torch

import equipoise as eq
from equipoise.theory import image_features
from equipoise.theory.read_features import ReadFeatures
from equipoise.theory.register import facts


def models():
    how = {"generator": torch.Generator().manual_seed(0), "outputs": 3}
    yield eq.ConvMonotone((1, 6, 6), channels=3, margin=1.0, **how)
    yield eq.ConvOptEq((1, 6, 6), state=3, hidden=[4], **how)


@pytest.mark.parametrize("model", list(models()), ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("rtol", [1e-2, 1e-8])
def test_parts_keep_their_error_their_order_and_their_starts(model, rtol, monkeypatch):
    monkeypatch.setattr(image_features, "AT_ONCE", 4)
    X = torch.randn(10, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    reads = facts(model).reads()
    exact = ReadFeatures.block(reads, X, 1e-12)  # all at once
    found = reads.block(X, rtol)
    again = reads.block(X, rtol, found.state)
    for block in (found, again):
        assert block.Phi.shape == exact.Phi.shape
        assert float((block.Phi - exact.Phi).norm()) <= block.error + exact.error
    assert exact.error < 1e-6 * float(exact.Phi.norm())
    assert again.work <= found.work
