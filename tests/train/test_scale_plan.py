"""The plan for many rows: its reductions are those that ranks make, and the page shows its numbers."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bench.scale import Plan

ROOT = Path(__file__).parents[2]

RANK = textwrap.dedent(
    """
    import json, sys, torch, torch.distributed as dist, equipoise as eq
    from datetime import timedelta
    from equipoise.theory.shards import Shard, part_of
    from equipoise.train import Trainer

    torch.set_num_threads(1)
    rank, place, N, m = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    store = f"file://{place}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(minutes=5))
    sizes, reduce = [], dist.all_reduce
    dist.all_reduce = lambda t, *a, **k: (sizes.append(t.numel() * t.element_size()), reduce(t, *a, **k))[1]
    X = torch.randn(N, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    at, y = part_of(N), X[:, 0].sin()
    model = eq.GaussianReLU(4, m, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    X, y = Shard(X[at], N), y[at]
    certificate = eq.certify(model, X, y, theorem="anchored", loss="half_square", ridge=1.0)
    how = {"rate": 1e-3, "epochs": 2, "batch_size": 32, "loose": True, "rtol": 1e-2}
    Trainer(model, "half_square", certificate=certificate, **how).fit(X, y)
    print(json.dumps(sizes), flush=True)
    """
)


def reductions(place, N, m):
    """The bytes of every reduction of the first of two ranks."""
    place.mkdir()
    command = [sys.executable, "-W", "ignore", "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(r), str(place), str(N), str(m)], stdout=subprocess.PIPE, text=True)
        for r in (0, 1)
    ]
    first, _ = [json.loads(rank.communicate(timeout=600)[0]) for rank in ranks]
    return first


@pytest.mark.slow
def test_a_step_reduces_the_gradients_once_and_no_reduction_grows_with_the_rows(tmp_path):
    largest = {}
    for N, m in ((128, 12), (256, 12), (128, 24)):
        sizes = reductions(tmp_path / f"{N}-{m}", N, m)
        plan = Plan(N=N, m=m, d=4, k=1, batch=32, epochs=2)
        of_steps = [size for size in sizes if plan.step_bytes <= size <= plan.step_bytes + 64]
        assert len(of_steps) == plan.steps + 1  # the last is of the whole objective, where the run ends
        assert sizes.count(16) >= 2 * plan.steps  # two numbers, at least once forward and once back
        largest[N, m] = max(sizes)
        assert max(sizes) <= plan.step_bytes + 64  # those of a check are O(m²) and smaller
    assert largest[128, 12] == largest[256, 12] < largest[128, 24]


def test_the_page_shows_the_plan():
    page = (ROOT / "docs/scale.md").read_text()
    for line in Plan().lines():
        assert line in page
