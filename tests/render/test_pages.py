"""What the pages draw, as text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tui_support
from tui_support import START_NS, a_finding, a_proof, write_run

from gputop import palette
from gputop.app.theme import variables
from gputop.feed.budget import BudgetLoader
from gputop.feed.build import build, by_worth
from gputop.feed.evidence import EvidenceLoader, FindingDetails
from gputop.feed.numerics import NumericsLoader
from gputop.feed.plots import Bar, Bars, Chart, Columns, Listing
from gputop.feed.ranks import RanksLoader
from gputop.pages import budget, evidence, numerics, ranks
from gputop.render.rows import row_text, row_width
from gputop.widgets import plots
from gputop_analysis.budget import LINES
from gputop_analysis.findings.registry import CATALOGUE
from gputop_analysis.model import Input
from gputop_probes.record.reader import RunRecord


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages") / "run"
    return RunRecord.open(write_run(folder, ranks=4, gpus=4, slow_rank=2, spike_at=250))


@pytest.fixture(scope="module")
def snapshot(record):
    return build(
        record,
        (a_finding(), a_finding("medium", None, id="CR01")),
        window_steps=500,
        now_ns=START_NS + 60 * 10**9,
        ended=True,
    )


def texts(rows):
    return [row_text(row) for row in rows]


@pytest.mark.parametrize("size", [(198, 45), (118, 34), (78, 18), (40, 8)])
def test_no_page_is_wider_than_the_screen(record, snapshot, size):
    page = RanksLoader()(record, snapshot)
    rows = budget.draw(BudgetLoader()(record, snapshot), *size)
    rows += numerics.draw(NumericsLoader()(record, snapshot), *size)
    rows += evidence.draw(EvidenceLoader("IN01", 2)(record, snapshot), *size)
    rows += ranks.headline(page, size[0]) + ranks.table(page, [0, 1, 2], size[0], "wait", cursor=0)
    rows += ranks.detail(page, 0, size[0], 9) if size[0] > 60 else []
    assert max(row_width(row) for row in rows) <= max(size[0], 50)


def test_a_step_that_takes_long_is_told_where_no_number_jumps(tmp_path, monkeypatch):
    """Its mark in the chart is no step: it has a unit."""
    usual = tui_support._phases_of

    def slow(rank, step, *more):
        return {**usual(rank, step, *more), **({"other": 400.0} if step == 250 else {})}

    monkeypatch.setattr(tui_support, "_phases_of", slow)
    page = NumericsLoader()(RunRecord.open(write_run(tmp_path / "run", steps=400)), None)
    told = texts(numerics.in_words(page, 80, 3))[-1]
    assert told.startswith("● only step time jumps: 4") and told.endswith(" ms at step 250")
    marks = [mark.label for axis in page.charts if axis.title == "step time" for mark in axis.marks]
    assert len(marks) == 1 and marks[0] in told
    quiet = replace(page, beside="")
    assert texts(numerics.in_words(quiet, 80, 3))[-1].startswith("● nothing jumps")


def test_the_lines_of_the_waterfall_follow_each_other_and_add_up(record, snapshot):
    page = BudgetLoader()(record, snapshot)
    head, *lines, total = texts(budget.waterfall(page.budget, 118, 0, mono=True))
    assert head.split() == ["ms", "a", "step", "share"] and total.split()[-2:] == ["100", "%"]
    figures = [float(line[24:35]) for line in lines if "–" not in line[24:35]]
    assert sum(figures) == pytest.approx(float(total.split()[2]), abs=0.06)
    starts = [len(line) - len(line.lstrip()) for line in lines]
    assert starts == [0] * len(LINES)
    ends = [len(line.rstrip()) for line in lines if "–" not in line[24:35]]
    assert ends == sorted(ends)


@pytest.mark.parametrize("height", [14, 15, 18, 30])
@pytest.mark.parametrize("chosen", [0, len(LINES) - 2])
def test_a_small_budget_leaves_out_lines_without_a_value_and_not_the_sum(
    record, snapshot, height, chosen
):
    page = BudgetLoader()(record, snapshot)
    title = list(LINES.values())[chosen].title
    lines = texts(budget.draw(page, 58, height, chosen))[:height]
    assert any(line.startswith("  wall time") for line in lines)
    assert any(line[2:].startswith(title) for line in lines)
    assert not lines[-1].startswith(f"── {title}")
    for name, line in LINES.items():
        if page.budget.lines_ns[name] > 0:
            assert any(row[2:].startswith(line.title) for row in lines)


def test_lines_of_the_budget_differ_in_the_sixteen_colours():
    ansi = variables(dark=True, ansi=True)
    names = ("data_stall", "core_wait", "straggler_wait", "communication")
    styles = [palette.BUDGET[name].style for name in names]
    colours = [ansi.get(f"role-{style}", ansi.get(f"phase-{style}")) for style in styles]
    assert len(set(colours)) == len(names)


def test_one_rank_is_compared_with_none(tmp_path, snapshot):
    one = RanksLoader()(RunRecord.open(write_run(tmp_path / "run", ranks=1, gpus=0)), snapshot)
    assert texts(ranks.headline(one, 118)) == [f"○ {ranks.ALONE}"]
    rows = texts(ranks.detail(one, 0, 58, 9))
    assert "median" not in "".join(rows) and "┃" not in "".join(rows)
    assert rows[1].split()[0] == "backward" and len(rows[1].split()) == 3


def test_the_table_of_ranks_puts_the_culprit_first_and_what_is_not_known_last(record, snapshot):
    page = RanksLoader()(record, snapshot)
    assert page.culprit == 2 and ranks.order(page, "wait", False)[0] == 2
    assert ranks.order(page, "wait", True)[-1] == 2
    broken = replace(page, columns={**page.columns, "wait": [float("nan"), 3.0, 2.0, 1.0]})
    assert ranks.order(broken, "wait", False) == [3, 2, 1, 0] and ranks.order(
        broken, "wait", True
    ) == [1, 2, 3, 0]
    assert ranks.order(page, "rank", True) == [3, 2, 1, 0]


def test_evidence_works_without_a_proof_and_without_pictures():
    lines = "\n".join(texts(evidence.draw(FindingDetails(a_finding(proof=None)), 78, 18)))
    assert (
        "DataLoader(num_workers=2" in lines
        and "threshold" not in lines
        and "computed from" not in lines
    )
    assert "lint:" not in lines


def test_evidence_says_what_lint_sees_at_the_line():
    lines = "\n".join(
        texts(
            evidence.draw(
                FindingDetails(a_finding(), in_source="loader-workers, no workers"), 78, 24
            )
        )
    )
    assert "lint: loader-workers, no workers" in lines


def test_the_gauge_marks_value_and_threshold_in_their_order():
    (_, line) = evidence.gauge(a_finding().proof, "high", 78)
    text = row_text(line)
    assert text.index("┃") < text.index("●") and text.endswith("31.2 %  threshold 10 %")


def test_long_values_of_a_proof_are_shown():
    values = (
        Input("wait", 3.613, "ms per step", "DDP's timers"),
        Input("line", "train.py:19 <module>", "", "stacks"),
    )
    found = a_finding(proof=replace(a_proof(), inputs=values))
    for width in (78, 118):
        lines = "\n".join(texts(evidence.inputs(found, width)))
        assert "3.613 ms per step" in lines and "train.py:19 <module>" in lines


def test_inputs_of_one_kind_have_their_words_and_unit_once():
    ms = (("backward", -6.979), ("data", 122.7), ("optimizer", 0.1789))
    inputs = [Input(f"{name} beyond the median rank", x, "ms per step", "steps") for name, x in ms]
    proof = replace(a_proof(), inputs=(*inputs, Input("p", 0.5, "", "chance")))
    lines = texts(evidence.inputs(a_finding(proof=proof), 58))
    assert lines[1] == "beyond the median rank, ms per step"
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["backward", "−6.98"],
        ["data", "122.70"],
        ["optimizer", "0.18"],
    ]


def test_what_is_to_be_read_comes_before_blank_lines():
    details = FindingDetails(a_finding(evidence="several words " * 100))
    whole = texts(evidence.draw(details, 78, 60))
    tight = texts(evidence.draw(details, 78, len(whole) - 2))
    assert len(tight) == len(whole) - 2 and [row for row in whole if row] == [
        row for row in tight if row
    ]


def test_a_bar_has_the_glyph_and_colour_of_its_name_in_the_legend():
    legend = (("rank 2", "allocated"), ("median of the others", "muted"))
    bars = (Bar("data", ((9.0, "high"),), True), Bar("", ((3.0, "muted"),)))
    head, slow, other = plots.draw(Bars("phases", "ms", legend, bars), 78, 9)
    assert ("╌ ", "muted") in head and ("━ ", "allocated") in head
    assert any("━" in text and style == "high" for text, style in slow)
    assert any("╌" in text and style == "muted" for text, style in other)


def test_every_finding_of_the_catalogue_has_a_picture_that_can_be_drawn(record, snapshot):
    for spec in CATALOGUE.values():
        found = a_finding(id=spec.id, name=spec.name, rank=2)
        page = EvidenceLoader(spec.id, 2)(record, snapshot._replace(findings=(found,)))
        assert isinstance(page, FindingDetails), spec.id
        assert all(isinstance(plot, (Chart, Columns, Bars, Listing)) for plot in page.plots), (
            spec.id
        )
        assert texts(evidence.draw(page, 118, 34)), spec.id


def test_findings_are_listed_by_what_they_win_back():
    def one(name, severity, worth):
        return a_finding(severity, id=name, recoverable_ms_per_step=worth)

    found = (
        one("A", "high", 1.0),
        one("B", "medium", 9.0),
        one("C", "info", 50.0),
        one("D", "critical", None),
    )
    assert [listed.id for listed in by_worth(found)] == ["D", "B", "A", "C"]


def test_strips_of_ranks_show_own_work_and_not_the_step_that_all_share(record):
    page = RanksLoader()(record, build(record, (), window_steps=500, now_ns=0, ended=True))
    slow, usual = page.excess_over_steps[2], page.excess_over_steps[0]
    assert min(slow) > 0.2 and max(map(abs, usual)) < 0.1
    _, *lines = ranks.table(page, [2, 0], 118, "rank")
    strips = [{style for text, style in line if text and text in "▇" * len(text)} for line in lines]
    assert strips[0] <= {"heat3", "heat4"} and strips[1].isdisjoint({"heat3", "heat4"})
    unknown = replace(page, excess_over_steps={})
    head, first, _ = ranks.table(unknown, [2, 0], 118, "rank")
    assert "median" not in row_text(head) and "▇" not in row_text(first)
