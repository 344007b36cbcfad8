"""The notebooks run from top to bottom, and hold no outputs in the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))


def test_none_of_the_twelve_is_missing():
    assert [int(path.stem[:2]) for path in NOTEBOOKS] == list(range(1, 13))


def _cells(path: Path) -> list[dict]:
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])
def test_holds_no_outputs(path):
    for cell in _cells(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])
def test_runs_from_top_to_bottom(path, monkeypatch, tmp_path):
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))  # no window is opened, no figure is kept
    monkeypatch.chdir(tmp_path)
    space: dict = {"__name__": "__main__"}
    for i, cell in enumerate(_cells(path)):
        exec(compile("".join(cell["source"]), f"{path.name}[{i}]", "exec"), space)
