"""What the panels draw, as text, without an app."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tui_support import START_NS, a_finding, write_run

from gputop.actions import SCREENS, in_footer
from gputop.app.plain_terminal import plain
from gputop.feed.build import build
from gputop.feed.curves import loss_curve
from gputop.feed.numerics import NumericsLoader
from gputop.feed.resources import resources
from gputop.feed.snapshot import (
    Curve,
    Notice,
    Position,
    Resources,
    Timeline,
    Useful,
    empty_summary,
    first_snapshot,
)
from gputop.feed.starting import Starting
from gputop.output.progress_bar import ProgressBar
from gputop.render import chart
from gputop.render.rows import row_text, row_width
from gputop.widgets import (
    breakdown,
    findings,
    footer,
    header,
    history,
    loss,
    phase_table,
    rank_columns,
    rank_map,
    rank_table,
    ranks,
    step_chart,
    tiles,
)
from gputop.widgets.standings import standings
from gputop.widgets.starting import checklist
from gputop_analysis.overview import Ending, Verdict
from gputop_analysis.verdict import verdict
from gputop_probes.record.reader import RunRecord

NOW_NS = START_NS + 60 * 10**9


def snapshot_of(folder, **kinds):
    return build(
        RunRecord.open(write_run(folder, **kinds)),
        (),
        window_steps=500,
        now_ns=NOW_NS,
        ended=True,
    )


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return snapshot_of(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return snapshot_of(
        tmp_path_factory.mktemp("four"), ranks=4, gpus=4, slow_rank=2, total_steps=5000
    )


def texts(rows):
    return [row_text(row) for row in rows]


@pytest.mark.parametrize("width", [120, 200])
def test_tiles_and_chart_name_the_steps_that_their_figures_are_of(one, width):
    assert texts(tiles.draw(one, width))[0].count("steps 11+") == 2
    goes_on = one._replace(summary=one.summary._replace(state="running"), window_steps=20)
    above = texts(tiles.draw(goes_on, width))[0]
    assert "Step, mean" in above and "last 20" in above and "last 10 s" in above
    panel = breakdown.Breakdown()
    panel.set_reactive(breakdown.Breakdown.boxed, True)
    assert row_text(panel.note(goes_on)) == "last 20"


DRAWS = {
    "header": lambda s, w, h: header.draw(s, w),
    "breakdown": breakdown.draw,
    "breakdown mono": lambda s, w, h: breakdown.draw(s, w, h, mono=True),
    "tiles": lambda s, w, h: tiles.draw(s, w) if w >= 78 else [],
    "ranks": rank_table.draw,
    "history": lambda s, w, h: history.draw(s.panels.get("history", Resources()), w, h, cursor=3),
    "findings": lambda s, w, h: findings.draw(
        s._replace(findings=(a_finding(), a_finding(severity="critical"))), w, h
    ),
    "loss": lambda s, w, h: loss.draw(loss.loss_of(s), w, h),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
@pytest.mark.parametrize("size", [(200, 20), (118, 12), (78, 7), (56, 5), (40, 3), (30, 1)])
def test_nothing_is_wider_than_its_panel(one, four, draw, size):
    for snapshot in (one, four, first_snapshot(Path("/nowhere"), NOW_NS)):
        for row in draw(snapshot, *size):
            assert row_width(row) <= max(size[0], 46), row_text(row)


def test_the_chart_names_the_parts_and_joins_all_waiting(four):
    """4.2 ms inside backward and 0.6 ms in collectives that the script calls."""
    lines = texts(breakdown.draw(four, 66, 12))
    for name, figure in (("data", "3.1"), ("forward", "4.1"), ("backward", "6.9"), ("wait", "4.8")):
        assert any(re.search(rf"{name} +{figure}", line) for line in lines), name
    assert "eval" not in "".join(lines), "phases that take no time are left out"
    assert lines[-1].rstrip().endswith("end") and "s " in lines[-1] and "−" in lines[-1]


def test_labels_of_the_chart_add_up_and_have_the_letter_that_is_their_only_key(four):
    for height in (4, 6, 12):
        rows = texts(step_chart.chart(four, 66, height, mono=True))[:-1]
        labels = [row[-step_chart.TAG :].strip() for row in rows]
        figures = [float(label.split()[-1]) for label in labels if label]
        step_ms = sum(step_chart.means_of(four).values())
        assert abs(sum(figures) - step_ms) < 0.05 * len(figures), labels
    assert any(re.fullmatch(r"w wait +4\.8", label) for label in labels)
    few = texts(step_chart.chart(four, 66, 4))
    assert any("+ 5 more" in row for row in few)


def test_a_part_looks_alike_in_the_chart_and_in_the_ranks_bar(one):
    """Collectives that the script calls are waiting in both, after backward."""
    row = rank_table.draw(one, 118, 4)[1]
    in_bar = [style for text, style in row if set(text) == {"█"}]
    assert in_bar == [style for style in step_chart.PARTS if style in in_bar] and "wait" in in_bar


def test_slow_steps_are_wider_and_the_newest_stands_at_the_right(four):
    line = Timeline(
        bin_s=0.5, phases_ms=((4.0,) * 10,) * 8, wait_ms=(math.nan,) * 8, steps=(1,) * 8
    )
    rows = step_chart.chart(four._replace(timeline=line), 60, 6)
    area = texts(rows)[-2][step_chart.AXIS :]
    assert area[:2].isspace() and not area[2:34].count(" ")
    narrow = texts(step_chart.chart(four._replace(timeline=line), 40, 6))[-2]
    assert not narrow[step_chart.AXIS :].count(" ") and len(narrow) == 40


def test_a_gap_stands_where_the_run_stood(four):
    none = (math.nan,) * 10
    phases = ((4.0,) * 10,) * 10 + (none,) * 10 + ((4.0,) * 10,) * 12
    line = Timeline(bin_s=0.5, phases_ms=phases, wait_ms=(math.nan,) * 32, steps=(1,) * 32)
    rows = step_chart.chart(four._replace(timeline=line), 40, 6)
    assert texts(rows)[-2][step_chart.AXIS :][10:20] == "┊" * 10


@pytest.mark.parametrize("cells", [60, 86, 100])
def test_the_last_steps_before_it_stood_stay_in_the_chart(four, cells):
    """Of 208 bins the steps are in the first 32: they are what a hang has to show."""
    none = (math.nan,) * 10
    line = Timeline(0.25, ((4.0,) * 10,) * 32 + (none,) * 176, (math.nan,) * 208, (9,) * 208)
    rows = step_chart.chart(four._replace(timeline=line), step_chart.AXIS + cells, 6)
    area = texts(rows)[-2][step_chart.AXIS :]
    assert area.strip()[0] != "┊" and area.count("┊") > cells // 2


def test_the_step_that_is_not_over_is_no_stand(four):
    none = (math.nan,) * 10
    line = Timeline(0.5, ((4.0,) * 10,) * 30 + (none,) * 3, (math.nan,) * 33, (1,) * 30 + (0,) * 3)
    goes_on = four._replace(timeline=line, summary=four.summary._replace(state="running"))
    standing = goes_on._replace(summary=goes_on.summary._replace(silent_s=9.0))
    moving, stood = (
        "".join(texts(step_chart.chart(shown, 40, 6))) for shown in (goes_on, standing)
    )
    assert "┊" not in moving and "┊" in stood


def test_a_chart_of_nothing_but_a_stand_says_so(four):
    line = Timeline(0.5, ((math.nan,) * 10,) * 40, (math.nan,) * 40, (0,) * 40)
    stands = four.summary._replace(state="running", silent_s=246.0)
    standing = four._replace(timeline=line, summary=stands)
    lines = texts(step_chart.chart(standing, 66, 12))
    assert sum("no step for 4:06" in line for line in lines) == 1
    assert all(len(line) == len(lines[0]) for line in lines[:-1])
    assert "no step" not in "".join(texts(step_chart.chart(four, 66, 12)))


@pytest.mark.parametrize("height", [7, 8, 12, 13, 20, 31])
def test_the_scale_of_the_chart_has_its_half_at_any_height(four, height):
    ticks = [line[: step_chart.AXIS].strip() for line in texts(step_chart.chart(four, 66, height))]
    named = [tick for tick in ticks if tick]
    if height > step_chart.FIFTHS_FROM:
        assert named == ["25.0 ms", "20.0 ms", "15.0 ms", "10.0 ms", "5.0 ms", "0"]
    else:
        assert named == ["25.0 ms", "12.5 ms", "0"]


def test_a_phase_is_named_for_a_slow_rank_only_where_it_holds_a_part_of_that(four):
    """Where the step differs and no phase does, ``data +0.00`` would be no reason."""
    first, second = four.summary.ranks[:2]
    phases, step_ms = first.phases_mean_ms, first.step_time_mean_ms + 3.0
    slower = replace(
        second,
        step_time_mean_ms=step_ms,
        wait_mean_ms=first.wait_mean_ms,
        phases_mean_ms=phases,
    )
    assert standings([first, slower])[1].slow_in == ""
    late = replace(slower, phases_mean_ms={**phases, "data": phases["data"] + 3.0})
    assert standings([first, late])[1].slow_in == "data +3.00"


def test_the_breakdown_degrades_to_a_table_and_to_one_bar(four):
    table = texts(breakdown.draw(four, 60, 4))
    assert table[0].split() == ["phase", "mean", "ms", "p50", "ms", "p95", "ms", "share"]
    bar = texts(breakdown.draw(four, 60, 2, mono=True))
    assert bar[0].count("b") > bar[0].count("f") > bar[0].count("o") > 0 and len(bar[0]) == 60
    assert "■ backward 3" in bar[1] and "■ wait 2" in bar[1]


def test_columns_of_numbers_end_at_the_same_cell(four):
    lines = texts(breakdown.table(four, 60, 9))
    assert len({line.index("%") for line in lines[1:]}) == 1


def test_a_row_is_a_rank_with_its_gpu_and_its_memory(four):
    snapshot = four._replace(findings=(a_finding(rank=2),))
    head, *lines = texts(rank_table.draw(snapshot, 150, 6))
    assert head.split()[:2] == ["rank", "gpu"] and "allocated/of, GiB" in head
    assert [line.split()[0] for line in lines[:2]] == ["0", "1"] and lines[2].startswith("▲   2")
    assert "414/700 W" not in lines[2] and "422/700 W" in lines[2] and "63 °C" in lines[2]
    assert "53.1/80.0" in lines[2] and "━" in lines[2] and "╍" in lines[2] and "┃" in lines[2]
    assert "host" in lines[4] and "% of 8" in lines[4] and "GiB" in lines[4]


def test_own_work_is_compared_with_the_median_rank(four):
    lines = texts(rank_table.draw(four, 150, 6))[1:]
    assert "+34 %" in lines[2] and "data +5." in lines[2]
    for line in (lines[0], lines[1], lines[3]):
        assert "=" in line and "data" not in line


def test_without_a_gpu_memory_is_the_resident_set_and_nobody_apologises(one):
    text = "\n".join(texts(rank_table.draw(one, 118, 5)))
    assert "0.60/32" in text and "CPU 60 s" in text and "driver" not in text


def test_eight_ranks_with_gpus_fit_120_columns_and_keep_what_tells_most(tmp_path):
    snapshot = snapshot_of(tmp_path / "r", ranks=8, gpus=8, slow_rank=5, steps=60)
    lines = texts(rank_table.draw(snapshot, 116, 10))
    assert [line.split()[0] for line in lines[1:9]] == ["0", "1", "2", "3", "4", "5", "6", "7"]
    for name in ("gpu", "util", "power", "temp", "allocated", "own ms", "wait ms", "vs median"):
        assert name in lines[0], name
    narrow = texts(rank_table.draw(snapshot, 56, 10))
    assert "vs median" in narrow[0] and "temp" not in narrow[0]


def test_many_ranks_are_a_heat_map_beside_the_worst(tmp_path):
    snapshot = snapshot_of(tmp_path / "r", ranks=30, slow_rank=7, steps=30)
    rows = rank_table.draw(snapshot, 116, 12, cursor=7)
    text = texts(rows)
    assert text[0].split()[-4:] == ["vs", "median", "slow", "in"] and "data +5." in text[1]
    assert text[1].split()[1:3][0] == "7" or "▲      7" in text[1]
    styles = [style for row in rows[:4] for part, style in row if "▀" in part]
    assert any("accent" in style for style in styles) and any("heat1" in style for style in styles)


@pytest.mark.parametrize("mono", [False, True])
def test_of_many_ranks_the_one_that_a_finding_names_comes_first(tmp_path, mono):
    snapshot = snapshot_of(tmp_path / "r", ranks=30, slow_rank=7, steps=30)
    hang = replace(a_finding("critical"), rank=23)
    rows = rank_table.draw(snapshot._replace(findings=(hang,)), 116, 12, mono=mono)
    listed = [line[-50:].split()[:2] for line in texts(rows)[1:3]]
    assert listed == [["✖", "23"], ["▲", "7"]]
    if mono:
        assert sum("✖" in line[:30] for line in texts(rows)) == 1  # in the map, too
    else:
        assert any("critical" in style for row in rows for part, style in row if "▀" in part)


def test_the_map_has_the_colours_of_its_legend_where_a_finding_names_a_slow_rank(tmp_path):
    snapshot = snapshot_of(tmp_path / "r", ranks=30, slow_rank=7, steps=30)
    rows = rank_table.draw(snapshot._replace(findings=(a_finding("high", rank=7),)), 116, 12)
    styles = [style for row in rows for part, style in row if "▀" in part]
    assert any("heat4" in style for style in styles) and not any("high" in s for s in styles)
    even = rank_table.draw(snapshot._replace(findings=(a_finding("high", rank=8),)), 116, 12)
    assert any("high" in style for row in even for part, style in row if "▀" in part)


def test_memory_without_a_known_total_is_told_alone(four):
    unseen = four._replace(summary=four.summary._replace(hosts=(), gpus=()), devices={})
    text = "\n".join(texts(rank_table.draw(unseen, 116, 10)))
    assert "RAM" in text and "nan" not in text and "/0" not in text


def test_with_room_the_phases_of_each_rank_stand_below_and_the_odd_one_is_marked(four):
    lines = texts(rank_table.draw(four, 118, 20))
    start = next(i for i, line in enumerate(lines) if "data" in line)
    assert "▲6." in lines[start + 3] and "data" in lines[start].split()
    assert "▲" not in lines[start + 1] and "▲" not in lines[start + 4]


def test_ranks_scroll(tmp_path):
    snapshot = snapshot_of(tmp_path, ranks=20, steps=20)
    lines = texts(rank_table.draw(snapshot, 100, 11, first=8))
    assert [line.split()[0] for line in lines[1:-1]] == [str(r) for r in range(8, 17)]


def test_the_header_says_verdict_pace_and_progress(four):
    lines = texts(
        header.draw(four._replace(verdict=four.verdict._replace(headline="all is well")), 118)
    )
    assert "all is well" in lines[0] and "ended, exit 0" in lines[1]
    assert "python train.py --batch 16" in lines[1] and "4 ranks · 4x H100 · box" in lines[1]
    assert lines[2].startswith(" step 400 / 5,000")
    assert "8 %" in lines[2] and "steps/s" in lines[2]


@pytest.mark.parametrize("steps", [7, 1_234, 12_345_678])
def test_a_step_count_is_never_shortened(one, steps):
    line = texts(header.draw(one._replace(summary=one.summary._replace(steps=steps)), 80))[2]
    assert line.startswith(f" step {steps:,} ")


def test_a_recording_says_so_and_where_it_was_made(one):
    lines = texts(header.draw(one._replace(recording="made on 2 CPU cores"), 118))
    assert "recording: made on 2 CPU cores" in lines[1] and "1 rank" in lines[1]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_commands_own_bar_stands_in_for_a_total_and_says_whose_it_is(one, width):
    bar = ProgressBar(599, 2500, "0:42")
    going = running(one, total_steps=None)._replace(bar=bar)
    shown = "\n".join(texts(header.draw(going, width)))
    assert "tqdm 599/2,500  0:42 left" in shown and "eta" not in shown
    told = running(one, total_steps=4000)._replace(bar=bar)
    assert "tqdm" not in "\n".join(texts(header.draw(told, width)))
    standing = running(one, total_steps=None, silent_s=60.0)._replace(bar=bar)
    assert "tqdm" not in "\n".join(texts(header.draw(standing, width)))


def test_the_header_drops_whole_figures_when_it_is_narrow(one):
    line = texts(header.draw(one, 60))[2]
    assert "steps/s" in line and "grad norm" not in line and row_width([(line, "")]) <= 60


def test_the_header_says_how_many_steps_went_by_while_paused(one):
    assert "paused, +123 steps" in texts(header.draw(one, 80, paused_steps=123))[1]


def test_a_step_more_does_not_move_what_stands_beside_it(four):
    places = []
    for steps in (9, 10, 99, 100, 999, 1000, 4999):
        line = texts(header.draw(four._replace(summary=four.summary._replace(steps=steps)), 118))[2]
        places.append((line.index("%"), line.index("steps/s")))
    assert len(set(places)) == 1


def test_findings_show_severity_in_words_and_the_time_to_win(one):
    lines = texts(findings.draw(one._replace(findings=(a_finding(severity="high"),)), 100, 3))
    assert (
        lines[0].startswith("▲ high")
        and "−4.2 ms a step" in lines[0]
        and lines[0].endswith("1.6 h")
    )


def test_no_findings_say_so(one):
    assert texts(findings.draw(one, 80, 3)) == ["Nothing found."]


def test_loss_curve_falls(four):
    lines = texts(loss.draw(loss.loss_of(four), 60, 8))
    assert lines[0].strip().startswith("5.") and "step 0" in lines[-1] and lines[-1].endswith("399")


def test_the_loss_of_the_panel_is_that_of_numerics(tmp_path):
    """A jump of two steps in two thousand is in both, and so are the ends of the scale."""
    folder = write_run(tmp_path / "long", steps=2000, spike_at=1001)
    record = RunRecord.open(folder)
    curve = loss_curve(record)
    assert len(curve.values) < 500 and max(curve.values) == pytest.approx(6.4)
    page = NumericsLoader()(record, empty_summary(folder))
    of_page = next(axis for axis in page.charts if axis.title == "loss")
    panel = texts(loss.draw(curve, 60, 9))
    beside = texts(chart.draw(of_page, 60, 9))
    assert [row[: chart.AXIS] for row in panel] == [row[: chart.AXIS] for row in beside]


def test_the_end_of_a_scale_is_called_the_whole_only_where_it_is_one(four):
    found = texts(history.draw(four.panels["history"], 90, 24))
    scales = [line[:25].strip() for line in found if line.startswith(" " * 14)]
    assert "of 100" in scales, "a share of a core has a whole"
    assert "to 5" in scales and "of 5" not in scales, "MB/s have a highest value only"
    assert not any("#" in scale for scale in scales)


def test_the_history_of_one_gpu_needs_no_words_for_several(tmp_path):
    found = resources(RunRecord.open(write_run(tmp_path / "one", steps=300, gpus=1)))
    names = [track.name for track in found.tracks]
    assert names[:4] == ["GPU", "memory used", "power", "hottest"]


def test_history_shows_the_value_at_the_cursor_in_every_track(four):
    found = four.panels["history"]
    names = [track.name for track in found.tracks]
    of_gpus = ["GPUs, mean", "fullest GPU", "power, sum", "hottest GPU"]
    assert names == [*of_gpus, "CPU", "RAM", "disk"], "what stands for four GPUs says how"
    newest, first = (texts(history.draw(found, 90, 22, cursor=c)) for c in (None, 0))
    gpu = found.tracks[0].values
    assert f"{gpu[-1]:,.0f} %" in newest[0] and f"{gpu[0]:,.0f} %" in first[0]
    assert all(line[history.LABEL + history.FIGURE] == "│" for line in first[:-1])
    assert newest[-1].split()[0] == "0:00"


def test_tiles_show_figures_and_turn_red_on_what_is_critical(four):
    text = "\n".join(texts(tiles.draw(four, 120)))
    for words in ("Step, mean", "p95", "samples/s", "Useful", "Loss", "63.2 of 80.0 GiB"):
        assert words in text, words
    hung = running(four, silent_s=246.0, steps_per_s=0.0, samples_per_s=0.0, tokens_per_s=0.0)
    hung = hung._replace(findings=(a_finding(severity="critical"),))
    rows = tiles.draw(hung, 120)
    assert ("NO STEP FOR 4:06", "bold critical") in rows[1] and "/s" not in row_text(rows[1])
    assert rows[0][0] == ("╭─", "critical")


def test_the_loss_tile_says_since_when_there_is_no_number(four):
    broken = [replace(rank, not_finite="NaN") for rank in four.summary.ranks]
    nan = four._replace(
        summary=four.summary._replace(ranks=tuple(broken)),
        findings=(a_finding("critical", title="loss is NaN at step 120 on rank 0 and stays so"),),
    )
    assert ("NaN since 120", "bold critical") in tiles.draw(nan, 120)[1]


def test_no_share_of_the_present_is_claimed_while_nothing_moves(four):
    useful = four._replace(useful=Useful(0.4))
    hung = useful._replace(summary=useful.summary._replace(silent_s=40.0))
    assert ("40 % while it moved", "muted") in tiles.draw(hung, 120)[1]
    assert ("40 %", "bold text") in tiles.draw(useful, 120)[1]


def test_the_band_ends_in_what_the_fix_is_worth(four):
    found = four._replace(findings=(a_finding(recoverable_ms_per_step=5.0),))
    found = found._replace(verdict=Verdict("attention", found.findings[0].title))
    row = header.band(found, 120)
    assert row_width(row) == 120 and {style.partition("/")[2] for _, style in row} == {"band-high"}
    assert "INPUT-BOUND" in row_text(row)
    assert row_text(row).rstrip().endswith("Fix: 21.0 → 16.0 ms a step, 1.31x")
    assert row_text(header.band(found, 80)).rstrip().endswith("Fix: 1.31x")
    assert "data wait takes 34 % of each step, 4.2 ms" in row_text(header.band(found, 64))


def test_the_count_of_other_findings_gives_way_to_what_the_fix_is_worth(four):
    found = four._replace(findings=(a_finding(recoverable_ms_per_step=5.0),))
    headline = found.findings[0].title
    verdict = Verdict("attention", headline + " (+1 more)")
    narrow = len(headline) + 11
    row = row_text(header.band(found._replace(verdict=verdict), narrow))
    assert row.split() == ["▲", *headline.split(), "1.31x"]
    assert "(+1 more)" in row_text(header.band(found._replace(verdict=verdict), 120))
    tight = row_text(header.band(found._replace(verdict=verdict), 102))
    assert "(+1" not in tight and tight.rstrip().endswith("Fix: 21.0 → 16.0 ms a step, 1.31x")


def test_what_is_damaged_and_how_many_ranks_there_are_come_before_a_bar(four):
    """At 120 columns a bar of progress took the place of rows that were left out of the record."""
    damaged = four._replace(damage="56,320 damaged rows left out")
    first_two = texts(header.draw_above_tiles(damaged, 120))
    assert "▲ 56,320 damaged rows left out   4 ranks" in first_two[1]
    assert "━" not in first_two[1] and "━" in texts(header.draw_above_tiles(damaged, 200))[1]
    assert "56,320 damaged rows left out" in texts(header.draw(damaged, 60))[1]


def test_before_the_record_is_read_nothing_is_said_to_be_missing(four):
    """An ended run of 1,024 ranks was ``starting``, waiting for a first step, while it opened."""
    unread = first_snapshot(four.run_dir)
    panels = breakdown.Breakdown(), findings.Findings(), ranks.Ranks(), history.HistoryPanel()
    shown = [*header.draw(unread, 118), *header.draw_above_tiles(unread, 118)]
    shown += tiles.draw(unread, 118)
    for panel in panels:
        panel.set_reactive(type(panel).snapshot, unread)
        shown += panel.rows(60, 10)
    text = "\n".join(texts(shown))
    assert "opening the record" in text and text.count("Reading the record.") == 1
    for words in ("starting", "first", "yet", "Judged", "twice", "step 0", "not known"):
        assert words not in text


@pytest.mark.parametrize("waits_ms", [(0.0, 2.0), (2.0, 0.0), (math.nan, 2.0)])
def test_the_phases_of_ranks_stand_beside_each_other_where_only_one_waits(four, waits_ms):
    """The table looked for ``comm`` or ``wait`` at a rank that had the other one, and failed."""
    compared = tuple(
        replace(rank, wait_mean_ms=wait_ms)
        for rank, wait_ms in zip(four.summary.ranks, waits_ms, strict=False)
    )
    heading, *lines = texts(phase_table.draw(compared, 120))
    assert "wait" in heading and "comm" not in heading and len(lines) == 2


def test_a_record_that_cannot_be_read_is_not_waited_for(four):
    for snapshot in (first_snapshot(four.run_dir), four):
        row = row_text(header.band(snapshot._replace(problem="run.json: cut off"), 80))
        assert row.split() == ["▲", "ATTENTION", "run.json:", "cut", "off"]


def test_a_loss_that_is_nan_leaves_its_curve_blank_from_there_on(four):
    summary = four.summary
    broken = (replace(summary.ranks[0], not_finite="NaN"), *summary.ranks[1:])
    curve = Curve(tuple(range(0, 100, 2)), tuple(3.0 - i / 50 for i in range(50)))
    nan = four._replace(
        summary=summary._replace(ranks=broken, steps=400),
        panels={**four.panels, "loss": curve},
        findings=(a_finding("critical", title="loss is NaN at step 100 on rank 0 and stays so"),),
    )
    panel = loss.Loss()
    assert row_text(panel.note(nan)) == "NaN since 100"
    *plot, axis = texts(panel.content(nan, 88, 8))
    assert axis.startswith(" " * chart.AXIS + "step 0") and axis.endswith("399")
    assert max(len(line.rstrip()) for line in plot) in range(26, 30), "a quarter of 80 cells"
    assert len(texts(tiles.draw(nan, 120))[2].split("││")[3].strip("│ ")) < 12


def test_footer_shows_whole_keys_only():
    assert row_text(footer.draw(footer.places("live", True, 31), "live")).split() == [
        "q",
        "quit",
        "?",
        "help",
        "f",
        "findings",
        "…",
    ]
    assert "seek" in row_text(footer.draw(footer.places("replay", False, 200), "replay"))
    assert "seek" not in row_text(footer.draw(footer.places("live", True, 200), "live"))
    assert "space play/pause" in row_text(
        footer.draw(footer.places("replay", False, 200), "replay")
    )


def test_a_key_of_the_footer_says_what_it_does_where_the_focus_is():
    elsewhere = row_text(footer.draw(footer.places("live", True, 200, panel="ranks"), "live"))
    assert "w all ranks" in elsewhere
    in_findings = footer.places("live", True, 200, panel="findings")
    assert "w worst" in row_text(
        footer.draw(footer.places("live", True, 200, panel="findings"), "live")
    )
    assert [p.action.screen for p in in_findings if p.action and p.action.key == "w"] == [
        "findings"
    ]
    seeking = row_text(footer.draw(footer.places("replay", False, 200, panel="history"), "replay"))
    assert "← → seek" in seeking  # a replay's arrows seek there too, unless it is zoomed


@pytest.mark.parametrize("screen", ["main", *SCREENS])
@pytest.mark.parametrize("zoomed", [False, True])
def test_help_stays_in_every_footer_and_a_sign_tells_what_is_left_out(screen, zoomed):
    here = {action.id for action in in_footer(screen, "live", "output", zoomed=zoomed)}
    for width in (60, 80, 120, 300):
        keys = footer.places("live", False, width, screen, "output", zoomed=zoomed)
        shown = {key.action.id for key in keys if key.action}
        assert "help" in shown or "help" not in here
        assert max((key.end for key in keys), default=0) <= width - 1
        text = row_text(footer.draw(keys, "live"))
        assert text.endswith(" …") == any(key.action is None for key in keys)


def test_a_zoomed_panel_says_how_to_leave_it_and_what_its_keys_do():
    def shown(panel, mode="live"):
        keys = footer.places(mode, False, 300, panel=panel, zoomed=True)
        return row_text(footer.draw(keys, mode))

    assert shown("output").startswith(" esc back   W wrap   < > sideways   ↑ ↓ scroll")
    assert shown("breakdown").startswith(" esc back   q quit") and "zoom" not in shown("loss")
    assert shown("history", "replay").count("← →") == 1 == shown("findings").count(" w ")


def test_the_position_bar_has_its_dot_where_the_replay_stands():
    row = footer.position_bar(Position(50, 0, 100, 2.0, True), 80)
    text = row_text(row)
    assert row_width(row) == 80 and "▶  2x" in text and 0.4 < text.index("●") / 80 < 0.6


def test_a_finding_shows_its_rent_where_there_is_room():
    finding = a_finding(recoverable_usd=12.5)
    assert row_text(findings.line(finding, 120)[0]).rstrip().endswith("$12.50")
    assert "$" not in row_text(findings.line(finding, 78)[0]) and "$" not in row_text(
        findings.line(a_finding(), 120)[0]
    )


def running(snapshot, **more):
    """The same run while it goes on."""
    return snapshot._replace(
        summary=snapshot.summary._replace(
            state="running", ending=Ending("running", "running"), **more
        )
    )


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_run_that_stands_still_shows_for_how_long_and_no_rates(one, width):
    hung = running(one, silent_s=246.0, steps_per_s=0.0, samples_per_s=0.0, tokens_per_s=0.0)
    line = texts(header.draw(hung, width))[2]
    assert "NO STEP FOR 4:06" in line and "/s" not in line
    evaluating = running(
        one, silent_s=40.0, steps_per_s=0.0, samples_per_s=0.0, tokens_per_s=0.0, doing="evaluating"
    )
    line = texts(header.draw(evaluating, width))[2]
    assert "evaluating for 0:40" in line and "NO STEP" not in line
    critical = hung._replace(findings=(a_finding(severity="critical"),))
    styles = dict(header.draw(critical, width)[2])
    assert styles["NO STEP FOR 4:06"] == "bold critical"


def test_the_step_time_of_a_run_that_stands_is_called_that_before(one):
    panel = breakdown.Breakdown()
    standing = running(one, silent_s=60.0)
    assert panel.heading(standing).endswith(" before the stop")
    assert "before" not in panel.heading(running(one, silent_s=0.0))


def test_a_step_is_the_same_mean_on_a_small_screen_as_in_the_tile(one):
    ranks = tuple(replace(rank, step_time_mean_ms=27.9) for rank in one.summary.ranks)
    shown = one._replace(summary=one.summary._replace(ranks=ranks, step_time_p50_ms=22.0))
    small = row_text(breakdown.Breakdown().note(shown))
    assert small.startswith("step, mean 27.9 ms  p95 ")
    assert "27.9 ms" in texts(tiles.draw(shown, 120))[1]


def test_rates_after_the_end_are_called_means(one):
    assert "steps/s mean" in texts(header.draw(one, 118))[2]
    assert "mean" not in texts(header.draw(running(one), 118))[2]


def test_a_loss_that_is_no_number_stays_in_the_header(four):
    known = four.summary.ranks
    broken = (*known[:2], replace(known[2], not_finite="NaN"), known[3])
    row = header.draw(four._replace(summary=four.summary._replace(ranks=broken)), 118)[2]
    assert ("NaN    ", "bold critical") in row and "loss NaN" in row_text(row)


@pytest.mark.parametrize(
    ("kind", "words", "health", "headline", "first"),
    [
        (
            "stopped",
            "stopped by you",
            "stopped",
            "stopped by you at step 383; forward 60 %",
            "■ STOPPED  by you at step 383",
        ),
        (
            "stopped",
            "stopped by you",
            "critical",
            "stopped by you at step 80; hang: rank 1 is stuck at x.py:8",
            "✖ CRITICAL  hang: rank 1",
        ),
        (
            "finished",
            "ended, exit 0",
            "critical",
            "ended: 800 steps, exit 0; loss is NaN",
            "✖ CRITICAL  loss is NaN",
        ),
        (
            "failed",
            "ended, exit 1",
            "failed",
            "ended: 80 steps, exit 1; rank 0 fails",
            "✖ FAILED  rank 0 fails",
        ),
    ],
)
def test_the_first_line_says_how_a_run_ended(one, kind, words, health, headline, first):
    summary = one.summary._replace(ending=Ending(kind, words))
    line, second, _ = texts(
        header.draw(one._replace(summary=summary, verdict=Verdict(health, headline)), 118)
    )
    assert line.strip().startswith(first) and f"{words} · " in second


def test_until_the_first_step_the_panel_is_a_checklist():
    names = [("import torch", 1, 4), ("model", 5, 6), ("process group", 6, None)]
    events = tuple(
        {
            "name": name,
            "began_ns": START_NS + began * 10**9,
            "ended_ns": None if ended is None else START_NS + ended * 10**9,
        }
        for name, began, ended in names
    )
    start = Starting(START_NS, events, {"import torch": 2, "model": 2, "process group": 1}, 2)
    rows = checklist(start, START_NS + 20 * 10**9, 76, 10)
    texts = [row_text(row) for row in rows]
    assert [text.split("  ")[0] for text in texts] == [
        "✓ other before import torch",
        "✓ import torch",
        "✓ other before model",
        "✓ model",
        "○ process group",
        "· first batch",
        "· first forward",
        "· first step",
    ]
    later = start._replace(events=events[:2])
    assert row_text(checklist(later, START_NS + 20 * 10**9, 76, 10)[4]).startswith(
        "○ code after model  "
    )
    assert "14 s  1 of 2" in texts[4] and "3.0 s  2 of 2" in texts[1]
    assert all(row_width(row) <= 76 for row in rows)
    assert [row_text(row) for row in checklist(start, START_NS + 20 * 10**9, 76, 2)] == texts[3:5]


def test_from_the_first_second_on_the_start_says_what_it_is_at_and_what_comes(one):
    start = Starting(START_NS, (), {}, 0)
    rows = [row_text(row) for row in checklist(start, START_NS + 2 * 10**9, 66, 10)]
    assert rows[0].startswith("○ python, imports  ") and "2.0 s" in rows[0]
    assert rows[1:] == ["· model", "· first batch", "· first forward", "· first step"]
    summary = empty_summary(("python", "train.py"), START_NS + 2 * 10**9, START_NS)
    beginning = one._replace(summary=summary, panels={"breakdown": start})
    text = "\n".join(texts(tiles.draw(beginning, 120)))
    assert "python, imports  2.0 s" in text and "CPU" in text and "Loss" not in text
    over = beginning._replace(summary=summary._replace(state="ended"))
    assert "no step yet" in "\n".join(texts(tiles.draw(over, 120)))
    for width in (60, 120):
        head = "\n".join(texts(header.draw(beginning, width)))
        assert "no step yet" in head and "step 0" not in head


def test_what_each_milestone_was_reached_by_is_never_cut():
    events = ({"name": "model", "began_ns": START_NS, "ended_ns": START_NS + 10**9},)
    start = Starting(START_NS, events, {"model": 2}, 2)
    for width in (30, 40, 56, 66, 76, 120):
        first = row_text(checklist(start, START_NS + 2 * 10**9, width, 5)[0])
        assert "2 of 2" in first and len(first) <= width
        assert ("2 of 2 processes" in first) == (width >= 56)


def test_while_a_run_stands_the_first_line_is_about_that_alone(one):
    summary = one.summary._replace(
        state="running", exit_code=None, ended_ns=None, ending=Ending("running", "running")
    )
    serious = [a_finding("high")]
    standing = summary._replace(silent_s=26.9, step_time_p50_ms=29.0)
    shown = one._replace(
        summary=standing, verdict=verdict(standing, serious), findings=tuple(serious)
    )
    line = row_text(header.band(shown, 118))
    assert "no step for 26 s, where one took 29 ms" in line and "Fix" not in line
    evaluating = standing._replace(doing="evaluating")
    assert verdict(evaluating, serious) == verdict(summary, serious)
    hang = [a_finding("critical"), *serious]
    assert verdict(standing, hang).health == "critical"


def test_the_loss_falls_or_rises_only_where_noise_cannot_be_all(four):
    """The demo's loss falls all the way, and its last twentieth lay above the one before."""
    noise = [0.3 * math.sin(7.1 * i * i) for i in range(200)]
    falling = tuple(3.0 - i / 100 + wave for i, wave in enumerate(noise))
    level = tuple(2.0 + wave for wave in noise)
    words = []
    for values in (falling, falling[::-1], level):
        panels = {**four.panels, "loss": Curve(values=values)}
        words.append("\n".join(texts(tiles.draw(four._replace(panels=panels), 120))))
    assert "falling" in words[0] and "rising" in words[1]
    assert "falling" not in words[2] and "rising" not in words[2]


