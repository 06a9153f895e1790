"""The estimator's answer: the total as a bar, its parts, where it fits, what lessens it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.reactive import reactive

from gputop.feed.form import differences
from gputop.render import vram, vram_fits
from gputop.render.rows import Row, beside, clip, left, right, row_width, say, shorten, spread
from gputop.widgets.canvas import Canvas
from gputop.widgets.panel import title_row

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate

TWO_COLUMNS = 110
_DIFFERENCES = 4
TIMELINE = 20
"""Rows of the course of a step at most, where there is room."""
WITH_UNITS = 60
"""Columns from which on a figure has its unit beside it, not in the title."""


@dataclass(frozen=True, slots=True)
class ShownEstimate:
    """What is shown: an estimate, the one compared with, what keeps a newer one away."""

    estimate: Estimate | None = None
    base: Estimate | None = None
    problem: str = ""
    """Why the present setup has no estimate; the last one is shown with it."""
    working: str = ""
    """What is being computed."""
    quick: Estimate | None = None
    """What was answered before a trace of the same setup."""


def draw(
    answer: ShownEstimate, width: int, height: int, lever: int | None = None, mono: bool = False
) -> list[Row]:
    """All rows; ``lever`` is the number of the lever at the cursor."""
    rows = [[(text, "high")] for text in _wrapped(answer.problem, width)]
    if answer.working:
        end: Row = [("t", "bold accent"), (" stops it", "muted")]
        rows.append(
            spread([("≈ trace " + shorten(answer.working, width - 21), "accent")], end, width)
        )
    estimated = answer.estimate
    if estimated is None:
        return rows or say("Estimating.", width)
    rows += _head(estimated, answer, width)
    if answer.quick is not None:
        rows.append(clip([(refined(answer.quick, estimated), "muted")], width))
    rows += _bars(estimated, answer.base, width, mono)
    against = vram.parts(answer.base) if answer.base else None
    if width >= TWO_COLUMNS:
        half = (width - 3) // 2
        room = height - len(rows) - 1
        notes = [[], *vram.notes(estimated, half)]
        lefts = _made_of(estimated, half, max(room - len(notes), 0), mono, against) + notes
        rights = _where(estimated, width - half - 3, room, lever)[1:]
        return [*rows, [], *beside(lefts[:room], half, rights, 3)]
    room = height - len(rows)
    upper = _made_of(estimated, width, room // 2 + 2, mono, against)
    return [*rows, *upper, *_where(estimated, width, room - len(upper), lever)]


def refined(quick: Estimate, traced: Estimate) -> str:
    """``25.4 GiB by the formula tier, 24.9 traced``."""
    before, after = vram.gib(quick.device_total), vram.gib(traced.device_total)
    return f"{before} GiB by the {quick.peak.tier} tier, {after} traced"


def _wrapped(text: str, width: int) -> list[str]:
    from gputop.render.rows import wrap

    return wrap("✖ " + text, width) if text else []


def _head(estimate: Estimate, answer: ShownEstimate, width: int) -> list[Row]:
    end: Row = []
    if answer.base is not None:
        end = [_change(estimate, answer.base), (" against the base", "muted")]
    headline = vram.headline(estimate, width)
    rows = [spread(headline, end, width), vram.figures(estimate, width)]
    if estimate.guessed:
        rows.insert(
            0, clip([("guessed: ", "warning"), ("; ".join(estimate.guessed), "text")], width)
        )
    if answer.base is not None:
        has_total = row_width(headline) + row_width(end) < width
        rows.append(_against(estimate, answer.base, width, has_total))
    return rows


def _against(estimate: Estimate, base: Estimate, width: int, has_total: bool) -> Row:
    """What was changed; and by how much it needs more where the headline has no room for that."""
    text = _changed(base, estimate)
    row: Row = [("base: ", "muted"), (text, "text")]
    if has_total:
        return clip(row, width)
    change, style = _change(estimate, base)
    row += [("  " + change, style)]
    if row_width(row) <= width:
        return row
    change = change.removesuffix(" GiB") + "  "
    return [(change, style), (shorten(text, width - len(change)), "text")]


def _change(estimate: Estimate, base: Estimate) -> tuple[str, str]:
    change, style = vram.difference(estimate.device_total - base.device_total)
    return f"{change.strip()} GiB", style


def _changed(base: Estimate, estimate: Estimate) -> str:
    """``seq 4096 → 16384``, and how many more settings differ."""
    changes = list(differences(base.setup, estimate.setup))
    text = ", ".join(
        f"{label} {before} → {after}" for label, before, after in changes[:_DIFFERENCES]
    )
    if len(changes) > _DIFFERENCES:
        text += f" and {len(changes) - _DIFFERENCES} more"
    return text or "the same"


def _bars(found: Estimate, base: Estimate | None, width: int, mono: bool) -> list[Row]:
    memory = _memory(found)
    widest = max(found.device_total, base.device_total if base else 0, memory)
    rows: list[Row] = []
    for name, estimate in (("", found), ("base ", base)):
        if estimate is not None:
            start: Row = [(left(name or "now ", 5), "muted")] if base else []
            rows.append([*start, *vram.total_bar(estimate, width - row_width(start), mono, widest)])
    if memory and memory >= found.device_total:
        label = f"{vram.short_gpu(found.gpu)} {vram.gib(memory)} GiB"
        rows.append([(right(label, width), "muted")])
    return rows


def _memory(estimate: Estimate) -> int:
    """Of the GPU that was asked about, or the smallest that fits; 0: none."""
    return next((fit.memory for fit in estimate.fits if fit.gpu == estimate.gpu), 0)


def _made_of(
    estimate: Estimate, width: int, height: int, mono: bool, against: dict[str, int] | None
) -> list[Row]:
    rows = vram.table(estimate, width, mono, against)
    room = height - len(rows)
    peak = vram.peak_rows(estimate, width, min(max(room - 8, 1), TIMELINE))
    return [*rows, *([[]] if room > len(peak) else []), *peak[: max(1, room)]]


def _where(estimate: Estimate, width: int, height: int, lever: int | None) -> list[Row]:
    """The fits and the levers share what room there is."""
    sizes = vram_fits.sizes(estimate)
    count = len(estimate.levers)
    spare = height - 2 - (2 if height >= 12 else 0)
    for_levers = min(count, max(spare // 2, 4)) if count else 0
    for_fits = max(min(len(sizes), spare - for_levers), 2)
    for_levers = min(count, max(spare - for_fits, 0))
    blank: list[Row] = [[]] if height >= 12 else []
    unit = "" if width >= WITH_UNITS else ", GiB"
    rows = [
        *blank,
        title_row("", f"Fits{unit}", _largest(estimate), width, False),
        *vram_fits.rows(sizes, width, for_fits),
    ]
    if not count:
        return [*rows, *blank, *say("No lever of those gputop knows saves more.", width)]
    chosen = vram.lever_rows(estimate, width, lever)
    first = max(0, min((lever or 0) - for_levers + 1, count - for_levers))
    note: Row = [("enter applies one", "muted")]
    if lever is None:
        note = [("tab", "bold accent"), (" to choose", "muted")]
    return [
        *rows,
        *blank,
        title_row("", f"To need less{unit}", note, width, lever is not None),
        *chosen[first : first + for_levers],
    ]


def _largest(estimate: Estimate) -> Row:
    if not estimate.gpu or estimate.max_micro_batch is None:
        return []
    return [
        ("largest micro-batch ", "muted"),
        (str(estimate.max_micro_batch), "bold text"),
        (f" on {vram.short_gpu(estimate.gpu)}", "muted"),
    ]


class EstimateAnswer(Canvas, can_focus=True, drawn=("answer", "cursor")):
    """Has a cursor on the levers while it has the focus."""

    answer: reactive[ShownEstimate] = reactive(ShownEstimate(), repaint=False)
    cursor: reactive[int] = reactive(0, repaint=False)

    def move(self, step: int) -> None:
        """Move the cursor on the levers."""
        count = 0
        if self.answer.estimate:
            count = len(self.answer.estimate.levers)
        self.cursor = min(max(self.cursor + step, 0), max(count - 1, 0))

    def rows(self, width: int, height: int) -> list[Row]:
        levers = self.answer.estimate.levers if self.answer.estimate else ()
        if self.has_focus and levers:
            lever = min(self.cursor, len(levers) - 1)
        else:
            lever = None
        inner = width - 2
        head = title_row("", "One GPU needs, in GiB", [], inner, self.has_focus)
        return [
            [(" ", ""), *row]
            for row in (head, *draw(self.answer, inner, height - 1, lever, self.mono))
        ]
