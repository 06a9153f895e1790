"""``gputop report`` and ``gputop findings`` as a user meets them, on the bundled recording of a
real run.
"""

import json
import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from analysis_support import Builder
from e2e_support import GPUTOP, ROOT, environment, gputop

from gputop.cli.house.demo import unpack
from gputop_analysis.text import ms

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> str:
    """Directory of the bundled recording."""
    return str(unpack(tmp_path_factory.mktemp("demo")))


def test_the_page_is_written_where_it_was_asked_for(demo, tmp_path) -> None:
    done = gputop("report", demo, "--html", "page.html", tmp_path=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "wrote page.html\n"
    page = (tmp_path / "page.html").read_text()
    assert not re.search("https?:", page)
    assert page.count("<svg") >= 6
    assert "IN11" in page


def test_every_form_tells_the_same_figures(demo, tmp_path) -> None:
    data = json.loads(gputop("report", demo, "--json", tmp_path=tmp_path).stdout)
    text = gputop("report", demo, tmp_path=tmp_path).stdout
    markdown = gputop("report", demo, "--format", "md", tmp_path=tmp_path).stdout
    assert text.isascii()
    for form in (text, markdown):
        assert f"p50 {ms(data['step_time_p50_ms'])} ms" in form
        assert data["findings"][0]["id"] in form
        assert f"{100 * data['budget']['share']['data_stall']:.1f} %" in form
    assert data["verdict"]["bottleneck"] == "straggler"
    assert data["verdict"]["do_first"] == data["findings"][0]["fix"]


def test_a_finding_and_a_figure_are_explained(demo, tmp_path) -> None:
    finding = gputop("report", demo, "--explain", "IN11", tmp_path=tmp_path).stdout
    for said in ("statistic", "threshold", "formula", "inputs", "steps.data_ns"):
        assert said in finding
    figure = json.loads(
        gputop("report", demo, "--explain", "step_time_p50_ms", "--json", tmp_path=tmp_path).stdout
    )
    assert figure["figures"][0]["read"] == "4,800 records for 4,800 steps, 8 ranks"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--explain", "no_such_figure"], "no finding and no figure"),
        (["--explain", "IN"], "did you mean"),
        (["--html", "no/such/folder/x.html"], "cannot write"),
        (["--watch", "--json"], "--watch"),
        (["--watch", "--explain", "IN02"], "--watch"),
        (["--baseline", "no-such-run"], "gputop runs"),
        (["--threshold", "much", "--baseline", "last"], "5%"),
        (["--trace", "no-such-trace.json"], "no-such-trace.json"),
        (["--format", "pdf"], "pdf"),
    ],
)
def test_wrong_input_gets_one_line(words, says, demo, tmp_path) -> None:
    done = gputop("report", demo, *words, tmp_path=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert says in done.stderr
    assert done.stdout == ""


def test_a_baseline_is_compared_and_a_regression_fails(tmp_path) -> None:
    for name, forward in (("before", 10.0), ("after", 14.0)):
        build = Builder(tmp_path / name)
        build.hello(0)
        build.steps(300, forward=forward, backward=20.0, seed=int(forward))
        build.end()
    slower = gputop("report", "after", "--baseline", "before", "--json", tmp_path=tmp_path)
    assert slower.returncode == 1
    assert json.loads(slower.stdout)["baseline"]
    same = gputop("report", "before", "--baseline", "before", tmp_path=tmp_path)
    assert same.returncode == 0
    assert "compared with the baseline" in same.stdout


def test_a_trace_that_is_named_or_lies_in_the_run_is_analysed(tmp_path) -> None:
    build = Builder(tmp_path / "run")
    build.steps(30, forward=5.0)
    build.end()
    step = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#3",
        "pid": 1,
        "tid": 1,
        "ts": 0,
        "dur": 1000,
    }
    work = {**step, "cat": "cpu_op", "name": "aten::mm", "dur": 600}
    (tmp_path / "mine.json").write_text(json.dumps({"traceEvents": [step, work]}))
    assert "trace" not in json.loads(gputop("report", "run", "--json", tmp_path=tmp_path).stdout)
    named = gputop("report", "run", "--trace", "mine.json", tmp_path=tmp_path).stdout
    assert "aten::mm" in named
    (tmp_path / "mine.json").rename(tmp_path / "run" / "step.pt.trace.json")
    found = json.loads(gputop("report", "run", "--json", tmp_path=tmp_path).stdout)
    assert found["trace"]["events"] == 2


def test_watching_a_finished_run_in_a_pipe_prints_it_once(demo, tmp_path) -> None:
    done = gputop("report", demo, "--watch", tmp_path=tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("\n--- ") + done.stdout.startswith("--- ") == 1
    assert "\x1b" not in done.stdout


def test_watching_a_running_training_redraws_in_place_and_ctrl_c_ends_with_0(tmp_path) -> None:
    build = Builder(tmp_path / "run")
    build.hello(0)
    grow(build, 40)
    ours, theirs = pty.openpty()
    words = [*GPUTOP, "report", str(tmp_path / "run"), "--watch"]
    shell = {**environment(tmp_path, TERM="xterm-256color"), "LINES": "24", "COLUMNS": "90"}
    shell.pop("NO_COLOR", None)
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=shell, start_new_session=True
    )
    os.close(theirs)
    seen = b""
    try:
        for _ in range(3):
            seen += until(ours, rb"\d+ steps so far|healthy")
            grow(build, 40)
        process.send_signal(signal.SIGINT)
        seen += until(ours, rb"\x1b\[\?25h")
        assert process.wait(20) == 0
    finally:
        process.kill()
        os.close(ours)
    assert re.search(rb"\x1b\[\d+F\x1b\[J", seen), "it goes back up and clears what it drew"
    assert b"Traceback" not in seen
    assert b"\x1b[?25l" in seen


def grow(build: Builder, steps: int) -> None:
    """Some more steps, now: a record that stands still counts as lost."""
    build.clock[0] = time.time_ns()
    build.steps(steps, forward=5.0, backward=10.0)


def until(terminal: int, pattern: bytes, timeout_s: float = 30.0) -> bytes:
    """What the terminal shows up to ``pattern``."""
    seen, deadline = b"", time.monotonic() + timeout_s
    while not re.search(pattern, seen):
        assert time.monotonic() < deadline, seen[-2000:]
        seen += os.read(terminal, 65536)
    return seen


def test_findings_are_listed_and_explained(tmp_path) -> None:
    listed = gputop("findings", tmp_path=tmp_path).stdout
    assert "  IN01  input-bound" in listed
    one = json.loads(gputop("findings", "input-bound", "--json", tmp_path=tmp_path).stdout)
    assert one["id"] == "IN01"
    refused = gputop("findings", "IN99", tmp_path=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "IN99" in refused.stderr


def test_the_page_of_findings_is_the_one_in_the_docs(tmp_path) -> None:
    made = gputop("findings", "--markdown", tmp_path=tmp_path).stdout
    kept = (Path(ROOT) / "docs" / "findings.md").read_text(encoding="utf-8")
    assert made == kept, "make it anew: gputop findings --markdown > docs/findings.md"
