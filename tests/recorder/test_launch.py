"""Starting a command: its exit code, streams, environment and record are what a user expects of a
shell.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import recorder_support as support

from gputop_probes import rundir
from gputop_probes.record.manifest import HostState
from gputop_probes.record.reader import RunRecord


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["sh", "-c", "exit 0"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -9 $$"], 137),
        (["no-such-command"], 127),
        (["./no-such-file"], 127),
        (["./plain"], 126),
        (["./nothing"], 126),
        (["."], 126),
    ],
)
def test_exit_code(tmp_path: Path, command: list[str], expected: int) -> None:
    (tmp_path / "plain").write_text("echo hello\n")
    (tmp_path / "nothing").write_text("no program\n")
    (tmp_path / "nothing").chmod(0o755)
    code, _, narration = support.run(tmp_path, command)
    assert code == expected
    if expected in (126, 127):
        assert len(narration.splitlines()) == 1
        assert not (tmp_path / "run").exists()
    else:
        assert support.state(tmp_path / "run")["exit_code"] == expected
        assert [event["exit_code"] for event in support.events(tmp_path / "run", "run_end")] == [
            expected
        ]


def test_streams_pass_through(tmp_path: Path) -> None:
    source = (
        "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d * 2); "
        "sys.stderr.write('narrated')"
    )
    data = bytes(range(256)) * 300
    process = support.front(tmp_path, support.python(source), stdin=subprocess.PIPE)
    out, err = process.communicate(data, timeout=60)
    assert (process.returncode, out, err) == (0, data * 2, b"narrated")
    host = support.host_dir(tmp_path / "run")
    assert (host / "output.log").read_bytes() == data * 2
    assert (host / "stderr.log").read_bytes() == b"narrated"


def test_stdout_and_stderr_to_one_place_keep_their_order(tmp_path: Path) -> None:
    command = ["sh", "-c", "for i in 1 2 3; do echo out$i; echo err$i >&2; done"]
    code, out, _ = support.run(tmp_path, command, stderr=subprocess.STDOUT)
    assert (code, out.split()) == (0, ["out1", "err1", "out2", "err2", "out3", "err3"])
    assert not (support.host_dir(tmp_path / "run") / "stderr.log").exists()


def test_what_the_command_finds(tmp_path: Path) -> None:
    source = """
import json, os, signal
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps(dict(
    env=dict(os.environ), fds=sorted(os.listdir("/proc/self/fd"), key=int),
    session=os.getsid(0), group=os.getpgid(0), pid=os.getpid(), cwd=os.getcwd(),
    blocked=int(status["SigBlk"], 16), ignored=int(status["SigIgn"], 16))))
