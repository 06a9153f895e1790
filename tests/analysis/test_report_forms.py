"""The forms of a report: Markdown and the page, of runs of every kind; and the bottleneck that all
of them name.
"""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from analysis_support import T0, Builder

from gputop.palette import PHASES
from gputop_analysis.budget import LINES
from gputop_analysis.findings import CATALOGUE
from gputop_analysis.goodput import PARTS
from gputop_analysis.html import as_html
from gputop_analysis.html.charts import histogram
from gputop_analysis.html.colours import BUDGET, DARK, GOODPUT, LIGHT
from gputop_analysis.html.elements import prose
from gputop_analysis.html.script import POLICY, SCRIPT
from gputop_analysis.html.svg import ticks
from gputop_analysis.report import Extra, Report, as_data, as_markdown, as_text
from gputop_analysis.report.markdown import code, plain
from gputop_analysis.report.words import BUDGET_STYLE
from gputop_analysis.text import SGR

NASTY = '<script>alert(1)</script> | `x` \\ *b* & "q"'


def ordinary(path):
    """One rank, nothing wrong."""
    build = Builder(path, command=("python", "train.py", NASTY))
    build.hello(0, total_steps=400, model={"class": NASTY, "parameters": 1000})
    random = np.random.default_rng(0)
    for i in range(200):
        build.step(
            forward=10 + random.normal(), backward=20.0, optimizer=2.0, loss=3.0 - i / 100, lr=0.1
        )
    build.end()
    return build


def many_ranks(path):
    """64 ranks on 8 GPUs, of which rank 17 is slow in backward."""
    build = Builder(path)
    for rank in range(64):
        build.hello(rank, world_size=64, device="cuda:0", total_steps=10_000)
        slow = 12.0 if rank == 17 else 0.0
        random = np.random.default_rng(rank)
        for _ in range(60):
            noise = random.normal()
            build.step(
                rank,
                wait_ms=12.5 - slow + abs(noise),
                data=1.0,
                forward=30.0,
                backward=60.0 + slow - noise,
            )
    for gpu in range(8):
        build.sample(
            "gpu",
            t_ns=T0,
            index=gpu,
            memory_used_bytes=50 << 30,
            memory_total_bytes=80 << 30,
            util_pct=90.0,
        )
    build.end()
    return build


def empty(path):
    """A record with nothing in it."""
    return Builder(path)


def crashed(path):
    """An error before the first step."""
    build = Builder(path)
    build.hello(0)
    where = {
        "message": NASTY,
        "site": "train.py:12 forward",
        "phase": "forward",
        "step": 0,
        "traceback": [],
    }
    build.event("exception", rank=0, **{"class": "RuntimeError"}, **where)
    build.end(exit_code=1)
    return build


def one_step(path):
    """As little as a run can have."""
    build = Builder(path)
    build.step(forward=3.0, loss=1.0)
    build.end()
    return build


def restarted(path):
    """Two attempts, NaN losses, an absurdly slow step."""
    build = Builder(path)
    for step in [*range(40), *range(60)]:
        build.step(
            step=step,
            forward=10.0 if step != 30 else 9000.0,
            loss=float("nan") if step > 50 else 1.0,
        )
    build.end(exit_code=137)
    return build


KINDS = (ordinary, many_ranks, empty, crashed, one_step, restarted)


class Page(HTMLParser):
    """Checks that every tag is closed in order, and collects what a page may not have."""

    VOID = ("meta", "br", "line", "rect", "polygon", "polyline", "circle")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[str | None] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data


@pytest.fixture(params=KINDS, ids=[kind.__name__ for kind in KINDS])
def report(request, tmp_path):
    """A report of each kind of run."""
    return Report(request.param(tmp_path / "r").open())


def test_the_page_is_whole_has_one_script_and_needs_no_network(report):
    html = as_html(report)
    page = Page()
    page.feed(html)
    assert page.open == []
    assert html.count("<script") == 1 and f"<script>{SCRIPT}</script>" in html
    assert POLICY in html, "no other script may run"
    assert page.links == []
    assert "url(" not in html and "@import" not in html and "http:" not in html
    assert report.verdict.headline in page.text
    assert re.search(r'="[^"]*\b(nan|inf)\b', html) is None, "no number of a chart is missing"


def test_the_text_fits_every_width(report):
    for width in (60, 80, 120):
        assert max(map(len, as_text(report, width).splitlines())) <= width


