"""Filters, the time cursor, the output's long lines, stacks side by side, what can be clicked."""

from __future__ import annotations

import pytest
from tui_pilot import press, screen_text, settle, started, step
from tui_support import START_NS, FakeControl, a_finding, write_run

from gputop.feed.build import build
from gputop.feed.plots import Trouble
from gputop.feed.ranks import RanksPageData
from gputop.feed.snapshot import Notice, Position
from gputop.output.tail import OutputView
from gputop.pages.layers import LayersPage
from gputop.pages.ranks import detail, headline, standing_out
from gputop.render.layers import standing_out as layers_standing_out
from gputop.render.rows import row_text
from gputop.screens import stacks
from gputop.screens.evidence import EvidenceScreen
from gputop.screens.numerics import NumericsScreen
from gputop.screens.ranks import RanksScreen
from gputop.screens.stacks import StacksDialog
from gputop.widgets.findings import Findings
from gputop.widgets.footer import places
from gputop.widgets.history import HistoryPanel
from gputop.widgets.output import Output
from gputop.widgets.ranks import Ranks
from gputop_analysis.layers import Layer, Layers
from gputop_probes.record.reader import RunRecord

LONG = "x" * 100 + " the end"


def told(app) -> str:
    """The newest notification."""
    return list(app._notifications)[-1].message


def dumps(odd: int, count: int, t_ns: int = 1) -> tuple[Notice, ...]:
    """All ranks wait in the same call, and one is elsewhere."""
    result = []
    for rank in range(count):
        frames = ["all_reduce distributed.py:2810", "backward train.py:40", "main train.py:9"]
        if rank == odd:
            frames = ["load loader.py:7", "main train.py:9"]
        body = {
            "phase": "data" if rank == odd else "backward",
            "step": 81,
            "threads": [{"name": "MainThread", "training": True, "frames": frames}],
        }
        result.append(Notice(t_ns, "stack_dump", rank, body))
    return tuple(result)


async def test_the_ranks_begin_at_the_one_that_the_first_finding_names(many_ranks_of_a_run):
    """Of 16 ranks four fit: the cursor is not on rank 0 while rank 9 is what is wrong."""
    async with started(many_ranks_of_a_run, size=(80, 24)) as (app, pilot):
        await press(app, pilot, "3")
        panel = app.screen.query_one(Ranks)
        assert panel.cursor == 9 and "▲   9" in screen_text(app)
        await press(app, pilot, "home", "1", "3")
        assert panel.cursor == 0, "who has moved it finds it where it was"


@pytest.fixture
def many_ranks_of_a_run(tmp_path):
    folder = write_run(tmp_path / "sixteen", ranks=16, slow_rank=9)
    record = RunRecord.open(folder)
    wide = build(record, (), window_steps=500, now_ns=START_NS + 11 * 10**9)
    return wide._replace(findings=(a_finding(rank=9),))


# ---- w: what is not normal


async def test_w_on_the_ranks_leaves_what_stands_out_and_goes_to_the_worst(running):
    async with started(running) as (app, pilot):
        await press(app, pilot, "w")
        page = app.screen.table
        assert isinstance(app.screen, RanksScreen) and len(page._order) == 4
        await press(app, pilot, "w")
        assert page.only_worst and page.page.ranks[page.chosen] == 2
        assert "1 of 4 stand out" in screen_text(app) and len(page._order) == 1
        await press(app, pilot, "w")
        assert not page.only_worst and len(page._order) == 4


def test_the_rank_that_holds_up_the_others_is_worse_than_any_that_is_slow():
    def page(culprit, phases, excess):
        count = len(phases)
        return RanksPageData(
            tuple(range(count)), ("box",) * count, {"excess": excess}, {}, phases,
            culprit, "", "balanced", 0.0, 0.0, "", (), {}, "",
        )  # fmt: skip

    nan = float("nan")
    assert standing_out(page(3, ("data", "", "comm", ""), [1.0, nan, 9.0, nan])) == [3, 2, 0]
    assert standing_out(page(None, ("", ""), [nan, nan])) == []


