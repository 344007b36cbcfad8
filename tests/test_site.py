"""The documentation is whole: every public name has a place and an example."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import equipoise as eq

ROOT = Path(__file__).parent.parent
REFERENCE = {page: page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md"))}
EXAMPLES = "".join(re.findall(r"```python\n(.*?)```", "".join(REFERENCE.values()), flags=re.DOTALL))
ENTRIES = re.findall(r"^::: (\S+)$", "".join(REFERENCE.values()), flags=re.M)
NAMES = [name for name in eq.__all__ if not inspect.ismodule(getattr(eq, name))]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_described_once(name):
    entries = [
        page.name
        for page, text in REFERENCE.items()
        for _ in re.findall(rf"^::: equipoise\.{name}$", text, re.M)
    ]
    assert len(entries) == 1, f"eq.{name} stands in {entries}"


@pytest.mark.parametrize("entry", ENTRIES)
def test_everything_described_has_an_example(entry):
    room, name = entry.rpartition(".")[::2]
    used = rf"^[^#\n]*\beq\.{name}\b" if room == "equipoise" else rf"^(?!from|import)[^#\n]*\b{name}\b"
    assert re.search(used, EXAMPLES, flags=re.M), f"no example of the reference uses {entry}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        path = str(page.relative_to(ROOT / "docs"))
        assert f": {path}\n" in navigation, f"{path} cannot be reached from the navigation"
