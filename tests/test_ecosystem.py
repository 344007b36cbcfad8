"""Examples for other tools run as printed, where these are installed."""

from __future__ import annotations

import re
import textwrap
import types
import warnings
from pathlib import Path

import pytest
import torch

import equipoise as eq

DOCS = Path(__file__).parent.parent / "docs"
BLOCKS = [
    pytest.param(peer, textwrap.dedent(code), id=f"{page.stem}-{peer}")
    for page in sorted((DOCS / "how-to").glob("*.md"))
    for peer, code in re.findall(
        r'^ *```python title="peer: (\w+)"\n(.*?)^ *```', page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    if peer not in ("mlflow", "wandb")
]


def test_there_are_such_examples():
    assert {block.values[0] for block in BLOCKS} >= {"lightning", "transformers", "torchdeq", "jaxopt"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the peers' own
@pytest.mark.parametrize(("peer", "code"), BLOCKS)
def test_a_peer_runs_as_printed(peer, code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write files
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(peer, reason=f"{peer} is not installed")
    exec(compile(code, peer, "exec"), {"__name__": "__main__"})
    lines = iter(capsys.readouterr().out.splitlines())
    for expected in re.findall(r"print\(.*\)\s+# (\S.*)$", code, flags=re.MULTILINE):
        assert any(line.startswith(expected) for line in lines), f"no line goes on with {expected!r}"


class _Tracker(types.ModuleType):
    """Stands in for a tracker: every function notes its name and what it was given."""

    def __init__(self, name):
        super().__init__(name)
        self.calls, self.summary = [], {}

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def noted(*args, **named):
            self.calls.append((name, args, named))
            return self

        return noted


@pytest.mark.parametrize(("peer", "kind"), [("mlflow", "MLflow"), ("wandb", "WandB")])
def test_a_recipe_for_a_tracker_logs_every_epoch(peer, kind, monkeypatch):
    page = (DOCS / "how-to" / "ecosystem.md").read_text()
    (code,) = re.findall(
        rf'^ *```python title="peer: {peer}"\n(.*?)^ *```', page, flags=re.DOTALL | re.MULTILINE
    )
    tracker = _Tracker(peer)
    monkeypatch.setitem(__import__("sys").modules, peer, tracker)
    space: dict = {}
    exec(compile(textwrap.dedent(code), peer, "exec"), space)
    X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    history = eq.Trainer(eq.Monotone(3, 8), epochs=2, batch_size=6).fit(X, X[:, 0], callbacks=[space[kind]()])
    logged = [
        (args[0]["loss"], named["step"])
        for name, args, named in tracker.calls
        if name in ("log", "log_metrics")
    ]
    assert logged == list(zip(history.loss.tolist(), [0, 2, 4], strict=True))
    assert tracker.calls[-1][0] in ("end_run", "finish")
