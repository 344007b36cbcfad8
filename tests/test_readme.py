"""Every example in the README and the docs runs as printed, and the path of a newcomer is walked."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.main import get_command

from equipoise.cli.app import app

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
def test_example_runs_as_printed(page, index, code, capsys, tmp_path, monkeypatch):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)  # an example may write files, and read those of docs
    exec(compile(code, f"{page.name}[{index}]", "exec"), {"__name__": "__main__"})
    lines = iter(capsys.readouterr().out.splitlines())
    for expected in re.findall(r"print\(.*\)\s+# (\S.*)$", code, flags=re.MULTILINE):  # in their order
        begins = expected.split("…")[0].strip()
        assert any(line.startswith(begins) for line in lines), f"no line goes on with {begins!r}"


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


def _commands(text: str) -> list[list[str]]:
    """The arguments of every line of a block of code that calls `equipoise`, without its comment."""
    blocks = "".join(re.findall(r"^ *```\w*\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE))
    lines = re.findall(r"^ *(?:\$ )?equipoise (.*)$", blocks, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_printed_commands_know_their_options():
    known = {name: command.params for name, command in get_command(app).commands.items()}
    found = [(page.name, *command) for page in PAGES for command in _commands(page.read_text())]
    assert len(found) > 10
    for page, name, *arguments in found:
        assert name in known, f"{page}: there is no command {name}"
        options = {option for parameter in known[name] for option in parameter.opts}
        for given in arguments:
            assert not given.startswith("--") or given in options, f"{page}: {name} has no option {given}"


@pytest.mark.slow
def test_a_newcomer_walks_from_the_home_page_to_a_certified_network(tmp_path):
    """Every command is taken from the page that the home page leads to, and typed as it stands there."""
    home = ROOT / "docs" / "index.md"
    link = re.search(r"\[A certified network\]\((.*?)\)", home.read_text())
    page = (home.parent / link.group(1)).read_text().split("## The same in Python")[0]
    blocks = re.findall(r"^```(python|console)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    printed = {}
    for language, block in blocks:
        words = (
            ["-c", block]
            if language == "python"
            else ["-m", "equipoise.cli", *_commands(f"```\n{block}```")[0]]
        )
        ended = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0, f"{block}\n{ended.stderr}"
        printed[words[-1] if language == "python" else words[2]] = ended.stdout
    assert list(printed)[:3] == ["fit", "certify", "verify"]
    assert "proved" in printed["certify"]
    assert [row.split(",")[0] for row in printed["predict"].splitlines()] == ["y", "0", "1", "2"]
    assert json.loads((tmp_path / "runs" / "first" / "certificate.json").read_text())["verdict"] == "proved"
    assert (tmp_path / "runs" / "first" / "report.html").stat().st_size > 10_000


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(
            r"\[[^\]]+\]\(([^)#]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        ):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
