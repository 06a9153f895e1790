"""The command's output: byte for byte what it is without gputop, on our streams and in the record,
whoever dies.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import recorder_support as support

from gputop_probes import procfs

BY_NAME = {
    "truncating shell": "echo x > /dev/stderr; echo y > /dev/stdout",
    "appending shell": "echo x >> /dev/stderr; echo y >> /dev/stdout",
    "tee": "echo x | tee /dev/stderr",
    "tee -a": "echo x | tee -a /dev/stderr /dev/stdout",
    "descriptor": "echo x > /proc/self/fd/2; echo y > /dev/fd/1",
    "dd": "echo x | dd of=/dev/stdout bs=1 conv=notrunc 2>/dev/null",
    "python": "python3 -c \"open('/dev/stdout','w').write('x\\n'); open('/dev/stderr','r+b', "
    "0).write(b'y\\n')\"",
    "subprocess": "python3 -c \"import subprocess; subprocess.run('echo x > "
    "/dev/stderr; echo y', shell=True)\"",
}


def bare(tmp_path: Path, command: list[str], **options) -> tuple[int, bytes, bytes]:
    """The same command without gputop, with pipes."""
    streams = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **options,
    }
    process = subprocess.Popen(
        command, cwd=tmp_path, env=support.environment(tmp_path, PYTHONUNBUFFERED="1"), **streams
    )
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err or b""


def watched(tmp_path: Path, command: list[str], **options) -> tuple[int, bytes, bytes]:
    process = support.front(tmp_path, command, **options)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err or b""


def recorded(run_dir: Path) -> bytes:
    log = support.host_dir(run_dir) / "output.log"
    return log.read_bytes() if log.exists() else b""


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
@pytest.mark.parametrize("way", BY_NAME)
def test_streams_opened_by_name(tmp_path: Path, way: str, together: bool) -> None:
    script = (
        f"for i in 1 2 3; do echo out $i; echo err $i >&2; done\n{BY_NAME[way]}\necho "
        "last; echo last >&2"
    )
    options = {"stderr": subprocess.STDOUT} if together else {}
    expected = bare(tmp_path, ["sh", "-c", script], **options)
    assert watched(tmp_path, ["sh", "-c", script], **options) == expected
    assert recorded(tmp_path / "run") == expected[1]
    errors = support.host_dir(tmp_path / "run") / "stderr.log"
    assert (errors.read_bytes() if errors.exists() else b"") == expected[2]


def test_much_output_at_once(tmp_path: Path) -> None:
    """40 MB of random bytes, without a newline where lines would end, arrive as they were sent."""
    source = (
        "import os, random\nrandom.seed(5)\nblock = random.randbytes(1 << 20)\n"
        "for i in range(40): os.write(1, block[i:] + block[:i])\n"
        "os.write(2, b'x' * 3_000_000)"
    )
    code, out, err = watched(tmp_path, support.python(source))
    random.seed(5)
    block = random.randbytes(1 << 20)
    expected = b"".join(block[i:] + block[:i] for i in range(40))
    assert (code, len(out), err) == (0, len(expected), b"x" * 3_000_000)
    assert hashlib.sha256(out).digest() == hashlib.sha256(expected).digest()
    assert recorded(tmp_path / "run") == expected


COUNTING = """
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
i = 0
while time.monotonic() < end and not os.path.exists("finish"):
    os.write(1, b"line %d\\n" % i)
    i += 1
    time.sleep(0.0005)
