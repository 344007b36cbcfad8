"""The page as a browser shows it: on a desk and on a phone, light and dark, with names that mean harm."""

from __future__ import annotations

import shutil
from itertools import pairwise

import pytest

import browser as chromium
from equipoise import report
from equipoise.tasks import Run

pytestmark = pytest.mark.slow  # what the page holds, test_page.py asks without a browser
KINDS = ("classification", "anchored", "regression", "lost", "killed", "hostile", "compared")
# What sticks out of the window on either side, though the page itself may hide it.
STICKS_OUT = """() => [...document.querySelectorAll("main *, header *, footer *")].filter((e) => {
  const r = e.getBoundingClientRect();
  const hidden = getComputedStyle(e).clipPath !== "none" || e.closest("thead, .skip, defs, .wide table");
  return r.width && !hidden && (r.right > innerWidth + 1 || r.left < -1);
}).map((e) => e.tagName + ": " + e.textContent.slice(0, 60))"""


@pytest.fixture(scope="module")
def browser():
    with chromium.opened() as started:
        yield started


@pytest.fixture
def show(browser, runs, tmp_path):
    """Open the report of a kind; everything the browser complains of, or is asked for, is kept."""
    contexts = []

    def opened(kind: str, width: int = 1280, scheme: str = "light"):
        alone = tmp_path / f"{kind}.html"  # nothing stands beside it
        if kind == "compared":
            report.compare([runs[k] for k in ("classification", "anchored", "hostile", "killed")], alone)
        else:
            shutil.copy(runs[kind] / "report.html", alone)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (page.complaints.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(alone.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1280, 375, 320])
def test_it_opens_quietly_and_fits(show, kind, width):
    page = show(kind, width)
    assert page.complaints == []
    assert page.requests == [page.url]
    inner, outer = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert inner <= outer == width
    assert page.evaluate(STICKS_OUT) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_figures_have_a_size_and_readable_words(show, width):
    page = show("classification", width)
    figures = page.locator("figure svg")
    assert figures.count() == 15
    for i in range(figures.count()):
        box = figures.nth(i).bounding_box()
        assert box["width"] > min(300, 0.8 * width)
        assert 0.3 < box["height"] / box["width"] < 1.2
    sizes = page.evaluate(
        "[...document.querySelectorAll('figure svg text')].map((t) => t.getBoundingClientRect())"
        ".map((r) => Math.min(r.width, r.height))"
    )
    assert min(size for size in sizes if size) > 4  # a narrow 1, and a line of 9 px
    clipped = page.evaluate(
        """[...document.querySelectorAll("figure svg text")].filter((t) => {
             const r = t.getBoundingClientRect(), s = t.closest("svg").getBoundingClientRect();
             return r.left < s.left - 4 || r.right > s.right + 4 ||
                    r.top < s.top - 4 || r.bottom > s.bottom + 4;
           }).map((t) => t.textContent)"""
    )
    assert clipped == []


@pytest.mark.parametrize("kind", ["classification", "regression", "lost", "compared"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_stand_out(show, kind, scheme):
    found = show(kind, 1280, scheme).evaluate(chromium.CONTRAST)
    assert len(found) > 60
    assert [entry for entry in found if entry[0] < 4.5] == []


def test_dark_differs_from_light_in_page_and_figures(show):
    seen = {}
    for scheme in ("light", "dark"):
        page = show("classification", 390, scheme)
        seen[scheme] = page.evaluate(
            """["body", "figure svg text", "figure svg path[stroke]"].map((s) => {
                 const style = getComputedStyle(document.querySelector(s));
                 return [style.backgroundColor, style.color, style.fill, style.stroke].join();
               })"""
        )
    for light, dark in zip(seen["light"], seen["dark"], strict=True):
        assert light != dark


def test_names_that_mean_harm_do_nothing(show):
    page = show("hostile", 390)
    page.wait_for_timeout(100)
    assert page.complaints == []
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("document.images.length") == 0
    assert "<script>alert(1)</script>" in page.locator("h1").inner_text()


def test_without_the_style_sheet_nothing_inline_is_allowed(show):
    """The policy is alive: a style or a script that the page did not come with is refused."""
    page = show("killed")
    page.evaluate("document.body.setAttribute('style', 'color: rgb(1, 2, 3)')")
    assert page.evaluate("getComputedStyle(document.body).color") != "rgb(1, 2, 3)"
    assert any("Content Security Policy" in complaint for complaint in page.complaints)


def test_a_claim_reads_as_a_list_on_a_phone_and_as_a_table_on_a_desk(show):
    phone, desk = show("classification", 390), show("classification", 1280)
    label = "getComputedStyle(document.querySelector('.claims td'), '::before').content"
    assert phone.evaluate(label) == '"Inequality"'
    assert desk.evaluate(label) in ("none", "normal")
    assert phone.get_by_role("table").first.get_by_role("row").count() > 1


def test_a_reloaded_page_follows_a_run_until_it_ends(browser, runs, tmp_path):
    run = Run(shutil.copytree(runs["killed"], tmp_path / "run"))
    page = browser.new_context().new_page()
    with run.working():
        run.metrics.append({"epoch": 9, "loss": 2.0, "test_accuracy": 0.5})
        page.goto(report.write(run).as_uri())
        assert "Still running" in page.locator("header").inner_text()
        assert "after 9 epochs" in page.locator(".headlines").inner_text()
        run.metrics.append({"epoch": 10, "loss": 1.5, "test_accuracy": 0.625})
        report.write(run)
        page.get_by_text("after 10 epochs").first.wait_for(timeout=30_000)  # it loads itself again
    report.write(run)
    page.get_by_role("heading", name="Interrupted").wait_for(timeout=30_000)
    assert page.locator("meta[http-equiv=refresh]").count() == 0
    page.context.close()


@pytest.mark.parametrize("kind", ["anchored", "compared"])
def test_everything_is_reached_by_the_keyboard(show, kind):
    """Links, folded parts and wide tables, in the order of the page, each with a ring that is seen."""
    page = show(kind, 375)
    page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = false)")
    wanted = page.evaluate("document.querySelectorAll('a, summary, [tabindex]').length")
    reached = []
    for _ in range(wanted):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                """(() => { const e = document.activeElement, s = getComputedStyle(e);
                     return [e.tagName, e.getBoundingClientRect().top + scrollY,
                             e.className === "skip" || s.outlineStyle !== "none"]; })()"""
            )
        )
    assert len(reached) == wanted
    assert all(ring for _, _, ring in reached)
    assert "BODY" not in {tag for tag, _, _ in reached}
    tops = [top for _, top, _ in reached[1:]]
    assert tops == sorted(tops)
    folded = page.locator("details").first
    if kind == "anchored":
        folded.locator("summary").focus()
        page.keyboard.press("Enter")
        assert folded.evaluate("(d) => d.open")


@pytest.mark.parametrize("kind", KINDS)
def test_headings_go_down_by_one_and_pictures_have_words(show, kind):
    page = show(kind)
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((h) => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    named = page.evaluate(
        """[...document.querySelectorAll("svg")].map((s) => s.getAttribute("role") === "img" &&
             s.getAttribute("aria-labelledby").split(" ").every(
               (i) => document.getElementById(i).textContent))"""
    )
    assert all(named)
    labelled = page.evaluate(
        """[...document.querySelectorAll("section, nav, [tabindex]")].map((e) =>
             e.getAttribute("aria-label") ||
             document.getElementById(e.getAttribute("aria-labelledby"))?.textContent)"""
    )
    assert all(labelled)
    assert page.evaluate("document.documentElement.lang") == "en"
