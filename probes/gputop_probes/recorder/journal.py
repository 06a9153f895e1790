"""What the recorder itself puts into the record: events with its clock, ``host.json``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from gputop_probes import procfs
from gputop_probes.record.writer import RecordWriter

_LOGGED_ERRORS = 100


class Journal:
    """Events, state and inner errors of one recorder."""

    def __init__(self, writer: RecordWriter, clock_offset_ns: int, state: dict[str, Any]):
        self.writer = writer
        self.clock_offset_ns = clock_offset_ns
        self.state = state
        self.inner_errors = 0

    def now_ns(self) -> int:
        """Time since the epoch on the clock that all processes of this host's run share."""
        return time.monotonic_ns() + self.clock_offset_ns

    def event(self, event_type: str, **fields: Any) -> None:
        """Append an event of the recorder."""
        self.writer.append_event({"t_ns": self.now_ns(), "type": event_type, **fields})

    def save_state(self, **changes: Any) -> None:
        """Replace ``host.json``."""
        self.state.update(
            changes, write_errors=self.writer.write_errors, recorder_errors=self.inner_errors
        )
        self.writer.write_state(self.state)

    def guard(self, where: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``work``; an exception of it is counted and logged."""
        try:
            return work(*arguments)
        except Exception:
            self.failed(where)
            return None

    def failed(self, where: str) -> None:
        """Count an exception of ours and say it in ``recorder.log``; the recorder goes on."""
        self.inner_errors += 1
        if self.inner_errors > _LOGGED_ERRORS:
            return
        import traceback

        text = f"{time.strftime('%H:%M:%S')} {where}\n{traceback.format_exc()}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            log = os.open(self.writer.host_dir / "recorder.log", flags, 0o600)
            try:
                os.write(log, text.encode(errors="replace"))
            finally:
                os.close(log)
        except OSError:
            pass


def first_state(host: str, run_id: str, clock_offset_ns: int) -> dict[str, Any]:
    """``host.json`` before the command starts (fields of ``manifest.HostState`` and a few more)."""
    return {
        "host": host,
        "run_id": run_id,
        "state": "starting",
        "recorder_pid": os.getpid(),
        "clock_offset_ns": clock_offset_ns,
        "boot_id": procfs.boot_id(),
        "cpu_count": usable_cores(),
        "memory_total_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "started_ns": time.monotonic_ns() + clock_offset_ns,
    }


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
