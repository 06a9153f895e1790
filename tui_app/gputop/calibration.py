"""What runs and probes measured against what was estimated: one JSON line per model and kind of
setup, newest last.

Kept in ``$XDG_STATE_HOME/gputop/calibration.jsonl``. A run replaces the line of its model and kind,
under a lock and by renaming, so that runs that end at the same time lose nothing and a reader never
sees half a file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gputop_probes.locations import xdg_directory

KEPT = 500
"""Lines at most; the oldest go first."""

Record = dict[str, Any]


def path() -> Path:
    """``$XDG_STATE_HOME/gputop/calibration.jsonl``, else below ``~/.local/state``."""
    return xdg_directory("XDG_STATE_HOME", ".local", "state") / "calibration.jsonl"


def recall(model: str | None = None) -> list[Record]:
    """What is known, of a model or all, oldest first; nothing if not readable. Never raises."""
    try:
        lines = path().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    records = [record for line in lines if (record := _parse(line)) is not None]
    return [record for record in records if model is None or record["model"] == model]


def remember(record: Record) -> None:
    """Keep a record, in place of an older one of its model and kind.

    Args:
        record: ``model``, ``kind`` and ``ratio`` (measured over estimated) at least.

    Raises:
        OSError: the folder cannot be written.
    """
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file.with_suffix(".lock")):
        key = record["model"], record["kind"]
        remaining = [record_ for record_ in recall() if (record_["model"], record_["kind"]) != key]
        fresh = file.with_suffix(f".{os.getpid()}.new")
        fresh.write_text(
            "".join(json.dumps(record_) + "\n" for record_ in [*remaining, record][-KEPT:]),
            encoding="utf-8",
        )
        fresh.replace(file)


def _parse(line: str) -> Record | None:
    try:
        entry = json.loads(line)
        if entry["model"] and entry["kind"] and float(entry["ratio"]) > 0:
            return entry
        return None
    except (ValueError, TypeError, KeyError):
        return None


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
