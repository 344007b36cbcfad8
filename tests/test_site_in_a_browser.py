"""The built site, opened from a folder: it fetches nothing, fits a phone, and can be searched and read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest

import browser as chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="the extra `docs` is not installed"),
]
ROOT = Path(__file__).parent.parent
PAGES = [
    "index",
    "when",
    "learn/certified-network",
    "how-to-choose",
    "theory",
    "gallery/small",
    "reference/solve",
]


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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement, which `make docs` leaves out too
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
    return path


@pytest.fixture(scope="module")
def read(site):
    return {page: Links(page.read_text()) for page in sorted(site.rglob("*.html")) if page.name != "404.html"}


@pytest.fixture(scope="module")
def browser():
    with chromium.opened() as started:
        yield started


@pytest.fixture
def show(browser, site):
    contexts = []

    def opened(name: str, width: int = 1280, scheme: str = "light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto((site / f"{name}.html").as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()


def test_formulas_are_drawn_without_a_script(site):
    assert "<math" in (site / "index.html").read_text()
    assert "arithmatex" not in (site / "theory.html").read_text()


def test_nothing_is_loaded_from_elsewhere(read):
    assert len(read) > 20
    for page, links in read.items():
        for address in links.loads:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"


def test_every_link_leads_to_a_page_and_a_place(read):
    places = {page.as_uri(): links.places for page, links in read.items()}
    for page, links in read.items():
        for target in links.targets:
            address, place = urldefrag(urljoin(page.as_uri(), target))
            if not address.startswith("file:"):
                continue
            path = Path(unquote(address.removeprefix("file://")))
            assert path.is_file(), f"{page.name} points to {target}"
            if address in places:
                assert unquote(place) in places[address], f"{page.name} points to {target}"


@pytest.mark.parametrize(
    ("words", "found"), [("Anderson", "how-to-choose.html"), ("well-posed", "glossary.html")]
)
def test_the_search_finds_a_page_without_a_network(show, words, found):
    page = show("learn/first-layer")
    page.keyboard.press("/")  # the search is reached by the keyboard
    page.keyboard.insert_text(words)  # at once: “well-” is no query to the theme, which complains
    page.keyboard.press("End")  # it reads its field when a key is let go
    page.locator(".md-search-result__item a").first.wait_for(timeout=20_000)
    results = [a.get_attribute("href") for a in page.locator(".md-search-result__item a").all()]
    assert any(re.search(rf"/{found}\b", result) for result in results), results
    assert page.complaints == []
    assert all(request.startswith("file:") for request in page.requests)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1280, 375])
def test_a_page_opens_quietly_and_fits(show, name, width):
    page = show(name, width)
    assert page.complaints == []
    assert all(request.startswith("file:") for request in page.requests)
    inner, outer = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert inner <= outer == width
    wide = page.evaluate(
        """() => [...document.querySelectorAll(".md-content *")].filter((e) => {
             for (let p = e; p; p = p.parentElement)
               if (/auto|scroll|hidden|clip/.test(getComputedStyle(p).overflowX)) return false;
             return e.getBoundingClientRect().right > innerWidth + 1;
           }).map((e) => e.tagName + ": " + e.textContent.slice(0, 60))"""
    )
    assert wide == []


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_stand_out(show, name, scheme):
    page = show(name, 1280, scheme)
    assert (page.evaluate("document.body.dataset.mdColorScheme") == "slate") == (scheme == "dark")
    found = page.evaluate(chromium.CONTRAST)
    assert len(found) > 60
    assert sorted(entry for entry in found if entry[0] < 4.5) == []


def test_dark_and_light_are_switched_by_hand_and_kept(show):
    page = show("index", 1280, "light")
    page.locator("form[data-md-component=palette] label:visible").click()
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
    page.reload()
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"


def test_the_first_step_of_the_keyboard_skips_to_the_text_and_every_step_is_seen(show):
    page = show("index")
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                """() => { const e = document.activeElement;
                     const shown = [e, e.nextElementSibling ?? e];  // a hidden switch rings its label
                     return [e.textContent.trim(), e.outerHTML.slice(0, 60),
                       shown.some((part) => getComputedStyle(part).outlineStyle !== "none")]; }"""
            )
        )
    assert seen[0][0] == "Skip to content"
    assert [element for _, element, ring in seen if not ring] == []
