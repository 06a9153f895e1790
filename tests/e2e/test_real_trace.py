"""The trace analysis on a real export of torch.profiler: two gloo ranks under DDP, against counting
it out by hand.
"""

import json
import subprocess
import sys
from fractions import Fraction

import pytest
from e2e_support import environment

from gputop_analysis.traces import analyse_trace

pytestmark = pytest.mark.e2e

STEPS = 4
SCRIPT = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile, schedule

def train(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)])
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    plan = schedule(wait=1, warmup=1, active=STEPS)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
        for step in range(2 + STEPS):
            model(torch.randn(16, 128)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(torch.ones(1000))
            profiler.step()
    name = f"rank{rank}.json.gz" if rank else f"rank{rank}.json"
    profiler.export_chrome_trace(f"{folder}/{name}")
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, (sys.argv[1],), 2)
""".replace("STEPS", str(STEPS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    (folder / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py", str(folder)],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return folder


def covered(spans):
    """Length of the union of (start, end) pairs, one after the other."""
    total, reached = Fraction(0), None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            reached = start
        if end > reached:
            total, reached = total + end - reached, end
    return total


def expected(path):
    """Compute, exposed communication and all of it in ms, from the file, without the code under
    test.
    """
    data = json.loads(path.read_text(), parse_float=Fraction, parse_int=Fraction)
    spans = [
        e
        for e in data["traceEvents"]
        if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")
    ]
    thread = next(e["tid"] for e in spans if e["name"].startswith("Optimizer.step#"))
    pair = lambda e: (e["ts"], e["ts"] + e["dur"])  # noqa: E731
    ops = [e for e in spans if e["cat"] == "cpu_op" and e["tid"] == thread]
    waits = [pair(e) for e in ops if e["name"].startswith("c10d::")]
    work = [pair(e) for e in ops if not e["name"].startswith("c10d::")]
    comm = [pair(e) for e in spans if e["name"].startswith("gloo:")]
    compute = covered(work) - (covered(work) + covered(waits) - covered(work + waits))
    pieces = [*work]
    for start, end in waits:  # what of an operator lies in a wait is no compute
        pieces = [
            part
            for p in pieces
            for part in ((p[0], min(p[1], start)), (max(p[0], end), p[1]))
            if part[0] < part[1]
        ]
    exposed = covered(pieces + comm) - covered(pieces)
    return float(compute) / 1e3, float(exposed) / 1e3, float(covered(comm)) / 1e3


def test_the_split_is_what_counting_gives(folder):
    (lane,) = analyse_trace(folder / "rank0.json").lanes
    compute, exposed, communication = expected(folder / "rank0.json")
    assert lane.parts_ms["compute"] == pytest.approx(compute, abs=1e-6)
    assert lane.parts_ms["communication"] == pytest.approx(exposed, abs=1e-6)
    assert lane.communication_ms == pytest.approx(communication, abs=1e-6)
    assert sum(lane.parts_ms.values()) == pytest.approx(lane.wall_ms, abs=1e-6)
    assert 0 < exposed <= communication


@pytest.mark.parametrize("name", ["rank0.json", "rank1.json.gz"])
def test_steps_collectives_and_place(folder, name):
    report = analyse_trace(folder / name)
    (lane,) = report.lanes
    assert (report.rank, report.world_size, report.torn) == (int(name[4]), 2, None)
    assert [step.name for step in lane.steps] == [str(2 + i) for i in range(STEPS)]
    assert all(
        sum(step.parts_ms.values()) == pytest.approx(step.wall_ms, abs=1e-6) for step in lane.steps
    )
    reduced = {one.name: one.count for one in lane.collectives}
    assert reduced["gloo:all_reduce"] >= 2 * STEPS  # DDP's buckets and the one of the script
    calls = {hot.name: hot.count for hot in lane.hot}
    assert calls["aten::addmm"] == 4 * STEPS
