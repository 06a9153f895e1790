"""A screen above the main one: the same header and footer, one page between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from gputop.actions import on_screen, target
from gputop.feed.pages import Loader
from gputop.feed.snapshot import Snapshot
from gputop.messages import PageClosed, PauseAsked
from gputop.pages.page import Page
from gputop.screens.typed import Typed
from gputop.widgets.footer import Footer
from gputop.widgets.header import Header


def bindings(name: str) -> list[BindingType]:
    """The keys of one screen, out of the table of actions."""
    return [Binding(a.keys, target(a), a.label, id=a.id, show=False) for a in on_screen(name)]


def nothing() -> None:
    """Loads what a screen needs that reads nothing of the run that is watched."""


class Reads:
    """Stands for the page of a screen that draws itself."""

    def __init__(self, loader: Callable[[], Loader | None]):
        self.loader = loader


class PageScreen(Typed, Screen[None]):
    """Base; a subclass names itself and its page."""

    NAME: ClassVar[str] = ""
    DEFAULT_CSS = """
    PageScreen { layout: vertical; background: $background; color: $role-text; }
    PageScreen #header { dock: top; height: 3; }
    PageScreen #page { width: 1fr; height: 1fr; }
    PageScreen #footer { dock: bottom; height: 1; }
    PageScreen #footer.replay { height: 2; }
    """
    AUTO_FOCUS = "#page"

    def __init__(self, mode: str, control: bool, snapshot: Snapshot, page: Page):
        super().__init__()
        self.mode = mode
        self._control = control
        self.snapshot = snapshot
        self.page = page

    def compose(self) -> ComposeResult:
        header = Header(id="header")
        header.set_reactive(Header.snapshot, self.snapshot)
        self.page.set_reactive(Page.snapshot, self.snapshot)
        footer = Footer(self.mode, self._control, self.NAME, id="footer")
        footer.set_reactive(Footer.position, self.snapshot.position)
        footer.set_reactive(Footer.idle, self.page.idle())
        footer.set_class(self.mode != "live", "replay")
        yield header
        yield self.page
        yield footer

    def receive(self, snapshot: Snapshot, missed_steps: int | None) -> None:
        """A new snapshot, with what this page reads once that is there; steps are missed while the
        picture is held.
        """
        self.query_one(Header).paused_steps = missed_steps
        if missed_steps is not None:
            return
        self.snapshot = snapshot
        with self.app.batch_update():
            self.query_one(Header).snapshot = snapshot
            self.page.snapshot = snapshot
            footer = self.query_one(Footer)
            footer.position, footer.idle = snapshot.position, self.page.idle()

    def copy_text(self) -> str:
        """What ``y`` copies."""
        return self.page.copy_text()

    # ---- actions of the table

    def action_back(self) -> None:
        self.post_message(PageClosed())

    def action_pause(self) -> None:
        self.post_message(PauseAsked())

    def action_up(self) -> None:
        self.page.move(-1)

    def action_down(self) -> None:
        self.page.move(1)

    def action_page_up(self) -> None:
        self.page.turn(-1)

    def action_page_down(self) -> None:
        self.page.turn(1)

    def action_home(self) -> None:
        self.page.move(-(10**9))

    def action_end(self) -> None:
        self.page.move(10**9)
