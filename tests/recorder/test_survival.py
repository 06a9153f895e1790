"""The training outlives everything of gputop, with its own output and exit code. Real processes,
real kills.
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

import pytest
import recorder_support as support

from gputop_probes import client, lock, procfs, runs

TRAINING = """
link = connect()
hello(link, rank=0)
for i in range(150):
    try:
        steps(link, 1, start=i, pause=0.01)
    except OSError:
        time.sleep(0.01)
    if i % 50 == 49:
        print("line", i, flush=True)
"""
END = "sys.exit(7)"
END_WHEN_TOLD = 'while not os.path.exists("finish"): time.sleep(0.01)\nsys.exit(7)'
EXPECTED = "line 49\nline 99\nline 149\n"

RECONNECTING = """
link, index = None, 0
end = time.monotonic() + 120
while time.monotonic() < end and not os.path.exists("finish"):
    try:
        if link is None:
            link = connect()
            hello(link, rank=0)
        steps(link, 1, start=index, pause=0.01)
        index += 1
    except OSError:
        link = None
        time.sleep(0.05)
print("trained", index)
"""


def test_recorder_killed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = support.front(tmp_path, support.speaker(TRAINING + END_WHEN_TOLD))
    support.until(lambda: len(support.step_indices(run_dir)) > 20)
    os.kill(support.state(run_dir)["recorder_pid"], signal.SIGKILL)
    support.until(lambda: runs.read_run(run_dir).state == "lost")
    (tmp_path / "finish").touch()
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.decode()) == (7, EXPECTED)
    seen = support.step_indices(run_dir)
    assert seen == list(range(len(seen))) and len(seen) > 20
    assert (support.state(run_dir)["state"], support.state(run_dir)["exit_code"]) == ("ended", 7)
    assert [event["exit_code"] for event in support.events(run_dir, "run_end")] == [7]
    assert not Path(support.state(run_dir)["socket"]).exists()


def test_recorder_killed_and_run_taken_up_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = support.front(tmp_path, support.speaker(RECONNECTING))
    support.until(lambda: len(support.step_indices(run_dir)) > 20)
    assert not adopt(run_dir)
    os.kill(support.state(run_dir)["recorder_pid"], signal.SIGKILL)
    support.until(lambda: runs.read_run(run_dir).state == "lost")
    with (run_dir / "steps" / "rank-00000.bin").open("ab") as file:
        file.write(b"torn")
    before = support.step_indices(run_dir)
    assert adopt(run_dir)
    support.until(lambda: len(support.step_indices(run_dir)) > len(before) + 20)
    assert client.send_command(run_dir, {"cmd": "ping"}) == {
        "ok": True,
        "run_id": support.state(run_dir)["run_id"],
        "ranks": [0],
    }
    (tmp_path / "finish").touch()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    sent = int(out.split()[1])
    support.until(lambda: support.state(run_dir)["exit_code"] == 0)
    after = support.step_indices(run_dir)
    assert after == sorted(set(after))
    assert after[-1] == sent - 1
    assert [event["attempt"] for event in support.events(run_dir, "rank_start")] == [0]
    assert [event["adopted"] for event in support.events(run_dir, "recorder_start")] == [
        False,
        True,
    ]
    assert not adopt(run_dir)


def test_a_recorder_that_still_dies_is_no_recorder(tmp_path: Path) -> None:
    """The lock of one that was killed a moment ago is waited for."""
    run_dir = tmp_path / "run"
    process = support.front(tmp_path, support.speaker(RECONNECTING))
    support.until(lambda: len(support.step_indices(run_dir)) > 5)
    os.kill(support.state(run_dir)["recorder_pid"], signal.SIGKILL)
    dying = support.until(lambda: lock.acquire(support.host_dir(run_dir)))
    threading.Timer(0.7, os.close, [dying]).start()
    assert adopt(run_dir)
    (tmp_path / "finish").touch()
    assert process.wait(60) == 0


def test_sockets_of_killed_recorders_are_removed(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as runtime:  # a short path: those of sockets are
        left, fresh, used = (
            Path(runtime, "gputop", f"{name}.sock") for name in ("left", "fresh", "used")
        )
        left.parent.mkdir(mode=0o700)
        listeners = []
        for path in (left, fresh, used):
            listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listeners[-1].bind(str(path))
        listeners[0].close()
        listeners[2].listen()
        for path in (left, used):
            os.utime(path, (time.time() - 300,) * 2)
        command = [
            "sh",
            "-c",
            f"for i in $(seq 200); do [ -e {left} ] || exit 0; sleep 0.05; done; exit 1",
        ]
        assert support.run(tmp_path, command, env={"XDG_RUNTIME_DIR": runtime})[0] == 0
        assert sorted(path.name for path in left.parent.iterdir()) == ["fresh.sock", "used.sock"]


def adopt(run_dir: Path) -> bool:
    """In a process of its own, as ``gputop attach`` does."""
    source = (
        f"import sys, pathlib; sys.path[:0] = {support.ROOTS!r}\n"
        "from gputop_probes import launch\nprint(launch.adopt(pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, str(run_dir)], capture_output=True, text=True, check=True
    )
    return done.stdout == "True\n"


def test_front_killed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = support.front(tmp_path, support.speaker(TRAINING + END))
    support.until(lambda: len(support.step_indices(run_dir)) > 20)
    process.kill()
    process.communicate()
    support.until(lambda: support.state(run_dir)["state"] == "ended")
    assert support.state(run_dir)["exit_code"] == 7
    assert support.step_indices(run_dir) == list(range(150))
    assert support.output(run_dir) == EXPECTED


def test_terminal_closed(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    process = support.front(
        tmp_path,
        support.speaker(TRAINING + END),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    support.until(lambda: len(support.step_indices(tmp_path / "run")) > 20)
    os.close(master)
    support.until(lambda: support.state(tmp_path / "run")["state"] == "ended")
    assert support.state(tmp_path / "run")["exit_code"] == 7
    assert support.output(tmp_path / "run") == EXPECTED
    process.wait(60)


def test_socket_deleted(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    body = "hello(connect(), rank=0)\nwhile not os.path.exists('again'): time.sleep(0.02)\n"
    body += "link = connect()\nhello(link, rank=0)\nsteps(link, 30)"
    process = support.front(tmp_path, support.speaker(body))
    path = Path(support.until(lambda: support.state(run_dir).get("socket")))
    support.until(lambda: support.events(run_dir, "hello"))
    path.unlink()
    support.until(path.exists)
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "again").touch()
    assert process.wait(60) == 0
    assert support.step_indices(run_dir) == list(range(30))
    assert not path.exists()


def test_recorder_stopped_for_a_while(tmp_path: Path) -> None:
    """A reader that does not read neither blocks the sender nor is taken for a hang of the rank
    afterwards.
    """
    body = """
