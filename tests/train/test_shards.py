"""Rows that ranks hold a part of each: the same batches, sums, weights and certificates as of one process."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.theory import shards
from equipoise.theory.shards import Shard, digest_of_rows, part_of
from equipoise.train import Trainer, batches
from equipoise.train.batches import Batches
from equipoise.train.checkpoint import Checkpoints, CheckpointWarning
from equipoise.train.checkpoint_parts import read_parts, remove_former_parts, save_part


def parts(N: int, R: int) -> list[slice]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "ranks", lambda: R)
        return [part_of(N, r) for r in range(R)]


# -- what follows from N alone -------------------------------------------------------------------------------


@given(N=st.integers(1, 2000), R=st.integers(1, 40))
def test_parts_hold_every_row_once(N, R):
    if R > N:
        with pytest.raises(ValueError, match="ranks must be at most"):
            parts(N, R)
        return
    found = parts(N, R)
    assert [i for at in found for i in range(at.start, at.stop)] == list(range(N))


@settings(deadline=None)
@given(
    N=st.integers(1, 400),
    size=st.integers(1, 60),
    R=st.integers(1, 8),
    epoch=st.integers(0, 3),
    few=st.booleans(),
)
def test_batches_are_the_same_for_every_number_of_ranks(N, size, R, epoch, few):
    """With blocks of their own (few=True, so that BLOCKS² ≤ N is common) and as one permutation."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (shards, batches):
            patch.setattr(module, "BLOCKS", 8 if few else 256)
        R = min(R, N)
        alone = [sorted(rows.tolist()) for rows, _ in Batches(N, size, 3, slice(0, N)).of(epoch, 0)]
        assert sorted(i for batch in alone for i in batch) == list(range(N))
        together = [[] for _ in alone]
        for at in parts(N, R):
            for batch, (rows, count) in zip(together, Batches(N, size, 3, at).of(epoch, 0), strict=True):
                assert bool(((rows >= 0) & (rows < at.stop - at.start)).all())
                assert count == len(alone[together.index(batch)]) if batch else True
                batch.extend((rows + at.start).tolist())
        assert [sorted(batch) for batch in together] == alone
        later = [sorted(rows.tolist()) for rows, _ in Batches(N, size, 3, slice(0, N)).of(epoch, 1)]
        assert later == alone[1:]


def test_of_many_rows_every_rank_has_its_share_of_every_batch():
    N, R, size = 256 * 300 + 17, 8, 256
    for at in parts(N, R):
        shares = [len(rows) for rows, count in Batches(N, size, 0, at).of(0, 0) if count == size]
        assert max(abs(share - size / R) for share in shares) <= 2


def test_orders_of_epochs_differ():
    at = slice(0, 256 * 256)
    first, second = (next(Batches(256 * 256, 64, 0, at).of(epoch, 0))[0] for epoch in (0, 1))
    assert not torch.equal(first, second)


def test_a_digest_sees_every_entry():
    X = torch.arange(700, dtype=torch.float64).reshape(350, 2)
    before = digest_of_rows(X, 350)
    for i in (0, 123, 349):
        other = X.clone()
        other[i, 1] = torch.nextafter(other[i, 1], torch.tensor(1e9, dtype=torch.float64))
        assert digest_of_rows(other, 350) != before
    assert digest_of_rows(X.float(), 350) != before


