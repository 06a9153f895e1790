"""The main screen: header, panels, footer. Owns the view (focus, zoom, hidden, paused)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget

from gputop import settings
from gputop.actions import on_screen, target
from gputop.feed.snapshot import Snapshot
from gputop.messages import PageClosed
from gputop.output.tail import OutputView
from gputop.panels import PANELS, panel, panel_ids
from gputop.screens.typed import Typed
from gputop.widgets.body import EMPTY_WHERE_UNREADABLE, Body
from gputop.widgets.findings import Findings
from gputop.widgets.footer import Footer
from gputop.widgets.header import Header
from gputop.widgets.history import HistoryPanel
from gputop.widgets.output import Output
from gputop.widgets.panel import Panel
from gputop.widgets.plan import layout_of_screen
from gputop.widgets.ranks import Ranks
from gputop.widgets.scrolling import ScrollingPanel
from gputop.widgets.tiles import Tiles

IDLE_WHERE_UNREADABLE = EMPTY_WHERE_UNREADABLE | frozenset(
    ["all_ranks", "budget", "numerics", "layers", "what_if", "pause", "export", "copy"]
)
"""Keys that lead nowhere where no record can be read."""


class MainScreen(Typed, Screen[None]):
    """Everything at a glance."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(a.keys, target(a), a.label, id=a.id, show=False) for a in on_screen("main")
    ]
    DEFAULT_CSS = """
    MainScreen { layout: vertical; background: $background; color: $role-text; }
    MainScreen #header { height: 2; }
    MainScreen #tiles { height: 4; }
    MainScreen.compact #header { height: 3; }
    MainScreen.compact #tiles { display: none; }
    MainScreen #footer { dock: bottom; height: 1; }
    MainScreen #footer.replay { height: 2; }
    """
    AUTO_FOCUS = "#breakdown"

    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)
    paused: reactive[bool] = reactive(False, repaint=False)

    def __init__(self, mode: str, control: bool, first: Snapshot):
        super().__init__(id="main")
        self.mode = mode
        self._control = control
        self._latest = first
        self._latest_output = OutputView()
        self.covered = False
        """Whether another screen hides this one: nothing is drawn then."""
        self.set_reactive(MainScreen.snapshot, first)

    def compose(self) -> ComposeResult:
        yield Header(id="header").data_bind(MainScreen.snapshot)
        yield Tiles(id="tiles").data_bind(MainScreen.snapshot)
        body = Body(*(spec.make().data_bind(MainScreen.snapshot) for spec in PANELS), id="body")
        body.hidden = _hideable(settings.load().entries("panels.hidden"))
        yield body
        footer = Footer(self.mode, self._control, id="footer")
        footer.set_class(self.mode != "live", "replay")
        yield footer

    def on_resize(self) -> None:
        body = self.query_one(Body)
        compact = layout_of_screen(*self.size) == "compact"
        self.set_class(compact, "compact")
        for spec in PANELS:
            widget = self.panel(spec.id)
            assert isinstance(widget, (Panel, Output))
            widget.tabbed = spec.tab and compact and not body.zoomed
            widget.boxed = not compact

    def on_descendant_focus(self) -> None:
        """The keys of the footer are those that work where the focus is."""
        self._tell_footer()

    def _tell_footer(self) -> None:
        panel, footer = self.focused_panel(), self.query_one(Footer)
        footer.panel = (panel.id if panel else None) or ""
        footer.zoomed = self.query_one(Body).zoomed is not None

    # ---- data

    def receive(self, snapshot: Snapshot, output: OutputView | None) -> None:
        """A new snapshot: shown, or kept aside while the picture is paused."""
        self._latest = snapshot
        if output is not None:
            self._latest_output = output
        if self.paused:
            self.query_one(Header).paused_steps = self.missed()
            return
        if self.covered:
            return
        with self.app.batch_update():
            self.query_one(Body).fit(snapshot)
            self.snapshot = snapshot
            footer = self.query_one(Footer)
            footer.position = snapshot.position
            footer.control = self._control and not snapshot.ended
            footer.ended = snapshot.ended
            footer.idle = IDLE_WHERE_UNREADABLE if snapshot.unreadable else frozenset()
            if output is not None:
                self.query_one(Output).show(output)

    def uncover(self) -> None:
        """The screen above has gone: show what has come since."""
        self.covered = False
        self.receive(self._latest, self._latest_output)

    def copy_text(self) -> str:
        """The chosen row or the whole of the focused panel."""
        copy = getattr(self.focused_panel(), "copy_text", None)
        return copy(self.snapshot) if copy and self.snapshot else ""

    def missed(self) -> int:
        """Steps since the picture was paused."""
        shown = self.snapshot.summary.steps if self.snapshot else 0
        return max(0, self._latest.summary.steps - shown)

    def watch_paused(self, paused: bool) -> None:
        if not self.is_mounted:
            return
        self.query_one(Header).paused_steps = 0 if paused else None
        if not paused:
            self.receive(self._latest, self._latest_output)

    # ---- panels

    def panel(self, name: str) -> Widget:
        """The panel of that name."""
        return self.query_one(f"#{name}")

    def focused_panel(self) -> Widget | None:
        """The panel that has the focus."""
        if self.focused is not None and self.focused.id in panel_ids():
            return self.focused
        return None

    def show_panel(self, name: str) -> None:
        """Bring a panel to the screen and give it the focus."""
        body = self.query_one(Body)
        zoomed = name if body.zoomed else None
        spec = panel(name)
        switched = name if spec is not None and spec.tab else None
        body.set(zoomed=zoomed, hidden=body.hidden - {name}, switched=switched)
        # at once: the next key may already be there
        self.set_focus(self.panel(name), scroll_visible=False)

    def action_panel(self, name: str) -> None:
        """Go to a panel."""
        self.show_panel(name)

    def action_next_panel(self) -> None:
        self._step_panel(1)

    def action_previous_panel(self) -> None:
        self._step_panel(-1)

    def _step_panel(self, step: int) -> None:
        body = self.query_one(Body)
        names = [name for name in panel_ids() if name not in body.hidden]
        if not names:
            return
        focused = self.focused_panel()
        if focused and focused.id in names:
            here = names.index(focused.id)
        else:
            here = -1
        self.show_panel(names[(here + step) % len(names)])

    def action_zoom(self) -> None:
        body, panel = self.query_one(Body), self.focused_panel()
        body.set(zoomed=None if body.zoomed or panel is None else panel.id)
        self._tell_footer()

    def action_hide(self) -> None:
        body, panel = self.query_one(Body), self.focused_panel()
        if panel is None or panel.id is None:
            return
        hidden = body.hidden | {panel.id}
        if len(hidden) == len(PANELS):
            self.notify("the last panel stays")
            return
        body.set(hidden=hidden)
        self._step_panel(1)

    def hide_panels(self, names: Sequence[str]) -> None:
        """Leave these panels out, unless they are all there are."""
        self.query_one(Body).set(hidden=_hideable(names))

    def action_back(self) -> None:
        body, output = self.query_one(Body), self.query_one(Output)
        history, findings = self.query_one(HistoryPanel), self.query_one(Findings)
        if output.needle:
            output.find("")
        elif history.cursor is not None and history.has_focus:
            history.cursor = None
        elif findings.only_worst and findings.has_focus:
            findings.action_worst()
        elif body.zoomed:
            body.set()
            self._tell_footer()
        elif self.paused:
            self.paused = False
        else:
            self.post_message(PageClosed())

    # ---- inside a panel

    def action_up(self) -> None:
        self._move(-1)

    def action_down(self) -> None:
        self._move(1)

    def action_page_up(self) -> None:
        self._page(-1)

    def action_page_down(self) -> None:
        self._page(1)

    def _move(self, step: int) -> None:
        panel = self.focused_panel()
        if isinstance(panel, (ScrollingPanel, Output)):
            panel.move(step)

    def _page(self, direction: int) -> None:
        panel = self.focused_panel()
        if isinstance(panel, (ScrollingPanel, Output)):
            panel.page(direction)

    def action_home(self) -> None:
        self._jump(-1)

    def action_end(self) -> None:
        self._jump(1)

    def _jump(self, direction: int) -> None:
        panel = self.focused_panel()
        if isinstance(panel, (ScrollingPanel, Output)) and not (
            self.mode != "live" and isinstance(panel, ScrollingPanel)
        ):
            panel.move(direction * 10**9)
        else:
            self.app.call_later(self.app.run_action, f"app.seek_to({0 if direction < 0 else 1})")

    def action_open(self) -> None:
        focused = self.focused_panel()
        spec = panel(focused.id) if focused is not None else None
        if isinstance(focused, (Findings, Ranks)) and self.has_items(focused):
            focused.choose()
        elif spec is not None and spec.opens:
            self.app.call_later(self.app.run_action, f"app.{spec.opens}")
        elif spec is not None:
            self.action_zoom()

    def has_items(self, chosen: ScrollingPanel) -> bool:
        """Whether there is something to choose in a panel."""
        return self.snapshot is not None and chosen.item_count(self.snapshot) > 0

    def action_pause(self) -> None:
        if self.mode == "live":
            if not self.paused and self._latest.ended:
                self.notify("the run has ended: no new steps come")
                return
            self.paused = not self.paused
        else:
            self.app.call_later(self.app.run_action, "app.play")


def _hideable(names: Sequence[str]) -> frozenset[str]:
    """These panels, or none where no panel would be left."""
    wanted = frozenset(names)
    return wanted if len(wanted) < len(PANELS) else frozenset()
