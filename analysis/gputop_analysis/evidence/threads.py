"""What the training threads of a trace did where it has no work of a device."""

from __future__ import annotations

from collections.abc import Mapping

from gputop_analysis.evidence.model import Evidence
from gputop_analysis.text import counted, share_words
from gputop_analysis.traces.load import Trace
from gputop_analysis.traces.model import COMM, COMPUTE, HOST, Lane
from gputop_analysis.traces.threads import thread_lanes

_LANES_SHOWN = 8
_HOT_SHOWN = 3
_NOTABLE = 0.1


def describe_threads(evidence: Evidence, traces: Mapping[int | None, Trace]) -> float:
    """Say how operators, collectives and what lies between share the time of each thread.

    Returns the wall time of the longest, ms.
    """
    worst = _NOTABLE
    longest_ms = 0.0
    shown = 0
    for rank, trace in traces.items():
        for lane in thread_lanes(trace):
            longest_ms = max(longest_ms, lane.wall_ms)
            if lane.wall_ms <= 0 or shown >= _LANES_SHOWN:
                continue
            shown += 1
            evidence.findings.append(_words(rank, lane))
            for cause, part in (
                ("exposed communication", COMM),
                ("time outside of operators", HOST),
            ):
                share = lane.parts_ms[part] / lane.wall_ms
                if share >= worst:
                    worst, evidence.cause = share, cause
    launches = sum(
        int(trace.rows_named(trace.launches, lambda name: "Launch" in name).sum())
        for trace in traces.values()
    )
    unknown = "what the GPU did: no device work is in it"
    if launches:
        unknown += f", though the host launched {counted(launches, 'kernel')}: "
        if any(trace.torn for trace in traces.values()):
            unknown += "such work is written last, and the file ends before it"
        else:
            unknown += "profile with ProfilerActivity.CUDA (or XPU), where the driver permits it"
    evidence.unknown.append(unknown)
    return longest_ms


def _words(rank: int | None, lane: Lane) -> str:
    shares = {name: part / lane.wall_ms for name, part in lane.parts_ms.items()}
    lane_name = lane.name if rank is None else f"rank {rank}, {lane.name}"
    words = f"{lane_name}: {share_words(shares[COMPUTE])} of {lane.wall_ms:,.1f} ms in operators"
    if lane.communication_ms:
        words += f", {share_words(shares[COMM])} in collectives alone"
    words += f", {share_words(shares[HOST])} outside them (Python, data, waiting)"
    hot = ", ".join(
        f"{operator.name[:60]} {share_words(operator.share)}" for operator in lane.hot[:_HOT_SHOWN]
    )
    return f"{words}; of the operators' own time: {hot}" if hot else words
