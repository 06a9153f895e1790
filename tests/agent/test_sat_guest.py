"""One real training process with the satellites at work, and a listener in place of the
recorder.
"""

import json
import signal

import pytest
import sat_support

from gputop_agent import wire

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

SCRIPT = (
    sat_support.GUEST
    + """
import gputop
from gputop_agent.description import describe_loader
from gputop_agent.timing import step_state
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=16)

@gputop.phase("bookkeeping")
def bookkeeping():
    time.sleep(0.004)

def wait_in_user_code():
    time.sleep(0.02)

step = 0
while not os.path.exists("stop"):
    for (x,) in loader:
        batch.count((x,))
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        bookkeeping()
        gputop.log(reward=step, loss=loss, name="text")
        if step == 0:
            begin([model], [optimizer])
            assert threading.active_count() == 1, "ours is none of the user's"
        if step == 20:
            step_state.open_step.loader = describe_loader.describe_loader(loader)
            S.autocast_seen = torch.bfloat16
        clock.enter(state.DATA)
        wait_in_user_code()
        clock.leave()
        closed(step)
        step += 1
S.phase = state.COMM
print("steps", step)
"""
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The finished process, its listener, output and exit code; all commands were sent while it
    trained.
    """
    folder = tmp_path_factory.mktemp("guest")
    listener = sat_support.Listener(folder)
    process = sat_support.start(folder, SCRIPT, sat_support.environment(listener))
    try:
        listener.wait(lambda: listener.events("hello"), process)
        for command in (
            {"cmd": "dump", "reason": "look"},
            {"cmd": "unknown"},
            {"cmd": "flight_recorder"},
        ):
            listener.command(process.pid, **command)
        listener.command(process.pid, cmd="profile", steps=3, trace_dir=str(folder / "traces"))
        listener.command(process.pid, cmd="profile", steps=3)
        listener.wait(lambda: len(listener.events("profile")) == 2)
        listener.wait(
            lambda: any("dataloader" in event for event in listener.events("hello_update"))
        )
        listener.wait(lambda: any(event["phase"] == "data" for event in listener.events("stacks")))
        listener.wait(
            lambda: len(listener.events("named_phase")) > 1 and len(listener.events("log")) > 5
        )
        (folder / "stop").touch()
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        listener.close()
    yield {"listener": listener, "output": output, "errors": errors, "code": process.returncode}


def test_the_script_notices_nothing(run):
    assert run["code"] == 0 and run["errors"] == "" and run["output"].startswith("steps ")


def test_hello_says_what_the_run_is(run):
    (hello,) = run["listener"].events("hello")
    assert hello["model"]["class"] == "Sequential" and hello["model"]["parameters"] == 81
    assert hello["optimizer"]["class"] == "AdamW" and hello["optimizer"]["lr"] == 0.5
    assert hello["device"] == "cpu" and hello["world_size"] == 1 and hello["launcher"] == "none"
    assert hello["argv"][0].endswith("train.py") and hello["threads"]["torch"] == 1
    assert (
        hello["env"]["OMP_NUM_THREADS"] == "1" and hello["tid"] > 0 and hello["total_steps"] is None
    )
    assert hello["batch"] == {"shapes": {"0": [16, 8]}, "dtypes": {"0": "float32"}}


def test_what_becomes_known_later_follows(run):
    merged = {}
    for event in run["listener"].events("hello_update"):
        merged.update(event)
    assert (
        merged["dataloader"]["batch_size"] == 16
        and merged["dataloader"]["dataset"] == "TensorDataset"
    )
    assert merged["dataloader"]["loop"].startswith("train.py:")
    assert merged["amp"] == {"autocast": True, "dtype": "bfloat16", "grad_scaler": False}
    assert "model" not in merged  # only what changed


def test_the_data_phase_has_a_line(run):
    samples = [
        s for e in run["listener"].events("stacks") if e["phase"] == "data" for s in e["samples"]
    ]
    top = max(samples, key=lambda sample: sample["count"])
    assert top["function"] == "wait_in_user_code" and top["site"].startswith("train.py:")
    assert "train.py" in top["caller"]


def test_dump_on_command(run):
    (dump,) = run["listener"].events("stack_dump")
    assert (
        dump["reason"] == "look" and dump["threads"][0]["training"] and dump["collective"] is None
    )
    assert any("train.py" in frame for frame in dump["threads"][0]["frames"])
    (recorder,) = run["listener"].events("flight_recorder")
    assert recorder["entries"] == []


def test_profile_on_command(run):
    taken, refused = sorted(run["listener"].events("profile"), key=lambda event: -event["steps"])
    assert taken["steps"] == 3 and refused["steps"] == 0 and "already" in refused["error"]
    calls = {row["op"]: row["calls"] for row in taken["table"]}
    assert calls["aten::linear"] == 6  # two layers, three steps
    assert sum(row["cpu_ms"] for row in taken["table"]) > 0
    with open(taken["trace_path"]) as file:
        events = json.load(file)["traceEvents"]
    steps = [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]
    assert steps == [f"ProfilerStep#{taken['first_step'] + i}" for i in range(3)]


def test_named_phases_and_logs(run):
    last = run["listener"].events("named_phase")[-1]
    assert last["name"] == "bookkeeping" and last["phase"] == "other"
    assert last["total_ns"] >= last["count"] * 4_000_000 and last["count"] > 10
    logs = run["listener"].events("log")
    assert {"reward", "loss"} == set(logs[-1]["values"])
    times = [event["t_ns"] for event in logs]
    assert len(times) <= (times[-1] - times[0]) / 100e6 + 2  # ten a second, however fast the loop
    steps = [event["step"] for event in logs]
    assert steps == sorted(steps)


RECONNECT = (
    sat_support.GUEST
    + """
model = torch.nn.Linear(2, 2)
begin([model])
for step in range(10_000):
    if os.path.exists("stop"):
        break
    time.sleep(0.01)
    closed(step)
    api.log({"step": step})
os.kill(os.getpid(), 15) if "kill" in sys.argv else None
"""
)


def test_a_new_recorder_is_told_again_and_a_signal_stays_a_signal(tmp_path):
    listener = sat_support.Listener(tmp_path)
    process = sat_support.start(tmp_path, RECONNECT, sat_support.environment(listener), "kill")
    successor = listener
    try:
        listener.wait(lambda: listener.events("log"), process)
        listener.close()
        (tmp_path / "sock").unlink()
        successor = sat_support.Listener(tmp_path)
        successor.wait(lambda: successor.events("log"))
        (hello,) = successor.events("hello")
        assert hello["model"]["class"] == "Linear"
        assert hello["t_ns"] >= listener.events("hello")[0]["t_ns"]
        (tmp_path / "stop").touch()
        output, errors = process.communicate(timeout=30)
        assert (process.returncode, output, errors) == (-signal.SIGTERM, "", "")
    finally:
        process.kill()
        successor.close()


def test_wire_has_room_for_every_record():
    assert wire.DEVICE.size % 8 == 0 and wire.COMM.size % 8 == 0
