"""What the app may do to a run: stop it, profile it, ask for its stacks. For runs of our own and for attached ones."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_probes.launch import RunHandle


class RunControl:
    """Control over a run that this process started."""

    def __init__(self, handle: RunHandle):
        self._handle = handle

    def interrupt(self) -> None:
        """As Ctrl-C: SIGINT, then within 3 s SIGTERM, then SIGKILL to every process of the run."""
        self._handle.interrupt()

    def kill(self) -> None:
        """SIGKILL to every process of the run."""
        self._handle.kill()

    def alive(self) -> bool:
        """Whether the command still runs."""
        return self._handle.wait(0) is None

    def exit_code(self) -> int | None:
        """The command's exit code, None while it runs."""
        return self._handle.wait(0)

    def profile(self, steps: int) -> None:
        """Ask every rank for a torch.profiler table of the next ``steps`` steps."""
        _send(self._handle.run_dir, {"cmd": "profile", "steps": steps})

    def dump(self) -> None:
        """Ask every rank for the stacks of its threads."""
        _send(self._handle.run_dir, {"cmd": "dump", "reason": "asked"})


def _send(run_dir: Path, command: dict[str, object]) -> None:
    from gputop_probes.client import send_command

    send_command(run_dir, command)


def process_alive(pid: int) -> bool:
    """Whether a process of that id exists on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


KILL = signal.SIGKILL
