"""docs/architecture.md and docs/glossary.md are true: every path, room and name in them exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from house_counts import SOURCE, trees
from test_house import HOUSE

ROOT = Path(__file__).parent.parent
PAGE, GLOSSARY = ((ROOT / "docs" / name).read_text() for name in ("architecture.md", "glossary.md"))
WALKS = re.split(r"^## ", PAGE, flags=re.M)[2:]
STEPS = [
    (walk.split("\n")[0], step)
    for walk in WALKS
    for step in re.findall(r"^\d\. .*(?:\n   .*)*", walk, flags=re.M)
]


def defined(path: Path) -> set[str]:
    """The names that a file defines, those inside of its classes too."""
    tree = ast.parse(path.read_text())
    names = {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    return names | {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


@cache
def everything() -> set[str]:
    """Every class, function and argument of the source."""
    return {
        name
        for tree in trees().values()
        for n in ast.walk(tree)
        for name in (getattr(n, "name", None), getattr(n, "arg", None), getattr(n, "id", None))
        if isinstance(name, str)
    }


def file_of(path: str) -> Path:
    return ROOT / path if path.startswith("tests") else SOURCE / path


def test_every_path_is_there():
    paths = re.findall(r"`([\w/]+\.py)`|`([\w/]+/)`", PAGE)
    assert len(paths) > 30
    for path in (one or two for one, two in paths):
        assert file_of(path).exists(), path


@pytest.mark.parametrize(("walk", "step"), STEPS, ids=[f"{w[:12]}-{i}" for i, (w, _) in enumerate(STEPS)])
def test_every_name_of_a_step_stands_in_a_file_of_that_step(walk, step):
    files = re.findall(r"`([\w/]+\.py)`", step)
    assert files, f"a step of {walk!r} names no file: {step}"
    known = set().union(*(defined(file_of(path)) for path in files))
    for name in re.findall(r"`([\w.]+)`", step):
        if not name.endswith(".py"):
            assert set(name.split(".")) <= known, f"{name} is not in {files}"


def test_a_pass_of_an_equilibrium_takes_nine_files():
    (walk,) = (w for w in WALKS if w.startswith("A forward and a backward pass"))
    assert len(set(re.findall(r"`([\w/]+\.py)`", walk))) <= 9


def test_the_drawing_has_every_room_in_its_order():
    drawing = re.search(r"```\n(.*?)```", PAGE, flags=re.S).group(1).splitlines()
    rooms = [word for line in drawing if line[0] != " " for word in line[:26].split()]
    assert [room.strip("/") for room in rooms] == HOUSE
    inside, parent = [], ""
    for line in drawing:
        if line[0] != " ":
            parent = line.split("/")[0]
        else:
            inside += [SOURCE / parent / name for name in line[:26].split()]
    for path in inside:
        assert path.is_dir() or path.with_suffix(".py").exists(), path


def test_a_word_of_the_glossary_has_one_meaning_and_names_that_exist():
    words = re.findall(r"^\| ([a-z][\w -]+?) \|", GLOSSARY, flags=re.M)[1:]
    assert len(words) > 60
    assert words == sorted(set(words), key=lambda word: word.replace("-", " "))
    for name in {*re.findall(r"`(\w+)`", GLOSSARY), *re.findall(r"`(\w+)`", PAGE)}:
        assert name in everything(), name
