"""Repeats the counts of docs/reliability.md: signals soon after the start, odd environments,
failing system calls.

    python bench/reliability.py [signals] [environments] [faults] [--json]

Prints a row of a table for each part, and what was lost on stderr. Real processes; half an hour on
two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "tui_app", "analysis", "probes")]

import environment_cases as environments  # noqa: E402
import recorder_faults  # noqa: E402

from gputop_probes import procfs  # noqa: E402

SIGNALS = 60
LATEST_S = 1.5
SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
_ENDS_WITHIN_S = 30


class Row(NamedTuple):
    """The outcome of one part."""

    part: str
    tried: int
    held: int
    note: str


def signals(seed: int) -> Row:
    """A signal to the front at a random moment; SIGINT in the live screen is typed, as a person
    would.
    """
    chance = random.Random(seed)
    held, hangups = 0, 0
    for number in range(SIGNALS):
        kind = (*ENDING, signal.SIGHUP)[number % 4]
        live = number % 8 >= 4
        delay_s = chance.uniform(0, LATEST_S)
        wrong, survived = _one_signal(kind, live, delay_s)
        hangups += survived
        held += not wrong
        if wrong:
            print(
                f"{kind.name} after {delay_s:.2f} s, {'live' if live else 'headless'}: {wrong}",
                file=sys.stderr,
            )
    note = (
        f"60 s sleeper, 0 to {LATEST_S} s; after SIGHUP {hangups} commands ran on, as they "
        "must once started"
    )
    return Row("signal to the front soon after the start", SIGNALS, held, note)


def _one_signal(kind: signal.Signals, live: bool, delay_s: float) -> tuple[str, bool]:
    """What was wrong, and whether the command outlived a hang-up."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        token = f"token-{os.getpid()}-{time.monotonic_ns()}"
        words = [sys.executable, "-m", "gputop", "run", *([] if live else ["--headless"])]
        words += ["--run-dir", f"{name}/run", sys.executable, "-c", SLEEPER, token]
        front, terminal = _start(words, name) if live else (_start_headless(words, name), -1)
        try:
            return _signal_and_judge(front, terminal, kind, delay_s, token)
        finally:
            for pid in _command(token):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(front, signal.SIGKILL)
                os.waitpid(front, 0)
            if terminal >= 0:
                os.close(terminal)


def _signal_and_judge(
    front: int, terminal: int, kind: int, delay_s: float, token: str
) -> tuple[str, bool]:
    _read(terminal, delay_s)
    started = bool(_command(token))
    if terminal >= 0 and kind == signal.SIGINT:
        os.write(terminal, b"\x03")
    else:
        os.kill(front, kind)
    hangup = kind == signal.SIGHUP
    code = _end(front, terminal, 3.0 if hangup else _ENDS_WITHIN_S)
    left = _command(token)
    if hangup:  # headless goes on; the live screen leaves; a command that ran goes on
        return ("the command was ended" if started and not left else ""), bool(left)
    if left:
        return f"the command was left running, exit code {code}", False
    if code in (None, 0):
        return f"exit code {code}", False
    return "", False


def _start(words: list[str], folder: str) -> tuple[int, int]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(words[0], words, {**os.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    return pid, terminal


def _start_headless(words: list[str], folder: str) -> int:
    null = subprocess.DEVNULL
    return subprocess.Popen(words, cwd=folder, stdin=null, stdout=null, stderr=null).pid


def _command(token: str) -> list[int]:
    """The command's process, not gputop's own that bear its words too."""
    lines = {pid: procfs.command_line(pid) for pid in procfs.pids()}
    return [
        pid
        for pid, words in lines.items()
        if token in words and "gputop" not in words and procfs.alive(pid)
    ]


def _read(terminal: int, seconds: float) -> bytes:
    """What is drawn for so long; a terminal that nobody reads would block."""
    deadline, drawn = time.monotonic() + seconds, b""
    while (left := deadline - time.monotonic()) > 0:
        if terminal < 0:
            time.sleep(left)
        elif select.select([terminal], [], [], left)[0]:
            try:
                drawn += os.read(terminal, 65536)
            except OSError:
                time.sleep(min(left, 0.05))
    return drawn


def _end(front: int, terminal: int, seconds: float) -> int | None:
    """The front's exit code; answers its question whether to stop the training. None:
    it runs on.
    """
    deadline, drawn, asked = time.monotonic() + seconds, b"", False
    while time.monotonic() < deadline:
        pid, status = os.waitpid(front, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        drawn += _read(terminal, 0.05)
        if not asked and b"Leave" in drawn:
            os.write(terminal, b"s")
            asked = True
    return None


def odd_environments(_seed: int) -> Row:
    """Exit code, stdout and stderr of a command as bare, see ``tests/environment_cases.py``."""
    tried = held = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        for case in environments.CASES:
            if environments.reason_to_skip(case):
                continue
            wrong = environments.difference(*environments.try_case(case, Path(name)))
            tried, held = tried + 1, held + (not wrong)
            if wrong:
                print(f"{case.name}: {wrong}", file=sys.stderr)
    skipped = len(environments.CASES) - tried
    return Row(
        "started in odd environments", tried, held, f"{skipped} skipped here" if skipped else ""
    )


def failing_calls(seed: int) -> Row:
    """Each system call of the recorder fails in turn, once and for good, from its first and from a
    later time on.
    """
    tried = held = hits = 0
    later = random.Random(seed).randint(2, 20)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        shim = recorder_faults.build_shim(Path(name))
        if shim is None:
            return Row("system calls of the recorder that fail", 0, 0, "no C compiler here")
        for fault in (*recorder_faults.faults(0), *recorder_faults.faults(later)):
            wrong, hit = recorder_faults.harm(fault, shim, Path(name))
            tried, held, hits = tried + 1, held + (not wrong), hits + hit
            if wrong:
                print(f"{fault}: {wrong}", file=sys.stderr)
    return Row(
        "system calls of the recorder that fail",
        tried,
        held,
        f"{hits} came about; from call 0 and {later} on",
    )


PARTS: dict[str, Callable[[int], Row]] = {
    "signals": signals,
    "environments": odd_environments,
    "faults": failing_calls,
}


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=13)
    options = parser.parse_args()
    for number in (*ENDING, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # a shell's `&` and nohup have them ignored
    rows = [PARTS[name](options.seed) for name in options.parts or PARTS]
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
        return
    print("| part | tried | held | note |\n| --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row.part} | {row.tried} | {row.held} | {row.note} |")


if __name__ == "__main__":
    main()
