"""What is added to a report on request: an analysed trace, a comparison with another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.notices import notice
from gputop.cli.records import open_record, refuse_without_steps

if TYPE_CHECKING:
    from gputop_analysis.report import Extra
    from gputop_probes.record.reader import RunRecord

UNASKED_BYTES = 200 << 20
"""A larger trace is analysed only when it is named: that takes more than a few seconds."""


def open_baseline(name: str, record: RunRecord) -> RunRecord:
    """The run called ``name``, that ``record`` is compared with.

    Raises:
        CliError: there is no such run, or one of both has no step.
    """
    baseline = open_record(name)
    refuse_without_steps(baseline, f"the baseline {name}")
    refuse_without_steps(record, "this run")
    return baseline


def baseline_extra(
    record: RunRecord, baseline: RunRecord, threshold: float, width: int, colour: bool
) -> Extra:
    """The comparison of a run with its baseline; the exit code is that of ``gputop diff``."""
    from gputop_analysis.diff import compare, diff_data, diff_text
    from gputop_analysis.html.comparison import comparison
    from gputop_analysis.report import Extra

    comparison_ = compare(baseline, record, threshold)
    data = json.loads(json.dumps(diff_data(comparison_), default=str))
    text = f"compared with the baseline\n{diff_text(comparison_, width, colour)}"
    return Extra("baseline", data, text, comparison(comparison_), comparison_.exit_code)


def trace_extra(path: Path, width: int) -> Extra:
    """The analysis of one trace.

    Raises:
        CliError: it cannot be read, or is no trace of torch.profiler.
    """
    from gputop_analysis.report import Extra
    from gputop_analysis.traces import TraceError, analyse_trace
    from gputop_analysis.traces.html import as_html
    from gputop_analysis.traces.text import as_dict, as_text

    with cli_errors(TraceError):
        analysed = analyse_trace(path)
    return Extra("trace", as_dict(analysed), as_text(analysed, width), as_html(analysed))


def found_trace(run_dir: Path, width: int) -> Extra | None:
    """The analysis of the newest readable trace in the run's directory; or None."""
    from gputop_analysis.traces import find_traces

    traces = sorted(find_traces(run_dir), key=lambda path: path.stat().st_mtime)
    if not traces:
        return None
    newest = traces[-1]
    if newest.stat().st_size > UNASKED_BYTES:
        notice(f"a large trace was not read; to analyse it, add --trace {newest}")
        return None
    try:
        return trace_extra(newest, width)
    except CliError as error:
        notice(str(error))
        return None
