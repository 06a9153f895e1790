"""An analysed trace as data and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gputop_analysis.text import bar, ms, paragraphs, wrap
from gputop_analysis.traces.model import COMM, Lane, TraceReport

_SHOWN_STEPS = 12
_SHOWN_COLLECTIVES = 8
_SHOWN_HOT = 10


def as_dict(report: TraceReport) -> dict[str, Any]:
    """See ``TraceReport.to_dict``."""
    data = asdict(report)
    data["math_attention"] = report.math_attention
    for lane, analysed in zip(data["lanes"], report.lanes, strict=True):
        lane["overlapped"] = analysed.overlapped
    return data


def as_text(report: TraceReport, width: int) -> str:
    """See ``TraceReport.to_text``."""
    width = max(60, width)
    parts = [list(_head(report, width))]
    for lane in report.lanes:
        for part in (_split(lane, width), _collectives(lane, width), _hot(lane, width)):
            parts.append(list(part))
        parts.append(list(_steps(lane, width)))
    parts += [list(_calls(report, width)), list(remarks(report))]
    return paragraphs(parts, width)


def remarks(report: TraceReport) -> Iterator[str]:
    """Sentences on what stands out."""
    if report.math_attention:
        n = report.attention["math"]
        yield (
            f"math attention: {n:,} calls keep the whole score matrix (CE06): "
            "use a mask and dtype that flash takes"
        )
    for lane in report.lanes:
        share = 0.0
        if lane.wall_ms:
            share = lane.parts_ms[COMM] / lane.wall_ms
        if lane.communication_ms and share >= 0.1:
            yield f"{lane.name}: {100 * share:.0f} % of the time is exposed communication (CR06)"
        waiting = 0.0
        if lane.wall_ms:
            waiting = lane.parts_ms.get("host_wait", 0.0) / lane.wall_ms
        if waiting >= 0.3:
            yield (
                f"{lane.name}: idle for {100 * waiting:.0f} % of the "
                "time because the host had launched nothing (HO01)"
            )


def _head(report: TraceReport, width: int) -> Iterator[str]:
    rank = ""
    if report.rank is not None:
        rank = f", rank {report.rank} of {report.world_size}"
    yield from wrap(f"trace {report.path}: {report.events:,} events{rank}", width)
    if report.torn:
        yield f"the file is not whole ({report.torn}): this is what it still has"
    if not report.lanes:
        yield "no device and no training thread in it"


def _split(lane: Lane, width: int) -> Iterator[str]:
    yield f"{lane.name}: {ms(lane.wall_ms)} ms"
    room = max(6, min(30, width - 48))
    for name in _shown_parts(lane):
        value = lane.parts_ms[name]
        share = 0.0
        if lane.wall_ms:
            share = value / lane.wall_ms
        label = name.replace("_", " ") + (" (exposed)" if name == COMM else "")
        yield (
            f"  {label:<24}{ms(value):>10} ms{share * 100:>6.1f} %  {bar(share, room, False)}"
        ).rstrip()
    if lane.overlapped is not None:
        hidden = f"{100 * lane.overlapped:.0f} % hidden behind compute"
        yield f"  communication in all    {ms(lane.communication_ms):>10} ms, {hidden}"


def _collectives(lane: Lane, width: int) -> Iterator[str]:
    if not lane.collectives:
        return
    room = width - 52
    yield f"{'collective':<{room}}{'calls':>9}{'total ms':>12}{'exposed ms':>12}{'MiB':>11}"
    for collective in lane.collectives[:_SHOWN_COLLECTIVES]:
        if collective.bytes is None:
            size = "-"
        else:
            size = f"{collective.bytes / 2**20:,.1f}"
        name = _short(collective.name, room - 1)
        times = f"{ms(collective.total_ms):>12}{ms(collective.exposed_ms):>12}"
        yield f"{name:<{room}}{collective.count:>9,}{times}{size:>11}"
    yield from _more(len(lane.collectives) - _SHOWN_COLLECTIVES)


def _hot(lane: Lane, width: int) -> Iterator[str]:
    if not lane.hot:
        return
    if lane.kind == "device":
        heading = "kernel"
    else:
        heading = "operator (self time)"
    room = width - 36
    yield f"{heading:<{room}}{'calls':>10}{'total ms':>14}{'share':>12}"
    for operation in lane.hot[:_SHOWN_HOT]:
        name = _short(operation.name, room - 1)
        time = f"{ms(operation.total_ms):>14}{operation.share * 100:>10.1f} %"
        yield f"{name:<{room}}{operation.count:>10,}{time}"


def _steps(lane: Lane, width: int) -> Iterator[str]:
    if not lane.steps:
        return
    names = _shown_parts(lane)
    yield f"{'step':<10}{'wall ms':>10}" + "".join(f"{_column(name):>12}" for name in names)
    for step in lane.steps[:_SHOWN_STEPS]:
        figures = "".join(f"{ms(step.parts_ms[name]):>12}" for name in names)
        yield f"{step.name:<10}{ms(step.wall_ms):>10}{figures}"
    yield from _more(len(lane.steps) - _SHOWN_STEPS)


def _calls(report: TraceReport, width: int) -> Iterator[str]:
    if not report.calls:
        return
    room = width - 24
    yield f"{'host waits for the device in':<{room}}{'calls':>10}{'total ms':>14}"
    for call in report.calls:
        yield f"{_short(call.name, room - 1):<{room}}{call.count:>10,}{ms(call.total_ms):>14}"


def _shown_parts(lane: Lane) -> list[str]:
    """Those that the lane had at all, and always the first."""
    return [
        name for index, (name, value) in enumerate(lane.parts_ms.items()) if value or index == 0
    ]


def _column(name: str) -> str:
    return {"communication": "comm", "kernel_wait": "kernel wait", "host_wait": "host wait"}.get(
        name, name
    )


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"and {count} more"


def _short(name: str, room: int) -> str:
    if len(name) <= room:
        return name
    return name[: max(1, room - 2)] + ".."