def test_the_other_rank_is_told_by_its_number_beside_the_phase_named_other():
    """``other 51.02 other 0.72``: a phase, and a rank."""
    page = RanksPageData(
        (0, 1), ("box",) * 2, {"wait": [50.0, 1.0]},
        {"other": [0.72, 51.02], "forward": [1.0, 1.1]},
        ("", "other"), 1, "other", "persistent", 1.0, 0.9, "", (), {}, "",
    )  # fmt: skip
    rows = [row_text(row) for row in detail(page, 1, 100, 5)]
    assert rows[1].split()[1] == "other" and rows[1].endswith("51.02  rank 0      0.72")
    assert "it is slow in host code" in row_text(headline(page, 100)[0])


async def test_w_in_the_findings_leaves_out_info_and_says_so(running):
    findings = (
        a_finding("info", None, id="ME09"), a_finding("info", None, id="HO11"),
        a_finding(), a_finding("medium", None, id="HO06"),
    )  # fmt: skip
    async with started(running._replace(findings=findings)) as (app, pilot):
        panel = app.main.query_one(Findings)
        await press(app, pilot, "f", "down", "w")
        assert [f.id for f in panel.shown(app.main.snapshot)] == ["IN01", "HO06"]
        assert "2 of 4: above info" in screen_text(app) and panel.cursor == 0
        await press(app, pilot, "enter")
        assert isinstance(app.screen, EvidenceScreen) and "IN01" in screen_text(app)
        await press(app, pilot, "escape", "escape")
        assert not panel.only_worst and "HO11" in screen_text(app)


def test_layers_that_stand_out_come_slowest_first():
    def layer(path, ms, children=()):
        return Layer(path=path, kind="Block", forward_ms=ms, backward_ms=0.0, children=[*children])

    blocks = [layer(f"blocks.{i}", 4.0 if i == 2 else 9.0 if i == 5 else 1.0) for i in range(8)]
    root = layer("", 19.0, blocks)
    found = Layers.__new__(Layers)
    object.__setattr__(found, "root", root)
    assert [one.path for one in layers_standing_out(found)] == ["blocks.5", "blocks.2"]


# ---- stacks


async def test_stacks_stand_side_by_side_with_the_odd_rank_first_and_w_leaves_only_it(running):
    async with started(running, FakeControl(), size=(120, 30)) as (app, pilot):
        app.feed.next = running._replace(notices=dumps(odd=2, count=4), sequence=5)
        await step(app, pilot)
        await settle(app, pilot)
        assert isinstance(app.screen, StacksDialog)
        text = screen_text(app)
        head = next(line for line in text.splitlines() if "▲ rank 2" in line)
        assert head.index("rank 2") < head.index("ranks 0, 1, 3")
        assert "▸ load loader.py:7" in text and "▸ main" not in text
        await press(app, pilot, "w")
        text = screen_text(app)
        assert "▸ load loader.py:7" in text and "all_reduce" not in text and "w all" in text
        await press(app, pilot, "w", "y")
        assert "all_reduce" in screen_text(app) and "rank 2" in app.clipboard


async def test_a_dialog_that_is_open_is_written_anew_for_another_size_of_the_terminal(running):
    """Stacks that came at 60 columns stood one below the other on a terminal made wide since."""
    async with started(running, FakeControl(), size=(60, 20)) as (app, pilot):
        app.feed.next = running._replace(notices=dumps(odd=2, count=4), sequence=5)
        await step(app, pilot)
        await settle(app, pilot)
        await pilot.resize_terminal(120, 30)
        await settle(app, pilot)
        head = next(line for line in screen_text(app).splitlines() if "▲ rank 2" in line)
        assert "ranks 0, 1, 3" in head
        await press(app, pilot, "escape", "question_mark")
        assert "Leave; asks first" not in screen_text(app)
        await pilot.resize_terminal(120, 80)
        await settle(app, pilot)
        assert "Leave; asks first" in screen_text(app)


