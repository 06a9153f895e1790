"""The report as Markdown, for an issue, a pull request or a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gputop_analysis.budget import LINES
from gputop_analysis.model import Finding
from gputop_analysis.report.build import Report
from gputop_analysis.report.trends import trends
from gputop_analysis.report.words import (
    ADDED_NOT_MEASURED,
    balance,
    budget_notes,
    confidence,
    covered,
    done,
    figure,
    measured,
    output_notes,
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
from gputop_analysis.text import RANKS_ON_A_PAGE, capitalised, duration, gib, ms, whole
from gputop_probes.record.plain import plain_text


def as_markdown(report: Report) -> str:
    """The report in GitHub's Markdown, ending with a line break."""
    name = report.record.name
    sections = (_verdict, _numbers, _findings, _phases, _budget, _ranks, _gpus, _trends, _extras)
    parts = ["\n".join(section(report)) for section in sections]
    return (
        "\n\n".join([f"# gputop report: {plain(name)}", *(part for part in parts if part)]) + "\n"
    )


def plain(text: str) -> str:
    """Text in one line in which Markdown and HTML mean nothing."""
    for character in "\\`*_<>|[]&~#":
        text = text.replace(character, "\\" + character)
    return " ".join(plain_text(text).split())


def code(text: str) -> str:
    """Text as inline code, whatever backticks are in it."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = ""
    if "`" in text:
        pad = " "
    return f"{fence}{pad}{' '.join(plain_text(text).split())}{pad}{fence}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---|" + "---:|" * (len(head) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _verdict(report: Report) -> Iterator[str]:
    yield f"**{plain(report.verdict.headline)}**"
    limit = report.bottleneck
    if limit.kind == "unknown":
        return
    yield ""
    because = ""
    if limit.finding is None:
        because = f": {plain(limit.why)}"
    yield f"- bottleneck: {limit.kind}, confidence {confidence(limit.confidence)}{because}"
    if limit.do_first:
        yield f"- do first: {plain(limit.do_first)}"
    if limit.finding is not None and (won := recoverable(limit.finding)):
        yield f"- wins back: {won}"


def _numbers(report: Report) -> Iterator[str]:
    s = report.summary
    yield f"- command: {code(' '.join(s.command))}"
    if report.record.manifest.recording:
        yield f"- recording: {plain(report.record.manifest.recording)}"
    for note in output_notes(report.record):
        yield f"- output: {plain(note)}"
    if damage := report.record.damage.told():
        yield f"- damaged: {plain(damage)}"
    yield f"- steps: {done(s)}, {size(s)}, {duration(s.duration_s)}"
    yield f"- speed: {speed(s)}"
    yield f"- step time: {step_time(s)}"
    if own_work_text := own_work(report.own_work):
        yield f"- gputop: {own_work_text}"


def _findings(report: Report) -> Iterator[str]:
    yield "## Findings"
    yield ""
    if not report.findings:
        yield "None."
    for index, finding in enumerate(report.findings):
        if index:
            yield ""
        yield from _finding(finding)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"### {finding.id} {plain(finding.title)}"
    yield ""
    where = ""
    if finding.rank is not None:
        where = f", rank {finding.rank}"
    yield (
        f"- {finding.name}, {finding.severity}{where}, confidence {confidence(finding.confidence)}"
    )
    yield f"- evidence: {plain(finding.evidence)}"
    if finding.proof is not None:
        p = finding.proof
        value, limit = measured(p.value, p.unit), measured(p.threshold, p.unit)
        yield f"- judged by: {plain(p.statistic)}: {value}, threshold {limit}"
    if won := recoverable(finding):
        yield f"- wins back: {won}"
    yield f"- fix: {plain(finding.fix)}"
    if finding.absorbed:
        yield f"- covers: {covered(finding)}"


def _phases(report: Report) -> Iterator[str]:
    shown = sorted((p for p in parts_of(report.summary) if p.share > 0), key=lambda p: -p.share)
    if shown:
        yield "## Where the time goes"
        yield ""
        rows = (
            (p.name, ms(p.mean_ms), ms(p.p50_ms), ms(p.p95_ms), f"{100 * p.share:.1f} %")
            for p in shown
        )
        yield from _table(("phase", "mean ms", "p50", "p95", "share"), rows)
        if note := wait_note(shown):
            yield from ("", f"{note}.")


def _budget(report: Report) -> Iterator[str]:
    budget = report.budget
    lines = told_lines(budget)
    if not lines:
        return
    yield "## Efficiency budget"
    yield ""
    rows = (
        (LINES[n].title, ms(budget.ms_per_step(n)), f"{100 * budget.share(n):.1f} %") for n in lines
    )
    yield from _table(("line", "ms a step", "share"), rows)
    notes = [plain(note) for note in budget_notes(report)]
    if (startup := report.startup) is not None and startup.has_milestones:
        if startup.done:
            until = "until the first step"
        else:
            until = "without a first step"
        notes.append(f"{duration(startup.seconds)} {until}: {plain(startup.words())}")
    yield ""
    yield ", ".join([*notes, f"useful compute: {plain(budget.compute_anchor)}"])


def _ranks(report: Report) -> Iterator[str]:
    summaries = report.summary.ranks
    if not summaries:
        return
    yield "## Ranks"
    yield ""
    memory = peak_memory(summaries)
    shown, note = ranks_to_show(summaries, RANKS_ON_A_PAGE)
    rows = (
        (
            str(r.rank),
            plain(r.host),
            f"{r.steps:,}",
            ms(r.step_time_p50_ms),
            ms(r.step_time_p95_ms),
            ms(r.wait_mean_ms),
            gib(memory.gib(r)),
        )
        for r in shown
    )
    head = ("rank", "host", "steps", "p50 ms", "p95 ms", "mean wait ms", memory.head)
    yield from _table(head, rows)
    for sentence in filter(None, (note, balance(report.rank_table))):
        yield ""
        yield plain(f"{capitalised(sentence)}.")


def _gpus(report: Report) -> Iterator[str]:
    ours = [gpu for gpu in report.summary.gpus if gpu.ours]
    if ours:
        yield "## GPUs"
        yield ""
        rows = (
            (
                str(g.index),
                plain(g.name),
                gib(g.peak_used_gib),
                gib(g.memory_total_gib),
                whole(g.util_mean_pct),
            )
            for g in ours
        )
        yield from _table(("gpu", "name", "peak GiB", "total GiB", "util %"), rows)
    if report.summary.gpus_added:
        yield ""
        yield f"{ADDED_NOT_MEASURED}."


def _trends(report: Report) -> Iterator[str]:
    series = list(trends(report.view))
    if series:
        yield "## Over the run"
        yield ""
        rows = ((t.name, *map(figure, t.ends), t.unit) for t in series)
        yield from _table(("figure", "first 10 %", "last 10 %", "unit"), rows)


def _extras(report: Report) -> Iterator[str]:
    for index, extra in enumerate(report.extras):
        if index:
            yield ""
        fence = "`" * (1 + max([2, *map(len, re.findall("`+", extra.text))]))
        yield from (
            f"## {extra.name.capitalize()}",
            "",
            fence,
            *plain_text(extra.text).splitlines(),
            fence,
        )
