"""Entry of the forked process: bind the socket, start the command at once, then record."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop_agent import wire
from gputop_probes import locations, lock, procfs, redact
from gputop_probes.errors import StartError
from gputop_probes.record import files, layout
from gputop_probes.record.private import open_private
from gputop_probes.record.writer import RecordWriter
from gputop_probes.recorder import command as commands
from gputop_probes.recorder import signals
from gputop_probes.recorder.command import WatchedCommand
from gputop_probes.recorder.environment import child_environment
from gputop_probes.recorder.journal import Journal, first_state
from gputop_probes.recorder.server import RecorderServer
from gputop_probes.recorder.signals import LeaveRequest

if TYPE_CHECKING:
    from gputop_probes.plan import LaunchPlan
    from gputop_probes.recorder.loop import Recorder


def record(plan: LaunchPlan, report: int) -> None:
    """Start the plan's command and record it to its end.

    Args:
        plan: what to run, and the prepared run directory.
        report: descriptor for JSON lines to the front: the start (or why not), and the exit code.
    """
    os.setsid()
    signals.drop_pending()
    try:
        begun = _begin(plan, report)
    except StartError as error:
        _say(report, {"error": str(error), "exit_code": error.exit_code})
        return
    except OSError as error:
        if plan.fate.pid() is not None:
            # it was started all the same, and must not be started twice
            os._exit(1)
        problem = f"cannot record in {plan.run.path}: {error}"
        _say(report, {"error": problem, "exit_code": 2, "impossible": True})
        return
    # from here on the command runs: what fails of ours is no word about it
    recorder = _take_up(plan, begun)
    _live(recorder, plan.spec.hang_s, words=plan.spec.command, cwd=plan.cwd, report=report)


def adopt(run_dir: Path, host: str, report: int) -> None:
    """Take up a run whose command lives and whose recorder is gone."""
    from gputop_probes.recorder import takeover

    os.setsid()
    signals.drop_pending()
    try:
        recorder = takeover.take_over(run_dir, host)
    except (StartError, OSError) as error:
        _say(report, {"error": str(error), "exit_code": 2})
        return
    signals.unblock()
    _say(report, _greeting(recorder.command))
    _let_go(recorder.journal.writer.host_dir)
    recorder.journal.event("recorder_start", adopted=True)
    manifest = files.json_or_empty(run_dir / layout.MANIFEST_FILE)
    hang_s = recorder.journal.state.get("hang_s")
    _live(
        recorder,
        hang_s,
        words=manifest.get("command", []),
        cwd=manifest.get("cwd", ""),
        report=None,
    )


def follow(words: list[str]) -> None:
    """Record a process that runs already, from a process of our own that nobody has for a child.

    Args:
        words: descriptor for the report; the run's directory, host and id; the process to follow;
            epoch time less monotonic time in nanoseconds.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    report = int(words[0])
    try:
        recorder = _following(Path(words[1]), words[2], words[3], int(words[4]), int(words[5]))
    except (StartError, OSError) as error:
        _say(report, {"error": str(error)})
        return
    server = recorder.server
    _say(report, {"socket": str(server.path), "stream": server.stream})
    os.close(report)
    _let_go(recorder.journal.writer.host_dir)
    manifest = files.json_or_empty(Path(words[1]) / layout.MANIFEST_FILE)
    command, cwd = manifest.get("command", []), manifest.get("cwd", "")
    recorder.journal.event("run_start", command=command, pid=recorder.command.pid)
    recorder.journal.event("recorder_start", adopted=False)
    _live(recorder, None, words=command, cwd=cwd, report=None)


def _following(run_dir: Path, host: str, run_id: str, pid: int, clock_offset_ns: int) -> Recorder:
    """A recorder of a run whose command is a process that began without us.

    Raises:
        StartError, OSError: there can be none.
    """
    from gputop_probes.recorder.loop import Recorder
    from gputop_probes.recorder.ranks import RankAssignment

    if lock.acquire(layout.host_dir(run_dir, host)) is None:
        raise StartError(f"{run_dir} is being recorded by another gputop")
    stat = procfs.stat(pid)
    if stat is None:
        raise StartError("the process that was to be followed has ended")
    command = WatchedCommand(pid, stat.pgid, stat.start_ticks, child=False, followed=True)
    server = _open_server(run_id)
    journal = Journal(
        RecordWriter(run_dir, host), clock_offset_ns, first_state(host, run_id, clock_offset_ns)
    )
    journal.save_state(
        socket=str(server.path),
        transport="stream" if server.stream else "seqpacket",
        state="running",
        command_pid=pid,
        command_pgid=command.pgid,
        command_start_ticks=command.start_ticks,
    )
    return Recorder(
        journal, server, ranks=RankAssignment(), command=command, leave_request=LeaveRequest()
    )


class _Begun(NamedTuple):
    """Means to record a started command."""

    journal: Journal
    server: RecorderServer
    command: WatchedCommand
    leave_request: LeaveRequest