async def test_the_footer_of_an_ended_run_has_no_key_that_asks_the_training(running):
    async with started(running, FakeControl(), size=(120, 40)) as (app, pilot):
        assert "p profile" in screen_text(app)
        ended = running.summary._replace(state="ended")
        app.feed.next = running._replace(summary=ended, sequence=5)
        await step(app, pilot)
        await settle(app, pilot)
        last = screen_text(app).splitlines()[-1]
        assert "profile" not in last and "stacks" not in last and "z zoom" in last
        assert "pause" not in last
        await press(app, pilot, "space")
        assert not app.main.paused and "no new steps come" in told(app)
        await press(app, pilot, "question_mark")
        assert "space" not in screen_text(app)


@pytest.mark.parametrize("key", ["p", "M", "I"])
async def test_what_asks_a_training_says_in_a_replay_that_there_is_none(running, key):
    async with started(running, size=(120, 40), mode="replay") as (app, pilot):
        await press(app, pilot, key)
        assert "no training is there to be asked" in told(app)


async def test_what_became_of_a_memory_snapshot_is_told(running):
    """On a CPU none is written, and the screen left it at having asked."""
    async with started(running, FakeControl(), size=(120, 40)) as (app, pilot):
        body: dict[str, object] = {"error": "this process uses no CUDA"}
        failed = Notice(1, "memory_snapshot", 0, body)
        app.feed.next = running._replace(notices=(failed,), sequence=5)
        await step(app, pilot)
        await settle(app, pilot)
        assert told(app) == "rank 0: no memory snapshot: this process uses no CUDA"


@pytest.mark.parametrize(
    ("control", "mode", "words"),
    [
        (True, "live", "Three steps are being watched"),
        (False, "live", "No layer was watched so far: l watches"),
        (False, "replay", "No layer was watched. `gputop run --layers`"),
    ],
)
def test_layers_that_were_not_watched_say_what_can_be_done_about_it(control, mode, words, running):
    position = None if mode == "live" else Position(5, 0, 10, 1.0, False)
    loader = LayersPage(control).loader()
    read = loader(RunRecord.open(running.run_dir), running._replace(position=position))
    assert isinstance(read, Trouble) and read.text.startswith(words)


async def test_stacks_that_come_while_something_is_asked_wait_for_the_answer(running):
    """A hang's stacks came over the question whether to stop, and took the key meant for it."""
    control = FakeControl()
    async with started(running, control, size=(120, 30)) as (app, pilot):
        await press(app, pilot, "q")
        asked = app.screen
        app.feed.next = running._replace(notices=dumps(odd=2, count=4), sequence=5)
        await step(app, pilot)
        await settle(app, pilot)
        assert app.screen is asked
        await press(app, pilot, "escape")
        await step(app, pilot)
        await settle(app, pilot)
        assert isinstance(app.screen, StacksDialog)


async def test_a_command_that_has_ended_is_asked_for_nothing(running):
    control = FakeControl()
    async with started(running, control, size=(120, 30)) as (app, pilot):
        await press(app, pilot, "d", "p")
        assert control.asked == ["dump", "profile 3"]
        control.running = False
        await press(app, pilot, "d", "p")
        assert control.asked == ["dump", "profile 3"]


async def test_two_ranks_at_two_places_are_both_shown_and_neither_is_called_odd(running):
    """A hang's finding may name one of them: the stacks alone cannot."""
    async with started(running, FakeControl(), size=(120, 30)) as (app, pilot):
        app.feed.next = running._replace(notices=dumps(odd=1, count=2), sequence=5)
        await step(app, pilot)
        await settle(app, pilot)
        text = screen_text(app)
        assert "2 places, as many ranks at each" in text and "▲ rank" not in text