os.write(1, b"end\\n")
sys.exit(9)
"""


def keeper_pid(run_dir: Path) -> int:
    """The keeper of a run, found by what it writes."""
    log = str(support.host_dir(run_dir) / "output.log")
    for pid in procfs.pids():
        if procfs.command_line(pid)[:1] == ["output-keeper"]:
            try:
                if log in {
                    os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")
                }:
                    return pid
            except OSError:
                continue
    return 0


def whole(output: bytes) -> bool:
    """Whether every line is there once, in order."""
    lines = output.decode().splitlines()
    return lines == [*(f"line {i}" for i in range(len(lines) - 1)), "end"] and len(lines) > 50


@pytest.mark.parametrize(
    "victims",
    [
        ["keeper"],
        ["keeper", "keeper", "keeper"],
        ["recorder", "keeper"],
        ["keeper", "recorder"],
        ["front", "keeper"],
        ["keeper", "front"],
        ["front", "recorder"],
    ],
    ids="-".join,
)
def test_killed_at_random_moments(tmp_path: Path, victims: list[str]) -> None:
    """Up to two of the three may die; the command does not notice, and the record has
    every line.
    """
    run_dir = tmp_path / "run"
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    with (tmp_path / "seen").open("wb") as seen:
        process = support.front(tmp_path, support.python(COUNTING, "60"), stdout=seen, stderr=seen)
        command = support.until(lambda: support.state(run_dir).get("command_pid"))
        support.until(lambda: b"line 20" in recorded(run_dir))
        for victim in victims:
            time.sleep(chance.uniform(0, 0.4))
            pid = {
                "keeper": lambda: support.until(lambda: keeper_pid(run_dir)),
                "recorder": lambda: support.state(run_dir)["recorder_pid"],
                "front": lambda: process.pid,
            }[victim]()
            os.kill(pid, signal.SIGKILL)
        finish(tmp_path)
        code = process.wait(60)
    support.until(lambda: not procfs.alive(command))
    assert support.until(lambda: recorded(run_dir).endswith(b"end\n")), seed
    assert whole(recorded(run_dir)), seed
    if "front" not in victims:
        assert code == 9
        assert whole((tmp_path / "seen").read_bytes()), seed
    support.until(lambda: not keeper_pid(run_dir))


def finish(tmp_path: Path) -> None:
    """Let the command end once its output goes on reaching the log."""
    before = len(recorded(tmp_path / "run"))
    support.until(lambda: len(recorded(tmp_path / "run")) > before)
    (tmp_path / "finish").touch()


def test_a_stopped_keeper_is_replaced(tmp_path: Path) -> None:
    """The training must not wait for it once the pipe is full."""
    run_dir = tmp_path / "run"
    body = (
        "import os, time\nos.write(1, b'up\\n')\nwhile not os.path.exists('stopped'): "
        "time.sleep(0.01)\nfor i in range(60): os.write(1, b'%09d\\n' % i * 10_000)\n"
    )
    process = support.front(tmp_path, support.python(body))
    support.until(lambda: b"up" in recorded(run_dir))
    os.kill(keeper_pid(run_dir), signal.SIGSTOP)
    (tmp_path / "stopped").touch()
    out, _ = process.communicate(timeout=60)
    expected = b"up\n" + b"".join(b"%09d\n" % i * 10_000 for i in range(60))
    assert (process.returncode, out == expected, recorded(run_dir) == expected) == (0, True, True)


def test_keeper_and_recorder_gone_and_the_run_taken_up(tmp_path: Path) -> None:
    """Without the front: a later recorder finds the keeper, and starts another one when that is
    killed.
    """
    run_dir = tmp_path / "run"
    with (tmp_path / "seen").open("wb") as seen:
        process = support.front(tmp_path, support.python(COUNTING, "60"), stdout=seen, stderr=seen)
        support.until(lambda: b"line 20" in recorded(run_dir))
        recorder = support.state(run_dir)["recorder_pid"]
        for pid in (process.pid, recorder):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    support.until(lambda: not procfs.alive(recorder))
    adopt(run_dir)
    os.kill(keeper_pid(run_dir), signal.SIGKILL)
    support.until(lambda: keeper_pid(run_dir))
    finish(tmp_path)
    support.until(lambda: support.state(run_dir)["state"] == "ended")
    assert whole(recorded(run_dir))


def adopt(run_dir: Path) -> None:
    source = (
        f"import sys, pathlib; sys.path[:0] = {support.ROOTS!r}\n"
        "from gputop_probes import launch\nassert launch.adopt(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run(support.python(source, str(run_dir)), check=True)


def test_a_pattern_that_names_gputop_spares_the_keeper(tmp_path: Path) -> None:
    """``pkill -9 -f gputop`` must leave the training its output."""
    process = support.front(tmp_path, ["sleep", "2"])
    pid = support.until(lambda: keeper_pid(tmp_path / "run"))
    assert "gputop" not in " ".join(procfs.command_line(pid))
    found = procfs.stat(pid)
    assert found is not None and "gputop" not in found.name
    assert support.until(lambda: os.getsid(pid) == pid)
    process.wait(60)


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/program"])
def test_a_keeper_without_a_fresh_interpreter(tmp_path: Path, program: str) -> None:
    """Where no interpreter can be started, a copy of the front carries the output."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys._base_executable = {program!r}")
    process = support.front(
        tmp_path, support.python(COUNTING, "1"), env={"PYTHONPATH": str(tmp_path)}
    )
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 9
    assert whole(out) and whole(recorded(tmp_path / "run"))


def test_nobody_takes_what_is_passed_on(tmp_path: Path) -> None:
    """``> /dev/full``: the training goes on, and the record has it all."""
    with open("/dev/full", "wb") as full:
        process = support.front(tmp_path, support.python(COUNTING, "0.5"), stdout=full)
        assert process.wait(60) == 9
    assert whole(recorded(tmp_path / "run"))


def test_file_size_limit(tmp_path: Path) -> None:
    """``ulimit -f`` is for the files of the command: its output on a pipe has no limit, and the
    newest is recorded.
    """
    source = "import sys\nfor i in range(30_000): sys.stdout.write(f'{i:09d}\\n')"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10))

    code, out, err = watched(tmp_path, support.python(source), preexec_fn=limit)
    assert (code, out) == (0, "".join(f"{i:09d}\n" for i in range(30_000)).encode())
    assert b"Traceback" not in err
    log = recorded(tmp_path / "run")
    assert log.endswith(b"000029999\n") and len(log) <= 100 << 10


