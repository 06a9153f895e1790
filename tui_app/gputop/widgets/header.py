"""The first three lines: the verdict, the command, the pace."""

from __future__ import annotations

import re

from textual.reactive import reactive

from gputop import palette
from gputop.feed.snapshot import Snapshot
from gputop.render import numbers
from gputop.render.bars import bar
from gputop.render.rows import Row, right, row_width, shorten, shorten_middle, spread
from gputop.widgets.canvas import Canvas
from gputop_analysis.overview import RunSummary
from gputop_analysis.text import counted

HEIGHT = 3
_ENDED = re.compile(r"^ended: [\d,]+ steps?, ")


def draw(snapshot: Snapshot, width: int, paused_steps: int | None = None) -> list[Row]:
    """Three rows of ``width`` cells.

    Args:
        snapshot: what is shown.
        width: in cells.
        paused_steps: steps that went by since the picture was paused; None while it runs.
    """
    inner = width - 2
    rows = [
        _verdict(snapshot, inner, paused_steps),
        _command(snapshot, inner),
        _pace(snapshot, inner),
    ]
    return [[(" ", ""), *row] for row in rows]


def _verdict(snapshot: Snapshot, width: int, paused_steps: int | None) -> Row:
    mark = palette.HEALTH[snapshot.verdict.health]
    state = _state(snapshot, paused_steps)
    start: Row = [(f"{mark.glyph} {mark.word}", f"bold {mark.style}")]
    headline = snapshot.problem or _headline(snapshot, mark.word)
    room = width - row_width(start) - row_width(state) - 4
    start += [("  " + shorten(headline, room), "high" if snapshot.problem else "text")]
    return spread(start, state, width)


def _headline(snapshot: Snapshot, word: str) -> str:
    """The verdict without what stands beside it anyway: the health, the exit code, the short name of the finding."""
    headline = snapshot.verdict.headline
    if (
        snapshot.summary.state == "ended"
        and snapshot.verdict.health != "stopped"
        and "; " in headline
    ):
        headline = headline.partition("; ")[2]
    headline = _ENDED.sub("", headline)
    if snapshot.findings:
        headline = headline.removeprefix(snapshot.findings[0].name + ": ")
    return headline.removeprefix(word + ": ").removeprefix(word + " ")


def _state(snapshot: Snapshot, paused_steps: int | None) -> Row:
    run = snapshot.summary
    elapsed = numbers.clock(((run.ended_ns or run.now_ns) - run.started_ns) / 1e9)
    if paused_steps is not None:
        return [(f"‖ paused, +{counted(paused_steps, 'step')}", "bold accent")]
    if snapshot.position is not None:
        word = "recording" if snapshot.recording else "replay"
        return [(word, "accent"), (" · ", "muted"), *_end(snapshot), (elapsed, "text")]
    if run.state == "ended":
        return [*_end(snapshot), (elapsed, "text")]
    if run.state == "lost":
        return [("recorder lost", "high"), (" · ", "muted"), (elapsed, "text")]
    return [(f"{run.state} · ", "muted"), (elapsed, "text")]


def _end(snapshot: Snapshot) -> Row:
    run = snapshot.summary
    if run.state != "ended":
        return []
    style = {"finished": "good", "stopped": "info"}.get(run.ending.kind, "high")
    return [(run.ending.words, style), (" · ", "muted")]


