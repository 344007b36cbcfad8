"""Population Gram of ling2023, side by side with a plain fixed-point iteration and with neural-tangents.

    python bench/population.py [--quick]

Times are medians of interleaved runs in this process; `error` is the largest difference of our entries from
the peer's converged ones, over √(K_ii K_jj). The peers solve to the same 1e-12.
"""

import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.kernels.population import population_gram

TOLERANCE = 1e-12


def fixed_point_gram(X: Tensor, sigma_w2: float) -> Tensor:
    """cosθ ← σ_w² Q(cosθ) + (1−σ_w²) C until no entry moves by the tolerance, as the paper reads."""
    C = (X @ X.T / X.shape[1]).clamp(-1, 1)
    Q = lambda x: (torch.sqrt(1 - x * x) + (math.pi - torch.acos(x)) * x) / math.pi
    x = C
    while True:
        x, before = (sigma_w2 * Q(x) + (1 - sigma_w2) * C).clamp(-1, 1), x
        if (x - before).abs().max() <= TOLERANCE * (1 - sigma_w2):
            return Q(x) / (1 - sigma_w2)


def neural_tangents_gram(sigma_w2: float) -> Callable[[Tensor], Tensor]:
    """K^(l) by neural-tangents, at the depth l where σ_w^{2l} reaches the tolerance; compiled."""
    import jax
    from neural_tangents import stax

    jax.config.update("jax_enable_x64", True)
    warnings.filterwarnings("ignore", message="`FanIn` layers assume independent inputs")  # they are
    inject = lambda: stax.Dense(1, W_std=math.sqrt(2))
    recur = lambda: stax.Dense(1, W_std=math.sqrt(2 * sigma_w2))
    network = stax.serial(inject(), stax.Relu())
    for _ in range(math.ceil(math.log(TOLERANCE) / math.log(sigma_w2))):
        layer = stax.parallel(stax.serial(network, recur()), inject())
        network = stax.serial(stax.FanOut(2), layer, stax.FanInSum(), stax.Relu())
    kernel = jax.jit(lambda x: network[2](x, None, "nngp"))
    return lambda X: torch.from_numpy(jax.device_get(kernel(X.numpy())).copy())


def sphere(N: int, d: int) -> Tensor:
    """N rows uniform on the sphere of radius √d; a small d spreads the cosines over [−1, 1]."""
    X = torch.randn(N, d, dtype=torch.float64, generator=torch.Generator().manual_seed(N))
    return X * (math.sqrt(d) / X.norm(dim=1, keepdim=True))


def side_by_side(
    ours: Callable[[], Tensor], peer: Callable[[], Tensor], repeats: int
) -> tuple[float, float, float]:
    """Median milliseconds of each, run in turns, and the largest difference over the largest entry."""
    reference = peer()
    error = float((ours() - reference).abs().max() / reference.abs().max())
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for function, record in zip((ours, peer), times, strict=True):
            begin = time.perf_counter()
            function()
            record.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[0]), statistics.median(times[1]), error


def run(quick: bool = False) -> list[dict]:
    cases = [(1000, 0.08), (1000, 0.5), (1000, 0.9)] + ([] if quick else [(4000, 0.08)])
    try:
        import neural_tangents  # noqa: F401  (an installed one may still fail to import with a newer jax)
    except ImportError as reason:
        print(f"neural-tangents is left out, as it cannot be imported: {reason}")
        has_peer = False
    else:
        has_peer = True
    rows = []
    for N, sigma_w2 in cases:
        X = sphere(N, 10)
        peers = {"fixed point": lambda X=X, v=sigma_w2: fixed_point_gram(X, v)}
        if has_peer and sigma_w2 == 0.08:  # its depth, and compile time, grow with log(tolerance)/log(σ_w²)
            kernel = neural_tangents_gram(sigma_w2)
            peers["neural-tangents"] = lambda X=X, kernel=kernel: kernel(X)
        for name, peer in peers.items():
            ours = lambda X=X, v=sigma_w2: population_gram(X, v)
            ours_ms, peer_ms, error = side_by_side(ours, peer, repeats=3 if quick or N > 1000 else 7)
            rows.append(
                {
                    "work": f"population Gram, n={N}, σ_w²={sigma_w2}",
                    "ours_ms": ours_ms,
                    "peer": name,
                    "peer_ms": peer_ms,
                    "ratio": peer_ms / ours_ms,
                    "error": error,
                }
            )
    return rows


if __name__ == "__main__":
    print(f"{'work':36} {'ours ms':>9} {'peer':>16} {'peer ms':>9} {'ratio':>7} {'error':>8}")
    for row in run(quick="--quick" in sys.argv[1:]):
        print("{work:36} {ours_ms:9.1f} {peer:>16} {peer_ms:9.1f} {ratio:6.1f}x {error:8.1e}".format(**row))
