"""Crashes and how the command ended."""

from __future__ import annotations

import signal
from typing import Any

from gputop_analysis.ending import ending, stopping_event
from gputop_analysis.findings.advice import Option
from gputop_analysis.findings.crash_memory import out_of_memory_kills
from gputop_analysis.findings.last_words import LastWords, last_words
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import LAST_OUTPUT, TRACEBACK
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.hang_cause import Cause
from gputop_analysis.hang_facts import OUT_OF_REACH, cause_of
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.raised import fatal, of_threads
from gputop_analysis.standstill import standstill
from gputop_analysis.summary import run_state, steps_done
from gputop_analysis.text import counted, rank_list
from gputop_analysis.view import RunView

Event = dict[str, Any]


@finding(
    id="HC06",
    name="first failing rank",
    family="crash",
    cause="crash",
    trigger="the earliest exception that ended a rank; later ones on other ranks follow from it",
    fix="mend what that traceback says; ignore the later ones",
    explains=("HC09",),
    immediate=True,
    no_use="where the exception is meant to end the run",
    reads="exception events of all ranks by time",
    silent="no exception seen",
    traps="NCCL timeouts, which logs show first",
    seen_on=CPU,
    pictures=(TRACEBACK,),
)
def first_failing_rank(view: RunView, spec: Spec) -> Finding | None:
    """Of many tracebacks, the one that came first."""
    stop = stopping_event(view.record)
    stopped_ns = None if stop is None else int(stop["t_ns"])  # what breaks in a stop is its doing
    raised = [
        event for event in fatal(view.record) if stopped_ns is None or event["t_ns"] < stopped_ns
    ]
    if not raised:
        return None
    cause = cause_of(view)
    if cause is not None and cause.kind == "ended early" and _left_before(view, cause, raised[0]):
        return _ended_first(spec, cause, raised)
    if (gone := _vanished(view, raised)) is not None:
        return _vanished_first(view, spec, gone, raised)
    first, later = (
        raised[0],
        sorted({int(e.get("rank", -1)) for e in raised[1:]} - {int(raised[0].get("rank", -1))}),
    )
    rank, words = first.get("rank"), _said(first)
    _, exit_code, _ = run_state(view.record, first["t_ns"])
    of_many = view.world_size > 1
    return spec.make(
        severity="high" if exit_code == 0 else "critical",
        title=f"rank {rank} fails{' first' if of_many else ''} at step {first.get('step', '?')}: {words}"[
            :140
        ],
        evidence=f"{words}, at {first.get('site') or 'an unknown line'} in phase "
        f"{first.get('phase', '?')}, step {first.get('step', '?')}"
        + (f"; rank {', '.join(map(str, later))} failed after it" if later else ""),
        fix=f"mend {first.get('site') or 'what the traceback says'}"
        + ("; later errors of other ranks follow from it" if of_many else ""),
        rank=rank,
        site=first.get("site"),
        host=first.get("host"),
        proof=Proof(
            statistic="exceptions that ended a process of the run",
            value=len(raised),
            threshold=0,
            unit="",
            formula="the one with the smallest t_ns is the cause; ranks of one host share a clock",
            inputs=tuple(
                Input(
                    f"rank {e.get('rank')}",
                    str(e.get("class")),
                    "",
                    f"exception event, t_ns {e['t_ns']}",
                )
                for e in raised[:8]
            ),
        ),
    )


def _left_before(view: RunView, cause: Cause, raised: Event) -> bool:
    """Whether the rank that ended early said goodbye before the first exception of the others."""
    goodbyes = [e["t_ns"] for e in view.record.events("goodbye") if e.get("rank") == cause.rank]
    return any(t_ns < raised["t_ns"] for t_ns in goodbyes)


