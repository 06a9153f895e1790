"""Crashes and how the command ended."""

from __future__ import annotations

import signal
from typing import Any, NamedTuple

from gputop_analysis.ending import ending, stopping_event
from gputop_analysis.findings.advice import Option
from gputop_analysis.findings.crash.lack_of_memory import out_of_memory_kills
from gputop_analysis.findings.crash.last_words import (
    childs_words,
    last_fault,
    last_line,
    last_words,
    spawned_exit,
    told_exit_code,
)
from gputop_analysis.findings.crash.surroundings import advice
from gputop_analysis.findings.crash.tracebacks import LastWords, follows_surely
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import LAST_OUTPUT, TRACEBACK
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.hang_facts import OUT_OF_REACH, cause_of
from gputop_analysis.hang_standing import Cause
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.overview import Ending
from gputop_analysis.raised import fatal, of_threads
from gputop_analysis.standstill import standstill
from gputop_analysis.summary import run_state, steps_at, steps_done
from gputop_analysis.text import MISSING, counted, cut_end, rank_list
from gputop_analysis.view import RunView

Event = dict[str, Any]

_LONGEST_TITLE = 140
_SAID = 120
"""Letters of an exception's message at most."""
_UNUSED = "Expected to have finished reduction in the prior iteration"
"""What DistributedDataParallel says of parameters without a gradient, a step later."""
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
    raised = _raised_before_a_stop(view)
    if not raised:
        return None
    cause = cause_of(view)
    if cause is not None and cause.kind == "ended early" and _left_before(view, cause, raised[0]):
        return _ended_first(spec, cause, raised)
    vanished = _vanished(view, raised)
    if vanished is not None:
        return _vanished_first(view, spec, vanished, raised)
    return _raised_first(view, spec, raised)


def _raised_before_a_stop(view: RunView) -> list[Event]:
    """Exceptions that ended a process; what breaks after a stop is the stop's doing."""
    raised = fatal(view.record)
    stop = stopping_event(view.record)
    if stop is None:
        return raised
    return [event for event in raised if event["t_ns"] < int(stop["t_ns"])]


def _raised_first(view: RunView, spec: Spec, raised: list[Event]) -> Finding:
    first = raised[0]
    rank, site = first.get("rank"), first.get("site")
    done, words = steps_at(view.record, first), _said(first)
    step = MISSING if done is None else f"{done:,}"
    phase = first.get("phase", MISSING)
    evidence = f"{words}, at {site or 'an unknown line'} in phase {phase}, step {step}"
    later_ranks = {int(event.get("rank", -1)) for event in raised} - {int(first.get("rank", -1))}
    of_all = _raised_alike(raised) == set(range(view.world_size)) and view.world_size > 1
    if of_all:
        evidence += "; all ranks raise it there, each by itself"
    elif later_ranks:
        evidence += f"; rank {', '.join(map(str, sorted(later_ranks)))} failed after it"
    title = f"rank {rank} fails at step {step}: {words}"
    fix = _known_advice(view, words, site) or f"mend {site or 'what the traceback says'}"
    if _UNUSED in str(first.get("message")):
        fix = (
            f"in the step before, the loss of rank {rank} did not go through all parameters: "
            "let it on every rank, or give DistributedDataParallel find_unused_parameters=True"
        )
    if first.get("bad_weight"):
        fix = (
            f"{first['bad_weight']} was no number by then: "
            "mend what made it so (NU01), not this line"
        )
    if of_all:
        title = f"all ranks fail at step {step}: {words}"
    elif view.world_size > 1:
        title = f"rank {rank} fails first at step {step}: {words}"
        fix += "; later errors of other ranks follow from it"
    _, exit_code, _ = run_state(view.record, first["t_ns"])
    return spec.make(
        severity="high" if exit_code == 0 else "critical",
        title=title[:_LONGEST_TITLE],
        evidence=evidence,
        fix=fix,
        rank=None if of_all else rank,
        site=site,
        host=None if of_all else first.get("host"),
        proof=Proof(
            statistic="exceptions that ended a process of the run",
            value=len(raised),
            threshold=0,
            unit="",
            formula="the one with the smallest t_ns is the cause; ranks of one host share a clock",
            inputs=_inputs_of(raised),
        ),
    )


