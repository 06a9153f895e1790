"""The front's part of a run: waits for the command, passes signals on, outlives its recorder."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from pathlib import Path
from typing import Any

from gputop_probes import client, ending, procfs, stop
from gputop_probes.fate import Fate
from gputop_probes.output import OutputHolder
from gputop_probes.record import layout
from gputop_probes.relay import Relay
from gputop_probes.streams import Console

UNKNOWN_EXIT = 1
"""Exit code when the command has ended and nobody could learn how."""
_POLL_S = 0.2
_GRACE_S = 3.0


class RunHandle:
    """A run that was started or attached to."""

    def __init__(
        self,
        run_dir: Path,
        host: str,
        run_id: str,
        greeting: dict[str, Any],
        *,
        recorder_pid: int,
        report: int | None = None,
        unread: bytes = b"",
        fate: Fate | None = None,
        output: OutputHolder | None = None,
        console: Console | None = None,
    ):
        self.run_dir = run_dir
        self.host_dir = layout.host_dir(run_dir, host)
        self.run_id = run_id
        self.pid: int = greeting["command_pid"]
        self.pgid: int = greeting["command_pgid"]
        self.recorder_pid = recorder_pid
        self._suspended: list[int] = []
        self.console = console
        """Our end of the command's pseudo-terminal, if it was given one."""
        self._fate = fate
        self._output = output
        self.stopped_by_us = False
        self.stopped_by = ""
        """Who asked first."""
        """Whether this process asked the command to end."""
        self._start_ticks: int = greeting["command_start_ticks"]
        self._report = report
        self.ours = report is not None
        """Whether this process started the run."""
        self._unread = unread
        self._exit_code: int | None = None
        self._gone_since: float | None = None
        self._looking = threading.Lock()
        self._ignored: tuple[int, ...] = tuple(greeting.get("ignored_signals") or ())
        self._escalation = stop.Escalation(self._ignored)
        self._relay = Relay(self, self._ignored)

    def take_signals(self) -> None:
        """Pass signals on to the command from now on (see ``Relay``)."""
        self._relay.install()

    def release_signals(self) -> None:
        """Leave signals to whoever had them before."""
        self._relay.restore()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the command's end, for at most ``timeout`` seconds (None: for ever).

        Returns:
            Its exit code, 128+n after signal n; None while it runs; ``UNKNOWN_EXIT`` if nobody
            could learn it.
        """
        if timeout is None:
            deadline = float("inf")
        else:
            deadline = time.monotonic() + timeout
        while True:
            self.tend_output()
            self._find_out()
            seconds_left = deadline - time.monotonic()
            if self._exit_code is not None:
                self._reap_recorder()
            if self._exit_code is not None or seconds_left <= 0:
                return self._exit_code
            self._sleep(min(seconds_left, _POLL_S))

    def show_output(self) -> None:
        """Show the command's output on our streams from now on, if it is not shown there yet."""
        if self._output is not None:
            self._output.show()

    def pass_on_output(self) -> None:
        """Wait until all the command's output is on our streams; at its end, before our words."""
        if self._output is not None:
            self._output.settle(passed_on=True)

    def unfinished_line(self) -> bool:
        """Whether the output on our stderr ended within a line."""
        if self._output is not None:
            last = self._output.last_byte(2)
        else:
            last = None
        return last is not None and last != ord("\n")

    def interrupt(self) -> int:
        """One Ctrl-C: SIGINT to the command's group, within 3 s SIGTERM, then SIGKILL to every
        process of the run.

        A signal that the command was started to ignore is passed over.

        Returns:
            The signal that was sent.
        """
        number = self._escalation.next_signal()
        self._stop_with(number)
        return number

    def stop(self, by: str = "user", why: str = "") -> None:
        """Ask the command to end, with SIGINT to its group, or SIGTERM where SIGINT is ignored.

        ``by`` and ``why`` are what the record says of it.
        """
        self._stop_with(stop.Escalation(self._ignored).next_signal(), by, why)

    def kill(self) -> None:
        """SIGKILL to every process of the run."""
        self._stop_with(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Pass a signal on to the command's group."""
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL):
            self._stop_with(number, "signal")
        elif self._runs():
            stop.deliver(number, self.pgid, self.run_id)

    def suspend(self) -> None:
        """Stop every process of the run for a while, as Ctrl-Z does to a foreground job."""
        if self._runs():
            self._suspended = stop.suspend(self.run_id, self.pgid)
            self._tell({"cmd": "suspended", "monotonic_ns": time.monotonic_ns()})

    @property
    def suspended(self) -> list[int]:
        """Processes that ``suspend`` stopped."""
        return list(self._suspended)

    def resume(self) -> None:
        """Let the processes go on that ``suspend`` stopped."""
        suspended, self._suspended = self._suspended, []
        if suspended:
            # its steps must not be read before this
            self._tell({"cmd": "resumed", "monotonic_ns": time.monotonic_ns()}, answer=True)
            stop.kill_all(suspended, signal.SIGCONT)

    def _stop_with(self, number: int, by: str = "user", why: str = "") -> None:
        """Tell the recorder first why the command ends; the signal needs no recorder."""
        if not self._runs():
            return
        self.stopped_by_us = True
        self.stopped_by = self.stopped_by or by
        try:
            self._tell({"cmd": "stopping", "signal": int(number), "by": by, "why": why})
        finally:
            stop.deliver(number, self.pgid, self.run_id)

    def _tell(self, note: dict[str, Any], answer: bool = False) -> None:
        """Say something to the recorder, which may be gone."""
        state = ending.read_state(self.host_dir)
        stream = state.get("transport") == "stream"
        client.send_to(
            str(state.get("socket", "")), note, 0.5 if answer else 0.2, stream=stream, answer=answer
        )

    def _runs(self) -> bool:
        """Whether the command can be signalled: safe in a signal handler, anywhere."""
        return self._exit_code is None and procfs.alive(self.pid, self._start_ticks)

    def _find_out(self) -> None:
        """Look for the exit code, unless a signal or another thread came while somebody does."""
        if self._exit_code is None and self._looking.acquire(blocking=False):
            try:
                if self._report is not None:
                    self._exit_code = self._hear()
                else:
                    self._exit_code = self._look()
            finally:
                self._looking.release()

    def tend_output(self) -> None:
        """See to it that the command's output is carried on; ``wait`` does so too."""
        if self._output is not None:
            try:
                self._output.tend()
            except OSError:  # no process to be had just now
                pass

    def _sleep(self, seconds: float) -> None:
        report = self._report
        if report is None:
            time.sleep(min(seconds, 0.05))
            return
        try:
            select.select([report], [], [], seconds)
        except (OSError, ValueError):  # another thread has read its end and closed it
            pass

    def _hear(self) -> int | None:
        """Read the recorder's report; its end without a word means that the recorder is gone."""
        assert self._report is not None
        while b"\n" not in self._unread:
            if not select.select([self._report], [], [], 0)[0]:
                return self._look_past_recorder()
            part = os.read(self._report, 4096)
            if not part:
                self._forget_recorder()
                return self._look()
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        self._forget_recorder()
        code = json.loads(line).get("exit_code")
        status = self._fate.wait_status() if self._fate is not None else None
        if code is None and status is not None:
            code = _exit_code(status)
        return UNKNOWN_EXIT if code is None else code

    def _look_past_recorder(self) -> int | None:
        """A recorder stopped, or on a dead disk, must not make us wait for an ended command."""
        status = procfs.zombie_wait_status(self.pid)
        now_s = time.monotonic()
        if status is None:
            self._gone_since = None
            return None
        self._gone_since = self._gone_since or now_s
        if now_s - self._gone_since > _GRACE_S:
            return _exit_code(status)
        return None

    def _forget_recorder(self) -> None:
        assert self._report is not None
        os.close(self._report)
        self._report = None

    def _reap_recorder(self) -> None:
        """Our own recorder must not stay a zombie while a screen still shows the ended run."""
        if self.ours:
            try:
                os.waitpid(self.recorder_pid, os.WNOHANG)
            except ChildProcessError:
                pass

    def _look(self) -> int | None:
        """Without our recorder: the command is our child now, another recorder's or nobody's."""
        try:
            if self.ours:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            else:
                pid, status = (0, 0)
        except ChildProcessError:
            if self._fate is not None:
                status = self._fate.wait_status()
            else:
                status = None
            if status is None:
                return self._look_at_record()
            return self._conclude(status)
        if pid:
            return self._conclude(status)
        return None if self.ours else self._look_at_record()

    def _conclude(self, wait_status: int) -> int:
        """We alone know the exit code: write it into the record."""
        code = _exit_code(wait_status)
        if self.stopped_by_us:
            stop.terminate(self.run_id, self.pgid)
        ending.record_exit(self.run_dir, code, host_dir=self.host_dir)
        return code

    def _look_at_record(self) -> int | None:
        state = ending.read_state(self.host_dir)
        if state.get("state") == "ended":
            code = state.get("exit_code")
            return UNKNOWN_EXIT if code is None else int(code)
        if procfs.alive(self.pid, self._start_ticks):
            self._gone_since = None
            return None
        now_s = time.monotonic()
        self._gone_since = self._gone_since or now_s
        return UNKNOWN_EXIT if now_s - self._gone_since > _GRACE_S else None


def _exit_code(wait_status: int) -> int:
    code = os.waitstatus_to_exitcode(wait_status)
    return 128 - code if code < 0 else code
