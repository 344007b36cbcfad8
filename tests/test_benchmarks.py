"""The page of benchmarks says what was measured, and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # bench/ stands beside the package, not in it

from bench import BENCHMARKS, page  # noqa: E402
from bench.measure import Row  # noqa: E402
from bench.table import store  # noqa: E402

FACTS = {
    "threads": 1,
    "quick": False,
    "date": "2026-01-01",
    "cores": 2,
    "load": [0.5],
    "cpu": "a processor",
    "python": "3.11",
    "versions": {"torch": "2"},
    "seconds": 3,
    "about": "What is measured.",
}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "DOCS", tmp_path)
    monkeypatch.setattr(page, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("bench.table.RESULTS", tmp_path / "results")
    monkeypatch.setattr("bench.table.DOCS", tmp_path)
    (tmp_path / "images").mkdir()
    return tmp_path


def row(work: str, ratio: float, target: float | None = 2.0, **more: str) -> Row:
    return Row(work, 1.0, "a peer", ratio, 1e-9, 1e-8, ratio, target=target, **more)


def test_the_page_is_what_its_numbers_give():
    found = json.loads((ROOT / "docs" / "benchmarks.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == page.page(found)
    missed = [
        row for document in found.values() for row in map(Row.from_dict, document["rows"]) if row.missed
    ]
    assert all(row.reason for row in missed)
    assert not any(document["quick"] for document in found.values())


def test_a_missed_target_is_counted_and_its_reason_stands_on_the_page(measured):
    rows = [row("fast", 2.5), row("slow", 1.5, reason="The reason why."), row("beside", 0.5, None)]
    store("forward", rows, FACTS)
    page.write_page()
    text = (measured / "benchmarks.md").read_text(encoding="utf-8")
    assert "Of 2 ratios with a target, 1 meet it" in text
    assert "- slow, beside a peer (1.50): The reason why." in text
    assert text.count("✗") == text.count("✓") == 1
    assert (measured / "images" / "benchmarks.png").read_bytes()[:4] == b"\x89PNG"


def test_parts_and_later_runs_replace_their_own_rows_alone(measured, capsys):
    store("forward", [row("one", 3.0), row("two", 3.0)], FACTS)
    store("forward", [row("two", 4.0)], FACTS, merge=True)
    store("tangent", [row("three", 1.0)], FACTS)
    page.write_page()
    assert "no reason stands beside a target that is missed: tangent, three" in capsys.readouterr().out
    for file in (measured / "results").glob("*.json"):
        file.unlink()
    store("tangent", [row("three", 5.0)], FACTS)
    found = page.stored()
    assert [(r["work"], r["ratio"]) for r in found["forward"]["rows"]] == [("one", 3.0), ("two", 4.0)]
    assert [r["ratio"] for r in found["tangent"]["rows"]] == [5.0]
    assert list(found) == [name for name in BENCHMARKS if name in found]
    store("forward", [row("two", 6.0)], FACTS, merge=True)  # where nothing but the page is left
    assert [(r["work"], r["ratio"]) for r in page.stored()["forward"]["rows"]] == [("one", 3.0), ("two", 6.0)]


def test_a_quick_run_never_reaches_the_page(measured):
    store("forward", [row("quick", 3.0)], FACTS | {"quick": True})
    assert page.stored() == {}
