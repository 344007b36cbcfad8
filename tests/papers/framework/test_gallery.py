"""The gallery on the screen of a phone: every verdict is in sight, nothing needs to be pushed aside."""

from __future__ import annotations

import browser as chromium
from equipoise.papers.framework import gallery
from equipoise.papers.framework.experiments import Experiment, Settings
from equipoise.papers.framework.gallery import read_result, write_gallery, write_page
from equipoise.papers.framework.runner import run_one
from equipoise.papers.framework.verdicts import UNDECIDED, judged

RIGHTMOST = """() => Math.max(
  document.documentElement.scrollWidth,
  ...[...document.querySelectorAll(".badge, .cards td")].map((part) => part.getBoundingClientRect().right))"""


def test_verdicts_are_in_sight_on_a_narrow_screen(tmp_path):
    long = {
        "paper": "as the paper says it " * 5,
        "measured": "m = 25: 0.001231, " * 9,
        "tolerance": "t " * 50,
    }
    judge = lambda measured: [judged("a claim of some length", holds, **long) for holds in (True, None)]
    entry = Experiment(
        "gao2022.test", "title", "claim", lambda context: {}, judge, lambda measured, page: None
    )
    run_one(entry, Settings("tiny"), tmp_path)
    write_page(read_result(tmp_path / entry.key), tmp_path)
    write_gallery(tmp_path)
    with chromium.opened() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        for path in (tmp_path / "index.html", tmp_path / entry.key / "index.html"):
            page.goto(path.as_uri())
            assert page.evaluate(RIGHTMOST) <= 390


def test_a_test_is_stated_once_however_many_claims_it_judged():
    claims = [(f"claim {i}", "p", "m", "by Student's t", "undecided", UNDECIDED) for i in range(3)]
    claims.append(("claim 3", "p", "m", "within 2 %", "differs", "it is larger"))
    text = gallery.judged(claims)
    assert text.count("by Student's t") == 1
    assert "\n1. by Student's t\n2. within 2 %\n" in text
    assert UNDECIDED not in text
    assert "| claim 3 | p | m | 2 | differs: it is larger |" in text
