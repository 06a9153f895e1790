"""Imports inside the guest run one way, those inside functions counted."""

import ast
from pathlib import Path

import gputop_agent

ROOT = Path(gputop_agent.__file__).parent
APART = ("inject",)


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] not in APART and parts[-1] != "__init__":
            found[".".join(parts)] = path
    return found


def imports_of(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            base = name.split(".")[: -node.level]
        elif (node.module or "").partition(".")[0] == "gputop_agent":
            base = []
        else:
            continue
        words = (node.module or "").split(".") if node.module else []
        base = [*base, *(words if node.level else words[1:])]
        for alias in node.names:
            whole = ".".join([*base, alias.name])
            found.add(whole if whole in known else ".".join(base))
    return {target for target in found if target in known and target != name}


def test_no_circle():
    known = modules()
    edges = {name: imports_of(name, path, known) for name, path in known.items()}
    assert sum(map(len, edges.values())) > 150
    while leaves := [name for name, targets in edges.items() if not targets & edges.keys()]:
        for name in leaves:
            del edges[name]
    assert not edges, f"these import each other: {sorted(edges)}"


def test_no_global_statement():
    """What changes belongs to an object that a forked child makes anew."""
    for name, path in modules().items():
        statements = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Global)
        ]
        assert not statements, f"{name} has {len(statements)} global statements"
