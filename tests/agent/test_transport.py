"""The way to the recorder: readers that come late, stop or die, long paths, STREAM."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_support import Collector, collecting, guest_env, run_script

pytestmark = pytest.mark.e2e

LOOP = """
import sys, time, eager, torch
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
def steps(n, pause=0.0):
    for _ in range(n):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause)
"""


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(LOOP + body)
    return str(path)


def test_stream_carries_the_same(tmp_path):
    outcome = run_script([script(tmp_path, "steps(500)")], stream=True)
    assert outcome.guest.n_steps == 500
    assert outcome.guest.of_type("goodbye")[0]["dropped"] == 0


def test_long_socket_path(tmp_path):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    collector = Collector(folder / "sock")
    try:
        env = guest_env(collector.path)
        done = subprocess.run(
            [sys.executable, script(tmp_path, "steps(20)")], env=env, timeout=120, check=False
        )
        time.sleep(0.1)
        assert done.returncode == 0
        assert collector.guests[0].n_steps == 20
    finally:
        collector.close()


def test_without_a_recorder_nothing_happens(tmp_path):
    env = guest_env(tmp_path / "nobody")
    done = subprocess.run(
        [sys.executable, script(tmp_path, "steps(20); print('ok')")],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_a_recorder_that_comes_back_gets_a_hello_and_what_it_missed(tmp_path):
    path = tmp_path / "sock"
    first = Collector(path)
    body = (
        "steps(100, 0.005)\nprint('half', flush=True)\nsys.stdin.readline()\nsteps(60, "
        "0.02)\ntime.sleep(1.0)"
    )
    command = [sys.executable, script(tmp_path, body)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=guest_env(path), **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        time.sleep(0.3)
        first.close()
        second = Collector(path)
        try:
            process.communicate("go\n", timeout=60)
            time.sleep(0.1)
            assert process.returncode == 0
            guest = second.guests[0]
            assert guest.messages[0][:1] == b"E" and guest.events[0]["type"] == "hello"
            assert first.guests[0].n_steps + guest.n_steps == 160
        finally:
            second.close()


def test_a_reader_that_stops_never_blocks_and_the_loss_is_counted(tmp_path):
    body = """
from gputop_agent.runtime import transport
from gputop_agent.runtime.session import session
steps(3, 0.1)
print("started", flush=True)
sys.stdin.readline()
worst = 0.0
for _ in range(12000):
    began = time.perf_counter()
    with session.lock:
        transport.send_step(b"x" * 232, time.monotonic_ns())
        transport.flush()
    worst = max(worst, time.perf_counter() - began)
print(session.dropped > 0, sorted([worst])[0] < 0.5, flush=True)
"""
    with collecting() as collector:
        command = [sys.executable, script(tmp_path, body)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=guest_env(collector.path), **pipes) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            collector.paused = True
            time.sleep(0.1)
            out, _ = process.communicate("go\n", timeout=60)
            assert process.returncode == 0
            assert out == "True True\n"


def test_stale_steps_are_sent_while_a_long_step_runs(tmp_path):
    body = "steps(40, 0.001)\ntime.sleep(0.6)\nprint('now', flush=True)\nsys.stdin.readline()"
    with collecting() as collector:
        command = [sys.executable, script(tmp_path, body)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=guest_env(collector.path), **pipes) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "now\n"
            time.sleep(0.2)
            seen = collector.guests[0].n_steps
            os.kill(process.pid, 9)
            process.wait()
        assert seen == 39  # the fortieth is not over before its next event


def test_a_recorder_that_is_there_only_at_the_end_gets_everything(tmp_path):
    """So short a process has no second attempt of the agent's thread; a busy recorder refused the
    first.
    """
    path = script(tmp_path, "steps(20); print('trained', flush=True); sys.stdin.readline()")
    process = subprocess.Popen(
        [sys.executable, path],
        env=guest_env(tmp_path / "sock"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"trained\n"
    collector = Collector(tmp_path / "sock")
    try:
        process.communicate(b"\n", timeout=60)
        time.sleep(0.1)
        assert process.returncode == 0
        assert collector.guests[0].n_steps == 20
        assert collector.guests[0].of_type("hello") and collector.guests[0].of_type("goodbye")
    finally:
        collector.close()


def test_a_process_that_has_said_goodbye_does_not_come_back(tmp_path):
    """The agent's thread may be in the middle of a tick when the process ends."""
    body = """
steps(20)
import atexit; atexit._run_exitfuncs()
from gputop_agent.runtime import transport
for _ in range(3):
    transport.flush_if_stale(time.monotonic_ns() + 10**10)
"""
    guest = run_script([script(tmp_path, body)]).guest
    assert [event["type"] for event in guest.events].count("hello") == 1
    assert guest.events[-1]["type"] == "goodbye"
