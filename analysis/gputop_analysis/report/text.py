"""The report as text: verdict, header, phases, ranks, devices, findings, trends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gputop_analysis.budget import LINES
from gputop_analysis.model import Finding
from gputop_analysis.report.build import Report
from gputop_analysis.report.trends import TrendLine, trends
from gputop_analysis.report.words import (
    ADDED_NOT_MEASURED,
    BUDGET_STYLE,
    HEALTH_STYLE,
    balance,
    budget_notes,
    confidence,
    covered,
    done,
    figure,
    many_backwards,
    output_notes,
    own_share,
    own_work,
    peak_memory,
    ranks_to_show,
    recoverable,
    size,
    speed,
    step_time,
    told_lines,
    wait_note,
)
from gputop_analysis.step_parts import parts_of
from gputop_analysis.text import (
    LABEL,
    RANKS_IN_TEXT,
    bar,
    counted,
    duration,
    for_terminal,
    gib,
    ms,
    painted,
    sparkline,
    whole,
    wrap,
    wrapped,
)

_GLYPHS = {"critical": "✖", "high": "▲", "medium": "●", "info": "·"}
_ASCII_GLYPHS = {"critical": "X", "high": "!", "medium": "*", "info": "-"}

Section = Callable[[Report, int, bool], Iterator[str]]


def as_text(report: Report, width: int = 80, colour: bool = False) -> str:
    """The whole report in ``width`` columns (at least 40); plain ASCII without ``colour``."""
    width = max(40, width)
    sections: tuple[Section, ...] = (
        _verdict,
        _header,
        _phases,
        _budget,
        _ranks,
        _gpus,
        _findings,
        _trends,
        _extras,
    )
    parts = [list(section(report, width, colour)) for section in sections]
    text = "\n\n".join("\n".join(part) for part in parts if part)
    return for_terminal(text, colour)


def verdict_text(report: Report, width: int = 80, colour: bool = False) -> str:
    """The verdict and the first finding with its proof and fix; as ``as_text``."""
    width = max(40, width)
    if report.findings:
        lines = [
            *_headline(report, width, colour),
            "",
            *_finding(report.findings[0], width, colour),
        ]
    else:
        lines = list(_verdict(report, width, colour))
    text = "\n".join(lines)
    return for_terminal(text, colour)


def _verdict(report: Report, width: int, colour: bool) -> Iterator[str]:
    yield from _headline(report, width, colour)
    limit = report.bottleneck
    if limit.kind == "unknown":
        return
    words = f"{limit.kind}, confidence {confidence(limit.confidence)}"
    if limit.finding is None:
        words += f": {limit.why}"
    yield from _labelled("bottleneck", words, width, colour)
    if limit.do_first:
        yield from _labelled("do first", limit.do_first, width, colour)
    if limit.finding is not None and (won := recoverable(limit.finding)):
        yield from _labelled("wins back", won, width, colour)


def _headline(report: Report, width: int, colour: bool) -> Iterator[str]:
    for line in wrap(report.verdict.headline, width):
        yield painted(line, HEALTH_STYLE[report.verdict.health], colour)


def _labelled(label: str, sentence: str, width: int, colour: bool) -> Iterator[str]:
    first, *further = wrapped(f"{label:<12}", sentence, width, indent=0)
    yield first.replace(label, painted(label, "bold", colour), 1)
    yield from further


def _header(report: Report, width: int, colour: bool) -> Iterator[str]:
    s = report.summary
    command = " ".join(s.command)
    if len(command) > width - 10:
        command = command[: width - 13] + "..."
    yield f"{'command':<9} {command}"
    if report.record.manifest.recording:
        yield f"{'recording':<9} {report.record.manifest.recording}"[:width]
    for note in output_notes(report.record):
        yield from wrap(note, width, initial_indent=f"{'output':<9} ", subsequent_indent=" " * 10)
    yield from _damaged(report, width)
    yield f"{'steps':<9} {done(s)}, {size(s)}, {duration(s.duration_s)}"
    if within := many_backwards(report.record):
        yield f"{'':<9} {within}"
    for label, figures in (("speed", speed(s)), ("step", step_time(s))):
        yield from wrap(f"{label:<9} {figures}", width, subsequent_indent=" " * 10)
    yield from _startup(report, width)
    if s.own_cost is not None:
        yield f"{'gputop':<9} {own_share(s.own_cost)}"
    if own_work_text := own_work(report.own_work):
        yield f"{'gputop':<9} {own_work_text}"


def _damaged(report: Report, width: int) -> Iterator[str]:
    if damage := report.record.damage.told():
        yield from wrap(f"{'damaged':<9} {damage}", width, subsequent_indent=" " * 10)


def _startup(report: Report, width: int) -> Iterator[str]:
    if (startup := report.startup) is None or not startup.has_milestones:
        return
    if startup.done:
        until = "until the first step"
    else:
        until = "without a first step"
    yield from wrap(
        f"{'start-up':<9} {duration(startup.seconds)} {until}: {startup.words()}",
        width,
        subsequent_indent=" " * 10,
    )


def _phases(report: Report, width: int, colour: bool) -> Iterator[str]:
    shown = [part for part in parts_of(report.summary) if part.share > 0]
    if not shown:
        return
    room = max(6, min(40, width - 52))
    yield painted(f"{'phase':<12}{'mean ms':>10}{'p50':>9}{'p95':>9}{'share':>8}", "bold", colour)
    for part in sorted(shown, key=lambda part: -part.share):
        figures = f"{ms(part.mean_ms):>10}{ms(part.p50_ms):>9}{ms(part.p95_ms):>9}"
        figures += f"{part.share * 100:>6.1f} %"
        meter = bar(part.share, room, colour).rstrip()
        yield f"{part.name:<12}{figures}  {painted(meter, part.name, colour)}".rstrip()
    if note := wait_note(shown):
        yield note
    if any(series.clock == "device" for series in report.view.per_rank.values()):
        yield "phases by the device's clock: CUDA events at some steps"
    if report.summary.sampled is not None:
        yield from wrap(report.summary.sampled.words, width)


def _budget(report: Report, width: int, colour: bool) -> Iterator[str]:
    budget = report.budget
    lines = told_lines(budget)
    if not lines:
        return
    room = max(6, min(40, width - 52))
    yield painted(f"{'efficiency budget':<26}{'ms a step':>14}{'share':>8}", "bold", colour)
    for name in lines:
        meter = bar(budget.share(name), room, colour).rstrip()
        figures = f"{ms(budget.ms_per_step(name)):>14}{100 * budget.share(name):>6.1f} %"
        yield (
            f"{LINES[name].title:<26}{figures}  {painted(meter, BUDGET_STYLE[name], colour)}"
        ).rstrip()
    yield from wrap(", ".join(budget_notes(report)), width)


def _ranks(report: Report, width: int, colour: bool) -> Iterator[str]:
    ranks = report.summary.ranks
    if not ranks:
        return
    memory = peak_memory(ranks)
    wide = width >= 80
    head = (
        _rank_line(
            "rank",
            steps="steps",
            p50="p50 ms",
            p95="p95 ms",
            wait="mean wait",
            memory=memory.head,
            dropped="dropped",
            wide=wide,
        )
        + "  host"
    )
    yield painted(head, "bold", colour)
    shown, note = ranks_to_show(ranks, RANKS_IN_TEXT)
    for r in shown:
        columns = _rank_line(
            str(r.rank),
            steps=f"{r.steps:,}",
            p50=ms(r.step_time_p50_ms),
            p95=ms(r.step_time_p95_ms),
            wait=ms(r.wait_mean_ms),
            memory=gib(memory.gib(r)),
            dropped=f"{r.dropped_records:,}",
            wide=wide,
        )
        yield f"{columns}  {r.host[:14]}"
    for sentence in (note, balance(report.rank_table)):
        yield from wrap(sentence, width, initial_indent="     ", subsequent_indent="     ")


def _rank_line(
    rank: str, *, steps: str, p50: str, p95: str, wait: str, memory: str, dropped: str, wide: bool
) -> str:
    """The two least needed columns go where there is no room."""
    tail, lost = (f"{p95:>9}", f"{dropped:>9}") if wide else ("", "")
    return f"{rank:>4}{steps:>10}{p50:>8}{tail}{wait:>11}{memory:>9}{lost}"


def _gpus(report: Report, width: int, colour: bool) -> Iterator[str]:
    ours = [gpu for gpu in report.summary.gpus if gpu.ours]
    if not ours:
        return
    room = max(8, min(30, width - 44))
    head = f"{'gpu':>4}  {'name':<{room}}{'peak GiB':>10}{'total':>9}{'util %':>9}{'power W':>9}"
    yield painted(head, "bold", colour)
    for gpu in ours:
        used = f"{gib(gpu.peak_used_gib):>10}{gib(gpu.memory_total_gib):>9}"
        rates = f"{whole(gpu.util_mean_pct):>9}{whole(gpu.power_mean_w):>9}"
        yield f"{gpu.index:>4}  {gpu.name[: room - 1]:<{room}}{used}{rates}"
    if report.summary.gpus_added:
        yield f"      {ADDED_NOT_MEASURED}"


def _findings(report: Report, width: int, colour: bool) -> Iterator[str]:
    findings = report.findings
    if not findings:
        yield "no findings"
        return
    yield painted(counted(len(findings), "finding"), "bold", colour)
    for finding in findings:
        yield from _finding(finding, width, colour)


def _finding(finding: Finding, width: int, colour: bool) -> Iterator[str]:
    glyph = (_GLYPHS if colour else _ASCII_GLYPHS)[finding.severity]
    head = f"{glyph} {finding.severity:<8} {finding.id}  "
    first, *further = wrapped("", finding.title, width, indent=len(head) - LABEL)
    yield painted(head, finding.severity, colour) + first[len(head) :]
    yield from further
    yield from wrapped("evidence", finding.evidence, width)
    if won := recoverable(finding):
        yield from wrapped("wins back", won, width)
    yield from wrapped("fix", finding.fix, width)
    if finding.absorbed:
        yield from wrapped("covers", covered(finding), width)


def _trends(report: Report, width: int, colour: bool) -> Iterator[str]:
    series = list(trends(report.view))
    if not series:
        return
    room = max(10, min(60, width - 44))
    yield painted(f"{'over the run':<17}{'first 10 %':>10}{'last 10 %':>12}", "bold", colour)
    for trend in series:
        first, last = trend.ends
        yield (
            f"{trend.name:<17}{figure(first):>10}{figure(last):>12} "
            f"{trend.unit:<4}{_spark(trend, room, colour)}"
        ).rstrip()


def _extras(report: Report, width: int, colour: bool) -> Iterator[str]:
    for index, extra in enumerate(report.extras):
        if index:
            yield ""
        yield from extra.text.splitlines()


def _spark(trend: TrendLine, room: int, colour: bool) -> str:
    finite = trend.values[np.isfinite(trend.values)]
    means = []
    for part in np.array_split(finite, min(room, len(finite))):
        means.append(float(part.mean()))
    # the levels need more than ASCII
    if colour:
        return sparkline(means, room, colour)
    return ""
