"""Stacks of all ranks beside each other: ranks that stand at the same place are one column, the odd
one first; where its stack parts from that of the others is marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.content import Content

from gputop.feed.notices import training_frames
from gputop.feed.snapshot import Notice, Snapshot
from gputop.render import numbers
from gputop.render.rows import Row, fill, left, row_text, wrap
from gputop.screens.dialog import CSS, TextDialog, Words, text_columns
from gputop_analysis.text import MISSING, counted

COLUMNS = 6
GAP = 3
LEAST = 26
"""Columns of a column at least."""
FIX_LINES = 3
"""Lines of a fix at most: the stacks are what was asked for."""


class StackGroup(NamedTuple):
    """Ranks whose training threads stand at the same place."""

    frames: tuple[str, ...]
    members: tuple[Notice, ...]

    @property
    def ranks(self) -> list[int]:
        return sorted(notice.rank for notice in self.members if notice.rank is not None)


def groups_of(notices: Sequence[Notice], culprit: int | None = None) -> list[StackGroup]:
    """The newest training stack of each rank, that of ``culprit`` first, then fewest ranks."""
    newest = {notice.rank: notice for notice in notices if notice.kind == "stack_dump"}
    members: dict[tuple[str, ...], list[Notice]] = {}
    for notice in newest.values():
        members.setdefault(training_frames(notice), []).append(notice)
    groups = [StackGroup(frames, tuple(notices_)) for frames, notices_ in members.items()]
    return sorted(groups, key=lambda group: (culprit not in group.ranks, len(group.members)))


class Judged(NamedTuple):
    """What is known of a run that stands; all empty while it moves."""

    culprit: int | None = None
    """The rank that a critical finding names."""
    reason: str = ""
    """Since when it stands, ahead of the title."""
    fix: str = ""
    """What that finding says to do: on a small terminal the stacks cover the findings."""


MOVING = Judged()


def why(snapshot: Snapshot) -> Judged:
    """What the first critical finding says while the run stands."""
    critical = [finding for finding in snapshot.findings if finding.severity == "critical"]
    silent_s = snapshot.summary.silent_s
    if not silent_s:
        return MOVING
    reason = f"No step for {numbers.clock(silent_s)}: "
    if not critical:
        return Judged(None, reason)
    return Judged(critical[0].rank, reason, critical[0].fix)


def odd_ones(groups: Sequence[StackGroup], culprit: int | None = None) -> list[StackGroup]:
    """The group of the rank that holds up the others, where a finding names it; else the groups of
    fewer ranks than the largest one: they stand where the others do not.
    """
    named = [group for group in groups if culprit in group.ranks]
    if named and len(groups) > 1:
        return named
    largest = max((len(group.members) for group in groups), default=0)
    return [group for group in groups if len(group.members) < largest]


def draw(
    groups: Sequence[StackGroup],
    shown: Sequence[StackGroup],
    width: int,
    culprit: int | None = None,
) -> list[Row]:
    """The ``shown`` ones of all groups side by side in ``width`` columns."""
    if not shown:
        return []
    columns = max(min(len(shown), COLUMNS, (width + GAP) // (LEAST + GAP)), 1)
    cells = (width - GAP * (columns - 1)) // columns
    odd, many = odd_ones(groups, culprit), sum(len(group.members) for group in groups)
    usual = set(groups[-1].frames) if odd else set()
    blocks = [_block(group, cells, group in odd, usual, many) for group in shown]
    rows: list[Row] = []
    for first in range(0, len(blocks), columns):
        rows += [[]] * bool(rows)
        rows += _beside(blocks[first : first + columns], cells)
    return rows


def text(notices: Sequence[Notice], width: int, culprit: int | None = None) -> str:
    """The same without colours."""
    groups = groups_of(notices, culprit)
    return "\n".join(row_text(row).rstrip() for row in draw(groups, groups, width, culprit))


def _block(group: StackGroup, cells: int, odd: bool, usual: set[str], many: int) -> list[Row]:
    """Who stands there, then the frames; those that the others do not have are marked."""
    ranks, body = group.ranks, group.members[0].body
    if len(ranks) == 1:
        name = f"rank {ranks[0]}"
    else:
        name = f"ranks {ranges(ranks)}"
    sign, style = ("▲ ", "bold high") if odd else ("  ", "bold text")
    rows: list[Row] = [[(line, style)] for line in wrap(sign + name, cells)]
    about = f"  {len(group.members)} of {counted(many, 'rank')}"
    where = f"  in {body.get('phase', MISSING)}, step {body.get('step', MISSING)}"
    rows += [[(line, "muted")] for part in (about, where) for line in wrap(part, cells)]
    rows.append([])
    for frame in group.frames or ("no Python frame",):
        unusual = odd and frame not in usual
        for index, line in enumerate(wrap(frame, cells - 2)):
            if unusual:
                mark = ("▸ " if index == 0 else "  ", "high")
            else:
                mark = ("  ", "")
            rows.append([mark, (line, "text" if unusual or not odd else "muted")])
    return rows


def ranges(ranks: Sequence[int]) -> str:
    """``0-4, 6, 7``."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    words: list[str] = []
    for part in parts:
        if len(part) > 2:
            words.append(f"{part[0]}-{part[-1]}")
        else:
            words += map(str, part)
    return ", ".join(words)


