"""Two processes on this machine: what is other, or fails, on one stops both, and neither waits."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext

import pytest
import torch
import torch.distributed as dist

import equipoise as eq
from equipoise.train import Trainer
from equipoise.train.distributed import any_rank_failed, begin_together, raise_together

SCRIPT = textwrap.dedent(
    """
    import json, sys, torch, torch.distributed as dist
    import equipoise as eq
    from equipoise.train import Trainer
    from equipoise.train.distributed import raise_together

    torch.set_num_threads(1)
    rank, store = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    said = {}

    def attempt(name, run):
        try:
            run()
            said[name] = "done"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"

    layer = eq.Equilibrium(lambda z, x: (0.3 if x[0, 0] < 5 else 3.0) * z + x, solver=eq.Picard())
    lost = None
    try:
        layer(torch.ones(2, 3, dtype=torch.float64) * (1.0 if rank == 0 else 9.0))  # rank 1 diverges
    except eq.EquilibriumError as caught:
        lost = caught
    attempt("lost", lambda: raise_together(lost))

    generator = torch.Generator().manual_seed(0)
    X, y = (torch.randn(6, n, dtype=torch.float64, generator=generator) for n in (3, 1))
    other = X.clone()
    other[4, 1] += 1e-12 * rank

    class Loss:  # whose repr has an address, which differs between processes
        __call__ = lambda self, yhat, y: (yhat - y.reshape(yhat.shape)) ** 2

    def fit(X, y, **options):
        model = eq.GaussianReLU(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        validation = options.pop("validation", None)
        Trainer(model, Loss(), epochs=1, batch_size=4, **options).fit(X, y, validation)

    attempt("data", lambda: fit(other, y))
    attempt("targets", lambda: fit(X, y * (1 + rank)))
    attempt("validation", lambda: fit(X, y, validation=(X, y) if rank else None))
    attempt("options", lambda: fit(X, y, rate=0.1 + 0.1 * rank, seed=rank))
    attempt("refused", lambda: fit(X * torch.nan if rank else X, y))
    version, eq.__version__ = eq.__version__, f"9.{rank}"
    attempt("versions", lambda: fit(X, y))
    eq.__version__ = version
    attempt("alike", lambda: fit(X, y))
    print(json.dumps(said), flush=True)
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


def ranks_of(monkeypatch, count, **fakes):
    """Let this process take itself for rank 0 of several."""
    for name, value in {"is_initialized": True, "get_rank": 0, "get_world_size": count}.items():
        monkeypatch.setattr(dist, name, lambda group=None, value=value: value)
    for name, fake in fakes.items():
        monkeypatch.setattr(dist, name, fake)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([{"X": 1, "y": 2}, {"X": 1, "y": 2}], None),
        ([{"X": 1, "y": 2}, {"X": 3, "y": 2}], "rank 1 has other X than rank 0. "),
        (
            [{"X": 1, "y": 2}, {"X": 1, "y": 2}, {"X": 1, "y": 3, "z": 1}, {"X": 2}],
            "rank 2 has other y, z than rank 0; rank 3 has other X, y than rank 0. ",
        ),
        ([{"loss": "<Loss at 0x7f1c>"}, {"loss": "<Loss>"}], None),
    ],
)
def test_ranks_that_are_unlike_are_named(facts, said, monkeypatch):
    def all_gather_object(everyone, mine, group):
        everyone[:] = [mine, *(({n: str(v) for n, v in theirs.items()}, "") for theirs in facts[1:])]

    ranks_of(monkeypatch, len(facts), all_gather_object=all_gather_object)
    with pytest.raises(ValueError, match=said) if said else nullcontext():
        begin_together(facts[0])


@pytest.mark.parametrize(
    ("names", "change"),
    [
        ("X", lambda: {"X": data()[0] + 1e-12}),
        ("optimiser, seed", lambda: {"rate": 0.2, "seed": 1}),
        ("epochs", lambda: {"epochs": 2}),
        ("version of equipoise", dict),
    ],
)
def test_a_trainer_refuses_to_begin_with_ranks_that_are_unlike(names, change, monkeypatch):
    said, others = [], []  # by rank 1, which speaks first; then what is left of it to be heard by rank 0

    def all_gather_object(everyone, mine, group=None):
        said.append(mine)
        everyone[:] = [mine, others.pop(0) if others else mine]

    begins = lambda *_: pytest.fail("began")
    ranks_of(monkeypatch, 2, all_gather_object=all_gather_object, broadcast=begins)

    def fit(X=None, **options):
        model = eq.GaussianReLU(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        X = data()[0] if X is None else X
        Trainer(model, **{"epochs": 1, **options}).fit(X, data()[1])

    with monkeypatch.context() as other:
        if names.startswith("version"):
            other.setattr(eq, "__version__", "9.1")
        with pytest.raises(pytest.fail.Exception, match="began"):  # alone with itself it would begin
            fit(**change())
    others.extend(said)
    with pytest.raises(ValueError, match=f"rank 1 has other {names} than rank 0"):
        fit()


def data():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(6, n, dtype=torch.float64, generator=generator) for n in (3, 1))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, str]]:
    """What each of two processes met, in attempts where one has something that the other has not."""
    at = tmp_path_factory.mktemp("ranks")
    (at / "rank.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", str(at / "rank.py")]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen([*command, str(r), str(at / "store")], stdout=subprocess.PIPE, text=True)
            )
            for r in range(2)
        ]
        for process in processes:
            stack.callback(process.kill)  # whatever fails here, none is left behind
        return [json.loads(process.communicate()[0]) for process in processes]


@pytest.mark.slow
def test_both_ranks_stop_when_one_fails(ranks):
    said = [rank["lost"].partition(":")[0] for rank in ranks]
    assert said == ["RuntimeError", "EquilibriumError"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "names"),
    [
        ("data", "X"),
        ("targets", "y"),
        ("validation", "validation X, validation y"),
        ("options", "optimiser, seed"),
        ("versions", "version of equipoise"),
    ],
)
def test_a_rank_that_is_unlike_the_rest_is_named_on_all(ranks, attempt, names):
    assert ranks[0][attempt] == ranks[1][attempt]
    assert ranks[0][attempt].startswith(
        "ValueError: all ranks must have the same data, network, options and versions: "
        f"rank 1 has other {names} than rank 0. Give"
    )


@pytest.mark.slow
def test_all_ranks_end_when_one_refuses_its_data(ranks):
    assert ranks[1]["refused"].startswith("ValueError: X must be finite.")
    assert ranks[0]["refused"].startswith(
        "RuntimeError: another rank cannot begin: rank 1 (ValueError: X must"
    )


@pytest.mark.slow
def test_ranks_that_are_alike_train(ranks):
    assert [rank["alike"] for rank in ranks] == ["done", "done"]


def test_alone_the_flag_is_ones_own():
    assert any_rank_failed(True)
    assert not any_rank_failed(False)
    raise_together(None)
    layer = eq.Equilibrium(lambda z, x: 2 * z + x, solver=eq.Picard(), on_failure="accept")
    layer(torch.ones(1, 1))
    error = eq.EquilibriumError("lost", layer.last.forward)
    with pytest.raises(eq.EquilibriumError, match="lost"):
        raise_together(error)
    begin_together({"X": 1})
    with pytest.raises(eq.EquilibriumError, match="lost"):
        begin_together({"X": 1}, error)
