"""Ctrl-C and its escalation; nothing of a stopped run is left behind, and nothing of an ended one
is touched.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import recorder_support as support

from gputop_probes import client, procfs, stop


def started(tmp_path: Path, command: list[str], word: str = "up"):
    process = support.front(tmp_path, command)
    support.until(lambda: word in support.output(tmp_path / "run"))
    return process


def test_ctrl_c_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    source = (
        "import time\nprint('up', flush=True)\ntry: time.sleep(30)\nexcept "
        "KeyboardInterrupt: print('saved'); exit(2)"
    )
    process = started(tmp_path, support.python(source))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"up\nsaved\n")
    (event,) = support.events(tmp_path / "run", "interrupt")
    assert (event["signal"], event["by"]) == (signal.SIGINT, "user")


def test_escalation_to_every_process(tmp_path: Path) -> None:
    """The command and a process in another session ignore all that can be ignored, as ranks under
    torchrun may.
    """
    source = """
import os, signal, time
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
if os.fork() == 0: os.setsid()
else: print("up", flush=True)
time.sleep(60)
"""
    process = started(tmp_path, support.python(source))
    state = support.state(tmp_path / "run")
    family = stop.processes(state["run_id"], state["command_pgid"])
    assert len(family) == 2
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 137
    assert not any(procfs.alive(pid) for pid in family)
    assert [event["signal"] for event in support.events(tmp_path / "run", "interrupt")] == [
        2,
        15,
        9,
    ]


def test_survivors_of_a_stopped_run_are_ended(tmp_path: Path) -> None:
    source = """
import os, time
if os.fork() == 0:
    os.setsid()
    open("rank.pid", "w").write(str(os.getpid()))
    time.sleep(60)
while not os.path.exists("rank.pid") or not open("rank.pid").read(): time.sleep(0.01)
print("up", flush=True)
time.sleep(60)
"""
    process = started(tmp_path, support.python(source))
    rank = int((tmp_path / "rank.pid").read_text())
    assert client.send_command(tmp_path / "run", {"cmd": "stop", "signal": 2, "by": "app"}) == {
        "ok": True
    }
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert not procfs.alive(rank)


def test_orphans_of_an_ended_run_are_left_alone(tmp_path: Path) -> None:
    process = support.front(tmp_path, ["sh", "-c", "sleep 30 > sleeping 2>&1 & echo $! ; exit 3"])
    out, _ = process.communicate(timeout=60)
    orphan = int(out)
    try:
        assert process.returncode == 3
        assert procfs.alive(orphan)
        (event,) = support.events(tmp_path / "run", "orphans")
        assert event["pids"] == [orphan]
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_ctrl_c_without_a_recorder(tmp_path: Path) -> None:
    process = started(
        tmp_path, support.python("import time\nprint('up', flush=True)\ntime.sleep(30)")
    )
    os.kill(support.state(tmp_path / "run")["recorder_pid"], signal.SIGKILL)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert support.state(tmp_path / "run")["exit_code"] == 128 + signal.SIGINT


@pytest.mark.e2e
def test_torchrun_leaves_no_rank_behind(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "rank.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(f'pid-{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\nprint('up', "
        "flush=True)\ntime.sleep(120)\n"
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "rank.py",
    ]
    process = started(tmp_path, command)
    ranks = [tmp_path / "pid-0", tmp_path / "pid-1"]
    support.until(lambda: all(path.exists() and path.read_text() for path in ranks))
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    process.communicate(timeout=60)
    assert process.returncode in (1, 137, 128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert not any(procfs.alive(int(path.read_text())) for path in ranks)
    state = support.state(tmp_path / "run")
    assert support.until(lambda: not stop.processes(state["run_id"], state["command_pgid"]))
