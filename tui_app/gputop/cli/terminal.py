"""The live screen needs a terminal on both ends."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gputop.cli.errors import ENVIRONMENT, CliError

if TYPE_CHECKING:
    from gputop.app import AppResult, Source

_DRAWING_BYTES = 2 << 30
"""Address space that the screen's libraries ask for; with less they and the terminal die."""


def has_terminal() -> bool:
    """Whether a full-screen program can run here."""
    return (
        sys.stdin.isatty()
        and sys.stdout.isatty()
        and os.environ.get("TERM") not in (None, "", "dumb")
    )


def need_terminal(instead: str) -> None:
    """Refuse to open the screen where there is no terminal, and say what to call in its place.

    Raises:
        CliError: stdin or stdout is no terminal.
    """
    if not has_terminal():
        raise CliError(f"no terminal to draw on here: use `{instead}`", ENVIRONMENT)


def has_room_to_draw() -> bool:
    """Whether ``ulimit -v`` leaves the screen and NumPy enough address space."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit == resource.RLIM_INFINITY or limit >= _DRAWING_BYTES


def show(source: Source) -> AppResult:
    """Show ``source``, and the runs that the user goes on to, until the user leaves.

    Raises:
        CliError: the screen failed.
    """
    from gputop.app import run_app

    try:
        result = run_app(source)
        while result.then is not None:
            source = source._replace(run_dir=result.then, mode="replay", control=None)
            result = run_app(source)
        return result
    except Exception as error:
        raise CliError(screen_failure(source, error), 1) from None


def screen_failure(source: Source, error: Exception) -> str:
    """What a screen died of, in one line."""
    details = source.run_dir / "screen-error.log"
    where = f"; details in {details}" if details.exists() else ""
    return f"the screen failed ({type(error).__name__}: {error}){where}"
