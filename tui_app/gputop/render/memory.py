"""Rows of the screen of an allocator snapshot: its course over the events, and the tables below."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from gputop.feed.plots import Chart, Line, Mark
from gputop.render import chart
from gputop.render.bars import bar
from gputop.render.rows import Row, left, right, say, shorten_middle
from gputop_analysis.snapshots.analyse import Memory
from gputop_analysis.snapshots.difference import changes
from gputop_analysis.snapshots.text import remarks, size
from gputop_analysis.text import counted
from gputop_analysis.units import GIB

ROWS_AT_MOST = 1000
_BAR = 12
_FIGURES = 12


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
    """Allocated and reserved GiB over the events, with a mark at each peak."""
    if len(memory.course) < 2 or not memory.has_history:
        return say("No history was recorded: what is shown is the moment of the snapshot.", width)
    steps = tuple(memory.events * at / (len(memory.course) - 1) for at in range(len(memory.course)))
    allocated = tuple(point[0] / GIB for point in memory.course)
    reserved = tuple(point[1] / GIB for point in memory.course)
    peak = allocated.index(max(allocated))
    lines = (
        Line("reserved", steps, reserved, "reserved"),
        Line("allocated", steps, allocated, "allocated"),
    )
    marks = (Mark(steps[peak], f"allocated peak {size(memory.peak_allocated)}", "accent"),)
    plotted = Chart("memory", "GiB", lines, marks, from_zero=True, axis="event")
    head: Row = [("GiB  ", "muted"), *chart.legend(lines)]
    return [head, *chart.draw(plotted, width, height - 1)]


def _holders(memory: Memory, width: int) -> list[Row]:
    rows = _table(
        ((holder.site, holder.category, holder.bytes) for holder in memory.holders),
        memory.peak_allocated,
        width,
    )
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
    rows: list[Row] = []
    for setting in memory.settings:
        if setting.peak_reserved is None:
            figures: Row = [(right("does not fit", 2 * _FIGURES), "high")]
        else:
            change = setting.peak_reserved - (memory.settings[0].peak_reserved or 0)
            style = "good" if change < 0 else "text"
            figures = [
                (right(size(setting.peak_reserved), _FIGURES), "text"),
                (right(_signed(change) if change else "", _FIGURES), style),
            ]
        rows.append([(left(setting.name, max(10, width - 2 * _FIGURES)), "text"), *figures])
    if rows:
        rows.insert(0, [("reserved peak of the same requests (PYTORCH_CUDA_ALLOC_CONF)", "muted")])
        rows.append([])
    for sentence in remarks(memory):
        rows += say(f"{sentence}.", width)
    return rows


def _difference(before: Memory, memory: Memory, width: int) -> list[Row]:
    allocated = memory.peak_allocated - before.peak_allocated
    reserved = memory.peak_reserved - before.peak_reserved
    rows: list[Row] = [
        [(f"since {before.path}", "muted")],
        [(f"allocated peak {_signed(allocated)}, reserved peak {_signed(reserved)}", "text")],
        [],
    ]
    room = max(20, width - 18 - _FIGURES - 9)
    heads = left("", room) + left("kind", 18) + right("bytes", _FIGURES) + right("blocks", 9)
    rows.append([(heads, "muted")])
    for change in changes(before, memory)[:ROWS_AT_MOST]:
        rows.append(
            [
                (left(shorten_middle(change.site, room - 1), room), "text"),
                (left(change.category, 18), "muted"),
                (right(_signed(change.bytes), _FIGURES), "high" if change.bytes > 0 else "good"),
                (right(f"{change.blocks:+,}", 9), "muted"),
            ]
        )
    return rows


def _table(entries: Iterable[tuple[str, str, int]], whole: int, width: int) -> list[Row]:
    """Rows of (name, note, bytes), with the share of the whole."""
    rows: list[Row] = []
    room = max(10, width - 18 - _FIGURES - 8 - _BAR - 2)
    for name, note, count in [*entries][:ROWS_AT_MOST]:
        share = count / whole if whole else 0.0
        rows.append(
            [
                (left(shorten_middle(name, room - 1), room), "text"),
                (left(note, 18), "muted"),
                (right(size(count), _FIGURES), "text"),
                (right(f"{100 * share:.1f} %", 8) + "  ", "muted"),
                *bar(share, _BAR, "allocated"),
            ]
        )
    return rows


def _signed(count: int) -> str:
    return f"{'-' if count < 0 else '+'}{size(abs(count))}"
