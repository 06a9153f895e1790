"""What is seen on the screen as Markdown, JSON or CSV. Pure functions of one snapshot."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict, is_dataclass
from typing import Any

from gputop.feed.snapshot import Snapshot
from gputop.render import numbers
from gputop.spreadsheet import cell
from gputop_agent.wire import PHASES
from gputop_analysis.text import counted
from gputop_probes.record.plain import plain_line


def finite(value: Any) -> Any:
    """The same value for JSON: records as objects by field, NaN and infinity as None."""
    if is_dataclass(value) and not isinstance(value, type):
        return finite(asdict(value))
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return finite(value._asdict())  # type: ignore[attr-defined]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def json_text(snapshot: Snapshot) -> str:
    """The summary, the verdict and the findings."""
    data = {
        "run": plain_line(snapshot.run_dir.name),
        "recording": snapshot.recording,
        "verdict": snapshot.verdict,
        "summary": snapshot.summary,
        "findings": snapshot.findings,
    }
    return json.dumps(finite(data), indent=1, default=str) + "\n"


def csv_text(snapshot: Snapshot) -> str:
    """One line a rank: step time, waiting and the mean of each phase, ms; memory in GiB."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["rank", "host", "steps", "step_time_p50_ms", "step_time_p95_ms", "wait_mean_ms"]
    writer.writerow(
        [*head, *(f"{phase}_mean_ms" for phase in PHASES), "peak_allocated_gib", "peak_rss_gib"]
    )
    for rank in snapshot.summary.ranks:
        figures = [rank.step_time_p50_ms, rank.step_time_p95_ms, rank.wait_mean_ms]
        figures += [rank.phases_mean_ms.get(phase, 0.0) for phase in PHASES]
        figures += [rank.peak_allocated_gib, rank.peak_rss_gib]
        writer.writerow(
            [
                rank.rank,
                cell(rank.host),
                rank.steps,
                *("" if math.isnan(v) else f"{v:.6g}" for v in figures),
            ]
        )
    return out.getvalue()


def markdown(snapshot: Snapshot) -> str:
    """A report that reads well in an issue."""
    from gputop_analysis.report.markdown import code, plain
    from gputop_analysis.step_parts import parts_of

    run = snapshot.summary
    command = code(" ".join(run.command))
    pace = f"{counted(run.steps, 'step')}, {numbers.duration_ms(run.step_time_p50_ms)} p50, "
    pace += (
        f"{numbers.duration_ms(run.step_time_p95_ms)} p95, {numbers.rate(run.steps_per_s)} steps/s"
    )
    lines = [
        f"**{snapshot.verdict.health}**: {plain(snapshot.verdict.headline)}",
        "",
        command,
        "",
        pace,
    ]
    if snapshot.recording:
        lines += ["", f"Recording: {plain(snapshot.recording)}"]
    lines += ["", "| phase | mean ms | p50 ms | p95 ms | share |", "|---|--:|--:|--:|--:|"]
    for part in parts_of(run):
        if part.share > 0:
            figures = " | ".join(numbers.ms(v) for v in (part.mean_ms, part.p50_ms, part.p95_ms))
            lines.append(f"| {part.name} | {figures} | {numbers.percent(part.share)} |")
    if len(run.ranks) > 1:
        lines += ["", "| rank | host | step p50 ms | wait ms |", "|--:|---|--:|--:|"]
        lines += [
            f"| {r.rank} | {plain(r.host)} | {numbers.ms(r.step_time_p50_ms)} | "
            f"{numbers.ms(r.wait_mean_ms)} |"
            for r in run.ranks
        ]
    for finding in snapshot.findings:
        lines += [
            "",
            f"**{finding.id} {finding.severity}**: {plain(finding.title)}",
            "",
            plain(finding.evidence),
            "",
            f"Fix: {plain(finding.fix)}",
        ]
    return "\n".join(lines) + "\n"
