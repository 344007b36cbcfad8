"""Every example in the README and the docs runs as printed."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "gallery" not in p.parts)]
EXAMPLES = [
    (page, i, textwrap.dedent(code))
    for page in PAGES
    for i, code in enumerate(
        re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize(("page", "index", "code"), EXAMPLES, ids=[f"{p.name}-{i}" for p, i, _ in EXAMPLES])
def test_example_runs_as_printed(page, index, code, capsys):
    exec(compile(code, f"{page.name}[{index}]", "exec"), {"__name__": "__main__"})
    lines = iter(capsys.readouterr().out.splitlines())
    for expected in re.findall(r"print\(.*\)\s+# (\S.*)$", code, flags=re.MULTILINE):  # in their order
        begins = expected.split("…")[0].strip()
        assert any(line.startswith(begins) for line in lines), f"no line goes on with {begins!r}"


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(
            r"\[[^\]]+\]\(([^)#]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        ):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
