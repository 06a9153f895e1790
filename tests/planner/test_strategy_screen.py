"""The strategy screen as a user drives it, alone and above a run, and its form as data."""

import csv
import json
import re
from dataclasses import replace

import pytest
from tui_pilot import press, screen_text, settle, started
from tui_support import START_NS, write_run

from gputop.app.strategy import StrategyApp
from gputop.cli.split import whatif_text
from gputop.feed.build import build
from gputop.feed.planning import AUTO, ENTRIES, PINS, Ask, solve
from gputop.feed.presets import apply
from gputop.feed.run_base import RunBase, RunBaseLoader, base_of
from gputop.feed.unknown_run import Unknown
from gputop.feed.whatif import WhatIf, of_run
from gputop.render import plan
from gputop.render.rows import row_text, row_width
from gputop.screens.dialog import ChoiceDialog, TextDialog
from gputop.screens.pareto import TICKS, ParetoDialog, even_ticks, key, markers, top_of
from gputop.screens.strategy import StrategyScreen
from gputop.screens.whatif import WhatIfDialog, table
from gputop.widgets.plan_panes import notice_rows
from gputop_analysis.catalog import gpu, model
from gputop_analysis.catalog.gpus import COMMON
from gputop_analysis.parallelism.split import Split
from gputop_analysis.planner.measured import MeasuredRun
from gputop_analysis.planner.whatif import Change
from gputop_analysis.vram.setup import Setup
from gputop_probes.record.reader import RunRecord

pytestmark = pytest.mark.usefixtures("nothing_of_the_user")


@pytest.fixture(scope="module")
def ask():
    return Ask(model("llama-3-8b"), gpus=8, global_batch=64)


@pytest.fixture(scope="module")
def planned(ask):
    return solve(ask)


# ---- the question as data


def test_every_line_steps_up_and_down(ask):
    for entry in ENTRIES:
        for direction in (1, -1):
            stepped = ask.stepped(entry.name, direction)
            assert stepped.shown(entry.name)
            if entry.values and ask.value(entry.name) in entry.values[1:-1]:
                assert stepped.stepped(entry.name, -direction) == ask
    assert ask.given("tp", 4).value("tp") == 4 and ask.given("tp", 4).given("tp", AUTO) == ask
    assert (
        ask.given("gpus", 12).stepped("gpus", 1).gpus == 16
        and ask.given("gpus", 12).stepped("gpus", -1).gpus == 8
    )
    assert all(gpu(name) for name in COMMON)


def test_a_question_that_has_no_answer_says_why(ask):
    assert "no GPU 'X1'" in solve(ask.given("gpu", "X1")).problem
    assert "nothing fits" in solve(Ask(model("llama-3-70b"), gpu="T4", gpus=8)).problem
    assert "keeps the rules" in solve(ask.given("tp", 16)).problem


def test_a_split_can_be_fixed(ask, planned):
    one = planned.choices[3]
    fixed = ask.pinned_to(one.layout)
    assert {name for name, _ in fixed.pins} == set(PINS)
    assert [choice.name for choice in solve(fixed).choices] == [one.name]


# ---- what is drawn


@pytest.mark.parametrize("width", [46, 60, 90, 160])
def test_rows_fit_and_bars_share_a_scale(planned, width):
    rows = plan.table(planned, width, 12, 0, 1, marked=(0, 2), base_s=10.0)
    rows += plan.bars(planned.choices[:3], width) + plan.bars(planned.choices[:1], width)
    rows += plan.reasons(planned, planned.choices[2], [], width)
    rows += plan.form(planned.ask, 3, min(width, 40), True)
    assert all(row_width(row) <= width for row in rows)
    assert "x" in row_text(plan.table(planned, 160, 3, 0, None, marked=(), base_s=10.0)[1])
    assert row_text(rows[1]).startswith("A") and row_text(rows[3]).startswith("B  ")


def test_the_parts_of_a_bar_add_up(planned):
    one = planned.choices[0]
    assert sum(one.parts_s.values()) == pytest.approx(one.step_s)


# ---- the screen


