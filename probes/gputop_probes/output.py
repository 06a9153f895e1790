"""The command's output on its way to the log: pipes, and the keeper that empties them.

Recorder, front and keeper all have the reading ends, so no one's or two's death closes them under
the training; whoever is left starts a new keeper. The command sees nothing but a pipe, as behind
``| cat``.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import mmap
import os
import signal
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

from gputop_probes import output_keeper as keeper
from gputop_probes import procfs
from gputop_probes.record import layout
from gputop_probes.record.private import open_private

RECORDER, FRONT = 0, 1
"""Who holds the reading ends beside the keeper."""
KEEPER_NAME = "output-keeper"
DEFAULT_LOG_MB = 1024
ENV_LOG_MB = "GPUTOP_LOG_MB"
LOG_NAMES = tuple(layout.LOG_LENGTHS)
_RING_BYTES = 4 << 20
_LEAST_RING_BYTES = 16 << 10
_PIPE_BYTES = 1 << 20
_START_WITHIN_S = 2.0
"""How long a keeper may take to come up, and the front's, which can pass output on."""
_STOPPED_S = 1.0
_SPAWNS = 3
"""After so many keepers that did not come up, one is forked instead."""
_PROGRAM = (
    "import os,sys;sys.path[:]=filter(None,sys.path);"
    f"exec(os.pread(int(sys.argv[1]),{keeper.PROGRAM_BYTES},{keeper.HEAD_BYTES}))"
)
_COMMAND = (KEEPER_NAME, "-S", "-s", "-c", _PROGRAM)
KEEPER_ARGUMENTS = len(_COMMAND)
"""Where in its command line the keeper's own arguments begin."""
_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP}


class Route(NamedTuple):
    """One stream: where it is read, its log, and gputop's stream that it goes on to (-1: none)."""

    source: int
    log: int
    target: int = -1
    log_number: int = 0
    beside: bool = False
    """The keeper may end although this can still be written to."""


class Losses(NamedTuple):
    """Bytes of output that are not in the log, and not on gputop's own streams."""

    missing: int
    given_up: int
    """Of the oldest, because the log is bounded."""
    not_passed_on: int


