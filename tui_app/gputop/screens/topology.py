"""The topology screen: the servers on the left, the links of the chosen one on the right."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container
from textual.message import Message
from textual.screen import Screen

from gputop.feed import topology as feed
from gputop.feed.snapshot import Snapshot
from gputop.messages import PageClosed
from gputop.screens.moving import Moving
from gputop.screens.page import Reads, bindings, nothing
from gputop.screens.typed import Typed
from gputop.widgets.footer import Footer
from gputop.widgets.topology_panes import ServerList, TopologyMatrix, TopologyTitle

SAID = "this machine where it has GPUs, and servers to buy or rent"

WIDE = 186
"""From so many columns the list has room for networks too, beside a matrix of 16."""


class MachineRead(Message):
    """The driver has answered, or there is none."""

    def __init__(self, machine):
        super().__init__()
        self.machine = machine


class TopologyScreen(Typed, Moving, Screen[None]):
    """Starts at the server that has a GPU, where it was opened from one or from a run that has
    GPUs; else at this machine, or where it has no GPUs at the plan's example.
    """

    NAME = "topology"
    BINDINGS = bindings(NAME)
    DEFAULT_CSS = """
    TopologyScreen { layout: vertical; background: $background; color: $role-text; }
    TopologyScreen #title { dock: top; height: 2; }
    TopologyScreen #panes { layout: horizontal; height: 1fr; }
    TopologyScreen #servers { width: 48; height: 1fr; }
    TopologyScreen #matrix { width: 1fr; height: 1fr; }
    TopologyScreen.wide #servers { width: 60; }
    TopologyScreen.narrow #panes { layout: vertical; }
    TopologyScreen.narrow #servers { width: 1fr; height: 5; }
    TopologyScreen #footer { dock: bottom; height: 1; }
    """
    AUTO_FOCUS = "#servers"

    def __init__(self, gpu: str = ""):
        super().__init__()
        self.page = Reads(nothing)
        self._gpu = gpu

    def compose(self) -> ComposeResult:
        yield TopologyTitle(id="title")
        with Container(id="panes"):
            yield ServerList(id="servers")
            yield TopologyMatrix(id="matrix")
        yield Footer("live", False, self.NAME, id="footer")

    def on_mount(self) -> None:
        self.query_one(TopologyTitle).show(SAID)
        self.run_worker(self._read, thread=True, group="topology", exit_on_error=False)

    def on_resize(self) -> None:
        self.set_class(self.size.width < 116, "narrow")
        self.set_class(self.size.width >= WIDE, "wide")

    def _read(self) -> None:
        """In a worker thread: a driver can take a second to start."""
        self.post_message(MachineRead(feed.this_machine()))

    def on_machine_read(self, message: MachineRead) -> None:
        start = feed.start_at(self._gpu, message.machine)
        self.servers.listed = start.listed
        self.servers.cursor = start.index
        if start.note:
            self.query_one(TopologyTitle).show(start.note)
        self.matrix.show(self.servers.chosen)

    # ---- what the app asks of a screen above the main one

    def receive(self, snapshot: Snapshot, missed_steps: int | None) -> None:
        """Nothing of it depends on the run."""

    def copy_text(self) -> str:
        """The command that prints the same."""
        chosen = self.servers.chosen
        if chosen is None:
            return ""
        if chosen.name == feed.HERE:
            return "gputop topo"
        return f"gputop topo --preset {chosen.name}"

    # ---- moving

    @property
    def servers(self) -> ServerList:
        return self.query_one(ServerList)

    @property
    def matrix(self) -> TopologyMatrix:
        return self.query_one(TopologyMatrix)

    def _move(self, step: int) -> None:
        if self.matrix.has_focus:
            self.matrix.move(step)
        else:
            self.servers.move(step)
            self.matrix.show(self.servers.chosen)

    def action_next_pane(self) -> None:
        self.set_focus(self.servers if self.matrix.has_focus else self.matrix, scroll_visible=False)

    def action_back(self) -> None:
        self.post_message(PageClosed())
