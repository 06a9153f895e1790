"""The catalog screen as a user drives it, alone and above a run, and its plot."""

from dataclasses import replace

import pytest
from tui_pilot import press, screen_text, settle, started
from tui_support import START_NS, write_run

from gputop.app.catalog import CatalogApp
from gputop.cli import main
from gputop.feed import catalog as feed
from gputop.feed.build import build
from gputop.feed.catalog import CatalogView, first_view
from gputop.feed.planning import Ask
from gputop.feed.run_base import RunBase
from gputop.render import catalog
from gputop.render.rows import row_text, row_width
from gputop.screens.catalog import CatalogScreen
from gputop.screens.catalog_plot import CatalogPlot, apart, legend, letters, ticks
from gputop.screens.estimator import EstimatorScreen
from gputop.screens.strategy import StrategyScreen
from gputop_analysis.catalog import gpus, model
from gputop_analysis.catalog.listing import SORTS, listed
from gputop_analysis.vram.setup import Setup
from gputop_probes.record.reader import RunRecord

pytestmark = pytest.mark.usefixtures("nothing_of_the_user")


@pytest.fixture(scope="module")
def rows():
    return listed()


def names(app):
    return [row.spec.name for row in app.screen.view.shown]


# ---- the view as data


def test_orders_come_round_and_marks_stay(rows):
    view = CatalogView(tuple(rows))
    orders = []
    for _ in range(len(SORTS) + 1):
        orders.append(view.sort)
        view = view.resorted()
    assert orders == ["", *SORTS] and view.sort == ""
    five = [row.spec.name for row in rows[:5]]
    for name in five:
        view = view.toggled(name)
    assert view.marked == tuple(five[1:]) and view.toggled(five[1]).marked == tuple(five[2:])
    hidden = view.filtered("no such thing")
    assert hidden.shown == [] and [row.spec.name for row in hidden.compared] == five[1:]


def test_every_gpu_has_the_same_facts_and_none_is_empty(rows):
    for row in rows:
        told = feed.facts(row)
        assert list(told) == list(feed.facts(rows[0])) and all(told.values()), row.spec.name


@pytest.mark.parametrize("axis", [axis.name for axis in feed.AXES])
def test_the_front_holds_what_no_other_beats(rows, axis):
    found = feed.points(rows, axis)
    best = feed.front(found)
    assert found and all(point.usd_per_hour > 0 for point in found)
    for point in found:
        beaten = any(
            one.usd_per_hour <= point.usd_per_hour
            and one.value >= point.value
            and one[:2] != point[:2]
            for one in found
        )
        assert not (point in best and beaten)
        assert beaten or point[:2] in [one[:2] for one in best]


def test_the_plot_names_marks_and_the_front_and_its_ticks_enclose(rows):
    found = feed.points(rows, "tflops")
    best = feed.front(found)
    named = dict(letters(found, (best[0].name, found[-1].name, "H800-SXM5-80GB")))
    assert named["A"] == best[0] and named["B"] == found[-1] and "C" not in named
    assert {point.name for point in best} <= {point.name for point in named.values()}
    lines = legend(list(named.items()), 60).splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert all(
        any(f"{letter} {point.name}" in line for line in lines) for letter, point in named.items()
    )
    assert ticks(0.17, 7) == pytest.approx([0.1, 0.2, 0.5, 1, 2, 5, 10]) and ticks(20, 20) == [20]
    assert ticks(0.17, 7, room=4) == pytest.approx([0.1, 1, 10]), "two labels of a row hide another"
    assert ticks(3, 2000, room=4) == pytest.approx([1, 100, 10_000])


# ---- what is drawn


