"""Wherever a run is started, the command runs, with its own exit code and output; the record goes
where it can.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from environment_cases import CASES, Case, difference, reason_to_skip, try_case

pytestmark = pytest.mark.e2e

ALWAYS = (
    "HOME is /dev/null",
    "HOME is read-only",
    "no HOME, not in the user database",
    "runs directory is a file",
    "no inodes",
    "deleted working directory and relative runs",
    "umask 777",
    "stderr closed",
    "stdout is /dev/full",
    "ulimit -n 10, not root",
    "ulimit -n 24, not root",
    "ulimit -u 3, not root",
    "ulimit -v 100000, not root",
    "ulimit -f 0, not root",
    "ulimit -f 100, not root",
    "own directories taken by root",
    "taken, and no HOME",
    "no /dev/shm",
    "nothing can be written",
    "PYTHONWARNINGS=error",
    "SIGCHLD ignored",
)
"""The rest is tried by ``bench/reliability.py``."""
CHOSEN = [case for case in CASES if case.name in ALWAYS]


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name.replace(" ", "-"))
def test_the_command_ends_as_bare(tmp_path: Path, case: Case) -> None:
    reason = reason_to_skip(case)
    if reason:
        pytest.skip(reason)
    for folder in (tmp_path, *tmp_path.parents[:2]):  # pytest lets nobody else in
        folder.chmod(0o755)
    bare, watched = try_case(case, tmp_path)
    assert difference(bare, watched) == ""
    said = watched.stderr.decode(errors="replace")
    if "HOME" in case.name:
        assert "this run is recorded in" in said
    if "nothing can be written" in case.name or "-f 0" in case.shell:
        assert said.count("gputop: ") == 1 and "the command runs without gputop" in said


def test_all_that_are_always_tried_exist() -> None:
    assert len(CHOSEN) == len(ALWAYS)
