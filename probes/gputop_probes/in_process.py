"""A recorder for a process that was not started by gputop: a notebook's kernel, a script of a
managed job.

The recorder is a detached process. It ends with the process that it follows, or when it is told to.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from gputop_agent import wire
from gputop_probes import client, locations, procfs, redact, rundir
from gputop_probes.errors import StartError
from gputop_probes.record import layout
from gputop_probes.record.files import read_json
from gputop_probes.record.private import open_private
from gputop_probes.recorder.environment import AGENT_DIR

_SIBLINGS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
"""Set where a launcher starts several processes on a host: these share a recorder."""
_START_S = 20.0
_END_S = 5.0
_MAIN = """
import sys
sys.path.insert(0, sys.argv[1])
from gputop_probes.recorder import entry
entry.follow(sys.argv[2:])
"""


class Joined(NamedTuple):
    """A run that this process takes part in."""

    run_dir: Path
    run_id: str
    socket: str
    stream: bool
    clock_offset_ns: int
    shared: bool
    """With other ranks of a launcher: the run ends with that."""

    def put_into(self, environment: MutableMapping[str, str]) -> None:
        """Set what the guest reads of its environment, here and in processes started from here."""
        environment[wire.ENV_SOCKET] = self.socket
        environment[wire.ENV_RUN_ID] = self.run_id
        environment[wire.ENV_AGENT_DIR] = str(AGENT_DIR)
        environment[wire.ENV_CLOCK_OFFSET] = str(self.clock_offset_ns)

    def take_out_of(self, environment: MutableMapping[str, str]) -> None:
        """Take the way to the recorder out again; the clock stays as it is."""
        for name in (wire.ENV_SOCKET, wire.ENV_RUN_ID, wire.ENV_AGENT_DIR):
            environment.pop(name, None)


def join(words: list[str], run_dir: Path | None, name: str, version: str) -> Joined:
    """Start a recorder for this process, or find the one that a process beside it has started.

    Args:
        words: the command, for the record.
        run_dir: where the record goes; None: a new directory under the runs directory.
        name: what people call the run; may be empty.
        version: gputop's.

    Raises:
        StartError: there is no recorder, and why.
    """
    launcher = _launcher()
    if launcher is None:
        return _start(words, run_dir, (name, version), os.getpid())
    with _meeting(launcher) as meeting:
        joined = _found(meeting)
        if joined is None:
            joined = _start(words, run_dir, (name, version), launcher)
            meeting.write_text(json.dumps({**joined._asdict(), "run_dir": str(joined.run_dir)}))
        return joined


def finish(joined: Joined, exit_code: int) -> None:
    """End the run although its process lives on, and wait until its record is whole.

    One that other ranks share goes on until their launcher ends.
    """
    if joined.shared:
        return
    request = {"cmd": "end", "exit_code": exit_code}
    client.send_to(joined.socket, request, stream=joined.stream)
    state = layout.host_dir(joined.run_dir, locations.host_name()) / layout.STATE_FILE
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            if read_json(state).get("state") == "ended":
                return
        time.sleep(0.02)


def _launcher() -> int | None:
    """The parent, if it started several ranks on this host; None for a process of its own."""
    parent = os.getppid()
    if parent > 1 and any(os.environ.get(name) for name in _SIBLINGS):
        return parent
    return None


@contextlib.contextmanager
def _meeting(launcher: int) -> Iterator[Path]:
    """A file of this launcher's ranks, locked."""
    launcher_stat = procfs.stat(launcher)
    start_ticks = launcher_stat.start_ticks if launcher_stat else 0
    root = next(iter(locations.new_fallback_roots()), None)
    if root is None:
        raise StartError("no folder of this user's where the ranks could meet")
    _sweep(root.parent)
    meeting_file = root.parent / f"ranks-{launcher}-{start_ticks}.json"
    lock = open_private(meeting_file.with_suffix(".lock"), os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield meeting_file
    finally:
        os.close(lock)


def _sweep(folder: Path) -> None:
    """Remove what the ranks of launchers left that are gone."""
    for path in folder.glob("ranks-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not procfs.alive(int(pid)):
            path.unlink(missing_ok=True)


def _found(place: Path) -> Joined | None:
    try:
        fields = read_json(place)
        joined = Joined(**{**fields, "run_dir": Path(fields["run_dir"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if client.send_to(joined.socket, {"cmd": "ping"}, stream=joined.stream) is None:
        return None
    return joined


def _start(
    words: list[str], run_dir: Path | None, titles: tuple[str, str], followed: int
) -> Joined:
    if not sys.executable:
        raise StartError("this Python does not know its own interpreter")
    manifest = {
        "name": titles[0],
        "command": redact.command(words),
        "cwd": locations.working_directory(),
        "created_ns": time.time_ns(),
        "gputop_version": titles[1],
    }
    run = rundir.prepare(run_dir, words, manifest)
    offset_ns = _clock_offset_ns()
    try:
        state = _start_recorder([str(run.path), run.host, run.run_id, followed, offset_ns])
    except (OSError, ValueError, StartError) as error:
        rundir.discard(run)
        raise StartError(f"cannot start a recorder: {error}") from None
    shared = followed != os.getpid()
    return Joined(
        run.path,
        run.run_id,
        state["socket"],
        stream=state["stream"],
        clock_offset_ns=offset_ns,
        shared=shared,
    )


def _start_recorder(words: list[Any]) -> dict[str, Any]:
    """Where the recorder listens. It is nobody's child that a script could wait for by chance."""
    reading, writing = os.pipe()
    command = [sys.executable, "-c", _MAIN, str(Path(__file__).parents[1]), str(writing)]
    try:
        process = subprocess.Popen(
            [*command, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(writing,),
        )
    finally:
        os.close(writing)
    with os.fdopen(reading) as report:
        line = report.readline()
    process.wait(_START_S)
    message = json.loads(line or '{"error": "it ended without a word"}')
    if "error" in message:
        raise StartError(message["error"])
    return message


def _clock_offset_ns() -> int:
    """Of an earlier run of this process, whose guest has taken it over; else a new one."""
    text = os.environ.get(wire.ENV_CLOCK_OFFSET, "")
    if text.isdigit():
        return int(text)
    return time.time_ns() - time.monotonic_ns()
