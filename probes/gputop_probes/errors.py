"""What a user did wrong, or what the machine would not let us do, before a command was started."""

from __future__ import annotations


class StartError(Exception):
    """A run cannot be started or found. The text is one line for the user and says how
    to mend it.
    """

    def __init__(self, message: str, exit_code: int = 2):
        super().__init__(message)
        self.exit_code = exit_code
        """2: bad usage or input; 126: the command is not executable; 127: it does not exist."""


class RecordingImpossible(StartError):
    """Nothing can be recorded here; the command was not started, and may be started without us."""
