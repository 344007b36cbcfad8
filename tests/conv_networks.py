"""Small ConvOptEq networks of every kind, for tests of what is proved of them."""

import torch

import equipoise as eq
from equipoise.models.proximal.properties import L1

TIGHT = eq.Stop(rtol=1e-12, max_steps=5000)
IMAGE = (2, 5, 6)


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def build(hidden=(4, 5), outputs=3, inputs=IMAGE, seed=0, **options):
    made = {"dtype": torch.float64, "normalise": False, "features": 4, "pool": 2, "norm": 0.8} | options
    model = eq.ConvOptEq(inputs, 3, hidden, outputs, generator=torch.Generator().manual_seed(seed), **made)
    with torch.no_grad():
        for i, (name, p) in enumerate(model.named_parameters()):
            if name.endswith((".b", ".bias")):
                p.copy_(0.2 * drawn(*p.shape, seed=100 + i))
    return model


CASES = {
    "two layers": {},
    "one, with a skip": {"hidden": (4,), "alpha": 0.3},
    "two, with a skip": {"alpha": 0.4, "activation": "tanh"},
    "normalised": {"normalise": True},
    "strided": {"strides": (2, 1), "extractor": (2, 1), "reach": 3, "pool": 3},
    "sparse": {"regulariser": L1(0.01), "hidden": (4,)},
}