class OutputHolder:
    """What one of the two holders has of the command's output."""

    def __init__(self, shared: int, routes: list[Route], holder: int):
        self.holder = holder
        self.routes = routes
        self._shared = shared
        self._cells = memoryview(mmap.mmap(shared, 0))[: keeper.HEAD_BYTES].cast("q")
        self._cells[keeper.HOLDERS + holder] = os.getpid()
        self._free_since: float | None = time.monotonic()
        self._stopped_since: float | None = None
        self._spawns = 0
        self._children: list[int] = []
        self._tending = _thread.allocate_lock()

    def hand_to_recorder(self) -> None:
        """Hold on for the recorder, in the process forked for it: without the front's streams."""
        for route in self.routes:
            if route.target >= 0:
                os.close(route.target)
        self.routes = [route._replace(target=-1) for route in self.routes]
        self.holder = RECORDER
        self._children = []
        self._cells[keeper.HOLDERS + RECORDER] = os.getpid()

    def start_keeper(self) -> None:
        """Start a keeper; it leaves again if there is one.

        Raises:
            OSError: no process can be started.
        """
        self._spawns += 1
        self._cells[keeper.KEEPER_PID] = self._cells[keeper.PASSES_ON] = 0
        used = self._descriptors()
        numbers = {descriptor: max(used) + 1 + number for number, descriptor in enumerate(used)}
        if self._spawns <= _SPAWNS:
            pid = _spawn(self._words(numbers), numbers)
        else:
            pid = None
        self._children.append(_fork(self._words({}), used) if pid is None else pid)

    def tend(self) -> None:
        """See that a keeper is at work, and let go of what nobody reads. Cheap; call it often."""
        if self._tending.acquire(blocking=False):
            try:
                self._tend()
            finally:
                self._tending.release()

    def _tend(self) -> None:
        self._reap()
        self._close_broken()
        if all(self._ended(number) or route.beside for number, route in enumerate(self.routes)):
            return
        if self._keeper_at_work():
            self._free_since = None
            self._spawns = 0
            self._replace_useless_keeper()
            return
        self._free_since = self._free_since or time.monotonic()
        coming = bool(self._children) or (self.holder == RECORDER and self._front_lives())
        if not coming or time.monotonic() - self._free_since > _START_WITHIN_S:
            self._free_since = time.monotonic()
            self.start_keeper()

    def settle(self, seconds: float = float("inf"), passed_on: bool = False) -> bool:
        """Wait until what the command has written so far is in the log (or on our own streams).

        Args:
            seconds: at most so long.
            passed_on: wait for our own streams; a reader that is slow is waited for, as a command
                would.
        """
        deadline = time.monotonic() + seconds
        goals = [self._written(number) for number in range(len(self.routes))]
        cell = keeper.PASSED if passed_on else keeper.LOGGED
        while not all(self._reached(number, cell, goal) for number, goal in enumerate(goals)):
            if time.monotonic() > deadline:
                return False
            self.tend()
            time.sleep(0.002)
        return True

    def show(self) -> None:
        """Where no screen shows the log: write it on our stdout, and pass on what follows."""
        if any(route.target >= 0 for route in self.routes):
            return
        deadline = time.monotonic() + _START_WITHIN_S
        while self._keeper_at_work() and time.monotonic() < deadline:
            self._kill_keeper()
            time.sleep(0.005)
        for number, route in enumerate(self.routes):
            if route.beside or route.source < 0:
                continue
            self.routes[number] = route._replace(target=fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3))
            base = keeper.STREAMS + number * keeper.STREAM_CELLS
            self._cells[base + keeper.PASSED] = self._cells[base + keeper.LOGGED]
            _copy(
                route.log,
                self._cells[keeper.LOGS + route.log_number * keeper.LOG_CELLS + keeper.START],
            )
        self.start_keeper()

    def losses(self) -> Losses:
        """What has been lost so far."""
        numbers = {route.log_number for route in self.routes}
        logs = [keeper.LOGS + number * keeper.LOG_CELLS for number in numbers]
        return Losses(
            sum(self._cells[base + keeper.LOST] for base in logs),
            sum(self._cells[base + keeper.CUT] for base in logs),
            sum(self._cell(number, keeper.UNSHOWN) for number in range(len(self.routes))),
        )

    def last_byte(self, target: int) -> int | None:
        """The last byte that went where our descriptor ``target`` leads; None before the first."""
        for number, route in enumerate(self.routes):
            if (
                route.target >= 0
                and _same_file(route.target, target)
                and self._cell(number, keeper.PASSED)
            ):
                return self._cell(number, keeper.LAST_BYTE)
        return None

    def describe(self) -> dict[str, list[int]]:
        """What ``host.json`` says, so that a later recorder finds this output: inodes."""
        shared = os.fstat(self._shared)
        pipes = [os.fstat(route.source).st_ino for route in self.routes if route.source >= 0]
        return {"shared": [shared.st_dev, shared.st_ino], "pipes": pipes}

    def close(self) -> None:
        """Let go of everything."""
        self._cells[keeper.HOLDERS + self.holder] = 0
        for route in self.routes:
            for descriptor in {route.source, route.log, route.target}:
                if descriptor >= 0:
                    _close(descriptor)
        self.routes = []

    def _cell(self, number: int, cell: int) -> int:
        return self._cells[keeper.STREAMS + number * keeper.STREAM_CELLS + cell]

    def _ended(self, number: int) -> bool:
        """Whether everything of a stream is where it belongs and nothing can come any more."""
        read = self._cell(number, keeper.READ)
        passed = min(self._cell(number, keeper.LOGGED), self._cell(number, keeper.PASSED))
        return bool(self._cell(number, keeper.ENDED)) and read == passed

    def _written(self, number: int) -> int:
        """Bytes that the command has written so far."""
        while self.routes[number].source >= 0 and not self._cell(number, keeper.ENDED):
            read = self._cell(number, keeper.READ)
            waiting = _waiting_bytes(self.routes[number].source)
            if not self._cell(number, keeper.MOVING) and self._cell(number, keeper.READ) == read:
                return read + waiting
            self.tend()
        return self._cell(number, keeper.READ)

    def _reached(self, number: int, cell: int, goal: int) -> bool:
        if cell == keeper.PASSED:
            failing = self._cell(number, keeper.TARGET_ERRNO)
        else:
            failing = self._log_errno(number)
        broken = self._cell(number, keeper.BROKEN)
        return self._cell(number, cell) >= goal or bool(failing) or bool(broken)

    def _log_errno(self, number: int) -> int:
        return self._cells[
            keeper.LOGS + self.routes[number].log_number * keeper.LOG_CELLS + keeper.LOG_ERRNO
        ]

    def _words(self, numbers: dict[int, int]) -> list[str]:
        """The keeper's arguments, with the numbers that the descriptors have there."""

        def there(descriptor: int) -> int:
            return numbers.get(descriptor, descriptor)

        return [
            str(there(self._shared)),
            *(
                f"{number}:{there(r.source)}:{r.log_number}:{there(r.log)}:{there(r.target)}:{int(r.beside)}"
                for number, r in enumerate(self.routes)
            ),
        ]

    def _descriptors(self) -> list[int]:
        used = {
            descriptor
            for route in self.routes
            for descriptor in (route.source, route.log, route.target)
        }
        return [self._shared, *sorted(descriptor for descriptor in used if descriptor >= 0)]

    def _front_lives(self) -> bool:
        return procfs.alive(self._cells[keeper.HOLDERS + FRONT])

    def _keeper_at_work(self) -> bool:
        """Whether a keeper has the lock: a process's, so asking neither gives nor takes ours."""
        try:
            fcntl.lockf(self._shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.lockf(self._shared, fcntl.LOCK_UN)
        return False

    def _replace_useless_keeper(self) -> None:
        """One that is stopped for good, or that a recorder started while we could not: it cannot
        pass output on.
        """
        keeper_stat = procfs.stat(self._cells[keeper.KEEPER_PID])
        now_s = time.monotonic()
        stopped = keeper_stat is not None and keeper_stat.state in "Tt"
        if stopped:
            self._stopped_since = self._stopped_since or now_s
        else:
            self._stopped_since = None
        hung = self._stopped_since is not None and now_s - self._stopped_since > _STOPPED_S
        mute = (
            any(route.target >= 0 for route in self.routes)
            and self._cells[keeper.PASSES_ON] == keeper.MUTE
        )
        if hung or mute:
            self._kill_keeper()
            self._stopped_since = None

    def _kill_keeper(self) -> None:
        """End the keeper that has the lock; one just come up has not said yet who it is."""
        pid = self._cells[keeper.KEEPER_PID]
        if pid <= 0:  # to kill() 0 is our own process group, with the shell script that we run in
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)

    def _close_broken(self) -> None:
        for number, route in enumerate(self.routes):
            if route.source >= 0 and self._cell(number, keeper.BROKEN):
                os.close(route.source)
                self.routes[number] = route._replace(source=-1)
                base = keeper.STREAMS + number * keeper.STREAM_CELLS
                self._cells[base + keeper.CLOSED + self.holder] = 1

    def _reap(self) -> None:
        for pid in list(self._children):
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            except ChildProcessError:
                pass
            self._children.remove(pid)


