"""The bundled run: eight real ranks of which one is late, GPU figures that are marked as added."""

import json
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from gputop.app.export import svg
from gputop.cli.house.demo import unpack
from gputop.feed.build import devices
from gputop.feed.cut import cut, output_lengths, span
from gputop.publish.reading import read
from gputop_analysis.html import as_html
from gputop_analysis.overview import GPUS_ADDED
from gputop_analysis.prices import run_usd_per_hour
from gputop_analysis.report import Report
from gputop_analysis.report.data import as_data
from gputop_analysis.report.markdown import as_markdown
from gputop_analysis.report.text import as_text
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> RunRecord:
    """The bundled run."""
    return RunRecord.open(unpack(tmp_path_factory.mktemp("demo")))


@pytest.fixture(scope="module")
def report(record) -> Report:
    """Its report."""
    return Report(record)


def test_one_of_eight_ranks_is_late_and_the_line_is_named(report):
    first = report.findings[0]
    assert (first.id, first.rank, report.summary.world_size) == ("IN11", 5, 8)
    assert first.site is not None and first.site.startswith("examples/tiny_gpt.py:")
    assert (first.recoverable_ms_per_step or 0) > 0.4 * report.summary.step_time_p50_ms


def test_every_form_of_the_report_says_that_gpu_figures_were_added(record, report):
    data = as_data(report)
    assert [gpu["added"] for gpu in data["gpus"]] == [True] * 8
    for text in (as_text(report, 100), as_markdown(report), unescape(as_html(report))):
        assert f"{GPUS_ADDED} to the recording, not measured" in text
        assert record.manifest.recording in text


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_the_screen_says_that_gpu_figures_were_added(record, size):
    picture = unescape(svg(record.path, size, at=0.5)).replace("\xa0", " ")
    assert GPUS_ADDED in picture


def test_nothing_is_judged_by_added_figures_and_none_is_published(record, report):
    measured = RunView(record).record
    (host,) = measured.hosts.values()
    assert devices(record) == {rank: ("vm", rank) for rank in range(8)}
    assert len(host.gpu.rows) == 0 and host.state.gpus == []
    reading = read(record, report.summary, report.findings, report.verdict)
    assert not [sample for sample in reading.samples if "gpu" in sample.labels]
    assert run_usd_per_hour(measured) is None and run_usd_per_hour(record) is not None
    assert "of rent" not in as_text(report, 100) + as_html(report)


def test_only_added_devices_are_left_out(record, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(record.path, folder)
    state = folder / "hosts" / "vm" / "host.json"
    fields = json.loads(state.read_text())
    del fields["gpus"][3]["added"]
    state.write_text(json.dumps(fields))
    (host,) = RunRecord.open(folder).measured().hosts.values()
    assert set(host.gpu.rows["index"].tolist()) == {3}
    assert [gpu.index for gpu in host.state.gpus] == [3]


def test_added_figures_follow_the_steps(record):
    """The late rank's device idles, the others' do not; none is above what it can be."""
    rows = record.hosts["vm"].gpu.rows
    busy = {int(i): float(np.median(rows["util_pct"][rows["index"] == i])) for i in range(8)}
    assert busy.pop(5) < 50 < min(busy.values())
    assert rows["util_pct"].max() <= 100 and (rows["power_w"] <= rows["power_limit_w"]).all()
    assert (rows["memory_used_bytes"] < rows["memory_total_bytes"]).all()


def test_output_comes_in_step_with_time(record):
    start, end = span(record)
    log = Path("hosts/vm/output.log")
    whole = (record.path / log).read_bytes()
    lengths = []
    for share in (0.3, 0.5, 0.7, 0.9, 1.0):
        part = output_lengths(cut(record, start + int(share * (end - start))))
        assert part is not None
        lengths.append(part[str(log)])
    assert lengths == sorted(set(lengths)) and lengths[-1] == len(whole)
    assert whole[lengths[1] - 1 : lengths[1]] == b"\n"
