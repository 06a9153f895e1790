"""The panes of the topology screen: servers, and the links of one of them."""

from __future__ import annotations

from textual.reactive import reactive

from gputop.feed.topology import Server
from gputop.render import topology
from gputop.render.rows import Row, say, shorten, spread
from gputop.widgets.canvas import Canvas
from gputop.widgets.panel import title_row


class TopologyTitle(Canvas):
    """Docked on top: what is asked, and what the screen shows."""

    _said = ""

    def show(self, said: str) -> None:
        """Another sentence."""
        self._said = said
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        start: Row = [
            (" gputop topo", "bold accent"),
            ("   how the GPUs of a node hang together", "text"),
        ]
        return [spread(start, [], width), [(" " + shorten(self._said, width - 2), "muted")]]


class ServerList(Canvas, can_focus=True, drawn=("listed", "cursor")):
    """This machine and the known servers, with a cursor."""

    listed: reactive[tuple[Server, ...]] = reactive((), repaint=False)
    cursor: reactive[int] = reactive(0, repaint=False)
    first = 0

    @property
    def chosen(self) -> Server | None:
        """The server at the cursor."""
        if self.listed:
            return self.listed[min(self.cursor, len(self.listed) - 1)]
        return None

    def move(self, step: int) -> None:
        """Move the cursor."""
        self.cursor = min(max(self.cursor + step, 0), max(len(self.listed) - 1, 0))

    def rows(self, width: int, height: int) -> list[Row]:
        inner, room, count = width - 2, max(height - 1, 1), len(self.listed)
        cursor = min(self.cursor, count - 1)
        self.first = max(0, min(max(self.first, cursor - room + 1), cursor, count - room))
        note: Row = [(f"{cursor + 1} of {count}", "muted")] if count > room else []
        head = title_row("", "Servers", note, inner, self.has_focus)
        shown = range(self.first, min(self.first + room, count))
        drawn = [topology.line(self.listed[index], inner, index == cursor) for index in shown]
        return [[(" ", ""), *row] for row in (head, *(drawn or say("Asking the driver.", inner)))]


class TopologyMatrix(Canvas, can_focus=True, drawn=("first",)):
    """The links of the chosen server."""

    first: reactive[int] = reactive(0, repaint=False)
    _shown: Server | None = None
    _most = 0

    def show(self, server: Server | None) -> None:
        """Another server."""
        self._shown = server
        self.set_reactive(TopologyMatrix.first, 0)
        self.redraw()

    def move(self, step: int) -> None:
        """Scroll."""
        self.first = min(max(self.first + step, 0), self._most)

    def rows(self, width: int, height: int) -> list[Row]:
        if self._shown is None:
            return []
        inner, room = width - 2, max(height - 1, 1)
        matrix = topology.matrix(self._shown.topology, inner)
        self._most = max(len(matrix) - room, 0)
        first = min(self.first, self._most)
        note: Row = [("tab, ↓ more", "muted")] if first < self._most else []
        head = title_row("", self._shown.name, note, inner, self.has_focus)
        return [[(" ", ""), *row] for row in (head, *matrix[first : first + room])]
