"""The site as `make docs` builds it, and what its pages point to."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parent.parent


def built(path: Path) -> Path:
    """The site, built strictly into `path`."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement, which `make docs` leaves out too
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
    return path


class Links(HTMLParser):
    """What a page points to, what it loads, and the names of its places."""

    def __init__(self, text: str):
        super().__init__()
        self.targets: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.places.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.targets.append(found["href"])
        if tag in ("script", "img", "link", "iframe") and found.get("rel") != "canonical":
            self.loads += [found[key] for key in ("src", "href") if key in found]