async def test_arrows_plan_again_and_marks_compare(ask):
    app = StrategyApp(ask)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        before = app.screen.table.planned
        await press(app, pilot, "down", "right")  # GPUs: 8 -> 16
        assert (
            app.screen.ask.gpus == 16
            and app.screen.table.planned.choices[0].step_s < before.choices[0].step_s
        )
        await press(app, pilot, "tab", "space", "down", "space")
        assert [one.index for one in app.screen.table.compared] == [
            c.index for c in app.screen.table.planned.choices[:2]
        ]
        assert "Side by side" in screen_text(app) and "A and not B" in screen_text(app)
        await press(app, pilot, "escape")
        assert app.screen.table.marked == () and app.is_running
        await press(app, pilot, "enter")
        assert len(app.screen.ask.pins) == len(PINS) and len(app.screen.table.planned.choices) == 1
        await press(app, pilot, "a")
        assert app.screen.ask.pins == ()


async def test_values_are_typed(ask):
    app = StrategyApp(ask)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "down", "1", "6", "enter")
        assert app.screen.ask.gpus == 16
        await press(app, pilot, "up", "enter", *"a100-80gb", "enter")
        assert app.screen.ask.gpu == "a100-80gb" and app.screen.table.planned.choices


async def test_plot_launch_and_copy(ask):
    app = StrategyApp(ask)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "p")
        assert isinstance(app.screen, ParetoDialog)
        await press(app, pilot, "escape", "l")
        assert isinstance(app.screen, ChoiceDialog)
        await press(app, pilot, "2")
        assert isinstance(app.screen, TextDialog) and "accelerate" in screen_text(app)
        await press(app, pilot, "escape", "y")
        assert app.clipboard.startswith("gputop plan --model llama-3-8b")


def test_changes_that_win_are_marked_and_what_changes_nothing_is_said_so():
    gain = Change("input", "faster products of a long name", 9.0, 10.0, 64.02, 64.0, True, {})
    same = replace(gain, name="another", step_s=9.99)
    lines = [text for text, _ in table(WhatIf("", "", (gain, same), None), 52)]
    assert lines[0].split() == ["each", "alone", "step", "change", "GiB", "change"]
    assert lines[1].startswith("+ faster products") and "−10.0 %" in lines[1]
    assert lines[2].startswith("  another ") and lines[2].split()[-3:] == ["=", "64.0", "="]
    assert lines[-1] == "+ takes more than 1 % off the step"


async def test_what_if_and_workloads(ask):
    app = StrategyApp(ask)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "tab", "u")
        await settle(app, pilot)
        assert isinstance(app.screen, WhatIfDialog) and "FP8 products" in screen_text(app)
        await press(app, pilot, "y")
        assert "micro-batch" in app.clipboard
        await press(app, pilot, "escape", "w", "3")
        await settle(app, pilot)
        assert (
            app.screen.ask.lora
            and app.screen.ask.seq == 2048
            and app.screen.copy_text().endswith("--lora")
        )
        await press(app, pilot, "w", "7")
        await settle(app, pilot)
        assert isinstance(app.screen, TextDialog) and "tokens/s" in screen_text(app)


@pytest.mark.parametrize("width", [72, 94])
def test_changes_of_a_run_start_from_what_was_measured(width):
    setup = Setup(model("llama-3-8b"), 4096, 1, 8, parallel=Split(dp=8, sharding="fsdp2"))
    run = MeasuredRun(setup, "NVIDIA H100 80GB HBM3", 6.0, allocated_bytes=40 * 2**30)
    found = of_run(base_of(setup, run, "mine"))
    assert "measured: 6.00 s" in found.now and all(one.before_s == 6.0 for one in found.changes)
    assert all(one.before_gib == pytest.approx(43.0, rel=0.05) for one in found.changes)
    rows = [text for text, _ in table(found, width)]
    assert all(len(text) <= width for text in rows if not text.startswith("not "))
    printed = whatif_text.table(found.changes, 100, "it")
    for rows in (rows, printed):
        assert re.search(r" \+\d+\.\d %", "".join(rows)) and not re.search(r"\d%", "".join(rows))
    assert not any(
        re.search(r" ms?,?$|\+\d*$", text) and not text.endswith(" ms") for text in printed
    )
    assert "not measured" in of_run(base_of(setup, None, "mine")).now


def test_presets_that_do_not_suit_say_why(ask):
    with pytest.raises(ValueError, match="has no experts"):
        apply(ask, "moe")
    assert "iteration" in apply(ask, "rlhf").text and apply(ask, "cheapest").ask.gpus <= ask.gpus
    assert (
        apply(ask, "long-context").ask.seq == 131072
        and apply(ask, "pretrain").ask.global_batch == 1024
    )


