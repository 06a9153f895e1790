"""Two gloo ranks under DDP: who waits for whom, which settings, which collective hangs."""

import socket
import statistics
import time

import pytest
import sat_support

from gputop_agent import wire

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

STEPS = 24
WHERE = ("nowhere", "forward", "data", "backward", "host")
DELAY_NS = 25_000_000

SCRIPT = (
    sat_support.GUEST
    + f"""
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)
    def forward(self, x, where):
        if where == "forward":
            time.sleep({DELAY_NS} / 1e9)
        delay = {DELAY_NS} / 1e9 if where == "backward" else 0.002
        return self.last(SlowBackward.apply(self.first(x), delay))

def load_data():
    time.sleep(60)

model = torch.nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
step = 0
for stage in {WHERE!r}:
    for _ in range({STEPS}):
        where = stage if rank == 1 else "nowhere"
        if where == "data":
            time.sleep({DELAY_NS} / 1e9)
        model(torch.ones(4, 16), where).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if where == "host":
            time.sleep({DELAY_NS} / 1e9)
        if step == 0:
            begin([model], [optimizer], ddp=[model])
        closed(step)
        step += 1
api.log({{"finished": rank}})
time.sleep(0.01)
if rank == 1:
    load_data()
S.phase = state.COMM
dist.all_reduce(torch.ones(3))
"""
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(listener, pids, answer, **command):
    """Send a command to all ranks and wait until each has answered."""
    before = {pid: len(listener.events(answer, pid)) for pid in pids}
    for pid in pids:
        listener.command(pid, **command)
    listener.wait(lambda: all(len(listener.events(answer, pid)) > before[pid] for pid in pids))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Per rank what it sent, up to a dump while rank 0 waits in an all-reduce that rank 1 never
    joins.
    """
    folder = tmp_path_factory.mktemp("ranks")
    listener = sat_support.Listener(folder)
    port = str(free_port())
    processes = []
    try:
        for rank in range(2):
            environ = sat_support.environment(
                listener,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            )
            processes.append(sat_support.start(folder, SCRIPT, environ))
        pids = [process.pid for process in processes]
        listener.wait(
            lambda: len([e for e in listener.events("log") if "finished" in e["values"]]) == 2,
            processes[0],
        )
        for _ in range(
            100
        ):  # until rank 0 has entered the all-reduce and rank 1 the sleep that keeps it out
            ask(listener, pids, "stack_dump", cmd="dump", reason="hang")
            waiting, absent = (listener.events("stack_dump", pid)[-1] for pid in pids)
            if waiting["phase"] == "comm" and "load_data" in str(absent["threads"]):
                break
            time.sleep(0.02)
        ask(listener, pids, "flight_recorder", cmd="flight_recorder")
        yield [
            {
                name: listener.events(name, pid)
                for name in (
                    "hello",
                    "hello_update",
                    "ddp",
                    "stack_dump",
                    "flight_recorder",
                    "agent_error",
                )
            }
            | {"comm": listener.records(wire.MSG_COMM, pid)}
            for pid in pids
        ]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        listener.close()


def waits(rank, stage):
    first = WHERE.index(stage) * STEPS
    return [r["wait_ns"] for r in rank["comm"] if first + 2 <= r["step"] < first + STEPS - 2]


@pytest.mark.parametrize("stage", WHERE[1:])
def test_the_slow_rank_is_the_one_that_waits_least(ranks, stage):
    victim, culprit = (statistics.median(waits(rank, stage)) for rank in ranks)
    assert len(waits(ranks[0], stage)) >= 4
    assert victim > DELAY_NS / 2 and culprit < victim / 2


def test_records_are_rate_limited_whole_and_on_the_right_step(ranks):
    for rank in ranks:
        records = rank["comm"]
        steps = [record["step"] for record in records]
        assert steps == sorted(set(steps)) and len(steps) < 4 * STEPS
        for record in records:
            assert record["source"] == wire.COMM_DDP
            assert record["wait_ns"] == max(0, record["backward_comm_ns"] - record["overlap_ns"])
            assert record["forward_ns"] > 0 and record["backward_compute_ns"] > 0
    first, second = ({record["step"] for record in rank["comm"]} for rank in ranks)
    assert len(first & second) > 0.4 * len(first)  # ranks sample the same steps
    slow_forward = [r["step"] for r in ranks[1]["comm"] if r["forward_ns"] > DELAY_NS]
    first = WHERE.index("forward") * STEPS
    assert slow_forward and all(first <= step < first + STEPS for step in slow_forward)


def test_settings_are_told_once_the_buckets_are_rebuilt(ranks):
    for rank in ranks:
        assert 1 <= len(rank["ddp"]) <= 2
        found = rank["ddp"][-1]
        assert found["backend"] == "gloo" and found["bucket_cap_bytes"] == 1 << 20
        assert sum(found["bucket_bytes"]) == found["parameter_bytes"] == 4 * (16 * 17 + 17)
        assert found["find_unused_parameters"] is False and found["static_graph"] is False
        assert rank["agent_error"] == []


def test_hello_knows_rank_and_parallelism(ranks):
    for index, rank in enumerate(ranks):
        (hello,) = rank["hello"]
        assert (hello["rank"], hello["world_size"], hello["local_rank"]) == (index, 2, index)
        assert hello["model"]["class"] == "Net" and hello["model"]["roots"] == [
            "DistributedDataParallel"
        ]
        assert (
            hello["parallel"]["backend"] == "gloo" and hello["parallel"]["ddp"]["backend"] == "gloo"
        )


def test_the_dump_names_the_line_and_the_collective_while_gloo_blocks(ranks):
    waiting, absent = (rank["stack_dump"][-1] for rank in ranks)
    assert waiting["phase"] == "comm" and "all_reduce" in waiting["threads"][0]["frames"][0]
    assert any("train.py" in frame for frame in waiting["threads"][0]["frames"])
    assert any(
        frame.startswith("train.py") and "load_data" in frame
        for frame in absent["threads"][0]["frames"]
    )
    assert (
        waiting["collective"]["op"] == "gloo:all_reduce"
        and waiting["collective"]["state"] != "completed"
    )
    assert waiting["collective"]["bytes"] == 12
    assert absent["collective"]["state"] == "completed"
    assert waiting["collective"]["seq"] == absent["collective"]["seq"] + 1


def test_the_flight_recorder_lines_up_between_ranks(ranks):
    first, second = (
        {
            e["seq"]: e
            for event in rank["flight_recorder"]
            for e in event["entries"]
            if e["op"] == "gloo:all_reduce"
        }
        for rank in ranks
    )
    common = sorted(set(first) & set(second))
    assert len(common) > 20
    skew_ns = [second[seq]["created_ns"] - first[seq]["created_ns"] for seq in common[-STEPS + 2 :]]
    assert statistics.median(skew_ns) > DELAY_NS / 2  # the last stage: rank 1's host code is late
