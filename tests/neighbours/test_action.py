"""The steps of ``action.yml`` run as a runner would, in a real repository; ``gputop`` is a program
that notes how it was called and writes what ``gputop check`` writes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ACTION = Path(__file__).parents[2] / "action.yml"
CHECK = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
pathlib.Path(value("--md")).write_text("slower by 12 %\\n")
pathlib.Path(value("--json")).write_text(json.dumps({{"verdict": "slower"}}))
base = pathlib.Path(value("--baseline"), "train.py").read_text()
pathlib.Path({notes!r}).write_text(json.dumps({{"words": words, "base": base}}))
sys.exit(1)
"""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=n@n", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    for content in ("first", "second"):
        (folder / "train.py").write_text(content)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", content)
    return folder


def test_the_action_compares_with_the_base_and_reports(tmp_path: Path, repository: Path) -> None:
    action = yaml.safe_load(ACTION.read_text())
    step = next(step for step in action["runs"]["steps"] if step.get("id") == "check")
    inputs = {name: str(row.get("default", "")) for name, row in action["inputs"].items()}
    inputs |= {"command": "python train.py --name 'two words'", "base": "HEAD^"}
    programs, notes = tmp_path / "bin", tmp_path / "notes.json"
    programs.mkdir()
    (programs / "gputop").write_text(CHECK.format(python=sys.executable, notes=str(notes)))
    (programs / "gputop").chmod(0o755)
    env = {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: inputs[match[1]], text)
        for name, text in step["env"].items()
    }
    outputs = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=repository,
        env=os.environ
        | env
        | outputs
        | {"RUNNER_TEMP": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    called = json.loads(notes.read_text())
    assert called["base"] == "first"
    assert called["words"][-3:] == ["bash", "-c", inputs["command"]]
    assert called["words"][called["words"].index("--threshold") + 1] == inputs["threshold"]
    assert Path(outputs["GITHUB_OUTPUT"]).read_text() == "verdict=slower\n"
    assert Path(outputs["GITHUB_STEP_SUMMARY"]).read_text() == "slower by 12 %\n"
    assert git(repository, "worktree", "list").count("\n") == 0  # the base's checkout is gone
