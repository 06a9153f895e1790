"""Carries the command's output from its pipes to the log and, without a screen, to gputop's own
streams.

A program of its own, started from its text (see ``output.py``) in a session of its own, so that
neither the end of the recorder nor that of the front ends it. Standard library only, and of gputop
nothing.

What was read and not yet written lies in shared memory, with how far each end has come. So a keeper
may be killed at any moment: the next one goes on where it stopped, and writes nothing twice into
the log.
"""

import errno
import fcntl
import mmap
import os
import select
import signal
import stat
import sys
import time

HEAD_BYTES = 4096
PROGRAM_BYTES = 28672
"""The text of this program, padded with newlines."""
RINGS_AT = HEAD_BYTES + PROGRAM_BYTES

# Cells of 8 bytes at the beginning of the shared memory.
KEEPER_PID, PASSES_ON, RING_BYTES, LOG_LIMIT = 0, 1, 2, 3
MUTE, PASSING = 1, 2
"""What ``PASSES_ON`` says of a keeper that has come up."""
HOLDERS = 4
"""Process ids of the recorder and of the front, which hold the reading ends too."""
LOGS, LOG_CELLS = 8, 8
SHIFT, LOST, MARKED, START, LOG_ERRNO, CUT = range(6)
"""A log: its end less the bytes logged; bytes that never reached it, and how many of them a line in
it tells of; where it begins; the error at its last write or 0; bytes of its beginning given up."""
STREAMS, STREAM_CELLS = 32, 16
READ, LOGGED, PASSED, MOVING, ENDED, BROKEN, LAST_BYTE, UNSHOWN, TARGET_ERRNO, CLOSED = range(10)
"""A stream: bytes read, logged, passed on; whether a read is going on; no writer is left; nobody
reads our stream any more; the last byte passed on; bytes that could not be passed on and why; who
of the holders has closed it (2 cells)."""