link = connect()
link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
link.setblocking(False)
hello(link, rank=0)
steps(link, 20)
print("up", flush=True)
while not os.path.exists("stopped"): time.sleep(0.01)
longest = 0
for i in range(20, 320):
    began = time.perf_counter()
    link.send(wire.MSG_STEPS + step(i))
    longest = max(longest, time.perf_counter() - began)
print("sent", flush=True)
while not os.path.exists("finish"): time.sleep(0.01)
steps(link, 10, start=320)
"""
    run_dir = tmp_path / "run"
    process = support.front(tmp_path, support.speaker(body), options={"hang_s": 1.0})
    support.until(lambda: "up" in support.output(run_dir))
    recorder = support.state(run_dir)["recorder_pid"]
    os.kill(recorder, signal.SIGSTOP)
    (tmp_path / "stopped").touch()
    support.until(lambda: "sent" in support.output(run_dir))
    time.sleep(0.3)
    os.kill(recorder, signal.SIGCONT)
    (tmp_path / "finish").touch()
    assert process.wait(60) == 0
    assert support.step_indices(run_dir) == list(range(330))
    assert not support.events(run_dir, "hang_suspected")


def test_recorder_stopped_for_good(tmp_path: Path) -> None:
    process = support.front(
        tmp_path, ["sh", "-c", "echo begun; while [ ! -e finish ]; do sleep 0.05; done; exit 8"]
    )
    run_dir = tmp_path / "run"
    support.until(
        lambda: "begun" in support.output(run_dir) and support.state(run_dir)["state"] == "running"
    )
    recorder = support.state(run_dir)["recorder_pid"]
    os.kill(recorder, signal.SIGSTOP)
    try:
        (tmp_path / "finish").touch()
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (8, b"begun\n")
    finally:
        os.kill(recorder, signal.SIGCONT)
    support.until(lambda: support.state(run_dir)["state"] == "ended")
    assert support.state(run_dir)["exit_code"] == 8


def test_recorder_told_to_end_leaves_the_training_alone(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = support.front(
        tmp_path, ["sh", "-c", "while [ ! -e finish ]; do sleep 0.05; done; exit 5"]
    )
    recorder = support.until(lambda: support.state(run_dir).get("recorder_pid"))
    support.until(lambda: support.state(run_dir).get("state") == "running")
    os.kill(recorder, signal.SIGTERM)
    support.until(lambda: not procfs.alive(recorder))
    assert process.poll() is None
    (tmp_path / "finish").touch()
    assert process.wait(60) == 5
    assert support.state(run_dir)["exit_code"] == 5


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system needs root")
def test_disk_full(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(mount)], check=False
    ).returncode:
        pytest.skip("this container may not mount")
    body = """
