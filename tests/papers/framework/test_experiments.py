"""Every experiment runs, is judged by its numbers, is drawn, and is not computed twice."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from urllib.parse import unquote

import numpy as np
import pytest

from equipoise.data import DataError
from equipoise.data.errors import DataWarning
from equipoise.papers import catalogue
from equipoise.papers.framework import experiments
from equipoise.papers.framework.experiments import Context, Experiment, Settings, register
from equipoise.papers.framework.gallery import (
    duration,
    processor_time,
    read_results,
    run_with,
    summary,
    write_gallery,
    write_page,
)
from equipoise.papers.framework.page import Page, markdown
from equipoise.papers.framework.runner import reproduce, run_one
from equipoise.papers.framework.units import plain
from equipoise.papers.framework.verdicts import impossible, judged
from equipoise.plots import new_figure

KEYS = [e.key for e in catalogue.experiments()]
TINY = Settings("tiny", ("digits",))
PLACE = r"(§|Figure |Table |Theorem |Corollary |Conjecture |Appendix |[A-D]\.[0-9])"

NAMED = {
    "gao2022": ["fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "table1", "conditions"],
    "ling2023": ["fig1", "theorem2", "theorem4", "theorem5", "condition1"],
    "kawaguchi2021": [
        *(f"fig{i}" for i in (1, 3, 4, 5, 6, 7, 8)),
        *("fig2a", "fig2b", "fig2c", "theorem2", "appendixB"),
    ],
    "hieu2022": ["fig4.1", "fig4.2", "fig4.3", "fig4.4", "fig4.5", "monotone"],
    "xie2021": ["mnist", "table1", "table2", "table3", "objective", "theorem3", "sam"],
}


@pytest.fixture(scope="module")
def out(tmp_path_factory, with_units):
    return with_units(tmp_path_factory.mktemp("gallery"))


def test_the_registry_holds_every_figure_and_table():
    assert {f"{paper}.{n}" for paper, names in NAMED.items() for n in names} == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_an_experiment_runs_at_a_tiny_size(key, out):
    result = run_one(catalogue.experiment(key), TINY, out)
    assert not result.error, result.error
    assert result.judgements
    assert result.verdict in ("agree", "differs", "undecided in part", "undecided")
    for j in result.judgements:
        assert j.claim
        assert re.match(PLACE, j.paper), j.paper  # where the paper says it
        assert j.tolerance
        assert "nan" not in j.measured
    assert result.figures or result.tables
    for figure in result.figures:
        for form in ("svg", "png"):
            assert (out / key / f"{figure['name']}.{form}").stat().st_size > 1000
    for table in result.tables:
        lines = (out / key / f"{table['name']}.csv").read_text().splitlines()
        assert len(lines) == len(table["rows"]) + 1
    assert (out / key / "measured.json").exists()


def test_the_gallery_shows_every_result_and_escapes(out):
    if not read_results(out):  # of tests that another worker runs
        run_one(catalogue.experiment("xie2021.theorem3"), TINY, out)
    write_gallery(out)
    results = read_results(out)
    for result in results:
        write_page(result, out)
    page = (out / "index.html").read_text()
    assert [r.key for r in results] == sorted(
        (r.key for r in results), key=lambda k: (catalogue_order(k.split(".")[0]), k)
    )
    for result in results:
        assert f'id="{result.key}"' in page
    assert "<script" not in page
    assert not re.search(r'src="(?!data:)', page)  # self-contained
    for key in ("", *(result.key for result in results[::-5][::-1])):  # what it points to is there
        page = out / key / "index.html"
        links = re.findall(r'href="([^"#]+)"', page.read_text())
        assert [link for link in links if not (page.parent / unquote(link)).is_file()] == []
        assert sum("units/" in link for link in links) == sum(
            len(r.units) for r in results if key in ("", r.key)
        )
    assert {"../index.html", "measured.json", "result.json"} < set(links)
    for table in results[-1].tables:
        assert {f"{table['name']}.csv", f"{table['name']}.md"} < set(links)
    assert summary(results).count("\n## ") == len(results)


@pytest.mark.parametrize("decisive", [True, None])
def test_a_result_is_headed_by_the_verdict_of_all_its_claims(tmp_path, decisive):
    """One that is undecided was tried; one that cannot be tried decides nothing."""
    claims = [judged("c", holds, paper="p", measured="m", tolerance="t") for holds in (True, decisive)]
    claims.append(impossible("d", paper="p", reason="no data"))
    run_one(replace(made(), judge=lambda measured: claims), TINY, tmp_path)
    write_gallery(tmp_path)
    stored = json.loads((tmp_path / "gao2022.test" / "result.json").read_text())
    expected = "agree" if decisive else "undecided in part"
    counted = "2 agree, 1 cannot be tried" if decisive else "1 agree, 1 undecided, 1 cannot be tried"
    assert stored["verdict"] == expected
    assert f"| gao2022.test | title | {expected} | {counted} | tiny |" in (tmp_path / "index.md").read_text()
    page = (tmp_path / "index.html").read_text()
    assert f"<td>{counted}</td>" in page
    assert f"Claims by verdict: {counted}." in page
    assert f'<span class="soft">({counted})</span></h3>' in page
    assert '<td data-name="scale">tiny</td>' in page
    assert page.count('<span class="badge agree">') == (4 if decisive else 1)  # two of them head the result


def test_a_result_of_before_is_read(tmp_path):
    """It has no verdict of its own."""
    result = run_one(made(), TINY, tmp_path)
    path = tmp_path / "gao2022.test" / "result.json"
    stored = json.loads(path.read_text())
    del stored["verdict"]
    path.write_text(json.dumps(stored))
    (found,) = read_results(tmp_path)
    assert found.verdict == result.verdict == "agree"


@pytest.mark.parametrize("name", ["index.html", "index.md"])
def test_a_page_that_is_no_gallery_is_not_written_over(tmp_path, monkeypatch, name):
    monkeypatch.setattr(experiments, "_REGISTRY", {"gao2022.test": made()})
    for _ in range(2):  # a gallery is
        reproduce(["all"], TINY, tmp_path / "own")
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match=f"{name} is not of a gallery"):
        reproduce(["all"], TINY, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]
    assert not (tmp_path / "units").exists()
    assert (tmp_path / name).read_text() == "mine"


def catalogue_order(paper):
    from equipoise.papers.framework.claims import PAPERS

    return PAPERS.index(paper)


# -- the runner ---------------------------------------------------------------------------------------------


def test_one_that_fails_is_reported_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "_REGISTRY", {})

    def broken(context):
        """y"""
        raise RuntimeError("<b>boom</b>")

    fine = lambda measured: [judged("<i>c</i>", True, paper="p", measured="m", tolerance="t")]
    show = lambda measured, page: page.table("t", [{"a|b": "<script>", "c": 1.23456}], "caption")

    @register("gao2022.fine", "x <u>", judge=fine, draw=show, least="tiny")
    def works(context):
        """The claim
        of the paper."""
        return {"n": float("nan")}

    register("gao2022.broken", "x", judge=fine, draw=show)(broken)
    assert experiments.experiment("gao2022.fine").claim == "The claim of the paper."
    results = reproduce(["all"], Settings(), tmp_path)
    assert [r.verdict for r in results] == ["agree", "failed"]
    page = (tmp_path / "index.html").read_text()
    assert "It failed: RuntimeError: &lt;b&gt;boom&lt;/b&gt;" in page
    assert "Traceback" not in page
    assert "Traceback" in (tmp_path / "gao2022.broken" / "error.txt").read_text()
    assert "<script>" not in page
    assert "&lt;i&gt;c&lt;/i&gt;" in page
    assert json.loads((tmp_path / "gao2022.fine" / "measured.json").read_text()) == {"n": None}
    assert read_results(tmp_path)[1].verdict == "agree"
    for key, run in (("gao2022.fine", broken), ("gao2022.mute", lambda context: {})):  # which claims nothing
        with pytest.raises(ValueError, match="key of its own"):
            register(key, "x", judge=fine, draw=show)(run)


def made(fails=None, width=3):
    """An experiment whose `draw` fails after its first figure, or not; its one unit has a width."""

    def run(context):
        if isinstance(fails, DataError):
            raise fails
        unit = {
            "data": context.source("digits"),
            "width": width,
            "rows": [20, 10],
            "seed": 0,
            "stop": "Stop()",
        }
        return context.unit("gao2022.test", "u", unit, lambda progress: {"n": 1})

    def draw(measured, page):
        page.table("t", [{"fails": str(fails)}], "caption")
        figure, _ = new_figure()
        page.figure("f", figure, "caption")
        if fails:
            raise fails

    judge = lambda measured: [judged("c", True, paper="p", measured="m", tolerance="t")]
    return Experiment("gao2022.test", "title", "claim", run, judge, draw)


@pytest.mark.parametrize("error", [RuntimeError("boom"), DataError("file is damaged")])
def test_a_failure_keeps_the_result_of_before(tmp_path, error):
    run_one(made(), TINY, tmp_path)
    directory = tmp_path / "gao2022.test"
    before = {p.name: p.read_bytes() for p in directory.iterdir() if p.name != "result.json"}
    failed = run_one(made(error, width=4), TINY, tmp_path)
    assert failed.verdict == "failed"
    assert failed.data_error == isinstance(error, DataError)
    assert {name: (directory / name).read_bytes() for name in before} == before
    (shown,) = read_results(tmp_path)
    assert shown.verdict == "agree"
    assert str(error) in shown.later
    assert shown.sizes["width"] == [3]
    write_gallery(tmp_path)
    assert (
        f"A later run failed and changed nothing here: {failed.error}"
        in (tmp_path / "index.html").read_text()
    )
    run_one(made(), TINY, tmp_path)  # and the next that does not fail takes its place
    assert not read_results(tmp_path)[0].later
    assert {p.name for p in directory.iterdir()} == {*before, "result.json"}


def test_a_first_failure_shows_what_there_is(tmp_path):
    result = run_one(made(RuntimeError("boom")), TINY, tmp_path)
    write_gallery(tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert result.error == "RuntimeError: boom"
    assert "RuntimeError: boom" in page
    assert "data:image/svg" in page  # the figure drawn before
    assert str(tmp_path) not in page


def test_a_smaller_run_says_that_it_replaces_a_larger(tmp_path):
    assert not run_one(made(), Settings("small", ("digits",)), tmp_path).warnings
    (words,) = run_one(made(), TINY, tmp_path).warnings
    assert "replaces one of the scale small" in words
    assert not run_one(made(), TINY, tmp_path).warnings
    assert not run_one(made(), Settings("medium", ("digits",)), tmp_path).warnings


def test_a_page_states_what_was_run(tmp_path):
    result = run_one(made(), TINY, tmp_path)
    assert run_with(result) == "Run at the scale tiny; data digits; width 3; rows [20, 10]; seed 0."
    write_page(result, tmp_path)
    assert run_with(result) in (tmp_path / "gao2022.test" / "index.html").read_text()
    assert run_with(result) in summary([result])
    many = replace(result, data={}, sizes={"width": [5, 1, 4, 2, 3, 7, 6], "rates": [[0.1, 0.03, 0.2, 0.01]]})
    assert run_with(many) == "Run at the scale tiny; width 1 … 7; rates [0.1 … 0.01]."


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: "{}",
        lambda stored: "[]",
        lambda stored: '{"judg',
        lambda stored: json.dumps({**stored, "key": "gao2022.other"}),
        lambda stored: json.dumps({**stored, "seconds": "long"}),
        lambda stored: json.dumps({**stored, "tables": [{}]}),
        lambda stored: json.dumps({**stored, "settings": {"scale": "huge"}}),
        lambda stored: json.dumps({**stored, "figures": [{"name": "gone", "caption": "c"}]}),
    ],
)
def test_a_damaged_result_is_named_and_left_out(tmp_path, damage):
    run_one(made(), TINY, tmp_path)
    good = tmp_path / "gao2022.test" / "result.json"
    bad = tmp_path / "gao2022.test2" / "result.json"
    shutil.copytree(good.parent, bad.parent)
    bad.write_text(damage({**json.loads(good.read_text()), "key": "gao2022.test2"}))
    with pytest.warns(DataWarning, match=r"gao2022\.test2/result\.json is not a whole result"):
        write_gallery(tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert 'id="gao2022.test"' in page
    assert "gao2022.test2" not in page


def test_the_time_is_told_though_a_unit_is_damaged(tmp_path):
    result = run_one(made(), TINY, tmp_path)
    (tmp_path / result.units[0]).write_text("{}")
    assert processor_time([result], tmp_path) == result.seconds


def test_names_select_experiments():
    assert [e.key for e in catalogue.select(["all"])] == KEYS
    assert {e.paper for e in catalogue.select(["ling2023", "ling2023.fig1"])} == {"ling2023"}
    with pytest.raises(KeyError, match=r"gao2022\.fig1"):
        catalogue.select(["gao2022.figure1"])
    with pytest.raises(ValueError, match="ling2023"):
        catalogue.experiments("ling2024")


def test_settings_are_checked_and_scales_inherit():
    with pytest.raises(ValueError, match="'tiny', 'small', 'medium', 'paper'"):
        Settings("huge")
    with pytest.raises(ValueError, match="seeds"):
        Settings(seeds=0)
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        Settings(data=("digits", "mnst"))
    with pytest.raises(ValueError, match=r"must be one that exists\. Got /nowhere"):
        Settings(data_dir="/nowhere")
    assert Settings("paper").pick(tiny=1, small=2) == 2
    assert Settings("medium").pick(tiny=1, medium=3, paper=4) == 3
    assert Settings("tiny").pick(small=2, paper=4) == 2
    assert Context(Settings(seeds=4), None).seeds(tiny=1, small=2) == [0, 1, 2, 3]


def test_data_fall_back_on_digits_with_a_note(tmp_path):
    context = Context(Settings(data_dir=str(tmp_path)), tmp_path)
    assert context.datasets("mnist", "cifar10") == ["digits"]
    assert len(context.notes) == 3
    assert context.datasets("mnist", "digits") == ["digits"]
    assert not context.provenance  # none of them was used yet
    context.source("digits")
    assert list(context.provenance) == ["digits"]
    assert len(context.provenance["digits"]["files"]) == 1


@pytest.mark.parametrize(
    ("data", "seeds", "said"),
    [
        ((), None, []),
        (("digits", "synthetic-sphere"), None, []),
        (("digits", "svhn", "mnist"), 3, ["the data svhn, mnist; at the scale tiny it takes 1", "seeds, 3"]),
        (("mnist",), None, ["the data mnist; the experiment takes none"]),
    ],
)
def test_what_was_asked_for_and_not_used_is_said(tmp_path, data, seeds, said):
    context = Context(Settings("tiny", data, seeds), tmp_path)
    context.load("digits")
    context.unit("g", "u", {"data": {"name": "synthetic-sphere", "n": 4}}, lambda progress: {})
    found = context.ignored()
    assert len(found) == len(said)
    for words, expected in zip(found, said, strict=True):
        assert expected in words
    context.seeds(tiny=1)
    assert not any("seeds" in words for words in context.ignored())


def test_plain_is_json_and_a_table_is_written(tmp_path):
    import torch

    value = {1: np.float64(2.0), "t": torch.tensor([1.0, float("nan")]), "b": (True, None)}
    assert plain(value) == {"1": 2.0, "t": [1.0, None], "b": [True, None]}
    assert markdown(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |\n"
    page = Page(tmp_path)
    page.table("t", [{"a": 1.23456789, "b": None}], "caption")
    assert (tmp_path / "t.csv").read_text() == "a,b\n1.23456789,\n"
    assert page.tables[0]["rows"] == [["1.235", "–"]]
    assert [duration(s) for s in (0.2, 30, 600, 7200)] == ["under 1 s", "30 s", "10 min", "2.0 h"]


def test_an_exported_figure_keeps_the_colours_of_the_theme():
    """Series beside a picture of many colours: a palette of the picture alone would merge them."""
    import importlib.util
    from pathlib import Path

    from PIL import Image, ImageColor

    from equipoise.plots import LIGHT

    script = Path(__file__).parents[3] / "docs" / "gallery" / "export.py"
    spec = importlib.util.spec_from_file_location("export", script)
    export = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(export)
    pixels = np.random.default_rng(0).integers(256, size=(150, 150, 3), dtype=np.uint8)
    for row, colour in enumerate(LIGHT.series):
        pixels[row] = ImageColor.getrgb(colour)
    shown = np.asarray(export.in_256_colours(Image.fromarray(pixels)).convert("RGB"))
    assert np.array_equal(shown[: len(LIGHT.series)], pixels[: len(LIGHT.series)])
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) <= 256
