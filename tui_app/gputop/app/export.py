"""A run's screen as a picture, for ``gputop export --format svg``."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path

from gputop.app.application import GputopApp
from gputop.app.source import Source
from gputop.app.theme import DARK
from gputop.feed.clock import Clock


def svg(
    run_dir: Path,
    size: tuple[int, int] = (120, 40),
    *,
    keys: tuple[str, ...] = (),
    theme: str = DARK,
    at: float = 1.0,
    clock: Clock | None = None,
) -> str:
    """Draw the main screen of a run.

    Args:
        run_dir: the record.
        size: columns and rows.
        keys: keys to press first, for example ``("f", "enter")`` for the first finding.
        theme: name of the theme.
        at: the moment of the run that is shown, 0 the start, 1 the end.
        clock: where the time comes from; the default is the machine's.

    Raises:
        RuntimeError: the record cannot be read; the message says why.
    """
    with _colours():
        return asyncio.run(_draw(run_dir, size, keys=keys, theme=theme, at=at, clock=clock))


async def _draw(
    run_dir: Path,
    size: tuple[int, int],
    *,
    keys: tuple[str, ...],
    theme: str,
    at: float,
    clock: Clock | None,
) -> str:
    app = GputopApp(Source(run_dir, "replay"), clock, ticking=False)
    app.theme = theme
    failed: list[Exception] = app.errors
    async with app.run_test(size=size) as pilot:
        await _settle(app, pilot)
        if at < 1.0:
            app.action_seek_to(at)
            await _settle(app, pilot)
        if failed:
            raise failed[0]
        if app.main.snapshot and app.main.snapshot.problem:
            raise RuntimeError(app.main.snapshot.problem)
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
            await app.workers.wait_for_complete()
        await pilot.pause()
        return app.export_screenshot(title=f"gputop {run_dir.name}")


async def _settle(app: GputopApp, pilot) -> None:
    """One snapshot, taken and painted."""
    app.tick()
    await app.workers.wait_for_complete()
    await pilot.pause()
    await pilot.pause()


@contextmanager
def _colours():
    """A picture has colours even where the terminal that asked for it has none."""
    import os

    saved = os.environ.pop("NO_COLOR", None)
    try:
        yield
    finally:
        if saved is not None:
            os.environ["NO_COLOR"] = saved