def _raised_alike(raised: list[Event]) -> set[int]:
    """Ranks with an exception of the same words as the first, at its line and in its step."""
    same = ("class", "message", "site", "step")
    return {
        int(event.get("rank", -1))
        for event in raised
        if event.get("site") and all(event.get(key) == raised[0].get(key) for key in same)
    }


_OTHER_END = ("BrokenPipeError", "ConnectionResetError", "EOFError")
"""Raised where the process at the other end has gone."""


def _known_advice(view: RunView, what: str, site: str | None) -> str:
    """What to do about an exception whose cause lies elsewhere; empty: at its line."""
    child = childs_words(view) if what.startswith(_OTHER_END) else None
    if child is not None:
        return f"mend {child.site}, where a process that it talks to ended before: {child.what}"
    return advice(what, site, _folder(view))


def _folder(view: RunView) -> str:
    """Where the command was started."""
    return view.record.manifest.cwd


def _inputs_of(raised: list[Event]) -> tuple[Input, ...]:
    """The first exceptions, as a proof lists them."""
    inputs = []
    for event in raised[:8]:
        source = f"exception event, t_ns {event.get('t_ns')}"
        inputs.append(Input(f"rank {event.get('rank')}", str(event.get("class")), "", source))
    return tuple(inputs)


def _left_before(view: RunView, cause: Cause, raised: Event) -> bool:
    """Whether the rank that ended early said goodbye before the first exception of the others."""
    goodbyes = [e["t_ns"] for e in view.record.events("goodbye") if e.get("rank") == cause.rank]
    return any(t_ns < raised["t_ns"] for t_ns in goodbyes)


def _ended_first(spec: Spec, cause: Cause, raised: list[Event]) -> Finding:
    """A rank had fewer batches, and the others failed as they could not reach it."""
    failed = rank_list(int(event.get("rank", -1)) for event in raised)
    return spec.make(
        severity="critical",
        title=cause.words[:_LONGEST_TITLE],
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
            formula="its goodbye came first, "
            "and the exceptions of all others speak of a connection",
            inputs=_inputs_of(raised),
        ),
    )


def _vanished(view: RunView, raised: list[Event]) -> Event | None:
    """The loss of a rank without an exception, where others only say they cannot reach it."""
    lost, reason = _first_lost(view)
    if lost is None or not reason:
        return None
    for event in raised:
        speaks_of_others = OUT_OF_REACH.search(str(event.get("message") or ""))
        if event.get("rank") == lost or not speaks_of_others:
            return None
    return next(event for event in view.record.events("rank_lost") if event.get("rank") == lost)


def _vanished_first(view: RunView, spec: Spec, lost: Event, raised: list[Event]) -> Finding:
    rank, reason = lost["rank"], str(lost.get("reason"))
    step = steps_done(view.record, rank)
    failed = rank_list(int(event.get("rank", -1)) for event in raised)
    code = told_exit_code(view, int(lost.get("pid") or 0))
    how = _how_it_went(code)
    return spec.make(
        severity="critical",
        title=f"rank {rank} vanished first, at step {step:,}, {how}",
        evidence=f"the process of rank {rank} was gone ({reason}), {how}, and had raised nothing; "
        f"{failed} then failed to reach it: {_said(raised[0])}{_killed_meanwhile(view)}",
        fix=f"look at what ended rank {rank}: {_what_ends_so(view, code)}; the errors of the other "
        "ranks follow from it",
        rank=rank,
        host=lost.get("host") or view.host_of(rank) or None,
        confidence=0.9,
        proof=Proof(
            statistic="ranks that ended without an exception before the others lost them",
            value=1,
            threshold=0,
            unit="",
            formula="no goodbye and no exception of that rank; the exceptions of all others "
            "speak of a connection",
            inputs=(Input(f"rank {rank}", reason, "", f"rank_lost event, t_ns {lost['t_ns']}"),),
        ),
    )


def _how_it_went(code: int | None) -> str:
    if code is None:
        return "without an exception"
    return f"by {_signal_name(-code)}" if code < 0 else f"with exit code {code}"


def _what_ends_so(view: RunView, code: int | None) -> str:
    """What may have ended a rank with this code; None where nobody told it."""
    by_signal = _signal_advice(view, -code) if code is not None and code < 0 else ""
    if by_signal:
        return by_signal
    if code is not None and code >= 0:
        return f"os._exit({code}), or native code that ends the process"
    return (
        "the out-of-memory killer (`dmesg -T | grep -i oom`), the scheduler, a crash in native "
        "code (PYTHONFAULTHANDLER=1), or a person"
    )


