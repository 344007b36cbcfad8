"""Counts that the house is held to, from its source: `python tests/house_counts.py [package …]`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import equipoise as eq
from equipoise.models.base import EquilibriumModel

SOURCE = Path(eq.__file__).parent
_ASKS = ("isinstance", "issubclass")


def family_names() -> set[str]:
    """The names of every model of the library: the classes that derive from the one base, and the base."""

    def below(kind: type) -> Iterator[type]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    return {c.__name__ for c in below(EquilibriumModel) if c.__module__.startswith("equipoise.")}


def asked(package: Path, names: Iterable[str]) -> list[tuple[str, int, str]]:
    """(file, line, name) wherever the class of something is compared with one of these names.

    That is `isinstance`, `issubclass`, `type(…) is …`, `type(…) in (…)`, and what is registered by annotation
    with functools.singledispatch.
    """
    wanted, found = set(names), []
    for path in sorted(package.rglob("*.py")) if package.is_dir() else [package]:
        for node in ast.walk(ast.parse(path.read_text())):
            for name in _names(_classes(node)) & wanted:
                found.append((str(path.relative_to(package.parent)), getattr(node, "lineno", 0), name))
    return found


def _classes(node: ast.AST) -> list[ast.AST]:
    """The expressions whose names a node compares a class with."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ASKS:
        return list(node.args[1:])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register":
        return list(node.args)
    if isinstance(node, ast.Compare) and any(_is_type(side) for side in (node.left, *node.comparators)):
        return [node.left, *node.comparators]
    if isinstance(node, ast.FunctionDef) and any(_registers(d) for d in node.decorator_list):
        return [a.annotation for a in node.args.args[:1] if a.annotation is not None]
    return []


def _is_type(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def _registers(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "register"


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    inside = [n for node in nodes for n in ast.walk(node)]
    return {n.id for n in inside if isinstance(n, ast.Name)} | {
        n.attr for n in inside if isinstance(n, ast.Attribute)
    }


def lines(package: Path) -> int:
    """Lines of source in a package."""
    return sum(len(p.read_text().splitlines()) for p in package.rglob("*.py"))


def main(packages: list[str]) -> None:
    """Print the counts of each package."""
    names = family_names()
    for name in packages or sorted(p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists()):
        found = asked(SOURCE / name, names)
        print(f"{name:14} {lines(SOURCE / name):6} lines, {len(found):3} checks of a family's class")
        for place in found:
            print("    {}:{} {}".format(*place))


if __name__ == "__main__":
    main(sys.argv[1:])
