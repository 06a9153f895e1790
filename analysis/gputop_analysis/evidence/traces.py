"""Traces of torch.profiler, of one rank or of several, as evidence."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from gputop_analysis.evidence.bubbles import are_sure, bubbles
from gputop_analysis.evidence.devices import TracedDevice, devices
from gputop_analysis.evidence.model import Evidence
from gputop_analysis.evidence.threads import describe_threads
from gputop_analysis.evidence.waits import waits
from gputop_analysis.text import share_words
from gputop_analysis.traces.load import Trace, load
from gputop_analysis.traces.summary import distributed_info

_RANK = re.compile(r"rank[-_]?(\d{1,6})", re.IGNORECASE)
_CYCLE = re.compile(r"\.\d{10,20}(?=\.pt\.trace\.json)")
"""The moment in a name by ``tensorboard_trace_handler``: ``host_77.1623143089861.pt.trace.json``.
"""
_NOTABLE = 0.1
_CLEARLY = 2.0
"""How much more waiting a slow rank causes than the next."""
_SLOW = 0.03
"""Of the wall time that the others wait, for a rank to be called slow."""


def judge_traces(paths: list[Path]) -> Evidence:
    """Judge the traces of one job.

    Raises:
        TraceError: none can be read.
    """
    traces = {path: load(path) for path in paths}
    newest, passed_over = _newest(traces)
    by_rank = _numbered(newest)
    source = "torch.profiler traces, one a rank"
    if len(newest) == 1:
        source = "torch.profiler trace"
    evidence = Evidence(source, tuple(map(str, newest)))
    for rank, trace in by_rank.items():
        evidence.devices += devices(trace, rank)
    _describe(evidence)
    wall_ms = max((device.busy_ms + device.idle_ms for device in evidence.devices), default=0.0)
    if not evidence.devices:
        wall_ms = describe_threads(evidence, by_rank)
    ranks = {rank: trace for rank, trace in by_rank.items() if rank is not None}
    if len(ranks) > 1:
        _compare(evidence, ranks, wall_ms)
    evidence.unknown.append("the host's own waits (data, disk, cores) beside what the trace marks")
    evidence.unknown += passed_over
    evidence.unknown += _untold(newest)
    return evidence


def _untold(traces: dict[Path, Trace]) -> Iterator[str]:
    """What traces do not tell, by the ranks that are there and by where the files end."""
    world = max((distributed_info(trace)[1] or 1 for trace in traces.values()), default=1)
    count = len(traces)
    if world > count:
        are = "is" if count == 1 else "are"
        yield f"what the other ranks did: of {world:,} ranks {count:,} {are} here"
    if count > 1 and any(_told_rank(path, trace) is None for path, trace in traces.items()):
        yield "which rank is which: not all traces tell, and these are numbered by their names"
    for path, trace in traces.items():
        if trace.torn:
            yield f"what {path.name} had after its end ({trace.torn})"


def _newest(traces: dict[Path, Trace]) -> tuple[dict[Path, Trace], list[str]]:
    """The last recording of each rank, and sentences on those that are passed over: a schedule that
    repeats leaves several files a rank, which are no ranks of their own.
    """
    latest: dict[int | str, Path] = {}
    passed_over = []
    for path, trace in traces.items():
        rank = _told_rank(path, trace)
        key = _CYCLE.sub("", str(path)) if rank is None else rank
        if key in latest:
            earlier, later = _told_apart(latest[key], path)
            passed_over.append(
                f"what {earlier} shows: it is of the same rank as {later}, and earlier"
            )
        latest[key] = path
    chosen = set(latest.values())
    return {path: trace for path, trace in traces.items() if path in chosen}, passed_over


def _told_apart(first: Path, second: Path) -> tuple[str, str]:
    """Names of two files, with their folders where the names are the same."""
    if first.name != second.name:
        return first.name, second.name
    return f"{first.parent.name}/{first.name}", f"{second.parent.name}/{second.name}"


def _numbered(traces: dict[Path, Trace]) -> dict[int | None, Trace]:
    """Traces by rank; None for one alone that does not tell it."""
    ranks = {path: _told_rank(path, trace) for path, trace in traces.items()}
    if len(traces) == 1:
        return {ranks[path]: trace for path, trace in traces.items()}
    taken = {rank for rank in ranks.values() if rank is not None}
    free = (number for number in itertools.count() if number not in taken)
    numbers = {path: next(free) if rank is None else rank for path, rank in ranks.items()}
    return {numbers[path]: traces[path] for path in sorted(traces, key=numbers.__getitem__)}


def _told_rank(path: Path, trace: Trace) -> int | None:
    """The rank, as the trace, its name or that of its folder tells."""
    rank = distributed_info(trace)[0]
    if rank is not None and rank >= 0:
        return rank
    named = _RANK.search(path.name) or _RANK.fullmatch(path.parent.name)
    return int(named[1]) if named else None


def _host(trace: Trace) -> str | None:
    """The host that a trace was taken on, where its header names it."""
    names = ("host_name", "hostname", "hostName")
    host = next((trace.header[name] for name in names if trace.header.get(name)), None)
    return str(host)[:200] if host is not None else None


def _describe(evidence: Evidence) -> None:
    """The largest loss of each device in words; the largest of all is the cause."""
    worst = 0.0
    for device in evidence.devices:
        wall = device.busy_ms + device.idle_ms
        losses = {
            "idle device": device.idle_ms,
            "exposed communication": device.exposed_communication_ms,
            "exposed copies": device.copy_ms,
        }
        for name, loss in losses.items():
            share = loss / wall if wall else 0.0
            if share < _NOTABLE:
                continue
            evidence.findings.append(
                f"{_named(device)}: {name} for {share_words(share)} "
                f"of {wall:,.1f} ms ({loss:,.1f} ms)"
            )
            if share > worst:
                worst = share
                evidence.cause = name
        if device.unlaunched_ms:
            evidence.unknown.append(
                f"what {device.unlaunched_ms:,.1f} ms of work on {_named(device)} belong to, "
                "which was launched before the recording: left out, the device "
                "counts as idle there"
            )


def _named(device: TracedDevice) -> str:
    if device.rank is None:
        return device.name
    return f"rank {device.rank}, {device.name}"


def _compare(evidence: Evidence, traces: dict[int, Trace], wall: float) -> None:
    """Say how long each pipeline stage stands, and name the rank that the others wait for.

    Args:
        evidence: what is judged.
        traces: by rank.
        wall: time of the longest device or thread, ms.
    """
    reason = "its pipeline bubble, with the transfers"
    if not are_sure(traces):
        reason = "its pipeline bubble, or an all-to-all, which runs the same kernel"
    for rank, share in bubbles(traces).items():
        evidence.findings.append(
            f"rank {rank} computes nothing for {share_words(share)} of its time while it sends or "
            f"receives: {reason}"
        )
    split = waits(traces)
    if not split.collectives:
        evidence.unknown.append("who waits for whom: no collective is on all ranks alike")
        return
    for rank, waited in split.waited.items():
        evidence.findings.append(
            f"rank {rank} waited {waited:,.1f} ms in {split.collectives:,} collectives, and the "
            f"others {split.each[rank]:,.1f} ms each for it"
        )
    culprit = max(split.caused, key=lambda rank: split.caused[rank])
    lost = split.each[culprit]
    evidence.by_operation = {
        name: _slowdown(wall, waited / len(traces))
        for name, waited in sorted(split.by_operation.items(), key=lambda item: -item[1])
        if wall > 0
    }
    next_worst = max(value for rank, value in split.caused.items() if rank != culprit)
    alone = split.caused[culprit] >= _CLEARLY * next_worst
    if not alone or wall <= lost or lost < _SLOW * wall:
        return
    evidence.cause, evidence.rank = "slow rank", culprit
    evidence.host = _host(traces[culprit])
    evidence.slowdown = wall / (wall - lost)
    evidence.by_worker = {str(rank): _slowdown(wall, waited) for rank, waited in split.each.items()}


def _slowdown(wall: float, lost: float) -> float:
    """Factor by which a time is longer than without the part of it that is lost."""
    return wall / max(1e-9, wall - min(lost, wall - 1e-9))