async def test_it_opens_above_a_run_and_starts_from_it(tmp_path, ask):
    folder = write_run(tmp_path / "run", ranks=1, gpus=1, state="running")
    running = build(RunRecord.open(folder), (), window_steps=500, now_ns=START_NS + 11 * 10**9)
    async with started(running, size=(120, 40)) as (app, pilot):
        await press(app, pilot, "u")
        assert isinstance(app.screen, StrategyScreen)
        base = RunBase(ask.given("seq", 2048), 12.0, Setup(ask.model), "mine")
        app.screen.receive(running._replace(page=base), None)
        await settle(app, pilot)
        assert isinstance(app.screen, WhatIfDialog) and "measured: 12.0 s" in screen_text(app)
        await press(app, pilot, "escape")
        assert (
            app.screen.ask.seq == 2048
            and "from run mine" in screen_text(app)
            and "of now" in screen_text(app)
        )
        await press(app, pilot, "escape")
        assert not isinstance(app.screen, StrategyScreen)


async def test_above_a_run_of_an_unknown_model_it_says_so_and_takes_what_is_known(tmp_path, ask):
    told = {"class": "TinyNet", "parameters": 1_200_000_000}
    folder = write_run(tmp_path / "run", ranks=2, gpus=2, state="running")
    batch = {"shapes": {"0": [4, 1024]}, "dtypes": {"0": "int64"}}
    event = {"type": "hello_update", "rank": 0, "t_ns": START_NS, "model": told, "batch": batch}
    with (folder / "hosts/box/events.jsonl").open("a") as events:
        events.write(json.dumps(event) + "\n")
    record = RunRecord.open(folder)
    running = build(record, (), window_steps=500, now_ns=START_NS + 11 * 10**9)
    found = RunBaseLoader(ask)(record, running)
    assert isinstance(found, Unknown) and "TinyNet, 1.2 B parameters" in found.text
    assert "of its size" in found.text
    assert (found.ask.seq, found.ask.global_batch) == (
        1024,
        8,
    ) and 0.5 < found.ask.model.params / 1.2e9 < 2
    async with started(running, size=(120, 40)) as (app, pilot):
        await press(app, pilot, "u")
        app.screen.receive(running._replace(page=found), None)
        await settle(app, pilot)
        assert isinstance(app.screen, StrategyScreen) and "is not in the catalog" in screen_text(
            app
        )
        assert "no what-if of this run: " in screen_text(app)
        assert "parameters" in screen_text(app)  # the end of it: it is wrapped, not cut
        await press(app, pilot, "down", "right")
        assert "is not in the catalog" in screen_text(app)
        app.screen._change(app.screen.ask.given("model", model("llama-3-70b")))
        await settle(app, pilot)
        assert "is not in the catalog" not in screen_text(app)


async def test_the_table_and_a_launch_can_be_saved(ask, tmp_path):
    app = StrategyApp(ask)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(app, pilot)
        for kind in "cjs":
            await press(app, pilot, "e", kind)
        await press(app, pilot, "l", "3", "s", "escape")
        await press(app, pilot, "l", "3", "s")
        strategies = app.screen_stack[0].table.planned.choices
    (table_file,) = tmp_path.glob("gputop-plan-llama-3-8b.csv")
    rows = list(csv.DictReader(table_file.open()))
    assert len(rows) == len(strategies) and float(rows[0]["step_time_s"]) == strategies[0].step_s
    said = json.loads((tmp_path / "gputop-plan-llama-3-8b.json").read_text())
    assert said["gpus"] == 8 and said["strategies"][1]["strategy"] == strategies[1].name
    assert "<svg" in (tmp_path / "gputop-plan-llama-3-8b.svg").read_text()
    for folder in ("gputop-deepspeed", "gputop-deepspeed-2"):
        assert (tmp_path / folder / "launch.sh").read_text().startswith("#!/bin/sh")
        assert (
            json.loads((tmp_path / folder / "ds_config.json").read_text())["train_batch_size"] == 64
        )


def test_a_run_is_the_base_line():
    setup = Setup(model("llama-3-8b"), 4096, 1, 8, parallel=Split(dp=8, sharding="fsdp2"))
    base = base_of(setup, MeasuredRun(setup, "NVIDIA H100 80GB HBM3", 6.0), "mine")
    assert (base.ask.gpus, base.ask.global_batch, base.step_s) == (
        8,
        64,
        6.0,
    ) and base.calibration is not None
    assert base.calibration.rows == 1
    on_cpu = base_of(setup, None, "mine")
    assert on_cpu.step_s == 0 and on_cpu.calibration is None


