"""Tiles below the header: step, speed, useful share, loss, peak memory, with trends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from textual.reactive import reactive

from gputop.feed.snapshot import Curve, Snapshot
from gputop.feed.starting import Starting
from gputop.render import braille, numbers
from gputop.render.bars import bar
from gputop.render.rows import Row, clip, fill, row_width, shorten
from gputop.widgets.canvas import Canvas
from gputop.widgets.frame import framed
from gputop.widgets.header import broken_since, standing_still
from gputop.widgets.loss import covered
from gputop.widgets.starting import under_way
from gputop_analysis.overview import RATE_WINDOW_S
from gputop_analysis.text import counted, duration
from gputop_analysis.win import mean_step_ms

HEIGHT = 4
TREND_S = 60.0
"""How far back the trends of step and speed look."""
TREND_BLOCKS, SURE_P = 12, 0.01
"""Blocks of the loss's newer half, of judged medians, and Mann-Kendall's p of a trend."""
LEAST_QUEUED = 0.005
"""Share of the time spent waiting for a core from which on it is told that it is left out."""
WITHOUT_QUEUE = (
    " of the time, without waits for a core",
    " without waits for a core",
    ", w/o core waits",
)
"""What the useful share is of then, as long as there is room."""
FULL = 0.95
"""Share of a GPU's memory from which on its peak is critical."""


class Tile(NamedTuple):
    """One of them: ``alarm`` is the style of its frame, empty where all is well."""

    title: str
    figure: Row
    trend: Row
    alarm: str = ""
    window: str = ""
    """Of which steps or seconds the figure is."""


def draw(snapshot: Snapshot, width: int) -> list[Row]:
    """Four rows: the tiles side by side over the full width."""
    if isinstance(snapshot.panels.get("breakdown"), Starting) and not snapshot.ended:
        makers = [_so_far, _at, _cpu, _ram]
    else:
        makers = [_step, _speed, _useful, _loss]
    if snapshot.summary.gpus:
        makers.append(_memory)
    rows: list[Row] = [[] for _ in range(HEIGHT)]
    if snapshot.unread:
        makers = [_unread(title) for title in ("Step", "Speed", "Useful compute", "Loss")]
    cells_left = width
    for index, make in enumerate(makers):
        cells = cells_left // (len(makers) - index)
        cells_left -= cells
        tile = make(snapshot, cells - 4)
        content = [clip(tile.figure, cells - 4), fill(tile.trend, cells - 4)]
        note: Row = [(tile.window, "muted")]
        rule = tile.alarm or "rule"
        box = framed(tile.title, content, cells, HEIGHT, note=note, rule=rule)
        for row, part in zip(rows, box, strict=True):
            row += part
    return rows


def _unread(title: str) -> Callable[[Snapshot, int], Tile]:
    """A tile without a figure, while nothing of the record has been read."""
    return lambda snapshot, width: Tile(title, [(numbers.NONE, "muted")], [])


def _so_far(snapshot: Snapshot, width: int) -> Tile:
    run = snapshot.summary
    return Tile("So far", [(duration(run.duration_s), "bold text")], [])


def _at(snapshot: Snapshot, width: int) -> Tile:
    words, seconds = under_way(snapshot.panels["breakdown"], snapshot.summary.now_ns)
    since = f"  {duration(seconds)}"
    shown = shorten(words, width - len(since))
    return Tile("Now", [(shown, "bold text"), (since, "muted")], [])


def _cpu(snapshot: Snapshot, width: int) -> Tile:
    hosts = snapshot.summary.hosts
    if not hosts or not numbers.known(hosts[0].cpu_pct):
        return Tile("CPU", [(numbers.NONE, "muted")], [])
    host = hosts[0]
    figure: Row = [(numbers.percent(host.cpu_pct / 100), "bold text")]
    figure.append((f" of {counted(host.cpu_count, 'core')}", "muted"))
    trend = _area(snapshot.history.of(f"cpu {host.host}"), width, "meter", top=100.0)
    return Tile("CPU" if len(hosts) == 1 else f"CPU of {host.host}", figure, trend)


def _ram(snapshot: Snapshot, width: int) -> Tile:
    hosts = snapshot.summary.hosts
    if not hosts or not hosts[0].memory_total_gib:
        return Tile("RAM", [(numbers.NONE, "muted")], [])
    used, total = hosts[0].memory_used_gib, hosts[0].memory_total_gib
    figure: Row = [(numbers.gib(used), "bold text"), (f" of {numbers.gib(total)} GiB", "muted")]
    title = "RAM" if len(hosts) == 1 else f"RAM of {hosts[0].host}"
    return Tile(title, figure, bar(used / total, width, "allocated"))


def _step(snapshot: Snapshot, width: int) -> Tile:
    run = snapshot.summary
    trend = _recent(snapshot, snapshot.timeline.step_ms)
    text, style = standing_still(snapshot)
    if text:
        alarm = style.removeprefix("bold ") if style != "bold accent" else ""
        return Tile("Step", [(text, style)], _area(trend, width, "muted"), alarm)
    if not numbers.known(run.step_time_p50_ms):
        return Tile("Step", [("no step yet", "muted")], [])
    figure: Row = [(numbers.duration_ms(mean_step_ms(run)), "bold text")]
    median: Row = [("  p50 ", "muted"), (numbers.duration_ms(run.step_time_p50_ms), "text")]
    slow: Row = [("  p95 ", "muted"), (numbers.duration_ms(run.step_time_p95_ms), "text")]
    if row_width([*figure, *median, *slow]) <= width:
        figure += median
    area = _area(trend, width, "accent")
    return Tile("Step, mean", [*figure, *slow], area, window=snapshot.averaged_steps)


