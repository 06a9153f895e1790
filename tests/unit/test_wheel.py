"""The wheel, built and installed into an empty folder: what a user gets who installs gputop by
name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 on")
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = [
    ROOT / path for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling", reason="builds with hatchling, of the extra `test`")
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    _run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(folder),
        str(wheel),
    )
    return folder


def test_its_name_is_its_own_and_the_command_stays(wheel) -> None:
    assert wheel.name.startswith("gputop_torch-")
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "gputop = gputop.cli:main" in archive.read(entry).decode()


def test_it_holds_every_source_file(wheel) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    sources = {
        path.relative_to(package.parent).as_posix()
        for package in PACKAGES
        for path in package.rglob("*.py")
    }
    assert "gputop_agent/inject/sitecustomize.py" in sources
    assert sources <= packed
    assert {"gputop_analysis/data/gpus.csv"} <= packed


def test_the_command_runs_from_there(installed) -> None:
    command = str(installed / "bin" / "gputop")
    place = _run(sys.executable, "-c", "import gputop; print(gputop.__file__)", packages=installed)
    assert Path(place.strip()).is_relative_to(installed)
    assert (
        _run(command, "--version", packages=installed).strip()
        == f"gputop {PROJECT['project']['version']}"
    )
    assert "Why is it slow?" in _run(command, "--help", packages=installed)
    assert "H100" in _run(command, "catalog", "list", "H100", packages=installed)


def test_the_guest_is_injected_from_there(installed, tmp_path) -> None:
    """What a command finds first on its path is the guest of this installation."""
    look = "import os; print(os.environ['PYTHONPATH'].split(os.pathsep)[0])"
    words = [
        "run",
        "--headless",
        "--run-dir",
        str(tmp_path / "run"),
        sys.executable,
        "-S",
        "-c",
        look,
    ]
    first = _run(str(installed / "bin" / "gputop"), *words, packages=installed).splitlines()[0]
    assert Path(first) == installed / "gputop_agent" / "inject"
    assert (Path(first) / "sitecustomize.py").is_file()


def _run(*words: str, cwd: Path | None = None, packages: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(packages)} if packages else dict(os.environ)
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
