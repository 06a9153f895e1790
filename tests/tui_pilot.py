"""The app under a pilot, with a feed that stands still."""

from __future__ import annotations

from contextlib import asynccontextmanager

from tui_support import FixedClock, StillFeed

from gputop.app import Source
from gputop.app.application import GputopApp


@asynccontextmanager
async def started(running, control=None, size=(120, 40), mode="live"):
    """The app with a feed that stands still; ``app.step()`` takes one snapshot as a tick would."""
    app = GputopApp(
        Source(running.run_dir, mode, control), FixedClock(), StillFeed(running), ticking=False
    )
    async with app.run_test(size=size) as pilot:
        await step(app, pilot)
        yield app, pilot


async def step(app, pilot):
    app.tick()
    await app.workers.wait_for_complete()
    await pilot.pause()


def screen_text(app) -> str:
    return "\n".join(
        "".join(s.text for s in line) for line in app.screen._compositor.render_strips()
    )


async def settle(app, pilot):
    """Until workers have answered, and what they posted is drawn."""
    for _ in range(2):
        await app.workers.wait_for_complete()
        await pilot.pause()


async def press(app, pilot, *keys):
    """One key after the other, each with all that follows from it."""
    for key in keys:
        await pilot.press(key)
        await settle(app, pilot)
