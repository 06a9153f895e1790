"""A Python file as text with exact offsets: it can be written back byte for byte."""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
import warnings
from dataclasses import dataclass, field

_NEWLINE = re.compile(r"\r\n|\r|\n")
LARGEST_BYTES = 2 << 20
"""Of a script; what is larger was made by a program, and would take minutes to read."""


def parsed(text: str | bytes, path: str = "<text>") -> ast.Module:
    """The tree of a file, without Python's own remarks on it.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it cannot be parsed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, path)


class SourceError(ValueError):
    """The file is no Python source for this interpreter; the message is a line for the user."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace ``text[start:end]``; an insertion where both are equal."""

    start: int
    end: int
    new: str


@dataclass(slots=True)
class SourceFile:
    """One file. Offsets are characters of ``text``; those of ``tree`` UTF-8 bytes of a line."""

    path: str
    text: str
    tree: ast.Module
    encoding: str
    bom: bool
    newline: str
    _line_starts: list[int] = field(default_factory=list)

    @classmethod
    def parse(cls, path: str, data: bytes) -> SourceFile:
        """Decode and parse.

        Raises:
            SourceError: wrong encoding or syntax, with its line; or far too large.
        """
        if len(data) > LARGEST_BYTES:
            largest_mib = LARGEST_BYTES >> 20
            raise SourceError(f"{path}: more than {largest_mib} MiB: no script is so large")
        bom = data.startswith(codecs.BOM_UTF8)
        if bom:
            body = data[len(codecs.BOM_UTF8) :]
        else:
            body = data
        try:
            encoding = tokenize.detect_encoding(io.BytesIO(body).readline)[0]
            text = body.decode(encoding)
            tree = parsed(text, path)
        except SyntaxError as error:
            where = ""
            if error.lineno:
                where = f":{error.lineno}"
            raise SourceError(f"{path}{where}: not valid Python here: {error.msg}") from None
        except (UnicodeDecodeError, LookupError, ValueError, RecursionError, MemoryError) as error:
            raise SourceError(
                f"{path}: cannot be read as Python: {error}".splitlines()[0]
            ) from None
        first = _NEWLINE.search(text)
        starts = [0, *(match.end() for match in _NEWLINE.finditer(text))]
        return cls(path, text, tree, encoding, bom, first.group() if first else "\n", starts)

    def encode(self, text: str) -> bytes:
        """Bytes of a changed text in this file's own encoding."""
        return (codecs.BOM_UTF8 if self.bom else b"") + text.encode(self.encoding)

    def offset(self, line: int, column: int) -> int:
        """Characters before a position of ``ast``: line from 1, column in UTF-8 bytes."""
        start = self._line_starts[line - 1]
        part = self.text[start : start + column]
        if part.isascii():
            return start + column
        raw = self.text[start : start + column].encode()[:column]
        return start + len(raw.decode(errors="ignore"))

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """Offset of a node's first character."""
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """Offset behind a node's last character."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.end_lineno, node.end_col_offset)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The node's text."""
        return self.text[self.start(node) : self.end(node)]

    def line_start(self, node: ast.stmt | ast.expr) -> int:
        """Offset of the line that the node begins on."""
        return self._line_starts[node.lineno - 1]

    def indent(self, node: ast.stmt | ast.expr) -> str | None:
        """White space before the node on its line; None where anything else stands there."""
        before = self.text[self.line_start(node) : self.start(node)]
        if not before.strip():
            return before
        return None


def apply(text: str, edits: list[Edit]) -> str:
    """The text with non-overlapping edits made."""
    for edit in sorted(edits, key=lambda change: (change.start, change.end), reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text
