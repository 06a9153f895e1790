"""Ways out of the sandbox of ``gputop estimate train.py``, each with what it aims at and how harm
would show outside.

``prepare`` makes the aim, outside; ``attempt`` runs inside; ``harmed`` looks at the aim afterwards,
outside again. The C library is called directly, so that Python's functions, which the sandbox
replaces, are not in the way.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import pty
import resource
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
FILES = frozenset(("files", "landlock"))
REFUSED = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOSYS, errno.EAFNOSUPPORT)
POSIX_QUEUE = b"/gputop-escape-%d"


class Escape(NamedTuple):
    """One way out."""

    name: str
    prepare: Callable[[str], Any]
    """Given a name of its own below a folder; what it returns is handed to the other two."""
    attempt: Callable[[Any], Any]
    """Whether it went through, as far as that can be told inside."""
    harmed: Callable[[Any, Any], bool]
    """Given the aim and what the attempt returned."""
    held_by: frozenset[str] = frozenset()
    """Layers of which one is needed; empty: the filter of calls alone holds it."""
    root: bool = False
    """Only root could do so at all."""


class CallError(OSError):
    """A call of the C library failed."""


def call(function: str | int, *words: Any) -> int:
    """A function of the C library, or a system call by its number."""
    made = LIBC.syscall if isinstance(function, int) else getattr(LIBC, function)
    head = (function,) if isinstance(function, int) else ()
    result = made(*head, *(word.encode() if isinstance(word, str) else word for word in words))
    if result == -1:
        raise CallError(ctypes.get_errno(), str(function))
    return int(result)


def shell(command: str, *arguments: str) -> bool:
    """Whether a program that is started does it."""
    return (
        subprocess.run(
            ["sh", "-c", command, "sh", *arguments], capture_output=True, check=False
        ).returncode
        == 0
    )


# Files: an aim each, of which nothing may change.


def make_file(path: str) -> tuple[str, Any]:
    os.makedirs(path)
    aim = os.path.join(path, "aim")
    with open(aim, "w") as file:
        file.write("kept")
    os.chmod(aim, 0o640)
    os.utime(aim, (1e9, 1e9))
    return aim, look(aim)


def look(aim: str) -> Any:
    """All that can be seen of a file and of its folder."""
    folder = os.path.dirname(aim)
    if not os.path.lexists(aim):
        return None
    found = os.lstat(aim)
    with open(aim) as file:
        text = file.read()
    flags = attributes_of(aim)
    identity = (
        found.st_ino,
        found.st_mode,
        found.st_uid,
        found.st_gid,
        found.st_mtime_ns,
        found.st_nlink,
    )
    return (
        text,
        identity,
        os.listxattr(aim),
        sorted(os.listdir(folder)),
        os.lstat(folder).st_mode,
        flags,
    )


def attributes_of(aim: str) -> int:
    with open(aim) as file:
        try:
            return struct.unpack("i", fcntl.ioctl(file, 0x80086601, b"\0" * 4))[0]
        except OSError:
            return 0


def of_file(
    name: str, attempt: Callable[[str], Any], held_by: frozenset[str] = frozenset()
) -> Escape:
    def harmed(aim: Any, _said: Any) -> bool:
        return look(aim[0]) != aim[1]

    return Escape(name, make_file, lambda aim: attempt(aim[0]), harmed, held_by)


def opened(aim: str, flags: int) -> int:
    return call("open", aim, flags, 0o644)


def written(aim: str, flags: int = os.O_WRONLY) -> int:
    return call("write", opened(aim, flags), b"gone", 4)


def through_a_link(aim: str) -> Any:
    call("symlink", aim, "link-to-aim")
    return written("link-to-aim")


def through_a_hard_link(aim: str) -> Any:
    call("link", aim, os.path.abspath("hard-link"))
    return written("hard-link")


def through_a_folder(aim: str) -> Any:
    folder = call("open", os.path.dirname(aim), os.O_RDONLY | os.O_DIRECTORY)
    return call("write", call("openat", folder, b"aim", os.O_WRONLY | os.O_TRUNC), b"gone", 4)


def by_reopening(aim: str) -> Any:
    return written(f"/proc/self/fd/{opened(aim, os.O_RDONLY)}", os.O_WRONLY | os.O_TRUNC)


def unnamed(aim: str) -> Any:
    folder = os.path.dirname(aim)
    made = opened(folder, os.O_TMPFILE | os.O_WRONLY)
    return call("linkat", -100, f"/proc/self/fd/{made}", -100, os.path.join(folder, "made"), 0x400)


def mapped(aim: str) -> Any:
    with open(opened(aim, os.O_RDWR), "r+b") as file, mmap.mmap(file.fileno(), 4) as memory:
        memory[:4] = b"gone"


def nodump(aim: str) -> Any:
    return fcntl.ioctl(
        opened(aim, os.O_RDONLY), 0x40086602, struct.pack("i", attributes_of(aim) | 0x40)
    )


def times_of(path: str | None, where: int = -100) -> int:
    return call(280 if X86 else 88, where, path and path.encode(), struct.pack("4q", 5, 0, 5, 0), 0)


def as_a_32_bit_program(aim: str) -> Any:
    """``chmod`` by the numbers of i386, whose calls a filter for x86-64 alone would not see."""
    low = 0x40
    memory = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | low, 7)
    where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    path = where + 512
    code = (
        b"\x53\xb8\x0f\x00\x00\x00\xbb"
        + struct.pack("<I", path)
        + b"\xb9\xff\x01\x00\x00\xcd\x80\x5b\xc3"
    )
    memory[: len(code)] = code
    memory[512 : 512 + len(aim) + 1] = aim.encode() + b"\0"
    return ctypes.CFUNCTYPE(ctypes.c_long)(where)()


def imported(aim: str) -> Any:
    """A module's bytecode beside it."""
    import importlib.util

    where = os.path.join(os.path.dirname(aim), "module.py")
    spec = importlib.util.spec_from_file_location("module", where)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def make_module(path: str) -> Any:
    aim, _ = make_file(path)
    with open(os.path.join(path, "module.py"), "w") as file:
        file.write("value = 1\n")
    return aim, look(aim)


