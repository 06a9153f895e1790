"""Each headless package is imported in a process of its own, and what came along is looked at."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = [str(ROOT / name) for name in ("tui_app", "analysis", "probes")]


def modules_after(statement: str) -> set[str]:
    code = f"import sys; sys.path[:0] = {ROOTS!r}\n{statement}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def import_all(package: str, root: str) -> str:
    """A statement that imports every module of a package."""
    folder = ROOT / root / package
    names = [
        ".".join(path.relative_to(ROOT / root).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(folder.rglob("*.py"))
        if "inject" not in path.parts and path.name != "__main__.py"
    ]
    assert len(names) > 1
    return "import " + ", ".join(names)


@pytest.mark.parametrize(
    ("package", "root", "banned"),
    [
        (
            "gputop_agent",
            "probes",
            {
                "textual",
                "numpy",
                "pydantic",
                "psutil",
                "gputop",
                "gputop_probes",
                "gputop_analysis",
                "gputop_tracer",
                "torch",
            },
        ),
        (
            "gputop_probes",
            "probes",
            {"textual", "torch", "gputop", "gputop_analysis", "plotext", "gputop_tracer"},
        ),
        (
            "gputop_analysis",
            "analysis",
            {"textual", "torch", "gputop", "psutil", "pynvml", "plotext", "gputop_tracer"},
        ),
    ],
)
def test_headless_packages_stay_apart(package: str, root: str, banned: set[str]) -> None:
    assert modules_after(import_all(package, root)) & banned == set()


def test_importing_gputop_loads_nothing_heavy() -> None:
    heavy = {
        "textual",
        "numpy",
        "pydantic",
        "psutil",
        "pynvml",
        "plotext",
        "torch",
        "argparse",
        "asyncio",
    }
    assert modules_after("import gputop") & heavy == set()


def test_the_command_line_starts_the_training_before_anything_heavy() -> None:
    heavy = {"textual", "numpy", "pydantic", "psutil", "pynvml", "plotext", "torch", "asyncio"}
    assert modules_after("import gputop.cli.slow.run, gputop_probes.launch") & heavy == set()
