"""The live screen needs a terminal on both ends."""

from __future__ import annotations

import os
import sys

from gputop.cli.errors import ENVIRONMENT, CliError


def has_terminal() -> bool:
    """Whether a full-screen program can run here."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


def need_terminal(instead: str) -> None:
    """Refuse to open the screen where there is no terminal, and say what to call in its place.

    Raises:
        CliError: stdin or stdout is no terminal.
    """
    if not has_terminal():
        raise CliError(f"no terminal to draw on here: use `{instead}`", ENVIRONMENT)