RENAMED, TRUNCATED = 76 if X86 else 45, os.O_WRONLY | os.O_TRUNC
OF_FILES = [
    of_file("overwrite a file", written, FILES),
    of_file("append to a file", lambda aim: written(aim, os.O_WRONLY | os.O_APPEND), FILES),
    of_file("empty a file by opening it", lambda aim: opened(aim, TRUNCATED), FILES),
    of_file("overwrite by Python", lambda aim: os.write(os.open(aim, os.O_WRONLY), b"gone"), FILES),
    of_file("overwrite by a program", lambda aim: shell('echo gone > "$1"', aim), FILES),
    of_file("overwrite through a link", through_a_link, FILES),
    of_file("overwrite through a hard link", through_a_hard_link, FILES),
    of_file("overwrite below an open folder", through_a_folder, FILES),
    of_file("open again for writing", by_reopening, FILES),
    of_file(
        "overwrite through /proc/self/root", lambda aim: written("/proc/self/root" + aim), FILES
    ),
    of_file("overwrite by mapped memory", mapped, FILES),
    of_file("remove a file", lambda aim: call("unlink", aim), FILES),
    of_file("remove by a program", lambda aim: shell('rm -rf "$(dirname "$1")"', aim), FILES),
    of_file("rename a file", lambda aim: call("rename", aim, aim + "2"), FILES),
    of_file("rename into the scratch folder", lambda aim: call("rename", aim, b"taken"), FILES),
    of_file("make a file", lambda aim: written(aim + "2", os.O_WRONLY | os.O_CREAT), FILES),
    of_file("make a folder", lambda aim: call("mkdir", aim + "2", 0o700), FILES),
    of_file("make a link", lambda aim: call("symlink", b"/etc/passwd", aim + "2"), FILES),
    of_file("make a hard link", lambda aim: call("link", aim, aim + "2"), FILES),
    of_file("make a pipe", lambda aim: call("mkfifo", aim + "2", 0o600), FILES),
    of_file("make a Unix socket", lambda aim: socket.socket(socket.AF_UNIX).bind(aim + "2"), FILES),
    of_file("link an unnamed file", unnamed, FILES),
    of_file("truncate", lambda aim: call("truncate", aim, 1)),
    of_file("truncate by a program", lambda aim: shell('truncate -s 1 "$1"', aim), FILES),
    of_file("chmod", lambda aim: call("chmod", aim, 0)),
    of_file("chmod by Python", lambda aim: os.chmod(aim, 0)),
    of_file("chmod by a program", lambda aim: shell('chmod 000 "$1"', aim)),
    of_file("chmod of an open file", lambda aim: call("fchmod", opened(aim, os.O_RDONLY), 0)),
    of_file("fchmodat", lambda aim: call("fchmodat", -100, aim, 0, 0)),
    of_file("fchmodat2", lambda aim: call(452, -100, aim.encode(), 0, 0)),
    of_file("chmod of a folder", lambda aim: call("chmod", os.path.dirname(aim), 0o777)),
    of_file("chown", lambda aim: call("chown", aim, 12345, 12345)),
    of_file(
        "chown of an open file", lambda aim: call("fchown", opened(aim, os.O_RDONLY), 12345, 12345)
    ),
    of_file("times", times_of),
    of_file("times of an open file", lambda aim: times_of(None, opened(aim, os.O_RDONLY))),
    of_file("times by a program", lambda aim: shell('touch -d 2001-01-01 "$1"', aim)),
    of_file("an attribute", lambda aim: call("setxattr", aim, b"user.escape", b"x", 1, 0)),
    of_file(
        "an attribute of an open file",
        lambda aim: call("fsetxattr", opened(aim, 0), b"user.escape", b"x", 1, 0),
    ),
    of_file("flags of a file", nodump),
    *([of_file("chmod as a 32-bit program", as_a_32_bit_program)] if X86 else []),
    of_file(
        "a mount over a folder",
        lambda aim: call("mount", b"tmpfs", os.path.dirname(aim), b"tmpfs", 0, None),
    ),
    of_file("bytecode beside a module", imported, FILES)._replace(prepare=make_module),
]


