"""Odd surroundings in which a command is started, bare and under gputop: data for the tests and for
``bench/``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

GPUTOP = [sys.executable, "-m", "gputop"]
CODE = "import sys; print('trained ' * 40); print('narrated', file=sys.stderr); sys.exit(7)"
QUIET = "import sys; sys.exit(7)"
"""For streams that cannot take words: a bare Python fails there by itself."""


class Case(NamedTuple):
    """One surrounding: shell words that come before the command."""

    name: str
    shell: str
    user: bool = False
    """Started as a user who is not root and not in the user database."""
    code: str = CODE
    places: tuple[str, ...] = ()
    """Directories of the user in /tmp and /dev/shm that somebody else has taken: foreign, link,
    file or open.
    """


class Outcome(NamedTuple):
    """What came of a command."""

    code: int
    stdout: bytes
    stderr: bytes


LONG = "/".join(["d" * 100] * 7)
MOUNTED = "unshare -m sh -c '{}; exec \"$@\"' sh"
CASES = (
    Case("no HOME", "unset HOME"),
    Case("empty HOME", "export HOME="),
    Case("HOME is /dev/null", "export HOME=/dev/null"),
    Case("HOME is a file", "touch f; export HOME=$PWD/f"),
    Case("HOME is not there", "export HOME=/nonexistent/x", user=True),
    Case("HOME is relative", "export HOME=home"),
    Case("HOME is read-only", "export HOME=$PWD/ro", user=True),
    Case("HOME is somebody else's", "export HOME=$PWD/foreign", user=True),
    Case("no HOME, not in the user database", "unset HOME", user=True),
    Case("XDG_STATE_HOME is relative", "export XDG_STATE_HOME=state"),
    Case("XDG_STATE_HOME is empty", "export XDG_STATE_HOME="),
    Case("XDG_STATE_HOME is /dev/null", "export XDG_STATE_HOME=/dev/null"),
    Case("XDG_RUNTIME_DIR is not there", "export XDG_RUNTIME_DIR=$PWD/nothing"),
    Case("XDG_RUNTIME_DIR is a file", "touch f; export XDG_RUNTIME_DIR=$PWD/f"),
    Case("XDG_RUNTIME_DIR is somebody else's", "export XDG_RUNTIME_DIR=$PWD/foreign", user=True),
    Case("XDG_RUNTIME_DIR is long", f"mkdir -p {LONG}; export XDG_RUNTIME_DIR=$PWD/{LONG}"),
    Case("runs directory is a file", "touch f; export GPUTOP_RUNS_DIR=$PWD/f"),
    Case("runs directory is relative", "export GPUTOP_RUNS_DIR=here"),
    Case("runs directory in /proc", "export GPUTOP_RUNS_DIR=/proc/gputop"),
    Case("runs directory in /dev/null", "export GPUTOP_RUNS_DIR=/dev/null/runs"),
    Case("runs directory of 700 bytes", f"export GPUTOP_RUNS_DIR=$PWD/{LONG}"),
    Case("newline in the runs directory", 'export GPUTOP_RUNS_DIR="$PWD/a\nb c"'),
    Case("runs directory not in UTF-8", "export GPUTOP_RUNS_DIR=$PWD/$(printf 'b\\377d')"),
    Case("full disk", "mount -t tmpfs -o size=1m none m; export GPUTOP_RUNS_DIR=$PWD/m/r"),
    Case(
        "no inodes",
        "mount -t tmpfs -o size=64m,nr_inodes=3 none m; export GPUTOP_RUNS_DIR=$PWD/m/r",
    ),
    Case("read-only disk", "mount -t tmpfs -o ro none m; export GPUTOP_RUNS_DIR=$PWD/m/r"),
    Case("deleted working directory", "mkdir gone; cd gone; rmdir ../gone"),
    Case(
        "deleted working directory and relative runs",
        "mkdir g; cd g; rmdir ../g; export GPUTOP_RUNS_DIR=r",
    ),
    Case("umask 000", "umask 000"),
    Case("umask 077", "umask 077"),
    Case("umask 777", "umask 777", user=True),
    Case("stdout closed", "exec >&-", code=QUIET),
    Case("stderr closed", "exec 2>&-", code=QUIET),
    Case("stdout and stderr closed", "exec >&- 2>&-", code=QUIET),
    Case("stdout is /dev/full", "exec >/dev/full", code=QUIET),
    Case("stderr is /dev/full", "exec 2>/dev/full", code=QUIET),
    *(Case(f"ulimit -n {n}", f"ulimit -n {n}") for n in (16, 32, 64)),
    *(Case(f"ulimit -n {n}, not root", f"ulimit -n {n}", user=True) for n in (10, 16, 24, 32, 64)),
    *(Case(f"ulimit -u {n}, not root", f"ulimit -u {n}", user=True) for n in (2, 3, 5, 10)),
    *(Case(f"ulimit -v {n}", f"ulimit -v {n}") for n in (100000, 400000)),
    *(
        Case(f"ulimit -v {n}, not root", f"ulimit -v {n}", user=True)
        for n in (60000, 100000, 400000)
    ),
    *(Case(f"ulimit -f {n}", f"ulimit -f {n}") for n in (0, 4)),
    *(Case(f"ulimit -f {n}, not root", f"ulimit -f {n}", user=True) for n in (0, 1, 4, 100)),
    Case("ulimit -s 512", "ulimit -s 512"),
    Case("ulimit -t 20", "ulimit -t 20"),
    Case("ulimit -d 100000, not root", "ulimit -d 100000", user=True),
    Case("own directories taken by root", "", user=True, places=("foreign", "foreign")),
    Case("own directories are links", "", user=True, places=("link", "link")),
    Case("own directories are files", "", user=True, places=("file", "file")),
    Case(
        "own directories open to all",
        "export HOME=/nonexistent",
        user=True,
        places=("open", "open"),
    ),
    Case("taken, and no HOME", "export HOME=/nonexistent", user=True, places=("foreign", "link")),
    Case("TMPDIR is not there", "export TMPDIR=/nonexistent HOME=/dev/null", user=True),
    Case("TMPDIR is a file", "touch f; export TMPDIR=$PWD/f HOME=/dev/null", user=True),
    Case("TMPDIR is read-only", "export TMPDIR=$PWD/ro HOME=/nonexistent", user=True),
    Case("no /dev/shm", MOUNTED.format("umount -l /dev/shm")),
    Case("read-only root", MOUNTED.format("mount -o remount,bind,ro /")),
    Case(
        "nothing can be written",
        MOUNTED.format(
            "for d in / /tmp /var/tmp /dev/shm /dev $PWD; do "
            "mount --bind $d $d 2>/dev/null; mount -o remount,bind,ro $d 2>/dev/null; done"
        ),
    ),
    Case("locale C", "export LC_ALL=C LANG=C"),
    Case("locale that is not there", "export LC_ALL=xx_YY.UTF-8"),
    Case("no TERM", "unset TERM"),
    Case("odd TERM", "export TERM=no-such-terminal"),
    Case("PYTHONPATH is a file", "touch f; export PYTHONPATH=$PWD/f:$PYTHONPATH"),
    Case("PYTHONPATH is not there", "export PYTHONPATH=/nonexistent:$PYTHONPATH"),
    Case("PYTHONDONTWRITEBYTECODE", "export PYTHONDONTWRITEBYTECODE=1"),
    Case("PYTHONOPTIMIZE", "export PYTHONOPTIMIZE=2"),
    Case("PYTHONSAFEPATH", "export PYTHONSAFEPATH=1"),
    Case("PYTHONWARNINGS=error", "export PYTHONWARNINGS=error"),
    Case("PYTHONDEVMODE", "export PYTHONDEVMODE=1"),
    Case("PYTHONUTF8=0 in the C locale", "export PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 LC_ALL=C"),
    Case("PYTHONIOENCODING=ascii", "export PYTHONIOENCODING=ascii"),
    Case("no PATH", "unset PATH"),
    Case("a variable not in UTF-8", "export ODD=$(printf 'b\\377d')"),
    Case("SIGINT, SIGQUIT and SIGHUP ignored", "trap '' INT QUIT HUP"),
    Case("SIGCHLD ignored", "trap '' CHLD"),
    Case("SIGPIPE ignored", "trap '' PIPE"),
)


def can_change_user() -> bool:
    """Whether a process of another user can be started that still reads this interpreter."""
    return os.getuid() == 0 and shutil.which("setpriv") is not None


def can_mount() -> bool:
    """Whether a file system can be mounted in a namespace of its own."""
    done = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    return done.returncode == 0


def reason_to_skip(case: Case) -> str:
    """Why a case cannot be tried here; empty where it can."""
    if case.user and not can_change_user():
        return "starting a process as another user needs root and setpriv"
    if "mount" in case.shell and not can_mount():
        return "mounting needs root"
    return ""


class Surroundings:
    """A directory prepared for one case, and its user's taken places."""

    def __init__(self, case: Case, folder: Path):
        self.case = case
        self.folder = folder
        self.uid = 50_000 + os.getpid() % 10_000 if case.user else os.getuid()
        self._places = [Path(root, f"gputop-{self.uid}") for root in ("/tmp", "/dev/shm")]
        for name, mode in (("ro", 0o555), ("foreign", 0o700), ("m", 0o755), ("elsewhere", 0o777)):
            (folder / name).mkdir()
            (folder / name).chmod(mode)
        if case.user:
            os.chown(folder, self.uid, self.uid)
            os.chown(folder / "ro", self.uid, self.uid)
        for kind, place in zip(case.places, self._places, strict=False):
            self._take(kind, place)

    def _take(self, kind: str, place: Path) -> None:
        self._clear(place)
        if kind == "link":
            place.symlink_to(self.folder / "elsewhere")
        elif kind == "file":
            place.touch()
        else:
            place.mkdir(mode=0o700)
        if kind == "open":
            place.chmod(0o777)
            os.chown(place, self.uid, self.uid)

    def start(self, words: Sequence[str], timeout_s: float = 120) -> Outcome:
        """Run a command in these surroundings to its end."""
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("GPUTOP_", "XDG_", "TMPDIR"))
        }
        environment.update(HOME=str(self.folder), OMP_NUM_THREADS="1")
        if not self.case.user:
            environment.update(TMPDIR=str(self.folder))
        shell = f'{self.case.shell}\nexec "$@"'
        if self.case.shell.startswith("unshare"):
            shell = f'{self.case.shell} "$@"'
        words = ["sh", "-c", shell, "sh", *words]
        if "mount " in self.case.shell and not self.case.shell.startswith("unshare"):
            words = ["unshare", "-m", *words]
        if self.case.user:
            ids = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
            words = [
                "setpriv",
                *ids,
                "--inh-caps=-all,+dac_read_search",
                "--ambient-caps=-all,+dac_read_search",
                *words,
            ]
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def clear(self) -> None:
        """Remove what was made outside of the folder."""
        for root in ("/tmp", "/dev/shm", "/var/tmp"):
            for place in Path(root).glob(
                f"gputop-{self.uid}*" if self.case.user else "gputop-none-*"
            ):
                self._clear(place)

    @staticmethod
    def _clear(place: Path) -> None:
        if place.is_symlink() or place.is_file():
            place.unlink()
        else:
            shutil.rmtree(place, ignore_errors=True)


