"""Head of the page: the verdict with what to do first, and the figures all ask for."""

from __future__ import annotations

import math
from html import escape

from gputop_analysis.html.elements import chip, prose, tile
from gputop_analysis.overview import RATE_WINDOW_S, RunSummary
from gputop_analysis.report.build import Report
from gputop_analysis.report.occasion import occasion
from gputop_analysis.report.winning import first_win, saving, win_words
from gputop_analysis.report.words import HEALTH_STYLE, confidence, done, recoverable, size
from gputop_analysis.text import duration, ms, rate
from gputop_analysis.win import mean_step_ms


def verdict(report: Report) -> str:
    """Name of the run, headline, bottleneck, what to do first and what it wins back."""
    manifest, limit = report.record.manifest, report.bottleneck
    if limit.finding:
        colour = limit.finding.severity
    else:
        colour = HEALTH_STYLE[report.verdict.health]
    chips = []
    if limit.kind != "unknown":
        chips.append(chip("bottleneck", limit.kind))
        chips.append(chip("confidence", confidence(limit.confidence)))
        if limit.finding is not None:
            chips.append(chip("finding", limit.finding.id))
    name = escape(report.record.name)
    damage = report.record.damage.told()
    damaged = ""
    if damage:
        damaged = f'<p class="note">damaged: {escape(damage)}</p>'
    recording = ""
    if manifest.recording:
        recording = f'<p class="note">{escape(manifest.recording)}</p>'
    return (
        f'<div class="brand"><b>gputop</b> report &middot; {name} &middot; '
        f"{escape(occasion(report))}</div>"
        f'<section class="verdict" style="--c:var(--{colour})">'
        f"{_headline(report)}"
        f'<code class="command">{escape(" ".join(report.summary.command))}'
        f"</code>{recording}{damaged}"
        f'<div class="chips">{"".join(chips)}</div>{_first(report)}</section>'
    )


def _headline(report: Report) -> str:
    """What could be won, then what the run is; the verdict alone where no time can be won."""
    verdict = f"{escape(report.verdict.headline)}"
    win = first_win(report)
    if win is None:
        return f"<h1>{verdict}</h1>"
    return (
        f'<h1>{escape(win_words(win))}</h1><p class="subtitle">{verdict}</p>'
        f'<p class="saved">{escape(saving(report, win))}</p>'
    )


def _first(report: Report) -> str:
    limit = report.bottleneck
    if not limit.do_first or limit.finding is None:
        return f'<p class="none">{escape(limit.why)}</p>'
    won = recoverable(limit.finding)
    gain = ""
    if won:
        gain = f'<div class="won">wins back {escape(won)}</div>'
    return (
        '<div class="first">'
        f'<div class="label">Do this first</div>{prose(limit.do_first)}{gain}</div>'
    )


def tiles(report: Report) -> str:
    """Steps, speed and time, as large figures."""
    summary = report.summary
    shown = []
    if math.isfinite(mean_ms := mean_step_ms(summary)):
        shown.append(tile("step time, mean", ms(mean_ms), "ms"))
    if math.isfinite(summary.step_time_p50_ms):
        shown.append(tile("step time, median", ms(summary.step_time_p50_ms), "ms"))
    if math.isfinite(summary.step_time_p95_ms):
        shown.append(tile("step time, 95th percentile", ms(summary.step_time_p95_ms), "ms"))
    shown.append(tile("steps", done(summary), ""))
    if summary.steps_per_s:
        shown.append(tile("speed", f"{summary.steps_per_s:,.3g}", "steps/s"))
    if summary.samples_per_s:
        shown.append(tile("throughput", rate(summary.samples_per_s), "samples/s"))
    if summary.tokens_per_s:
        shown.append(
            tile("throughput", rate(summary.tokens_per_s), "tokens/s" + summary.of_padding)
        )
    if summary.world_size:
        shown.append(tile("ranks", size(summary).removesuffix(" ranks").removesuffix(" rank"), ""))
    shown.append(tile("duration", duration(summary.duration_s), ""))
    # the last row as full as can be
    columns = min((5, 4, 3), key=lambda count: -len(shown) % count)
    grid = f'<div class="tiles" style="--columns:{columns}">'
    return f"{grid}{''.join(shown)}</div>{_window(summary)}"


def _window(s: RunSummary) -> str:
    """Of which steps the figures of the tiles are; empty before the first step."""
    if not math.isfinite(s.step_time_p50_ms):
        return ""
    words = f"step times and speed: {s.averaged_over}"
    if s.stands:
        words = f"step times: {s.averaged_over}"
    elif s.state == "running":
        speed = f"over the last {RATE_WINDOW_S:.0f} s"
        words = f"step times: {s.averaged_over}; speed: {speed}"
    return f'<p class="none">{words}</p>'