def line_of(step_ms, steps):
    """A timeline whose bins hold so many steps of so many milliseconds."""
    phases = tuple((ms, *[0.0] * 9) for ms in step_ms)
    return Timeline(0.25, phases, (math.nan,) * len(phases), tuple(steps), of_ranks=1)


def test_a_slow_step_does_not_flatten_the_chart_however_wide_it_is(one):
    wide = line_of([5000.0] * 20 + [10.0] * 20, [0.05] * 20 + [25.0] * 20)
    rows = texts(step_chart.chart(one._replace(timeline=wide), 48, 10))
    assert rows[0].strip().startswith("12.0 ms") and rows[0].count("↑") == 20
    assert step_chart._typical_high(line_of([900.0, 10.0, 11.0, 12.0], [1.0] * 4)) < 40
    assert step_chart._typical_high(line_of([10.0, 11.0, 12.0], [1.0] * 3)) == 12.0


def test_with_room_a_finding_says_why(one):
    finding = a_finding("high", fix="pin the memory", evidence="data 4.2 ms of 12.4 ms a step")
    shown = one._replace(findings=(finding,))
    assert "why: data 4.2 ms of 12.4 ms a step" in "\n".join(texts(findings.draw(shown, 70, 10)))
    assert "why" not in "\n".join(texts(findings.draw(shown, 70, 3)))
    for height in range(1, 14):
        assert len(findings.draw(shown, 40, height)) <= max(height, 2)


