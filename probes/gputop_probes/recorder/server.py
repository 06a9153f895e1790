"""The recorder's socket: bound for this user alone, drained without ever waiting for a sender."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gputop_agent import wire

_CREDENTIALS = struct.Struct("3i")
_LENGTH = struct.Struct("<I")
_BACKLOG = 512
_SWEEP_AFTER_S = 60.0
_buffer = bytearray(wire.MAX_MESSAGE_BYTES + _LENGTH.size)
_view = memoryview(_buffer)


def use_stream() -> bool:
    """Whether messages travel on a STREAM socket with lengths: no SEQPACKET, or asked for."""
    return sys.platform == "darwin" or os.environ.get(wire.ENV_TRANSPORT) == "stream"


class Connection:
    """One peer: a rank, or a client that sends commands."""

    def __init__(self, peer: socket.socket, pid: int, stream: bool):
        self.pid = pid
        self.closed = False
        self.said_goodbye = False
        self._socket = peer
        self._stream = stream
        self._rest = b""

    def messages(self) -> Iterator[bytes]:
        """Whole messages that have arrived. Sets ``closed`` at the end of the connection."""
        while not self.closed:
            try:
                count = self._socket.recv_into(_buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                count = 0
            if count == 0:
                self.closed = True
            elif self._stream:
                yield from self._split(bytes(_view[:count]))
            else:
                yield bytes(_view[:count])

    def send(self, message: bytes) -> bool:
        """Send without waiting. Returns whether the peer took it."""
        if self._stream:
            message = _LENGTH.pack(len(message)) + message
        try:
            return self._socket.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(
                message
            )
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the peer."""
        self.closed = True
        self._socket.close()

    def _split(self, data: bytes) -> Iterator[bytes]:
        data = self._rest + data
        start = 0
        while len(data) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, start)
            if not 0 < length <= wire.MAX_MESSAGE_BYTES:
                self.closed = True  # a stream that lost its framing cannot be read any further
                return
            end = start + _LENGTH.size + length
            if end > len(data):
                break
            yield data[start + _LENGTH.size : end]
            start = end
        self._rest = data[start:]


class RecorderServer:
    """Listens at ``path``; comes back when somebody deletes the socket's file."""

    def __init__(self, path: Path):
        self.path = path
        self.stream = use_stream()
        self.listener = self._listen()
        self._inode = path.stat().st_ino

    def accept(self) -> Iterator[Connection]:
        """Peers that have connected; those of other users are sent away."""
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            pid, uid = _peer(peer)
            if uid not in (os.getuid(), 0):
                peer.close()
                continue
            peer.setblocking(False)
            yield Connection(peer, pid, self.stream)

    def file_is_there(self) -> bool:
        """Whether the socket's file still leads to us."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def listen_again(self) -> None:
        """Bind anew after the file was deleted; connections that stand are not touched."""
        fresh = self._listen()
        self.listener.close()
        self.listener = fresh
        self._inode = self.path.stat().st_ino

    def close(self) -> None:
        """Stop listening and remove the file, if it is still ours."""
        ours = self.file_is_there()
        self.listener.close()
        if ours:
            self.path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove the sockets beside ours that recorders left behind when they were killed."""
        for path in self.path.parent.glob("*.sock"):
            if path != self.path and self._nobody_listens(path):
                path.unlink(missing_ok=True)

    def _nobody_listens(self, path: Path) -> bool:
        """Whether a socket of some age refuses us; one that is being made has no listener yet."""
        try:
            if time.time() - path.lstat().st_mtime < _SWEEP_AFTER_S:
                return False
            with socket.socket(socket.AF_UNIX, self.listener.type) as probe:
                probe.setblocking(False)
                probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        return False

    def _listen(self) -> socket.socket:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM if self.stream else socket.SOCK_SEQPACKET
        )
        before = os.umask(0o177)
        try:
            listener.bind(str(self.path))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener


def _peer(peer: socket.socket) -> tuple[int, int]:
    """Process and user id of the other end, as the kernel knows them."""
    if not hasattr(socket, "SO_PEERCRED"):
        return -1, os.getuid()
    pid, uid, _ = _CREDENTIALS.unpack(
        peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid
