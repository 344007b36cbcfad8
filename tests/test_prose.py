"""English that is read once: few rules, each about a habit that makes a reader stop."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KINDS = (
    "sample|row|class|channel|input|output|step|run|family|paper|command|solver|method|layer|pixel|model|"
    "theorem|group|block|parameter|epoch|rank|column|batch|image|solve|system"
)
RULES = {
    "says one word twice": re.compile(r"\b([a-z]{2,}) \1\b"),
    "leaves out `for each`": re.compile(rf"\b(?:[Aa]n?|[Oo]ne) (?!of\b|in\b)[a-z]+ an? (?:{KINDS})\b"),
    "says `in the open`": re.compile(r"\bin the open\b"),
    "says `where ... alone` for `only`": re.compile(r"\bthose alone\b|\bof it alone\b"),
    "begins with a bare error": re.compile(r"^An? \w+Error (?:where|unless)\b"),
    "says `in words` for a message": re.compile(r"\b[Rr]efuse[sd]?\b.{0,60}, in words\b"),
}
LISTED = {"has text behind `Args:`": re.compile(r"\bArgs:[ \t]*\S.*")}  # seen only while lines are lines
ALLOWED = {"runs runs", "that that", "had had", "a sample a row", "a dash a step"}
LONGEST = 60  # words of a sentence on a page for newcomers


def broken(text: str) -> list[str]:
    """The rules that a text breaks, each with the words that break it."""
    joined = " ".join(text.split())
    return [
        f"{rule}: {found.group(0)!r}"
        for rules, words in ((RULES, joined), (LISTED, text))
        for rule, pattern in rules.items()
        for found in pattern.finditer(words)
        if found.group(0).lower() not in ALLOWED
    ]


def prose(page: Path) -> str:
    """A page without its code, formulas and tables."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\$\$.*?\$\$|^ *\|.*?$|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "`code`", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def spoken(path: Path) -> list[tuple[int, str]]:
    """The docstrings of a file, and its strings of several words, which become messages."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 2:
            found += [(node.lineno, part) for part in re.split(r"\n\s*\n", node.value)]
    return found


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "gallery" not in page.parts),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_reads_well(page):
    assert broken(prose(page)) == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name in ("learn", "how-to") or page.stem == "index"]
)
def test_sentences_for_newcomers_are_short(page):
    for paragraph in prose(page).split("\n\n"):
        for sentence in re.split(r"(?<=[.:;?!])\s", " ".join(paragraph.split())):
            assert len(sentence.split()) <= LONGEST, sentence


def test_docstrings_and_messages_read_well():
    found = [
        f"{path.relative_to(ROOT)}:{line} {problem}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in spoken(path)
        for problem in broken(text)
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "It is is solved.",
        "X must be (N, d), a row a sample.",
        "An equation with its tensors in the open.",
        "A ValueError where it does not fit.",
        "Refuse a problem that does not fit, in words.",
        "Args: inputs: of one image. channels: of z.",
    ],
)
def test_the_rules_see_what_they_forbid(text):
    assert len(broken(text)) == 1
    assert broken("X must be (N, d), one row for each sample.") == []
    assert broken("Args:\n    inputs: of one image.\n    channels: of z.") == []
