"""``gputop run --publish`` and ``--notify``: a process beside the run that reads its record and
publishes it.

The training knows nothing of it. It is started after the training, and what goes wrong in it is
said in a line at the end of the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from gputop.cli.notices import notice

WAIT_S = 15.0
"""How long a run's end waits for the last figures, or else ``GPUTOP_PUBLISH_WAIT_S``."""
_LINES = 10


class Beside:
    """The process that publishes a run."""

    def __init__(self, run_dir: Path, words: list[str]):
        """
        Args:
            run_dir: the run's directory.
            words: options of ``gputop publish``.
        """
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gputop", "publish", str(run_dir), "--beside", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,
        )

    def finish(self) -> None:
        """Wait for the last figures, a while at most, and say what went wrong."""
        seconds = _wait_s()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            notice(f"publish: not done after {seconds:g} s, process {self._process.pid} goes on")
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").splitlines()
        for line in [line for line in lines if line.startswith("gputop: ")][-_LINES:]:
            print(line, file=sys.stderr)


def _wait_s() -> float:
    try:
        return max(0.0, float(os.environ["GPUTOP_PUBLISH_WAIT_S"]))
    except (KeyError, ValueError):
        return WAIT_S


def options_of(publish: list[str], notify: list[str]) -> list[str]:
    """The words for ``gputop publish`` from ``NAME=TARGET``; what cannot be had is said and left
    out.

    Raises:
        CliError: no publisher of that name, or a target that cannot work.
    """
    from gputop.cli.errors import CliError
    from gputop.publish.table import PUBLISHERS, entry
    from gputop.publish.targets import refused

    words = [_notified(target) for target in notify]
    for text in publish:
        name, equals, target = text.partition("=")
        chosen = entry(name)
        if chosen is None or not equals or not target:
            names = ", ".join(publisher.name for publisher in PUBLISHERS)
            raise CliError(f"--publish {text}: give NAME=TARGET, NAME one of {names}")
        if why := chosen.missing():
            notice(f"{why}; the run goes on without")
            continue
        if why := refused(name, target):
            raise CliError(f"--publish {text}: {why}")
        words.append(f"--{name}={target}")
    return words


def _notified(target: str) -> str:
    from gputop.cli.errors import CliError
    from gputop.publish.targets import refused

    if why := refused("notify", target):
        raise CliError(f"--notify {target}: {why}")
    return f"--notify={target}"


def start(run_dir: Path, words: list[str]) -> Beside | None:
    """Start publishing; None where nothing is asked for, or it cannot be started, which is said."""
    if not words:
        return None
    try:
        return Beside(run_dir, words)
    except OSError as error:
        notice(f"publish: not started: {error.strerror}")
        return None
