"""Starts a run: forks the recorder, which starts the command at once, and hands back a
``RunHandle``.

Standard library only, and no more of it than needed: the command should run before anything heavy
is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputop_probes import inherited, lock, procfs, redact, rundir, streams
from gputop_probes.errors import RecordingImpossible, StartError
from gputop_probes.fate import Fate
from gputop_probes.handle import RunHandle
from gputop_probes.inherited import Inherited
from gputop_probes.plan import LaunchPlan
from gputop_probes.record import files, layout
from gputop_probes.run_spec import RunSpec
from gputop_probes.streams import Opened

__all__ = ["RecordingImpossible", "RunHandle", "RunSpec", "StartError", "adopt", "attach", "start"]

_ADOPT_WITHIN_S = 1.0
"""A recorder that was killed may hold its lock for so long."""


_ADOPT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from gputop_probes.recorder import entry
entry.adopt(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
"""


def start(spec: RunSpec, meanwhile: Callable[[], None] | None = None) -> RunHandle:
    """Start the command under a recorder; returns when it runs.

    Signals that come meanwhile are held back. They reach the command once it runs, and this process
    again after ``RunHandle.release_signals``.

    Args:
        spec: what to run.
        meanwhile: called while the recorder gets ready on another core.

    Raises:
        StartError: nothing was started; the record's directory is as before.
        RecordingImpossible: the same, and it was not the command's or the caller's fault.
    """
    if not spec.command:
        raise StartError("no command: say what to run, for example `gputop run python train.py`")
    before = inherited.hold()
    try:
        handle = _start(spec, meanwhile, before)
        handle.take_signals()
    finally:
        before.let_go()
    return handle


def _start(spec: RunSpec, meanwhile: Callable[[], None] | None, before: Inherited) -> RunHandle:
    cwd = _working_directory()
    manifest = {
        "name": spec.name or "",
        "command": redact.command(spec.command),
        "cwd": cwd,
        "created_ns": time.time_ns(),
        "gputop_version": spec.gputop_version,
    }
    run = rundir.prepare(spec.run_dir, spec.command, manifest)
    terminal = _terminal(spec)
    opened = _open_streams(run, spec, terminal)
    fate = Fate()
    plan = LaunchPlan(spec, run, opened, terminal, cwd, before, fate)

    def record(report: int) -> None:
        from gputop_probes.recorder import entry

        entry.record(plan, report)

    try:
        pid, report = _fork(record)
    except StartError:
        _discard(run, opened)
        raise
    _become_subreaper()
    if meanwhile is not None:
        meanwhile()
    try:
        greeting, remainder = _greeting(report, fate)
    except StartError:
        os.close(report)
        os.waitpid(pid, 0)
        _discard(run, opened)
        raise
    opened.streams.close()
    if run.note:
        print(f"gputop: {run.note}", file=sys.stderr)
    return RunHandle(
        run.path,
        run.host,
        run.run_id,
        greeting,
        recorder_pid=pid,
        report=report,
        unread=remainder,
        fate=fate,
        output=opened.output,
        console=opened.console,
    )


def adopt(run_dir: Path) -> bool:
    """See to it that a running command has a recorder: start a new one where the old one is gone.

    Returns:
        True when a new recorder took the run up, False when there was one or the run has ended.

    Raises:
        StartError: the run is not of this machine, or its command is gone too.
    """
    from gputop_probes import runs

    host, state = runs.local_state(run_dir)
    if state.get("state") == "ended" or _recorded(layout.host_dir(run_dir, host), state):
        return False
    runs.require_living_command(run_dir, state)

    def record(report: int) -> None:
        """In a fresh interpreter: the caller may have loaded more than a recorder should hold."""
        os.set_inheritable(report, True)
        root = str(Path(__file__).parents[1])
        os.execv(
            sys.executable,
            [sys.executable, "-c", _ADOPT, root, str(run_dir.absolute()), host, str(report)],
        )

    before = inherited.hold()
    try:
        _, report = _fork(record)
        try:
            _greeting(report, None)
        finally:
            os.close(report)
    finally:
        before.let_go()
    return True