async def test_of_two_ranks_the_one_that_the_hang_is_laid_on_is_marked(running):
    hang = a_finding("critical", id="HC01", rank=0, title="rank 0 is stuck at train.py:9")
    summary = running.summary._replace(silent_s=40.0)
    async with started(running, FakeControl(), size=(120, 30)) as (app, pilot):
        app.feed.next = running._replace(
            notices=dumps(odd=1, count=2), findings=(hang,), summary=summary, sequence=5
        )
        await step(app, pilot)
        await settle(app, pilot)
        text = screen_text(app)
        assert "No step for 0:40: Stacks of 2 ranks" in text
        head = next(line for line in text.splitlines() if "▲ rank 0" in line)
        assert head.index("▲ rank 0") < head.index("rank 1") and "▲ rank 1" not in text
        assert "holds up the others" in text


async def test_stacks_that_are_open_learn_whom_the_hang_is_laid_on(running):
    """The stacks come first, the judgement on them seconds later."""
    hang = a_finding("critical", id="HC01", rank=0, title="rank 0 is stuck at train.py:9")
    summary = running.summary._replace(silent_s=40.0)
    both = dumps(odd=1, count=2)
    async with started(running, FakeControl(), size=(80, 24)) as (app, pilot):
        app.feed.next = running._replace(notices=both, summary=summary, sequence=5)
        await step(app, pilot)
        await settle(app, pilot)
        assert "▲ rank" not in screen_text(app)
        later = summary._replace(silent_s=44.0)
        app.feed.next = running._replace(notices=both, findings=(hang,), summary=later, sequence=6)
        await step(app, pilot)
        await settle(app, pilot)
        text = screen_text(app)
        assert "▲ rank 0" in text and "No step for 0:44: Stacks of 2 ranks" in text
        assert "fix: DataLoader(num_workers=2" in text, "the dialog lies over the findings here"


def test_many_groups_of_stacks_wrap_into_rows_of_columns():
    groups = stacks.groups_of([n for i in range(5) for n in dumps(odd=i, count=1)])
    assert len(groups) == 1 and stacks.odd_ones(groups) == []
    groups = stacks.groups_of(dumps(odd=3, count=1024))
    rows = [row_text(row) for row in stacks.draw(groups, groups, 80)]
    assert "rank 3 " in rows[0] and "ranks 0-2, 4-1023" in rows[0]
    assert all(len(row) <= 80 for row in rows)


async def test_a_replay_shows_the_stacks_that_were_recorded(running):
    noted = running._replace(notices=dumps(odd=1, count=3))
    async with started(noted, mode="replay") as (app, pilot):
        assert "Recorded stacks" in [c.title for c in app.get_system_commands(app.screen)]
        await press(app, pilot, "d")
        assert isinstance(app.screen, StacksDialog) and "▲ rank 1" in screen_text(app)


# ---- output


async def test_a_bar_that_is_drawn_over_and_over_moves_on_when_its_line_is_cut_short(running):
    """At each 8 KB a line is replaced by what it shows, as long as the time before: it stood."""
    bars = "epoch 0:  38%| 380/1000", "epoch 0:  72%| 723/1000"
    async with started(running, size=(80, 24)) as (app, pilot):
        output = app.main.query_one(Output)
        await press(app, pilot, "o")
        for bar in bars:
            output.show(OutputView((bar,)))
            await settle(app, pilot)
        assert bars[1] in screen_text(app)


async def test_a_line_that_has_not_begun_is_not_counted(running):
    async with started(running, size=(120, 40)) as (app, pilot):
        output = app.main.query_one(Output)
        for lines, count in ((("a", "b", ""), "2 lines"), (("a", "b"), "2 lines"), (("",), "0 l")):
            output.show(OutputView(lines))
            await settle(app, pilot)
            assert f" {count}" in screen_text(app)


