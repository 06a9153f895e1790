"""Analyses traces of torch.profiler (Kineto): ``analyse_trace(path) -> TraceReport``.

A file is streamed, so that one of 2 GB fits in 1 GB of memory; times are whole nanoseconds, so that
the parts of a window add up to it exactly.
"""

from __future__ import annotations

import os
from pathlib import Path

from gputop_analysis.traces.model import TraceReport
from gputop_analysis.traces.scan import TraceError
from gputop_probes.record.files import is_regular

__all__ = ["TraceError", "TraceReport", "analyse_trace", "find_traces"]

_PATTERNS = ("*.pt.trace.json", "*.pt.trace.json.gz", "*trace*.json", "*trace*.json.gz")


def analyse_trace(path: str | os.PathLike[str]) -> TraceReport:
    """Analyse one trace, ``.json`` or ``.json.gz``; a cut-off one as far as it goes
    (``TraceReport.torn``).

    Raises:
        TraceError: it cannot be read or is no trace of torch.profiler; the message is one line.
    """
    from gputop_analysis.traces.device import device_lanes
    from gputop_analysis.traces.load import load
    from gputop_analysis.traces.summary import attention_calls, distributed_info, waiting_calls
    from gputop_analysis.traces.threads import host_operators, thread_lanes

    trace = load(path)
    lanes = device_lanes(trace) or thread_lanes(trace)
    rank, world_size = distributed_info(trace)
    return TraceReport(
        path=str(path),
        events=trace.events,
        torn=trace.torn,
        lanes=tuple(lanes),
        operators=host_operators(trace),
        calls=waiting_calls(trace),
        attention=attention_calls(trace),
        rank=rank,
        world_size=world_size,
    )


def find_traces(run_dir: Path) -> list[Path]:
    """Traces that lie in a run's directory, by name; ``gputop`` writes its own to ``traces/``."""
    folders = (run_dir, run_dir / "traces")
    paths = {path for folder in folders for pattern in _PATTERNS for path in folder.glob(pattern)}
    return sorted(path for path in paths if is_regular(path))
