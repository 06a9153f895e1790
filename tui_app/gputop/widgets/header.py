"""The first lines: the verdict as a band, command and progress, the pace without tiles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from textual.reactive import reactive

from gputop import palette
from gputop.feed.snapshot import Snapshot
from gputop.render import numbers
from gputop.render.bars import bar
from gputop.render.rows import (
    Row,
    clip,
    right,
    row_width,
    shorten,
    shorten_middle,
    spread,
    text_width,
)
from gputop.widgets.canvas import Canvas
from gputop_analysis.overview import GPUS_ADDED, RunSummary
from gputop_analysis.text import counted
from gputop_analysis.win import Win, win_of

if TYPE_CHECKING:
    from gputop_analysis.model import Finding

_MORE = re.compile(r" \(\+\d+ more\)$")
_ENDED = re.compile(r"^ended: [\d,]+ steps?, ")
BANDS = {"critical": "band-critical", "high": "band-high", "good": "band-good", "info": "band-info"}
"""Ground of the verdict by the style of its health."""
NO_STEP = "no step yet"
COMMAND = 26
"""Cells of a long command before ranks, GPUs and host get any."""
PROGRESS = 24
"""Cells of the progress bar at most."""


def draw(snapshot: Snapshot, width: int, paused_steps: int | None = None) -> list[Row]:
    """Three rows of ``width`` cells: verdict, command and pace.

    Args:
        snapshot: what is shown.
        width: in cells.
        paused_steps: steps that went by since the picture was paused; None while it runs.
    """
    inner = width - 2
    state = _state(snapshot, paused_steps)
    return [
        band(snapshot, width),
        [(" ", ""), *_command(snapshot, inner, [("   ", ""), *state])],
        [(" ", ""), *_pace(snapshot, inner)],
    ]


def draw_above_tiles(snapshot: Snapshot, width: int, paused_steps: int | None = None) -> list[Row]:
    """Two rows: the verdict, and the command with its progress and state; tiles show the rest."""
    state = _state(snapshot, paused_steps)
    inner = width - 2
    end: Row = [("   ", ""), *_progress(snapshot, width), ("  ", ""), *state]
    if _least_cells(snapshot) + row_width(end) > inner:
        end = [("   ", ""), *_progress(snapshot, width, has_bar=False), ("  ", ""), *state]
    return [band(snapshot, width), [(" ", ""), *_command(snapshot, inner, end)]]


def _least_cells(snapshot: Snapshot) -> int:
    """Cells of what is told before a bar is drawn: command, damage, how many ranks there are."""
    ranks = _shape(snapshot.summary)[:1]
    return _command_cells(snapshot) + row_width(_damaged(snapshot)) + sum(map(len, ranks))


def _command_cells(snapshot: Snapshot) -> int:
    """Cells that the command has before ranks, GPUs and host get any."""
    return min(COMMAND, text_width(_command_words(snapshot)) + 3)


def _command_words(snapshot: Snapshot) -> str:
    return " ".join(snapshot.summary.command) or snapshot.name or str(snapshot.run_dir)


def band(snapshot: Snapshot, width: int) -> Row:
    """The verdict over the full width in its severity's tint; it ends in the fix's worth."""
    health = "attention" if snapshot.problem else snapshot.verdict.health
    mark = palette.HEALTH[health]
    ground = "/" + BANDS[mark.style]
    worth = _worth(snapshot)
    headline = snapshot.problem or _headline(snapshot, mark.word)
    label = _label(snapshot, mark.word).upper()
    if _cells_of_band(label, headline, worth[0] if worth else "") > width:
        headline = _MORE.sub("", headline)  # the list below counts them too
    label, end = _fitting(headline, label, mark.word.upper(), worth, width)
    start: Row = [(f" {mark.glyph} {label}".rstrip(), f"bold on-band{ground}")]
    between = "  " if label else " "
    room = width - row_width(start) - len(between) - len(end) - 1 - 2 * bool(end)
    start += [(between + shorten(headline, room), "on-band" + ground)]
    gap = max(width - row_width(start) - len(end) - 1, 0)
    row: Row = [*start, (" " * gap, "on-band" + ground), (end + " ", f"bold on-band{ground}")]
    return clip(row, width)


def _fitting(headline: str, label: str, word: str, worth: list[str], width: int) -> tuple[str, str]:
    """The fullest label and worth beside the whole headline; names give way, health never."""
    short = label if label == word else ""
    tries = [(name, text) for name in (label, short) for text in worth]
    for tried in [*tries, (label, ""), (short, "")]:
        name, text = tried
        if _cells_of_band(name, headline, text) <= width:
            return tried
    return short, worth[-1] if worth and width >= 60 else ""


def _cells_of_band(label: str, headline: str, worth: str) -> int:
    """Cells of the band with its mark and the blanks between its parts."""
    edges = (6 if label else 4) + 2 * bool(worth)
    return edges + len(label) + len(headline) + len(worth)


def _label(snapshot: Snapshot, word: str) -> str:
    """The health; where it asks for attention, the name of what does."""
    subject = _subject(snapshot)
    if word == "attention" and subject is not None and not snapshot.problem:
        return subject.name
    return word


def _subject(snapshot: Snapshot) -> Finding | None:
    """The finding that the verdict is about; a run that stands is no matter of its steps' pace."""
    serious = [finding for finding in snapshot.findings if finding.severity != "info"]
    if serious and snapshot.summary.stands and serious[0].severity != "critical":
        return None
    return serious[0] if serious else None


