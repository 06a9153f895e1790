"""The rank whose failure came first."""

from __future__ import annotations

from typing import Any

from gputop_analysis.ending import stopping_event
from gputop_analysis.findings.crash.last_words import told_exit_code
from gputop_analysis.findings.crash.lost_ranks import first_lost
from gputop_analysis.findings.crash.raised_words import (
    LONGEST_TITLE,
    inputs_of,
    known_advice,
    said,
)
from gputop_analysis.findings.crash.signals import killed_meanwhile, signal_advice, signal_name
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import TRACEBACK
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.hangs.facts import OUT_OF_REACH, cause_of
from gputop_analysis.hangs.standing import Cause
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.raised import fatal
from gputop_analysis.summary import run_state, steps_at, steps_done
from gputop_analysis.text import MISSING, rank_list
from gputop_analysis.view import RunView

Event = dict[str, Any]

_UNUSED = "Expected to have finished reduction in the prior iteration"
"""What DistributedDataParallel says of parameters without a gradient, a step later."""


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
    done, words = steps_at(view.record, first), said(first)
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
    fix = known_advice(view, words, site) or f"mend {site or 'what the traceback says'}"
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
        title=title[:LONGEST_TITLE],
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
            inputs=inputs_of(raised),
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


def _left_before(view: RunView, cause: Cause, raised: Event) -> bool:
    """Whether the rank that ended early said goodbye before the first exception of the others."""
    goodbyes = [e["t_ns"] for e in view.record.events("goodbye") if e.get("rank") == cause.rank]
    return any(t_ns < raised["t_ns"] for t_ns in goodbyes)


def _ended_first(spec: Spec, cause: Cause, raised: list[Event]) -> Finding:
    """A rank had fewer batches, and the others failed as they could not reach it."""
    failed = rank_list(int(event.get("rank", -1)) for event in raised)
    return spec.make(
        severity="critical",
        title=cause.words[:LONGEST_TITLE],
        evidence=f"{cause.words}; {failed} then failed to reach it: {said(raised[0])}",
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
            inputs=inputs_of(raised),
        ),
    )


def _vanished(view: RunView, raised: list[Event]) -> Event | None:
    """The loss of a rank without an exception, where others only say they cannot reach it."""
    lost, reason = first_lost(view)
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
        f"{failed} then failed to reach it: {said(raised[0])}{killed_meanwhile(view)}",
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
    return f"by {signal_name(-code)}" if code < 0 else f"with exit code {code}"


def _what_ends_so(view: RunView, code: int | None) -> str:
    """What may have ended a rank with this code; None where nobody told it."""
    by_signal = signal_advice(view, -code) if code is not None and code < 0 else ""
    if by_signal:
        return by_signal
    if code is not None and code >= 0:
        return f"os._exit({code}), or native code that ends the process"
    return (
        "the out-of-memory killer (`dmesg -T | grep -i oom`), the scheduler, a crash in native "
        "code (PYTHONFAULTHANDLER=1), or a person"
    )
