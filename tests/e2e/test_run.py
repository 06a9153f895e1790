"""Whole runs of real trainings, from the command line to the report."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from e2e_support import ROOT, gputop, training

from gputop_agent import wire
from gputop_probes.record.reader import RunRecord

pytestmark = pytest.mark.e2e

REPORT_KEYS = {
    "command",
    "exit_code",
    "world_size",
    "steps",
    "step_time_p50_ms",
    "step_time_p95_ms",
    "phases_mean_ms",
    "ranks",
    "gpus",
    "findings",
    "context",
}
RANK_KEYS = {
    "rank",
    "host",
    "steps",
    "step_time_p50_ms",
    "phases_mean_ms",
    "wait_mean_ms",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "peak_rss_gib",
    "dropped_records",
}
FINDING_KEYS = {"id", "severity", "rank", "title", "evidence", "fix", "recoverable_ms_per_step"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder of one training of 80 steps that ends with exit code 5, and what
    gputop printed.
    """
    folder = tmp_path_factory.mktemp("plain")
    (folder / "train.py").write_text(training(80, body="sys.exit(5) if i == 79 else None"))
    return folder, gputop("run", "--json", sys.executable, "train.py", tmp_path=folder)


def test_report_of_a_plain_training(plain) -> None:
    folder, done = plain
    assert done.returncode == 5
    report = json.loads(done.stdout)
    assert set(report) >= REPORT_KEYS
    assert (report["exit_code"], report["world_size"], report["steps"]) == (5, 1, 80)
    assert set(report["phases_mean_ms"]) == set(wire.PHASES)
    assert all(set(rank) >= RANK_KEYS for rank in report["ranks"])
    assert all(set(finding) >= FINDING_KEYS for finding in report["findings"])
    assert 4 < report["step_time_p50_ms"] < 50
    assert report["phases_mean_ms"]["other"] >= 4, (
        "the script sleeps 4 ms a step outside every phase"
    )
    again = gputop("report", "--json", tmp_path=folder)
    assert json.loads(again.stdout) == report


def test_phases_add_up_to_the_wall_time_and_the_times_to_the_run(plain) -> None:
    (run,) = (one for one in (plain[0] / "runs").iterdir() if one.is_dir() and not one.is_symlink())
    steps = RunRecord.open(run).steps(0)
    assert (sum(steps[f"{phase}_ns"] for phase in wire.PHASES) == steps["wall_ns"]).all()
    assert all((steps[f"{phase}_ns"] >= 0).all() for phase in wire.PHASES)
    gaps = steps["t_end_ns"][1:] - steps["wall_ns"][1:] - steps["t_end_ns"][:-1]
    assert abs(gaps).max() == 0, "steps follow each other without a hole"


def test_ranks_under_torchrun(tmp_path) -> None:
    ranks = 3
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    script = [
        str(ROOT / "examples" / "tiny_gpt.py"),
        "--steps",
        "40",
        "--width",
        "32",
        "--layers",
        "1",
        "--eval-every",
        "0",
    ]
    done = gputop("run", "--json", sys.executable, *words, *script, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["world_size"] == ranks
    assert [(rank["rank"], rank["steps"]) for rank in report["ranks"]] == [
        (rank, 40) for rank in range(ranks)
    ]
    assert all(
        rank["wait_mean_ms"] is not None and rank["wait_mean_ms"] >= 0 for rank in report["ranks"]
    )


def test_calibrate_stops_a_stable_training_and_judges_it(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(training(100_000))
    done = gputop(
        "run", "--calibrate", "--timeout", "20", sys.executable, str(script), tmp_path=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"stopped by gputop run --calibrate \((figures stable after|its --timeout came)",
        done.stderr,
    )
    assert re.search(r"gputop: (not )?calibrated\b.*\d ms a step", done.stderr)
    assert "gputop report" in done.stderr
    report = gputop("report", tmp_path=tmp_path).stdout
    assert report.startswith("stopped by gputop run --calibrate (")


def test_who_interrupts_a_calibration_gets_the_exit_code_of_an_interrupt(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, time\nstat = open(f'/proc/{os.getppid()}/stat').read()  # of the "
        "recorder, whose parent is the command line\nos.kill(int(stat.rsplit(')', "
        "1)[1].split()[1]), signal.SIGINT)\ntime.sleep(30)\n"
    )
    done = gputop("run", "--calibrate", sys.executable, str(script), tmp_path=tmp_path)
    assert done.returncode == 130 and "not calibrated" in done.stderr


def test_exports(plain) -> None:
    folder, _ = plain
    table = gputop("export", "--format", "csv", tmp_path=folder).stdout.splitlines()
    assert len(table) > 2
    assert all(len(line.split(",")) == len(table[0].split(",")) for line in table)
    assert json.loads(gputop("export", "--format", "json", tmp_path=folder).stdout)
    picture = gputop("export", "--format", "svg", "-o", "run.svg", tmp_path=folder)
    assert picture.returncode == 0, picture.stderr
    assert (folder / "run.svg").read_text().startswith("<svg")
    assert gputop("export", "--format", "csv", "--rank", "7", tmp_path=folder).returncode == 2


def test_an_export_goes_where_it_is_told_and_overwrites_nothing(plain, tmp_path) -> None:
    folder, _ = plain
    run = str(next((folder / "runs").iterdir()))
    assert gputop("export", run, tmp_path=tmp_path).stdout.startswith("rank,")
    (tmp_path / "out").mkdir()
    for words, name in (
        (["-o", "a.json"], "a.json"),
        (["-o", "out"], f"out/gputop-{Path(run).name}.csv"),
    ):
        done = gputop("export", run, *words, tmp_path=tmp_path)
        assert (done.returncode, done.stdout) == (0, "") and name in done.stderr
        before = (tmp_path / name).read_text()
        assert before.startswith("{" if name.endswith("json") else "rank,")
        again = gputop("export", run, *words, "--format", "csv", tmp_path=tmp_path)
        assert again.returncode == 2 and name in again.stderr and "--force" in again.stderr
        assert (tmp_path / name).read_text() == before
    assert gputop("export", run, "-o", "a.json", "--force", tmp_path=tmp_path).returncode == 0
    assert gputop("export", run, "-o", "a.pdf", tmp_path=tmp_path).returncode == 2
