"""The built site, opened from a folder: it fetches nothing, fits a phone, and can be searched and read."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

import browser as chromium
from built_site import built

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="the extra `docs` is not installed"),
]
PAGES = [
    "index",
    "when",
    "learn/certified-network",
    "how-to-choose",
    "theory",
    "gallery/small",
    "notebooks/07-opteq-as-a-convex-problem",
    "reference/solve",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return built(tmp_path_factory.mktemp("site"))


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
