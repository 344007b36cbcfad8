"""The code that a number rests on: what changes it changes the digest, and what does not does not."""

from __future__ import annotations

import pytest

from equipoise.papers import catalogue
from equipoise.papers.framework import sources
from equipoise.papers.framework.experiments import Context
from equipoise.papers.gao2022 import runs as gao2022_runs
from equipoise.papers.xie2021 import digits as xie2021_digits
from equipoise.papers.xie2021 import optimisation as xie2021

RUNS, TEXTS = "equipoise.papers.gao2022.runs", sources._texts()


@pytest.fixture
def changed(monkeypatch):
    """Which parts of the code of `gao2022_runs.curve` are others after an edit."""

    def edit(module, old, new, of=gao2022_runs.curve):
        before = sources.code_of(of)
        assert TEXTS[module].count(old) == 1
        edited = {**TEXTS, module: TEXTS[module].replace(old, new)}
        with monkeypatch.context() as patch:
            patch.setattr(sources, "_texts", lambda: edited)
            forget()
            after = sources.code_of(of)
        forget()
        return {name for name in {*before, *after} if before.get(name) != after.get(name)}

    return edit


def forget():
    for known in (sources._parts, sources._closure):
        known.cache_clear()


def test_what_computes_a_number_is_in_its_code(changed):
    assert changed(RUNS, "MOST = 1e-2, 100", "MOST = 1e-3, 100") == {"papers.gao2022.runs"}
    assert changed(RUNS, "math.ceil(math.log", "math.floor(math.log") == set()  # not used by `curve`
    module = "equipoise.papers.framework.images"  # named by a function that it names
    assert changed(module, "prepare.grey(images)", "prepare.grey(images) / 2") == {"papers.framework.images"}
    deep = "equipoise.solve.anderson"  # imported by what it imports
    assert changed(deep, "class Anderson(Solver):", "class Anderson(Solver, object):") == {"solve"}


def test_words_layout_and_pages_are_not(changed):
    text = "def learned(run: Measured) -> bool:"
    assert changed(RUNS, text, f"\n# a comment\n{text}") == set()
    assert changed(RUNS, '"""The epochs at which the loss rose', '"""When the loss rose') == set()
    assert changed("equipoise.papers.framework.verdicts", "LEVEL = 0.05", "LEVEL = 0.01") == set()
    assert changed("equipoise.plots.style", "= 9.5, 10.5, 11.5", "= 9.5, 10.5, 12.5") == set()
    claim = "SAM converges to the fixed point that the regulariser prefers."
    own = "equipoise.papers.xie2021.optimisation"
    assert changed(own, claim, "Another claim.", of=xie2021.sam) == set()
    assert changed(own, "off[-1] < 0.5 * plain", "off[-1] < 0.9 * plain", of=xie2021.sam) == set()
    assert changed(own, "start = 3 * normal(4, 1, 10)", "start = normal(4, 1, 10)", of=xie2021.sam) == {
        "papers.xie2021.optimisation"
    }


def test_a_computation_that_is_passed_on_is_that_of_the_function_it_was_written_in():
    inner = lambda progress: {}
    name = __name__
    assert set(sources.code_of(inner)) >= {name}
    assert sources.code_of(len) is None
    namespace: dict = {"__name__": "typed"}
    exec("def typed(progress): return {}", namespace)
    assert sources.code_of(namespace["typed"]) is None


def test_every_unit_knows_its_code(tmp_path, monkeypatch):
    """Nothing is computed: what is asked for is enough to know."""
    codes = {}

    class Asked(Exception):
        pass

    def unit(self, group, name, inputs, compute):
        codes[group] = sources.code_of(compute)
        raise Asked

    monkeypatch.setattr(Context, "unit", unit)
    for entry in catalogue.experiments():
        try:
            entry.run(Context(catalogue.Settings("tiny", ("digits",)), tmp_path))
        except Asked:
            continue
    assert len(codes) > 15
    for group, code in codes.items():
        assert code, group
        assert any(part.startswith(f"papers.{group.split('.')[0]}") for part in code), group
        assert not {"plots", "cli", "report", "papers.framework.verdicts", "papers.framework.page"} & set(
            code
        )
    assert "solve" in sources.code_of(xie2021_digits.build)