link = connect()
hello(link, rank=0)
print("begin", flush=True)
while not os.path.exists("full"): time.sleep(0.01)
for i in range(24):
    print("y" * (1 << 20), flush=True)
    time.sleep(0.06)
    link.send(wire.MSG_STEPS + step(i) * 200)
print("end", flush=True)
sys.exit(4)
"""
    try:
        run_dir = mount / "run"
        process = support.front(
            tmp_path, support.speaker(body), options={"run_dir": run_dir}, stderr=subprocess.DEVNULL
        )
        support.until(lambda: "begin" in support.output(run_dir))
        fill(mount / "filler")
        (tmp_path / "full").touch()
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 4
        assert out.decode() == "begin\n" + ("y" * (1 << 20) + "\n") * 24 + "end\n"
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize(("line_bytes", "whole"), [(100, True), (100_000, False)])
def test_disk_full_and_freed(tmp_path: Path, line_bytes: int, whole: bool) -> None:
    """What comes meanwhile waits in memory, as far as that reaches; beyond, the oldest part of the
    log makes room.
    """
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(mount)], check=False
    ).returncode:
        pytest.skip("this container may not mount")
    source = f"""
import os, time
def part(first):
    for i in range(first, first + 100): os.write(1, b"%d " % i + b"x" * {line_bytes} + b"\\n")
part(0)
while not os.path.exists("full"): time.sleep(0.01)
part(100)
open("written", "w")
while not os.path.exists("freed"): time.sleep(0.01)
part(200)
"""
    expected = [f"{i} " + "x" * line_bytes for i in range(300)]
    try:
        run_dir = mount / "run"
        seen = (tmp_path / "seen").open("wb")
        process = support.front(
            tmp_path, support.python(source), options={"run_dir": run_dir}, stdout=seen
        )
        support.until(lambda: support.output(run_dir).count("\n") == 100)
        fill(mount / "filler")
        (tmp_path / "full").touch()
        support.until((tmp_path / "written").exists)
        time.sleep(0.5)
        (mount / "filler").unlink()
        (tmp_path / "freed").touch()
        assert process.wait(60) == 0
        seen.close()
        assert (tmp_path / "seen").read_text().splitlines() == expected
        # the front does not wait for what the keeper tries again
        support.until(lambda: support.output(run_dir).endswith(expected[-1] + "\n"), 10)
        lines = support.output(run_dir).splitlines()
        if whole:
            assert lines == expected
        else:
            assert lines[-150:] == expected[-150:]
            assert "oldest" in support.state(run_dir)["output_note"]
            assert support.events(run_dir, "output_lost")
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system needs root")
def test_disk_full_from_the_start(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(mount)], check=False
    ).returncode:
        pytest.skip("this container may not mount")
    try:
        fallback = tmp_path / "runtime"
        fallback.mkdir(mode=0o700)
        code, out, err = support.run(
            tmp_path,
            ["sh", "-c", "echo trained; exit 6"],
            options={"run_dir": mount / "run"},
            env={"XDG_RUNTIME_DIR": str(fallback)},
        )
        assert (code, out) == (6, "trained\n")
        assert "is full" in err and len(err.splitlines()) == 1
        (found,) = (fallback / "gputop" / "runs").iterdir()
        assert support.state(found)["exit_code"] == 6
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"f" * size)
            except OSError:
                continue
