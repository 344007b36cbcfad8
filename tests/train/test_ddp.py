"""Two processes under torchrun end where one does, with the same global batches, and fail together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

SCRIPT = textwrap.dedent(
    """
    import json, sys
    import torch, torch.distributed as dist
    import equipoise as eq
    from equipoise.train import Trainer
    from equipoise.train.checkpoint import Checkpoints

    torch.set_num_threads(1)
    out, mode, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if mode != "alone":
        dist.init_process_group("gloo")
    rank = dist.get_rank() if mode != "alone" else 0
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(21, 4, dtype=torch.float64, generator=generator)
    y = torch.tanh(X @ torch.randn(4, 2, dtype=torch.float64, generator=generator))
    if mode == "fails":
        X[17] *= 1e3  # a row of rank 1, where the map below does not contract
        cell = lambda z, x: torch.where(x.abs() > 100, 3.0, 0.3) * z + x
        torch.manual_seed(0)
        layer = eq.Equilibrium(cell, solver=eq.Picard())
        model = torch.nn.Sequential(layer, torch.nn.Linear(4, 2, dtype=torch.float64))
        y = 1e3 * y
    else:
        # Other weights on rank 1: they must be those of rank 0 before the first step.
        model = eq.GaussianReLU(
            4, 12, outputs=2, dtype=torch.float64, generator=torch.Generator().manual_seed(rank)
        )
    trainer = Trainer(
        model, optimiser="adam", rate=0.02, schedule="cosine", epochs=4, batch_size=6, patience=3
    )
    if mode == "fails":
        trainer.predict = lambda X: torch.zeros(len(X), 2, dtype=torch.float64)  # let it come to the steps
    told = []
    checkpoints = Checkpoints(out + ".checkpoints") if mode in ("saves", "resumes") else None
    if mode == "saves":
        from equipoise.train import training_run
        whole = training_run.TrainingRun.finished
        training_run.TrainingRun.finished = property(
            lambda self: self.epoch >= epochs or whole.fget(self)
        )
    history = trainer.fit(
        X, y, validation=(X, y), checkpoints=checkpoints, record=lambda facts: told.append(facts["epoch"])
    )
    said = {"rank": rank, "stopped": history.stopped, "told": told, "loss": history.loss.tolist()}
    sys.stdout.write(json.dumps(said) + chr(10))  # at once: print would end its line in a write of its own
    if rank == 0:
        torch.save(model.state_dict(), out)
    if mode != "alone":
        dist.destroy_process_group()
    """
)


def torchrun(tmp_path, mode, name, epochs=4, ranks=2):
    """What each rank printed, and the weights of rank 0."""
    script, out = tmp_path / "script.py", tmp_path / name
    script.write_text(SCRIPT)
    launch = [sys.executable, "-W", "ignore"]
    if mode != "alone":
        launch += ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--standalone"]
    done = subprocess.run(
        [*launch, str(script), str(out), mode, str(epochs)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(said, key=lambda s: s["rank"]), torch.load(out, weights_only=True)


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    (alone,), expected = torchrun(tmp_path, "alone", "one")
    both, found = torchrun(tmp_path, "trains", "two")
    assert len(both) == 2
    assert not any(rank["stopped"] for rank in both)
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, rtol=0, atol=1e-6)
    assert both[0]["loss"] == both[1]["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    assert both[0]["told"] == alone["told"]
    assert both[1]["told"] == []  # one reports


@pytest.mark.slow
def test_two_processes_go_on_from_a_checkpoint(tmp_path):
    whole, expected = torchrun(tmp_path, "trains", "whole")
    torchrun(tmp_path, "saves", "broken", epochs=2)
    resumed, found = torchrun(tmp_path, "resumes", "broken")
    assert all(torch.equal(found[name], t) for name, t in expected.items())
    assert [r["loss"] for r in resumed] == [r["loss"] for r in whole]
    assert resumed[0]["told"] == [3, 4]


@pytest.mark.slow
def test_all_ranks_end_when_one_has_no_equilibrium(tmp_path):
    both, _ = torchrun(tmp_path, "fails", "lost")
    for rank in both:  # all of them name the rank and the row of X, not of the batch
        assert "rank 1: no equilibrium of row 17." in rank["stopped"]