PAUSE_S = 0.02
"""After little output: many small writes are carried together."""
_MUCH = 65536
_PIPE_BYTES, _TERMINAL_BYTES = 4096, 512
"""As much as a pipe, or a terminal, takes without waiting once it can be written."""
_LET_GO_WITHIN_S = 0.5
"""How soon the other holders close a stream that nobody reads any more."""
_BLOCK = 4096
_RETRY_S = 0.25
_LOCK_WAIT_S = 1.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Log:
    """One log file, of which this process is the only writer."""

    def __init__(self, cells, number, descriptor):
        self._cells = cells
        self._base = LOGS + number * LOG_CELLS
        self._file = descriptor
        self._limit = cells[LOG_LIMIT]
        self._retry_at = 0.0
        self.streams = []
        """Where the cells of the streams begin that are logged here."""

    def end(self):
        """Where the next byte goes."""
        return self._cells[self._base + SHIFT] + sum(
            self._cells[base + LOGGED] for base in self.streams
        )

    def failing(self):
        """Whether the last write failed."""
        return self._cells[self._base + LOG_ERRNO] != 0

    def try_now(self):
        """Do not wait before the next attempt, although the last one failed."""
        self._retry_at = 0.0

    def append(self, data):
        """Write at the end. Returns the number of bytes, 0 where it failed or is not yet due."""
        if self.failing() and time.monotonic() < self._retry_at:
            return 0
        try:
            if self._cells[self._base + LOST] > self._cells[self._base + MARKED]:
                self._mark()
            count = self._write(data)
        except OSError as error:
            self._cells[self._base + LOG_ERRNO] = error.errno or errno.EIO
            self._retry_at = time.monotonic() + _RETRY_S
            return 0
        self._cells[self._base + LOG_ERRNO] = 0
        return count

    def lose(self, count):
        """Note that so many bytes will never be in the log; the caller counts them as logged."""
        self._cells[self._base + SHIFT] -= count
        self._cells[self._base + LOST] += count

    def bound(self):
        """Give the oldest part up once the log is longer than it may be."""
        length = self.end() - self._cells[self._base + START]
        if 0 < self._limit < length:
            self.give_up(length - self._limit + self._limit // 8)

    def give_up(self, count):
        """Drop the oldest ``count`` bytes, in whole blocks. Returns whether there is room now."""
        start = self._cells[self._base + START]
        until = (start + count) // _BLOCK * _BLOCK
        if until <= start or until > self.end():
            return False
        try:
            _punch_hole(self._file, start, until - start)
        except OSError:
            return self._move_down(until)
        self._cells[self._base + START] = until
        self._cells[self._base + CUT] += until - start
        self._retry_at = 0.0
        return True

    def _write(self, data):
        at = self.end()
        try:
            return os.pwrite(self._file, data, at)
        except OSError as error:
            if error.errno != errno.EFBIG or at < 4 * _BLOCK or not self._move_down(at - at // 2):
                raise
        return os.pwrite(self._file, data[: max(_BLOCK, at // 4)], self.end())

    def _mark(self):
        missing = self._cells[self._base + LOST] - self._cells[self._base + MARKED]
        why = os.strerror(self._cells[self._base + LOG_ERRNO] or errno.EIO)
        self._insert(f"\n[gputop: {missing:,} bytes of output are missing here: {why}]\n")
        self._cells[self._base + MARKED] += missing

    def _insert(self, text):
        raw = text.encode()
        if os.pwrite(self._file, raw, self.end()) < len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._cells[self._base + SHIFT] += len(raw)

    def _move_down(self, begin):
        """Without holes in files, or room to grow: move the newest part to the beginning."""
        end = self.end()
        head = f"[gputop: {begin:,} bytes of earlier output were given up here]\n".encode()
        if begin <= len(head):
            return False
        try:
            at = os.pwrite(self._file, head, 0)
            while begin < end:
                part = os.pread(self._file, min(1 << 20, end - begin), begin)
                if not part:
                    return False
                begin += os.pwrite(self._file, part, at)
                at += len(part)
            os.ftruncate(self._file, at)
        except OSError:
            return False
        self._cells[self._base + SHIFT] -= end - at
        self._cells[self._base + CUT] += end - at
        self._cells[self._base + START] = 0
        return True


class Stream:
    """A reading end, and how far its bytes have come."""

    def __init__(self, cells, memory, number, *, source, log, target, beside):
        self.base = STREAMS + number * STREAM_CELLS
        self.source = source
        self.target = target
        self.beside = beside
        """Whether the keeper may end while this one still can be written to."""
        self._cells = cells
        self._log = log
        self._size = cells[RING_BYTES]
        start = RINGS_AT + number * self._size
        self._ring = memory[start : start + self._size]
        self._plain = target >= 0 and stat.S_ISREG(os.fstat(target).st_mode)
        if self._plain:
            self._most = 1 << 20
        elif target >= 0 and os.isatty(target):
            self._most = _TERMINAL_BYTES
        else:
            self._most = _PIPE_BYTES
        self._retry_at = 0.0
        self._broken_since = None
        log.streams.append(self.base)
        if target < 0:
            self._drop_target()

    def __getitem__(self, cell):
        return self._cells[self.base + cell]

    def __setitem__(self, cell, value):
        self._cells[self.base + cell] = value

    def room(self):
        """Bytes that can be read before some must be written."""
        return self._size - (self[READ] - min(self[LOGGED], self[PASSED]))

    def readable(self):
        """Whether to read: there is room, and no holder is about to let go of the other end."""
        if self[ENDED] or self.room() <= 0:
            return False
        if self[BROKEN] and self._broken_since is None:
            self._broken_since = time.monotonic()
        return (
            self._broken_since is None or time.monotonic() - self._broken_since > _LET_GO_WITHIN_S
        )

    def wants_target(self):
        """Whether something is to be passed on, and now."""
        return self.target >= 0 and self[PASSED] < self[READ] and time.monotonic() >= self._retry_at

    def retrying(self):
        """Whether something has to be tried again later."""
        return (self.target >= 0 and self[TARGET_ERRNO] != 0) or (self[LOGGED] < self[READ])

    def take(self):
        """Read what is there, as far as there is room. Returns the number of bytes."""
        before = self[READ]
        at, room = before % self._size, self.room()
        if not self.readable():
            return 0
        parts = [self._ring[at : at + room]]
        if at + room > self._size:
            parts.append(self._ring[: at + room - self._size])
        self[MOVING] = 1
        try:
            count = os.readv(self.source, parts)
            if count == 0:
                self[ENDED] = 1
            self[READ] = before + count
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError:  # EIO: a pseudo-terminal without a writer
            count = 0
            self[ENDED] = 1
        self[MOVING] = 0
        return count

    def is_echo(self):
        """Whether a whole line came from the terminal, typed before the command answered."""
        if not self.beside or self[LOGGED] == self[READ]:
            return False
        return self._ring[(self[READ] - 1) % self._size] == 10

    def save(self):
        """Write to the log what is not there yet."""
        while self[LOGGED] < self[READ]:
            count = self._log.append(self._part(self[LOGGED], 1 << 20))
            if count == 0:
                break
            self[LOGGED] += count
        excess = self[READ] - self[LOGGED] - self._size * 3 // 4
        if excess > 0 and not self._log.give_up(self._size // 2):
            self._log.lose(excess)
            self[LOGGED] += excess

    def save_now(self):
        """The last attempt: the disk may have room again since the one that failed."""
        self._log.try_now()
        self.save()

    def pass_on(self):
        """Write to gputop's own stream as much as it takes now."""
        try:
            while self.wants_target() and (self._plain or _writable(self.target)):
                part = self._part(self[PASSED], self._most)
                count = os.write(self.target, part)
                self[LAST_BYTE] = part[count - 1]
                self[PASSED] += count
                self[TARGET_ERRNO] = 0
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._target_failed(error.errno)

    def close(self):
        """Let go of the reading end, so that who writes gets SIGPIPE."""
        if self.source >= 0:
            os.close(self.source)
            self.source = -1
            self[ENDED] = 1

    def done(self):
        """Whether nothing can come any more, and all that came is where it belongs."""
        return bool(self[ENDED]) and self[READ] == self[LOGGED] and self[READ] == self[PASSED]

    def lose_rest(self):
        """Count as lost what the log did not take."""
        count = self[READ] - self[LOGGED]
        self._log.lose(count)
        self[LOGGED] += count

    def skip_target(self):
        """Count as passed on what has nowhere to go."""
        if self.target < 0:
            self[PASSED] = self[READ]

    def _part(self, position, most):
        at = position % self._size
        return self._ring[at : at + min(most, self[READ] - position, self._size - at)]

    def _target_failed(self, number):
        if number in (errno.EPIPE, errno.ECONNRESET):
            self[BROKEN] = 1
            self._drop_target()
        elif number in _FULL:
            self[TARGET_ERRNO] = number
            self._retry_at = time.monotonic() + _RETRY_S
            excess = self[READ] - self[PASSED] - self._size * 3 // 4
            if excess > 0:
                self[PASSED] += excess
                self[UNSHOWN] += excess
        else:  # a terminal that was closed: the training goes on
            self._drop_target()

    def _drop_target(self):
        self.target = -1
        self[TARGET_ERRNO] = 0
        self.skip_target()


class Keeper:
    """All streams of one command."""

    def __init__(self, cells, streams, logs):
        self._cells = cells
        self._streams = streams
        self._logs = logs

    def run(self):
        """Carry until no writer is left."""
        while not all(stream.done() or stream.beside for stream in self._streams):
            self._wait()
            moved = 0
            for stream in self._streams:
                moved += stream.take()
            for stream in sorted(self._streams, key=Stream.is_echo, reverse=True):
                stream.save()
                stream.skip_target()
                stream.pass_on()
                if stream[BROKEN] and not self._others_hold(stream):
                    stream.close()
            for log in self._logs:
                log.bound()
            self._give_up_at_the_end()
            if 0 < moved < _MUCH:
                time.sleep(PAUSE_S)

    def _wait(self):
        poller = select.poll()
        timeout = None
        for stream in self._streams:
            if stream.readable():
                poller.register(stream.source, select.POLLIN)
            if stream.wants_target():
                poller.register(stream.target, select.POLLOUT)
            if stream.retrying() or (stream[BROKEN] and not stream[ENDED]):
                timeout = _RETRY_S * 200
        if all(stream[ENDED] for stream in self._streams if not stream.beside):
            timeout = _RETRY_S * 1000
        poller.poll(timeout)

    def _others_hold(self, stream):
        """Whether the recorder or the front has this reading end: then a writer would block."""
        return any(
            self._cells[HOLDERS + holder]
            and not stream[CLOSED + holder]
            and _alive(self._cells[HOLDERS + holder])
            for holder in range(2)
        )

    def _give_up_at_the_end(self):
        """The command is gone: what its log has no room for is lost, and nobody is kept waiting."""
        if not all(stream[ENDED] for stream in self._streams if not stream.beside):
            return
        for stream in self._streams:
            if stream[LOGGED] < stream[READ]:
                stream.save_now()
            if stream[LOGGED] < stream[READ]:
                stream.lose_rest()
            if stream[TARGET_ERRNO]:
                stream[UNSHOWN] += stream[READ] - stream[PASSED]
                stream[PASSED] = stream[READ]


def _writable(descriptor):
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return bool(poller.poll(0))


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        pass
    if os.path.exists("/proc/self/stat"):
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def _punch_hole(descriptor, start, length):
    import ctypes

    if sys.platform != "linux":
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, 3, ctypes.c_long(start), ctypes.c_long(length)):
        # 3: keep the size, punch a hole
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _lock(descriptor):
    """Be the only keeper; the one before may still be dying."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
        time.sleep(0.01)


def main(words):
    """Keep the output that ``words`` name.

    Args:
        words: descriptor of the shared memory, then for each stream ``number:source:log
            number:log:target:beside``.
    """
    try:
        os.setsid()
    except OSError:
        pass
    ignored = (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGPIPE,
        signal.SIGXFSZ,
    )
    for number in (
        *ignored,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGUSR1,
        signal.SIGUSR2,
    ):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    shared = int(words[0])
    memory = memoryview(mmap.mmap(shared, 0))
    cells = memory[:HEAD_BYTES].cast("q")
    if not _lock(shared):
        return
    logs, streams = {}, []
    for word in words[1:]:
        number, source, log_number, log, target, beside = map(int, word.split(":"))
        if log_number not in logs:
            logs[log_number] = Log(cells, log_number, log)
        streams.append(
            Stream(
                cells,
                memory,
                number,
                source=source,
                log=logs[log_number],
                target=target,
                beside=beside,
            )
        )
    cells[KEEPER_PID] = os.getpid()  # first: who is mute may be killed
    if any(stream.target >= 0 for stream in streams):
        cells[PASSES_ON] = PASSING
    else:
        cells[PASSES_ON] = MUTE
    Keeper(cells, streams, list(logs.values())).run()


if __name__ == "__main__":
    main(sys.argv[1:])