def test_markdown_keeps_its_tables_and_quotes_what_it_was_given(report):
    text = as_markdown(report)
    assert "<script>" not in re.sub(r"(`+).+?(?<!`)\1(?!`)", "", text), (
        "outside of code it is escaped"
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for line in rows:
        assert line.endswith("|")
    assert text.startswith("# gputop report: ")
    assert plain(report.verdict.headline) in text


@pytest.mark.parametrize("text", ["plain", "with `ticks`", "``` three", "two\nlines"])
def test_inline_code_cannot_be_closed_by_its_content(text):
    quoted = code(text)
    fence = quoted[: len(quoted) - len(quoted.lstrip("`"))]
    assert quoted.endswith(fence)
    assert fence not in quoted[len(fence) : -len(fence)].strip() or "`" not in text


def test_the_bottleneck_of_each_kind(tmp_path):
    expected = {
        ordinary: ("compute", None),
        many_ranks: ("straggler", "CR01"),
        empty: ("unknown", None),
        crashed: ("crash", "HC06"),
        one_step: ("unknown", None),
    }
    for kind, (name, id) in expected.items():
        limit = Report(kind(tmp_path / kind.__name__).open()).bottleneck
        assert (limit.kind, limit.finding.id if limit.finding else None) == (name, id), (
            kind.__name__
        )
        assert 0.0 <= limit.confidence <= 1.0
        assert (limit.do_first is None) == (limit.finding is None)


def test_without_a_finding_the_largest_kind_of_phase_is_named_and_a_close_call_is_less_sure(
    tmp_path,
):
    sure = Builder(tmp_path / "sure")
    sure.steps(200, forward=30.0, data=1.0)
    close = Builder(tmp_path / "close")
    random = np.random.default_rng(1)
    for _ in range(200):
        close.step(forward=10 + 5 * random.normal(), eval=10 + 5 * random.normal())
    for build, low, high in ((sure, 1.0, 1.0), (close, 0.3, 0.999)):
        build.end()
        from gputop_analysis.bottleneck import bottleneck

        limit = bottleneck(Report(build.open()).view, [])
        assert low <= limit.confidence <= high
    assert (
        "forward, backward and optimizer take 97 %" in bottleneck(Report(sure.open()).view, []).why
    )


def test_the_slow_one_of_many_ranks_is_in_the_text(tmp_path):
    text = as_text(Report(many_ranks(tmp_path / "r").open()), 100)
    assert "the 16 of 64 ranks that wait least" in text
    ranks = text[text.index("rank     steps") :].splitlines()
    assert ranks[1].split()[0] == "17"
    assert (
        "rank 17 sets 100 % of the steps, 12" in text
        or "rank 17 sets 100 % of the steps, 11" in text
    )


def test_what_was_added_stands_in_every_form(tmp_path):
    extra = Extra(
        "baseline",
        {"judgement": "slower"},
        "compared with the baseline",
        "<section>compared</section>",
    )
    report = Report(ordinary(tmp_path / "r").open(), extras=(extra,))
    assert as_data(report)["baseline"] == {"judgement": "slower"}
    assert "compared with the baseline" in as_text(report)
    assert "compared with the baseline" in as_markdown(report)
    assert "<section>compared</section>" in as_html(report)


def test_a_phase_has_the_colour_of_the_live_screen():
    for phase in PHASES:
        assert (DARK[phase.name], LIGHT[phase.name]) == (phase.dark, phase.light)
        assert phase.name in SGR
    assert set(DARK) == set(LIGHT)
    assert set(BUDGET) == set(BUDGET_STYLE) == set(LINES)
    assert set(GOODPUT) == set(PARTS)
    assert {*BUDGET.values(), *GOODPUT.values()} <= set(DARK)
    assert set(BUDGET_STYLE.values()) <= set(SGR)


def test_every_cause_has_a_kind_of_bottleneck():
    from gputop_analysis.bottleneck import _KIND_OF_CAUSE

    assert {spec.cause for spec in CATALOGUE.values()} <= set(_KIND_OF_CAUSE)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 25, 50, 75, 100]),
        (0, 0.9, [0, 0.25, 0.5, 0.75]),
        (3, 3, [3]),
        (0, float("inf"), [0]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high, 4) == pytest.approx(expected)


def test_the_page_tells_tenths_of_the_run_and_no_chart_of_a_rate_that_never_changes(tmp_path):
    """The very last step alone reads like a speed-up."""
    html = as_html(Report(ordinary(tmp_path / "run").open()))
    assert "Rank 0; first 10 % 2.905, last 10 % 1.105." in html
    assert "Learning rate</h2>" not in html and "Loss</h2>" in html


def test_names_of_times_stand_above_the_lines_of_all_of_them():
    drawn = histogram(np.array([0.0, 50.0, 60.0]), np.array([1.0, 9.0]), {"p50": 53.0, "p95": 57.0})
    names = [float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*class="halo"', drawn)]
    lines = [float(y) for y in re.findall(r'<line [^>]*y1="([\d.]+)"[^>]*--strong', drawn)]
    assert len(names) == len(lines) == 2 and max(names) <= min(lines)


@pytest.mark.parametrize(("tokens", "columns"), [(0, 4), (64, 3)])
def test_the_last_row_of_tiles_is_full(tmp_path, tokens, columns):
    """Of eight tiles, four beside each other; of nine, three."""
    build = Builder(tmp_path)
    build.hello(0)
    for _ in range(60):
        build.step(forward=10.0, samples=8, tokens=tokens)
    build.end()
    page = as_html(Report(build.open()))
    assert page.count('<div class="tile">') == (9 if tokens else 8)
    assert f"--columns:{columns}" in page


def test_words_between_backticks_are_code_and_stay_escaped():
    assert prose("use `a < b`, not `c") == "use <code>a &lt; b</code>, not `c"
