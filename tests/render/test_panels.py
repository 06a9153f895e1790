"""What the panels draw, as text, without an app."""

from dataclasses import replace
from pathlib import Path

import pytest
from tui_support import START_NS, a_finding, write_run

from gputop.feed.build import build
from gputop.feed.snapshot import Position, first_snapshot
from gputop.render.rows import row_text, row_width
from gputop.widgets import breakdown, findings, footer, header, loss, memory, meters, ranks
from gputop_analysis.overview import Ending, Verdict
from gputop_probes.record.reader import RunRecord

NOW_NS = START_NS + 60 * 10**9


def snapshot_of(folder, **kinds):
    return build(RunRecord.open(write_run(folder, **kinds)), (), 500, None, NOW_NS, ended=True)


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


DRAWS = {
    "header": lambda s, w, h: header.draw(s, w),
    "breakdown": breakdown.draw,
    "breakdown mono": lambda s, w, h: breakdown.draw(s, w, h, mono=True),
    "memory": memory.draw,
    "ranks": ranks.draw,
    "meters": meters.draw,
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


def test_the_breakdown_names_the_phases_with_their_shares(four):
    text = "\n".join(texts(breakdown.draw(four, 118, 12)))
    for name, share in (
        ("data", "15 %"),
        ("forward", "20 %"),
        ("backward", "53 %"),
        ("optimizer", "6 %"),
    ):
        assert any(name in line and share in line for line in text.splitlines()), name
    assert "eval" not in text, "phases that take no time are left out"


def test_the_breakdown_degrades_to_a_table_and_to_one_bar(four):
    table = texts(breakdown.draw(four, 60, 8))
    assert table[0].split() == ["phase", "mean", "ms", "p50", "ms", "p95", "ms", "share"]
    bar = texts(breakdown.draw(four, 60, 2, mono=True))
    assert bar[0].count("b") > bar[0].count("f") > bar[0].count("o") > 0 and len(bar[0]) == 60
    assert bar[1].startswith("■ backward 53 %")


def test_columns_of_numbers_end_at_the_same_cell(four):
    lines = texts(breakdown.table(four, 60, 9))
    assert len({line.index("%") for line in lines[1:]}) == 1


def test_memory_names_allocated_used_peak_and_total_of_each_gpu(four):
    lines = texts(memory.draw(four, 90, 6))
    assert lines[0].split() == ["GPU", "alloc", "reserved", "used", "peak", "total"]
    assert lines[3].split()[:3] == ["2", "rank", "2"]
    assert lines[3].split()[-5:] == ["53.1", "66.1", "68.0", "63.2", "80.0"]


def test_memory_without_a_gpu_shows_the_resident_set_and_says_why(one):
    lines = texts(memory.draw(one, 70, 5))
    assert lines[0].split() == ["rank", "rss", "peak", "host"]
    assert lines[1].split()[-3:] == ["0.60", "0.60", "32.0"]
    assert "no NVIDIA driver here" in lines[2]


def test_ranks_show_the_wait_and_mark_the_rank_of_a_finding(four):
    lines = texts(ranks.draw(four._replace(findings=(a_finding(rank=2),)), 118, 6))
    figures = [line.split() for line in lines[1:]]
    assert [row[0] for row in figures] == ["0", "1", "2", "3"]
    assert "▲" in lines[3] and "▲" not in lines[1]
    assert float(figures[2][4]) == 1.1 and float(figures[0][3]) == 6.1  # comm is waiting too


def test_with_room_the_phases_of_each_rank_stand_below_and_the_odd_one_is_marked(four):
    lines = texts(ranks.draw(four, 118, 20))
    start = next(i for i, line in enumerate(lines) if "data" in line)
    assert "▲6." in lines[start + 3] and "data" in lines[start].split()
    assert "▲" not in lines[start + 1] and "▲" not in lines[start + 4]


def test_many_ranks_scroll(tmp_path):
    snapshot = snapshot_of(tmp_path, ranks=64, steps=20)
    lines = texts(ranks.draw(snapshot, 100, 11, first=50))
    assert [line.split()[0] for line in lines[1:]] == [str(r) for r in range(50, 60)]


def test_one_rank_gets_a_strip_chart_with_its_scale(one):
    lines = texts(ranks.draw(one, 80, 5))
    assert lines[0].startswith("20.0 ms") and lines[-1].strip().startswith("0")
    assert "█" in lines[-1]


def test_a_slow_column_is_coloured_against_the_median(four):
    recent = four.recent._replace(
        rank_wall_ms={0: (10.0, 10.0, 30.0, float("nan"))}, median_ms=10.0
    )
    assert ranks.grid_row(recent, 0, 9) == [("▇▇", "heat1"), ("▇", "heat4"), ("·", "track")]
    assert row_text(ranks.grid_row(recent, 0, 9, mono=True)) == "▒▒█·"


def test_the_header_says_verdict_pace_and_progress(four):
    lines = texts(
        header.draw(four._replace(verdict=four.verdict._replace(headline="all is well")), 118)
    )
    assert "all is well" in lines[0] and "ended, exit 0" in lines[0]
    assert "python train.py --batch 16" in lines[1] and "4 ranks · 4 GPUs · box" in lines[1]
    assert lines[2].startswith(" step 400 / 5,000")
    assert "8 %" in lines[2] and "steps/s" in lines[2]


@pytest.mark.parametrize("steps", [7, 1_234, 12_345_678])
def test_a_step_count_is_never_shortened(one, steps):
    line = texts(header.draw(one._replace(summary=one.summary._replace(steps=steps)), 80))[2]
    assert line.startswith(f" step {steps:,} ")


def test_a_recording_says_so_and_where_it_was_made(one):
    lines = texts(header.draw(one._replace(recording="made on 2 CPU cores"), 118))
    assert "recording: made on 2 CPU cores" in lines[1] and "1 rank" in lines[1]


def test_the_header_drops_whole_figures_when_it_is_narrow(one):
    line = texts(header.draw(one, 60))[2]
    assert "steps/s" in line and "grad norm" not in line and row_width([(line, "")]) <= 60


def test_the_header_says_how_many_steps_went_by_while_paused(one):
    assert "paused, +123 steps" in texts(header.draw(one, 80, paused_steps=123))[0]


def test_a_step_more_does_not_move_what_stands_beside_it(four):
    places = []
    for steps in (9, 10, 99, 100, 999, 1000, 4999):
        line = texts(header.draw(four._replace(summary=four.summary._replace(steps=steps)), 118))[2]
        places.append((line.index("%"), line.index("steps/s")))
    assert len(set(places)) == 1


def test_findings_show_severity_in_words_and_the_time_to_win(one):
    lines = texts(findings.draw(one._replace(findings=(a_finding(severity="high"),)), 100, 3))
    assert (
        lines[0].startswith("▲ high") and "4.20 ms/step" in lines[0] and lines[0].endswith("1.6 h")
    )


def test_no_findings_say_so(one):
    assert texts(findings.draw(one, 80, 3)) == ["Nothing found."]


def test_loss_curve_falls(four):
    lines = texts(loss.draw(loss.loss_of(four), 60, 8))
    assert lines[0].strip().startswith("5.") and "step 0" in lines[-1] and lines[-1].endswith("399")


def test_meters_show_gpu_and_host(four):
    text = "\n".join(texts(meters.draw(four, 118, 8)))
    assert "/ 700 W" in text and "/ 1,980 MHz" in text and "% of 8 cores" in text and "GiB" in text


def test_footer_shows_whole_keys_only():
    assert row_text(footer.draw("live", True, 30)).split() == [
        "q",
        "quit",
        "?",
        "help",
        "f",
        "findings",
    ]
    assert "seek" in row_text(footer.draw("replay", False, 200))
    assert "seek" not in row_text(footer.draw("live", True, 200))


def test_the_position_bar_has_its_dot_where_the_replay_stands():
    row = footer.position_bar(Position(50, 0, 100, 2.0, True), 80)
    text = row_text(row)
    assert row_width(row) == 80 and "▶ 2x" in text and 0.4 < text.index("●") / 80 < 0.6


def test_a_finding_shows_its_rent_where_there_is_room():
    finding = a_finding(recoverable_usd=12.5)
    assert row_text(findings.line(finding, 120)).rstrip().endswith("$12.50")
    assert "$" not in row_text(findings.line(finding, 78)) and "$" not in row_text(
        findings.line(a_finding(), 120)
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
            "■ stopped  by you at step 383",
        ),
        (
            "stopped",
            "stopped by you",
            "critical",
            "stopped by you at step 80; hang: rank 1 is stuck at x.py:8",
            "✖ critical  hang: rank 1",
        ),
        (
            "finished",
            "ended, exit 0",
            "critical",
            "ended: 800 steps, exit 0; loss is NaN",
            "✖ critical  loss is NaN",
        ),
        (
            "failed",
            "ended, exit 1",
            "failed",
            "ended: 80 steps, exit 1; rank 0 fails",
            "✖ failed  rank 0 fails",
        ),
    ],
)
def test_the_first_line_says_how_a_run_ended(one, kind, words, health, headline, first):
    summary = one.summary._replace(ending=Ending(kind, words))
    line = texts(
        header.draw(one._replace(summary=summary, verdict=Verdict(health, headline)), 118)
    )[0]
    assert line.strip().startswith(first) and f"{words} · " in line
