"""Which sockets a sandboxed script may connect to, decided and done outside of the sandbox.

Landlock knows nothing of Unix sockets, and a filter on calls cannot read an address. So the kernel
asks about each ``connect`` here (seccomp's user notification). The address is copied once and the
call is made in the caller's place with that copy, so that nothing which the script changes
meanwhile matters.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
import threading
from typing import Any

from . import syscalls

_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_QUESTION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_LONGEST_ADDRESS = 128


class Connector:
    """Both ends: the script's side hands over what asks, ours answers.

    Args:
        folder: where the sockets lie that it may reach.
        abstract: whether its network is its own, and with it all abstract names.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.realpath(folder)
        self._theirs, self._ours = socket.socketpair()
        self.abstract = False

    def hand_over(self, listener: int) -> None:
        """Give what asks to the process outside; to be called once, in the sandbox."""
        message = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]).tobytes())]
        self._ours.close()
        if listener >= 0:
            self._theirs.sendmsg([b"1" if self.abstract else b"0"], message)
            os.close(listener)
        self._theirs.close()

    def answer(self) -> None:
        """Answer in an own thread while there are questions; to be called outside the sandbox."""
        self._theirs.close()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        word, extra, _, _ = self._ours.recvmsg(1, socket.CMSG_SPACE(4))
        if not extra:
            return
        self.abstract = word == b"1"
        listener = struct.unpack("=i", extra[0][2][:4])[0]
        while True:
            question = bytearray(_QUESTION.size)
            try:
                fcntl.ioctl(listener, _RECEIVE, question)
            except OSError as problem:
                if problem.errno in (errno.ENOENT, errno.EINTR):  # who asked is gone
                    continue
                return
            # A connect may wait for whoever listens; meanwhile others ask.
            threading.Thread(target=self._reply, args=(listener, question), daemon=True).start()

    def _reply(self, listener: int, question: Any) -> None:
        ticket, thread, _, _, _, _, *arguments = _QUESTION.unpack(question)
        try:
            error = self._connect(listener, ticket, thread, arguments)
        except OSError as problem:
            error = problem.errno or errno.EPERM
        with contextlib.suppress(OSError):
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(ticket, 0, -error, 0))

    def _connect(self, listener: int, ticket: int, thread: int, arguments: Any) -> int:
        """Connect the caller's socket; the error's number, 0 for none."""
        number, where, length = arguments[0] & 0xFFFFFFFF, arguments[1], arguments[2] & 0xFFFFFFFF
        if length > _LONGEST_ADDRESS:
            return errno.EINVAL
        memory = os.open("/proc/%d/mem" % thread, os.O_RDONLY | os.O_CLOEXEC)
        try:
            address = os.pread(memory, length, where)
        finally:
            os.close(memory)
        theirs = _their_descriptor(_process_of(thread), number)
        try:
            # its number is nobody else's by now
            fcntl.ioctl(listener, _IS_VALID, struct.pack("=Q", ticket))
            return self._connect_to(theirs, address, thread)
        finally:
            os.close(theirs)

    def _connect_to(self, theirs: int, address: bytes, thread: int) -> int:
        if len(address) < 3 or struct.unpack("=H", address[:2])[0] != socket.AF_UNIX:
            return _connect(theirs, address)
        if address[2] == 0:
            if self.abstract:
                return _connect(theirs, address)
            return errno.EPERM
        name = os.fsdecode(address[2:].split(b"\0")[0])
        beneath = os.open("/proc/%d/cwd" % thread, os.O_PATH | os.O_CLOEXEC)
        try:
            target = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=beneath)
        finally:
            os.close(beneath)
        try:
            if not stat.S_ISSOCK(os.fstat(target).st_mode):
                return errno.ECONNREFUSED
            link = "/proc/self/fd/%d" % target
            if not os.readlink(link).startswith(self._folder + os.sep):
                return errno.EPERM
            return _connect(theirs, struct.pack("=H", socket.AF_UNIX) + os.fsencode(link) + b"\0")
        finally:
            os.close(target)


def _process_of(thread: int) -> int:
    with open("/proc/%d/status" % thread, encoding="utf-8", errors="replace") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Tgid:"))


def _their_descriptor(process: int, number: int) -> int:
    """A descriptor of another process, for this one too.

    Raises:
        OSError: there is none, or the kernel does not permit it.
    """
    calls = syscalls.numbers(syscalls.machine())
    handle = _system_call(calls["pidfd_open"], process, 0)
    try:
        return _system_call(calls["pidfd_getfd"], handle, number, 0)
    finally:
        os.close(handle)


def _system_call(*words: int) -> int:
    result = int(ctypes.CDLL(None, use_errno=True).syscall(*map(ctypes.c_long, words)))
    if result < 0:
        raise OSError(ctypes.get_errno(), "system call %d" % words[0])
    return result


def _connect(descriptor: int, address: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(descriptor, address, len(address)) == 0:
        return 0
    return ctypes.get_errno()
