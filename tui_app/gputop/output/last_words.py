"""Last words of a command that failed: its traceback, or the end of its output."""

from __future__ import annotations

from pathlib import Path

from gputop.output.ansi import resolve_text
from gputop_probes.record.files import tail_text
from gputop_probes.record.layout import OUTPUT_FILES

READ_BYTES = 64 * 1024
TRACEBACK_LINES, LINES = 60, 10
_BEGINS = "Traceback (most recent call last)"


def last_words(host_dir: Path) -> list[str]:
    """Last lines of a host's command, without control characters; empty where unreadable."""
    for name in OUTPUT_FILES:
        lines = _tail(host_dir / name)
        if lines:
            return lines
    return []


def _tail(path: Path) -> list[str]:
    text = tail_text(path, READ_BYTES).rstrip("\0\n")
    if not text:
        return []
    lines = [resolve_text(line).rstrip() for line in text.split("\n")]
    near = max(0, len(lines) - TRACEBACK_LINES)
    begins = []
    for index, line in enumerate(lines):
        if index >= near and _BEGINS in line:
            begins.append(index)
    if begins:
        return lines[begins[0] :]
    return [line for line in lines[-LINES:] if line]