@pytest.mark.parametrize("width", [38, 58, 78, 118, 198])
def test_rows_fit_and_names_are_whole_where_there_is_room(rows, width):
    drawn = catalog.table(
        rows,
        width,
        len(rows) + 1,
        0,
        3,
        marked=(rows[0].spec.name, rows[2].spec.name),
        sort="price",
    )
    for count in (1, 2, 4):
        drawn += catalog.compared(rows[-count:], width) + [catalog.names(rows[-count:], width)]
    assert all(row_width(row) <= width for row in drawn)
    text = [row_text(row) for row in drawn]
    assert (
        text[1].startswith("A ")
        and text[3].startswith("B ")
        and not any("#" in line for line in text[: len(rows)])
    )
    if width >= 118:
        assert all(any(spec.name in line for line in text) for spec in gpus())


def test_what_differs_stands_out(rows):
    by_name = {row.spec.name: row for row in rows}
    pair = [by_name["H100-SXM5-80GB"], by_name["H200-SXM-141GB"]]
    styles = {row[0][0].strip(): row[1][1] for row in catalog.compared(pair, 118)}
    assert styles["memory"] == "text" and styles["bf16 dense"] == "muted"


# ---- the screen


async def test_sort_filter_mark_and_back():
    app = CatalogApp()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        assert len(names(app)) == len(gpus()) and not app.screen.facts.display
        await press(app, pilot, "s")
        assert (
            app.screen.view.sort == "vram"
            and app.screen.table.cursor == 0
            and "by vram" in screen_text(app)
        )
        await press(app, pilot, "slash", *"h100 sxm")
        assert names(app) == ["H100-SXM5-96GB", "H100-SXM5-80GB"] and "/ h100 sxm" in screen_text(
            app
        )
        await press(app, pilot, "enter", "space", "escape", "slash", *"mi300x", "enter", "space")
        assert app.screen.view.marked == ("H100-SXM5-96GB", "MI300X")
        assert (
            app.screen.facts.display
            and "Side by side" in screen_text(app)
            and "B MI300X" in screen_text(app)
        )
        await press(app, pilot, "y")
        assert app.clipboard == 'gputop catalog show "H100-SXM5-96GB" "MI300X"'
        await press(app, pilot, "tab", "down", "down")
        assert app.screen.facts.first == 2
        await press(app, pilot, "escape", "escape")
        assert app.screen.view == replace(first_view(), sort="vram") and app.screen.table.has_focus
        await press(app, pilot, "escape")
        assert not app.is_running


async def test_a_gpu_goes_to_the_planner_and_the_estimator_and_back():
    app = CatalogApp()
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "slash", *"h200 sxm", "enter", "enter")
        assert isinstance(app.screen, StrategyScreen) and app.screen.ask.gpu == "H200-SXM-141GB"
        assert app.screen.table.planned.choices
        await press(app, pilot, "escape", "v")
        assert isinstance(app.screen, EstimatorScreen) and app.screen.form.gpu == "H200-SXM-141GB"
        assert "H200-SXM-141GB" in screen_text(app)
        await press(app, pilot, "escape")
        assert isinstance(app.screen, CatalogScreen) and names(app) == ["H200-SXM-141GB"]
        await press(app, pilot, "escape", "slash", *"tpu", "enter", "v")
        assert isinstance(app.screen, CatalogScreen)


async def test_the_plot_has_two_axes():
    app = CatalogApp()
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "p")
        assert isinstance(app.screen, CatalogPlot) and "dense 16-bit TFLOP/s" in screen_text(app)
        assert "a GeForce RTX 3090" in screen_text(app) and "$/h" in screen_text(app)
        await press(app, pilot, "m")
        assert app.screen.axis.name == "memory" and "usable GiB" in screen_text(app)
        await press(app, pilot, "escape")
        assert isinstance(app.screen, CatalogScreen)


async def test_a_small_terminal_lists_instead_of_the_plot():
    app = CatalogApp()
    async with app.run_test(size=(60, 20)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "p")
        shown = screen_text(app)
        assert "TFLOP/s     $/h" in shown and "f Gaudi 2" in shown and "same rent" in shown
        await pilot.resize_terminal(120, 40)
        await settle(app, pilot)
        assert "TFLOP/s     $/h" not in screen_text(app) and "$/h of one GPU" in screen_text(app)


