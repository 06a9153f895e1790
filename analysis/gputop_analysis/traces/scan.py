"""Reads the events of a chrome trace one by one, so that a file of any size needs a few megabytes.

The standard library's decoder is asked for one value at a time over a sliding window of text. Its C
scanner does the work, so that a third-party streaming parser would save nothing; a cut-off file
yields what it still has.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gputop_probes.record.files import open_regular

_CHUNK_BYTES = 1 << 20
_LARGEST_VALUE = 32 << 20
"""Characters that one value may have; a longer one is a broken file and no event."""
READ_AT_MOST = 8 << 30
"""Characters, unpacked: 13 MB of gzip can hold gigabytes."""
_GZIP_MAGIC = b"\x1f\x8b"

_gap = re.compile(r"[\s,]*").match


class TraceError(ValueError):
    """The file is no trace, or has nothing to analyse; the message is a line for the user."""


class _Torn(Exception):
    """The text ended, or broke, inside a value."""


class EventScanner:
    """Iterates over the ``traceEvents`` of a file, plain or gzipped, an object or a bare array.

    Floats come as their text, since a time in microseconds since boot does not fit a double to the
    nanosecond.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.header: dict[str, Any] = {}
        """The members beside ``traceEvents``, complete once the iteration is over."""
        self.has_events = False
        """Whether there was a list of events, if an empty one."""
        self.torn: str | None = None
        """Why the file ended before its events did; None for a whole file."""
        self._decode = json.JSONDecoder(strict=False, parse_float=str).raw_decode
        self._text, self._at = "", 0
        self._read = self._blank = 0
        self._chunks: Iterator[str] = iter(())

    def __iter__(self) -> Iterator[Any]:
        """Yield the events in the file's order.

        Raises:
            TraceError: the file cannot be read, or is no JSON of the right kind.
        """
        try:
            with os.fdopen(open_regular(self.path), "rb") as file:
                self._chunks = _text_chunks(file)
                yield from self._document()
        except OSError as error:
            raise TraceError(f"cannot read {self.path}: {error.strerror or error}") from None
        except RecursionError:
            self.torn = "the file is damaged: nested too deep"
        except zlib.error:
            self.torn = "the compressed data is damaged"
        except _Torn as reason:
            self.torn = str(reason)

    def _document(self) -> Iterator[Any]:
        opening = self._next_character()
        self._at += 1
        if opening == "[":
            yield from self._array()
        elif opening == "{":
            yield from self._members()
        else:
            raise TraceError(f"{self.path} is no chrome trace: it is not JSON")

    def _members(self) -> Iterator[Any]:
        while self._next_character() != "}":
            if self._text[self._at] != '"':
                raise _Torn("the file is damaged")
            key = self._value()
            if self._next_character() != ":":
                raise _Torn("the file is damaged")
            self._at += 1
            if key == "traceEvents" and self._next_character() == "[":
                self.has_events = True
                self._at += 1
                yield from self._array()
            else:
                self.header[key] = self._value()

    def _array(self) -> Iterator[Any]:
        """The hot loop: one regular expression and one call of the C scanner an event."""
        decode = self._decode
        text, at = self._text, self._at
        while True:
            at = _gap(text, at).end()  # type: ignore[union-attr]
            try:
                event, at = decode(text, at)
            except ValueError:
                self._at = at
                if text.startswith("]", at):
                    self._at += 1
                    return
                if at < len(text) and text[at] != "{":
                    raise _Torn("the file is damaged") from None
                self._fill()
                text, at = self._text, 0
                continue
            yield event

    def _value(self) -> Any:
        """Decode one value; a number or a literal is whole only when something follows it."""
        while True:
            self._next_character()
            try:
                value, end = self._decode(self._text, self._at)
            except ValueError:
                end = len(self._text)
                value = None
            if end < len(self._text):
                self._at = end
                return value
            self._fill()

    def _next_character(self) -> str:
        while True:
            self._at = _gap(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            self._fill()

    def _fill(self) -> None:
        """Read on, and forget what has been decoded."""
        if len(self._text) - self._at > _LARGEST_VALUE:
            raise _Torn("the file is damaged")
        more = next(self._chunks, None)
        if more is None:
            raise _Torn("the file is cut off")
        unread = self._text[self._at :]
        self._read += len(more)
        if unread:
            self._blank = 0
        else:
            self._blank = self._blank + len(more)
        if self._blank > _LARGEST_VALUE:
            raise _Torn("the file is damaged: it goes on in blanks")
        if self._read > READ_AT_MOST:
            raise _Torn(f"it is longer than the {READ_AT_MOST >> 30} GB that are read")
        self._text, self._at = unread + more, 0


def _text_chunks(file: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    for data in _byte_chunks(file):
        yield decoder.decode(data)


def _byte_chunks(file: BinaryIO) -> Iterator[bytes]:
    data = file.read(_CHUNK_BYTES)
    if not data.startswith(_GZIP_MAGIC):
        while data:
            yield data
            data = file.read(_CHUNK_BYTES)
        return
    inflate = zlib.decompressobj(wbits=31)
    while data:
        yield inflate.decompress(data, _CHUNK_BYTES)
        data = inflate.unconsumed_tail
        if inflate.eof:  # several gzip members may follow one another
            data, inflate = inflate.unused_data, zlib.decompressobj(wbits=31)
        data = data or file.read(_CHUNK_BYTES)