"""
    plain = subprocess.run(
        support.python(source),
        env=support.environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    before = json.loads(plain.stdout)
    code, out, _ = support.run(tmp_path, support.python(source), env={"PYTHONPATH": "/somewhere"})
    found = json.loads(out)
    assert code == 0
    assert found["session"] == found["group"] == found["pid"]
    assert (found["blocked"], found["ignored"]) == (before["blocked"], before["ignored"])
    assert found["fds"] == before["fds"]
    assert found["cwd"] == str(tmp_path)
    inject, rest = found["env"].pop("PYTHONPATH").split(os.pathsep)
    assert (Path(inject) / "sitecustomize.py").exists()
    assert rest == "/somewhere"
    added = {name for name in found["env"] if name not in before["env"]}
    assert (
        added - {"PYTHONUNBUFFERED"}
        == {name for name in added if name.startswith("GPUTOP_")}
        != set()
    )
    assert "FORCE_COLOR" not in found["env"]  # nobody's terminal shows this output


def test_record_is_valid(tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnop"
    command = [*support.python("import time; time.sleep(1.3)"), "--hf-token", secret]
    code, _, _ = support.run(tmp_path, command, env={"WANDB_API_KEY": secret, "NCCL_DEBUG": "INFO"})
    record = RunRecord.open(tmp_path / "run")
    host = next(iter(record.hosts.values()))
    assert code == 0
    written_state = HostState.model_validate(support.state(tmp_path / "run"))
    assert host.state.model_dump(exclude_none=True) == written_state.model_dump(exclude_none=True)
    assert (host.state.state, host.state.exit_code) == ("ended", 0)
    assert host.state.context["environment"]["NCCL_DEBUG"] == "INFO"
    assert record.manifest.command == [*command[:-1], "[hidden]"]
    assert len(host.host.rows) >= 1
    assert host.state.command_pid in set(host.process.rows["pid"].tolist())
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    )
    assert secret.encode() not in written


def test_run_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("all of it")
    for folder, word in ((tmp_path / "file" / "run", "file"), (tmp_path / "full", "not empty")):
        code, out, err = support.run(tmp_path, ["echo", "started"], options={"run_dir": folder})
        assert (code, out) == (2, "")
        assert word in err
        assert len(err.splitlines()) == 1
    assert (tmp_path / "full" / "thesis.tex").read_text() == "all of it"
    assert support.run(tmp_path, ["true"])[0] == 0
    code, out, err = support.run(tmp_path, ["echo", "started"])
    assert (code, out) == (2, "")
    assert "already holds a run" in err


def test_another_host_joins_a_run_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {"command": ["train"], "created_ns": 1}
    first = rundir.prepare(tmp_path / "run", ["train"], manifest)
    monkeypatch.setattr(rundir.locations, "host_name", lambda: "second")
    second = rundir.prepare(tmp_path / "run", ["train"], manifest)
    assert second.run_id == first.run_id
    assert not second.created
    assert (tmp_path / "run" / "hosts" / "second").is_dir()


def test_two_runs_at_once(tmp_path: Path) -> None:
    processes = [
        support.front(tmp_path, ["sh", "-c", f"exit {n}"], options={"run_dir": None})
        for n in (4, 5)
    ]
    assert [process.wait(60) for process in processes] == [4, 5]
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_reader_of_stdout_goes_away(tmp_path: Path) -> None:
    """The command learns of it as behind any pipe: by SIGPIPE, which Python turns into an
    exception.
    """
    source = "import time\nwhile True: print('x' * 3000); time.sleep(0.01)"
    for command, code in ((["yes"], 141), (support.python(source), 1)):
        process = support.front(tmp_path, command, options={"run_dir": None})
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(60) == code


def test_pty_is_a_terminal(tmp_path: Path) -> None:
    source = (
        "import os, sys; print(sys.stdout.isatty(), sys.stderr.isatty()); "
        "print('narrated', file=sys.stderr)"
    )
    code, out, _ = support.run(tmp_path, support.python(source), options={"pty": True})
    assert (code, out) == (0, "True True\nnarrated\n")


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        (["python", "train.py", "--lr", "1"], "train"),
        (["torchrun", "--nproc-per-node", "2", "/data/my run/pre train.py"], "pre-train"),
        (["python", "-m", "pkg.trainer"], "pkg.trainer"),
        (["./go"], "go"),
        (["/bin/ß"], "run"),
    ],
)
def test_name_of_a_run(command: list[str], stem: str) -> None:
    assert rundir.script_stem(command) == stem


def test_start_imports_nothing_heavy() -> None:
    source = (
        f"import sys; sys.path[:0] = {support.ROOTS!r}; import gputop_probes.launch; "
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert not {"numpy", "pydantic", "psutil", "textual", "pynvml", "dataclasses", "asyncio"} & set(
        done.stdout.split()
    )


def test_a_signal_that_the_command_handles(tmp_path: Path) -> None:
    handler = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
    source = handler + "print('up', flush=True)\ntime.sleep(20)"
    process = support.front(tmp_path, support.python(source))
    support.until(lambda: "up" in support.output(tmp_path / "run"))
    os.kill(support.state(tmp_path / "run")["command_pid"], signal.SIGTERM)
    assert process.wait(60) == 9


@pytest.mark.parametrize(
    "prologue", ["trap '' INT QUIT HUP", "trap '' TERM USR1 CHLD", "umask 027; ulimit -n 77"]
)
def test_what_gputop_was_started_with_is_the_commands(tmp_path: Path, prologue: str) -> None:
    """Ignored signals (nohup, a script's background job), umask and limits; only Python's own
    SIGPIPE is lost.
    """
    source = (
        "import os, resource; s = open('/proc/self/status').read(); print([line for line in "
        "s.splitlines() if line.startswith(('SigIgn', 'SigBlk', 'Umask'))], "
        "[resource.getrlimit(n) for n in range(16)])"
    )
    shell = ["sh", "-c", f'{prologue}\nexec "$@"', "sh"]
    bare = subprocess.run(
        [*shell, *support.python(source)], capture_output=True, text=True, check=True
    )
    front = [sys.executable, "-c", support.FRONT_OF_ARGUMENTS]
    words = [*shell, *front, str(tmp_path / "run"), *support.python(source)]
    watched = subprocess.run(
        words, capture_output=True, text=True, check=True, env=support.environment(tmp_path)
    )
    assert watched.stdout == bare.stdout


def test_a_blocked_signal_stays_blocked(tmp_path: Path) -> None:
    source = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    process = support.front(
        tmp_path,
        support.python(source),
        preexec_fn=lambda: signal.pthread_sigmask(
            signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM]
        ),
    )
    out, _ = process.communicate(timeout=60)
    assert out.decode().strip() == str([signal.SIGUSR1, signal.SIGTERM])


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a record nor a socket."""
    with tempfile.TemporaryDirectory() as runtime:  # a short path: those of sockets are
        code, _, said = support.run(tmp_path, ["no-such-command"], env={"XDG_RUNTIME_DIR": runtime})
        assert code == 127 and "not found" in said
        assert [path.name for path in Path(runtime).rglob("*")] == ["gputop"]
    assert not (tmp_path / "run").exists()