def _killed_meanwhile(view: RunView) -> str:
    killed = out_of_memory_kills(view)
    if not killed:
        return ""
    return f"; the kernel killed {killed} process for lack of memory in the meantime"


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
    rank, site, words = first.get("rank"), first.get("site"), _said(first)
    step = first.get("step", MISSING)
    title = f"thread {first.get('thread')} of rank {rank} has died at step {step}"
    evidence = f"{words}, at {site or 'an unknown line'}; the process went on without that thread"
    if len(raised) > 1:
        evidence += f"; {len(raised) - 1} more threads ended so"
    explains_the_end = _ends_badly(view) and not fatal(view.record)
    return spec.make(
        severity="high" if explains_the_end else "info",
        title=f"{title}: {words}"[:_LONGEST_TITLE],
        evidence=evidence,
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
            inputs=_inputs_of(raised),
        ),
    )


def _ends_badly(view: RunView) -> bool:
    """With an error that no user asked for, or standing still."""
    if next(iter(view.record.events("interrupt")), None) is not None:
        return False
    still = standstill(view)
    codes = [host.state.exit_code for host in view.record.hosts.values()]
    return any(codes) or (still is not None and not still.over)


def _said(raised: Event) -> str:
    """``KeyError: 'loss'``."""
    class_name = raised.get("class", "exception")
    message = _what(str(raised.get("message") or "")).removeprefix(f"{class_name}: ")
    return f"{class_name}: {cut_end(message, _SAID)}" if message else str(class_name)


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
    codes = [host.state.exit_code for host in view.record.hosts.values() if host.state.exit_code]
    if not codes:
        return None
    end = _end_of(view, codes[0])
    step = max((steps_done(view.record, rank) for rank in view.ranks), default=0)
    return spec.make(
        severity=_severity(end),
        title=_title(view, end),
        evidence=_evidence(view, end, step),
        fix=Option(_advice(view, end), assumes=False),
        rank=end.lost_rank,
        site=end.raised.site if end.raised else None,
        proof=Proof(
            statistic="exit code of the command",
            value=float(end.code),
            threshold=0,
            unit="",
            formula="a code of 128 + n stands for signal n",
            inputs=(
                Input(
                    "interrupted by the user",
                    "yes" if end.how.kind == "stopped" else "no",
                    "",
                    "interrupt events",
                ),
                Input(
                    "out-of-memory kills meanwhile",
                    out_of_memory_kills(view),
                    "processes",
                    "host.cgroup_oom_kill_total, run_end",
                ),
                Input("steps done", step, "", "steps.step of the furthest rank"),
            ),
        ),
    )


class _End(NamedTuple):
    """How the command ended."""

    code: int
    signal_number: int | None
    how: Ending
    is_stop: bool
    """Somebody or something outside asked for it."""
    raised: LastWords | None
    """The exception behind it, or what Python's fault handler said of a signal; None where a stop
    is behind it, or none was seen.
    """
    lost_rank: int | None
    lost_reason: str
    """Of the first rank that vanished; empty: none has, or there is but one."""
    left_by_itself: bool
    """Whether that rank ended in order while the others went on."""


def _end_of(view: RunView, code: int) -> _End:
    number = code - 128 if 128 < code < 192 else None
    state, _, _ = run_state(view.record, 0)
    is_stop = stopping_event(view.record) is not None
    left = _left_by_itself(view)
    # of ranks that one stop ends together it says nothing which went first
    lost_rank, lost_reason = left or ((None, "") if is_stop else _first_lost(view))
    return _End(
        code=code,
        signal_number=number,
        how=ending(view.record, state, code),
        is_stop=is_stop,
        raised=None if is_stop else _last_words(view, number),
        lost_rank=lost_rank,
        lost_reason=lost_reason,
        left_by_itself=left is not None,
    )


def _last_words(view: RunView, signal_number: int | None) -> LastWords | None:
    if signal_number:
        return last_fault(view)
    return _raised(view)


def _severity(end: _End) -> Severity:
    if end.is_stop:
        return "info"
    return "high" if end.how.kind == "terminated" else "critical"


