"""The Textual application: its start, what it does with a snapshot, its dialogs and its end."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import SystemCommand
from textual.screen import Screen

from gputop import settings
from gputop.actions import applies, in_footer, on_screen, target
from gputop.app import keymap, palette_places, plain_terminal, terminal_words, theme
from gputop.app.asking import AskingApp
from gputop.app.source import AppResult, Source
from gputop.feed.clock import Clock
from gputop.feed.live import Feed
from gputop.links import Links, links_of
from gputop.messages import SnapshotArrived
from gputop.screens.main import MainScreen

if TYPE_CHECKING:
    from textual.command import Provider

LOOK_FOR_END_S = 0.5
"""A command that was told to stop is waited for at this pace, however seldom snapshots come."""
COLLECT_AFTER_S = 1.5


def _commands() -> type[Provider]:
    from gputop.app.command_list import Commands

    return Commands


class GputopApp(AskingApp):
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
        super().__init__(source, clock, feed, ticking)
        self._stopping = False
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
            if self.source.control is not None:
                self.set_interval(LOOK_FOR_END_S, self._leave_if_stopped)
            self.call_after_refresh(self.tick)

    def _to_terminal(self, sequence: str) -> None:
        """Sequences that draw nothing go the way of all output, in order."""
        if self._driver is not None:
            self._driver.write(sequence)

    def _leave_words(self) -> None:
        if self.words is not None:
            self.words.leave()

    def _load_keymap(self) -> None:
        keys, trouble = keymap.load(keymap.path())
        if keys:
            self.set_keymap(keys)
        if trouble:
            self.notify(trouble, severity="warning")

    # ---- settings

    def action_settings(self) -> None:
        from gputop.screens.settings import SettingsDialog

        self.push_screen(SettingsDialog())

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

    # ---- a snapshot

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        self._taking = False
        self.newest = message.snapshot
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

    # ---- actions of the table that concern the whole app

    def action_help(self) -> None:
        from gputop.screens import texts
        from gputop.screens.dialog import TextDialog, Words

        screen_text = texts.text_on(self.top_screen)

        def keys_at(size: tuple[int, int]) -> Words:
            keys = texts.help_text(
                self.source.mode,
                self.listens,
                self.theme_variables,
                ended=self.ended,
                screen=self.screen_name,
                size=size,
                seen=screen_text,
            )
            return Words(keys)

        self.push_screen(TextDialog("Keys", keys_at))

    def action_copy(self) -> None:
        text = self.top_screen.copy_text()
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

    def give_back(self) -> None:
        """After the screen is gone: the terminal's title, and the theme that the user chose."""
        if self.words is not None and sys.__stdout__ is not None:
            self.words.leave_by(_write_to_terminal)
        if self._theme_at_start and self.theme != self._theme_at_start:
            with suppress(OSError, settings.SettingsError):
                settings.keep("theme", theme.setting_of(self.theme))

    # ---- command palette

    def action_palette(self) -> None:
        self.action_command_palette()

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        name = self.screen_name
        yield from palette_places.findings(self, self.main.snapshot)
        footer = [action.id for action in in_footer(name, self.source.mode)]
        for action in sorted(on_screen(name), key=lambda a: _place(a.id, footer)):
            here = applies(action, self.source.mode, self.listens, self.ended)
            if here and action.group != "Moving":
                run = partial(self._run_from_palette, target(action))
                yield SystemCommand(
                    f"{action.label.capitalize()} ({action.each_key})", action.words, run
                )
        yield SystemCommand(
            "Theme", "Choose dark, light or any other theme.", self.action_change_theme
        )
        yield from palette_places.places(self, self.source, self.main.snapshot, self.listens)

    def _run_from_palette(self, action: str) -> None:
        self.call_later(self.top_screen.run_action, action)


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


def _write_to_terminal(sequence: str) -> None:
    """Unbuffered: what a vanished terminal does not take must not fail again at exit."""
    with suppress(OSError):
        os.write(sys.__stdout__.fileno(), sequence.encode())  # type: ignore[union-attr]
