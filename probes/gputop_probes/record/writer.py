"""Appends to a run record. Standard library only; counts what a full disk lost."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from gputop_probes import redact
from gputop_probes.record import layout
from gputop_probes.record.private import make_folder, open_private


class RecordWriter:
    """The one writer of a host's part of a record."""

    def __init__(self, run_dir: Path, host: str):
        """Open for appending; the directories must exist (see ``create``)."""
        self.run_dir = run_dir
        self.host_dir = layout.host_dir(run_dir, host)
        self.write_errors = 0
        self._files: dict[Path, int] = {}

    @classmethod
    def create(cls, run_dir: Path, host: str, manifest: dict[str, Any]) -> RecordWriter:
        """Make the directories and ``run.json``; joins an existing run when another host made it
        first.

        Raises:
            OSError: the directory cannot be made or written.
        """
        for folder in (
            run_dir,
            run_dir / "steps",
            run_dir / "device",
            run_dir / "comm",
            layout.host_dir(run_dir, host),
        ):
            make_folder(folder)
        path = run_dir / layout.MANIFEST_FILE
        if not path.exists():
            tables = {
                name: layout.dtype_description(fields) for name, fields in layout.TABLES.items()
            }
            head = {"format": layout.FORMAT, "version": layout.FORMAT_VERSION, "tables": tables}
            _write_once(path, {**head, **redact.anything(manifest)}, host)
        return cls(run_dir, host)

    def append_rank(self, table: str, rank: int, records: bytes) -> None:
        """Append whole packed records to ``steps``, ``device`` or ``comm`` of a rank."""
        self._append(layout.rank_file(self.run_dir, table, rank), records)

    def append_host(self, table: str, records: bytes) -> None:
        """Append whole packed records to ``gpu``, ``host`` or ``process``."""
        self._append(self.host_dir / f"{table}.bin", records)

    def append_event(self, event: dict[str, Any]) -> None:
        """Append one event without its secrets; it must have ``t_ns`` and ``type``."""
        line = (
            json.dumps(redact.anything(event), separators=(",", ":"), default=str).encode() + b"\n"
        )
        self._append(self.host_dir / layout.EVENTS_FILE, line)

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace ``host.json`` atomically."""
        path = self.host_dir / layout.STATE_FILE
        temporary = path.with_suffix(".tmp")
        try:
            with os.fdopen(
                open_private(temporary, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8"
            ) as file:
                json.dump(redact.anything(state), file, indent=1, default=str)
            temporary.replace(path)
        except OSError:
            self.write_errors += 1

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def __del__(self) -> None:
        """Descriptors are plain numbers, which nothing closes when the writer is dropped."""
        with contextlib.suppress(Exception):
            self.close()

    def _append(self, path: Path, data: bytes) -> None:
        try:
            descriptor = self._files.get(path)
            if descriptor is None:
                descriptor = self._files[path] = open_private(path, os.O_WRONLY | os.O_APPEND)
            written = os.write(descriptor, data)
            if (
                written < len(data)
                # a short write means a full disk: undo it, so that no record in the file is torn
            ):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                self.write_errors += 1
        except OSError:
            self.write_errors += 1


def _write_once(path: Path, content: dict[str, Any], host: str) -> None:
    """Write a JSON file that nobody ever sees in part; one that another host made first stays."""
    temporary = path.with_name(f".{path.name}.{host}.{os.getpid()}")
    try:
        with os.fdopen(open_private(temporary, os.O_WRONLY | os.O_TRUNC), "w") as file:
            json.dump(content, file, indent=1)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