def _worth(snapshot: Snapshot) -> list[str]:
    """What the first finding's fix is worth, the longest way to say it first."""
    subject = _subject(snapshot)
    win = None
    if subject is not None and not snapshot.problem:
        win = win_of(snapshot.summary, subject)
    if win is None or win.factor < 1.005:
        return []
    factor = f"{win.factor:.2f}x"
    steps = steps_of(win)
    shorter = steps.removesuffix(" a step")
    return [f"Fix: {steps}, {factor}", f"Fix: {shorter}, {factor}", f"Fix: {factor}", factor]


def steps_of(win: Win) -> str:
    """``21.0 → 16.0 ms a step``, in the unit that reads best."""
    scale, unit = (1000.0, "s") if win.before_ms >= 10_000 else (1.0, "ms")
    if win.before_ms / scale < 10:
        digits = 2
    elif win.before_ms / scale < 1000:
        digits = 1
    else:
        digits = 0
    before, after = win.before_ms / scale, win.after_ms / scale
    return f"{before:,.{digits}f} → {after:,.{digits}f} {unit} a step"


def _headline(snapshot: Snapshot, word: str) -> str:
    """The verdict without what stands beside it: health, exit code, the finding's short name."""
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
        word = GPUS_ADDED if run.gpus_added else word
        return [(word, "accent"), (" · ", "muted"), *_end(snapshot), (elapsed, "text")]
    if snapshot.unread:
        return []
    if run.state == "ended":
        return [*_end(snapshot), (elapsed, "text")]
    if run.state == "lost":
        return [("recorder lost", "high"), (" · ", "muted"), (elapsed, "text")]
    if run.stands:
        style = standing_still(snapshot)[1].removeprefix("bold ")
        return [("■ standing", style), (" · ", "muted"), (elapsed, "text")]
    return [("● ", "good"), (f"{run.state} · ", "muted"), (elapsed, "text")]


def _end(snapshot: Snapshot) -> Row:
    run = snapshot.summary
    if run.state != "ended":
        return []
    style = {"finished": "good", "stopped": "info"}.get(run.ending.kind, "high")
    return [(run.ending.words, style), (" · ", "muted")]