def _ended_first(spec: Spec, cause: Cause, raised: list[Event]) -> Finding:
    """A rank had fewer batches, and the others failed as they could not reach it."""
    failed = rank_list(int(event.get("rank", -1)) for event in raised)
    return spec.make(
        severity="critical",
        title=cause.words[:140],
        evidence=f"{cause.words}; {failed} then failed to reach it: {_said(raised[0])}",
        fix="give every rank the same number of batches (DistributedSampler, drop_last=True), or "
        "wrap the loop in torch.distributed.algorithms.join.Join; the errors of the other ranks "
        "follow from it",
        rank=cause.rank,
        confidence=0.9,
        proof=Proof(
            statistic="ranks that ended well before the others failed to reach them",
            value=1,
            threshold=0,
            unit="",
            formula="its goodbye came first, and the exceptions of all others speak of a "
            "connection",
            inputs=tuple(
                Input(f"rank {e.get('rank')}", str(e.get("class")), "", "exception event")
                for e in raised[:8]
            ),
        ),
    )


def _vanished(view: RunView, raised: list[Event]) -> Event | None:
    """The loss of a rank without an exception, where others only say they cannot reach it."""
    lost, reason = _first_lost(view)
    if lost is None or not reason or lost in {event.get("rank") for event in raised}:
        return None
    if not all(OUT_OF_REACH.search(str(event.get("message") or "")) for event in raised):
        return None
    return next(event for event in view.record.events("rank_lost") if event.get("rank") == lost)


def _vanished_first(view: RunView, spec: Spec, gone: Event, raised: list[Event]) -> Finding:
    rank, step = gone["rank"], steps_done(view.record, gone["rank"])
    listed = ", ".join(str(event.get("rank")) for event in raised[:8])
    killed = out_of_memory_kills(view)
    return spec.make(
        severity="critical",
        title=f"rank {rank} vanished first, after step {step:,}, without an exception",
        evidence=f"the process of rank {rank} was gone ({gone.get('reason')}) and had raised "
        f"nothing; rank {listed} then failed to reach it: {_said(raised[0])}"
        + (
            f"; the kernel killed {killed} process for lack of memory in the meantime"
            if killed
            else ""
        ),
        fix=f"look at what ended rank {rank}: the out-of-memory killer (`dmesg -T | grep -i oom`), "
        "the scheduler, a crash in native code (PYTHONFAULTHANDLER=1), or a person; the errors of "
        "the other ranks follow from it",
        rank=rank,
        host=gone.get("host") or view.host_of(rank) or None,
        confidence=0.9,
        proof=Proof(
            statistic="ranks that ended without an exception before the others lost them",
            value=1,
            threshold=0,
            unit="",
            formula="no goodbye and no exception of that rank; the exceptions of all others "
            "speak of a connection",
            inputs=(
                Input(
                    f"rank {rank}",
                    str(gone.get("reason")),
                    "",
                    f"rank_lost event, t_ns {gone['t_ns']}",
                ),
            ),
        ),
    )


