"""GPU and host meters, one line a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop.feed.snapshot import Snapshot
from gputop.render import numbers
from gputop.render.bars import spark
from gputop.render.rows import Row, left, right, row_width, say, shorten
from gputop.widgets.scrolling import ScrollingPanel

if TYPE_CHECKING:
    from gputop_analysis.model import GpuSummary, HostSummary

NAME = 9


def draw(snapshot: Snapshot, width: int, height: int, first: int = 0) -> list[Row]:
    """GPUs first, then hosts, ``first`` lines scrolled away; a figure that does not fit is left out, never cut."""
    run = snapshot.summary
    room = 3 * len(run.hosts) if first else height - len(run.gpus)
    rows: list[Row] = [_gpu(gpu, snapshot, width) for gpu in run.gpus]
    for host in run.hosts:
        rows += _host(host, snapshot, width, spacious=room >= 3 * len(run.hosts))
    return (
        rows[first : first + height] if rows else say("Meters start with the first sample.", width)
    )


def _gpu(gpu: GpuSummary, snapshot: Snapshot, width: int) -> Row:
    series = snapshot.history.of(f"gpu {gpu.host} {gpu.index}")
    cells = min(30, max(8, width - 60))
    row: Row = [(left(f"GPU {gpu.index}", NAME), "text"), *spark(series, cells, 100, "meter")]
    fields = [
        _field(_whole(gpu.util_pct), "%", 4),
        _field(_whole(gpu.power_w), f"/ {_whole(gpu.power_limit_w)} W", 5),
        _field(_whole(gpu.temperature_c), "°C", 4),
        _field(_whole(gpu.sm_clock_mhz), f"/ {_whole(gpu.sm_clock_max_mhz)} MHz", 6),
    ]
    return append_fitting(row, fields, width)


def _host(host: HostSummary, snapshot: Snapshot, width: int, spacious: bool) -> list[Row]:
    series = snapshot.history.of(f"cpu {host.host}")
    cells = min(30, max(8, width - 60))
    name = shorten(host.host, NAME - 1) if len(snapshot.summary.hosts) > 1 else "CPU"
    row: Row = [(left(name, NAME), "text"), *spark(series, cells, 100, "meter")]
    cpu = [
        _field(_whole(host.cpu_pct), f"% of {host.cpu_count} cores", 4),
    ]
    if numbers.known(host.run_wait_share):
        cpu.append(_field(f"{host.run_wait_share * 100:.0f}", "% waiting for a core", 4))
    rest = [
        _field(
            numbers.gib(host.memory_used_gib),
            f"/ {numbers.gib(host.memory_total_gib)} GiB memory",
            5,
        ),
        _field(numbers.rate(host.disk_read_mb_s), "read", 5),
        _field(numbers.rate(host.disk_write_mb_s), "written MB/s", 5),
    ]
    if not spacious:
        return [append_fitting(row, cpu + rest, width)]
    second = append_fitting(
        [(left("memory", NAME), "text")], [(rest[0][0], rest[0][1].removesuffix(" memory"))], width
    )
    third = append_fitting([(left("disk", NAME), "text")], rest[1:], width)
    return [append_fitting(row, cpu, width), second, third]


def _field(value: str, unit: str, cells: int) -> tuple[str, str]:
    return right(value, cells), unit


def _whole(value: float) -> str:
    return f"{value:,.0f}" if numbers.known(value) else numbers.NONE


def append_fitting(row: Row, fields: list[tuple[str, str]], width: int) -> Row:
    """The row with as many of the ``(value, unit)`` fields as fit."""
    for value, unit in fields:
        field: Row = [("  " + value, "text"), (" " + unit, "muted")]
        if row_width(row) + row_width(field) <= width:
            row = row + field
    return row


class Meters(ScrollingPanel):
    """Panel 4."""

    def item_count(self, snapshot: Snapshot) -> int:
        return len(snapshot.summary.gpus) + len(snapshot.summary.hosts)

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        return draw(snapshot, width, height, self.first)
