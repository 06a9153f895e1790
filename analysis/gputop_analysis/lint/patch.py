"""Makes the mechanical edits: as bytes, as a patch for ``git apply``, or in the file."""

from __future__ import annotations

import difflib
import os
import re
import stat
import tempfile
from pathlib import Path

from gputop_analysis.lint.check import remarks_of
from gputop_analysis.lint.source import Edit, SourceFile, apply, parsed

_MAX_ROUNDS = 20
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")


def fixed(path: str, data: bytes, rules: frozenset[str] | None = None) -> bytes:
    """The file with every edit made that its remarks have; the same bytes where there is none.

    Edits that meet in one place wait for the next round, when the file has been read anew. An edit
    after which the file would be no Python is left out.

    Raises:
        SourceError: the file is no Python.
    """
    for _ in range(_MAX_ROUNDS):
        source = SourceFile.parse(path, data)
        changed = _one_round(source, rules)
        if changed == data:
            break
        data = changed
    return data


def _one_round(source: SourceFile, rules: frozenset[str] | None) -> bytes:
    chosen: list[Edit] = []
    for remark in remarks_of(source):
        edits = list(remark.edits)
        wanted = rules is None or remark.rule in rules
        if edits and wanted and not _meet(chosen, edits) and _parses(source, [*chosen, *edits]):
            chosen += edits
    return source.encode(apply(source.text, chosen))


def _meet(some: list[Edit], further: list[Edit]) -> bool:
    return any(a.start <= b.end and b.start <= a.end for a in some for b in further)


def _parses(source: SourceFile, edits: list[Edit]) -> bool:
    try:
        parsed(apply(source.text, edits))
    except (SyntaxError, ValueError):
        return False
    return True


def diff(path: str, before: bytes, after: bytes) -> bytes:
    """A unified diff in the file's own bytes; empty where nothing changed.

    ``path`` is relative to where the patch is to be applied. A file without a newline at its end is
    marked as git does.
    """
    old, new = (_LINE.findall(data) for data in (before, after))
    name = path.replace(os.sep, "/")
    # as git writes it, so that the name's end is known
    tail = ""
    if " " in name:
        tail = "\t"
    names = (f"a/{name}{tail}".encode(), f"b/{name}{tail}".encode())
    lines = difflib.diff_bytes(difflib.unified_diff, old, new, *names, lineterm=b"\n")
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in lines
    )


def write(path: Path, data: bytes) -> None:
    """Replace the file in one step; its mode stays, and a symbolic link stays one.

    Raises:
        OSError: it cannot be written; the old content is still there.
    """
    target = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
