"""The live app. Importing this package is cheap; Textual is loaded by ``run_app``."""

from __future__ import annotations

from gputop.app.source import AppResult, Control, Source

__all__ = ["AppResult", "Control", "Source", "run_app"]


def run_app(source: Source) -> AppResult:
    """Show ``source`` until the user leaves.

    A command that a signal asked to end before the screen was there gets none.

    Raises:
        RuntimeError: stdin or stdout is no terminal.
        Exception: what the app died of; the terminal is restored.
    """
    import gc
    import sys

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RuntimeError("the live screen needs a terminal on stdin and stdout")
    from gputop.app import background

    # nothing of what is imported now is garbage: the first frame comes a fifth earlier
    gc.disable()
    answers = background.ask()
    light = None
    try:
        try:
            from gputop.app import plain_terminal, theme
            from gputop.app.application import GputopApp
            from gputop.app.interrupted import handlers_kept
        finally:
            light = answers.answer() if answers is not None else None

        if source.control is not None and source.control.stopping():
            return AppResult("stopped", source.control.alive())
        with handlers_kept():
            app = GputopApp(source)
            app.theme = theme.for_terminal(light)
            app.ascii_only = plain_terminal.needed()
            app.typed_early = answers.typed if answers is not None else b""
            try:
                result = app.run()
            finally:
                app.give_back()
            if app.hard_exit is not None:
                app.hard_exit.cancel()
    finally:
        gc.enable()
    app.surface_errors()
    if app.failure is not None:
        raise app.failure
    if result is not None:
        return result
    return AppResult("quit", app.still_running())
