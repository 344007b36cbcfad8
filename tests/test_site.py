"""The documentation is whole: it builds, and every public name has a place and an example."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest

import equipoise as eq
from built_site import ROOT, Links, built

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
    for notebook in (ROOT / "docs").rglob("*.ipynb"):
        page = notebook.relative_to(ROOT / "docs").with_suffix(".md")
        assert f"- {page}\n" in navigation, f"{notebook.name} cannot be reached from the navigation"


needs_mkdocs = pytest.mark.skipif(find_spec("mkdocs") is None, reason="the extra `docs` is not installed")


@needs_mkdocs
def test_the_site_builds_strictly_loads_nothing_and_every_link_leads_to_a_place(tmp_path):
    site = built(tmp_path)
    assert "<math" in (site / "index.html").read_text()  # formulas need no script
    assert "arithmatex" not in (site / "theory.html").read_text()
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        page = (site / "notebooks" / notebook.with_suffix(".html").name).read_text()
        code = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
        assert page.count("<pre") == len(code) > 0
        assert f'href="{notebook.name}"' in page  # to run it
    read = {page: Links(page.read_text()) for page in sorted(site.rglob("*.html")) if page.name != "404.html"}
    places = {page.as_uri(): links.places for page, links in read.items()}
    assert len(read) > 20
    for page, links in read.items():
        for address in links.loads:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
        for target in links.targets:
            address, place = urldefrag(urljoin(page.as_uri(), target))
            if not address.startswith("file:"):
                continue
            path = Path(unquote(address.removeprefix("file://")))
            assert path.is_file(), f"{page.name} points to {target}"
            if address in places:
                assert unquote(place) in places[address], f"{page.name} points to {target}"


@pytest.mark.slow
@needs_mkdocs
def test_the_sites_of_two_releases_stand_side_by_side_in_a_branch(tmp_path):
    for part in ("docs", "src"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for part in ("mkdocs.yml", "README.md"):
        shutil.copy(ROOT / part, tmp_path)
    quiet = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    run = lambda *words: (
        subprocess.run(words, cwd=tmp_path, env=quiet, capture_output=True, text=True, check=True).stdout
    )
    run("git", "init", "-q")
    run("git", "config", "user.name", "a reader")
    run("git", "config", "user.email", "reader@example.org")
    run("git", "commit", "-q", "--allow-empty", "-m", "A release")
    mike = (str(Path(sys.executable).parent / "mike"),)
    run(*mike, "deploy", "--update-aliases", "0.1", "latest")
    run(*mike, "deploy", "--update-aliases", "0.2", "latest")
    run(*mike, "set-default", "latest")
    versions = json.loads(run("git", "show", "gh-pages:versions.json"))
    assert [(v["version"], v["aliases"]) for v in versions] == [("0.2", ["latest"]), ("0.1", [])]
    assert "latest/" in run("git", "show", "gh-pages:index.html")
    for version in ("0.1", "0.2"):
        assert '"provider": "mike"' in run("git", "show", f"gh-pages:{version}/index.html")


def test_the_workflow_calls_what_the_makefile_has():
    yaml = pytest.importorskip("yaml", reason="the extra `docs` is not installed")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text())["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    asked = re.findall(r"\bmake ([\w-]+)", "\n".join(steps))
    assert {"docs", "versioned-site"} <= set(asked) <= set(targets)
    assert ".ci/run" in steps
