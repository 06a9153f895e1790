"""A screen without a run: what `gputop estimate`, `plan` and `catalog` open in a terminal."""

from __future__ import annotations

from textual.screen import Screen

from gputop.app import background, plain_terminal, theme
from gputop.app.leaving import LeavingApp
from gputop.messages import ScreenAsked


class AloneApp(LeavingApp[None]):
    """One screen, and those it asks for above it; each has ``NAME`` and ``copy_text``."""

    TITLE = "gputop"
    CSS = "Toast { background: $surface; }"

    def __init__(self):
        super().__init__()
        for item in theme.themes():
            self.register_theme(item)
        self.theme = theme.preferred()

    def run_here(self) -> None:
        """Run in the colours and glyphs that this terminal has, until the user leaves."""
        answers = background.ask()
        self.theme = theme.for_terminal(answers.answer() if answers is not None else None)
        self.typed_early = answers.typed if answers is not None else b""
        self.ascii_only = plain_terminal.needed()
        self.run()

    def on_mount(self) -> None:
        if self.ascii_only:
            plain_terminal.install(self)
        self.type_early()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        current = self.current_theme
        return theme.variables(current.dark, current.ansi)

    def on_screen_asked(self, message: ScreenAsked) -> None:
        self.push_screen(message.screen)

    def on_page_closed(self) -> None:
        self.pop_screen() if len(self.screen_stack) > 1 else self.exit()

    @property
    def _page(self) -> Screen[None]:
        """The topmost screen, dialogs left out."""
        return next(screen for screen in reversed(self.screen_stack) if getattr(screen, "NAME", ""))

    def action_help(self) -> None:
        from gputop.screens import texts
        from gputop.screens.dialog import TextDialog, Words

        name = getattr(self._page, "NAME", "")
        page_text = texts.text_on(self._page)

        def keys_at(size: tuple[int, int]) -> Words:
            colours = self.theme_variables
            return Words(texts.help_text("live", False, colours, name, size, seen=page_text))

        self.push_screen(TextDialog("Keys", keys_at))

    def action_copy(self) -> None:
        text = self._page.copy_text()  # type: ignore[attr-defined]
        if text:
            self.copy_to_clipboard(text)
            self.notify("copied the command")
