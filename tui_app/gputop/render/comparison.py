"""The rows of the comparison of two runs: the words of ``gputop diff``, the differences of each
phase as intervals around zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gputop import palette
from gputop.feed.comparison import ComparedRuns
from gputop.render import numbers
from gputop.render.bars import merged
from gputop.render.rows import Row, beside, left, right, row_width, shorten_middle, text_width, wrap
from gputop_analysis.diff import Diff
from gputop_analysis.diff.settings import telling
from gputop_analysis.diff.text import (
    GROUPS,
    figures,
    findings_rows,
    headline,
    loss_lines,
    signed,
    style_of,
)
from gputop_analysis.stats import Interval
from gputop_analysis.text import RANKS_IN_TEXT, ms, with_minus

LABEL = 13
FIGURE = 9
SURE = "*"
"""Behind a difference whose interval leaves zero out."""
BANDS = {
    "critical": "band-critical",
    "medium": "band-high",
    "good": "band-good",
    "info": "band-info",
}
"""Ground of the verdict by its style."""
BESIDE_FROM = 150
"""Columns from which on findings and settings stand beside the figures."""
INTERVAL_FROM = 76
"""Columns of a part from which on an interval is written out too."""
WRITTEN = 22
LEAST_CELLS = 13
"""Columns less than which show no interval."""
PEAK = 16
"""Columns of a peak's name."""


class Difference(NamedTuple):
    """One line of a table of differences, in ms a step."""

    label: str
    style: str
    a_ms: float
    b_ms: float
    interval: Interval


def draw(compared: ComparedRuns, width: int) -> list[Row]:
    """All rows, ``width`` cells wide."""
    rows = [*_head(compared, width), []]
    if width < BESIDE_FROM:
        return [*rows, *_speed(compared.diff, width), *_rest(compared.diff, width)]
    half = (width - 4) // 2
    return rows + beside(
        _speed(compared.diff, half), half, _rest(compared.diff, width - 4 - half), gap=4
    )


def _head(compared: ComparedRuns, width: int) -> list[Row]:
    """The verdict, both runs, and what each took."""
    diff = compared.diff
    style = style_of(diff)
    mark = {"critical": "✖", "good": "●", "info": "○"}.get(style, "◆")
    rows: list[Row] = []
    for index, line in enumerate(wrap(headline(diff), width - 4)):
        text = f" {mark if index == 0 else ' '} {line}"
        rows.append([(left(text, width), f"bold on-band/{BANDS[style]}")])
    rows.append([])
    for letter, side, steps in zip("AB", compared.sides, (diff.a_steps, diff.b_steps), strict=True):
        row: Row = [(left(letter, LABEL), "bold accent"), (side.name, "text")]
        row.append((f"  {steps:,} steps  ", "muted"))
        room = width - row_width(row)
        rows.append([*row, (shorten_middle(side.command, room) if room > 12 else "", "muted")])
    verdict = headline(diff)
    for label, text in figures(diff):
        if label == "speed" and diff.speed and f"{ms(diff.speed.b_ms)} ms" in verdict:
            continue  # the verdict has said it
        rows += _field(label, text.replace("->", "→"), width)
    return rows


def _speed(diff: Diff, width: int) -> list[Row]:
    """Phases and ranks side by side with their intervals."""
    if diff.speed is None:
        return []
    styles = set(palette.PHASE) | {"wait"}
    phases = [
        Difference(
            phase.name,
            phase.name if phase.name in styles else "",
            phase.a_ms,
            phase.b_ms,
            phase.difference_ms,
        )
        for phase in diff.speed.phases
    ]
    rows = differences("ms a step", phases, width)
    if len(diff.speed.ranks) > 1:
        grown = sorted(diff.speed.ranks, key=lambda rank: -rank.difference_ms.value)
        shown = sorted(grown[:RANKS_IN_TEXT], key=lambda rank: rank.rank)
        ranks = [
            Difference(f"rank {rank.rank}", "", rank.a_ms, rank.b_ms, rank.difference_ms)
            for rank in shown
        ]
        rows += [[], *differences("own work ms", ranks, width)]
        more = len(grown) - len(shown)
        if more:
            rows.append([(f"and {more} ranks that grew less", "muted")])
    return [*rows, [(f"{SURE} sure: the interval leaves 0 out", "muted")], []]


def differences(title: str, lines: Sequence[Difference], width: int) -> list[Row]:
    """A table: A, B, and the difference as an interval around zero, on one scale."""
    written = WRITTEN if width >= INTERVAL_FROM else 0
    cells = width - LABEL - 3 * FIGURE - len(SURE) - 2 - written
    cells -= 1 - cells % 2  # zero stands in the middle
    if cells < LEAST_CELLS:
        cells = 0
    names = left(title, LABEL) + "".join(right(name, FIGURE) for name in ("A", "B", "B − A"))
    head: Row = [(names + " " * len(SURE), "bold text")]
    if written:
        head.append((left("  95 % interval", written), "bold text"))
    reach = max((abs(end) for line in lines for end in line.interval[1:]), default=1.0) or 1.0
    if cells:
        head.append((f"  {_around_zero(cells, reach)}", "muted"))
    digits = numbers.digits_for(max((max(line.a_ms, line.b_ms) for line in lines), default=1.0))
    rows = [head]
    for line in lines:
        sure = _sure(line.interval)
        row = _figures(line, digits, sure)
        if written:
            low, high = _signed(line.interval.low), _signed(line.interval.high)
            row.append((left(f"  {low} to {high}", written), "muted"))
        if cells:
            row += [("  ", ""), *whisker(line.interval, reach, cells, sure or "muted")]
        rows.append(row)
    return rows


