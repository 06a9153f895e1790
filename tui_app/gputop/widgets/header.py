"""The first three lines: the verdict, the command, the pace."""

from __future__ import annotations

from textual.reactive import reactive

from gputop import palette
from gputop.feed.snapshot import Snapshot
from gputop.render import numbers
from gputop.render.bars import bar
from gputop.render.rows import Row, left, row_width, shorten, shorten_middle, spread
from gputop.widgets.canvas import Canvas

HEIGHT = 3


def draw(snapshot: Snapshot, width: int, paused_steps: int | None = None) -> list[Row]:
    """Three rows of ``width`` cells.

    Args:
        snapshot: what is shown.
        width: in cells.
        paused_steps: steps that went by since the picture was paused; None while it runs.
    """
    inner = width - 2
    rows = [_verdict(snapshot, inner, paused_steps), _command(snapshot, inner), _pace(snapshot, inner)]
    return [[(" ", ""), *row] for row in rows]


def _verdict(snapshot: Snapshot, width: int, paused_steps: int | None) -> Row:
    mark = palette.HEALTH[snapshot.verdict.health]
    state = _state(snapshot, paused_steps)
    start: Row = [(f"{mark.glyph} {mark.word}", f"bold {mark.style}")]
    headline = snapshot.problem or snapshot.verdict.headline
    if headline.lower().startswith(mark.word + ":"):
        headline = headline[len(mark.word) + 1 :].strip()
    room = width - row_width(start) - row_width(state) - 4
    start += [("  " + shorten(headline, room), "high" if snapshot.problem else "text")]
    return spread(start, state, width)


def _state(snapshot: Snapshot, paused_steps: int | None) -> Row:
    run = snapshot.summary
    elapsed = numbers.clock(((run.ended_ns or run.now_ns) - run.started_ns) / 1e9)
    if paused_steps is not None:
        return [(f"‖ paused, +{paused_steps:,} steps", "bold accent")]
    if snapshot.position is not None:
        where = f"{numbers.clock((snapshot.position.at_ns - snapshot.position.start_ns) / 1e9)}"
        word = "recording" if snapshot.recording else "replay"
        return [(f"{word} ", "accent"), (where, "text")]
    if run.state == "ended":
        code = "no exit code" if run.exit_code is None else f"exit {run.exit_code}"
        return [(f"ended, {code} ", "good" if run.exit_code == 0 else "high"), (elapsed, "text")]
    if run.state == "lost":
        return [("recorder lost ", "high"), (elapsed, "text")]
    return [(f"{run.state} ", "muted"), (elapsed, "text")]


def _command(snapshot: Snapshot, width: int) -> Row:
    run = snapshot.summary
    parts = []
    if run.world_size:
        parts.append("1 rank" if run.world_size == 1 else f"{run.world_size} ranks")
    if run.gpus:
        parts.append("1 GPU" if len(run.gpus) == 1 else f"{len(run.gpus)} GPUs")
    parts.append(run.hosts[0].host if len(run.hosts) == 1 else f"{len(run.hosts)} hosts" if run.hosts else "")
    end: Row = [(" · ".join(p for p in parts if p), "muted")]
    command = " ".join(run.command) or snapshot.name or str(snapshot.run_dir)
    return spread([(shorten_middle(command, width - row_width(end) - 3), "muted")], end, width)


def _pace(snapshot: Snapshot, width: int) -> Row:
    run = snapshot.summary
    row: Row = [*_progress(snapshot, width)]
    for value, unit, cells in _figures(snapshot):
        field: Row = [("   ", ""), (left(value, cells), "text"), (" " + unit, "muted")]
        if unit in ("loss", "lr", "grad norm"):
            field = [("   ", ""), (unit + " ", "muted"), (left(value, cells), "text")]
        if row_width(row) + row_width(field) <= width:
            row += field
    return row if run.ranks or run.steps else [("no step yet", "muted")]


def _progress(snapshot: Snapshot, width: int) -> Row:
    run = snapshot.summary
    row: Row = [("step ", "muted")]
    if not run.total_steps:
        return [*row, (left(numbers.count(run.steps), 9), "bold text")]
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
        row += [("  eta ", "muted"), (left(eta, 7), "text")]
    return row


def _figures(snapshot: Snapshot) -> list[tuple[str, str, int]]:
    """Value, unit and cells of each further figure, the most wanted first."""
    run = snapshot.summary
    first = run.ranks[0] if run.ranks else None
    found = [(numbers.rate(run.steps_per_s), "steps/s", 4)] if numbers.known(run.steps_per_s) else []
    if first and numbers.known(first.loss):
        found.append((numbers.scalar(first.loss), "loss", 7))
    if run.samples_per_s > 0:
        found.append((numbers.rate(run.samples_per_s), "samples/s", 5))
    if run.tokens_per_s > 0:
        found.append((numbers.rate(run.tokens_per_s), "tokens/s", 5))
    if first and numbers.known(first.lr):
        found.append((numbers.scalar(first.lr), "lr", 7))
    if first and numbers.known(first.grad_norm):
        found.append((numbers.scalar(first.grad_norm), "grad norm", 7))
    return found


class Header(Canvas):
    """Docked on top."""

    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)
    paused_steps: reactive[int | None] = reactive(None, repaint=False)

    def rows(self, width: int, height: int) -> list[Row]:
        return draw(self.snapshot, width, self.paused_steps) if self.snapshot else []

    def watch_snapshot(self) -> None:
        self.redraw()

    def watch_paused_steps(self) -> None:
        self.redraw()