def share(routes: list[Route], log_mb: int, holder: int = FRONT) -> OutputHolder:
    """Make the shared memory for these streams; their logs are continued at their ends.

    Raises:
        OSError: there is no room for it.
    """
    ring_bytes = _RING_BYTES
    while True:
        try:
            shared = _memory(keeper.RINGS_AT + len(routes) * ring_bytes)
            break
        except OSError:  # RLIMIT_FSIZE
            if ring_bytes <= _LEAST_RING_BYTES:
                raise
            ring_bytes //= 4
    text = Path(keeper.__file__).read_bytes()
    os.pwrite(shared, text.ljust(keeper.PROGRAM_BYTES, b"\n"), keeper.HEAD_BYTES)
    output = OutputHolder(shared, routes, holder)
    output._cells[keeper.RING_BYTES] = ring_bytes
    output._cells[keeper.LOG_LIMIT] = log_mb << 20
    for route in routes:
        shift = keeper.LOGS + route.log_number * keeper.LOG_CELLS + keeper.SHIFT
        output._cells[shift] = os.fstat(route.log).st_size
    return output


def open_log(host_dir: Path, number: int) -> int:
    """Open one of the two logs for a keeper; created where it is not there.

    Raises:
        OSError: it cannot be made.
    """
    return open_private(host_dir / LOG_NAMES[number], os.O_RDWR)


def open_pipe() -> tuple[int, int]:
    """A pipe with much room; its reading end does not block.

    Raises:
        OSError: no descriptors are left.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        fcntl.fcntl(reading, getattr(fcntl, "F_SETPIPE_SZ", 1031), _PIPE_BYTES)
    except OSError:  # over the user's limit, or not Linux
        pass
    return reading, writing


def chosen_log_mb() -> int:
    """``$GPUTOP_LOG_MB``, MiB; 0: as long as there is room."""
    text = os.environ.get(ENV_LOG_MB, "")
    return int(text) if text.isdigit() else DEFAULT_LOG_MB


def _memory(size: int) -> int:
    """An open file without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("output")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _spawn(words: list[str], numbers: dict[int, int]) -> int | None:
    """A fresh interpreter with the program from the shared memory, and nothing of gputop in its
    command line.

    Returns:
        Its process id; None where none can be started.
    """
    home = {"PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"}
    libraries = {
        name: os.environ[name]
        for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
        if name in os.environ
    }
    actions = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    actions += [(os.POSIX_SPAWN_DUP2, here, there) for here, there in numbers.items()]
    program = getattr(sys, "_base_executable", None) or sys.executable
    arguments = (program, [*_COMMAND, *words], {**home, **libraries})
    try:
        return os.posix_spawn(*arguments, file_actions=actions, setsigmask=_BLOCKED, setsid=True)
    except NotImplementedError:  # an old C library; the keeper does it itself, a little later
        return os.posix_spawn(*arguments, file_actions=actions, setsigmask=_BLOCKED)
    except OSError:
        return None


def _fork(words: list[str], descriptors: list[int]) -> int:
    """The same program in a copy of this process, where no interpreter can be started afresh."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        for number in _open_descriptors() - {0, 1, 2, *descriptors}:
            _close(number)  # above all the command's ends of the pipes
        keeper.main(words)
    finally:
        os._exit(0)


def _open_descriptors() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/dev/fd")}
    except OSError:
        return set(range(256))


def _same_file(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:
        return False


def _waiting_bytes(descriptor: int) -> int:
    """Bytes that can be read at once."""
    import array

    count = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]


def _copy(log: int, start: int) -> None:
    """Write a log on our stdout; one that nobody reads is the keeper's affair."""
    try:
        while part := os.pread(log, 1 << 20, start):
            start += os.write(1, part)
    except OSError:
        pass


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass
