"""python -m bench.products [tiles]: the tangent kernel of the 60,000 digits of MNIST, without the matrix.

With `tiles`: what a tile of such a kernel takes in a file, and how much faster two workers are than one.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import equipoise as eq
from equipoise.data import load
from equipoise.kernels import tangent_operator
from equipoise.kernels.tiles import SIDE, TileFile

WIDTH = 100
ALIKE = 3000  # images of one digit, whose kernel has a small λ_min


def digits(part: str = "train") -> tuple[torch.Tensor, np.ndarray]:
    """Images with pixels between 0 and 1, and their digits."""
    data = load("mnist")
    X, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
    return torch.from_numpy(X.reshape(len(X), -1) / 255).float(), np.asarray(y)


def network() -> eq.GaussianReLU:
    """The network whose kernel it is."""
    return eq.GaussianReLU(784, WIDTH, sigma_w2=0.08, generator=torch.Generator().manual_seed(0))


def lambda_min_of_some(X: torch.Tensor) -> float:
    """λ_min of the kernel of these rows, in float64: that of more rows is not above it (Cauchy)."""
    kernel = eq.tangent_kernel(network().double(), X.double()).matrix
    return float(torch.linalg.eigvalsh(kernel)[0])


def main(landmarks: int = 400, ridge: float = 100.0) -> None:
    """Print λ_max, what is known of λ_min, Nyström's error and a regression of even against odd."""
    (X, y), (new, y_new) = digits(), digits("test")
    odd, truth = (1.0 - 2 * torch.from_numpy(t % 2).float() for t in (y, y_new))
    model, chance = network(), torch.Generator().manual_seed(0)
    began = time.process_time()
    H = tangent_operator(model, X)
    print("λ_max", H.lambda_max(8, chance), "λ_min", H.lambda_min(24, chance))
    few = H.nystrom(landmarks, chance)
    print("Nyström", few.error / few.trace, "of the trace is left")
    found = H.regression(odd, ridge, landmarks=landmarks, rtol=1e-3, steps=100, generator=chance)
    said = torch.from_numpy(tangent_operator(model, new, X) @ found.alpha.numpy())
    print("products", found.products, "accuracy", float((said.sign() == truth).float().mean()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{time.process_time() - began:.1f} processor seconds, {peak:.2f} GB at most")
    least = lambda_min_of_some(X[torch.from_numpy(np.flatnonzero(y == 1)[:ALIKE])])
    print(f"0 ≤ λ_min ≤ {least:.3g}, by the kernel of {ALIKE} images of the digit 1")


def tiles(N: int = 4 * SIDE, repeats: int = 3) -> None:
    """Print the time of a tile by one worker and by two, each the best of some runs in turns."""
    X, model = digits()[0][:N], network()
    sides = -(-N // SIDE)
    count, best = sides * (sides + 1) // 2, {1: float("inf"), 2: float("inf")}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(repeats):
            for workers in best:
                began = time.perf_counter()
                eq.tangent_kernel(model, X, out=TileFile(Path(place, f"{turn}-{workers}.npy"), workers))
                best[workers] = min(best[workers], time.perf_counter() - began)
    for workers, seconds in best.items():
        print(f"{workers} workers: {seconds:.1f} s, {seconds / count:.2f} s a tile of {SIDE} × {SIDE}")
    print(f"efficiency of two workers {best[1] / (2 * best[2]):.2f}, {count} tiles")


if __name__ == "__main__":
    tiles() if sys.argv[1:] == ["tiles"] else main()
