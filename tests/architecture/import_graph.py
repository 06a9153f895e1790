"""Which module of the house imports which, read from the sources; imports inside functions count.

``python tests/architecture/import_graph.py [PACKAGE ...]`` prints the figures of each package and
its circles.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("tui_app", "analysis", "probes")
Graph = dict[str, set[str]]
"""Of each module the modules that it imports, by their dotted names."""


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The file of each module, by its dotted name; a package's is its ``__init__.py``."""
    files: dict[str, Path] = {}
    for source in SOURCES:
        for path in sorted((root / source).rglob("*.py")):
            parts = path.relative_to(root / source).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def graph(files: Mapping[str, Path], *, types: bool = False) -> Graph:
    """The imports of every module; with ``types`` also those that only type checkers follow."""
    return {name: set(imports(name, path, files, types=types)) for name, path in files.items()}


def imports(name: str, path: Path, known: Mapping[str, Path], *, types: bool) -> Iterator[str]:
    """The modules among ``known`` that the module ``name`` imports when it runs."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if types else runtime_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, package)
            for alias in node.names:
                target = f"{base}.{alias.name}"
                target = target if target in known else base
                if target in known and target != name:
                    yield target


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The dotted name after ``from``."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node below ``tree`` but those under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for branch in node.orelse:
                yield branch
                yield from runtime_nodes(branch)
            continue
        yield node
        yield from runtime_nodes(node)


def circles(arrows: Graph) -> list[set[str]]:
    """The sets of modules, larger than one, in which each reaches each other; the largest first."""
    reached = {name: reachable(arrows, [name]) for name in arrows}
    together: list[set[str]] = []
    seen: set[str] = set()
    for name in sorted(arrows):
        if name not in seen:
            circle = {other for other in reached[name] if name in reached[other]}
            seen |= circle
            together.append(circle)
    return sorted((circle for circle in together if len(circle) > 1), key=len, reverse=True)


def reachable(arrows: Graph, starts: Iterable[str]) -> set[str]:
    """What can be come to from ``starts`` along the arrows, the starts too."""
    found = set(starts)
    waiting = list(found)
    while waiting:
        for target in arrows.get(waiting.pop(), set()) - found:
            found.add(target)
            waiting.append(target)
    return found


def way_around(arrows: Graph, circle: set[str]) -> list[str]:
    """The shortest way from a module of a circle back to it."""
    ways = [way for start in circle if (way := shortest(arrows, circle, start))]
    return min(ways, key=lambda way: (len(way), way))


def shortest(arrows: Graph, inside: set[str], start: str) -> list[str]:
    """The shortest way from ``start`` to itself through ``inside``."""
    waiting = [[start]]
    seen: set[str] = set()
    while waiting:
        way = waiting.pop(0)
        for target in sorted(arrows[way[-1]] & inside):
            if target == start:
                return [*way, start]
            if target not in seen:
                seen.add(target)
                waiting.append([*way, target])
    return []


def of_package(arrows: Graph, package: str) -> Graph:
    """The part of a graph that lies within a package."""
    names = {name for name in arrows if name == package or name.startswith(package + ".")}
    return {name: arrows[name] & names for name in names}


def main(packages: list[str]) -> None:
    arrows = graph(modules())
    for package in packages or sorted({name.split(".")[0] for name in arrows}):
        inside = of_package(arrows, package)
        found = circles(inside)
        count = sum(len(targets) for targets in inside.values())
        print(
            f"{package}: {len(inside)} modules, {count} arrows, circles of "
            f"{[len(circle) for circle in found]}"
        )
        for circle in found:
            print(
                f"  {len(circle)}: {', '.join(sorted(circle))}\n    e.g. "
                f"{' -> '.join(way_around(inside, circle))}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
