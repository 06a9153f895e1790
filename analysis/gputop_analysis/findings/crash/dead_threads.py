"""Threads of the training that an exception ended."""

from __future__ import annotations

from gputop_analysis.findings.crash.raised_words import LONGEST_TITLE, inputs_of, said
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.hangs.standstill import standstill
from gputop_analysis.model import Finding, Proof
from gputop_analysis.raised import fatal, of_threads
from gputop_analysis.text import MISSING
from gputop_analysis.view import RunView


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
    rank, site, words = first.get("rank"), first.get("site"), said(first)
    step = first.get("step", MISSING)
    title = f"thread {first.get('thread')} of rank {rank} has died at step {step}"
    evidence = f"{words}, at {site or 'an unknown line'}; the process went on without that thread"
    if len(raised) > 1:
        evidence += f"; {len(raised) - 1} more threads ended so"
    explains_the_end = _ends_badly(view) and not fatal(view.record)
    return spec.make(
        severity="high" if explains_the_end else "info",
        title=f"{title}: {words}"[:LONGEST_TITLE],
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
            inputs=inputs_of(raised),
        ),
    )


def _ends_badly(view: RunView) -> bool:
    """With an error that no user asked for, or standing still."""
    if next(iter(view.record.events("interrupt")), None) is not None:
        return False
    still = standstill(view)
    codes = [host.state.exit_code for host in view.record.hosts.values()]
    return any(codes) or (still is not None and not still.over)
