"""The code that a stored number rests on: parts of the package by name, each with a digest of its syntax.

    code_of(compute)     {"papers.gao2022.runs": "3f…", "models": "a0…", "solve": "9c…", …}

In the papers' own modules only the definitions count that the computation names, directly or through others,
so that rewording a claim discards no number. In every other room of the package whole modules count: those
that are imported, and those that they import. Comments, docstrings and layout do not count, nor does code
that only shows numbers.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = __name__.split(".")[0]
ROOT = Path(sys.modules[PACKAGE].__file__ or "").parent
SHOWS = {"plots", "cli", "report"}  # rooms that no number rests on
FRAMEWORK = f"{__package__}."
COMPUTES = {f"{FRAMEWORK}{name}" for name in ("images", "small")}  # of the framework, these alone


@dataclass(frozen=True)
class Module:
    """A file, parsed: its top-level definitions by name, and the modules it imports."""

    name: str
    definitions: Mapping[str, list[ast.stmt]]
    imports: Mapping[str, tuple[str, str]]  # local name: module, and the name in it, or ""
    needs: frozenset[str]  # all modules that are imported anywhere in it
    digest: str  # of its whole syntax


def code_of(compute: Callable[..., Any]) -> dict[str, str] | None:
    """What `compute` rests on; None if its source cannot be read, as of a line typed into a terminal."""
    name = getattr(compute, "__qualname__", "").split(".")[0]
    module = _module(getattr(compute, "__module__", ""))
    return None if module is None or name not in module.definitions else dict(_parts(module.name, name))


@cache
def _parts(module: str, name: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}  # syntax by definition or module
    rooms: set[str] = set()
    todo = [(module, name)]
    while todo:
        at = todo.pop()
        if ":".join(at) in found:
            continue
        source = _module(at[0])
        nodes = source.definitions.get(at[1], ()) if source is not None else ()
        found[":".join(at)] = "".join(map(_dump, nodes))
        for other, part in _named(source, nodes) if source is not None else ():
            room = _room(other)
            if other == module or other in COMPUTES or (room == "papers" and not other.startswith(FRAMEWORK)):
                todo += [(other, part)] if part else [(other, each) for each in _definitions(other)]
            elif room not in {*SHOWS, "papers", ""}:
                rooms.add(other)
    whole = {each for start in rooms for each in _closure(start)}
    groups: dict[str, list[str]] = {}
    for key, text in found.items():
        groups.setdefault(key.split(":")[0].removeprefix(f"{PACKAGE}."), []).append(f"{key} {text}")
    for module_of in filter(None, map(_module, whole)):
        groups.setdefault(_room(module_of.name), []).append(f"{module_of.name} {module_of.digest}")
    return tuple((key, _digest("\n".join(sorted(texts)))) for key, texts in sorted(groups.items()))


def _named(module: Module, nodes: list[ast.stmt] | tuple[()]) -> Iterator[tuple[str, str]]:
    """The definitions and modules that some statements name, and what they import themselves."""
    for node in (part for each in nodes for part in ast.walk(each)):
        if isinstance(node, ast.Name) and node.id in module.definitions:
            yield module.name, node.id
        elif isinstance(node, ast.Name) and node.id in module.imports:
            yield module.imports[node.id]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(module.name, node).values()


@cache
def _closure(name: str) -> frozenset[str]:
    """A module and all that it imports, directly or not."""
    found: set[str] = set()
    todo = [name]
    while todo:
        at = todo.pop()
        module = _module(at)
        if at in found or module is None:
            continue
        found.add(at)
        todo += [other for other in module.needs if _room(other) not in {*SHOWS, "papers", ""}]
    return frozenset(found)


# -- files ---------------------------------------------------------------------------------------------------


@cache
def _texts() -> dict[str, str]:
    """Every module of the package, read at once: a file that is edited during a run does not affect it."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = (PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path.read_text("utf-8")
    return found


def _module(name: str) -> Module | None:
    text = _texts().get(name)
    if text is None and not name.startswith(f"{PACKAGE}."):  # an experiment of someone's own
        path = getattr(sys.modules.get(name), "__file__", None)
        text = Path(path).read_text("utf-8") if path and Path(path).is_file() else None
    return None if text is None else _parsed(name, text)


@cache
def _parsed(name: str, text: str) -> Module:
    tree = _bare(ast.parse(text))
    definitions: dict[str, list[ast.stmt]] = {}
    imports: dict[str, tuple[str, str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imports |= _imported(name, statement)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            definitions.setdefault(statement.name, []).append(statement)
        else:  # NAME = …, and whatever else binds names
            bound = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
            for each in {n.id for n in bound if isinstance(n.ctx, ast.Store)}:
                definitions.setdefault(each, []).append(statement)
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    needs = {other for node in statements for other, _ in _imported(name, node).values()}
    return Module(name, definitions, imports, frozenset(needs), _digest(_dump(tree)))


def _definitions(name: str) -> list[str]:
    module = _module(name)
    return [] if module is None else list(module.definitions)


def _imported(module: str, node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str]]:
    """Imports from the package itself: {local name: (module, name in it, or "" for a module)}."""
    if isinstance(node, ast.Import):
        return {a.asname or a.name: (a.name, "") for a in node.names if a.name.startswith(f"{PACKAGE}.")}
    base = node.module or ""
    if node.level:
        parents = module.split(".")
        up = node.level - (f"{module}.__init__" in _packages())
        base = ".".join([*parents[: len(parents) - up], *([node.module] if node.module else [])])
    if not f"{base}.".startswith(f"{PACKAGE}."):
        return {}
    own = lambda alias: f"{base}.{alias.name}"
    return {a.asname or a.name: (own(a), "") if own(a) in _texts() else (base, a.name) for a in node.names}


@cache
def _packages() -> frozenset[str]:
    found = (path.parent.relative_to(ROOT).parts for path in ROOT.rglob("__init__.py"))
    return frozenset(".".join((PACKAGE, *parts, "__init__")) for parts in found)


def _room(module: str) -> str:
    """The room of the package that a module is in; "" of the package itself, and of what is not in it."""
    parts = module.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else ""


# -- syntax --------------------------------------------------------------------------------------------------


def _bare(tree: ast.Module) -> ast.Module:
    """Remove docstrings, and what enters experiments into the registry: titles, claims, judges."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            node.body = node.body[1:]
        if not isinstance(node, ast.Module):
            node.decorator_list = [d for d in node.decorator_list if not _registers(d)]
    return tree


def _registers(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "register"


def _dump(node: ast.AST) -> str:
    return ast.dump(node, annotate_fields=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