async def test_long_lines_wrap_and_scroll_sideways(running):
    async with started(running, size=(80, 24)) as (app, pilot):
        output = app.main.query_one(Output)
        output.show(OutputView(("short", LONG, "last")))
        await press(app, pilot, "o", "z")
        assert "the end" not in screen_text(app) and "x…" in screen_text(app)
        for _ in range(9):
            await press(app, pilot, "greater_than_sign")
        assert "the end" in screen_text(app) and "short" not in screen_text(app)
        assert "from column 32" in screen_text(app), "no further than the longest line"
        for _ in range(9):
            await press(app, pilot, "less_than_sign")
        assert output.aside == 0 and "short" in screen_text(app)
        await press(app, pilot, "W")
        text = screen_text(app)
        assert "the end" in text and "…" not in text.split("Output")[1].splitlines()[3]
        assert text.index("short") < text.index("the end") < text.index("last")
        assert output.virtual_size.height == 1 + 1 + 3


async def test_a_hit_is_found_where_lines_are_wrapped(running):
    lines = [LONG, *(f"line {i}" for i in range(60)), "needle", *(f"more {i}" for i in range(60))]
    async with started(running, size=(80, 24)) as (app, pilot):
        output = app.main.query_one(Output)
        output.show(OutputView(tuple(lines)))
        await press(app, pilot, "o", "W")
        assert output.find("needle")
        await settle(app, pilot)
        assert "▌needle" in screen_text(app)
        await press(app, pilot, "escape", "W")
        assert output._place(round(output.scroll_offset.y))[0] >= 55, "the line on top stays"


# ---- history


async def test_one_time_cursor_goes_through_all_charts_by_keys_and_mouse(running):
    async with started(running, size=(120, 40)) as (app, pilot):
        history = app.main.query_one(HistoryPanel)
        await press(app, pilot, "2", "z")
        newest = screen_text(app)
        for words in ("fullest GPU", "power, sum", "CPU", "RAM", "disk"):
            assert words in newest
        history.move_cursor(-39)
        await press(app, pilot, "left")
        moved = screen_text(app)
        rows = moved.split("History")[1].splitlines()
        charts = [line for line in rows if "│" in line[26:-2]]
        assert len({line.index("│", 26) for line in charts}) == 1 and len(charts) > 20
        assert cpu_of(moved) != cpu_of(newest)
        here = history.cursor
        await press(app, pilot, "right")
        assert history.cursor == here + 1
        await pilot.hover(HistoryPanel, offset=(60, 5))
        assert history.cursor == 60 - 25 - 2
        await press(app, pilot, "escape")
        assert history.cursor is None and cpu_of(screen_text(app)) == cpu_of(newest)


def cpu_of(text: str) -> str:
    return next(line for line in text.splitlines() if "CPU " in line and "%" in line)[:28]


async def test_arrows_seek_in_a_replay_until_the_history_has_the_screen(running):
    async with started(running, mode="replay") as (app, pilot):
        sought = []
        app._replay = lambda method, *arguments: sought.append((method, *arguments))
        position = running_position(running)
        app.main.receive(app.main.snapshot._replace(position=position), None)
        await press(app, pilot, "2", "left")
        assert sought == [("seek", -0.02)] and app.main.query_one(HistoryPanel).cursor is None
        assert "← → seek" in screen_text(app)
        await press(app, pilot, "z", "left")
        assert len(sought) == 1 and app.main.query_one(HistoryPanel).cursor is not None
        assert "← → time cursor" in screen_text(app)


def running_position(running):
    from gputop.feed.snapshot import Position

    start = running.summary.started_ns
    return Position(start + 10**9, start, start + 10 * 10**9, 1.0, False)


# ---- clicks


@pytest.mark.parametrize(("id", "kind"), [("numerics", NumericsScreen), ("all_ranks", RanksScreen)])
async def test_a_key_of_the_footer_is_a_button(running, id, kind):
    async with started(running) as (app, pilot):
        place = next(p for p in places("live", False, 120) if p.action and p.action.id == id)
        await pilot.click("#footer", offset=(place.start + 1, 0))
        await settle(app, pilot)
        assert isinstance(app.screen, kind)


