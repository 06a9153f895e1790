"""One record for all tests of the app, made once."""

from __future__ import annotations

import pytest
from tui_support import START_NS, a_finding, of_slow_rank, write_run

from gputop.feed.build import build
from gputop_probes.record.reader import RunRecord


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """A run of four ranks on four GPUs that has ended."""
    folder = tmp_path_factory.mktemp("record") / "straggler"
    return write_run(folder, ranks=4, gpus=4, slow_rank=2, spike_at=250, steps=380, total_steps=400)


@pytest.fixture(scope="session")
def running(run_dir):
    """The same run while it still went on."""
    ended = build(RunRecord.open(run_dir), (), window_steps=500, now_ns=START_NS + 11 * 10**9)
    findings = (
        of_slow_rank(),
        a_finding("medium", None, id="HO06", title="host work outside PyTorch: 11 % of each step"),
    )
    summary = ended.summary._replace(state="running", exit_code=None, ended_ns=None)
    verdict = ended.verdict._replace(health="attention", headline=findings[0].title)
    return ended._replace(summary=summary, findings=findings, verdict=verdict)
