"""Takes up a run whose recorder was killed: same record, same socket, same ranks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from gputop_probes import ending, lock, procfs
from gputop_probes.errors import StartError
from gputop_probes.record import files, layout, schema
from gputop_probes.record.fields import Tally
from gputop_probes.record.writer import RecordWriter
from gputop_probes.recorder import retaken
from gputop_probes.recorder.command import WatchedCommand
from gputop_probes.recorder.journal import Journal, first_state
from gputop_probes.recorder.loop import Recorder
from gputop_probes.recorder.output_watch import OutputWatch
from gputop_probes.recorder.ranks import RankAssignment
from gputop_probes.recorder.server import RecorderServer
from gputop_probes.recorder.signals import LeaveRequest


def take_over(run_dir: Path, host: str) -> Recorder:
    """A recorder for a run of this host that has none.

    Raises:
        StartError: another recorder was quicker, or the command has ended.
    """
    host_dir = layout.host_dir(run_dir, host)
    if lock.acquire(host_dir, timeout_s=0.5) is None:
        raise StartError(f"{run_dir.name} has a recorder already")
    state = ending.read_state(host_dir)
    pid, start_ticks = int(state.get("command_pid", -1)), int(state.get("command_start_ticks", 0))
    if not procfs.alive(pid, start_ticks):
        raise StartError(
            f"the command of {run_dir.name} has ended: "
            f"`gputop open {run_dir.name}` shows its record"
        )
    offset_ns = int(state.get("clock_offset_ns") or time.time_ns() - time.monotonic_ns())
    mend(run_dir, host_dir)
    fresh = first_state(host, str(state.get("run_id", "")), offset_ns)
    state.update(recorder_pid=fresh["recorder_pid"], boot_id=fresh["boot_id"], state="running")
    journal = Journal(RecordWriter(run_dir, host), offset_ns, state)
    server = RecorderServer(Path(state["socket"]))
    journal.save_state()
    ranks = RankAssignment()
    restore_ranks(ranks, host_dir)
    recorder = Recorder(
        journal,
        server,
        ranks=ranks,
        command=WatchedCommand(pid, int(state["command_pgid"]), start_ticks, child=False),
        leave_request=LeaveRequest(),
    )
    output = retaken.find_output(host_dir, state, pid)
    if output is not None:
        journal.save_state(output=output.describe())
        OutputWatch(output, journal).attach_to(recorder)
    return recorder


def mend(run_dir: Path, host_dir: Path) -> None:
    """Cut torn last records and lines, so that what comes next lies where readers expect it."""
    sizes = {}
    for name, fields in layout.TABLES.items():
        sizes[name] = sum(_WIDTH[code] for _, code in fields)
    for table in ("gpu", "host", "process"):
        _cut(host_dir / f"{table}.bin", sizes[table])
    for table in ("steps", "device", "comm"):
        for _, path in files.rank_files(run_dir / table):
            _cut(path, sizes[table])
    ending.truncate_torn_line(host_dir / layout.EVENTS_FILE)


def restore_ranks(ranks: RankAssignment, host_dir: Path) -> None:
    """Process of each rank, from the events written so far."""
    for event in _events(host_dir / layout.EVENTS_FILE):
        if event.get("type") == "rank_start":
            ranks.restore(event["rank"], event.get("pid", -1), event.get("attempt", 0))


_WIDTH = {"q": 8, "Q": 8, "d": 8, "i": 4, "I": 4, "f": 4}


def _cut(path: Path, record_bytes: int) -> None:
    try:
        torn = path.stat().st_size % record_bytes
        if torn:
            with path.open("rb+") as file:
                file.truncate(path.stat().st_size - torn)
    except OSError:
        pass


def _events(path: Path) -> list[dict[str, Any]]:
    events = []
    try:
        with os.fdopen(files.open_regular(path), "rb") as file:
            for line in iter(lambda: file.readline(files.LINE_BYTES), b""):
                if b'"rank_start"' in line:
                    events += _event(line)
    except OSError:
        pass
    return events


def _event(line: bytes) -> list[dict[str, Any]]:
    """The event of a line, where it is a sound one."""
    try:
        fields = files.parse_json(line)
    except ValueError:
        return []
    event = None
    if isinstance(fields, dict):
        event = schema.event(fields, Tally())
    if event:
        return [event]
    return []
