"""Two forked gloo ranks: a message received in the background, and an exception that ends a child
of ``torch.multiprocessing``.
"""

import json

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import eager, json, os, sys, tempfile, torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def states():
    ring = sys.modules["gputop_agent.watchers.messages"]
    return [(m["op"], m["peer"], m["site"].split(":")[0], m["state"]) for m in ring.entries()]


def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    if rank == 1:
        dist.barrier()
        dist.isend(torch.ones(4), dst=0).wait()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(4), 0)]):
            work.wait()
        dist.barrier()
        raise ValueError("the labels are empty")
    received, again = torch.zeros(4), torch.zeros(4)
    works = [dist.irecv(received, src=1)]
    works += dist.batch_isend_irecv([dist.P2POp(dist.irecv, again, 1)])
    before = states()
    dist.barrier()
    for work in works:
        work.wait()
    after = states()
    dist.barrier()
    print(json.dumps([before, after, received.tolist() + again.tolist()]))


if __name__ == "__main__":
    store = tempfile.mktemp()
    context = multiprocessing.start_processes(train, (store,), 2, join=False, start_method="fork")
    try:
        while not context.join():
            pass
    except Exception as error:
        print(type(error).__name__)
"""


def test_received_in_the_background_and_raised_in_a_child(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    found = run_script([str(script)])
    assert found.exit_code == 0, found.stderr
    assert found.agent_errors == ""
    line, ending = found.stdout.splitlines()
    assert ending == "ProcessRaisedException"
    before, after, values = json.loads(line)
    assert values == [1.0] * 8
    assert before == [["recv", 1, "train.py", "started"]] * 2
    assert after == [["recv", 1, "train.py", "completed"]] * 2
    raised = [event for guest in found.guests for event in guest.of_type("exception")]
    (event,) = raised
    assert (event["class"], event["message"]) == ("ValueError", "the labels are empty")
    assert event["site"].startswith("train.py:") and event["site"].endswith(" train")
    (goodbye,) = [
        event
        for guest in found.guests
        if guest.of_type("exception")
        for event in guest.of_type("goodbye")
    ]
    assert goodbye["reason"] == "exception"


PIPELINE = """
import eager, os, tempfile, time, torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(40):
        x = torch.ones(4)
        if rank == 0:
            time.sleep(0.01)
        kind = dist.isend if rank == 0 else dist.irecv
        for work in dist.batch_isend_irecv([dist.P2POp(kind, x, 1 - rank)]):
            work.wait()
        model(x).sum().backward()
        optimizer.step()
    dist.barrier()


if __name__ == "__main__":
    multiprocessing.start_processes(train, (tempfile.mktemp(),), 2, start_method="fork")
"""


def test_the_wait_for_a_message_is_communication(tmp_path):
    """A pipeline made by hand waits for its neighbour's work: it was told as host code."""
    script = tmp_path / "pipeline.py"
    script.write_text(PIPELINE)
    found = run_script([str(script)])
    assert (found.exit_code, found.agent_errors) == (0, ""), found.stderr
    waits = sorted(guest.phase_ms("comm") for guest in found.guests if guest.n_steps > 30)
    assert len(waits) == 2 and waits[0] < 100 and waits[1] > 0.8 * 38 * 10
