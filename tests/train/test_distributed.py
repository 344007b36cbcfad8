"""Two processes on this machine: one loses its equilibrium, both stop, neither waits."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

import equipoise as eq
from equipoise.train.distributed import any_rank_failed, raise_together

SCRIPT = textwrap.dedent(
    """
    import sys, torch, torch.distributed as dist
    import equipoise as eq
    from equipoise.train.distributed import raise_together

    rank, store = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    layer = eq.Equilibrium(lambda z, x: (0.3 if x[0, 0] < 5 else 3.0) * z + x, solver=eq.Picard())
    x = torch.ones(2, 3, dtype=torch.float64) * (1.0 if rank == 0 else 9.0)  # rank 1 diverges
    error = None
    try:
        layer(x)
    except eq.EquilibriumError as caught:
        error = caught
    try:
        raise_together(error)
    except (eq.EquilibriumError, RuntimeError) as caught:
        print(type(caught).__name__, flush=True)
    dist.destroy_process_group()
    """
)


def test_every_rank_raises_when_one_fails(monkeypatch):
    """Two threads for two processes, which meet in all_reduce as those do."""
    meet, flags = threading.Barrier(2), []

    def all_reduce(flag, op, group):
        assert op is dist.ReduceOp.MAX
        flags.append(flag.clone())
        meet.wait()
        flag.copy_(max(flags))

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda group: "gloo")
    monkeypatch.setattr(dist, "all_reduce", all_reduce)

    def rank(error):
        try:
            raise_together(error)
        except (eq.EquilibriumError, RuntimeError) as caught:
            return caught

    layer = eq.Equilibrium(lambda z, x: 2 * z + x, solver=eq.Picard(), on_failure="accept")
    layer(torch.ones(1, 1))
    lost = eq.EquilibriumError("lost", layer.last.forward)
    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(rank, (None, lost))
        assert type(first) is RuntimeError
        assert "another rank" in str(first)
        assert second is lost
        flags.clear()
        assert list(ranks.map(rank, (None, None))) == [None, None]


@pytest.mark.slow
def test_both_ranks_stop_when_one_fails(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", str(script)]
    ranks = [
        subprocess.Popen([*command, str(r), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for r in range(2)
    ]
    said = [rank.communicate()[0].strip() for rank in ranks]
    assert said == ["RuntimeError", "EquilibriumError"]


def test_alone_the_flag_is_ones_own():
    assert any_rank_failed(True)
    assert not any_rank_failed(False)
    raise_together(None)
    layer = eq.Equilibrium(lambda z, x: 2 * z + x, solver=eq.Picard(), on_failure="accept")
    layer(torch.ones(1, 1))
    error = eq.EquilibriumError("lost", layer.last.forward)
    with pytest.raises(eq.EquilibriumError, match="lost"):
        raise_together(error)
