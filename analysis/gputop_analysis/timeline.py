"""A run as a timeline that Perfetto opens: the JSON trace-event format, one event a line.

Ranks are processes. Their steps and phases are slices, memory, waiting and loss are counters,
events and findings are instants; GPUs are processes with counters. A trace of torch.profiler in the
run's directory is laid on the same clock.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gputop_agent import wire
from gputop_analysis.findings import evaluate
from gputop_analysis.model import Finding
from gputop_analysis.report import finite
from gputop_analysis.units import GIB
from gputop_probes.record.reader import RunRecord

STEPS_AT_MOST = 50_000
"""Records of a rank, newest last: Perfetto in a browser takes a few million events."""
TRACE_BYTES_AT_MOST = 512 << 20
"""Of a torch.profiler trace; a larger one is left out, as it is read whole."""
_GPU_PIDS = 1_000_000
_TRACE_PIDS, _PIDS_A_TRACE = 2_000_000, 1000
_STEP_TID, _PHASE_TID, _EVENT_TID = 1, 2, 3
_TRACKS = {_STEP_TID: "steps", _PHASE_TID: "phases", _EVENT_TID: "events"}
_COUNTERS = {
    "allocated GiB": "allocated_bytes",
    "reserved GiB": "reserved_bytes",
    "RSS GiB": "rss_bytes",
}
_GPU_COUNTERS = ("util_pct", "power_w", "temperature_c", "sm_clock_mhz")
_INSTANTS = (
    *("hang_suspected", "hang_over", "oom", "exception", "rank_start", "rank_lost"),
    *("profile", "goodbye"),
)

Event = dict[str, Any]


def to_timeline(record: RunRecord) -> Iterator[str]:
    """Lines of a JSON object ``{"traceEvents": [...]}``; times: us since the run's start."""
    start_ns = _start_ns(record)
    about = {
        "run": record.path.name,
        "start_unix_ns": start_ns,
        "phases": "their lengths are measured, their order within a step is not",
    }
    yield '{"displayTimeUnit": "ms", "otherData": ' + json.dumps(about) + ', "traceEvents": ['
    before = ""
    for event in _events(record, start_ns):
        yield before + json.dumps(finite(event), allow_nan=False, default=str)
        before = ","
    yield "]}"


def _start_ns(record: RunRecord) -> int:
    starts = [record.manifest.created_ns]
    for rank in record.ranks():
        first = record.steps(rank)[0]
        starts.append(int(first["t_end_ns"]) - int(first["wall_ns"]))
    return min(start for start in starts if start)


def _events(record: RunRecord, start_ns: int) -> Iterator[Event]:
    for rank in record.ranks():
        yield from _names(rank, f"rank {rank}", _host_of(record, rank), _TRACKS)
        yield from _of_rank(rank, np.asarray(record.steps(rank)[-STEPS_AT_MOST:]), start_ns)
        yield from _waits(rank, np.asarray(record.comm(rank)[-STEPS_AT_MOST:]), start_ns)
    yield from _gpus(record.measured(), start_ns)
    yield from _instants(record, start_ns)
    for number, path in enumerate(sorted((record.path / "traces").glob("*.json*"))):
        yield from _profile(path, _TRACE_PIDS + _PIDS_A_TRACE * number, start_ns)


def _host_of(record: RunRecord, rank: int) -> str:
    return str((record.hello(rank) or {}).get("host") or next(iter(record.hosts), ""))


def _names(pid: int, name: str, host: str, tracks: dict[int, str]) -> Iterator[Event]:
    yield _meta(pid, 0, "process_name", name=f"{name} ({host})" if host else name)
    yield _meta(pid, 0, "process_sort_index", sort_index=pid)
    for tid, track in tracks.items():
        yield _meta(pid, tid, "thread_name", name=track)


def _meta(pid: int, tid: int, kind: str, **args: Any) -> Event:
    return {"ph": "M", "ts": 0, "pid": pid, "tid": tid, "name": kind, "args": args}


def _us(t_ns: int, start_ns: int) -> float:
    return max(0, t_ns - start_ns) / 1000


def _counter(pid: int, name: str, ts: float, value: float) -> Event:
    return {"ph": "C", "ts": ts, "pid": pid, "tid": 0, "name": name, "args": {"value": value}}


def _of_rank(rank: int, rows: Any, start_ns: int) -> Iterator[Event]:
    """Slices and counters of one rank; a slice begins no earlier than the one before it ended."""
    ended_ns = start_ns
    for row in rows:
        end_ns, wall_ns = int(row["t_end_ns"]), int(row["wall_ns"])
        begin_ns = max(end_ns - wall_ns, ended_ns)
        ended_ns = max(begin_ns, end_ns)
        last, count = int(row["step"]), int(row["n_steps"])
        if count == 1:
            name = f"step {last}"
        else:
            name = f"steps {last - count + 1} to {last}"
        step_slice = _slice(
            rank, _STEP_TID, name, begin_ns=begin_ns, end_ns=ended_ns, start_ns=start_ns
        )
        step_slice["args"] = {"loss": float(row["loss"]), "lr": float(row["lr"]), "steps": count}
        yield step_slice
        yield from _phases(rank, row, begin_ns, ended_ns, start_ns)
        yield from _rank_counters(rank, row, _us(ended_ns, start_ns))


def _phases(rank: int, row: Any, begin_ns: int, end_ns: int, start_ns: int) -> Iterator[Event]:
    at_ns = begin_ns
    for phase in wire.PHASES:
        until_ns = min(at_ns + int(row[f"{phase}_ns"]), end_ns)
        if until_ns > at_ns:
            yield _slice(
                rank, _PHASE_TID, phase, begin_ns=at_ns, end_ns=until_ns, start_ns=start_ns
            )
        at_ns = until_ns


