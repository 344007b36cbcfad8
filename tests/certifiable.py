"""Small instances of the four affine families that a theorem can be proved on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import equipoise as eq

FAMILIES = ("ling2023", "gao2022", "hieu2022", "kawaguchi2021")


def network(family: str, width: int = 30, inputs: int = 8, outputs: int = 1, seed: int = 0, **more):
    options = {"outputs": outputs, "dtype": torch.float64, **more}
    generator = torch.Generator().manual_seed(seed)
    if family == "ling2023":
        model = eq.GaussianReLU(inputs, width, generator=generator, **options)
        with torch.no_grad():  # narrow draws may reach ‖W‖ = 1
            model.W.mul_(min(1.0, 0.9 / float(torch.linalg.matrix_norm(model.W.double(), ord=2))))
        return model
    if family == "gao2022":
        model = eq.ScaledReLU(inputs, width, gamma=0.5, generator=generator, **options)
        # A start off the ties of A = I, with a readout that passes gradients on.
        with torch.no_grad():
            model.A += 0.2 * torch.randn(width, width, dtype=torch.float64, generator=generator) / width**0.5
            model.b += torch.randn(model.b.shape, dtype=torch.float64, generator=generator) / width**0.5
        return model
    if family == "hieu2022":
        return eq.Monotone(inputs, width, generator=generator, **options)
    return eq.LinearEquilibrium(width, generator=generator, **options)


def data(model, N: int = 10, seed: int = 1) -> tuple[Tensor, Tensor]:
    """X (N, d) with rows of norm √d, and y like the output."""
    generator = torch.Generator().manual_seed(seed)
    d = model.inputs
    X = torch.randn(N, d, dtype=torch.float64, generator=generator)
    X *= math.sqrt(d) / X.norm(dim=1, keepdim=True)
    y = torch.randn(model(X.to(model.readout_weight.dtype)).shape, dtype=torch.float64, generator=generator)
    return X, y


def instance(family: str, N: int = 10, width: int = 30, outputs: int = 1, seed: int = 0, **more):
    model = network(family, width, outputs=outputs, seed=seed, **more)
    return model, *data(model, N, seed + 1000)
