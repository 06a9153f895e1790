"""Writes the end of a run that has no recorder any more."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from gputop_probes import lock
from gputop_probes.record import files, layout
from gputop_probes.record.writer import RecordWriter


def read_state(host_dir: Path) -> dict[str, Any]:
    """``host.json`` as a dictionary; empty if it cannot be read."""
    return files.json_or_empty(host_dir / layout.STATE_FILE)


def record_exit(run_dir: Path, exit_code: int, *, host_dir: Path | None = None) -> None:
    """Write a command's exit code into the record, once no recorder is at work on it any more.

    Args:
        run_dir: the run's directory.
        exit_code: 128+n after signal n.
        host_dir: which host's part; None: this machine's.
    """
    if host_dir is None:
        from gputop_probes import locations

        host_dir = layout.host_dir(run_dir, locations.host_name())
    try:
        lock_file = lock.acquire(host_dir, timeout_s=3.0)
        state = read_state(host_dir)
        if not state:
            return
        _write_end(run_dir, host_dir, state, exit_code)
        if lock_file is not None and state.get("socket"):
            Path(state["socket"]).unlink(missing_ok=True)
    except OSError:
        return
    if lock_file is not None:
        os.close(lock_file)


def truncate_torn_line(path: Path) -> None:
    """Cut a last line that was never finished."""
    try:
        with path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - (1 << 20))
            file.seek(start)
            tail = file.read()
            if tail and not tail.endswith(b"\n"):
                file.truncate(start + tail.rfind(b"\n") + 1)
    except OSError:
        pass


def _write_end(run_dir: Path, host_dir: Path, state: dict[str, Any], exit_code: int) -> None:
    now_ns = time.time_ns()
    writer = RecordWriter(run_dir, host_dir.name)
    if state.get("state") != "ended":
        truncate_torn_line(host_dir / layout.EVENTS_FILE)
        seconds = (now_ns - int(state.get("started_ns", now_ns))) / 1e9
        number = exit_code - 128 if exit_code > 128 else None
        end = {
            "type": "run_end",
            "exit_code": exit_code,
            "signal": number,
            "duration_s": round(seconds, 3),
        }
        writer.append_event({"t_ns": now_ns, **end})
        state = {**state, "state": "ended", "ended_ns": now_ns, "signal": number}
    writer.write_state({**state, "exit_code": exit_code})
    writer.close()