def _begin(plan: LaunchPlan, report: int) -> _Begun:
    """Start the command and tell the front.

    Raises:
        StartError, OSError: it was not started, and nothing is left behind.
    """
    run = plan.run
    if lock.acquire(layout.host_dir(run.path, run.host)) is None:
        raise StartError(
            f"{run.path} is being recorded by another gputop: give --run-dir a new directory"
        )
    server = _open_server(run.run_id)
    try:
        return _begin_with(server, plan, report)
    except BaseException:
        server.close()
        raise


def _begin_with(server: RecorderServer, plan: LaunchPlan, report: int) -> _Begun:
    run, spec = plan.run, plan.spec
    clock_offset_ns = time.time_ns() - time.monotonic_ns()
    state = first_state(run.host, run.run_id, clock_offset_ns)
    state.update(
        socket=str(server.path),
        transport="stream" if server.stream else "seqpacket",
        pty=spec.pty,
        hang_s=spec.hang_s,
        ignored_signals=plan.inherited.ignored,
    )
    journal = Journal(RecordWriter(run.path, run.host), clock_offset_ns, state)
    environment = child_environment(
        dict(os.environ),
        server.path,
        run_id=run.run_id,
        clock_offset_ns=clock_offset_ns,
        terminal=plan.terminal,
    )
    if environment.get(wire.ENV_MEMORY_HISTORY):
        environment[wire.ENV_MEMORY_HISTORY] = str(run.path.absolute() / "memory")
    plan.opened.output.hand_to_recorder()
    state.update(output=plan.opened.output.describe())
    leave_request = LeaveRequest()
    journal.save_state()
    command = commands.start(
        spec.command,
        environment,
        streams=plan.opened.streams,
        inherited=plan.inherited,
        fate=plan.fate,
    )
    if not _say(report, {**_greeting(command), "ignored_signals": plan.inherited.ignored}):
        os._exit(1)  # the front finds the command by itself
    return _Begun(journal, server, command, leave_request)


def _take_up(plan: LaunchPlan, begun: _Begun) -> Recorder:
    """Record a command that runs. What takes time may be loaded from here on."""
    journal, command = begun.journal, begun.command
    signals.unblock()
    journal.guard("let go", _let_go, journal.writer.host_dir)
    journal.guard("streams", plan.opened.streams.close)
    journal.event("run_start", command=redact.command(plan.spec.command), pid=command.pid)
    journal.event("recorder_start", adopted=False)
    journal.save_state(
        state="running",
        command_pid=command.pid,
        command_pgid=command.pgid,
        command_start_ticks=command.start_ticks,
        started_ns=journal.now_ns(),
    )
    from gputop_probes.recorder.loop import Recorder
    from gputop_probes.recorder.output_watch import OutputWatch
    from gputop_probes.recorder.ranks import RankAssignment

    recorder = Recorder(
        journal,
        begun.server,
        ranks=RankAssignment(),
        command=command,
        leave_request=begun.leave_request,
    )
    journal.guard("output", OutputWatch(plan.opened.output, journal).attach_to, recorder)
    return recorder


def _open_server(run_id: str) -> RecorderServer:
    """Listen at the first place that works; even a full disk leaves one of them.

    Raises:
        OSError: none does.
    """
    problem = OSError("no place for a socket")
    for path in locations.socket_paths(run_id):
        try:
            return RecorderServer(path)
        except OSError as error:
            problem = error
    raise problem


def _greeting(command: WatchedCommand) -> dict[str, Any]:
    return {
        "command_pid": command.pid,
        "command_pgid": command.pgid,
        "command_start_ticks": command.start_ticks,
    }


def _live(
    recorder: Recorder, hang_s: float | None, words: list[str], cwd: str, report: int | None
) -> None:
    """Everything that is not needed to start the command is loaded now."""
    recorder.guard("duties", _install_duties, recorder, hang_s, words, cwd)
    ended = recorder.run()
    if report is not None and ended:
        _say(report, {"exit_code": recorder.journal.state.get("exit_code")})


def _install_duties(recorder: Recorder, hang_s: float | None, words: list[str], cwd: str) -> None:
    from gputop_probes.recorder import duties

    duties.install(recorder, hang_s, words, cwd)


def _let_go(host_dir: Path) -> None:
    """Let go of the front's terminal and pipes; our own words go to ``recorder.log``."""
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    try:
        log = open_private(host_dir / "recorder.log", os.O_WRONLY | os.O_APPEND)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)
    try:
        Path("/proc/self/comm").write_text("gputop-recorder")
    except OSError:
        pass


def _say(report: int, message: dict[str, Any]) -> bool:
    """One line to the front, which may be gone. Returns whether it was said."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    data = json.dumps(message).encode() + b"\n"
    try:
        return os.write(report, data) == len(data)
    except BrokenPipeError:
        return True
    except OSError:
        return False
    finally:
        signal.signal(signal.SIGPIPE, before)