def _beside(blocks: Sequence[list[Row]], cells: int) -> list[Row]:
    height = max(len(block) for block in blocks)
    rows: list[Row] = []
    for y in range(height):
        row: Row = []
        for index, block in enumerate(blocks):
            row += [(" " * GAP, "")] * bool(index)
            row += fill(block[y] if y < len(block) else [], cells)
        rows.append(row)
    return rows


class StacksDialog(TextDialog):
    """All ranks side by side; ``w`` leaves only those that stand elsewhere than the most."""

    DEFAULT_CSS = (
        CSS.format(name="StacksDialog", width="100%")
        + "StacksDialog, StacksDialog:ansi { align: center bottom; background: transparent; }"
        + "StacksDialog > .box { max-width: 100%; }"
    )
    """At the foot of the screen, which stays as bright: its first lines say what is wrong."""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "worst", show=False)]

    def __init__(
        self,
        notices: Sequence[Notice],
        colours: Mapping[str, str],
        judged: Judged = MOVING,
    ):
        """``colours``: the theme's variables."""
        self.notices = notices
        self.groups = groups_of(notices, judged.culprit)
        self.culprit = judged.culprit
        self._fix = judged.fix
        self.only_odd = False
        self._colours = colours
        super().__init__(self._titled(judged.reason), self._stacks_at)

    def judge(self, judged: Judged) -> None:
        """Take in what is known by now: the stacks come before the judgement on them."""
        self.query_one(".box").border_title = self._titled(judged.reason)
        if (judged.culprit, judged.fix) == (self.culprit, self._fix):
            return
        self.culprit, self._fix = judged.culprit, judged.fix
        self.groups = groups_of(self.notices, judged.culprit)
        self.write_again()
        self._tell()

    def _titled(self, reason: str) -> str:
        many = sum(len(group.members) for group in self.groups)
        return f"{reason}Stacks of {counted(many, 'rank')}"

    def on_mount(self) -> None:
        self._tell()

    def _marked(self) -> list[StackGroup]:
        return odd_ones(self.groups, self.culprit)

    def _stacks_at(self, size: tuple[int, int]) -> Words:
        """The fix and the stacks in a terminal of that size; for the clipboard all stacks."""
        width = text_columns(size[0], size[0])
        shown = self._marked() if self.only_odd else self.groups
        rows = draw(self.groups, shown, width, self.culprit)
        if self._fix:
            advice = wrap(f"fix: {self._fix}", width)[:FIX_LINES]
            rows = [*([(line, "text")] for line in advice), [], *rows]
        lines = [self._coloured(row) for row in rows]
        return Words(Content("\n").join(lines), text(self.notices, width, self.culprit))

    def _coloured(self, row: Row) -> Content:
        return Content.assemble(*((text, self._colour(style)) for text, style in row))

    def _colour(self, style: str) -> str:
        name = style.removeprefix("bold ")
        colour = self._colours[f"role-{name}"] if name else ""
        return f"bold {colour}" if name != style else colour

    def _tell(self) -> None:
        """What is shown, at the foot of the frame."""
        odd = self._marked()
        hint = f"{len(self.groups)} places, as many ranks at each"
        if len(self.groups) == 1:
            hint = "all of them at one place"
        if self.only_odd:
            hint = f"{len(odd)} of {len(self.groups)} places: the odd ones · w all"
        elif odd and self.culprit is not None:
            hint = "▲ holds up the others · w only that"
        elif odd:
            hint = "▲ stands elsewhere than the most · w only those"
        self.query_one(".box").border_subtitle = left(f"{hint} · y copy · esc back", 80).rstrip()

    def action_worst(self) -> None:
        """Leave out the ranks that stand where the most do, or show all again."""
        if self._marked():
            self.only_odd = not self.only_odd
            self.write_again()
            self._tell()
