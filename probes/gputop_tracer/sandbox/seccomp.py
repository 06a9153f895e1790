"""The kernel's filter on system calls (seccomp) for a script and for whatever it starts; it needs
no right at all.

A filter sees numbers, never names of files, so it holds what Landlock and namespaces do not: calls
that reach other processes, the whole machine, or a terminal, and changes of a file's mode, owner or
times where the kernel cannot make the user's files read-only. Which socket a ``connect`` reaches is
asked of ``connect.py``, outside of the sandbox.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import syscalls

_NO_NEW_PRIVILEGES = 38
_MODE_FILTER = 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_ALLOW, _ERRNO, _ASK, _KILL = 0x7FFF0000, 0x00050000, 0x7FC00000, 0x80000000
_X32 = 0x40000000
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_WORD = 0xFFFFFFFF
_REFUSED = _ERRNO | errno.EPERM
_DONE_NOTHING = _ERRNO
"""The call returns 0 and has changed nothing."""

_NEVER = (
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd bpf "
    "perf_event_open userfaultfd mount umount2 mount_setattr move_mount fsopen fsconfig fsmount "
    "fspick open_tree open_tree_attr pivot_root chroot swapon swapoff reboot sethostname "
    "setdomainname kexec_load kexec_file_load init_module finit_module delete_module acct "
    "quotactl quotactl_fd settimeofday clock_settime adjtimex clock_adjtime iopl ioperm syslog "
    "keyctl add_key request_key setns unshare open_by_handle_at name_to_handle_at vhangup "
    "modify_ldt fanotify_init"
)
_UNKNOWN = "io_uring_setup io_uring_enter io_uring_register clone3"
"""As on a kernel without them: programs then use older calls, which a filter can see through."""
_METADATA = (
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat "
    "utimensat setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr setxattrat "
    "removexattrat file_setattr"
)
_SHARED_MEMORY = (
    "shmget shmat shmctl shmdt msgget msgsnd msgrcv msgctl semget semop semctl semtimedop "
    "mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr"
)
_SIGNALS_BY_OTHER_WAYS = "rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal"
_SCHEDULING = (
    "sched_setaffinity sched_setscheduler sched_setparam sched_setattr migrate_pages move_pages"
)
_NEW_NAMESPACES = 0x7E020000
_TERMINALS = (
    0x5412,
    0x541C,
    0x541D,
    0x540E,
    0x5414,
    0x5402,
    0x5403,
    0x5404,
    0x402C542B,
    0x402C542C,
    0x402C542D,
)
"""TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSCTTY, TIOCSWINSZ, and TCSETS with its like."""
_ATTRIBUTES = (0x40086602, 0x40046602, 0x401C5820, 0x40087602)
"""FS_IOC_SETFLAGS and its like: they need no more than a file that is open for reading."""
_OWNERS = (0x8901, 0x8902)
_SETLEASE, _SETOWN, _SETSIG, _SETOWN_EX = 1024, 8, 10, 15
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_DATAGRAM = 2


class HeldElsewhere(NamedTuple):
    """What other layers hold already, so that the filter need not."""

    network: bool
    files: bool
    """The user's files are mounted read-only."""
    truncation: bool
    """Landlock refuses ``truncate``."""
    processes: bool
    """No other process can be named."""
    signals: bool
    """No other process can be signalled."""
    memory: bool
    """System V and POSIX queues are the script's own."""


Test = Tuple[int, int, Optional[int]]
"""Argument, mask, and the value under it; None: any bit of the mask."""
Case = Tuple[Tuple[Test, ...], int]
Rules = Dict[str, Tuple[List[Case], int]]
"""Of each call: what is answered in which case, and else."""


def restrict(held: HeldElsewhere) -> Optional[int]:
    """Filter the calls of this thread, and of what it starts, for good.

    Returns:
        The descriptor that asks about each ``connect``; -1: the kernel cannot ask, so Unix sockets
        are refused.
        None: there is no filter, as on other machines than x86-64 and ARM64.
    """
    machine = syscalls.machine()
    if not machine:
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER, 0):
        listener = _install(libc, machine, rules(held, asks=bool(flags)), flags)
        if listener >= 0:
            return listener if flags else -1
    return None


