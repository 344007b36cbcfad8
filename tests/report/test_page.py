"""The page: every part is there, every string escaped, nothing fetched, and what is missing is said."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil

import pytest
from parsed_page import Page

from equipoise import report
from equipoise.report.guarantee import least_loss, promise
from equipoise.report.reading import RunRecord, read
from equipoise.report.theorems import STATEMENTS, used
from equipoise.tasks import Run
from equipoise.theory import THEOREMS, Certificate

SECTIONS = ("results", "guarantee", "training", "network", "data", "setup")
KINDS = ("classification", "anchored", "regression", "diverged", "lost", "killed", "hostile")


@pytest.fixture(scope="module")
def pages(runs) -> dict[str, Page]:
    return {kind: Page((path / "report.html").read_text(encoding="utf-8")) for kind, path in runs.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_section_is_there_and_says_something(pages, kind):
    page = pages[kind]
    for section in SECTIONS:
        assert len(page.words[section].strip()) > 80, section
    named = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    assert {f"#{s}" for s in SECTIONS} <= named
    assert [tag for tag, _ in page.tags].count("h1") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_unique_and_links_lead_somewhere(pages, kind):
    ids = pages[kind].attributes("id")
    assert len(ids) == len(set(ids))
    pointed = {h.removeprefix("#") for h in pages[kind].attributes("href")}
    pointed |= {i for a in ("aria-labelledby",) for v in pages[kind].attributes(a) for i in v.split()}
    assert pointed <= set(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_fetched_and_nothing_runs(pages, runs, kind):
    page = pages[kind]
    assert not {"script", "img", "link", "iframe", "object", "embed", "form", "base"} & {
        t for t, _ in page.tags
    }
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on") or name in ("src", "srcset", "style")], (
            tag
        )
    assert all(h.startswith("#") for h in page.attributes("href"))
    text = (runs[kind] / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|url\((?!#)|@import|javascript:", text)


def test_the_policy_allows_one_style_sheet_and_nothing_else(runs):
    text = (runs["classification"] / "report.html").read_text(encoding="utf-8")
    (style,) = re.findall(r"<style>(.*?)</style>", text, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    policy = policy.replace("&#39;", "'")
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_the_certified_run_shows_all_it_measured(pages, runs):
    page = pages["classification"]
    expected = ("loss", "scores", "contraction", "sigma", "movement", "hidden", "solver", "slack")
    expected += ("confusion", "reliability", "importance", "promise", "equilibria", "kernel", "weights")
    assert {f"fig-{name}" for name in expected} == {a["id"] for t, a in page.tags if t == "figure"}
    for name in expected:
        assert len(page.words[f"fig-{name}"]) > 150, name  # a caption that explains
        assert page.words[f"fig-{name}-title"]
        assert page.words[f"fig-{name}-desc"]
    assert "At every step it lies below the promise" in page.words["fig-promise"]
    assert "promise" not in page.words["fig-loss"]  # which is about the predictions alone
    found = json.loads((runs["classification"] / "findings.json").read_text())
    assert f"{100 * found['scores']['test']['accuracy']:.1f}" in header(page)
    assert "with a guarantee" in header(page)
    assert "Proved" in header(page)


def test_every_claim_stands_in_the_table_with_both_sides(pages, runs):
    certificates = [
        Certificate.load(runs["classification"] / f"{n}.json") for n in ("certificate", "wellposed")
    ]
    words = pages["classification"].words["guarantee"]
    rows = [
        attrs for tag, attrs in pages["classification"].tags if tag == "tr" and attrs.get("role") == "row"
    ]
    claims = [claim for c in certificates for claim in c.claims]
    assert len(rows) == len(claims) + len(certificates)  # and a row of headers each
    for claim in claims:
        left, right = (side.replace("-", "−") for side in claim.sides)
        relation = {"<=": "≤", ">=": "≥"}.get(claim.relation, claim.relation)
        for part in (claim.name, claim.statement, claim.method, f"{left} {relation} {right}"):
            assert part in words
    assert "∞" not in words


def test_the_data_and_the_versions_are_told(pages, runs):
    page = pages["classification"]
    assert "3b" * 32 in page.words["data"]
    assert "25 % of the rows held out" in page.words["data"]
    assert "column a is constant" in page.words["data"]
    for version in Run(runs["classification"]).status["versions"].values():
        assert version in page.words["setup"]
    assert "gauss-newton" in page.words["setup"]  # chosen, not asked


def test_a_free_run_promises_nothing_about_its_loss(pages):
    page = pages["regression"]
    assert "without a guarantee" in header(page)
    assert "promised" not in page.words["fig-loss"]
    assert "exactly one equilibrium" in page.words["guarantee"]
    assert {"fig-residuals", "fig-importance", "fig-equilibria"} <= set(page.words)
    assert "fig-promise" not in page.words
    assert "Training was not certified: nothing is promised about its loss." in page.words["guarantee"]
    assert "nothing is promised about it" in header(page)


def test_a_diverged_run_says_why_and_what_to_try(pages):
    page = pages["diverged"]
    assert "Stopped early" in header(page)
    assert "the loss has grown from" in header(page)
    assert "a smaller rate" in header(page)
    assert "no better than their mean" in header(page)
    assert "epoch" in page.words["fig-loss"]


def test_a_network_without_equilibria_says_what_is_not_known(pages):
    page = pages["lost"]
    assert "Failed" in header(page)
    assert "no equilibrium" in header(page)
    assert "What to try: certified training" in header(page)
    assert "Not proved" in page.words["guarantee"]
    assert "scores: forward solve: 120 of 120 samples have no equilibrium" in page.words["network"]
    assert "fig-weights" in page.words


def test_a_killed_run_shows_what_it_measured(pages):
    page = pages["killed"]
    assert "Interrupted" in header(page)
    assert "no longer finite" in page.words["fig-loss"]
    assert "epoch" in page.words["fig-loss"]
    assert "findings.json" in page.words["setup"]
    assert "no certificate" in page.words["guarantee"]


def header(page: Page) -> str:
    return page.words[""]


def test_names_that_mean_harm_are_words(pages, runs):
    page, text = pages["hostile"], (runs["hostile"] / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<img" not in text
    assert "<b " not in text
    assert "<script>alert(1)</script>" in page.words["data"]
    assert "</style><script>alert(2)</script>" in page.words["data"]
    assert "$x^2$ {{ 7*7 }}" in page.words["data"]
    assert "onerror=alert(" in page.words["fig-confusion"]


@pytest.mark.parametrize(
    "name",
    [
        "config.toml",
        "run.json",
        "data.json",
        "metrics.jsonl",
        "certificate.json",
        "wellposed.json",
        "history.json",
        "findings.json",
        "fitted.json",
    ],
)
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe{\n", b"[1, 2]\n", b'{"a": [{"b": "<i>"}]}\n'])
def test_any_file_may_be_missing_or_spoilt(runs, tmp_path, monkeypatch, name, content):
    monkeypatch.setattr("equipoise.report.page.gather", lambda record, drawers, **how: [])
    path = tmp_path / "run"
    shutil.copytree(runs["classification"], path)
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    page = Page(report.write(path).read_text(encoding="utf-8"))
    valid = {b"": ("config.toml", "metrics.jsonl"), b"[1, 2]\n": ("config.toml",)}  # empty, or a TOML table
    if content is None or (content[:1] != b"{" and name not in valid.get(content, ())):
        assert name in page.words["setup"]
    if content is not None and name == "certificate.json":
        assert "Refused" in page.words["guarantee"]


@pytest.mark.parametrize(
    "found",
    [
        {"confusion": {"counts": [[1]], "names": ["a", "b"], "part": "test"}},
        {"plane": {"points": [[1.0]], "shares": [1]}, "kernel": {}, "weights": {"effective": {}}},
        {"scores": {"test": 3}, "residuals": [1], "model": "x"},
        {"scores": {"test": {"rows": 3, "accuracy": None}}, "contraction": "<i>"},
    ],
)
def test_findings_of_another_shape_spoil_nothing(runs, tmp_path, found):
    path = tmp_path / "run"
    shutil.copytree(runs["killed"], path)
    (path / "findings.json").write_text(json.dumps(found))
    page = Page(report.write(path).read_text(encoding="utf-8"))
    assert "fig-loss" in page.words


def test_a_loss_above_its_promise_is_not_hidden(runs, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(runs["classification"], path)
    history = json.loads((path / "history.json").read_text())
    history["promised"][7] = 1e-9
    (path / "history.json").write_text(json.dumps(history))
    Run(path).finish("finished")  # sealed as it is now
    drawn = promise(read(path))
    assert "At 1 step it lies above the promise" in drawn.caption
    assert "below the promise" not in drawn.caption


def test_metrics_stand_in_for_a_history_that_is_not_there(runs, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(runs["classification"], path)
    full = read(path)
    (path / "history.json").unlink()
    bare = read(path)
    for name in (
        "loss",
        "promised",
        "sigma_min",
        "movement",
        "contraction",
        "forward_steps",
        "test_accuracy",
    ):
        for a, b in zip(full.series(name), bare.series(name), strict=True):
            assert a.tolist() == b.tolist(), name
    hidden = bare.series("hidden", of="accepted")
    assert hidden[1].tolist() == full.series("hidden", of="accepted")[1].tolist()


def test_a_run_on_its_way_is_judged_by_its_gap(runs, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(runs["classification"], path)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rest = 10 * lines[0]["loss"]  # as if so much could never be fitted
    shifted = [json.dumps({**m, "loss": m["loss"] + rest, "least_loss": rest}) for m in lines]
    (path / "metrics.jsonl").write_text("\n".join(shifted) + "\n")
    (path / "history.json").unlink()
    Run(path).finish("finished")  # sealed as it is now
    assert "At every step it lies below the promise" in promise(read(path)).caption


def test_an_empty_directory_makes_a_page_and_no_directory_an_error(tmp_path):
    page = Page(report.write(tmp_path).read_text(encoding="utf-8"))
    assert "State unknown" in header(page)
    assert "Nothing was measured" in page.words["training"]
    with pytest.raises(FileNotFoundError, match="there is no run at"):
        report.write(tmp_path / "nowhere")


def test_the_same_run_makes_the_same_page(runs):
    run = Run(runs["killed"])
    before = (run.path / "report.html").read_bytes()
    assert report.write(run) == run.path / "report.html"
    assert (run.path / "report.html").read_bytes() == before


def test_every_theorem_is_stated():
    assert set(STATEMENTS) == set(THEOREMS)
    assert [s.title for s in used("safeguarded")] == ["Safeguarded descent", "Well-posedness"]
    assert [s.title for s in used(None)] == ["Well-posedness"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("findings.json", "classification"),
        ("history.json", "classification"),
        ("fitted.json", "classification"),
        ("metrics.jsonl", "classification"),
        ("model.safetensors", "classification"),
        ("certificate.json", "classification"),
        ("data.json", "killed"),
        ("config.toml", "killed"),
    ],
)
def test_what_was_altered_is_said_and_not_shown(runs, tmp_path, monkeypatch, name, kind):
    """White space is enough: no digit of a file that is not what it was may be taken for a finding."""
    monkeypatch.setattr("equipoise.report.page.gather", lambda record, drawers, **how: [])
    path = tmp_path / "run"
    shutil.copytree(runs[kind], path)
    (path / name).write_bytes((path / name).read_bytes() + b"\n")
    page = Page(report.write(path).read_text(encoding="utf-8"))
    assert "Files of this run have been changed or damaged" in header(page)
    assert f"{name} is damaged: it has changed since it was sealed" in header(page)
    assert name in page.words["setup"]
    if name == "findings.json":
        assert "Accuracy" not in header(page)
        assert "of 100 test rows right" not in header(page)
        assert "findings.json cannot be trusted" in page.words["network"]
    assert ("without a guarantee" in header(page)) == (kind == "killed")  # a damaged certificate says neither
    assert ("with a guarantee" in header(page)) == (kind != "killed" and name != "certificate.json")
    assert ("not the one in the file now" in header(page)) == (name == "model.safetensors")


@pytest.mark.parametrize(
    ("history", "least"), [({"least_loss": 0.0}, 0.0), ({"least_loss": None}, 3.0), ({}, 3.0)]
)
def test_a_least_loss_of_0_is_not_one_that_is_unknown(history, least):
    record = RunRecord("a", history=history, metrics=[{"step": 0, "loss": 5.0, "least_loss": 3.0}])
    assert least_loss(record) == least