def try_case(case: Case, folder: Path) -> tuple[Outcome, Outcome]:
    """The command's outcome bare and under gputop."""
    command = [sys.executable, "-c", case.code]
    outcomes = []
    for words in (command, [*GPUTOP, "run", "--headless", "--", *command]):
        here = Path(tempfile.mkdtemp(dir=folder))
        here.chmod(0o755)
        surroundings = Surroundings(case, here)
        try:
            outcomes.append(surroundings.start(words))
        finally:
            surroundings.clear()
    return outcomes[0], outcomes[1]


def difference(bare: Outcome, watched: Outcome) -> str:
    """What of the command is not as bare, in one line; empty where all is."""
    if bare.code != watched.code:
        return f"exit code {watched.code} for {bare.code}: {watched.stderr[-300:]!r}"
    if bare.stdout != watched.stdout:
        return f"stdout {watched.stdout[-200:]!r} for {bare.stdout[-200:]!r}"
    if b"Traceback" in watched.stderr.replace(bare.stderr, b""):
        return f"a traceback: {watched.stderr[-600:]!r}"
    if not watched.stderr.startswith(bare.stderr) and bare.stderr not in watched.stderr:
        return f"stderr {watched.stderr[-300:]!r} for {bare.stderr[-300:]!r}"
    return ""


def first_word(watched: Outcome) -> str:
    """What gputop said about where, or whether, it records."""
    lines = watched.stderr.decode(errors="replace").splitlines()
    return next((line for line in lines if "record" in line or "without gputop" in line), "")


def main() -> None:
    """Try all cases, or those whose names hold a word of the command line; print what differs."""
    words = sys.argv[1:]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for case in CASES:
            if words and not any(word in case.name for word in words):
                continue
            reason = reason_to_skip(case)
            bare, watched = (Outcome(0, b"", b""),) * 2 if reason else try_case(case, Path(folder))
            wrong = difference(bare, watched)
            failed += bool(wrong)
            print(
                f"{'FAIL' if wrong else 'ok':5} {case.name} "
                f"{reason or wrong or first_word(watched)}",
                flush=True,
            )
    print(f"{failed} failed")


if __name__ == "__main__":
    main()