def _command(snapshot: Snapshot, width: int, end: Row) -> Row:
    """The command, the shape of the run as far as there is room, and ``end`` at the right edge."""
    shape: Row = [(" · ".join(_shape(snapshot.summary)), "muted")]
    if snapshot.recording:
        words = f"recording: {snapshot.recording}"
        cells = len(words) + row_width(shape) + row_width(end)
        if cells + _command_cells(snapshot) <= width:
            shape = [(words, "accent"), ("   ", ""), *shape]
    damaged = _damaged(snapshot)
    shape = [*damaged, *shape]
    parts = _shape(snapshot.summary)
    while parts and row_width(shape) + row_width(end) + _command_cells(snapshot) > width:
        parts.pop()
        shape[-1] = (" · ".join(parts), "muted")
    if row_width(shape) + row_width(end) + 12 > width:
        shape = damaged
    room = width - row_width(shape) - row_width(end) - 3
    start: Row = [(shorten_middle(_command_words(snapshot), room), "muted")]
    return spread(start, [*shape, *end], width)


def _damaged(snapshot: Snapshot) -> Row:
    """What of the record is left out, which must be told however little room there is."""
    if not snapshot.damage:
        return []
    return [(f"▲ {snapshot.damage}", "high"), ("   ", "")]


def _shape(run: RunSummary) -> list[str]:
    """``8 ranks``, ``8x H100``, ``box``."""
    parts = [counted(run.world_size, "rank")] if run.world_size else []
    names = {gpu.name for gpu in run.gpus}
    if len(names) == 1 and (name := short_name(names.pop())):
        parts.append(f"{len(run.gpus)}x {name}" + (" (added)" if run.gpus_added else ""))
    elif run.gpus:
        parts.append(counted(len(run.gpus), "GPU"))
    if len(run.hosts) == 1:
        parts.append(run.hosts[0].host)
    elif run.hosts:
        parts.append(counted(len(run.hosts), "host"))
    return parts


def short_name(name: str) -> str:
    """``H100`` of ``NVIDIA H100 80GB HBM3``."""
    words = name.removeprefix("NVIDIA ").removeprefix("Tesla ").removeprefix("GeForce ").split()
    if words and words[0] in ("RTX", "GTX", "Quadro"):
        words_shown = words[:2]
    else:
        words_shown = words[:1]
    return " ".join(words_shown)


def _pace(snapshot: Snapshot, width: int) -> Row:
    run = snapshot.summary
    if snapshot.unread:
        return []
    row: Row = [*_progress(snapshot, width)]
    if not (run.ranks or run.steps):
        return row
    fields = _figures(snapshot)
    while fields and row_width(row) + sum(row_width(field) for _, field in fields) > width:
        fields.remove(max(fields, key=lambda item: item[0]))
    for _, field in fields:
        row += field
    return row


def _progress(snapshot: Snapshot, width: int, has_bar: bool = True) -> Row:
    run = snapshot.summary
    if snapshot.unread:
        return []
    if not (run.ranks or run.steps):
        return [(NO_STEP, "muted")]
    row: Row = [("step ", "muted")]
    if not run.total_steps:
        return [*row, (numbers.count(run.steps).ljust(9), "bold text"), *_own_bar(snapshot)]
    share = min(1.0, run.steps / run.total_steps)
    text = f"{run.steps:,}"
    row += [(text, "bold text"), (f" / {run.total_steps:,}", "muted")]
    padding = len(f"{run.total_steps:,}") - len(text)
    row += [(" " * (padding + 2), "")]
    if width >= 110 and has_bar:
        row += [*bar(share, 16 if width < 160 else PROGRESS, "accent"), (" ", "")]
    row += [(f"{share * 100:3.0f} %", "text")]
    if run.state == "running" and run.steps_per_s > 0:
        eta = numbers.clock((run.total_steps - run.steps) / run.steps_per_s)
        row += [("  eta ", "muted"), (eta.ljust(7), "text")]
    return row


