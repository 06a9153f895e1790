"""The environment and the standard input of the command."""

from __future__ import annotations

import os
from pathlib import Path

import gputop_agent
from gputop_agent import wire

AGENT_DIR = Path(gputop_agent.__file__).parent


def child_environment(
    base: dict[str, str],
    socket_path: Path,
    run_id: str,
    clock_offset_ns: int,
    terminal: tuple[int, int] | None,
) -> dict[str, str]:
    """Environment of the command: its own, the way to the recorder, and unbuffered output.

    Args:
        base: the environment gputop was started with.
        socket_path: the recorder's socket.
        run_id: marks every process of the run.
        clock_offset_ns: epoch time less monotonic time.
        terminal: columns and lines of the terminal that will show the output; None when none will.
    """
    environment = dict(base)
    environment["PYTHONPATH"] = _with_inject_dir(base.get("PYTHONPATH", ""))
    environment[wire.ENV_AGENT_DIR] = str(AGENT_DIR)
    environment[wire.ENV_SOCKET] = str(socket_path)
    environment[wire.ENV_RUN_ID] = run_id
    environment[wire.ENV_CLOCK_OFFSET] = str(clock_offset_ns)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    if terminal is not None:
        environment.setdefault("COLUMNS", str(terminal[0]))
        environment.setdefault("LINES", str(terminal[1]))
        if "NO_COLOR" not in base:
            environment.setdefault("FORCE_COLOR", "1")
            environment.setdefault("CLICOLOR_FORCE", "1")
    return environment


def _with_inject_dir(path: str) -> str:
    """``PYTHONPATH`` with the guest in front, without empty parts (the working directory)."""
    inject = str(AGENT_DIR / "inject")
    parts = []
    if path:
        parts = []
        for part in path.split(os.pathsep):
            if part != inject:
                parts.append(part)
    return os.pathsep.join([inject, *parts])