@pytest.mark.parametrize("width", [80, 120])
def test_what_is_not_known_of_a_run_is_told_whole(width):
    notice = "the run's model is not known, and it ran on no GPU: llama-3-8b as an example; " * 2
    rows = notice_rows(notice.strip(), width)
    told = " ".join(row[1][0] for row in rows)
    assert told == notice.strip() and max(map(row_width, rows)) <= width
    assert notice_rows("", width) == []


async def test_a_pane_that_grows_shows_what_it_had_scrolled_away(ask):
    app = StrategyApp(ask)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "tab", "down", "down")
        table = app.screen.table
        assert len(table.planned.choices) > 3 and table.first == 0
        table.rows(100, 4)
        assert table.first == 2
        table.rows(100, 30)
        assert table.first == 0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(5.9, 18.7, [5, 10, 15, 20]), (11.6, 79.2, [0, 20, 40, 60, 80]), (3.0, 3.0, None)],
)
def test_ticks_are_round_and_enclose(low, high, expected):
    at = even_ticks(low, high)
    assert (at[0] <= low and high <= at[-1] and 2 <= len(at) <= TICKS + 1) or low == high
    assert expected is None or at == expected


@pytest.mark.parametrize("width", [28, 46, 90])
def test_side_by_side_has_a_column_for_each_mark(planned, width):
    two = planned.choices[:2]
    text = [row_text(row) for row in plan.bars(two, width, mono=True)]
    head, compute = text[2], next(line for line in text if line.startswith("c compute"))
    assert all(len(line) <= width for line in text)
    assert "A" in head and "B" in head and compute.count("s") == 2
    has_room = 2 * (max(len(choice.name) for choice in two) + 4) <= width - 2 - plan.PART - 1
    assert two[0].name in head or not has_room
    assert two[0].name in head or width < 90
    assert len(set(plan.LETTERS.values())) == len(plan.LETTERS), "a letter stands for one part"
    four = [row_text(row) for row in plan.bars(planned.choices[:4], width, mono=True)]
    assert four[4].endswith(" …") == (width < 46) and all(len(line) <= width for line in four)


def test_a_marked_strategy_keeps_the_sign_of_the_one_to_run(planned):
    at = next(i for i, one in enumerate(planned.choices) if one.index == planned.pick.index)
    drawn = plan.table(planned, 90, at + 2, 0, None, marked=(at,))
    assert row_text(drawn[at + 1]).startswith(f"A{plan.PICK} {planned.pick.name}")


async def test_on_a_small_terminal_the_marked_rows_stay_in_sight(ask):
    app = StrategyApp(ask)
    async with app.run_test(size=(60, 20)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "tab", "space", "down", "space")
        marks = [line.split()[0] for line in app.screen.table.drawn_text.splitlines() if line]
        assert [mark[0] for mark in marks if mark[0] in "AB"] == ["A", "B"]
    assert len(notice_rows("word " * 40, 60, 1)) == 1 and len(notice_rows("word " * 40, 60)) > 2


async def test_parts_stand_beside_the_table_on_a_wide_terminal_and_below_it_again(ask):
    app = StrategyApp(ask)
    async with app.run_test(size=(200, 50)) as pilot:
        await settle(app, pilot)
        parts = app.screen.query_one("#parts")
        assert parts.region.x > app.screen.table.region.right - 2
        await pilot.resize_terminal(120, 40)
        await settle(app, pilot)
        assert parts.region.y >= app.screen.table.region.bottom


def test_the_plot_says_what_each_glyph_is(planned):
    found = markers(planned, planned.choices[1], planned.choices[2:4])
    words = key(found, 9.0)
    assert f"· the {planned.fitting:,} that fit" in words or f"of {planned.fitting:,} that" in words
    assert f"A {planned.choices[2].name} | B {planned.choices[3].name}" in words
    assert "✓ the one to run" in words and "the run's step" in words
    assert len(markers(planned, planned.pick, ())) == 3, "the one to run is chosen: one glyph"


@pytest.mark.parametrize("rows", [5, 12, 31])
def test_ticks_lie_as_many_rows_apart(rows):
    at = even_ticks(12.0, 78.0, max(min(TICKS, rows // 2), 2))
    top = top_of(at, rows)
    each = (rows - 1) * (at[1] - at[0]) / (top - at[0])
    assert top >= at[-1] and (each == pytest.approx(round(each)) or rows < len(at))
