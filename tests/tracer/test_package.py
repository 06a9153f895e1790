"""The tracer is started in the user's interpreter, by the path of its entry point."""

import ast
import subprocess
import sys
from pathlib import Path

import gputop_tracer

PACKAGE = Path(gputop_tracer.__file__).parent


def test_the_tracer_is_python_38() -> None:
    for path in PACKAGE.rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 8))


def test_it_starts_by_its_path_without_gputop_and_brings_nothing_onto_the_path(
    tmp_path: Path,
) -> None:
    code = (
        f"import runpy, sys\nrunpy.run_path({str(PACKAGE / '__main__.py')!r})\nimport "
        "gputop_tracer.main\nprint([entry for entry in sys.path if 'gputop' in entry or 'probes' "
        "in entry])\nprint([name for name in sys.modules if name.startswith('gputop') and not "
        "name.startswith('gputop_tracer')])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "[]\n[]\n"), done.stderr


def test_the_command_helps_without_torch(tmp_path: Path) -> None:
    for words, option in (["--help"], "--factory"), (["train.py", "--help"], "--no-execute"):
        command = [sys.executable, "-I", "-S", str(PACKAGE / "__main__.py"), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and option in done.stdout, done.stderr