def _title(view: RunView, end: _End) -> str:
    title = f"exit {end.code}"
    if end.is_stop:
        title += f", {end.how.words}"
    elif end.signal_number:
        title += f": ended by {_signal_name(end.signal_number)}"
    elif end.raised is not None:
        title += f": {cut_end(end.raised.what, _SAID)}"
    elif line := last_line(view):
        title += f"; it printed last: {cut_end(line, _SAID)}"
    else:
        title += ", and no exception was seen"
    if end.lost_reason:
        title += f"; rank {end.lost_rank} went first"
    return title


def _evidence(view: RunView, end: _End, step: int) -> str:
    words = f"the command ended with exit code {end.code}"
    if end.signal_number:
        words += f" ({_signal_name(end.signal_number)}, signal {end.signal_number})"
    if step:
        words += f" after {_at_least(view)}{counted(step, 'step')}"
    else:
        words += " before its first step"
    if end.raised:
        words += f"; {end.raised.what[:200]}, at {end.raised.site or 'an unknown line'}"
    elif not end.signal_number and (line := last_line(view)):
        words += f"; its output ends with: {line}"
    if end.lost_reason:
        words += f"; rank {end.lost_rank} was lost first: {end.lost_reason}"
    return words + _killed_meanwhile(view)


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


def _left_by_itself(view: RunView) -> tuple[int, str] | None:
    """The rank that ended in order while the others went on, as its parent tells; None: none."""
    told = spawned_exit(view)
    if told is None or told[0] not in _said_goodbye(view) or len(view.ranks) == 1:
        return None
    rank, code = told
    step = steps_done(view.record, rank)
    return rank, f"it ended by itself with exit code {code} after {counted(step, 'step')}"


def _first_lost(view: RunView) -> tuple[int | None, str]:
    """The rank that first vanished without goodbye, and how; a single rank is meant anyway."""
    if len(view.ranks) == 1:
        return view.ranks[0], ""
    said_goodbye = _said_goodbye(view)
    lost = [e for e in view.record.events("rank_lost") if e.get("rank") not in said_goodbye]
    if not lost:
        return None, ""
    first = min(lost, key=lambda event: event.get("t_ns", 0))
    return int(first["rank"]), str(first.get("reason") or "gone")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _advice(view: RunView, end: _End) -> str:
    by_error = _advice_on_error(view, end)
    if by_error:
        return by_error
    if end.how.kind == "stopped":
        return "nothing to mend: the run was stopped"
    if end.is_stop:
        return "somebody asked it to end: the scheduler, a time limit, or a person"
    by_signal = _signal_advice(view, end.signal_number)
    if by_signal:
        return by_signal
    where = "the last lines of output say why (`gputop open` shows them)"
    if end.lost_reason:
        return (
            f"look at why rank {end.lost_rank} ({end.lost_reason}) went: what other ranks and the "
            f"launcher say comes after it; {where}"
        )
    if end.code == 1:
        return (
            "Python ends so after an error that nothing caught, unless the script chose it: "
            f"{where}"
        )
    return f"the command chose this code: {where}"


def _advice_on_error(view: RunView, end: _End) -> str:
    """What to do about what was raised, or about a rank that left by itself; empty for neither."""
    if end.raised and (known := _known_advice(view, end.raised.what, end.raised.site)):
        return known
    if end.left_by_itself:
        return (
            f"look for what ends rank {end.lost_rank}, such as sys.exit(): {end.lost_reason}, and "
            "the others were ended after it"
        )
    if not end.raised:
        return ""
    if end.lost_reason and follows_surely(end.raised.what):
        return (
            f"look at why rank {end.lost_rank} ({end.lost_reason}) went: at "
            f"{end.raised.site or 'the line of the traceback'} another rank only missed it"
        )
    if end.signal_number:
        return f"native code crashed below {end.raised.site or 'what the output names'}: look there"
    return f"mend {end.raised.site or 'what the traceback says'}"


def _signal_advice(view: RunView, number: int | None) -> str:
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
        others = ", a time limit, or a person"
        if view.world_size > 1:
            others = ", or a launcher after another rank had failed"
        return f"somebody asked it to end: the scheduler{others}"
    return _SIGNAL_ADVICE.get(number, "") if number else ""
