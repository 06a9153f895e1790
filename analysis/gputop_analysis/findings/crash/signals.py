"""What a signal that ended a process means."""

from __future__ import annotations

import signal

from gputop_analysis.findings.crash.lack_of_memory import out_of_memory_kills
from gputop_analysis.view import RunView

_NATIVE_CRASH = (
    "a crash in native code: run with PYTHONFAULTHANDLER=1 for the line; for SIGBUS look "
    "at /dev/shm (df -h)"
)
_SIGNAL_ADVICE: dict[int, str] = {
    signal.SIGSEGV: _NATIVE_CRASH,
    signal.SIGBUS: _NATIVE_CRASH,
    signal.SIGILL: _NATIVE_CRASH,
    signal.SIGFPE: _NATIVE_CRASH,
    signal.SIGABRT: "native code gave up: the reason stands in the output just before; NCCL's "
    "watchdog ends runs in this way",
    signal.SIGINT: "an interrupt that did not come through gputop: Ctrl-C elsewhere, the "
    "scheduler, or the script's own",
}


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_advice(view: RunView, number: int | None) -> str:
    """What to do about a signal; empty for one that does not tell."""
    if number == signal.SIGKILL:
        sender = "the out-of-memory killer, the scheduler or a person"
        if out_of_memory_kills(view):
            sender = "the host ran out of memory"
        return (
            f"SIGKILL cannot be caught: it came from {sender}; see `dmesg -T | grep -i oom` and "
            "the scheduler's log"
        )
    if number == signal.SIGTERM:
        other_senders = ", a time limit, or a person"
        if view.world_size > 1:
            other_senders = ", or a launcher after another rank had failed"
        return f"somebody asked it to end: the scheduler{other_senders}"
    return _SIGNAL_ADVICE.get(number, "") if number else ""


def killed_meanwhile(view: RunView) -> str:
    killed = out_of_memory_kills(view)
    if not killed:
        return ""
    return f"; the kernel killed {killed} process for lack of memory in the meantime"
