"""What must not go wrong at a run's two ends: the command starts, its exit code is kept."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from gputop.cli.errors import CliError
from gputop.cli.notices import notice

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)


def end_in_child(work: Callable[[], None], run_dir: Path) -> None:
    """Do what is left once the command has ended; whatever happens to it, this process goes on to
    its exit code.

    In a forked process where that is safe: libraries may abort under a limit of memory. A signal
    ends the work, and nothing else: the command is gone, and its exit code counts.
    """
    if threading.active_count() > 1:  # a screen was open; its libraries are loaded
        _end_here(work, run_dir)
        return
    pid = _fork_or_zero()
    if pid is None:
        _end_here(work, run_dir)
        return
    if pid == 0:
        _work_and_exit(work)
    _on_signal(lambda *_: _kill(pid))
    _, status = os.waitpid(pid, 0)
    _on_signal(signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(status)
    if code < 0 and -code not in (*_ENDING, signal.SIGKILL):
        why = signal.Signals(-code).name
        notice(f"the summary failed ({why}); the record is {run_dir}")


def run_without_us(command: list[str], why: str, output_to_stderr: bool = False) -> NoReturn:
    """Become the command, which then has everything as in a bare start.

    Raises:
        CliError: it cannot be started.
    """
    from gputop_probes.descriptors import closed_at_start
    from gputop_probes.recorder.command import start_error

    notice(why)
    if output_to_stderr:
        os.dup2(2, 1)
    for number in closed_at_start:
        os.close(number)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python for itself
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            problem = error
        else:
            problem = OSError(22, "Invalid argument")
        refusal = start_error(command[0], problem)
    raise CliError(str(refusal), refusal.exit_code)


def _fork_or_zero() -> int | None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
    try:
        return os.fork()
    except OSError:
        return None


def _work_and_exit(work: Callable[[], None]) -> NoReturn:
    try:
        _on_signal(signal.SIG_DFL)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # less memory; a summary needs no more
        work()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        os._exit(1)
    os._exit(0)


def _end_here(work: Callable[[], None], run_dir: Path) -> None:
    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    _on_signal(leave)
    try:
        work()
    except KeyboardInterrupt:
        notice(f"the summary was left out; the record is {run_dir}")
    _on_signal(signal.SIG_IGN)


def _on_signal(handler: Any) -> None:
    """From now on; what was ignored when gputop started stays so."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