def test_parts_are_read_by_any_number_of_ranks(tmp_path):
    whole = {
        "warm.network": {"last.0": torch.arange(10.0)[:, None], "single": torch.ones(1, dtype=torch.uint8)}
    }
    checkpoints = Checkpoints(tmp_path)
    for at in parts(10, 3):
        own = {name: t if name == "single" else t[at] for name, t in whole["warm.network"].items()}
        save_part(checkpoints, 4, {"warm.network": own}, at)
    for at in [*parts(10, 2), *parts(10, 4), slice(0, 10)]:
        found = read_parts(checkpoints, 4, at)["warm.network"]
        assert torch.equal(found["last.0"], whole["warm.network"]["last.0"][at])
        assert torch.equal(found["single"], whole["warm.network"]["single"])
    with pytest.warns(CheckpointWarning, match="rows 0 to 9 start cold"):
        assert read_parts(checkpoints, 5, slice(0, 10)) == {}
    damaged = next((tmp_path / "rows").glob("*/*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.warns(CheckpointWarning):
        assert read_parts(checkpoints, 4, slice(0, 10)) == {}
    remove_former_parts(checkpoints, 9)
    assert not list((tmp_path / "rows").glob("*"))


def test_a_shard_of_other_rows_is_refused():
    with pytest.raises(ValueError, match=r"rank 0 of 1 holds rows 0 to 9 of 10: 10 rows\. Got 3 instead"):
        Shard(torch.zeros(3, 2), 10)


# -- processes -----------------------------------------------------------------------------------------------

PROBLEM = textwrap.dedent(
    """
    import torch, equipoise as eq
    from equipoise.theory.shards import Shard, part_of
    from equipoise.train import Trainer

    N = 150

    def problem():
        chance = torch.Generator().manual_seed(0)
        X = torch.randn(N, 4, dtype=torch.float64, generator=chance)
        y = X @ torch.randn(4, 3, dtype=torch.float64, generator=chance)
        y = torch.nn.functional.one_hot(y.argmax(dim=1), 3).double()
        w = torch.rand(N, dtype=torch.float64, generator=chance)
        model = eq.GaussianReLU(
            4, 10, outputs=3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        )
        at = part_of(N)
        return model, Shard(X[at], N), y[at], w[at]

    def trained(checkpoints=None, progress=None):
        model, X, y, w = problem()
        certificate = eq.certify(
            model, X, y, theorem="anchored", loss="cross_entropy", ridge=1.0, decay=0.1, sample_weight=w
        )
        trainer = Trainer(
            model, "cross_entropy", optimiser="adam", rate=1e-3, epochs=4, batch_size=32, rtol=1e-12,
            certificate=certificate, check_every=2, refit=False,
        )
        history = trainer.fit(X, y, (X, y), sample_weight=w, checkpoints=checkpoints, progress=progress)
        return model, certificate, history
    """
)
RANK = PROBLEM + textwrap.dedent(
    """
    import json, os, sys, torch.distributed as dist
    from datetime import timedelta
    from equipoise.train.checkpoint import Checkpoints

    torch.set_num_threads(1)
    rank, ranks, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group(
        "gloo", init_method=f"file://{place}/store", rank=rank, world_size=ranks, timeout=timedelta(minutes=2)
    )
    model, certificate, history = trained()
    again, _, _ = trained()
    told = {
        "verdict": certificate.verdict,
        "F": history.anchored["F_end"],
        "start": certificate.constants["F_start"],
        "kept": [c["accepted"] for c in history.anchored["checkpoints"]],
        "bits": all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters())),
        "test": history.test_loss[4],
    }
    if rank == 0:
        torch.save(model.state_dict(), f"{place}/model.pt")

    from equipoise.train import training_run
    step = training_run.TrainingRun._step

    def dies(run, mine, count):
        if rank == ranks - 1 and run.epoch == 3:
            print(json.dumps(told), flush=True)
            os._exit(9)
        return step(run, mine, count)

    training_run.TrainingRun._step = dies
    try:
        trained(Checkpoints(f"{place}/checkpoints"))
        told["lost"] = ""
    except RuntimeError as error:
        told["lost"] = str(error)
    print(json.dumps(told), flush=True)
    os._exit(0)
    """
)


def together(place, ranks):
    """What each rank said."""
    (place / "rank.py").write_text(RANK)
    command = [sys.executable, "-W", "ignore", str(place / "rank.py")]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, str(r), str(ranks), str(place)], stdout=subprocess.PIPE, text=True
                )
            )
            for r in range(ranks)
        ]
        for process in processes:
            stack.callback(process.kill)
        return [json.loads(process.communicate(timeout=300)[0]) for process in processes]


@pytest.fixture
def one_thread():
    """As in every rank: a run that goes on with another number of threads says so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_train_and_certify_as_one_process_and_one_that_dies_loses_nothing(tmp_path, ranks):
    said = together(tmp_path, ranks)
    alone: dict = {}
    exec(PROBLEM, alone)
    model, certificate, history = alone["trained"]()
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    for name, t in model.state_dict().items():
        torch.testing.assert_close(found[name], t, rtol=0, atol=1e-9)
    assert certificate.verdict == "proved"
    for rank in said:
        assert rank["verdict"] == "proved"
        assert rank["bits"]  # the same twice
        assert rank["F"] == said[0]["F"]  # the same on every rank
        low, high = history.anchored["F_end"]
        assert max(rank["F"][0], low) <= min(rank["F"][1], high)  # both hold F
        assert rank["start"] == pytest.approx(certificate.constants["F_start"], rel=1e-6)
        assert rank["kept"] == [c["accepted"] for c in history.anchored["checkpoints"]]
        assert rank["test"] == pytest.approx(history.test_loss[4], rel=1e-9)
    assert all(rank["lost"] for rank in said[:-1])  # those that are left end, and say so
    resumed, _, _ = alone["trained"](Checkpoints(tmp_path / "checkpoints"))  # by one process
    for name, t in model.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], t, rtol=0, atol=1e-9)


def test_one_process_takes_a_shard_for_all_rows():
    alone: dict = {}
    exec(PROBLEM, alone)
    model, X, y, w = alone["problem"]()
    certificate = eq.certify(model, X, y, theorem="anchored", loss="cross_entropy", sample_weight=w)
    other, *_ = alone["problem"]()
    plain = eq.certify(other, X.rows, y, theorem="anchored", loss="cross_entropy", sample_weight=w)
    assert certificate.constants == plain.constants
    with pytest.raises(ValueError, match=r"must be finite\. Got NaN or infinity in row 7"):
        Trainer(model).fit(Shard(torch.where(torch.arange(150)[:, None] == 7, torch.nan, X.rows), 150), y)
