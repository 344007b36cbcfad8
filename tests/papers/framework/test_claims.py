"""Every claim of the papers comes out as announced, and not with a constant changed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from equipoise import papers
from equipoise.papers.framework.claims import (
    PAPERS,
    Outcome,
    all_of,
    at_least,
    at_most,
    beside,
    corrected,
    equal,
    refuted,
    register,
)

CLAIMS = papers.claims()
WRONG = [(c, name, value) for c in CLAIMS for name, value in c.sensitive_to.items()]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.key)
def test_a_claim_comes_out_as_announced(claim, seed):
    outcome = claim.run(seed)
    assert claim.agrees(outcome), f"{claim.verdict}: {outcome}"


@pytest.mark.parametrize(("claim", "name", "value"), WRONG, ids=lambda v: getattr(v, "key", str(v)))
def test_a_claim_fails_with_a_wrong_constant(claim, name, value):
    assert value != claim.constants[name]
    assert not claim.run(**{name: value}).holds


def test_the_five_papers_are_covered():
    assert len(CLAIMS) >= 60
    assert all(len(papers.claims(paper)) >= 10 for paper in PAPERS)
    assert len({c.key for c in CLAIMS}) == len(CLAIMS)
    assert {c.verdict for c in CLAIMS} == {"holds", "holds corrected", "fails as printed"}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.key)
def test_a_claim_says_what_it_states_and_where_the_paper_fails(claim):
    assert claim.statement
    assert claim.label
    assert bool(claim.counterexample) == (claim.verdict != "holds")


def test_a_key_that_is_not_there_names_its_neighbours():
    with pytest.raises(KeyError, match=r"gao2022\.lemma4\.3"):
        papers.claim("gao2022.lemma43")
    with pytest.raises(KeyError, match="lists the keys"):
        papers.run("?")
    with pytest.raises(ValueError, match="ling2023"):
        papers.claims("ling2024")
    with pytest.raises(TypeError, match="scale"):
        papers.run("gao2022.eq38", skale=1.0)


def test_the_table_lists_each_claim_and_what_was_measured():
    console = Console(file=io.StringIO(), width=300, record=True)
    console.print(papers.table("gao2022"))
    console.print(papers.table("gao2022", measure=True))
    text = console.export_text()
    assert "Lemma 4.3" in text
    assert "[DE(I⊗X)]ᵀ" in text
    assert "NO" not in text.split()
    assert "yes" in text.split()


def test_a_verdict_asks_for_its_own_outcome():
    def outcome(holds: bool, printed: bool | None) -> Outcome:
        return Outcome(holds, 1.0, 1.0, 1.0, printed=printed)

    plain, corrected = papers.claim("gao2022.lemma4.3"), papers.claim("gao2022.eq38")
    assert (plain.verdict, corrected.verdict) == ("holds", "holds corrected")
    assert plain.agrees(outcome(True, None))
    assert not plain.agrees(outcome(True, False))
    assert not plain.agrees(outcome(False, None))
    assert corrected.agrees(outcome(True, False))
    assert not corrected.agrees(outcome(True, None))
    assert not corrected.agrees(outcome(True, True))
    assert not corrected.agrees(outcome(False, False))


def test_outcomes_know_their_side():
    assert at_most(1.0, 2.0).margin == 2
    assert at_least(1.0, 2.0).margin == 0.5
    assert not at_most(2.0, 1.0).holds
    assert not at_least(1.0, 2.0).holds
    assert equal([1.0, 2.0], [1.0, 2.0]).holds
    assert not equal([1.0, 2.0], [1.0, 2.1]).holds
    assert not equal(float("nan"), 1.0).holds
    both = all_of(at_most(1.0, 2.0, "a"), at_most(3.0, 2.0, "b"))
    assert (both.holds, both.measured, both.detail) == (False, 3.0, "a; b")
    assert beside(at_most(1.0, 2.0), at_most(3.0, 2.0)).printed is False


@pytest.mark.parametrize(
    ("key", "mark", "wrong"),
    [
        ("nobody2020.x", None, {"scale": 2.0}),
        ("gao2022.eq38", None, {"scale": 2.0}),
        ("gao2022.new", None, {"skale": 2.0}),
        ("gao2022.new", None, {}),
        ("gao2022.new", corrected(""), {"scale": 2.0}),
        ("gao2022.new", refuted(""), {"scale": 2.0}),
    ],
)
def test_a_claim_that_is_not_complete_is_refused(key, mark, wrong):
    def check(seed: int = 0, *, scale: float = 1.0) -> Outcome:
        """1 ≤ scale."""
        return at_most(1.0, scale)

    with pytest.raises(ValueError, match=key):
        register(key, "(1)", **wrong)(mark(check) if mark else check)