def test_the_first_finding_tells_its_whole_fix_before_the_others_tell_any(one):
    """One third of the panel stood empty below a fix that ended in dots."""
    worst = a_finding("critical", fix="look at the batch of that step " * 4, evidence="")
    info = a_finding("info", None, fix="move what runs beside it " * 3, evidence="")
    shown = one._replace(findings=(worst, info, info))
    rows = texts(findings.draw(shown, 48, 14))
    assert len(rows) == 14 and rows[6].strip() == "that step", "the last words of the fix"
    assert sum(row.endswith("…") for row in rows) == 1, "one of the others has a row left"
    shown = one._replace(findings=(worst, info))
    assert not any("…" in row for row in texts(findings.draw(shown, 48, 14)))


def test_titles_that_are_cut_use_the_rows_that_are_left(one):
    high = a_finding("high", title="rank 5 gets its batches late: the others lose 112.7 ms a step")
    shown = one._replace(findings=(high, a_finding("info", title="10 % of the time")))
    rows = texts(findings.draw(shown, 60, 3))
    assert "the others lose" in rows[1] and "10 %" in rows[2]
    assert [row.rstrip().endswith("−4.2 ms a step") for row in rows] == [True, False, True]
    assert findings.Findings().note(one._replace(findings=(high,)))[0][0] == "1 finding"