@finding(
    id="HC10",
    name="a thread has died",
    family="crash",
    cause="crash",
    trigger="an exception ended a thread of the training process, not the process; high where "
    "the run then stands still or ends with an error that no exception of the process "
    "explains, else info",
    fix="catch it in the thread, or restart the thread; what it did for the "
    "training is not done any more",
    immediate=True,
    no_use="where the thread may die, such as a logger's whose server is away",
    reads="exceptions that reach threading.excepthook",
    silent="no thread died so; one that catches its exceptions is not seen",
    traps="threads that may die, such as a logger's when its server is away",
    seen_on=CPU,
)
def thread_died(view: RunView, spec: Spec) -> Finding | None:
    """A thread of the program's own is gone: a prefetcher, a logger, a watchdog."""
    raised = of_threads(view.record)
    if not raised:
        return None
    first = raised[0]
    rank, words, name = first.get("rank"), _said(first), first.get("thread")
    site = first.get("site")
    ends_badly = _ends_badly(view) and not fatal(view.record)
    return spec.make(
        severity="high" if ends_badly else "info",
        title=f"thread {name} of rank {rank} has died at step {first.get('step', '?')}: {words}"[
            :140
        ],
        evidence=f"{words}, at {site or 'an unknown line'}; the process went on without that thread"
        + (f"; {len(raised) - 1} more threads ended so" if len(raised) > 1 else ""),
        fix=f"mend {site or 'what the traceback says'}, or catch the exception in the thread: "
        "whatever waits for it waits for ever",
        rank=rank,
        site=site,
        host=first.get("host"),
        confidence=0.9,
        proof=Proof(
            statistic="exceptions that ended a thread",
            value=len(raised),
            threshold=0,
            unit="",
            formula="threading.excepthook was called; high where the run hangs or ends with "
            "a code other than 0",
            inputs=tuple(
                Input(
                    f"rank {event.get('rank')}",
                    str(event.get("class")),
                    "",
                    f"exception event, t_ns {event.get('t_ns')}",
                )
                for event in raised[:8]
            ),
        ),
    )


def _ends_badly(view: RunView) -> bool:
    """With an error that no user asked for, or standing still."""
    if any(True for _ in view.record.events("interrupt")):
        return False
    still = standstill(view)
    codes = [host.state.exit_code for host in view.record.hosts.values()]
    return any(codes) or (still is not None and not still.over)


def _said(raised: Event) -> str:
    """``KeyError: 'loss'``."""
    class_name = raised.get("class", "exception")
    message = _what(str(raised.get("message") or "")).removeprefix(f"{class_name}: ")
    return f"{class_name}: {message[:120]}" if message else str(class_name)


def _what(message: str) -> str:
    """An exception's telling line: the last one where a worker's traceback is quoted."""
    lines = message.strip().splitlines()
    if lines:
        return lines[-1] if lines[0].startswith("Caught ") else lines[0]
    return ""


@finding(
    id="HC09",
    name="exit code",
    family="crash",
    cause="crash",
    trigger="the command ended with an exit code other than 0, or by a signal",
    fix="what the code means is in the finding",
    immediate=True,
    no_use="where the run was stopped on purpose",
    reads="exit code or signal, the first error, the last step",
    silent="exit code 0",
    traps="launchers that replace the code",
    seen_on=CPU,
    pictures=(LAST_OUTPUT,),
)
def exit_decode(view: RunView, spec: Spec) -> Finding | None:
    """What an exit code means, and where the run was."""
    codes = [h.state.exit_code for h in view.record.hosts.values() if h.state.exit_code]
    if not codes:
        return None
    code = codes[0]
    number = code - 128 if 128 < code < 192 else None
    how = ending(view.record, run_state(view.record, 0)[0], code)
    by_user, stopped = how.kind == "stopped", stopping_event(view.record) is not None
    rank, lost = _first_lost(view)
    step = max((steps_done(view.record, r) for r in view.ranks), default=0)
    killed = out_of_memory_kills(view)
    title = f"exit {code}" + (f": ended by {_signal_name(number)}" if number else "")
    if stopped:
        title = f"exit {code}, {how.words}"
    raised = None if stopped or number else _raised(view)
    if raised is not None:
        title += f": {raised.what[:90]}"
    elif not stopped and not number:
        title += ", and no exception was seen"
    if stopped:
        severity = "info"
    elif how.kind == "terminated":
        severity = "high"
    else:
        severity = "critical"
    return spec.make(
        severity=severity,
        title=title + (f"; rank {rank} went first" if lost else ""),
        evidence=f"the command ended with exit code {code}"
        + (f" ({_signal_name(number)}, signal {number})" if number else "")
        + (f" after {_at_least(view)}{counted(step, 'step')}" if step else " before its first step")
        + (f"; {raised.what[:200]}, at {raised.site or 'an unknown line'}" if raised else "")
        + (f"; rank {rank} was lost first: {lost}" if lost else "")
        + (
            f"; the kernel killed {killed} process for lack of memory in the meantime"
            if killed
            else ""
        ),
        fix=Option(
            f"mend {raised.site or 'what the traceback says'}"
            if raised
            else _exit_advice(
                code,
                bool(killed),
                how.kind,
                f"rank {rank} ({lost})" if lost else "",
                view.world_size > 1,
            ),
            assumes=False,
        ),
        rank=rank,
        site=raised.site if raised else None,
        proof=Proof(
            statistic="exit code of the command",
            value=float(code),
            threshold=0,
            unit="",
            formula="a code of 128 + n stands for signal n",
            inputs=(
                Input(
                    "interrupted by the user", "yes" if by_user else "no", "", "interrupt events"
                ),
                Input(
                    "out-of-memory kills meanwhile",
                    killed,
                    "processes",
                    "host.cgroup_oom_kill_total, run_end",
                ),
                Input("steps done", step, "", "steps.step of the furthest rank"),
            ),
        ),
    )