def _slice(pid: int, tid: int, name: str, *, begin_ns: int, end_ns: int, start_ns: int) -> Event:
    return {
        "ph": "X",
        "ts": _us(begin_ns, start_ns),
        "dur": max(0, end_ns - begin_ns) / 1000,
        "pid": pid,
        "tid": tid,
        "name": name,
        "cat": "gputop",
    }


def _rank_counters(rank: int, row: Any, ts: float) -> Iterator[Event]:
    for name, column in _COUNTERS.items():
        if int(row[column]) >= 0:
            yield _counter(rank, name, ts, int(row[column]) / GIB)
    if math.isfinite(float(row["loss"])):
        yield _counter(rank, "loss", ts, float(row["loss"]))
    yield _counter(rank, "comm ms a step", ts, int(row["comm_ns"]) / int(row["n_steps"]) / 1e6)


def _waits(rank: int, rows: Any, start_ns: int) -> Iterator[Event]:
    newest = 0.0
    for row in rows:
        newest = max(newest, _us(int(row["t_end_ns"]), start_ns))
        yield _counter(rank, "wait ms", newest, int(row["wait_ns"]) / 1e6)


def _gpus(record: RunRecord, start_ns: int) -> Iterator[Event]:
    pid = _GPU_PIDS
    for host in record.hosts.values():
        rows = np.asarray(host.gpu.rows[-STEPS_AT_MOST:])
        for index in np.unique(rows["index"]):
            pid += 1
            yield from _names(pid, f"GPU {index}", host.name, {})
            for row in rows[rows["index"] == index]:
                yield from _gpu_counters(pid, row, _us(int(row["t_ns"]), start_ns))


def _gpu_counters(pid: int, row: Any, ts: float) -> Iterator[Event]:
    for name in _GPU_COUNTERS:
        if math.isfinite(float(row[name])):
            yield _counter(pid, name, ts, float(row[name]))
    if int(row["memory_used_bytes"]) >= 0:
        yield _counter(pid, "memory GiB", ts, int(row["memory_used_bytes"]) / GIB)


def _instants(record: RunRecord, start_ns: int) -> Iterator[Event]:
    """Events at their time, findings at the end of what they were judged from."""
    ranks = record.ranks()
    if not ranks:
        return
    events = [
        _instant(int(event.get("rank", ranks[0])), event["type"], event["t_ns"], start_ns)
        for event in record.events(*_INSTANTS)
    ]
    ends = {rank: int(record.steps(rank)[-1]["t_end_ns"]) for rank in ranks}
    for finding in evaluate(record):
        rank = finding.rank if finding.rank in ends else ranks[0]
        event = _instant(rank, f"{finding.id} {finding.title}", ends[rank], start_ns)
        events.append({**event, "args": _finding(finding)})
    yield from sorted(events, key=lambda event: (event["pid"], event["ts"]))


def _instant(pid: int, name: str, t_ns: int, start_ns: int) -> Event:
    return {
        "ph": "i",
        "s": "p",
        "ts": _us(t_ns, start_ns),
        "pid": pid,
        "tid": _EVENT_TID,
        "name": name,
        "cat": "gputop",
    }


def _finding(finding: Finding) -> dict[str, Any]:
    names = ("severity", "site", "evidence", "fix", "recoverable_ms_per_step", "confidence")
    return {name: getattr(finding, name) for name in names}


def _profile(path: Path, first_pid: int, start_ns: int) -> Iterator[Event]:
    """The events of a trace of torch.profiler, moved to the run's clock, with pids and flows of
    their own: several ranks' traces have the same. Marks of the profiler itself, whose processes
    are words, are left out.
    """
    try:
        trace = _loaded(path)
        base_us = (int(trace.get("baseTimeNanoseconds") or 0) - start_ns) / 1000
    except (OSError, TypeError, ValueError, EOFError):
        return
    events = [e for e in trace.get("traceEvents") or () if isinstance(e, dict) and "ph" in e]
    events = [event for event in events if isinstance(event.get("pid", 0), int)]
    named = {e.get("pid", 0): _name_in(e) for e in events if e.get("name") == "process_name"}
    label = path.name.partition(".")[0]
    pids: dict[int, int] = {}
    for event in events:
        pid = event.get("pid", 0)
        if pid not in pids:
            pids[pid] = first_pid + len(pids)
            name = f"{label}: {named.get(pid, pid)}"
            yield _meta(pids[pid], 0, "process_name", name=name)
        moved = _moved(event, pids[pid], base_us)
        if moved is not None and event.get("name") != "process_name":
            yield moved


def _name_in(event: Event) -> Any:
    arguments = event.get("args")
    return arguments.get("name") if isinstance(arguments, dict) else None


def _moved(event: Event, pid: int, base_us: float) -> Event | None:
    """The event under another pid on the run's clock; None where it has no time on it."""
    moved = {**event, "pid": pid}
    if "id" in event:
        moved["id"] = f"{pid // _PIDS_A_TRACE}:{event['id']}"
    if event["ph"] == "M":
        return {**moved, "ts": 0}
    if not isinstance(event.get("ts"), (int, float)):
        return None
    moved["ts"] = event["ts"] + base_us
    return moved if moved["ts"] >= 0 else None


def _loaded(path: Path) -> dict[str, Any]:
    """A trace as JSON.

    Raises:
        ValueError: it is too large, or no trace.
    """
    if path.stat().st_size > TRACE_BYTES_AT_MOST:
        raise ValueError("too large")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        trace = json.loads(file.read(TRACE_BYTES_AT_MOST))
    if not isinstance(trace, dict):
        raise ValueError("no trace")
    return trace