def test_a_run_that_stands_says_so_everywhere(four):
    rows = [{"training": True, "frames": ["load loader.py:7", "main train.py:9"]}]
    summary = four.summary._replace(state="running", silent_s=60.0)
    dump = Notice(summary.now_ns - 10**9, "stack_dump", 2, {"threads": rows})
    stands = four._replace(summary=summary, notices=(dump,), findings=(a_finding("critical"),))
    assert ("■ standing", "critical") in header.draw(stands, 118)[1]
    head, *lines = texts(rank_table.draw(stands, 118, 6))
    assert "stands in" in head and "vs median" not in head and "load loader.py:7" in lines[2]
    before = dump._replace(t_ns=summary.now_ns - 61 * 10**9)
    assert "vs median" in texts(rank_table.draw(stands._replace(notices=(before,)), 118, 6))[0]


def test_the_useful_share_says_when_waits_for_a_core_are_left_out(four):
    queued = four._replace(useful=Useful(0.04, queued=0.1))
    assert "without waits for a core" in texts(tiles.draw(queued, 300))[1]
    assert "4 %, w/o core waits" in texts(tiles.draw(queued, 120))[1]
    assert "4 % of the time " in texts(tiles.draw(queued._replace(useful=Useful(0.04)), 120))[1]


def test_a_minute_of_samples_takes_no_more_cells_than_it_has_dots(four):
    head = texts(rank_table.draw(four, 290, 6))[0]
    assert head.index("power") - head.index("util") == rank_columns.TREND_CELLS + 2
    spacious = texts(rank_table.draw(four, 290, 20, cursor=2))
    assert spacious[-2].strip() == "" and spacious[-1].startswith("host")
    chosen = [
        row for row in rank_table.draw(four, 290, 20, cursor=2) if row and "/cursor" in row[0][1]
    ]
    assert len(chosen) == 2, "in both tables"