@pytest.fixture
def alone(tmp_path):
    """A run of one rank that has ended, with one finding."""
    folder = write_run(tmp_path / "alone", ranks=1, gpus=0)
    now_ns = START_NS + 60 * 10**9
    found = (a_finding(rank=None),)
    return build(RunRecord.open(folder), found, window_steps=500, now_ns=now_ns, ended=True)


async def shown_after(snapshot, *keys, size=(120, 40)):
    """The lines of the screen."""
    async with started(snapshot, size=size) as (app, pilot):
        await press(app, pilot, *keys)
        return screen_text(app).splitlines()


async def test_a_footer_offers_no_key_that_has_nothing_to_act_on(running, alone):
    nothing_watched = (await shown_after(alone, "l"))[-1]
    assert "esc back" in nothing_watched and "? help" in nothing_watched
    assert not {"sort", "fold", "worst", "rank"} & set(nothing_watched.split())
    for keys, word in ((("0",), "sort"), (("9",), "next rank"), (("f", "enter"), "next finding")):
        assert word not in (await shown_after(alone, *keys))[-1]
        assert word in (await shown_after(running, *keys))[-1]


async def test_one_rank_shows_its_phases_on_a_small_terminal(alone):
    lines = await shown_after(alone, "0", size=(60, 20))
    assert any("backward" in line for line in lines) and "median" not in "".join(lines)
    assert not any("sorts" in line for line in lines)


async def test_a_finding_opens_by_a_click_and_a_tab_by_another(running):
    async with started(running, size=(80, 24)) as (app, pilot):
        row = app.main.panel("output").region
        line = screen_text(app).splitlines()[row.y]
        await pilot.click("#output", offset=(line.index("3 ranks") - row.x, 0))
        await settle(app, pilot)
        assert app.focused.id == "ranks"
        await pilot.click("#findings", offset=(20, 1))
        await settle(app, pilot)
        assert isinstance(app.screen, EvidenceScreen)


async def test_a_click_opens_the_finding_that_is_drawn_there(running):
    """A short finding does not take the rows that a long one would."""
    short = a_finding("high", id="IN01", title="first", fix="", evidence="")
    findings = (short, a_finding("medium", None, id="HO06", title="second"))
    async with started(running._replace(findings=findings), size=(120, 40)) as (app, pilot):
        panel = app.main.panel("findings")
        lines = screen_text(app).splitlines()
        y = next(i for i, line in enumerate(lines) if "HO06" in line) - panel.region.y
        await pilot.click("#findings", offset=(20, y))
        await settle(app, pilot)
        assert app.screen.page.finding.id == "HO06"


async def test_a_click_on_the_replay_bar_seeks_there(running):
    async with started(running, mode="replay") as (app, pilot):
        sought = []
        app._replay = lambda method, *arguments: sought.append((method, *arguments))
        app.main.receive(app.main.snapshot._replace(position=running_position(running)), None)
        await settle(app, pilot)
        width = app.main.query_one("#footer").size.width
        await pilot.click("#footer", offset=(width // 2, 0))
        await settle(app, pilot)
        method, share = sought[0]
        assert method == "seek_to" and share == pytest.approx(0.45, abs=0.1)


async def test_help_explains_colours_of_phases_only_where_some_are_drawn(running):
    async with started(running, FakeControl(), size=(120, 40)) as (app, pilot):
        await press(app, pilot, "question_mark")
        assert "✖ critical" in screen_text(app) and "vs median" in screen_text(app)
        await press(app, pilot, "escape", "v", "question_mark")
        assert "✖ critical" not in screen_text(app) and "≈: uncertain" in screen_text(app)


async def test_a_young_run_has_no_last_thousand_steps(running):
    async with started(running, size=(120, 40)) as (app, pilot):
        await press(app, pilot, "b")
        assert "all steps so far" in screen_text(app)