def _figures(line: Difference, digits: int, sure: str) -> Row:
    """Name, A, B and their difference; ``sure`` is the style of one that is sure, else empty."""
    key = ("■ ", line.style) if line.style else ("", "")
    row: Row = [key, (left(line.label, LABEL - len(key[0])), "text")]
    for took_ms in (line.a_ms, line.b_ms):
        row.append((right(numbers.ms_column(took_ms, digits), FIGURE), "text"))
    row.append((right(_signed(line.interval.value), FIGURE), sure or "muted"))
    row.append((SURE if sure else " ", sure))
    return row


def _signed(of_ms: float) -> str:
    return with_minus(signed(of_ms))


def _around_zero(cells: int, reach: float) -> str:
    """Heading of the whiskers: their scale, and on which side B is faster."""
    half = cells // 2
    less, more = _signed(-reach), _signed(reach)
    for words in (("◀ faster", "slower ▶"), ("faster", "slower")):
        if len(less) + len(words[0]) + 2 <= half:
            less, more = f"{less} {words[0]}", f"{words[1]} {more}"
            break
    return left(less, half) + "0" + right(more, cells - half - 1)


def _sure(interval: Interval) -> str:
    """Style of a difference that is sure; empty where the interval holds zero."""
    if interval.low > 0:
        return "high"
    return "good" if interval.high < 0 else ""


def whisker(interval: Interval, reach: float, cells: int, style: str) -> Row:
    """The interval as a line, its value as a dot and zero as an upright; ``reach`` ms lie
    between zero and each edge.
    """
    middle = cells // 2
    scale = (middle - 1) / reach  # a cell stays free at either end

    def place(value: float) -> int:
        return min(max(middle + round(value * scale), 0), cells - 1)

    line = [(" ", "")] * cells
    dot = place(interval.value)
    first = dot - round((interval.value - interval.low) * scale)
    last = dot + round((interval.high - interval.value) * scale)
    for x in range(max(first, 0), min(last, cells - 1) + 1):
        line[x] = ("━", style)
    line[middle] = ("┃" if line[middle][0] == "━" else "│", "rule")
    line[dot] = ("●", style)
    return merged(line)


def _rest(diff: Diff, width: int) -> list[Row]:
    """Findings, memory, loss and settings, each under its name."""
    parts = (
        ("Findings", _findings(diff, width)),
        ("", _memory(diff)),
        ("Loss", [[(part, "text")] for line in loss_lines(diff) for part in wrap(line, width)]),
        ("Set differently", _changes(diff, width)),
    )
    rows: list[Row] = []
    for title, lines in parts:
        if lines:
            rows += [*([[(title, "bold text")]] if title else []), *lines, []]
    return rows[:-1]


def _findings(diff: Diff, width: int) -> list[Row]:
    if diff.findings is None:
        return []
    rows: list[Row] = []
    for word, style, finding in findings_rows(diff):
        if word == "new":
            glyph = palette.SEVERITY[finding.severity].glyph
        else:
            glyph = "✓"
        start: Row = [(f"{glyph} {word:<5}", style), (left(finding.id, 6), "muted")]
        indent = row_width(start)
        lines = wrap(finding.title, max(width - indent, 20))
        rows.append([*start, (lines[0], "text")])
        rows += [[(" " * indent, ""), (line, "text")] for line in lines[1:]]
    if not rows:
        rows.append([("none came, none went", "muted")])
    stayed = ", ".join(finding.id for finding in diff.findings.stayed)
    return rows + _wrapped(f"in both: {stayed}" if stayed else "", width)


def _memory(diff: Diff) -> list[Row]:
    rows: list[Row] = []
    for peak in diff.memory:
        if peak.a_gib > 0:
            change = with_minus(f"{100 * (peak.b_gib / peak.a_gib - 1):+.1f} %")
        else:
            change = numbers.NONE
        row: Row = [(left(peak.name, PEAK), "muted")]
        row += [(right(f"{gib:.2f}", FIGURE), "text") for gib in (peak.a_gib, peak.b_gib)]
        rows.append([*row, (right(change, FIGURE + 1), "text")])
    if not rows:
        return []
    names = "".join(right(name, FIGURE) for name in ("A", "B", " B − A"))
    return [[(left("Memory, GiB", PEAK) + names, "bold text")], *rows]


def _changes(diff: Diff, width: int) -> list[Row]:
    if not diff.changes:
        return [[("nothing that gputop knows of", "muted")]]
    rows: list[Row] = []
    changes = telling(diff.changes)
    names = min(max(len(change.name) for change in changes), max(20, width // 2 - 14))
    for change in changes:
        start: Row = [(left(GROUPS[change.group], 9), "muted")]
        start.append((left(shorten_middle(change.name, names), names + 2), "text"))
        of_a, of_b = _both(change.a, change.b, max(width - row_width(start) - 3, 16))
        rows.append([*start, (of_a, "muted"), (" → ", "accent"), (of_b, "text")])
    return rows


def _both(a: object, b: object, width: int) -> tuple[str, str]:
    """Two values of a setting in ``width`` cells; of long ones the ends, where they differ most."""
    texts = ["not set" if value is None else str(value) for value in (a, b)]
    if sum(map(text_width, texts)) > width:
        texts = [shorten_middle(text, width // 2) for text in texts]
    return texts[0], texts[1]


def _field(label: str, text: str, width: int) -> Iterable[Row]:
    lines = wrap(text, max(width - LABEL, 20))
    yield [(left(label, LABEL), "muted"), (lines[0], "text")]
    yield from ([(" " * LABEL, ""), (line, "text")] for line in lines[1:])


def _wrapped(text: str, width: int) -> list[Row]:
    return [[(line, "muted")] for line in wrap(text, width)] if text else []