def test_the_map_of_ranks_says_where_they_are_and_what_its_glyphs_mean(tmp_path):
    many = snapshot_of(tmp_path / "many", ranks=64, slow_rank=17, steps=30)
    first, second, *_ = rows = texts(rank_table.draw(many, 118, 12, mono=True))
    assert first.startswith(" 0 ▒") and second.startswith("16 ▒▒▒▲"), "two rows of 8, 3 cells each"
    assert [row.split()[-6] for row in rows if "data +" in row] == ["17"]
    words = row_text(rank_map.legend(mono=True))
    glyphs = [glyph for _, glyph in rank_map.HEATS]
    assert len(set(map(plain, glyphs))) == 5 and all(glyph in words for glyph in glyphs)


def test_of_two_ranks_each_is_compared_with_the_other(tmp_path):
    two = snapshot_of(tmp_path / "two", ranks=2, gpus=0, slow_rank=1)
    head, first, second = texts(rank_table.draw(two, 150, 4))[:3]
    assert "vs peer" in head and "vs median" not in head
    assert "data +5.00" in second and "+34 %" in second  # as the finding says
    assert "−25 %" in first
    assert [rank_map.against_median(ratio) for ratio in (1.0, 0.5, 9.5, 10.53, 2000.0)] == [
        "=", "−50 %", "+850 %", "11x", "2,000x",
    ]  # fmt: skip


def test_a_first_line_without_room_leaves_out_how_many_more_there_are(one):
    title = "rank 1 is stuck at hang.py:9 <module>: it waits for a lock"
    shown = one._replace(verdict=Verdict("critical", f"{title} (+1 more)"), findings=())
    narrow, wide = row_text(header.band(shown, 80)), row_text(header.band(shown, 120))
    assert title in narrow and "(+1" not in narrow
    assert f"{title} (+1 more)" in wide
