"""What the live app shows, what it may do to it, and how it was left."""

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
        """Give the terminal, without a screen now, to the command until the user comes back."""
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
    picked: bool = False
    """Whether it was chosen from the list of runs: Esc goes back there."""


class AppResult(NamedTuple):
    """How the app was left."""

    action: Literal["quit", "detached", "stopped"]
    """``quit``: nothing ran; ``detached``: the command runs on; ``stopped``: asked to end."""
    still_running: bool = False
    signal: int | None = None
    """The signal that ended the app, if one did."""
    then: Path | None = None
    """The record that the user asked to see next."""
    to_runs: bool = False
    """Whether the user wants to see the list of runs again."""
