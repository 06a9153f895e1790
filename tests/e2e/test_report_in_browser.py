"""The page in a real browser: its script runs, nothing is said on the console, a phone shows it."""

import os
import re
import shutil
import subprocess

import pytest
from tui_support import write_run

from gputop.cli.house.demo import unpack
from gputop_analysis.diff import compare
from gputop_analysis.html import as_comparison_page, as_html
from gputop_analysis.html.elements import table
from gputop_analysis.report import Report
from gputop_probes.record.reader import RunRecord

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")

LOOK = """
<script>
window.onerror = message => document.title = "failed: " + message;
window.onload = () => {
  const seen = {};
  const svg = document.querySelector("svg[data-chart]"), box = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent("pointermove",
    {clientX: box.left + box.width / 2, clientY: box.top + 20}));
  seen.tip = document.querySelector(".tip").textContent;
  const shape = () => svg.querySelector('[data-series="backward"]').getAttribute("points");
  const before = shape();
  document.querySelector('[data-switch="forward"]').click();
  seen.switched = shape() !== before
    && svg.querySelector('[data-series="forward"]').style.display === "none";
  const table = document.querySelector("table.sortable"), head = table.tHead.rows[0].cells[0];
  head.click(); head.click();
  seen.first = table.tBodies[0].rows[0].cells[0].textContent;
  seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  document.title = JSON.stringify(seen);
};
</script>"""


@pytest.mark.parametrize("width", [1280, 500])
def test_the_script_works_and_nothing_is_wider_than_the_screen(tmp_path, width):
    page = as_html(Report(RunRecord.open(unpack(tmp_path))))
    policy = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')
    file = tmp_path / "page.html"
    file.write_text(policy.sub("", page).replace("</body>", LOOK + "</body>"))
    title, _ = _opened(file, tmp_path, width)
    assert not title.startswith("failed"), title
    assert re.search(r"step [\d,]+\n.*all shown  [\d.]+ ms", title.replace("\\n", "\n")), title
    assert '"switched":true' in title
    assert '"first":"7"' in title, "ranks sorted downwards by a second click"
    assert '"wide":0' in title, "the page does not scroll sideways"


def test_the_policy_lets_the_page_own_script_run_and_no_other(tmp_path):
    page = as_html(Report(RunRecord.open(unpack(tmp_path))))
    file = tmp_path / "page.html"
    file.write_text(page)
    _, console = _opened(file, tmp_path)
    assert "CONSOLE" not in console
    file.write_text(page.replace("<main>", "<main><script>document.title='in'</script>"))
    title, console = _opened(file, tmp_path)
    assert title != "in" and "Content Security Policy" in console


LOOK_AT_BOTH = """
<script>
window.onerror = message => document.title = "failed: " + message;
window.onload = () => {
  const [a, b] = document.querySelectorAll("svg[data-chart]"), seen = {};
  const shape = svg => svg.querySelector('[data-series="backward"]').getAttribute("points");
  const before = [shape(a), shape(b)];
  document.querySelector('[data-switch="forward"]').click();
  seen.switched = [shape(a) !== before[0], shape(b) !== before[1]];
  const [left, right] = [a, b].map(svg => svg.getBoundingClientRect());
  seen.beside = left.top === right.top && left.right <= right.left;
  seen.below = left.bottom <= right.top && left.left === right.left;
  seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  document.title = JSON.stringify(seen);
};
</script>"""


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    a, b = (
        RunRecord.open(write_run(folder / name, ranks=2, slow_rank=slow))
        for name, slow in (("a", None), ("b", 1))
    )
    return as_comparison_page(Report(a), Report(b), compare(a, b))


@pytest.mark.parametrize(("width", "place"), [(1280, "beside"), (500, "below")])
def test_a_comparison_stands_side_by_side_and_on_a_phone_below(comparison, tmp_path, width, place):
    file = tmp_path / "page.html"
    policy = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')
    file.write_text(policy.sub("", comparison).replace("</body>", LOOK_AT_BOTH + "</body>"))
    title, console = _opened(file, tmp_path, width)
    assert '"switched":[true,false]' in title, "a legend switches the chart that it stands over"
    assert f'"{place}":true' in title and '"wide":0' in title
    assert "CONSOLE" not in console


def test_long_settings_of_two_runs_are_not_cut_on_a_phone(comparison, tmp_path):
    settings = [("optimizer.all_parameters", "1" * 25, "2" * 25)]
    long = table(("setting", "A", "B"), settings, left=(0, 1, 2)).replace("scroll", "scroll long")
    look = """<script>window.onload = () => {
      const box = document.querySelector(".long");
      document.title = `cut: ${box.scrollWidth - box.clientWidth}`;
    };</script>"""
    policy = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')
    file = tmp_path / "page.html"
    file.write_text(policy.sub("", comparison).replace("</main>", f"{long}</main>{look}"))
    assert "cut: 0" in _opened(file, tmp_path, 500)[0]


def _opened(file, tmp_path, width=1280):
    """Title of the page once its script has run, and what the browser logged."""
    command = [
        BROWSER,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
    ]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900"]
    done = subprocess.run(
        [*command, "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    return re.search("<title>(.*?)</title>", done.stdout, re.DOTALL)[1], done.stderr
