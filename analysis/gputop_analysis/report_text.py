"""The report as text: verdict, header, phases, ranks, devices, findings, loss."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

import numpy as np

from gputop_analysis.model import Finding, RunSummary, Verdict
from gputop_analysis.series import thinned
from gputop_analysis.text import LABEL, bar, duration, gib, ms, painted, plain_ascii, sparkline, wrapped
from gputop_probes.record.reader import RunRecord

_GLYPHS = {"critical": "✖", "high": "▲", "medium": "●", "info": "·"}
_ASCII_GLYPHS = {"critical": "X", "high": "!", "medium": "*", "info": "-"}
_HEALTH_STYLE = {
    "waiting": "info",
    "healthy": "good",
    "ended": "good",
    "attention": "medium",
    "critical": "critical",
    "failed": "critical",
}
RANKS_SHOWN = 16


def render(
    record: RunRecord, summary: RunSummary, findings: list[Finding], verdict: Verdict, width: int, colour: bool
) -> str:
    """The whole report; every line is at most ``width`` columns."""
    width = max(40, width)
    parts = (
        _verdict(verdict, width, colour),
        _header(record, summary, width),
        _phases(summary, width, colour),
        _ranks(summary, width),
        _gpus(summary, width),
        _findings(findings, width, colour),
        _loss(record, width, colour),
    )
    text = "\n\n".join("\n".join(part) for part in map(list, parts) if part)
    return text if colour else plain_ascii(text)


def _verdict(verdict: Verdict, width: int, colour: bool) -> Iterator[str]:
    for line in textwrap.wrap(verdict.headline, width):
        yield painted(line, _HEALTH_STYLE[verdict.health], colour)


def _header(record: RunRecord, s: RunSummary, width: int) -> Iterator[str]:
    command = " ".join(s.command)
    yield f"{'command':<9} {command if len(command) <= width - 10 else command[: width - 13] + '...'}"
    if record.manifest.recording:
        yield f"{'recording':<9} {record.manifest.recording}"[:width]
    done = f"{s.steps:,} of {s.total_steps:,}" if s.total_steps else f"{s.steps:,}"
    ranks = "1 rank" if s.world_size == 1 else f"{s.world_size} ranks"
    yield f"{'steps':<9} {done}, {ranks}, {duration(((s.ended_ns or s.now_ns) - s.started_ns) / 1e9)}"
    rates = [f"{s.steps_per_s:,.4g} steps/s"]
    rates += [f"{s.samples_per_s:,.0f} samples/s"] if s.samples_per_s else []
    rates += [f"{s.tokens_per_s:,.0f} tokens/s"] if s.tokens_per_s else []
    yield f"{'speed':<9} {', '.join(rates)}"
    yield f"{'step':<9} p50 {ms(s.step_time_p50_ms)} ms, p95 {ms(s.step_time_p95_ms)} ms"


def _phases(s: RunSummary, width: int, colour: bool) -> Iterator[str]:
    shown = [phase for phase in s.phases if phase.share > 0]
    if not shown:
        return
    room = max(6, min(40, width - 52))
    yield painted(f"{'phase':<12}{'mean ms':>10}{'p50':>9}{'p95':>9}{'share':>8}", "bold", colour)
    for phase in sorted(shown, key=lambda p: -p.share):
        figures = f"{ms(phase.mean_ms):>10}{ms(phase.p50_ms):>9}{ms(phase.p95_ms):>9}{phase.share * 100:>6.1f} %"
        yield f"{phase.name:<12}{figures}  {bar(phase.share, room, colour)}".rstrip()


def _ranks(s: RunSummary, width: int) -> Iterator[str]:
    if not s.ranks:
        return
    on_gpu = any(math.isfinite(r.peak_allocated_gib) for r in s.ranks)
    wide = width >= 80
    memory = "peak GiB" if on_gpu else "RSS GiB"
    yield _rank_line("rank", "steps", "p50 ms", "p95 ms", "wait ms", memory, "dropped", wide) + "  host"
    for r in s.ranks[:RANKS_SHOWN]:
        held = gib(r.peak_allocated_gib if on_gpu else r.peak_rss_gib)
        times = ms(r.step_time_p50_ms), ms(r.step_time_p95_ms), ms(r.wait_mean_ms)
        yield _rank_line(str(r.rank), f"{r.steps:,}", *times, held, f"{r.dropped_records:,}", wide) + f"  {r.host[:14]}"
    if len(s.ranks) > RANKS_SHOWN:
        yield f"     and {len(s.ranks) - RANKS_SHOWN} more ranks (--json lists them all)"


def _rank_line(rank: str, steps: str, p50: str, p95: str, wait: str, memory: str, dropped: str, wide: bool) -> str:
    """The two least needed columns go where there is no room."""
    tail, lost = (f"{p95:>9}", f"{dropped:>9}") if wide else ("", "")
    return f"{rank:>4}{steps:>10}{p50:>8}{tail}{wait:>9}{memory:>9}{lost}"


def _gpus(s: RunSummary, width: int) -> Iterator[str]:
    ours = [gpu for gpu in s.gpus if gpu.ours]
    if not ours:
        return
    room = max(8, min(30, width - 44))
    yield f"{'gpu':>4}  {'name':<{room}}{'peak GiB':>10}{'total':>9}{'util %':>9}{'power W':>9}"
    for gpu in ours:
        used = f"{gib(gpu.peak_used_gib):>10}{gib(gpu.memory_total_gib):>9}"
        rates = f"{_whole(gpu.util_mean_pct):>9}{_whole(gpu.power_mean_w):>9}"
        yield f"{gpu.index:>4}  {gpu.name[: room - 1]:<{room}}{used}{rates}"


def _findings(findings: list[Finding], width: int, colour: bool) -> Iterator[str]:
    if not findings:
        yield "no findings"
        return
    yield painted("1 finding" if len(findings) == 1 else f"{len(findings)} findings", "bold", colour)
    for one in findings:
        yield from _finding(one, width, colour)


def _finding(one: Finding, width: int, colour: bool) -> Iterator[str]:
    glyph = (_GLYPHS if colour else _ASCII_GLYPHS)[one.severity]
    head = f"{glyph} {one.severity:<8} {one.id}  "
    first, *rest = wrapped("", one.title, width, indent=len(head) - LABEL)
    yield painted(head, one.severity, colour) + first[len(head) :]
    yield from rest
    yield from wrapped("evidence", one.evidence, width)
    if one.recoverable_ms_per_step is not None:
        yield from wrapped("wins back", _recoverable(one), width)
    yield from wrapped("fix", one.fix, width)
    if one.absorbed:
        yield from wrapped("explains", ", ".join(one.absorbed), width)


def _recoverable(one: Finding) -> str:
    said = f"{ms(one.recoverable_ms_per_step or 0.0)} ms a step"
    if one.interval_ms_per_step:
        low, high = one.interval_ms_per_step
        said += f" (95 % interval {ms(low)} to {ms(high)})"
    if one.recoverable_hours and one.recoverable_hours >= 0.01:
        said += f", {one.recoverable_hours:.2f} h over the rest of the run"
    return said


def _loss(record: RunRecord, width: int, colour: bool) -> Iterator[str]:
    ranks = record.ranks()
    if not ranks:
        return
    device = thinned(record.device(ranks[0]))["loss"]
    losses = device if np.isfinite(device).any() else thinned(record.steps(ranks[0]))["loss"]
    known = losses[np.isfinite(losses)]
    if len(known) > 1:
        yield f"loss {known[0]:.4g}  {sparkline(known.tolist(), min(60, width - 30), colour)}  {known[-1]:.4g}"


def _whole(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "-"
