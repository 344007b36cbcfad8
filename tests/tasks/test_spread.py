"""A rank that no longer answers is named with its rows; what is not about the network stays as it is."""

from __future__ import annotations

import signal

import pytest

from equipoise.cli.failures import explain
from equipoise.tasks import spread
from equipoise.tasks.spread import RankLost, naming
from equipoise.theory import shards


class Store:
    """The store of a job of three ranks, of which some answer."""

    def __init__(self, *answering: int, rows: int | None = None) -> None:
        self.held = {spread._left(r): b"here" for r in answering}
        if rows is not None:
            self.held[spread._ROWS] = str(rows).encode()

    def set(self, name, value):
        self.held[name] = value

    def get(self, name):
        return self.held[name]

    def check(self, names):
        return all(name in self.held for name in names)

    def wait(self, names, patience):
        assert patience == spread._NAMING
        if not self.check(names):
            raise RuntimeError("wait timeout")


@pytest.fixture
def job(monkeypatch):
    """This process as the first of three ranks; SIGTERM is afterwards as it was."""
    before = signal.getsignal(signal.SIGTERM)
    for module in (spread, shards):
        monkeypatch.setattr(module, "ranks", lambda: 3)
        monkeypatch.setattr(module, "rank", lambda: 0)

    def of(*answering: int, rows: int | None = None) -> None:
        store = Store(*answering, rows=rows)
        monkeypatch.setattr(spread, "_store", lambda: store)

    yield of
    signal.signal(signal.SIGTERM, before)


def raised(error: BaseException) -> None:
    with naming():
        raise error


GONE = RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1\nmore")


@pytest.mark.parametrize("error", [GONE, KeyboardInterrupt()])
def test_the_rank_that_does_not_answer_is_named_with_its_rows(job, error):
    job(1, rows=300)
    with pytest.raises(RankLost, match=r"^rank 2, which had rows 199 to 299, no longer answers") as lost:
        raised(error)
    assert ("Connection closed by peer [127.0.0.1]:1" in str(lost.value)) is (error is GONE)
    assert "more" not in str(lost.value)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN  # it ends by itself, once this is said


def test_before_there_are_rows_the_rank_is_named_alone_and_no_run_was_begun(job):
    job()
    with pytest.raises(RankLost, match=r"^rank 1 and rank 2 no longer answer, and the job of 3 ends") as lost:
        raised(GONE)
    assert "No run was begun" in explain(lost.value).advice


def test_where_all_answer_nobody_is_accused(job):
    job(1, 2)
    with pytest.raises(RankLost, match=r"^another rank failed, which says why itself, and the job of 3 ends"):
        raised(GONE)
    with pytest.raises(KeyboardInterrupt):
        raised(KeyboardInterrupt())


@pytest.mark.parametrize("error", [RuntimeError("the weights are not finite"), ValueError("gloo")])
def test_other_errors_stay_as_they_are(job, error):
    job()
    with pytest.raises(type(error), match=str(error)):
        raised(error)


def test_alone_an_error_of_a_network_is_ones_own(monkeypatch):
    with pytest.raises(RuntimeError, match="Connection closed") as error:
        raised(GONE)
    assert not isinstance(error.value, RankLost)
