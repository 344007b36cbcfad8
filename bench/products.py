"""python -m bench.products: the tangent kernel of the 60,000 digits of MNIST, without the matrix."""

from __future__ import annotations

import resource
import time

import numpy as np
import torch

import equipoise as eq
from equipoise.data import load
from equipoise.kernels import tangent_operator


def main(width: int = 100, landmarks: int = 400, ridge: float = 100.0) -> None:
    """Print λ_max, an estimate of λ_min, Nyström's error and a regression of even against odd."""
    data, chance = load("mnist"), torch.Generator().manual_seed(0)
    X, new = (torch.from_numpy(x.reshape(len(x), -1) / 255).float() for x in (data.x_train, data.x_test))
    y, truth = (1.0 - 2 * torch.from_numpy(np.asarray(t) % 2).float() for t in (data.y_train, data.y_test))
    model = eq.GaussianReLU(784, width, sigma_w2=0.08, generator=torch.Generator().manual_seed(0))
    began = time.process_time()
    H = tangent_operator(model, X)
    print("λ_max", H.lambda_max(8, chance), "λ_min", H.lambda_min(24, chance))
    few = H.nystrom(landmarks, chance)
    print("Nyström", few.error / few.trace, "of the trace is left")
    found = H.regression(y, ridge, landmarks=landmarks, rtol=1e-3, steps=100, generator=chance)
    said = torch.from_numpy(tangent_operator(model, new, X) @ found.alpha.numpy())
    print("products", found.products, "accuracy", float((said.sign() == truth).float().mean()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{time.process_time() - began:.1f} processor seconds, {peak:.2f} GB at most")


if __name__ == "__main__":
    main()
