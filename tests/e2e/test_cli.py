"""The command line as a user meets it: what is passed on, what is refused, and with which words."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_support import GPUTOP, environment, gputop

pytestmark = pytest.mark.e2e

SHOW_ARGUMENTS = "import sys; print(sys.argv[1:])"


def one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (
            ["--", sys.executable, "-c", SHOW_ARGUMENTS, "--json", "--run-dir", "x"],
            ["--json", "--run-dir", "x"],
        ),
        (
            [sys.executable, "-c", SHOW_ARGUMENTS, "--headless", "--", "-x"],
            ["--headless", "--", "-x"],
        ),
        (["--headless", sys.executable, "-c", SHOW_ARGUMENTS, "a b", ""], ["a b", ""]),
    ],
)
def test_the_command_is_passed_on_untouched(words, passed, tmp_path) -> None:
    done = gputop("run", *words, tmp_path=tmp_path)
    assert done.returncode == 0
    assert done.stdout == f"{passed}\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run"], 2, "no command"),
        (["run", "--headless"], 2, "no command"),
        (["run", "--no-such-option", "true"], 2, "--no-such-option"),
        (["run", "--timeout", "5", "true"], 2, "--calibrate"),
        (["run", "--calibrate", "--timeout", "soon", "true"], 2, "seconds"),
        (["run", "no-such-command-anywhere"], 127, "no-such-command-anywhere"),
        (["run", "/etc/hostname"], 126, "/etc/hostname"),
        (["open", "no-such-run"], 2, "no-such-run"),
        (["report", "no-such-run"], 2, "gputop runs"),
        (["rnu"], 2, "gputop run"),
        (["python", "train.py"], 2, "gputop run python"),
        (["export", "--format", "pdf"], 2, "pdf"),
    ],
)
def test_bad_input_gets_one_line(words, code, says, tmp_path) -> None:
    done = gputop(*words, tmp_path=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in one_line(done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "run.json"),
        ("{", "not JSON"),
        ("[]", "not written by gputop"),
        ('{"format": "other"}', "not written by gputop"),
        ('{"format": "gputop-run", "version": 99}', "upgrade"),
        ('{"format": "gputop-run", "version": 1}', "damaged"),
    ],
)
def test_a_record_that_is_none_is_refused(content, says, tmp_path) -> None:
    folder = tmp_path / "record"
    folder.mkdir()
    if content is not None:
        (folder / "run.json").write_text(content)
    done = gputop("report", str(folder), tmp_path=tmp_path)
    assert done.returncode == 2
    assert says in one_line(done.stderr)


def test_a_run_directory_that_cannot_be_made_is_refused_before_anything_starts(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    mark = tmp_path / "started"
    done = gputop(
        "run", "--run-dir", str(tmp_path / "file" / "run"), "touch", str(mark), tmp_path=tmp_path
    )
    assert done.returncode == 2
    assert str(tmp_path / "file") in one_line(done.stderr)
    assert not mark.exists()


def test_a_finished_record_is_not_overwritten(tmp_path) -> None:
    words = ["run", "--run-dir", str(tmp_path / "run"), "true"]
    assert gputop(*words, tmp_path=tmp_path).returncode == 0
    before = (tmp_path / "run" / "run.json").read_bytes()
    again = gputop(*words, tmp_path=tmp_path)
    assert again.returncode == 2
    assert "--run-dir" in one_line(again.stderr)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_screens_need_a_terminal_and_say_so(tmp_path) -> None:
    assert gputop("run", "true", tmp_path=tmp_path).returncode == 0
    for words, instead in ((["open", "last"], "gputop report"), (["open"], "gputop runs")):
        done = gputop(*words, tmp_path=tmp_path)
        assert done.returncode == 3
        assert instead in one_line(done.stderr)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139),
    ],
)
def test_the_exit_code_is_the_commands(code, exit_code, tmp_path) -> None:
    assert gputop("run", sys.executable, "-c", code, tmp_path=tmp_path).returncode == exit_code


def test_a_quit_from_the_keyboard_ends_the_command_too(tmp_path) -> None:
    code = "import time; print('up', flush=True); time.sleep(30)"
    command = [*GPUTOP, "run", "--headless", sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment(tmp_path), text=True
    ) as front:
        assert front.stdout is not None
        assert front.stdout.readline() == "up\n"
        front.send_signal(signal.SIGQUIT)
        assert front.wait(15) == 128 + signal.SIGQUIT


def test_streams_stay_apart_and_in_order(tmp_path) -> None:
    code = "import sys\nfor i in range(2000): print(i); print(-i, file=sys.stderr)"
    done = gputop("run", sys.executable, "-c", code, tmp_path=tmp_path)
    assert done.stdout == "".join(f"{i}\n" for i in range(2000))
    narration = [line for line in done.stderr.splitlines() if not line.startswith("gputop: ")]
    assert narration == [str(-i) for i in range(2000)]


def test_two_runs_at_once_do_not_meet(tmp_path) -> None:
    def start(word: str) -> subprocess.Popen[str]:
        command = [
            *GPUTOP,
            "run",
            sys.executable,
            "-c",
            f"import time; time.sleep(1); print({word!r})",
        ]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tmp_path),
            cwd=tmp_path,
        )

    both = [start("first"), start("second")]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert outputs == ["first\n", "second\n"]
    everywhere = json.loads(gputop("runs", "--json", tmp_path=tmp_path).stdout)
    runs = [run for run in everywhere if Path(run["path"]).is_relative_to(tmp_path)]
    assert len({run["path"] for run in runs}) == 2
    assert {run["exit_code"] for run in runs} == {0}
    logs = [next(Path(run["path"]).glob("hosts/*/output.log")).read_text() for run in runs]
    assert sorted(logs) == ["first\n", "second\n"]