def _command(snapshot: Snapshot, width: int) -> Row:
    run = snapshot.summary
    parts = []
    if run.world_size:
        parts.append(counted(run.world_size, "rank"))
    if run.gpus:
        parts.append(counted(len(run.gpus), "GPU"))
    parts.append(
        run.hosts[0].host
        if len(run.hosts) == 1
        else counted(len(run.hosts), "host")
        if run.hosts
        else ""
    )
    end: Row = [(" · ".join(p for p in parts if p), "muted")]
    if snapshot.recording:
        end = [
            (shorten(f"recording: {snapshot.recording}", width // 2), "accent"),
            ("   ", ""),
            *end,
        ]
    if snapshot.damage:
        end = [(f"▲ {snapshot.damage}", "high"), ("   ", ""), *end]
    command = " ".join(run.command) or snapshot.name or str(snapshot.run_dir)
    return spread([(shorten_middle(command, width - row_width(end) - 3), "muted")], end, width)


def _pace(snapshot: Snapshot, width: int) -> Row:
    run = snapshot.summary
    row: Row = [*_progress(snapshot, width)]
    if not (run.ranks or run.steps):
        return [("no step yet", "muted")]
    fields = _figures(snapshot)
    while fields and row_width(row) + sum(row_width(field) for _, field in fields) > width:
        fields.remove(max(fields, key=lambda item: item[0]))
    for _, field in fields:
        row += field
    return row


def _progress(snapshot: Snapshot, width: int) -> Row:
    run = snapshot.summary
    row: Row = [("step ", "muted")]
    if not run.total_steps:
        return [*row, (numbers.count(run.steps).ljust(9), "bold text")]
    share = min(1.0, run.steps / run.total_steps)
    text = f"{run.steps:,}"
    row += [(text, "bold text"), (f" / {run.total_steps:,}", "muted")]
    padding = len(f"{run.total_steps:,}") - len(text)
    row += [(" " * (padding + 2), "")]
    if width >= 110:
        row += [*bar(share, 16, "accent"), (" ", "")]
    row += [(f"{share * 100:3.0f} %", "text")]
    if run.state == "running" and run.steps_per_s > 0:
        eta = numbers.clock((run.total_steps - run.steps) / run.steps_per_s)
        row += [("  eta ", "muted"), (eta.ljust(7), "text")]
    return row


def _figures(snapshot: Snapshot) -> list[tuple[int, Row]]:
    """Further figures in the order shown, each with its rank of importance: 1 goes last when there is no room."""
    run = snapshot.summary
    first = run.ranks[0] if run.ranks else None
    mean = " mean" if snapshot.ended else ""
    figures = [
        (0, _standing_still(snapshot)),
        (1, _rate(run.steps_per_s, "steps/s" + mean)),
        (3, _rate(run.samples_per_s, "samples/s" + mean)),
        (4, _rate(run.tokens_per_s, "tokens/s" + mean)),
        (2, _loss(snapshot)),
        (5, _scalar("lr", first.lr if first else None)),
        (6, _scalar("grad norm", first.grad_norm if first else None)),
        (7, _own_cost(run)),
    ]
    return [(place, field) for place, field in figures if field]


def _own_cost(run: RunSummary) -> Row:
    """What gputop itself takes of a step."""
    if run.own_cost is None:
        return []
    return [("   ", ""), ("gputop ", "muted"), (run.own_cost.words, "text")]


def _standing_still(snapshot: Snapshot) -> Row:
    """For how long no step has come, in place of rates that were true before; what is done, where that is known."""
    run = snapshot.summary
    if not run.silent_s:
        return []
    since = numbers.clock(run.silent_s)
    hangs = any(finding.severity == "critical" for finding in snapshot.findings)
    if run.doing and not hangs:
        return [("   ", ""), (f"{run.doing} for {since}", "bold accent")]
    return [("   ", ""), (f"NO STEP FOR {since}", "bold critical" if hangs else "bold high")]


def _loss(snapshot: Snapshot) -> Row:
    """The newest loss of the first rank, or that one of any rank is no number."""
    ranks = snapshot.summary.ranks
    broken = next((rank.not_finite for rank in ranks if rank.not_finite), "")
    if broken:
        return [("   ", ""), ("loss ", "muted"), (broken.ljust(7), "bold critical")]
    return _scalar("loss", ranks[0].loss if ranks else None)


def _rate(value: float, unit: str) -> Row:
    return (
        [("   ", ""), (right(numbers.rate(value), 5), "text"), (" " + unit, "muted")]
        if value > 0
        else []
    )


def _scalar(name: str, value: float | None) -> Row:
    return (
        [("   ", ""), (name + " ", "muted"), (numbers.scalar(value).ljust(7), "text")]
        if numbers.known(value)
        else []
    )


class Header(Canvas, drawn=("snapshot", "paused_steps")):
    """Docked on top."""

    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)
    paused_steps: reactive[int | None] = reactive(None, repaint=False)

    def rows(self, width: int, height: int) -> list[Row]:
        return draw(self.snapshot, width, self.paused_steps) if self.snapshot else []