def _speed(snapshot: Snapshot, width: int) -> Tile:
    run = snapshot.summary
    trend = _area(_recent(snapshot, snapshot.timeline.steps_per_s), width, "good")
    rates = [
        (run.samples_per_s, "samples/s"),
        (run.tokens_per_s, "tokens/s"),
        (run.steps_per_s, "steps/s"),
    ]
    figure: Row = []
    for value, unit in rates:
        word: Row = [(numbers.rate(value), "bold text" if not figure else "text")]
        word += [(f" {unit}   ", "muted")]
        if value > 0 and row_width(figure) + row_width(word) - 3 <= width:
            figure += word
    title, window = "Speed", f"last {RATE_WINDOW_S:.0f} s"
    if snapshot.ended:
        title, window = "Speed, mean", snapshot.averaged_steps
    if figure:
        return Tile(title, figure, trend, window=window)
    stands = "standing" if run.silent_s else numbers.NONE
    return Tile(title, [(stands, "muted")], _area(_recent(snapshot, ()), width, "muted"))


def _useful(snapshot: Snapshot, width: int) -> Tile:
    share, mfu, queued = snapshot.useful
    if not numbers.known(share):
        return Tile("Useful compute", [(numbers.NONE, "muted")], [])
    if snapshot.summary.silent_s:
        words = f"{numbers.percent(share)} while it moved"
        return Tile("Useful compute", [(words, "muted")], bar(share, width, "muted"))
    figure: Row = [(numbers.percent(share), "bold text")]
    if numbers.known(mfu):
        figure += [("   MFU ", "muted"), (numbers.percent(mfu), "bold text")]
    else:
        tries = WITHOUT_QUEUE if queued >= LEAST_QUEUED else (" of the time",)
        room = width - row_width(figure)
        figure.append((next((words for words in tries if len(words) <= room), ""), "muted"))
    if share >= 0.8:
        style = "good"
    elif share >= 0.5:
        style = "medium"
    else:
        style = "high"
    return Tile("Useful compute", figure, bar(share, width, style))


def _loss(snapshot: Snapshot, width: int) -> Tile:
    curve = snapshot.panels.get("loss", Curve())
    values = [value for value in curve.values if math.isfinite(value)]
    if broken := broken_since(snapshot):
        figure: Row = [(broken, "bold critical")]
        cells = covered(curve, snapshot.summary.steps, width)
        return Tile("Loss", figure, _line(values, cells, "muted"), "critical")
    if not values:
        return Tile("Loss", [("not known", "muted")], [])
    figure = [(numbers.scalar(values[-1]), "bold text"), *_direction(values)]
    return Tile("Loss, whole run", figure, _line(values, width, "optimizer"))


def _direction(values: Sequence[float]) -> Row:
    """Whether the newer half of the loss surely falls or rises; nothing where noise may be all."""
    import numpy as np  # not before the first frame

    from gputop_analysis.stats import mann_kendall

    newer = values[len(values) // 2 :]
    size = len(newer) // TREND_BLOCKS
    if not size:
        return []
    starts = range(len(newer) - size * TREND_BLOCKS, len(newer), size)
    trend = mann_kendall(np.array([median(newer[start : start + size]) for start in starts]))
    if trend.p >= SURE_P:
        return []
    if trend.tau < 0:
        return [("  ↓ falling", "good")]
    return [("  ↑ rising", "high")]


def _memory(snapshot: Snapshot, width: int) -> Tile:
    total = max(gpu.memory_total_gib for gpu in snapshot.summary.gpus)
    ranks = [r.peak_allocated_gib for r in snapshot.summary.ranks if r.rank in snapshot.devices]
    peaks = [p for p in ranks if numbers.known(p)]
    used = [gpu.peak_used_gib for gpu in snapshot.summary.gpus if numbers.known(gpu.peak_used_gib)]
    peak = max(peaks or used, default=float("nan"))
    used_gib = max([*used, peak]) if used else peak
    figure: Row = [(numbers.gib(peak), "bold text"), (f" of {numbers.gib(total)} GiB", "muted")]
    series = [snapshot.history.of(f"memory {g.host} {g.index}") for g in snapshot.summary.gpus]
    if series:
        fullest = [max(column) for column in zip(*series, strict=False)]
    else:
        fullest = []
    alarm = "critical" if total > 0 and used_gib / total >= FULL else ""
    style = alarm or ("high" if used_gib > 0.9 * total else "allocated")
    name = "Peak allocated" if peaks else "Peak memory used"
    if snapshot.summary.gpus_added:
        name = "Allocated, added"
    return Tile(name, figure, _area(fullest, width, style, top=total), alarm)


def _recent(snapshot: Snapshot, values: Sequence[float]) -> list[float]:
    """The bins of the last minute; what is older is left out."""
    count = max(round(TREND_S / snapshot.timeline.bin_s), 1)
    return list(values[-count:])


def _area(values: Sequence[float], width: int, style: str, top: float | None = None) -> Row:
    finite = sorted(value for value in values if value == value)
    if not finite or width < 1:
        return []
    typical = finite[int(0.95 * (len(finite) - 1))]
    return [(braille.area(values, width, top or 1.25 * typical or 1.0), style)]


def _line(values: Sequence[float], width: int, style: str) -> Row:
    if len(values) < 2 or width < 1:
        return []
    ordered = sorted(values)
    high = ordered[int(0.99 * (len(ordered) - 1))]
    return [(braille.line(values, width, 1, ordered[0], high)[0], style)]


class Tiles(Canvas, drawn=("snapshot",)):
    """Between header and panels, where there is room."""

    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)

    def rows(self, width: int, height: int) -> list[Row]:
        return draw(self.snapshot, width) if self.snapshot else []
