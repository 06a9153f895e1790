"""Head of the page: the verdict with the one thing to do first, and the figures that everybody asks for."""

from __future__ import annotations

import math
from html import escape

from gputop_analysis.html.elements import chip, tile
from gputop_analysis.report.build import Report
from gputop_analysis.report.words import HEALTH_STYLE, confidence, done, recoverable, size
from gputop_analysis.text import duration, ms


def verdict(report: Report) -> str:
    """Name of the run, headline, bottleneck, what to do first and what it wins back."""
    manifest, limit = report.record.manifest, report.bottleneck
    colour = limit.finding.severity if limit.finding else HEALTH_STYLE[report.verdict.health]
    chips = [chip("bottleneck", limit.kind), chip("confidence", confidence(limit.confidence))]
    if limit.finding is not None:
        chips.append(chip("finding", limit.finding.id))
    name = escape(manifest.name or report.record.path.name)
    damage = report.record.damage.told()
    damaged = f'<p class="note">damaged: {escape(damage)}</p>' if damage else ""
    recording = f'<p class="note">{escape(manifest.recording)}</p>' if manifest.recording else ""
    return (
        f'<div class="brand"><b>gputop</b> report &middot; {name}</div>'
        f'<section class="verdict" style="--c:var(--{colour})"><h1>{escape(report.verdict.headline)}</h1>'
        f'<code class="command">{escape(" ".join(report.summary.command))}</code>{recording}{damaged}'
        f'<div class="chips">{"".join(chips) if limit.kind != "unknown" else ""}</div>{_first(report)}</section>'
    )


def _first(report: Report) -> str:
    limit = report.bottleneck
    if not limit.do_first or limit.finding is None:
        return f'<p class="none">{escape(limit.why)}</p>'
    won = recoverable(limit.finding)
    gain = f'<div class="won">wins back {escape(won)}</div>' if won else ""
    return f'<div class="first"><div class="label">Do this first</div>{escape(limit.do_first)}{gain}</div>'


def tiles(report: Report) -> str:
    """Steps, speed and time, as large figures."""
    s = report.summary
    seconds = s.duration_s
    shown = [
        tile("step time, median", ms(s.step_time_p50_ms), "ms") if math.isfinite(s.step_time_p50_ms) else "",
        tile("step time, 95th percentile", ms(s.step_time_p95_ms), "ms") if math.isfinite(s.step_time_p95_ms) else "",
        tile("steps", done(s), ""),
        tile("speed", f"{s.steps_per_s:,.3g}", "steps/s") if s.steps_per_s else "",
        tile("throughput", f"{s.samples_per_s:,.0f}", "samples/s") if s.samples_per_s else "",
        tile("throughput", f"{s.tokens_per_s:,.0f}", "tokens/s") if s.tokens_per_s else "",
        tile("ranks", size(s).removesuffix(" ranks").removesuffix(" rank"), "") if s.world_size else "",
        tile("duration", duration(seconds), ""),
    ]
    return f'<div class="tiles">{"".join(shown)}</div>'
