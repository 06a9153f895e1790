"""Rows of the screen of an allocator snapshot: its course over the events, and the tables below."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from gputop.feed.plots import Chart, MarkedStep, PlotLine
from gputop.render import chart
from gputop.render.bars import bar
from gputop.render.rows import Row, left, right, say, shorten_middle, text_width
from gputop_analysis.snapshots.analyse import Memory
from gputop_analysis.snapshots.difference import changes
from gputop_analysis.snapshots.frames import NO_FRAMES
from gputop_analysis.snapshots.settings import AllocatorSetting
from gputop_analysis.snapshots.text import remarks, size
from gputop_analysis.text import counted, with_minus
from gputop_analysis.units import GIB, MIB

ROWS_AT_MOST = 1000
HOW_TO_RECORD = (
    "Which line holds what is known once stacks are recorded: call"
    " torch.cuda.memory._record_memory_history() before the model is built."
)
_CONF = "PYTORCH_CUDA_ALLOC_CONF"
_BAR = 12
_NAME = 24
"""Cells that a name has at least before the bar of its share has any."""
_FIGURES = 12
_GAP = 4
"""Cells between the longest name and the figures, where there is room."""


class View(NamedTuple):
    """One of the tables."""

    title: str
    draw: Callable[[int], list[Row]]
    """Rows for a width."""


def views(memory: Memory, before: Memory | None) -> list[View]:
    """The tables of a snapshot; with another one also what changed since that."""
    tables = [
        View("held by", partial(_holders, memory)),
        View("kinds", partial(_kinds, memory)),
        View("layers", partial(_layers, memory)),
        View("fragmentation", partial(_fragmentation, memory)),
        View("other settings", partial(_settings, memory)),
    ]
    if before is not None:
        tables.append(View("difference", partial(_difference, before, memory)))
    return tables


def course(memory: Memory, width: int, height: int) -> list[Row]:
    """Allocated and reserved memory over the events, with a mark at the peak."""
    if len(memory.course) < 2 or not memory.has_history:
        return say("No history was recorded: what is shown is the moment of the snapshot.", width)
    steps = tuple(memory.events * at / (len(memory.course) - 1) for at in range(len(memory.course)))
    unit, count = ("GiB", GIB) if memory.peak_reserved >= GIB else ("MiB", MIB)
    allocated = tuple(point[0] / count for point in memory.course)
    reserved = tuple(point[1] / count for point in memory.course)
    peak = allocated.index(max(allocated))
    lines = (
        PlotLine("reserved", steps, reserved, "muted", dashed=True),
        PlotLine("allocated", steps, allocated, "allocated"),
    )
    marks = (MarkedStep(steps[peak], f"allocated peak {size(memory.peak_allocated)}", "accent"),)
    plotted = Chart("memory", unit, lines, marks, from_zero=True, axis="event")
    head: Row = [(f"{unit}  ", "muted"), *chart.legend(lines)]
    head.append(("reserved is the upper line", "muted"))
    return [head, *chart.draw(plotted, width, height - 1)]


def _holders(memory: Memory, width: int) -> list[Row]:
    rows = _table(
        ((holder.site, holder.category, holder.bytes) for holder in memory.holders),
        memory.peak_allocated,
        width,
    )
    if [holder.site for holder in memory.holders] == [NO_FRAMES]:
        rows += [[], *say(HOW_TO_RECORD, width)]
    return rows or say("Nothing was allocated.", width)


def _kinds(memory: Memory, width: int) -> list[Row]:
    entries = ((name, "", count) for name, count in memory.categories.items())
    return _table(entries, memory.peak_allocated, width) or say("Nothing was allocated.", width)


def _layers(memory: Memory, width: int) -> list[Row]:
    rows = _table(
        ((lines, "", count) for lines, count in memory.layers), memory.peak_allocated, width
    )
    return rows or say("No stack at the peak names the forward of a module.", width)


def _fragmentation(memory: Memory, width: int) -> list[Row]:
    parts = memory.fragmentation
    shares = (
        ("used", "", parts.used),
        ("idle beside blocks in use", "", parts.pinned),
        ("idle segments", "", parts.cached),
    )
    moment = "when it was taken"
    if memory.has_history:
        moment = "at the reserved peak"
    rows: list[Row] = [[(moment, "muted")]]
    rows += _table(shares, parts.reserved, width)
    rows += [[], [("keeps its segments from being given back, and what is idle in them", "muted")]]
    culprits = (
        (culprit.site, counted(culprit.segments, "segment"), culprit.bytes)
        for culprit in parts.culprits
    )
    return rows + (_table(culprits, parts.pinned, width) or say("Nobody.", width))


def _settings(memory: Memory, width: int) -> list[Row]:
    names = [_CONF, *(setting.name for setting in memory.settings)]
    room = max(10, min(width - 2 * _FIGURES, max(map(len, names)) + _GAP))
    rows: list[Row] = []
    for setting in memory.settings:
        figures = _peak_and_change(memory, setting)
        rows.append([(left(shorten_middle(setting.name, room - 1), room), "text"), *figures])
    if rows:
        guess = ", a rough guess" if memory.first_difference is not None else ""
        head = say(f"reserved peak of the same requests{guess}", width)
        heads = left(_CONF, room) + right("reserved", _FIGURES) + right("change", _FIGURES)
        rows = [*head, [(heads, "muted")], *rows, []]
    for sentence in remarks(memory):
        rows += say(f"{sentence}.", width)
    return rows


def _peak_and_change(memory: Memory, setting: AllocatorSetting) -> Row:
    """What a setting would have reserved; less is praised only where the replay can be trusted."""
    if setting.peak_reserved is None:
        return [(right("does not fit", 2 * _FIGURES), "high")]
    figures: Row = [(right(size(setting.peak_reserved), _FIGURES), "text")]
    if setting not in memory.tried:
        return figures
    change = setting.peak_reserved - memory.baseline
    style = "good" if change < 0 and memory.first_difference is None else "text"
    return [*figures, (right(_signed(change) if change else "none", _FIGURES), style)]


def _difference(before: Memory, memory: Memory, width: int) -> list[Row]:
    allocated = memory.peak_allocated - before.peak_allocated
    reserved = memory.peak_reserved - before.peak_reserved
    rows: list[Row] = [
        [(f"since {before.path}", "muted")],
        [(f"allocated peak {_signed(allocated)}, reserved peak {_signed(reserved)}", "text")],
        [],
    ]
    changed = changes(before, memory)
    if not changed:
        return rows + say("The same lines hold the same bytes at both peaks.", width)
    room = max(20, width - 18 - _FIGURES - 9)
    heads = left("", room) + left("kind", 18) + right("bytes", _FIGURES) + right("blocks", 9)
    rows.append([(heads, "muted")])
    for change in changed[:ROWS_AT_MOST]:
        rows.append(
            [
                (left(shorten_middle(change.site, room - 1), room), "text"),
                (left(change.category, 18), "muted"),
                (right(_signed(change.bytes), _FIGURES), "high" if change.bytes > 0 else "good"),
                (right(with_minus(f"{change.blocks:+,}"), 9), "muted"),
            ]
        )
    return rows


def _table(entries: Iterable[tuple[str, str, int]], whole: int, width: int) -> list[Row]:
    """Rows of (name, note, bytes), with the share of the whole."""
    rows: list[Row] = []
    shown = [*entries][:ROWS_AT_MOST]
    noted = max((len(note) + 2 for _, note, _ in shown if note), default=0)
    room = width - noted - _FIGURES - 8
    bar_cells = _BAR if room - _BAR - 2 >= _NAME else 0
    longest = max((text_width(name) for name, _, _ in shown), default=0)
    room = max(10, min(room - bar_cells - 2, longest + _GAP))
    for name, note, count in shown:
        share = count / whole if whole else 0.0
        rows.append(
            [
                (left(shorten_middle(name, room - 1), room), "text"),
                (left(note, noted), "muted"),
                (right(size(count), _FIGURES), "text"),
                (right(f"{100 * share:.1f} %", 8) + "  ", "muted"),
                *bar(share, bar_cells, "allocated"),
            ]
        )
    return rows


def _signed(count: int) -> str:
    return with_minus(f"{'-' if count < 0 else '+'}{size(abs(count))}")