def _raised(view: RunView) -> LastWords | None:
    """The exception that ended the command: as a rank told it, else as the output quotes it."""
    raised = fatal(view.record)
    if raised:
        return LastWords(_said(raised[0]), raised[0].get("site"))
    return last_words(view)


def _at_least(view: RunView) -> str:
    """A rank that ends at once takes its last records with it, those of 50 ms and more."""
    return "" if _said_goodbye(view).issuperset(view.ranks) else "at least "


def _said_goodbye(view: RunView) -> set[int | None]:
    """Ranks that ended in order."""
    return {e.get("rank") for e in view.record.events("goodbye")}


def _first_lost(view: RunView) -> tuple[int | None, str]:
    """The rank that first vanished without goodbye, and how; a single rank is meant anyway."""
    said_goodbye = _said_goodbye(view)
    lost = sorted(view.record.events("rank_lost"), key=lambda e: e.get("t_ns", 0))
    lost = [e for e in lost if e.get("rank") not in said_goodbye]
    if len(view.ranks) == 1:
        return view.ranks[0], ""
    if lost:
        return (int(lost[0]["rank"]), str(lost[0].get("reason") or "gone"))
    return (None, "")


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _exit_advice(code: int, out_of_memory: bool, how: str, lost: str, of_many: bool) -> str:
    number = code - 128 if 128 < code < 192 else None
    if how == "stopped":
        return "nothing to mend: the run was stopped"
    if number == signal.SIGKILL:
        if out_of_memory:
            cause = "the host ran out of memory"
        else:
            cause = "the out-of-memory killer, the scheduler or a person"
        return (
            f"SIGKILL cannot be caught: it came from {cause}; see `dmesg -T | grep -i oom` and "
            "the scheduler's log"
        )
    if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
        return (
            "a crash in native code: run with PYTHONFAULTHANDLER=1 for the line; for SIGBUS look "
            "at /dev/shm (df -h)"
        )
    if number == signal.SIGABRT:
        return (
            "native code gave up: the reason stands in the output just before; NCCL's watchdog "
            "ends runs in this way"
        )
    if number == signal.SIGINT:
        return (
            "an interrupt that did not come through gputop: Ctrl-C elsewhere, the scheduler, or "
            "the script's own"
        )
    if number == signal.SIGTERM:
        if of_many:
            alternatives = ", or a launcher after another rank had failed"
        else:
            alternatives = ", a time limit, or a person"
        return f"somebody asked it to end: the scheduler{alternatives}"
    where = "the last lines of output say why (`gputop open` shows them)"
    if lost:
        return (
            f"look at why {lost} went: what other ranks and the launcher say "
            f"comes after it; {where}"
        )
    if code == 1:
        return (
            "Python ends so after an error that nothing caught, unless the script chose it: "
            f"{where}"
        )
    return f"the command chose this code: {where}"
