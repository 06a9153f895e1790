"""Every module that is shipped is reached from where programs are started; what only tests or
benchmarks use is not.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from import_graph import Graph, graph, modules, reachable

ENTRIES = {
    "gputop",  # import gputop, in a training script
    "gputop.cli",  # the console script
    "gputop.__main__",
    "gputop.accelerate",  # imported by a script beside its framework
    "gputop.doctor.hardware_probe",  # sent to other hosts as text
    "gputop.lightning",
    "gputop.pytest_plugin",
    "gputop.transformers",
    "gputop_tracer.__main__",  # started by its path
    "gputop_agent.inject.sitecustomize",  # put on the path of every process of a run
}


def with_names_and_parents(arrows: Graph, files: dict[str, Path]) -> Graph:
    """The arrows, with modules that a table names in a string (``module`` or ``module:name``).

    Also the packages that an import runs first.
    """
    more: Graph = {}
    for name, path in files.items():
        nodes = ast.walk(ast.parse(path.read_text()))
        strings = {
            node.value.partition(":")[0]
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        targets = arrows[name] | (strings & files.keys())
        parents = {
            ".".join(parts[:end])
            for parts in (t.split(".") for t in targets)
            for end in range(1, len(parts))
        }
        more[name] = targets | parents
    return more


def test_every_module_is_reached_from_an_entry_point() -> None:
    files = modules()
    assert files.keys() >= ENTRIES
    reached = reachable(with_names_and_parents(graph(files), files), ENTRIES)
    lost = sorted(name for name in files if name not in reached)
    assert not lost, f"nothing that is shipped imports {', '.join(lost)}"
