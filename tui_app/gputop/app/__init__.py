"""The live app. Importing this package is cheap; Textual is loaded by ``run_app``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple, Protocol


class Control(Protocol):
    """What the app may do to the command that it watches."""

    def interrupt(self) -> None:
        """Ask the command to stop: each call is one step sterner than the last."""
        ...

    def kill(self) -> None:
        """End the command at once."""
        ...

    def alive(self) -> bool:
        """Whether the command still runs."""
        ...

    def exit_code(self) -> int | None:
        """The command's exit code, None while it is not known."""
        ...

    def waits_for_input(self) -> bool:
        """Whether the command waits for something to be typed."""
        ...

    def hand_over(self) -> None:
        """Give the terminal, which shows no screen now, to the command until the user comes back."""
        ...

    def stopping(self) -> bool:
        """Whether the command was asked to end."""
        ...

    def suspend(self) -> None:
        """Stop the command for a while, with all its processes."""
        ...

    def resume(self) -> None:
        """Let it go on."""
        ...

    def profile(self, steps: int) -> None:
        """Ask the agents for a profile of the next ``steps`` steps."""
        ...

    def dump(self) -> None:
        """Ask the agents for the stacks of all their threads."""
        ...


class Source(NamedTuple):
    """What to show."""

    run_dir: Path
    mode: Literal["live", "replay", "demo"]
    control: Control | None = None


class AppResult(NamedTuple):
    """How the app was left."""

    action: Literal["quit", "detached", "stopped"]
    """``quit``: nothing was running; ``detached``: the command was left running; ``stopped``: it was asked to end."""
    still_running: bool = False
    signal: int | None = None
    """The signal that ended the app, if one did."""


def run_app(source: Source) -> AppResult:
    """Show ``source`` until the user leaves.

    A command that a signal asked to end before the screen was there gets none.

    Raises:
        RuntimeError: stdin or stdout is no terminal.
        Exception: what the app died of; the terminal is restored.
    """
    import gc
    import sys

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RuntimeError("the live screen needs a terminal on stdin and stdout")
    gc.disable()  # nothing of what is imported now is garbage: the first frame comes a fifth earlier
    try:
        from gputop.app.application import GputopApp
        from gputop.app.interrupted import handlers_kept

        if source.control is not None and source.control.stopping():
            return AppResult("stopped", source.control.alive())
        with handlers_kept():
            app = GputopApp(source)
            result = app.run()
            if app.hard_exit is not None:
                app.hard_exit.cancel()
    finally:
        gc.enable()
    app.surface_errors()
    if app.failure is not None:
        raise app.failure
    return result if result is not None else AppResult("quit", app.still_running())
