"""The outcome of ``gputop run --calibrate``: figures for the rest of a run, or why not."""

from __future__ import annotations

from gputop_analysis.calibrate import stable
from gputop_analysis.text import counted, ms
from gputop_analysis.trial import held, timing
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord


def outcome(record: RunRecord) -> str:
    """One line; the step time with the spread of its block medians."""
    view, judged = RunView(record), stable(record)
    time = timing(view)
    if time is None:
        return f"not calibrated: {'; '.join(judged.reasons) or 'no step could be measured'}"
    parts = [f"{ms(time.step_ms)} ms a step" + _spread(judged.step_time_cv)]
    if time.tokens_per_s:
        parts.append(f"{time.tokens_per_s:,.0f} tokens/s")
    elif time.samples_per_s:
        parts.append(f"{time.samples_per_s:,.0f} samples/s")
    parts += _memory(view)
    figures = f"{', '.join(parts)} over {counted(time.steps, 'step')}"
    if judged.stable:
        return f"calibrated: {figures}"
    return f"not calibrated ({'; '.join(judged.reasons)}); so far {figures}"


def _spread(variation: float) -> str:
    return f" (+-{100 * variation:.1f} %)" if variation == variation else ""


def _memory(view: RunView) -> list[str]:
    ranks = held(view)
    reserved = [line.reserved_gib for line in ranks if line.reserved_gib is not None]
    host = [line.rss_gib for line in ranks if line.rss_gib is not None]
    result = [f"GPU memory {max(reserved):.2f} GiB"] if reserved else []
    return [*result, *([f"host memory {max(host):.2f} GiB"] if host else [])]
