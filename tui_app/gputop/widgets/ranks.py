"""The panel of ranks: a cursor over their table or map, and what opens one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

from gputop.feed.snapshot import Snapshot
from gputop.panels import GRID_FROM
from gputop.render.rows import Row
from gputop.widgets import rank_map, rank_table
from gputop.widgets.scrolling import ScrollingPanel
from gputop.widgets.standings import standings
from gputop_analysis.overview import GPUS_ADDED

if TYPE_CHECKING:
    from gputop_analysis.model import RankSummary


class Ranks(ScrollingPanel):
    """Panel 3."""

    _moved = False
    """Whether somebody moved the cursor."""

    class Chosen(Message):
        """A rank was opened."""

        def __init__(self, rank: int):
            super().__init__()
            self.rank = rank

    def heading(self, snapshot: Snapshot) -> str:
        heading = super().heading(snapshot)
        return f"{heading}, own and wait before the stop" if snapshot.summary.stands else heading

    def item_count(self, snapshot: Snapshot) -> int:
        ranks = len(snapshot.summary.ranks)
        return ranks if ranks > 1 else 0

    def _keep_in_view(self) -> None:
        """Until somebody moves in it, it stands at the rank that the first finding names."""
        room, named = self.visible_items(), self._named()
        if not self._moved:
            self.set_reactive(ScrollingPanel.cursor, named)
        super()._keep_in_view()
        if self.has_focus or self._moved or self.snapshot is None:
            return
        if named >= room:
            self.first = min(named - room // 2, len(self.snapshot.summary.ranks) - room)

    def _named(self) -> int:
        """Index of the rank that the first finding names; 0 where none does."""
        if self.snapshot is None:
            return 0
        ranks = [rank.rank for rank in self.snapshot.summary.ranks]
        named = [finding.rank for finding in self.snapshot.findings if finding.rank in ranks]
        return ranks.index(named[0]) if named else 0

    def move(self, step: int) -> None:
        self._moved = True
        super().move(step)

    def visible_items(self) -> int:
        room = self.inside(*self.size)[1]
        if self.snapshot is None:
            return max(room, 1)
        count = len(self.snapshot.summary.ranks)
        if count >= GRID_FROM:
            return count
        hosts = min(len(self.snapshot.summary.hosts), 2)
        return max(1, room - 1 - (hosts if room >= min(count, 3) + 1 + hosts else 0))

    def note(self, snapshot: Snapshot) -> Row:
        many = len(snapshot.summary.ranks)
        if many >= GRID_FROM:
            return [
                (f"{many:,} ranks · enter opens one · ", "muted"),
                ("w", "accent"),
                (" all", "muted"),
            ]
        if snapshot.summary.gpus_added:
            return [(GPUS_ADDED + ", not measured", "accent")]
        if snapshot.summary.gpus and self.size.width >= 90:
            return [("━ allocated  ╍ reserved  ╌ others'  ┃ peak", "muted")]
        if many > 1:
            return [("w", "accent"), (" all ranks", "muted")]
        return []

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        cursor = self.cursor if self.has_focus else None
        return rank_table.draw(
            snapshot, width, height, first=self.first, cursor=cursor, mono=self.mono
        )

    def page(self, direction: int) -> None:
        ranks = len(self.snapshot.summary.ranks) if self.snapshot else 0
        width, height = self.inside(*self.size)
        if ranks < GRID_FROM:
            return super().page(direction)
        return self.move(direction * rank_map.layout_of(ranks, width, height - 1).columns)

    def choose(self) -> None:
        """Open the rank under the cursor."""
        self._moved = True
        ranks = self.snapshot.summary.ranks if self.snapshot else ()
        if len(ranks) > 1:
            self.post_message(self.Chosen(ranks[self.cursor].rank))

    def head_rows(self) -> int:
        return 1

    def clicked(self, x: int, y: int) -> None:
        ranks = self.snapshot.summary.ranks if self.snapshot else ()
        if len(ranks) < GRID_FROM:
            super().clicked(x, y)
            return
        width, height = self.inside(*self.size)
        if self.snapshot:
            hosts = min(len(self.snapshot.summary.hosts), 2)
        else:
            hosts = 0
        lead, columns, cells = rank_map.layout_of(len(ranks), width, height - hosts)
        column = (x - lead) // cells
        index = 2 * y * columns + column
        if 0 <= column < columns and index < len(ranks):
            index = self._slower(index, index + columns, ranks)
            self.cursor = index
            self.choose()

    def _slower(self, above: int, below: int, ranks: tuple[RankSummary, ...]) -> int:
        """Of a cell's two ranks the one with more work of its own, which a click there means."""
        if below >= len(ranks):
            return above
        ranked = standings(ranks)
        return max(above, below, key=lambda index: ranked[index].ratio)

    def copy_text(self, snapshot: Snapshot) -> str:
        if not self.item_count(snapshot):
            return super().copy_text(snapshot)
        rank = snapshot.summary.ranks[self.cursor]
        phases = ", ".join(
            f"{name} {value:.3f}" for name, value in rank.phases_mean_ms.items() if value > 0
        )
        return (
            f"rank {rank.rank} on {rank.host}: step {rank.step_time_mean_ms:.3f} ms "
            f"mean; of it {phases}"
        )
