"""A browser for the tests that look at a page as a reader sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# The contrast of every element that has words of its own with what is painted behind it, as WCAG defines it.
CONTRAST = """() => {
  const read = (c) => { const n = c.match(/[\\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
  const over = ([r, g, b, a], under) => [r, g, b].map((v, i) => a * v + (1 - a) * under[i]);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => e === null
    ? [255, 255, 255] : over(read(getComputedStyle(e).backgroundColor), behind(e.parentElement));
  return [...document.querySelectorAll("body *")].filter((e) =>
    e.checkVisibility({ visibilityProperty: true, opacityProperty: true })
      && e.getClientRects().length && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())
  ).map((e) => {
    const style = getComputedStyle(e), paper = behind(e);
    const ink = over(read(e instanceof SVGElement ? style.fill : style.color), paper);
    const [low, high] = [light(paper), light(ink)].sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), e.tagName, e.textContent.slice(0, 40)];
  });
}"""


@contextmanager
def opened() -> Iterator[Any]:
    """Chromium, driven by playwright; the test is skipped where either is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()