# Processes of the same user: one each, which sleeps.


class Victim(NamedTuple):
    process: subprocess.Popen[bytes]
    stack: int
    before: Any


def state_of(process: subprocess.Popen[bytes]) -> Any:
    """All that others could change of a process."""
    pid = process.pid
    if process.poll() is not None:
        return None
    with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/oom_score_adj") as score:
        words = stat.read().rsplit(")", 1)[1].split()
        priorities = (words[0] in "tT", words[2], words[15], words[16], score.read())
    limits = resource.prlimit(pid, resource.RLIMIT_CORE)
    return priorities, os.sched_getaffinity(pid), limits, ioprio(pid), memory_of(pid)


def ioprio(pid: int) -> int:
    return int(LIBC.syscall(252 if X86 else 31, 1, pid))


def stack_of(pid: int) -> int:
    """The address of some bytes at the end of its stack, where its own name stands."""
    with open(f"/proc/{pid}/maps") as lines:
        return (
            next(int(line.split("-")[1].split()[0], 16) for line in lines if "[stack]" in line) - 16
        )


def memory_of(pid: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        memory.seek(stack_of(pid))
        return memory.read(8)


def begin(_path: str) -> Victim:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    while not process.poll() and "sleep" not in name_of(process.pid):
        time.sleep(0.005)
    return Victim(process, stack_of(process.pid), state_of(process))


def name_of(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as text:
        return text.read()


def hurt(victim: Victim, _said: Any) -> bool:
    time.sleep(0.02)
    after = state_of(victim.process)
    victim.process.kill()
    victim.process.wait()
    return after != victim.before


def of_process(
    name: str, attempt: Callable[..., Any], held_by: frozenset[str] = frozenset()
) -> Escape:
    return Escape(name, begin, lambda victim: attempt(victim.process.pid), hurt, held_by)


def of_memory(
    name: str, attempt: Callable[[int, int], Any], held_by: frozenset[str] = frozenset()
) -> Escape:
    return Escape(
        name, begin, lambda victim: attempt(victim.process.pid, victim.stack), hurt, held_by
    )


def by_owner(pid: int) -> None:
    """The kernel sends a signal of one's choice to whoever is told to own a socket."""
    near, far = socket.socketpair()
    fcntl.fcntl(near, 8, pid)
    fcntl.fcntl(near, 10, signal.SIGTERM)
    fcntl.fcntl(near, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    far.send(b"x")


def vectors(pid: int, stack: int) -> Any:
    text = ctypes.create_string_buffer(b"overwrit")
    local = struct.pack("PN", ctypes.addressof(text), 8)
    remote = struct.pack("PN", stack, 8)
    return call("process_vm_writev", pid, local, 1, remote, 1, 0)


def into_memory(pid: int, stack: int) -> Any:
    with open(f"/proc/{pid}/mem", "r+b", 0) as memory:
        memory.seek(stack)
        memory.write(b"overwrit")


def queued(pid: int) -> Any:
    information = struct.pack("iii4xii", signal.SIGTERM, 0, -1, os.getpid(), os.getuid()).ljust(
        128, b"\0"
    )
    return call(129 if X86 else 138, pid, signal.SIGTERM, information)


OF_PROCESSES = [
    of_process("SIGTERM", lambda pid: call("kill", pid, signal.SIGTERM)),
    of_process("SIGKILL by a program", lambda pid: shell('kill -9 "$1"', str(pid))),
    of_process("SIGSTOP", lambda pid: call("kill", pid, signal.SIGSTOP)),
    of_process("a signal to its group", lambda pid: call("kill", -pid, signal.SIGTERM)),
    of_process("tkill", lambda pid: call(200 if X86 else 130, pid, signal.SIGTERM)),
    of_process("tgkill", lambda pid: call(234 if X86 else 131, pid, pid, signal.SIGTERM)),
    of_process(
        "a signal by pidfd", lambda pid: call(424, call(434, pid, 0), signal.SIGTERM, None, 0)
    ),
    of_process("a queued signal", queued),
    of_process("a signal by a socket's owner", by_owner),
    of_process("renice", lambda pid: call("setpriority", 0, pid, 15)),
    of_process("renice by a program", lambda pid: shell('renice -n 15 -p "$1"', str(pid))),
    of_process("I/O priority", lambda pid: call(251 if X86 else 30, 1, pid, 3 << 13)),
    of_process("affinity", lambda pid: call("sched_setaffinity", pid, 8, struct.pack("Q", 1))),
    of_process("scheduling", lambda pid: call("sched_setscheduler", pid, 3, struct.pack("i", 0))),
    of_process(
        "limits",
        lambda pid: call("prlimit", pid, resource.RLIMIT_CORE, struct.pack("QQ", 0, 0), None),
    ),
    of_process("ptrace", lambda pid: (call("ptrace", 16, pid, 0, 0), time.sleep(1))),
    of_memory("its memory", vectors),
    of_memory("its memory as a file", into_memory, FILES | {"processes"}),
    of_process(
        "its OOM score", lambda pid: shell('echo 900 > "/proc/$1/oom_score_adj"', str(pid)), FILES
    ),
]


# Sockets outside, which must hear nothing.


def listen(
    path: str, family: int = socket.AF_UNIX, kind: int = socket.SOCK_STREAM, address: Any = None
) -> Any:
    heard = socket.socket(family, kind)
    heard.bind(path if address is None else address)
    if kind == socket.SOCK_STREAM:
        heard.listen(64)
    return heard, heard.getsockname()


def heard_something(aim: Any, _said: Any) -> bool:
    ready = bool(select.select([aim[0]], [], [], 0.02)[0])
    aim[0].close()
    return ready


def of_socket(
    name: str, attempt: Callable[[Any], Any], held_by: frozenset[str] = frozenset(), **options: Any
) -> Escape:
    return Escape(
        name,
        lambda path: listen(path, **options),
        lambda aim: attempt(aim[1]),
        heard_something,
        held_by,
    )


def unix_address(path: str) -> bytes:
    return struct.pack("=H", socket.AF_UNIX) + path.encode() + b"\0"


def connected(address: bytes, family: int = socket.AF_UNIX) -> int:
    return call("connect", call("socket", family, socket.SOCK_STREAM, 0), address, len(address))


def by_a_link(path: str) -> int:
    call("symlink", path, b"link-to-socket")
    return connected(unix_address("link-to-socket"))


def while_it_changes(path: str) -> None:
    """The address is a harmless one when it is looked at, perhaps another one when it is used."""
    here = os.path.abspath("own-socket")
    own = socket.socket(socket.AF_UNIX)
    own.bind(here)
    own.listen(1000)
    harmless, other = (unix_address(one).ljust(108, b"\0") for one in (here, path))
    address = ctypes.create_string_buffer(harmless, 108)
    over = threading.Event()

    def flip() -> None:
        while not over.is_set():
            ctypes.memmove(address, other, 108)
            ctypes.memmove(address, harmless, 108)

    threading.Thread(target=flip, daemon=True).start()
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        descriptor = call("socket", socket.AF_UNIX, socket.SOCK_STREAM, 0)
        LIBC.connect(descriptor, address, 108)
        os.close(descriptor)
    over.set()


def of_a_pair(path: str) -> int:
    near, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return near.sendto(b"x", path)


def over_ip(address: Any, family: int = socket.AF_INET) -> int:
    if family == socket.AF_INET6:
        packed = struct.pack(
            "=HHI16sI", family, socket.htons(address[1]), 0, socket.inet_pton(family, address[0]), 0
        )
    else:
        packed = struct.pack(
            "=HH4s8x", family, socket.htons(address[1]), socket.inet_aton(address[0])
        )
    return connected(packed, family)


def over_ip_by_a_program(address: Any) -> bool:
    command = ["bash", "-c", 'exec 3<>"/dev/tcp/127.0.0.1/$0"', str(address[1])]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def datagram(address: Any) -> int:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", address)


LOCAL = ("127.0.0.1", 0)
UNIX_DATAGRAM: dict[str, Any] = {"kind": socket.SOCK_DGRAM}
OF_SOCKETS = [
    of_socket("a Unix socket", lambda path: connected(unix_address(path))),
    of_socket("a Unix socket by Python", lambda path: socket.socket(socket.AF_UNIX).connect(path)),
    of_socket("a Unix socket through a link", by_a_link),
    of_socket("a Unix socket while the address changes", while_it_changes),
    of_socket(
        "a Unix datagram",
        lambda p: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", p),
        **UNIX_DATAGRAM,
    ),
    of_socket("a Unix datagram of a pair", of_a_pair, **UNIX_DATAGRAM),
    of_socket(
        "an abstract Unix socket",
        lambda name: connected(struct.pack("=H", 1) + name),
        address=b"\0gputop-escape-%d" % os.getpid(),
    ),
    of_socket("TCP", over_ip, family=socket.AF_INET, address=LOCAL),
    of_socket("TCP by a program", over_ip_by_a_program, family=socket.AF_INET, address=LOCAL),
    of_socket("UDP", datagram, family=socket.AF_INET, kind=socket.SOCK_DGRAM, address=LOCAL),
]


# Memory and queues that others share.


def shared_segment(_path: str) -> Any:
    segment = call("shmget", 0, 4096, 0o1600)
    return segment, segment_text(segment)


def segment_text(segment: int, text: bytes = b"") -> bytes:
    LIBC.shmat.restype = ctypes.c_void_p
    where = LIBC.shmat(segment, None, 0)
    if where in (None, ctypes.c_void_p(-1).value):
        raise CallError(ctypes.get_errno(), "shmat")
    if text:
        ctypes.memmove(where, text, len(text))
    found = ctypes.string_at(where, 4)
    LIBC.shmdt(ctypes.c_void_p(where))
    return found


def segment_changed(aim: Any, _said: Any) -> bool:
    changed = segment_text(aim[0]) != aim[1]
    call("shmctl", aim[0], 0, None)
    return changed


def queue_changed(queue: int, _said: Any) -> bool:
    there = LIBC.msgrcv(queue, ctypes.create_string_buffer(64), 32, 0, 0o4000) >= 0
    LIBC.msgctl(queue, 0, None)
    return there


def semaphore_changed(semaphore: int, _said: Any) -> bool:
    value = LIBC.semctl(semaphore, 0, 12)
    LIBC.semctl(semaphore, 0, 0)
    return value != 0


def posix_queue(_path: str) -> Any:
    name = POSIX_QUEUE % os.getpid()
    return name, LIBC.mq_open(name, os.O_CREAT | os.O_RDWR | os.O_NONBLOCK, 0o600, None)


def posix_queue_changed(aim: Any, _said: Any) -> bool:
    got = LIBC.mq_receive(aim[1], ctypes.create_string_buffer(1 << 16), 1 << 16, None)
    LIBC.mq_unlink(aim[0])
    return got >= 0


def in_shared_memory(path: str) -> Any:
    aim = f"/dev/shm/gputop-escape-{os.getpid()}-{os.path.basename(path)}"
    with open(aim, "w") as file:
        file.write("kept")
    os.utime(aim, (1e9, 1e9))
    return aim, os.stat(aim)[:9]


def shared_file_changed(aim: Any, _said: Any) -> bool:
    made = os.path.exists(aim[0] + "2")
    changed = not os.path.exists(aim[0]) or os.stat(aim[0])[:9] != aim[1]
    for one in (aim[0], aim[0] + "2"):
        if os.path.exists(one):
            os.remove(one)
    return made or changed


SEMAPHORE = struct.pack("Hhh", 0, 1, 0)
OF_MEMORY = [
    Escape(
        "a System V segment",
        shared_segment,
        lambda aim: segment_text(aim[0], b"gone"),
        segment_changed,
    ),
    Escape(
        "a System V queue",
        lambda path: call("msgget", 0, 0o1600),
        lambda queue: call("msgsnd", queue, struct.pack("q", 1) + b"x" * 8, 8, 0o4000),
        queue_changed,
    ),
    Escape(
        "a System V semaphore",
        lambda path: call("semget", 0, 1, 0o1600),
        lambda semaphore: call("semop", semaphore, SEMAPHORE, 1),
        semaphore_changed,
    ),
    Escape(
        "a POSIX queue",
        posix_queue,
        lambda aim: call(
            "mq_send", call("mq_open", aim[0], os.O_WRONLY | os.O_NONBLOCK), b"x", 1, 0
        ),
        posix_queue_changed,
    ),
    Escape(
        "overwrite in /dev/shm",
        in_shared_memory,
        lambda aim: written(aim[0], TRUNCATED),
        shared_file_changed,
        FILES,
    ),
    Escape(
        "remove in /dev/shm",
        in_shared_memory,
        lambda aim: call("unlink", aim[0]),
        shared_file_changed,
        FILES,
    ),
    Escape(
        "make in /dev/shm",
        in_shared_memory,
        lambda aim: written(aim[0] + "2", os.O_WRONLY | os.O_CREAT),
        shared_file_changed,
        FILES,
    ),
]


# Terminals, and what was open by inheritance.


def terminal(_path: str) -> Any:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    return ours, theirs, os.ttyname(theirs)


def typed(aim: Any, _said: Any) -> bool:
    ready = bool(select.select([aim[0]], [], [], 0.02)[0])
    for one in aim[:2]:
        os.close(one)
    return ready


def inherited(path: str) -> Any:
    aim, _ = make_file(path)
    descriptor = os.open(aim, os.O_RDWR | os.O_APPEND)
    return aim, look(aim), descriptor


OF_TERMINALS = [
    Escape(
        "another terminal",
        terminal,
        lambda aim: written(aim[2], os.O_WRONLY | os.O_NOCTTY),
        typed,
        FILES,
    ),
    Escape(
        "another terminal by a program",
        terminal,
        lambda aim: shell('echo x > "$1"', aim[2]),
        typed,
        FILES,
    ),
    Escape(
        "type into an inherited terminal",
        terminal,
        lambda aim: fcntl.ioctl(aim[1], 0x5412, b"x"),
        lambda aim, said: typed(aim, said) or said is True,
    ),
    Escape(
        "an inherited descriptor",
        inherited,
        lambda aim: os.write(aim[2], b"gone"),
        lambda aim, _said: look(aim[0]) != aim[1],
    ),
]


# Calls that reach the whole machine: the kernel's refusal is the proof. Their arguments are wrong
# on purpose, so that
# nothing would come of them either.


def of_call(
    name: str, attempt: Callable[[], Any], held_by: frozenset[str] = frozenset(), root: bool = False
) -> Escape:
    return Escape(
        name,
        lambda path: None,
        lambda _aim: attempt(),
        lambda _aim, said: said is True,
        held_by,
        root,
    )


def number(x86: int, arm: int) -> int:
    return x86 if X86 else arm


def clone() -> bool:
    child = call(number(56, 220), 0x10000000 | signal.SIGCHLD, None, None, None, None)
    if not child:
        os._exit(0)
    return True


def make_group() -> bool:
    group = b"/sys/fs/cgroup/gputop-escape-%d" % os.getpid()
    call("mkdir", group, 0o700)
    call("rmdir", group)
    return True


def make_cron() -> bool:
    table = b"/etc/gputop-escape-%d" % os.getpid()
    opened(table.decode(), os.O_WRONLY | os.O_CREAT)
    call("unlink", table)
    return True


OF_CALLS = [
    of_call("io_uring", lambda: call(425, 1, ctypes.create_string_buffer(256))),
    of_call("bpf", lambda: call(number(321, 280), 0, b"\0" * 64, 64)),
    of_call("perf_event_open", lambda: call(number(298, 241), b"\0" * 112, 0, -1, -1, 0)),
    of_call("userfaultfd", lambda: call(number(323, 282), 0)),
    of_call(
        "a key in the keyring",
        lambda: call(number(248, 217), b"user", b"gputop-escape", b"x", 1, -4),
    ),
    of_call("keyctl", lambda: call(number(250, 219), 0, -3, 0)),
    of_call("reboot", lambda: call(number(169, 142), 1, 2, 3, None)),
    of_call("kexec", lambda: call(number(246, 104), 0, 99, None, 0)),
    of_call("a kernel module", lambda: call(number(175, 105), b"x", 1, b"")),
    of_call("the clock", lambda: call(number(227, 112), 0, struct.pack("qq", 0, -1))),
    of_call("the host's name", lambda: call("sethostname", b"x", -1)),
    of_call("swap", lambda: call("swapoff", b"/nowhere")),
    of_call("a new user namespace", lambda: call("unshare", 0x10000000)),
    of_call("a clone with namespaces", clone),
    of_call("another's namespace", lambda: call("setns", 0, 0)),
    of_call("chroot", lambda: call("chroot", b"/")),
    of_call(
        "a file by its handle",
        lambda: call("open_by_handle_at", -100, struct.pack("ii", 8, 1) + b"\0" * 8, 0),
    ),
    of_call("a virtual machine's socket", lambda: call("socket", 40, 1, 0)),
    of_call("a packet socket", lambda: call("socket", 17, 3, 0)),
    of_call("the kernel's log", lambda: opened("/dev/kmsg", os.O_WRONLY), FILES, root=True),
    of_call(
        "a device of the kernel", lambda: opened("/dev/loop-control", os.O_RDWR), FILES, root=True
    ),
    of_call(
        "a kernel setting",
        lambda: opened("/proc/sys/kernel/hostname", os.O_WRONLY),
        FILES,
        root=True,
    ),
    of_call("a control group", make_group, FILES, root=True),
    of_call("cron", make_cron, FILES, root=True),
    of_call("gputop's own code", lambda: opened(__file__, os.O_WRONLY), FILES, root=True),
]

ESCAPES = [*OF_FILES, *OF_PROCESSES, *OF_SOCKETS, *OF_MEMORY, *OF_TERMINALS, *OF_CALLS]
