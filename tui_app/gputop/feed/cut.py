"""A record as it was at a moment, of a whole one's type: the same analysis runs over it."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from gputop_agent.wire import F_FIRST
from gputop_probes.record import layout
from gputop_probes.record.events import GrowingLines
from gputop_probes.record.reader import GrowingTable, HostFiles, RunRecord, Table


class _Fixed(GrowingTable):
    """Rows that do not grow."""

    def __init__(self, source: GrowingTable, rows: Table):
        super().__init__(source.path, source.dtype, source.table)
        self.rows = rows
        self.damaged, self.unread, self.problem = source.damaged, source.unread, source.problem
        self._places = source._places

    def refresh(self) -> bool:
        return False


class _FixedLines(GrowingLines):
    """Events that do not grow."""

    def __init__(self, source: GrowingLines, until_ns: int):
        super().__init__(source.path)
        times = [int(item.get("t_ns", 0)) for item in source.items]
        self.items = source.items[: bisect_right(times, until_ns)]
        self.damaged, self.left_out = source.damaged, source.left_out
        self.unread_bytes, self.problem = source.unread_bytes, source.problem

    def refresh(self) -> bool:
        return False


def cut(record: RunRecord, at_ns: int) -> RunRecord:
    """``record`` without what was written after ``at_ns``. Rows are views: nothing is copied."""
    hosts = {name: _cut_host(host, at_ns) for name, host in record.hosts.items()}
    tables = {
        key: _cut_table(table, "t_end_ns", at_ns) for key, table in record._rank_tables.items()
    }
    return RunRecord(
        record.path, record.manifest, hosts, tables, manifest_problem=record.manifest_problem
    )


def output_lengths(part: RunRecord) -> dict[str, int] | None:
    """Bytes of each log, by its path within the record, when ``part`` ends; None where an older
    record does not tell.
    """
    lengths: dict[str, int] = {}
    for name, host in part.hosts.items():
        rows = host.host.rows
        if not layout.LATER_COLUMNS["host"] <= set(rows.dtype.names or ()):
            return None
        for log, column in layout.LOG_LENGTHS.items():
            if len(rows):
                lengths[f"hosts/{name}/{log}"] = int(rows[column][-1])
            else:
                lengths[f"hosts/{name}/{log}"] = 0
    return lengths


def _cut_table(table: GrowingTable, column: str, at_ns: int) -> GrowingTable:
    return _Fixed(table, table.rows[: _count_until(table.rows, column, at_ns)])


def _count_until(rows: Table, column: str, at_ns: int) -> int:
    """Rows up to ``at_ns``, by bisection over the mapped file; NumPy's would copy the column."""
    return bisect_right(rows[column], at_ns) if len(rows) else 0


def _cut_host(host: HostFiles, at_ns: int) -> HostFiles:
    state = host.state
    changes: dict[str, Any] = {}
    if state.ended_ns is None or at_ns < state.ended_ns:
        changes = {"state": "running", "ended_ns": None, "exit_code": None, "signal": None}
    return HostFiles(
        name=host.name,
        path=host.path,
        gpu=_cut_table(host.gpu, "t_ns", at_ns),
        host=_cut_table(host.host, "t_ns", at_ns),
        process=_cut_table(host.process, "t_ns", at_ns),
        events=_FixedLines(host.events, at_ns),
        state=state.model_copy(update=changes),
        state_problem=host.state_problem,
    )


def span(record: RunRecord) -> tuple[int, int]:
    """First and last moment of a record, in nanoseconds since the epoch."""
    starts = [h.state.started_ns for h in record.hosts.values() if h.state.started_ns] or [
        record.manifest.created_ns
    ]
    ends = [h.state.ended_ns for h in record.hosts.values() if h.state.ended_ns]
    for rank in record.ranks():
        rows = record.steps(rank)
        ends.append(int(rows["t_end_ns"][-1]))
        if not rows["flags"][0] & F_FIRST:
            starts.append(int(rows["t_end_ns"][0] - rows["wall_ns"][0]))
    start = min(starts)
    return start, max([*ends, start + 1])


def first_step_ns(record: RunRecord) -> int:
    """When the first step of any rank had ended; the start of a record without one."""
    return min(
        (int(record.steps(rank)["t_end_ns"][0]) for rank in record.ranks()), default=span(record)[0]
    )
