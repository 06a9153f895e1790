"""What the command line tells a user who asked for something that cannot be done."""

from __future__ import annotations

import os

USAGE = 2
"""Bad usage or bad input."""
ENVIRONMENT = 3
"""The environment lacks something, named in the message."""


class CliError(Exception):
    """One line for the user: what is wrong and how to mend it."""

    def __init__(self, message: str, exit_code: int = USAGE):
        super().__init__(message)
        self.exit_code = exit_code


def silence_stdout() -> None:
    """The reader of our stdout went away, as ``| head`` does: no error, and Python's own flush at exit stays quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
