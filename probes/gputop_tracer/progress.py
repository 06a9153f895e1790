"""What the command of a trace says to who started it: lines on stderr, and its exit code."""

import sys

PREFIX = "trace: "
"""Begins each line of progress; other lines are the libraries' own."""
NO_LIBRARY = 3
"""Exit code where torch or transformers is missing."""


def say(text: str) -> None:
    print(PREFIX + text, file=sys.stderr, flush=True)
