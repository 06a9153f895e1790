"""Title, progress, bell and notification; the settings' screen, whose changes hold and stay."""

import asyncio
import os
import pty
import sys
from dataclasses import replace as changed

import pytest
from tui_pilot import press, screen_text, started, step
from tui_support import a_finding, write_run

from gputop import settings
from gputop.app import application
from gputop.app.source import Source
from gputop.app.terminal_words import TerminalWords
from gputop.feed.build import build
from gputop.links import Links
from gputop.settings import SETTINGS, Settings
from gputop_analysis.overview import Ending, Verdict
from gputop_probes.record.reader import RunRecord

DEFAULTS = {one.key: one.default for one in SETTINGS}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = write_run(
        tmp_path_factory.mktemp("words") / "r", state="running", exit_code=None, total_steps=800
    )
    record = RunRecord.open(folder)
    return build(record, (), window_steps=500, now_ns=1_700_000_009 * 10**9)


def words_of(**values):
    written = []
    held = Settings(DEFAULTS | {key.replace("__", "."): v for key, v in values.items()})
    return TerminalWords(written.append, held), written


def test_title_and_progress_follow_the_run_and_are_given_back(running):
    words, written = words_of()
    words.show(running)
    words.show(running)
    assert len(written) == 1, "what has not changed is not said again"
    assert written[0].startswith("\x1b[22;0t\x1b]0;train.py 50 % 15.9 ms - gputop\x1b\\")
    assert written[0].endswith("\x1b]9;4;1;50\x1b\\")
    bad = running._replace(verdict=Verdict("critical", "NaN"))
    words.show(bad._replace(summary=running.summary._replace(silent_s=246.0)))
    assert written[1] == "\x1b]0;✖ train.py 50 % no step for 4:06 - gputop\x1b\\\x1b]9;4;2;50\x1b\\"
    words.leave()
    words.leave()
    assert written[2:] == ["\x1b]9;4;0;0\x1b\\\x1b[23;0t"]


def test_a_terminal_that_vanished_takes_no_last_words(running, monkeypatch):
    """The write fails, and neither now nor at exit is it a failure of gputop."""
    master, slave = pty.openpty()
    os.close(master)
    app = application.GputopApp(Source(running.run_dir, "live", None))
    app.words = words_of()[0]
    app.words.show(running)
    with os.fdopen(slave, "w") as stdout:
        monkeypatch.setattr(sys, "__stdout__", stdout)
        app.give_back()


def test_each_occasion_rings_once_and_says_what(running):
    words, written = words_of()
    assert words.tell(running) == []
    critical = changed(a_finding(), severity="critical", title="loss is NaN\x1b]0;x\x07")
    bad = running._replace(findings=(critical,))
    stuck = bad._replace(hang="hang: no step for 40 s, silent ranks 1")
    summary = running.summary._replace(state="ended", ending=Ending("failed", "exit 1"))
    over = stuck._replace(summary=summary, verdict=Verdict("failed", "ended: exit 1"))
    told = [one.event for snapshot in (bad, bad, stuck, over, over) for one in words.tell(snapshot)]
    assert told == ["finding", "hang", "end"] and len(written) == 3
    assert written[0].startswith("\x1b]9;gputop: test: ") and written[0].endswith("\x1b\\\a")
    assert "\x1b]0" not in written[0] and written[0].count("\x1b") == 2
    assert "ended: exit 1" in written[2]


def test_settings_say_what_is_told_and_how(running):
    over = running._replace(summary=running.summary._replace(state="ended"))
    quiet, written = words_of(notifications__bell=False, notifications__desktop=False)
    assert [one.event for one in quiet.tell(over)] == ["end"] and written == [""]
    hangs, written = words_of(notifications__on=("hang",), terminal__title=False)
    hangs.show(over)
    hangs.leave()
    assert hangs.tell(over) == [] and written == []


def test_the_settings_screen_changes_what_holds_and_the_file(running, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GPUTOP_THEME", raising=False)

    async def main():
        async with started(running) as (app, pilot):
            await press(app, pilot, "comma")
            shown = screen_text(app)
            assert all(word in shown for word in ("Notifications", "theme", "hang"))
            await press(app, pilot, "right", "right")
            assert app.theme == "gputop-light"
            await press(app, pilot, "up", "space", "escape")  # the last one: panel Loss
            await step(app, pilot)
            body = app.main.query_one("Body")
            assert "loss" in body.hidden and "loss" not in body.boxes(body.size)

    asyncio.run(main())
    held = settings.load()
    assert held.text("theme") == "light" and held.entries("panels.hidden") == ("loss",)


def test_a_place_in_a_finding_is_a_link(running, tmp_path):
    (tmp_path / "train.py").write_text("")
    finding = changed(a_finding(), title="the loader at train.py:9 is slow")

    async def main():
        async with started(running._replace(findings=(finding,))) as (app, _pilot):
            app.links = Links(str(tmp_path), "vscode")
            panel = app.main.query_one("#findings")
            strips = [panel.render_line(y) for y in range(panel.size.height)]
            return [s for strip in strips for s in strip if s.style and s.style.link]

    (segment,) = asyncio.run(main())
    assert segment.text == "train.py:9"
    assert segment.style.link == f"vscode://file{tmp_path}/train.py:9"
