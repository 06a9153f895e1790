"""System calls of the recorder that fail, in a real run: used by the tests and by
``bench/reliability.py``.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import recorder_support as support

from gputop_analysis.report import Report, as_data
from gputop_probes.record.reader import RecordError, RunRecord

SHIM = Path(__file__).parent / "fault_shim.c"
CALLS = (
    *(
        "open",
        "read",
        "write",
        "close",
        "mkdir",
        "rename",
        "unlink",
        "stat",
        "listdir",
        "lseek",
        "statvfs",
    ),
    *(
        "socket",
        "socketpair",
        "bind",
        "listen",
        "accept",
        "getsockopt",
        "recv",
        "fork",
        "pipe",
        "dup",
    ),
    *(
        "epoll_create",
        "epoll_ctl",
        "epoll_wait",
        "poll",
        "flock",
        "fcntl",
        "ioctl",
        "wait",
        "mmap",
        "thread",
    ),
    *("chmod", "ftruncate", "fallocate", "send", "kill", "fsync"),
)
ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EINTR, errno.ENOMEM)
ALWAYS = 1 << 40
LINES = ["begun", *(f"line {n}" for n in range(6))]

TRAINING = """
link = None
print("begun", flush=True)
for i in range(60):
    try:
        if link is None:
            link = connect()
            hello(link, rank=0)
        steps(link, 1, start=i, pause=0.0)
    except (OSError, KeyError):  # without a recorder there is no socket
        link = None
    time.sleep(0.012)
    if i % 10 == 9:
        print("line", i // 10, flush=True)
sys.exit(7)
"""

FRONT = """
import ctypes, os, sys
sys.path[:0] = {roots!r}
del os.environ["LD_PRELOAD"]
name, error, first, count, log = sys.argv[1], *map(int, sys.argv[2:6])
from gputop_probes.recorder import entry
record = entry.record
def record_with_a_fault(plan, report):
    shim = ctypes.CDLL({shim!r})
    shim.fault_arm.argtypes = [
        ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    shim.fault_arm(name.encode(), error, first, count, log)
    record(plan, report)
entry.record = record_with_a_fault
from gputop.cli import main
sys.exit(main(sys.argv[6:]))
"""


class Fault(NamedTuple):
    """A call that fails with ``error``: ``times`` times, from its ``first``-th time on."""

    call: str
    error: int
    first: int = 0
    times: int = 1

    def __str__(self) -> str:
        often = "always" if self.times == ALWAYS else "once"
        return f"{self.call}-{errno.errorcode[self.error]}-{often}-from-{self.first}"


def build_shim(folder: Path) -> Path | None:
    """Compile the library that makes calls fail; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    shim = folder / "fault_shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(shim), str(SHIM), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return shim


def faults(first: int = 0) -> list[Fault]:
    """Each call once and from then on always; the errors take turns. EINTR comes once: Python asks
    again by itself.
    """
    found = []
    for place, call in enumerate(CALLS):
        once, always = (
            ERRORS[(place + first) % len(ERRORS)],
            ERRORS[(place + first + 2) % len(ERRORS)],
        )
        found.append(Fault(call, once, first))
        found.append(Fault(call, always if always != errno.EINTR else errno.EIO, first, ALWAYS))
    return found


def harm(fault: Fault, shim: Path, folder: Path) -> tuple[str, bool]:
    """Run a command under a recorder with a fault.

    Returns:
        What of the command or of the record was not as it must be, in one line (empty: nothing),
        and whether the call came about at all.
    """
    here = Path(tempfile.mkdtemp(dir=folder))
    log = os.open(here / "hits", os.O_RDWR | os.O_CREAT)
    source = FRONT.format(roots=support.ROOTS, shim=str(shim))
    run_dir = here / "run"
    words = [fault.call, str(fault.error), str(fault.first), str(fault.times), str(log)]
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                source,
                *words,
                "run",
                "--headless",
                "--run-dir",
                str(run_dir),
                "--",
            ]
            + support.speaker(TRAINING),
            env={**support.environment(here), "LD_PRELOAD": str(shim), "TMPDIR": str(here)},
            cwd=here,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            pass_fds=[log],
            timeout=90,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it did not end", True
    finally:
        os.close(log)
    hit = bool((here / "hits").read_bytes())
    if done.returncode != 7:
        return f"exit code {done.returncode}: {done.stderr[-800:]}", hit
    if done.stdout.splitlines() != LINES:
        return f"output {done.stdout!r}", hit
    if "Traceback" in done.stderr:
        return f"a traceback: {done.stderr[-800:]}", hit
    return unreadable(run_dir), hit


def unreadable(run_dir: Path) -> str:
    """Why a report cannot be made of a record, other than in the one line that says so; empty where
    it can.
    """
    if not run_dir.exists():
        return ""
    try:
        as_data(Report(RunRecord.open(run_dir)))
    except RecordError as error:
        return "" if "\n" not in str(error) else f"several lines: {error}"
    except Exception as error:
        return f"the report: {type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Try all faults; ``recorder_faults.py [FIRST [CALL ...]]``."""
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    failed = hits = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        shim = build_shim(folder)
        assert shim is not None, "no compiler here"
        tried = [fault for fault in faults(first) if not sys.argv[2:] or fault.call in sys.argv[2:]]
        for fault in tried:
            wrong, hit = harm(fault, shim, folder)
            failed += bool(wrong)
            hits += hit
            print(f"{'FAIL' if wrong else 'ok' if hit else 'none':5} {fault} {wrong}", flush=True)
    print(f"{len(tried)} tried, {hits} came about, {failed} failed")


if __name__ == "__main__":
    sys.path[:0] = support.ROOTS
    main()
