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


class OutputError(CliError):
    """What is printed cannot be written, as on a full disk."""


class cli_errors:
    """Context in which an error of these kinds becomes a ``CliError`` with the same text.

    An error that names an ``exit_code`` keeps it; a ``CliError`` passes as it is.

    Args:
        kinds: of error.
        in_one_line: line ends are spelt out, as in the name of a file.
    """

    def __init__(self, *kinds: type[Exception], in_one_line: bool = False):
        self._kinds = kinds
        self._in_one_line = in_one_line

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._kinds) and not isinstance(error, CliError):
            text = str(error)
            if self._in_one_line:
                from gputop_probes.record.plain import plain_line

                text = plain_line(text)
            raise CliError(text, getattr(error, "exit_code", USAGE)) from None


def silence_stdout() -> None:
    """The reader of our stdout went away, as ``| head`` does: no error, and Python's own flush at
    exit stays quiet.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
