"""Counts that the house is held to, from its source: `python tests/house_counts.py [-v]` prints them.

Each count is a list of places, so that a test can hold its length to a ceiling and a reader can find what is
left. Commands, estimators and public constructors may take many parameters: users call them by keyword.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import equipoise as eq
from equipoise.models.base import EquilibriumModel

SOURCE = Path(eq.__file__).parent
MOST_PARAMETERS, MOST_LINES = 8, 60
_ASKS = ("isinstance", "issubclass")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Rooms whose functions are commands or estimators.
_CALLED_BY_KEYWORD = ("cli", "estimators.py")


@dataclass(frozen=True)
class Function:
    """A function or method of the source."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    path: str  # below the package
    owner: str  # the class it belongs to; empty for a function
    public: bool  # neither it nor what it stands in begins with an underscore

    @property
    def place(self) -> str:
        """Where it stands."""
        name = f"{self.owner}.{self.node.name}" if self.owner else self.node.name
        return f"{self.path}:{self.node.lineno} {name}"

    @property
    def parameters(self) -> int:
        """How many it takes, without the instance or the class."""
        given = self.node.args
        names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        return len(names) - (names[:1] in (["self"], ["cls"]))

    @property
    def lines(self) -> int:
        """How long it is, its signature and docstring included."""
        return (self.node.end_lineno or 0) - self.node.lineno + 1

    @property
    def decorators(self) -> list[str]:
        """Its decorators, as they are written."""
        return [ast.unparse(d) for d in self.node.decorator_list]


@cache
def trees(source: Path = SOURCE) -> dict[str, ast.Module]:
    """The syntax tree of every file, by its path below the package."""
    return {str(p.relative_to(source)): ast.parse(p.read_text()) for p in sorted(source.rglob("*.py"))}


def functions(source: Path = SOURCE) -> Iterator[Function]:
    """Every function and method of the package, those inside of functions too."""

    def below(body: Iterable[ast.AST], path: str, owner: str, public: bool) -> Iterator[Function]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from below(node.body, path, node.name, public and not node.name.startswith("_"))
            elif isinstance(node, _FUNCTIONS):
                yield Function(node, path, owner, public and not node.name.startswith("_"))
                yield from below(node.body, path, "", False)
            else:
                yield from below(ast.iter_child_nodes(node), path, owner, public)

    for path, tree in trees(source).items():
        yield from below(tree.body, path, "", True)


# -- models and their families -------------------------------------------------------------------------------


def models() -> list[type]:
    """Every model of the library: the classes that derive from the one base, and the base."""

    def below(kind: type) -> Iterator[type]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    return list(dict.fromkeys(c for c in below(EquilibriumModel) if c.__module__.startswith("equipoise.")))


def family_names() -> set[str]:
    """The names of every model of the library."""
    return {kind.__name__ for kind in models()}


def model_bases() -> list[str]:
    """Classes that solve, keep a record of the last call, or pose an equation of their own: the base alone.

    A family may refine one of these methods and call that of the base; a base of its own would not call it.
    """
    owned = ("solve", "equilibrium", "posed", "last")
    found = set()
    for function in functions():
        if not function.path.startswith("models/") or function.node.name not in owned or not function.owner:
            continue
        calls_super = any(isinstance(n, ast.Name) and n.id == "super" for n in ast.walk(function.node))
        if function.owner in family_names() and not calls_super:
            found.add(f"{function.path} {function.owner}")
    return sorted(found)


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


def family_checks() -> list[str]:
    """Where the class of a model is asked for: outside of papers, which are about one family each.

    The base itself may be asked for: it tells a model from what is none.
    """
    names = family_names() - {EquilibriumModel.__name__}
    rooms = [p for p in SOURCE.iterdir() if p.name != "papers" and (p.is_dir() or p.suffix == ".py")]
    return sorted(f"{path}:{line} {name}" for room in rooms for path, line, name in asked(room, names))


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


def files_naming(name: str = "GaussianReLU") -> list[str]:
    """Files that name a family, outside of papers: what is known of it should stand in a few."""
    return [path for path in trees() if not path.startswith("papers") and name in (SOURCE / path).read_text()]


# -- size, shape and words -----------------------------------------------------------------------------------


def many_parameters() -> list[str]:
    """Functions of more than eight parameters, but for commands, estimators and public constructors."""
    return [
        f"{f.place} ({f.parameters})"
        for f in functions()
        if f.parameters > MOST_PARAMETERS
        and not f.path.startswith(_CALLED_BY_KEYWORD)
        and not (f.node.name == "__init__" and not f.owner.startswith("_"))
    ]


def long_functions() -> list[str]:
    """Functions of more than sixty lines."""
    return [f"{f.place} ({f.lines})" for f in functions() if f.lines > MOST_LINES]


def undocumented() -> list[str]:
    """Public functions and methods without a docstring."""
    passed_over = ("overload", ".setter", ".register")
    return [
        f.place
        for f in functions()
        if f.public
        and ast.get_docstring(f.node) is None
        and not any(name in d for d in f.decorators for name in passed_over)
    ]


def private_imports() -> list[str]:
    """Names with an underscore that one module takes from another."""
    return [
        f"{path}:{node.lineno} {alias.name}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("equipoise"))
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]


def shared_class_names() -> list[str]:
    """Names that more than one class has."""
    found = defaultdict(list)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    return [f"{name}: {', '.join(paths)}" for name, paths in sorted(found.items()) if len(paths) > 1]


def lines(package: Path = SOURCE) -> int:
    """Lines of source in a package."""
    return sum(len(p.read_text().splitlines()) for p in package.rglob("*.py"))


COUNTS: dict[str, Callable[[], list[str]]] = {
    "model bases": model_bases,
    "checks of a family's class": family_checks,
    "functions of more than 8 parameters": many_parameters,
    "functions of more than 60 lines": long_functions,
    "private names imported": private_imports,
    "class names with two meanings": shared_class_names,
    "files that name GaussianReLU": files_naming,
    "public functions without a docstring": undocumented,
}


def main(verbose: bool) -> None:
    """Print every count, and with `-v` what it counts."""
    print(f"{lines():6} lines of source in {len(trees())} files")
    for name, places in COUNTS.items():
        found = places()
        print(f"{len(found):6} {name}")
        for place in found if verbose else ():
            print(f"         {place}")


if __name__ == "__main__":
    main("-v" in sys.argv)