def _recorded(host_dir: Path, state: dict[str, Any]) -> bool:
    """Whether a recorder is at work. One just killed may still hold the lock."""
    from gputop_probes import client

    deadline = time.monotonic() + _ADOPT_WITHIN_S
    path, stream = str(state.get("socket", "")), state.get("transport") == "stream"
    while lock.held(host_dir):
        if (
            client.send_to(path, {"cmd": "ping"}, 0.3, stream=stream)
            or time.monotonic() >= deadline
        ):
            return True
        time.sleep(0.02)
    return False


def attach(run_dir: Path) -> RunHandle:
    """A handle on a run that another process started.

    Raises:
        StartError: the record is not of this machine.
    """
    from gputop_probes import runs

    host, state = runs.local_state(run_dir)
    greeting = {
        key: state.get(key, -1) for key in ("command_pid", "command_pgid", "command_start_ticks")
    }
    greeting["ignored_signals"] = state.get("ignored_signals")
    run_id = str(files.json_or_empty(run_dir / layout.MANIFEST_FILE).get("run_id", ""))
    return RunHandle(
        run_dir, host, run_id, greeting, recorder_pid=int(state.get("recorder_pid", -1))
    )


def _fork(work: Callable[[int], None]) -> tuple[int, int]:
    """Run ``work`` in a fork that never returns. Returns its pid and its report's reading end."""
    try:
        report, ours = os.pipe()
    except OSError as error:
        raise RecordingImpossible(f"cannot start a recorder: {error.strerror}", 1) from None
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
    try:
        pid = os.fork()
    except OSError as error:
        os.close(report)
        os.close(ours)
        raise RecordingImpossible(f"cannot start a recorder: {error.strerror}", 1) from None
    if pid:
        os.close(ours)
        return pid, report
    try:
        os.close(report)
        work(ours)
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _greeting(report: int, fate: Fate | None) -> tuple[dict[str, Any], bytes]:
    """The recorder's word that the command runs, and what it said after it."""
    buffer = b""
    while b"\n" not in buffer:
        part = os.read(report, 4096)
        if not part:
            return _greeting_of_orphan(fate), b""
        buffer += part
    line, _, buffer = buffer.partition(b"\n")
    message = json.loads(line)
    if "error" in message:
        if message.get("impossible"):
            error_type = RecordingImpossible
        else:
            error_type = StartError
        raise error_type(message["error"], message["exit_code"])
    return message, buffer


def _greeting_of_orphan(fate: Fate | None) -> dict[str, Any]:
    """Of the command of a recorder that ended without a word: our child now, if ever."""
    pid = fate.pid() if fate is not None else None
    if pid is None:
        raise RecordingImpossible(
            "the recorder ended before it could start the command: this is a bug in gputop", 1
        )
    stat = procfs.stat(pid)
    return {
        "command_pid": pid,
        "command_pgid": pid,
        "command_start_ticks": stat.start_ticks if stat else 0,
    }


def _become_subreaper() -> None:
    """Inherit the command if the recorder dies, so that its exit code is not lost. Linux only."""
    from gputop_probes import linux

    linux.set_subreaper()


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _open_streams(run: rundir.RunDir, spec: RunSpec, terminal: tuple[int, int] | None) -> Opened:
    """The command's streams, and the keeper of its output, which gets ready beside everything else.

    Raises:
        StartError: a limit of this process or of the machine is in the way.
    """
    try:
        opened = streams.open_streams(layout.host_dir(run.path, run.host), spec, terminal)
    except OSError as error:
        rundir.discard(run)
        raise RecordingImpossible(
            f"cannot open the command's streams: {error.strerror}", 1
        ) from None
    try:
        opened.output.start_keeper()
    except OSError as error:
        _discard(run, opened)
        raise RecordingImpossible(f"cannot start another process: {error.strerror}", 1) from None
    return opened


def _discard(run: rundir.RunDir, opened: Opened) -> None:
    """Take back what was made for a command that did not start."""
    opened.streams.close()
    opened.output.close()
    rundir.discard(run)


def _terminal(spec: RunSpec) -> tuple[int, int] | None:
    shown = not spec.headless or (streams.is_terminal(1) and streams.is_terminal(2))
    if not shown:
        return None
    import shutil

    size = shutil.get_terminal_size()
    return size.columns, size.lines
