"""A few steps of a running training under torch.profiler: asked for by command, and once the run is
steady.
"""

import json
import subprocess
import sys
import time

import pytest
from e2e_support import GPUTOP, environment, gputop

from gputop_agent import wire
from gputop_probes.record.reader import RunRecord

pytestmark = pytest.mark.e2e

SCRIPT = """
import os, sys, time, torch
import torch.distributed as dist
torch.manual_seed(0)
rank = int(os.environ.get("RANK", 0))
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
loader = torch.utils.data.DataLoader([(torch.randn(32),) for _ in range(8 * 5000)], batch_size=8)
enough = torch.zeros(1)
for i, (x,) in enumerate(loader):
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.004)
    enough += i >= int(sys.argv[1]) or os.path.exists("stop")
    if "RANK" in os.environ and i % 20 == 0:
        dist.all_reduce(enough)
    if enough and i % 20 == 0:
        break
if rank == 0:
    print("trained")
print("narrated", file=sys.stderr)
sys.exit(3)
"""


def burst_steps(record, rank):
    """Flags of the steps by index, a folded record standing for its last."""
    return {int(row["step"]): int(row["flags"]) for row in record.steps(rank)}


def test_a_profile_once_the_run_is_steady(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["run", "--run-dir", "run", "--profile-steps", "4", sys.executable, "train.py", "400"]
    done = gputop(*words, tmp_path=tmp_path)
    assert (done.returncode, done.stdout) == (3, "trained\n")
    assert (
        done.stderr.startswith("narrated\n")
        and "4 steps from step" in done.stderr
        and "compute" in done.stderr
    )
    record = RunRecord.open(tmp_path / "run")
    (event,) = record.events("profile")
    assert (
        event["steps"] == 4
        and {row["op"]: row["calls"] for row in event["table"]}["aten::addmm"] == 8
    )
    first, flags = event["first_step"], burst_steps(record, 0)
    assert all(flags[step] & wire.F_AGENT for step in range(first, first + 4))
    assert not any(flag & wire.F_AGENT for step, flag in flags.items() if first - 8 < step < first)
    assert not flags[max(flags)] & wire.F_AGENT, "the statistics go on after the burst"
    steps = record.steps(0)
    assert all((steps[f"{phase}_ns"] >= 0).all() for phase in wire.PHASES)
    assert not list((tmp_path / "run" / "traces").glob("*.part"))
    report = json.loads(gputop("report", "run", "--json", tmp_path=tmp_path).stdout)
    assert not {one["id"] for one in report["findings"]} & {"HO16", "HO04", "HO15", "CE11", "HO03"}


def test_a_profile_of_two_ranks_on_command(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    words = [*GPUTOP, "run", "--run-dir", "run", *launcher, "train.py", "5000"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(tmp_path), text=True, **pipes)
    try:
        until = time.monotonic() + 60
        while len(list((tmp_path / "run").glob("steps/*.bin"))) < 2 and time.monotonic() < until:
            time.sleep(0.2)
        done = gputop("profile", "run", "-n", "3", "--json", tmp_path=tmp_path)
        assert done.returncode == 0, done.stderr
        taken = json.loads(done.stdout)
        text = gputop("profile", "run", "--rank", "1", "-n", "2", tmp_path=tmp_path)
    finally:
        (tmp_path / "stop").touch()
        process.communicate(timeout=60)
    assert [(one["rank"], one["steps"], one["error"]) for one in taken] == [
        (0, 3, None),
        (1, 3, None),
    ]
    for one in taken:
        (lane,) = one["trace"]["lanes"]
        reduced = sum(c["count"] for c in lane["collectives"] if c["operation"] == "all_reduce")
        assert reduced >= 3 and one["trace"]["rank"] == one["rank"] and len(lane["steps"]) == 3
        for step in lane["steps"]:
            assert sum(step["parts_ms"].values()) == pytest.approx(step["wall_ms"], abs=1e-6)
    assert (
        text.returncode == 0
        and text.stdout.startswith("rank 1, 2 steps from step")
        and "gloo:all_reduce" in text.stdout
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profile", "run", "-n", "0"], "between 1 and 100 steps"),
        (["profile", "nowhere"], "nowhere"),
        (["run", "--profile-steps", "many", "true"], "between 1 and 100 steps"),
    ],
)
def test_wrong_input_is_one_line(words, said, tmp_path):
    done = gputop(*words, tmp_path=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_a_run_that_never_is_steady_says_so(tmp_path):
    done = gputop("run", "--run-dir", "run", "--profile-steps", "3", "true", tmp_path=tmp_path)
    assert done.returncode == 0 and "no 10 steady steps" in done.stderr
    late = gputop("profile", "run", tmp_path=tmp_path)
    assert late.returncode == 2 and "not running" in late.stderr
