"""How the command ended."""

from __future__ import annotations

import signal
from typing import NamedTuple

from gputop_analysis.ending import ending, stopping_event
from gputop_analysis.findings.advice import Option
from gputop_analysis.findings.crash.lack_of_memory import out_of_memory_kills
from gputop_analysis.findings.crash.last_words import (
    FirstEnd,
    first_end,
    has_terminated,
    last_fault,
    last_line,
    last_words,
)
from gputop_analysis.findings.crash.lost_ranks import first_lost, said_goodbye
from gputop_analysis.findings.crash.raised_words import LONGEST_MESSAGE, known_advice, said
from gputop_analysis.findings.crash.signals import killed_meanwhile, signal_advice, signal_name
from gputop_analysis.findings.crash.tracebacks import (
    LastWords,
    follows_surely,
    is_of_a_launcher,
)
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import LAST_OUTPUT
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.overview import Ending
from gputop_analysis.raised import fatal
from gputop_analysis.summary import run_state, steps_done
from gputop_analysis.text import counted, cut_end
from gputop_analysis.view import RunView

_THROUGH = (
    "the training was through: a thread of torch's, such as gloo's with the last message, met the "
    "end of Python, and C++ ends the process there. Wait a moment after the last step "
    "(time.sleep(0.1)), or end by os._exit(0) once everything is written"
)


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
    left: FirstEnd | None
    """The first rank to go, of which only the launcher says how; None: it tells of none, or an
    exception says more.
    """


def _end_of(view: RunView, code: int) -> _End:
    number = code - 128 if 128 < code < 192 else None
    state, _, _ = run_state(view.record, 0)
    is_stop = stopping_event(view.record) is not None
    raised = None if is_stop else _last_words(view, number)
    left = None if is_stop else _left(view, raised)
    # of ranks that one stop ends together it says nothing which went first
    lost_rank, lost_reason = (None, "") if is_stop else first_lost(view)
    if left is not None:
        lost_rank, lost_reason, raised = left.rank, _how_it_left(view, left), None
    return _End(
        code=code,
        signal_number=number,
        how=ending(view.record, state, code),
        is_stop=is_stop,
        raised=raised,
        lost_rank=lost_rank,
        lost_reason=lost_reason,
        left=left,
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
        title += f": ended by {signal_name(end.signal_number)}"
    elif end.left is not None:
        title += f": rank {end.left.rank} went first: {end.lost_reason}"
    elif end.raised is not None:
        title += f": {cut_end(end.raised.what, LONGEST_MESSAGE)}"
    elif line := last_line(view):
        title += f"; it printed last: {cut_end(line, LONGEST_MESSAGE)}"
    else:
        title += ", and no exception was seen"
    if end.lost_reason and end.left is None:
        title += f"; rank {end.lost_rank} went first"
    return title


def _evidence(view: RunView, end: _End, step: int) -> str:
    words = f"the command ended with exit code {end.code}"
    if end.signal_number:
        words += f" ({signal_name(end.signal_number)}, signal {end.signal_number})"
    if step:
        words += f" after {_at_least(view)}{counted(step, 'step')}"
    else:
        words += " before its first step"
    if end.raised:
        words += f"; {end.raised.what[:200]}, at {end.raised.site or 'an unknown line'}"
    elif end.left is None and not end.signal_number and (line := last_line(view)):
        words += f"; its output ends with: {line}"
    if end.lost_reason:
        words += f"; rank {end.lost_rank} was lost first: {end.lost_reason}"
    return words + killed_meanwhile(view)


def _raised(view: RunView) -> LastWords | None:
    """The exception that ended the command: as a rank told it, else as the output quotes it."""
    raised = fatal(view.record)
    if raised:
        return LastWords(said(raised[0]), raised[0].get("site"))
    return last_words(view)


def _at_least(view: RunView) -> str:
    """A rank that ends at once takes its last records with it, those of 50 ms and more."""
    return "" if said_goodbye(view).issuperset(view.ranks) else "at least "


def _left(view: RunView, raised: LastWords | None) -> FirstEnd | None:
    """See ``_End.left``."""
    first = first_end(view)
    if first is None or len(view.ranks) == 1 or first.code == -signal.SIGTERM:
        return None
    return first if raised is None or is_of_a_launcher(raised) else None


def _how_it_left(view: RunView, left: FirstEnd) -> str:
    how = f"with exit code {left.code}"
    if left.code < 0:
        how = f"by {signal_name(-left.code)}"
    words = f"it ended {how} after {counted(steps_done(view.record, left.rank), 'step')}"
    if _died_at_pythons_end(view, left.rank, -left.code):
        words += ", as Python ended"
    return words


def _died_at_pythons_end(view: RunView, rank: int, signal_number: int) -> bool:
    """Whether C++ gave up in a rank that had come to its end."""
    if signal_number != signal.SIGABRT or rank not in said_goodbye(view):
        return False
    return has_terminated(view)


def _advice(view: RunView, end: _End) -> str:
    by_error = _advice_on_error(view, end)
    if by_error:
        return by_error
    if end.how.kind == "stopped":
        return "nothing to mend: the run was stopped"
    if end.is_stop:
        return "somebody asked it to end: the scheduler, a time limit, or a person"
    if _died_at_pythons_end(view, min(view.ranks, default=-1), end.signal_number or 0):
        return _THROUGH
    by_signal = signal_advice(view, end.signal_number)
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
    if end.raised and (advice := known_advice(view, end.raised.what, end.raised.site)):
        return advice
    if end.left is not None:
        return _advice_on_leaving(view, end, end.left)
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


def _advice_on_leaving(view: RunView, end: _End, left: FirstEnd) -> str:
    if _died_at_pythons_end(view, left.rank, -left.code):
        return _THROUGH
    by_signal = signal_advice(view, -left.code) if left.code < 0 else ""
    if by_signal:
        return f"{by_signal}; the others were ended after rank {left.rank}"
    return (
        f"look for what ends rank {left.rank}, such as sys.exit(): {end.lost_reason}, and "
        "the others were ended after it"
    )
