"""The Textual application: it owns the feed's rhythm, the dialogs and the way out."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import SuspendNotSupported, SystemCommand
from textual.screen import Screen

from gputop import settings
from gputop.actions import applies, in_footer, on_screen, target
from gputop.app import keymap, palette_places, plain_terminal, terminal_words, theme
from gputop.app.input_watch import InputWatch
from gputop.app.interrupted import InterruptedApp
from gputop.app.rhythm import SLOW, Rhythm
from gputop.app.source import AppResult, Source
from gputop.feed.clock import Clock, SystemClock
from gputop.feed.live import Feed, LiveFeed
from gputop.feed.snapshot import Notice, Snapshot
from gputop.links import Links, links_of
from gputop.messages import FeedFailed, RunAsked, ScreenAsked, SnapshotArrived
from gputop.output.progress_bar import newest_bar
from gputop.output.tail import Tail
from gputop.screens.main import MainScreen
from gputop.widgets.findings import Findings
from gputop.widgets.ranks import Ranks

if TYPE_CHECKING:
    from textual.command import Provider

    from gputop.screens.catalog import CatalogScreen
    from gputop.screens.comparison import ComparisonScreen
    from gputop.screens.estimator import EstimatorScreen
    from gputop.screens.page import PageScreen
    from gputop.screens.runs import RunsScreen
    from gputop.screens.strategy import StrategyScreen
    from gputop.screens.topology import TopologyScreen

    Above = (
        PageScreen
        | EstimatorScreen
        | StrategyScreen
        | CatalogScreen
        | TopologyScreen
        | RunsScreen
        | ComparisonScreen
    )

LOOK_FOR_END_S = 0.5
"""A command that was told to stop is waited for at this pace, however seldom snapshots come."""
COLLECT_AFTER_S = 1.5
TOGETHER_NS = 10 * 10**9
"""Stacks that come within this belong to one look at all ranks."""


def _commands() -> type[Provider]:
    from gputop.app.command_list import Commands

    return Commands


class GputopApp(InterruptedApp):
    """One run, watched live or replayed."""

    TITLE = "gputop"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[set[Any]] = {_commands}
    CSS = "Toast { background: $surface; }"

    def __init__(
        self,
        source: Source,
        clock: Clock | None = None,
        feed: Feed | None = None,
        ticking: bool = True,
    ):
        super().__init__(source)
        self.clock = clock or SystemClock()
        self.feed = feed or make_feed(source, self.clock)
        self.tail = Tail(source.run_dir)
        self._barred: tuple[Snapshot, Snapshot] | None = None
        self.input_watch = InputWatch(source)
        self.rhythm = Rhythm(self.clock)
        self._ticking = ticking
        self._taking = False
        self._stopping = False
        self.layers_asked = False
        self.errors: list[Exception] = []
        self._seen_notices: int | None = None
        self._newest: Snapshot | None = None
        self._theme_at_start = ""
        for item in theme.themes():
            self.register_theme(item)
        self.theme = theme.preferred()
        self.links: Links | None = None
        """What makes links of the places in texts; None where the terminal takes none."""
        self.words: terminal_words.TerminalWords | None = None
        """Title, bell and notifications; None where there is no terminal for them."""

    # ---- start

    def get_theme_variable_defaults(self) -> dict[str, str]:
        current = self.current_theme
        return theme.variables(current.dark, current.ansi)

    def get_default_screen(self) -> Screen[None]:
        return MainScreen(self.source.mode, self.source.control is not None, self.feed.first())

    @property
    def main(self) -> MainScreen:
        """The main screen, whatever lies above it."""
        screen = self.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen

    def on_mount(self) -> None:
        self.install_signal_handlers()
        if self.ascii_only:
            plain_terminal.install(self)
        self.type_early()
        chosen = settings.load()
        if not self.is_headless:
            self.links = links_of(_folder(self.source.run_dir), chosen.text("terminal.links"))
        if self.source.mode == "live" and not self.is_headless and terminal_words.can_show():
            self.words = terminal_words.TerminalWords(self._to_terminal, chosen)
            self.app_suspend_signal.subscribe(self, lambda _: self._leave_words())
        self._theme_at_start = self.theme
        if self._ticking:
            for trouble in chosen.trouble:
                self.notify(trouble, severity="warning")
            self._load_keymap()
            self.set_timer(COLLECT_AFTER_S, _collect_garbage)
            self.set_interval(LOOK_FOR_END_S, self._leave_if_stopped)
            self.call_after_refresh(self.tick)

    def _to_terminal(self, sequence: str) -> None:
        """Sequences that draw nothing go the way of all output, in order."""
        if self._driver is not None:
            self._driver.write(sequence)

    def _leave_words(self) -> None:
        if self.words is not None:
            self.words.leave()

    def settings_changed(self, chosen: settings.Settings) -> None:
        """What the settings' screen changed holds at once."""
        self.main.hide_panels(chosen.entries("panels.hidden"))
        if self.links is not None:
            self.links = self.links._replace(kind=chosen.text("terminal.links"))
        if self.words is not None:
            self.words.use(chosen)
        wanted = theme.preferred()
        if chosen.text("theme") != theme.setting_of(self.theme) and wanted != self.theme:
            self.theme = self._theme_at_start = wanted

    def give_back(self) -> None:
        """After the screen is gone: the terminal's title, and the theme that the user chose."""
        if self.words is not None and sys.__stdout__ is not None:
            self.words.leave_by(_write_to_terminal)
        if self._theme_at_start and self.theme != self._theme_at_start:
            with suppress(OSError, settings.SettingsError):
                settings.keep("theme", theme.setting_of(self.theme))

    def action_settings(self) -> None:
        from gputop.screens.settings import SettingsDialog

        self.push_screen(SettingsDialog())

    def _load_keymap(self) -> None:
        keys, trouble = keymap.load(keymap.path())
        if keys:
            self.set_keymap(keys)
        if trouble:
            self.notify(trouble, severity="warning")

    # ---- the rhythm of the feed

    def tick(self) -> None:
        """Ask the feed for a snapshot, unless it is still busy or the terminal lags behind."""
        if self._taking or not self.is_running:
            return
        if self.rhythm.backlogged(self._driver):
            self.set_timer(self.rhythm.period, self.tick)
            return
        self._taking = True
        self.run_worker(self.take, thread=True, group="feed", exit_on_error=False)

    def take(self) -> None:
        """In a worker thread: look at the record and the output, then tell the app."""
        try:
            snapshot = self.feed.take()
            grown = self.tail.poll(snapshot.output_lengths)
            output = self.tail.view() if grown else None
            snapshot = self._with_bar(snapshot)
            self.input_watch.look(self.tail.buffer.lines)
        except Exception as error:
            self.post_message(FeedFailed(error))
            return
        self.post_message(SnapshotArrived(snapshot, output))

    def _with_bar(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the command's own progress bar where nothing else tells its end; the
        same object as long as both are the same, so that nothing is drawn anew.
        """
        if snapshot.ended or snapshot.summary.total_steps:
            return snapshot
        bar = newest_bar(self.tail.buffer.lines)
        if bar is None:
            return snapshot
        if self._barred is None or self._barred[0] is not snapshot or self._barred[1].bar != bar:
            self._barred = snapshot, snapshot._replace(bar=bar)
        return self._barred[1]

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        self._taking = False
        self._newest = message.snapshot
        if message.snapshot is not self.main.snapshot or message.output is not None:
            self.main.receive(message.snapshot, message.output)
        self._show_page(message.snapshot)
        self._judge_stacks(message.snapshot)
        self._announce(message.snapshot)
        if self.words is not None:
            self.words.show(message.snapshot)
            self.words.tell(message.snapshot)
        self.input_watch.tell(self)
        self._leave_if_stopped()
        self.call_after_refresh(self._schedule, message.snapshot)

    def on_feed_failed(self, message: FeedFailed) -> None:
        self._taking = False
        if not any(repr(error) == repr(message.error) for error in self.errors):
            self.errors.append(message.error)
            self.notify(
                f"{type(message.error).__name__}: {message.error}",
                title="gputop failed here",
                severity="error",
            )
        if self._ticking:
            self.set_timer(SLOW, self.tick)

    def _schedule(self, snapshot: Snapshot) -> None:
        self.rhythm.measure(snapshot)
        if self._ticking:
            self.set_timer(self.rhythm.period, self.tick)

    def surface_errors(self) -> None:
        """After the screen is restored: what failed inside, in one line each."""
        for error in self.errors:
            print(
                f"gputop: the screen had trouble: {type(error).__name__}: {error}", file=sys.stderr
            )

    # ---- what agents sent

    def _announce(self, snapshot: Snapshot) -> None:
        if self._takes_keys():
            return  # what came is shown once it is closed: its keys must not go elsewhere
        count = len(snapshot.notices)
        last_count, self._seen_notices = self._seen_notices, count
        if last_count is not None and count > last_count and self.source.mode == "live":
            self.show_notice(snapshot.notices[-1])

    def _takes_keys(self) -> bool:
        """Whether a dialog waits for an answer, or for what is typed into it."""
        from textual.screen import ModalScreen

        from gputop.screens.dialog import TextDialog

        return isinstance(self.screen, ModalScreen) and not isinstance(self.screen, TextDialog)

    def show_notice(self, notice: Notice) -> None:
        """Open what an agent sent."""
        if notice.kind == "memory_snapshot":
            from gputop.screens.texts import memory_snapshot_text

            self.notify(memory_snapshot_text(notice, self.source.run_dir.name))
            return
        from textual.content import Content

        from gputop.screens import texts
        from gputop.screens.dialog import TextDialog, Words, text_columns

        if isinstance(self.screen, TextDialog) and notice.kind == "stack_dump":
            self.pop_screen()
        together = self._dumped_with(notice)
        if len(together) > 1:
            self.push_screen(self._stacks_of(together))
            return

        def notice_at(size: tuple[int, int]) -> Words:
            text = texts.notice_text(notice, text_columns(size[0]))
            return Words(Content(text), text)

        self.push_screen(TextDialog(texts.notice_title(notice), notice_at))

    def _stacks_of(self, notices: list[Notice]) -> Screen[None]:
        """All side by side, with the rank of a critical finding, and since when the run stands."""
        from gputop.screens.stacks import MOVING, StacksDialog, why

        snapshot = self._newest or self.main.snapshot
        judged = why(snapshot) if snapshot is not None else MOVING
        return StacksDialog(notices, self.theme_variables, judged)

    def _judge_stacks(self, snapshot: Snapshot) -> None:
        """Tell stacks that are open what has been found since."""
        if self.source.mode != "live" or len(self.screen_stack) < 2:
            return
        from gputop.screens.stacks import StacksDialog, why

        if isinstance(self.screen, StacksDialog) and self.screen.is_mounted:
            self.screen.judge(why(snapshot))

    def _dumped_with(self, notice: Notice) -> list[Notice]:
        """The newest stack of each rank that came within seconds of this one."""
        newest = self._newest or self.main.snapshot
        if notice.kind != "stack_dump" or newest is None:
            return []
        near = [
            notice_
            for notice_ in newest.notices
            if notice_.kind == "stack_dump" and abs(notice_.t_ns - notice.t_ns) < TOGETHER_NS
        ]
        return list({notice_.rank: notice_ for notice_ in near}.values())

    # ---- screens above the main one

    @property
    def page_screen(self) -> Above | None:
        """The topmost screen above the main one, dialogs left out."""
        return next((s for s in reversed(self.screen_stack[1:]) if getattr(s, "NAME", "")), None)  # type: ignore[return-value]

    def on_findings_chosen(self, message: Findings.Chosen) -> None:
        from gputop.screens.evidence import EvidenceScreen

        self._open(EvidenceScreen, message.finding)

    def on_ranks_chosen(self, message: Ranks.Chosen) -> None:
        from gputop.screens.ranks import RanksScreen

        self._open(RanksScreen, message.rank)

    def action_budget(self) -> None:
        from gputop.screens.budget import BudgetScreen

        self._open(BudgetScreen)

    def action_all_ranks(self) -> None:
        from gputop.screens.ranks import RanksScreen

        self._open(RanksScreen)

    def action_numerics(self) -> None:
        from gputop.screens.numerics import NumericsScreen

        self._open(NumericsScreen)

    def action_layers(self) -> None:
        from gputop.screens.layers import LayersScreen

        if self.listens and self.still_running() and not self.layers_asked:
            self.layers_asked = True
            self._command(lambda control: control.layers(), "watching three steps layer by layer")
        self._open(LayersScreen, self.layers_asked)

    def action_estimator(self) -> None:
        from gputop.feed.examples import first_setup
        from gputop.screens.estimator import EstimatorScreen

        self._open(lambda *_: EstimatorScreen(first_setup()))

    def action_strategy(self) -> None:
        self._plan()

    def action_what_if(self) -> None:
        self._plan(what_if=True)

    def _plan(self, what_if: bool = False) -> None:
        from gputop.feed.planning import first_ask
        from gputop.screens.strategy import StrategyScreen

        self._open(lambda *_: StrategyScreen(first_ask(), what_if=what_if))

    def action_catalog(self) -> None:
        from gputop.screens.catalog import CatalogScreen

        self._open(lambda *_: CatalogScreen())

    def action_runs(self) -> None:
        from gputop.screens.runs import RunsScreen

        self._open(lambda *_: RunsScreen(self.clock, self.source.run_dir, mark=True))

    def compare_with(self, other: Path) -> None:
        """Show this run beside another one; the earlier of both is the baseline."""
        from gputop.feed.runs import by_time
        from gputop.screens.comparison import ComparisonScreen

        self._open(lambda *_: ComparisonScreen(*by_time(self.source.run_dir, other)))

    def action_links(self) -> None:
        from gputop.screens.topology import TopologyScreen

        snapshot = self.main.snapshot
        gpus = snapshot.summary.gpus if snapshot is not None else ()
        used = next((gpu.name for gpu in gpus if gpu.ours), "")
        self._open(lambda *_: TopologyScreen(used))

    def on_screen_asked(self, message: ScreenAsked) -> None:
        self.push_screen(message.screen)
        self._want(self.page_screen)

    def _open(self, kind: Callable[..., Above], *arguments: object) -> None:
        """Put a screen above the main one, in place of the one that is there."""
        snapshot = self.main.snapshot
        if snapshot is None:
            return
        page = kind(self.source.mode, self.source.control is not None, snapshot, *arguments)
        self.main.covered = True
        self.switch_screen(page) if self.page_screen is not None else self.push_screen(page)
        self._want(page)

    def _want(self, page: Above | None) -> None:
        if page is not None:
            self.feed.pages.wanted = page.page.loader()
        else:
            self.feed.pages.wanted = None
        self.tick()

    def _show_page(self, snapshot: Snapshot) -> None:
        page = self.page_screen
        if page is not None and page.is_mounted:
            page.receive(snapshot, self.main.missed() if self.main.paused else None)

    def on_page_wanted(self) -> None:
        self._want(self.page_screen)

    def on_page_closed(self) -> None:
        if self.page_screen is not None:
            self.pop_screen()
            if self.page_screen is None:
                self.main.uncover()
            self._want(self.page_screen)
        elif self.source.picked:
            self.exit(AppResult("quit", to_runs=True))

    def on_run_asked(self, message: RunAsked) -> None:
        if message.run_dir == self.source.run_dir:
            self.on_page_closed()
        elif self.source.mode == "live":
            name = message.run_dir.name
            self.notify(f"the training goes on here; in another terminal: gputop open {name}")
        else:
            self.open_run(message.run_dir)

    def on_pause_asked(self) -> None:
        self.main.action_pause()
        if self._newest is not None:
            self._show_page(self._newest)

    # ---- actions of the table that concern the whole app

    @property
    def listens(self) -> bool:
        """Whether there is a training that can be asked: what asks one is not offered after it."""
        return self.source.control is not None and not self.ended

    @property
    def ended(self) -> bool:
        """Whether the run is over, as far as the screen knows."""
        return self.main.snapshot is not None and self.main.snapshot.ended

    def action_help(self) -> None:
        from gputop.screens import texts
        from gputop.screens.dialog import TextDialog, Words

        name = "main"
        if self.page_screen is not None:
            name = self.page_screen.NAME
        seen = texts.text_on(self.page_screen or self.main)

        def keys_at(size: tuple[int, int]) -> Words:
            keys = texts.help_text(
                self.source.mode,
                self.listens,
                self.theme_variables,
                ended=self.ended,
                screen=name,
                size=size,
                seen=seen,
            )
            return Words(keys)

        self.push_screen(TextDialog("Keys", keys_at))

    def action_copy(self) -> None:
        text = (self.page_screen or self.main).copy_text()
        if text:
            self.copy_to_clipboard(text)
            self.notify("copied" if "\n" not in text else f"copied {text.count(chr(10)) + 1} lines")

    def action_search(self) -> None:
        from gputop.screens.search import SearchDialog
        from gputop.widgets.output import Output

        output = self.main.query_one(Output)

        def search(needle: str | None) -> None:
            if needle and not output.find(needle):
                self.notify(f"no line of the output holds {needle!r}")

        self.main.show_panel("output")
        self.push_screen(SearchDialog(output.needle), search)

    def action_profile(self) -> None:
        self._command(lambda control: control.profile(3), "profiling the next three steps")

    def action_dump(self) -> None:
        if self.still_running():
            self._command(lambda control: control.dump(), "asked every rank for its stacks")
        else:
            self.show_recorded_stacks()

    def show_recorded_stacks(self) -> None:
        """The newest stacks in the record: nobody is there to be asked for others."""
        if self.main.snapshot is not None:
            notices = self.main.snapshot.notices
        else:
            notices = ()
        dumps = [notice for notice in notices if notice.kind == "stack_dump"]
        if dumps:
            self.show_notice(max(dumps, key=lambda notice: notice.t_ns))
        else:
            self.notify("no stacks were recorded")

    def action_memory_snapshot(self) -> None:
        self._command(
            lambda control: control.memory_snapshot(), "asked every rank for a memory snapshot"
        )

    def action_hand_over(self) -> None:
        control = self.source.control
        if control is None or not self.still_running():
            self._nobody_to_ask()
            return
        self.clear_notifications()
        try:
            with self.suspend():
                control.hand_over()
        except (SuspendNotSupported, ValueError) as error:
            self.notify(f"{error}", title="cannot hand the terminal over", severity="warning")
        self.input_watch.forget()
        self.refresh(layout=True)

    def _command(self, send, said: str) -> None:
        if not self.still_running():
            self._nobody_to_ask()
            return
        try:
            send(self.source.control)
        except Exception as error:
            self.notify(f"{error}", title="not sent", severity="warning")
        else:
            self.notify(said)

    def _nobody_to_ask(self) -> None:
        if self.source.mode != "live":
            self.notify("a recording: no training is there to be asked")
        elif self.source.control is None:
            self.notify("this screen only watches: the training is asked where it was started")
        else:
            self.notify("the command has ended: nobody is there to be asked")

    def action_export(self) -> None:
        from gputop.screens.dialog import ChoiceDialog
        from gputop.screens.exporting import CHOICES

        self.push_screen(ChoiceDialog("Export", "Write what is seen now as", CHOICES), self._export)

    def _export(self, kind: str | None) -> None:
        if kind is None or self.main.snapshot is None:
            return
        from gputop.screens.exporting import write

        picture = ""
        if kind == "svg":
            picture = self.export_screenshot(title="gputop")
        try:
            path = write(kind, self.main.snapshot, picture, Path.cwd())
        except OSError as error:
            self.notify(f"cannot write here: {error.strerror}", severity="error")
        else:
            self.notify(str(path), title="written")

    # ---- replay

    def action_seek_back(self) -> None:
        self._replay("seek", -0.02)

    def action_seek_forward(self) -> None:
        self._replay("seek", 0.02)

    def action_seek_to(self, share: float) -> None:
        self._replay("seek_to", share)

    def action_slower(self) -> None:
        self._replay("change_speed", 0.5)

    def action_faster(self) -> None:
        self._replay("change_speed", 2.0)

    def action_play(self) -> None:
        self._replay("toggle")

    def _replay(self, method: str, *arguments: float) -> None:
        act = getattr(self.feed, method, None)
        if act is not None:
            act(*arguments)
            self.tick()

    # ---- the way out

    async def action_quit(self) -> None:
        if not self.still_running():
            self.exit(AppResult("stopped" if self._stopping else "quit"))
            return
        from gputop.screens.quitting import quit_dialog

        self.push_screen(quit_dialog(self._stopping or self.asked_to_end()), self._quit)

    def _quit(self, answer: str | None) -> None:
        control = self.source.control
        if control is None or answer is None:
            return
        if answer == "leave":
            self.exit(AppResult("detached", self.still_running()))
            return
        self._stopping = True
        control.kill() if answer == "kill" else control.interrupt()
        self.notify(
            "asked the training to stop; q again for more" if answer == "stop" else "killed"
        )
        self.tick()

    def _leave_if_stopped(self) -> None:
        if (self._stopping or self.asked_to_end()) and not self.still_running():
            self.exit(AppResult("stopped"))

    # ---- command palette

    def action_palette(self) -> None:
        self.action_command_palette()

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        name = "main"
        if self.page_screen is not None:
            name = self.page_screen.NAME
        yield from palette_places.findings(self, self.main.snapshot)
        footer = [action.id for action in in_footer(name, self.source.mode)]
        for action in sorted(on_screen(name), key=lambda a: _place(a.id, footer)):
            here = applies(action, self.source.mode, self.listens, self.ended)
            if here and action.group != "Moving":
                run = partial(self._run_from_palette, target(action))
                yield SystemCommand(
                    f"{action.label.capitalize()} ({action.shown})", action.words, run
                )
        yield SystemCommand(
            "Theme", "Choose dark, light or any other theme.", self.action_change_theme
        )
        yield from palette_places.places(self, self.source, self.main.snapshot, self.listens)

    def open_finding(self, index: int) -> None:
        """Open the evidence of a finding by its place in the list."""
        snapshot = self.main.snapshot
        if snapshot is not None and index < len(snapshot.findings):
            self.on_findings_chosen(Findings.Chosen(snapshot.findings[index]))

    def open_run(self, run_dir: Path) -> None:
        """Leave for another run, which is then shown in place of this one."""
        self.exit(AppResult("quit", then=run_dir))

    def open_rank(self, rank: int) -> None:
        """Open the ranks at one of them."""
        self.on_ranks_chosen(Ranks.Chosen(rank))

    def _run_from_palette(self, action: str) -> None:
        self.call_later((self.page_screen or self.main).run_action, action)


def _place(id: str, footer: list[str]) -> int:
    """Of an action in the palette: those of the footer first, in its order."""
    return footer.index(id) if id in footer else len(footer)


def _folder(run_dir: Path) -> str:
    """Where the command ran; empty where the record does not say."""
    from gputop_probes.record.head import RecordError, read_head

    try:
        cwd = read_head(run_dir).get("cwd")
    except RecordError:
        return ""
    return cwd if isinstance(cwd, str) else ""


def _collect_garbage() -> None:
    """Start collecting after the start; what is there stays, and is never looked through."""
    gc.freeze()
    gc.enable()


def make_feed(source: Source, clock: Clock) -> Feed:
    """The feed for a source: live, or a replay that starts where it makes sense."""
    if source.mode == "live":
        return LiveFeed(source.run_dir, clock)
    from gputop.feed.replay import ReplayFeed

    return ReplayFeed(source.run_dir, clock, play=source.mode == "demo")


def _write_to_terminal(sequence: str) -> None:
    """Unbuffered: what a vanished terminal does not take must not fail again at exit."""
    with suppress(OSError):
        os.write(sys.__stdout__.fileno(), sequence.encode())  # type: ignore[union-attr]