def _install(libc: Any, machine: str, wanted: Rules, flags: int) -> int:
    filter_ = program(machine, wanted)
    code = ctypes.create_string_buffer(filter_, len(filter_))
    words = struct.pack("HxxxxxxP", len(filter_) // 8, ctypes.addressof(code))
    number = syscalls.numbers(machine)["seccomp"]
    return int(libc.syscall(number, _MODE_FILTER, flags, words))


def rules(held: HeldElsewhere, asks: bool) -> Rules:
    """What is answered to which call."""
    result: Rules = {}
    for names, answer in ((_NEVER, _REFUSED), (_UNKNOWN, _ERRNO | errno.ENOSYS)):
        result.update({name: ([], answer) for name in names.split()})
    result["clone"] = ([(((0, _NEW_NAMESPACES, None),), _REFUSED)], _ALLOW)
    result.update(_sockets(held, asks))
    if not held.files:
        result.update({name: ([], _DONE_NOTHING) for name in _METADATA.split()})
    if not (held.files or held.truncation):
        result["truncate"] = ([], _REFUSED)
    if not held.memory:
        result.update({name: ([], _REFUSED) for name in _SHARED_MEMORY.split()})
    if not held.processes:
        result.update(_processes(held))
    owners = held.processes or held.signals
    terminals = (*_TERMINALS, *(() if held.files else _ATTRIBUTES), *(() if owners else _OWNERS))
    result["ioctl"] = ([_equals(1, request, _REFUSED) for request in terminals], _ALLOW)
    controls = (_SETLEASE, *(() if owners else (_SETOWN, _SETSIG, _SETOWN_EX)))
    result["fcntl"] = ([_equals(1, request, _REFUSED) for request in controls], _ALLOW)
    return result


def _sockets(held: HeldElsewhere, asks: bool) -> Rules:
    """Unix sockets are found by the names of files, others within the script's own network."""
    datagram: Test = (1, 0xF, _DATAGRAM)  # each of its messages may go elsewhere, without a connect
    unix: Test = (0, _WORD, _UNIX)
    cases: List[Case] = [((unix, datagram), _REFUSED)]
    if asks:
        cases.append(((unix,), _ALLOW))
    if held.network:
        cases += [_equals(0, family, _ALLOW) for family in (_INET, _INET6)]
        cases.append((((0, _WORD, _NETLINK), (2, _WORD, 0)), _ALLOW))
    return {
        "socket": (cases, _ERRNO | errno.EACCES),
        "socketpair": ([((datagram,), _REFUSED)], _ALLOW),
        **({"connect": ([], _ASK)} if asks else {}),
    }


def _processes(held: HeldElsewhere) -> Rules:
    """Only itself may be named where the processes of others can be."""
    itself = os.getpid()
    result: Rules = {}
    for name in _SCHEDULING.split():
        result[name] = ([_equals(0, process, _ALLOW) for process in (0, itself)], _REFUSED)
    for name, whole_user in (("setpriority", 2), ("ioprio_set", 3)):
        own_rules = [_equals(1, process, _ALLOW) for process in (0, itself)]
        result[name] = ([_equals(0, whole_user, _REFUSED), *own_rules], _REFUSED)
    only_asks: Case = (((2, _WORD, 0),), _ALLOW)
    result["prlimit64"] = (
        [*(_equals(0, process, _ALLOW) for process in (0, itself)), only_asks],
        _REFUSED,
    )
    # What the script starts stays in its session, and is ended with that.
    result.update({name: ([], _DONE_NOTHING) for name in ("setsid", "setpgid")})
    if not held.signals:
        for name in ("kill", "tgkill", "tkill"):
            result[name] = ([_equals(0, process, _ALLOW) for process in (0, itself)], _REFUSED)
        result["kill"][0].append(_equals(1, 0, _ALLOW))
        result.update({name: ([], _REFUSED) for name in _SIGNALS_BY_OTHER_WAYS.split()})
    return result


def _equals(argument: int, value: int, answer: int) -> Case:
    return ((argument, _WORD, value),), answer


def program(machine: str, wanted: Rules) -> bytes:
    """The filter as the kernel runs it; a call by another machine's numbers ends the process."""
    code = (
        _step(_LOAD, 4)
        + _step(_IF_EQUAL, syscalls.architecture(machine), 1)
        + _step(_RETURN, _KILL)
    )
    code += _step(_LOAD, 0)
    code += _step(_IF_AT_LEAST, _X32, 0, 1) + _step(_RETURN, _ERRNO | errno.ENOSYS)
    numbers = syscalls.numbers(machine)
    for name, (cases, otherwise) in wanted.items():
        if name in numbers:
            body = b"".join(_case(tests, answer) for tests, answer in cases) + _step(
                _RETURN, otherwise
            )
            code += _step(_IF_EQUAL, numbers[name], 0, len(body) // 8) + body
    return code + _step(_RETURN, _ALLOW)


def _case(tests: Tuple[Test, ...], answer: int) -> bytes:
    """The answer if all tests hold, else the code goes on behind it."""
    code = _step(_RETURN, answer)
    for argument, mask, value in reversed(tests):
        behind = len(code) // 8
        if value is None:
            test = _step(_IF_ANY_BIT, mask, 0, behind)
        else:
            test = _step(_IF_EQUAL, value, 0, behind)
        masked = b"" if value is None or mask == _WORD else _step(_AND, mask)
        code = _step(_LOAD, 16 + 8 * argument) + masked + test + code
    return code


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; ``then`` and ``otherwise`` are how many are skipped."""
    return struct.pack("=HBBI", code, then, otherwise, value)
