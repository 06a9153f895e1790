"""The one exit of printed text: what others wrote is shown, never obeyed by the terminal."""

from __future__ import annotations

import errno
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from gputop.cli.errors import ENVIRONMENT, OutputError
from gputop_probes.record.plain import plain_text

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


class PlainStream:
    """A text stream that spells out control characters; on a terminal our own colours pass."""

    def __init__(self, stream: TextIO):
        self.below = stream
        """For what is ours and must reach the terminal as it is, such as moving its cursor."""
        self._coloured = stream.isatty()

    def write(self, text: str) -> int:
        """Write the text; returns its length, as a stream does."""
        with _written():
            try:
                self.below.write(self._plain(text))
            except UnicodeEncodeError:  # a locale of ASCII
                from gputop.app.plain_terminal import plain

                self.below.write(plain(self._plain(text)))
        return len(text)

    def flush(self) -> None:
        """Hand all that was written to the system."""
        with _written():
            self.below.flush()

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    def _plain(self, text: str) -> str:
        if text.isprintable():
            return text
        if not self._coloured or "\x1b" not in text:
            return plain_text(text)
        parts = _COLOUR.split(text)
        parts[::2] = map(plain_text, parts[::2])
        return "".join(parts)


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.EIO):  # nobody reads any more; the terminal is gone
            raise
        raise OutputError(f"cannot write the output: {error.strerror}", ENVIRONMENT) from None


def below(stream: TextIO) -> TextIO:
    """The stream itself, for orders to the terminal that are ours."""
    return getattr(stream, "below", stream)


@contextmanager
def plain_streams() -> Iterator[None]:
    """While it lasts, ``print`` and the rest of the command line write plain text."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_plain(stream) for stream in before)
    filters = warnings.filters[:]
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # of NumPy, for us and not for users
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        warnings.filters[:] = filters  # type: ignore[index]


def _plain(stream: Any) -> Any:
    if stream is None or isinstance(stream, PlainStream):
        return stream
    return PlainStream(stream)
