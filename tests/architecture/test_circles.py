"""No module of a package imports, through others, itself: imports inside functions and for types
count too.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from import_graph import Graph, circles, graph, modules, of_package, way_around


@cache
def arrows_with_types() -> Graph:
    """Of the house; read when a test runs, since every worker collects every test."""
    return graph(modules(), types=True)


@pytest.mark.parametrize("package", sorted({name.split(".")[0] for name in modules()}))
def test_no_package_has_a_circle(package: str) -> None:
    arrows = of_package(arrows_with_types(), package)
    too_large = [circle for circle in circles(arrows) if len(circle) > 1]
    assert not too_large, "\n".join(
        f"{len(circle)} modules import each other: {' -> '.join(way_around(arrows, circle))}"
        for circle in too_large
    )


def test_a_circle_is_found_and_told(tmp_path: Path) -> None:
    package = tmp_path / "probes" / "sample"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from . import b\n")
    (package / "b.py").write_text("def later():\n    from sample.c import C\n")
    (package / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sample.a import A\n"
    )
    files = modules(tmp_path)
    assert circles(graph(files, types=False)) == []
    arrows = graph(files, types=True)
    assert circles(arrows) == [{"sample.a", "sample.b", "sample.c"}]
    assert way_around(arrows, circles(arrows)[0]) == [
        "sample.a",
        "sample.b",
        "sample.c",
        "sample.a",
    ]
