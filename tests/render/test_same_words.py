"""The same word means the same figure on every screen and in every report of one record."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis_support import T0, Builder

from gputop.feed.budget import BudgetLoader
from gputop.feed.live import LiveFeed
from gputop.feed.ranks import RanksLoader
from gputop.feed.replay import ReplayFeed
from gputop.pages import budget as budget_page
from gputop.pages import ranks as ranks_page
from gputop.render.rows import row_text
from gputop.widgets import breakdown, header, rank_table
from gputop_agent import wire
from gputop_analysis import verdict as verdict_of
from gputop_analysis.html import as_html
from gputop_analysis.report import Report, as_data, as_markdown, as_text
from gputop_analysis.step_parts import parts_of
from gputop_probes.record.layout import PROCESS_RANK

SECOND = 10**9


def straggling(build: Builder) -> None:
    """DDP: rank 1 is late by 50 ms, so that rank 0 waits; waits are skewed, and the first step is
    slow.
    """
    random = np.random.default_rng(0)
    for rank in range(2):
        build.hello(rank, world_size=2)
    for step in range(120):
        for rank in range(2):
            wait = (40 if rank == 0 else 4) * random.gamma(2, 0.5)
            first = 900.0 if step == 0 else 0.0
            flags = wire.F_FIRST if step == 0 else 0
            build.step(
                rank, wait_ms=wait, forward=20 + 40 * rank, backward=8, other=first, flags=flags
            )


def calling(build: Builder) -> None:
    """DDP and collectives called from Python: waiting inside backward and outside of it."""
    for rank in range(2):
        build.hello(rank, world_size=2)
        for _ in range(120):
            build.step(rank, wait_ms=9.2 + rank, forward=20, backward=12, comm=20.6)


def evaluating(build: Builder) -> None:
    """One rank, evaluation in every tenth step, as long as all that training takes."""
    build.hello()
    for step in range(150):
        last = step % 10 == 9
        build.step(
            forward=6,
            backward=12,
            optimizer=2,
            eval=160 if last else 0,
            flags=wire.F_EVAL if last else 0,
        )


def starved(build: Builder) -> None:
    """One rank that waits for its loader, after a warm-up of other shape."""
    build.hello(dataloader={"num_workers": 2})
    build.steps(10, other=300)
    build.steps(150, data=60, forward=2, backward=3, optimizer=1)


def crowded(build: Builder) -> None:
    """One rank that stands in the run queue for 81 % of the time."""
    build.hello(dataloader={"num_workers": 0}, threads={"torch": 4})
    build.steps(400, forward=40, backward=50, optimizer=10)
    for tick in range(80):
        at = T0 + tick * SECOND // 2
        waited = {
            "run_wait_ns_total": int(0.81 * tick * SECOND / 2),
            "cpu_ns_total": int(0.19 * tick * SECOND / 2),
        }
        build.sample("process", t_ns=at, kind=PROCESS_RANK, rank=0, pid=100, **waited)


KINDS = {
    "straggling": straggling,
    "calling": calling,
    "evaluating": evaluating,
    "starved": starved,
    "crowded": crowded,
}


class Shown:
    """Everything that is shown of one record."""

    def __init__(self, path: Path, kind: str):
        build = Builder(path / "run")
        KINDS[kind](build)
        build.end()
        self.record = build.open()
        self.live, self.replayed = LiveFeed(build.path).take(), ReplayFeed(build.path).take()
        self.report = Report(self.record)
        self.text, self.markdown = as_text(self.report, 100), as_markdown(self.report)
        self.html, self.data = as_html(self.report), as_data(self.report)
        self.budget = BudgetLoader()(self.record, self.live)
        self.ranks = RanksLoader()(self.record, self.live)


@pytest.fixture(params=list(KINDS), scope="module")
def shown(request, tmp_path_factory) -> Shown:
    return Shown(tmp_path_factory.mktemp(request.param), request.param)


def figure(line: str, place: int) -> float:
    """The number at a place of a line; NaN for the sign of what is missing."""
    words = re.findall(r"-?[\d,]+\.?\d*|[–-](?=\s|$)", line)
    return float("nan") if words[place] in "–-" else float(words[place].replace(",", ""))


def close(value: float, other: float) -> bool:
    """Alike but for what three digits can show."""
    return (value != value and other != other) or value == pytest.approx(other, rel=6e-3, abs=6e-3)


def expect(*values: float) -> None:
    assert all(close(value, values[0]) for value in values), values


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start + " "))


def test_live_and_replay_show_what_the_report_sums_up(shown: Shown) -> None:
    for snapshot in (shown.live, shown.replayed):
        assert snapshot.summary.phases == shown.report.summary.phases
        assert snapshot.verdict == shown.report.verdict
        assert [one.title for one in snapshot.findings] and {
            one.id for one in snapshot.findings
        } == {one.id for one in shown.report.findings}
        for one, other in zip(snapshot.summary.ranks, shown.report.summary.ranks, strict=True):
            expect(one.wait_mean_ms, other.wait_mean_ms)
            expect(one.step_time_mean_ms, other.step_time_mean_ms)


def test_a_rank_waits_as_long_on_every_screen(shown: Shown) -> None:
    if len(shown.report.summary.ranks) == 1:
        pytest.skip("nobody to wait for")
    head, *panel = [row_text(row) for row in rank_table.draw(shown.live, 118, 8)]
    table = [row_text(row) for row in ranks_page.table(shown.ranks, [0, 1], 118, "rank")][1:]
    for place, (one, told) in enumerate(
        zip(shown.report.summary.ranks, shown.data["ranks"], strict=True)
    ):
        text = [
            line for line in shown.text.splitlines() if re.match(rf"\s+{one.rank}\s.*box", line)
        ]
        marked = next(
            line for line in shown.markdown.splitlines() if line.startswith(f"| {one.rank} |")
        )
        expect(
            one.wait_mean_ms,
            told["wait_mean_ms"],
            under(head, "wait ms", panel[place]),
            figure(table[place], 3),
            shown.ranks.columns["wait"][place],
            figure(text[0], 4),
            float(marked.split("|")[6]),
        )
        expect(one.step_time_mean_ms, figure(table[place], 1))
        own, wait = under(head, "own ms", panel[place]), under(head, "wait ms", panel[place])
        expect(own + wait, one.step_time_mean_ms)
        expect(told["comm_share"], one.wait_mean_ms / one.step_time_mean_ms)
        assert f"<td>{ms_text(one.wait_mean_ms)}</td>" in shown.html


def under(head: str, name: str, row: str) -> float:
    """The number of a row that ends below the end of a heading."""
    end = head.rindex(name) + len(name.rstrip())
    return figure(row[:end].split()[-1], 0)


def ms_text(value: float) -> str:
    from gputop_analysis.text import ms

    return ms(value)


def test_communication_is_one_amount_however_it_is_split(shown: Shown) -> None:
    data = shown.data
    if data["balance"] is None:
        pytest.skip("one rank")
    lines = data["budget"]["ms_per_step"]
    expect(
        lines["communication"] + lines["straggler_wait"],
        data["phases_mean_ms"]["comm"] + (data["wait_in_backward_ms"] or 0.0),
        float(np.mean([one["wait_mean_ms"] for one in data["ranks"]])),
    )
    told = re.search(r"communication exposed ([\d.]+) ms", " ".join(shown.text.split()))
    page = re.search(
        r"communication exposed ([\d.]+) ms", row_text(ranks_page.headline(shown.ranks, 118)[1])
    )
    assert told and page
    expect(data["balance"]["exposed_comm_ms"], lines["communication"], float(told[1]))
    assert float(page[1]) == pytest.approx(lines["communication"], abs=0.05)


def test_a_phase_has_one_share(shown: Shown) -> None:
    table = [row_text(row) for row in breakdown.table(shown.live, 64, 14)]
    for phase in parts_of(shown.report.summary):
        if phase.share < 0.01:
            continue
        text, row = (
            line_of(shown.text, phase.name),
            next(line for line in table if f" {phase.name} " in line),
        )
        marked = next(
            line for line in shown.markdown.splitlines() if line.startswith(f"| {phase.name} |")
        )
        expect(phase.mean_ms, figure(text, 0), figure(row, 0))
        if math.isfinite(phase.p50_ms):  # the JSON has the phases as measured, waiting in backward
            expect(phase.mean_ms, shown.data["phases_mean_ms"][phase.name])
        assert f"{100 * phase.share:.1f} %" in text and f"{100 * phase.share:.1f} %" in marked
        assert f"{100 * phase.share:.0f} %" in row
        assert (
            f"{100 * phase.share:.1f} %" in shown.html or f"{100 * phase.share:.0f} %" in shown.html
        )


def test_the_bottleneck_and_the_phases_give_the_same_shares(shown: Shown) -> None:
    limit = shown.report.bottleneck
    if limit.finding is not None:
        pytest.skip("a finding speaks")
    told = re.search(r"take (\d+) % of the time", limit.why)
    phases = {p.name: p for p in shown.report.summary.phases}
    share = sum(phases[n].share for n in ("forward", "backward", "optimizer"))
    hidden = shown.report.summary.wait_in_backward_ms
    if hidden == hidden:
        assert "without the waiting in it" in limit.why
        share -= phases["backward"].share * hidden / phases["backward"].mean_ms
    assert told and int(told[1]) == round(100 * share)


def test_the_verdict_names_the_parts_that_the_chart_draws(shown: Shown) -> None:
    summary = shown.report.summary
    parts = {part.name: part.share for part in parts_of(summary)}
    told = dict(re.findall(r"(\w+) (\d+) %", verdict_of.breakdown(summary)))
    assert told == {name: f"{100 * parts[name]:.0f}" for name in told}
    assert max(parts, key=lambda name: parts[name]) in told


def test_waiting_for_data_takes_as_much_in_the_finding_as_in_the_table(shown: Shown) -> None:
    found = [one for one in shown.report.findings if one.id in ("IN01", "IN02")]
    data = next((p.share for p in shown.report.summary.phases if p.name == "data"), 0.0)
    for one in found:
        share = re.search(r"(\d+) % of", one.title)
        assert share and abs(int(share[1]) - 100 * data) < 1, (one.title, data)


def test_the_budget_says_the_same_everywhere_and_adds_up(shown: Shown) -> None:
    page = [row_text(row) for row in budget_page.draw(shown.budget, 118, 36)]
    told: dict[str, Any] = shown.data["budget"]
    assert sum(told["share"].values()) == pytest.approx(1, abs=1e-5)  # each has six decimals
    for name, share in told["share"].items():
        if share < 0.01:
            continue
        title = budget_page.LINES[name].title
        row = next(line for line in page if line[2:].startswith(f"{title} ") and "%" in line)
        text = line_of(shown.text, title)
        expect(told["ms_per_step"][name], figure(row, 0), figure(text, 0))
        assert f"{100 * share:.0f} %" in row and f"{100 * share:.1f} %" in text
        assert f"{100 * share:.1f} %" in shown.markdown


def test_waiting_for_a_core_is_in_the_budget_as_the_finding_says(shown: Shown) -> None:
    found = next((one for one in shown.report.findings if one.id == "IN04"), None)
    budget, goodput = shown.data["budget"], shown.data["goodput"]
    if found is None:
        assert budget["share"]["core_wait"] == 0
        return
    assert found.title.startswith(f"{100 * budget['share']['core_wait']:.0f} % of the time")
    assert found.recoverable_ms_per_step == pytest.approx(
        budget["ms_per_step"]["core_wait"], rel=0.02
    )
    assert budget["share"]["useful_compute"] < 0.2 and goodput["share"] < 0.2
    assert sum(goodput["parts_s"].values()) == pytest.approx(goodput["session_s"])


def test_one_of_a_thing_is_not_many(tmp_path) -> None:
    """No ``1 steps``, ``1 ranks`` or ``1 findings`` in any form of a run of one rank
    and few steps.
    """
    build = Builder(tmp_path / "run")
    build.hello(dataloader={"num_workers": 1})
    build.step(forward=5.0, loss=float("nan"), flags=wire.F_NONFINITE | wire.F_FIRST)
    build.end(exit_code=3)
    report = Report(build.open())
    snapshot = LiveFeed(build.path).take()
    shown = [as_text(report), as_markdown(report), as_html(report), *summary_texts(report)]
    shown += [row_text(row) for row in header.draw(snapshot, 118)]
    for text in shown:
        assert not re.search(
            r"(?<![\d.,])1 (steps|ranks|findings|GPUs|workers|hosts|restarts|records)\b", text
        ), text


def summary_texts(report: Report) -> list[str]:
    from gputop.cli.slow.summary import summary_lines

    return [text for text, _ in summary_lines(report)]