def _own_bar(snapshot: Snapshot) -> Row:
    """``tqdm 599/2,500  0:42 left``, by the command's own bar while steps come."""
    bar = snapshot.bar
    if bar is None or snapshot.summary.stands:
        return []
    return [
        ("  tqdm ", "muted"),
        (f"{bar.done:,}/{bar.total:,}", "text"),
        (f"  {bar.left} left", "muted"),
    ]


def _figures(snapshot: Snapshot) -> list[tuple[int, Row]]:
    """Further figures as shown, each with its importance: 1 goes last without room."""
    run = snapshot.summary
    first = run.ranks[0] if run.ranks else None
    mean = " mean" if snapshot.ended else ""
    figures = [
        (0, _standing_still(snapshot)),
        (1, _rate(run.steps_per_s, "steps/s" + mean)),
        (3, _rate(run.samples_per_s, "samples/s" + mean)),
        (4, _rate(run.tokens_per_s, "tokens/s" + run.of_padding + mean)),
        (2, _loss(snapshot)),
        (5, _scalar("lr", first.lr if first else None)),
        (6, _scalar("grad norm", first.grad_norm if first else None)),
        (7, _own_cost(run)),
    ]
    return [(position, field) for position, field in figures if field]


def _own_cost(run: RunSummary) -> Row:
    """What gputop itself takes of a step."""
    if run.own_cost is None:
        return []
    return [("   ", ""), ("gputop ", "muted"), (run.own_cost.words, "text")]


def _standing_still(snapshot: Snapshot) -> Row:
    text, style = standing_still(snapshot)
    return [("   ", ""), (text, style)] if text else []


def standing_still(snapshot: Snapshot) -> tuple[str, str]:
    """For how long no step has come, in place of former rates; what is done, if known."""
    run = snapshot.summary
    if not run.silent_s:
        return "", ""
    since = numbers.clock(run.silent_s)
    hangs = any(finding.severity == "critical" for finding in snapshot.findings)
    if run.doing and not hangs:
        return f"{run.doing} for {since}", "bold accent"
    return f"NO STEP FOR {since}", "bold critical" if hangs else "bold high"


def broken_loss(snapshot: Snapshot) -> str:
    """``NaN`` or ``inf`` where the newest loss of any rank is that."""
    return next((rank.not_finite for rank in snapshot.summary.ranks if rank.not_finite), "")


def broken_since(snapshot: Snapshot) -> str:
    """``NaN since 120``, as the finding about it tells; empty while the loss is a number."""
    broken = broken_loss(snapshot)
    for finding in snapshot.findings:
        match = re.search(r"\b(?:NaN|inf|not finite)\b.* at step ([\d,]+)", finding.title)
        if broken and match:
            return f"{broken} since {match[1].rstrip(',')}"
    return broken


def _loss(snapshot: Snapshot) -> Row:
    """The newest loss of the first rank, or that one of any rank is no number."""
    ranks = snapshot.summary.ranks
    if broken := broken_loss(snapshot):
        return [("   ", ""), ("loss ", "muted"), (broken.ljust(7), "bold critical")]
    return _scalar("loss", ranks[0].loss if ranks else None)


def _rate(value: float, unit: str) -> Row:
    if value > 0:
        return [("   ", ""), (right(numbers.rate(value), 5), "text"), (" " + unit, "muted")]
    return []


def _scalar(name: str, value: float | None) -> Row:
    if numbers.known(value):
        return [("   ", ""), (name + " ", "muted"), (numbers.scalar(value).ljust(7), "text")]
    return []


class Header(Canvas, drawn=("snapshot", "paused_steps")):
    """Docked on top; as high as the screen gives it: three rows, or two where tiles stand below."""

    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)
    paused_steps: reactive[int | None] = reactive(None, repaint=False)

    def rows(self, width: int, height: int) -> list[Row]:
        if not self.snapshot:
            return []
        drawn = draw if height > 2 else draw_above_tiles
        return drawn(self.snapshot, width, self.paused_steps)