def test_no_letter_hides_another():
    places = apart([(0.0, 0.0), (0.01, 0.0), (0.5, 0.0), (0.0, 1.0)], (0.1, 0.2))
    assert places == [(0.0, 0.0), pytest.approx((0.11, 0.0)), (0.5, 0.0), (0.0, 1.0)]


async def test_it_opens_above_a_run_and_plans_its_job(tmp_path):
    folder = write_run(tmp_path / "run", ranks=1, gpus=1, state="running")
    running = build(RunRecord.open(folder), (), window_steps=500, now_ns=START_NS + 11 * 10**9)
    ask = Ask(model("llama-3-8b"), 2048, gpus=8)
    async with started(running, size=(120, 40)) as (app, pilot):
        await press(app, pilot, "x")
        assert isinstance(app.screen, CatalogScreen)
        base = RunBase(ask, 12.0, Setup(ask.model, 2048), "mine")
        app.screen.receive(running._replace(page=base), None)
        await press(app, pilot, "slash", *"b200-sxm", "enter", "enter")
        assert isinstance(app.screen, StrategyScreen) and app.screen.ask == ask.given(
            "gpu", "B200-SXM-180GB"
        )
        app.screen.receive(running._replace(page=base), None)
        await settle(app, pilot)
        assert app.screen.ask.gpu == "B200-SXM-180GB" and "of now" in screen_text(app)
        await press(app, pilot, "escape")
        assert isinstance(app.screen, CatalogScreen) and app.main.covered
        await press(app, pilot, "v")
        assert isinstance(app.screen, EstimatorScreen) and app.screen.form.setup.seq == 2048
        await press(app, pilot, "escape", "escape", "escape")
        assert app.screen is app.main and not app.main.covered


def test_without_a_terminal_the_list_is_printed(capsys):
    assert main(["catalog"]) == 0 and "H100-SXM5-80GB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("used", "name"), [("NVIDIA H200", "H200"), ("no such GPU", "K80"), ("", "K80")]
)
async def test_the_table_opens_at_the_gpu_that_the_run_uses(used, name):
    app = CatalogApp()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        app.push_screen(CatalogScreen(used=used))
        await settle(app, pilot)
        assert name in app.screen.table.chosen.spec.name


def test_makers_stand_together_and_their_generations_in_order(rows):
    makers = [row.spec.vendor for row in rows]
    assert makers == sorted(makers, key=makers.index)
    pascal = [row.spec.name for row in rows if row.spec.architecture == "Pascal"]
    at = [row.spec.name for row in rows].index
    assert at("K80") < at("M40-12GB") < at("P40") < at("V100-SXM2-16GB") < at("H100-SXM5-80GB")
    assert at(pascal[-1]) - at(pascal[0]) == len(pascal) - 1


def test_what_is_not_known_is_no_zero_and_what_no_source_confirms_has_its_sign(rows):
    named = {row.spec.name: row for row in rows}
    drawn = row_text(catalog.line(named["MI308X"], 94, False, " ", catalog.columns(94)))
    assert "MI308X?" in drawn and " 0 " not in drawn and named["MI308X"].tflops == 0
    for name in ("B100-SXM-192GB", "GH200-144GB", "A10G"):
        assert named[name].spec.doubtful, name
    assert not any("as recalled" in f"{one.spec.source} {one.spec.cross_check}" for one in rows)
    assert feed.facts(named["GH200-144GB"])["links"] == "NVLink 4 + C2C 900 GB/s"


async def test_facts_stand_beside_the_table_on_a_wide_terminal():
    app = CatalogApp()
    async with app.run_test(size=(200, 50)) as pilot:
        await settle(app, pilot)
        assert app.screen.facts.region.x >= app.screen.table.region.right
        await pilot.resize_terminal(120, 40)
        await settle(app, pilot)
        assert app.screen.facts.region.y >= app.screen.table.region.bottom