def test_log_is_bounded(tmp_path: Path) -> None:
    source = "import sys\nfor i in range(500_000): sys.stdout.write(f'{i:09d}\\n')\n"
    code, out, _ = watched(tmp_path, support.python(source), options={"log_mb": 1})
    assert (code, len(out)) == (0, 5_000_000)
    log = support.host_dir(tmp_path / "run") / "output.log"
    assert log.stat().st_blocks * 512 <= 1 << 20
    kept = log.read_bytes().lstrip(b"\0")
    assert out.endswith(kept) and len(kept) > 800_000
    support.until(
        lambda: support.state(tmp_path / "run")["output_losses"]["given_up"] > 3_900_000, 10
    )
    assert len(support.events(tmp_path / "run", "output_lost")) == 1


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    """``| head -1``: the exit code and the words of the command are those of a bare pipeline."""
    handles = "import sys\ntry:\n while True: print('x' * 99)\nexcept BrokenPipeError: sys.exit(17)"
    for command in (
        ["yes"],
        support.python("while True: print('x' * 99)"),
        support.python(handles),
    ):
        seen = []
        for start in (bare_process, support.front):
            process = start(tmp_path, command, options={"run_dir": None})
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr is not None
            seen.append((process.wait(60), process.stderr.read()))
        code = 141 if seen[0][0] == -signal.SIGPIPE else seen[0][0]
        assert seen[1] == (code, seen[0][1])


def bare_process(tmp_path: Path, command: list[str], options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=support.environment(tmp_path, PYTHONUNBUFFERED="1"),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_process_left_behind_goes_on_writing(tmp_path: Path) -> None:
    """It is not waited for, and what it writes arrives like that of a bare command."""
    process = support.front(
        tmp_path, ["sh", "-c", "(sleep 1.5; echo late; echo late >&2) & echo now; exit 3"]
    )
    assert process.wait(60) == 3
    assert process.stdout is not None
    assert recorded(tmp_path / "run") == b"now\n"
    out, err = process.communicate(timeout=60)
    assert (out, err) == (b"now\nlate\n", b"late\n")
    assert recorded(tmp_path / "run") == b"now\nlate\n"


def test_a_slow_reader_holds_the_command_back(tmp_path: Path) -> None:
    source = (
        "import os\nfor i in range(30): os.write(1, b'z' * (1 << 20)); open('written', "
        "'w').write(str(i))"
    )
    process = support.front(tmp_path, support.python(source))
    time.sleep(1.5)
    written = int((tmp_path / "written").read_text())
    assert written < 12
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, len(out)) == (0, 30 << 20)


NEWCOMER = """
import fcntl, os, signal
from gputop_probes import output, output_keeper as keeper

reading, writing = output.open_pipe()
log = os.open("log", os.O_RDWR | os.O_CREAT)
shared = output.share([output.Route(reading, log, os.dup(1))], log_mb=1)
has_lock, told = os.pipe()
newcomer = os.fork()
if newcomer == 0:
    fcntl.lockf(shared._shared, fcntl.LOCK_EX)
    os.write(told, b"x")
    signal.pause()
os.read(has_lock, 1)
shared._cells[keeper.PASSES_ON] = keeper.MUTE
shared.tend()
output._START_WITHIN_S = 0.1
shared._front_lives = lambda: True
shared.start_keeper = lambda: None
{then}
os.kill(newcomer, signal.SIGKILL)
print("alive")
"""


@pytest.mark.parametrize("then", ["shared.tend()", "shared.routes = []; shared.show()"])
def test_a_keeper_that_has_not_said_who_it_is_is_not_killed(tmp_path: Path, then: str) -> None:
    """A process id of 0 means our own process group: the shell script that gputop is a line of."""
    done = subprocess.run(
        [sys.executable, "-c", NEWCOMER.format(then=then)],
        cwd=tmp_path,
        env=support.environment(tmp_path),
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_disk_with_room_again_at_the_end_gets_the_rest(tmp_path: Path) -> None:
    """The command ends within the pause after an attempt that failed: one more is made before it is
    lost.
    """
    from gputop_probes import output_keeper as keeper

    cells, size = [0] * 64, 1024
    cells[keeper.RING_BYTES] = size
    memory = bytearray(keeper.RINGS_AT + size)
    memory[keeper.RINGS_AT : keeper.RINGS_AT + 5] = b"late\n"
    with (tmp_path / "output.log").open("wb", buffering=0) as file:
        log = keeper.Log(cells, 0, file.fileno())
        stream = keeper.Stream(cells, memory, 0, source=-1, log=log, target=-1, beside=False)
        stream[keeper.READ], stream[keeper.ENDED] = 5, 1
        cells[keeper.LOGS + keeper.LOG_ERRNO] = errno.ENOSPC
        log._retry_at = float("inf")
        keeper.Keeper(cells, [stream], [log])._give_up_at_the_end()
    assert (tmp_path / "output.log").read_bytes() == b"late\n"
    assert cells[keeper.LOGS + keeper.LOST] == 0
