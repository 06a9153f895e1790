"""The way to the recorder: one Unix socket, never blocking, never raising.

Step records are batched for 50 ms. What cannot be sent now (no recorder, or one that does not read) waits in a bounded
queue; what falls out of it is counted in ``S.dropped``. The training thread connects once, with a short timeout; all
later attempts are made by the agent's own thread, at most one a second.

SEQPACKET keeps message boundaries and a send is all or nothing. Where it does not exist (macOS) a STREAM socket carries
the same messages, each after its length as four little-endian bytes.
"""

import json
import os
import socket
import struct
import sys
import time
from collections import deque
from typing import Any

from . import guard, wire
from .state import S

CONNECT_TIMEOUT_S = 0.2
RETRY_NS = 1_000_000_000
BATCH_NS = 50_000_000
BATCH_RECORDS = 256
QUEUE_RECORDS = 4096
QUEUE_MESSAGES = 8192
SEND_BUFFER_BYTES = 4 << 20
SUN_PATH_BYTES = 108
_SO_SNDBUFFORCE = 32
_FLAGS = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)
_LENGTH = struct.Struct("<I")

_monotonic_ns = time.monotonic_ns


def _nothing(*_):
    """Until somebody registers."""


on_tick = _nothing  # on_tick(now_ns): hand over finished steps that wait in the fold
on_reconnect = _nothing  # on_reconnect(): say hello again


def _offset_ns():
    try:
        return int(os.environ[wire.ENV_CLOCK_OFFSET])
    except (KeyError, ValueError):
        return time.time_ns() - time.monotonic_ns()


_OFFSET_NS = _offset_ns()


def unix_ns(mono_ns):
    """Nanoseconds since the epoch of a ``time.monotonic_ns()`` reading, on the clock all ranks of the host share."""
    return mono_ns + _OFFSET_NS


class _Link:
    """The socket and what waits for it."""

    def __init__(self):
        self.socket: Any = None
        self.stream = False
        self.tail = b""  # rest of a message that a STREAM socket took only in part
        self.incoming = b""  # the same for reading
        self.batch = []  # packed STEP records not yet in a message
        self.batch_since_ns = 0
        self.queue = deque()  # (message, number of step records)
        self.queued_records = 0
        self.next_attempt_ns = 0


_link = _Link()


def reset():
    """In a forked child: let go of the parent's socket without a word to the other end."""
    global _link
    inherited = _link.socket
    _link = _Link()
    if inherited is not None:
        inherited.close()


# ------------------------------------------------------------------ connecting


def connect():
    """Try to reach the recorder; sets ``S.connected``. Returns whether it is."""
    link = _link
    link.next_attempt_ns = _monotonic_ns() + RETRY_NS
    path = os.environ.get(wire.ENV_SOCKET)
    if not path:
        return False
    stream = sys.platform == "darwin" or os.environ.get(wire.ENV_TRANSPORT) == "stream"
    kind = socket.SOCK_STREAM if stream else socket.SOCK_SEQPACKET
    try:
        connection = socket.socket(socket.AF_UNIX, kind)
    except OSError:
        return False
    try:
        _enlarge_buffer(connection)
        connection.settimeout(CONNECT_TIMEOUT_S)
        _connect_path(connection, path)
        connection.setblocking(False)
    except OSError:
        connection.close()
        return False
    link.socket, link.stream, link.tail, link.incoming = connection, stream, b"", b""
    S.connected = True
    return True


def _enlarge_buffer(connection):
    for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):
        try:
            return connection.setsockopt(socket.SOL_SOCKET, option, SEND_BUFFER_BYTES)
        except OSError:
            continue


def _connect_path(connection, path):
    if len(os.fsencode(path)) < SUN_PATH_BYTES:
        return connection.connect(path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        connection.connect("/proc/self/fd/%d/%s" % (folder, os.path.basename(path)))
    finally:
        os.close(folder)


def _disconnect():
    link = _link
    if link.socket is not None:
        link.socket.close()
    link.socket = None
    S.connected = S.hello_sent = False


# ------------------------------------------------------------------ sending


def send_step(record, now_ns):
    """Add one packed ``wire.STEP`` to the batch; sends the batch when it is 50 ms old. Call under ``S.lock``."""
    link = _link
    if not link.batch:
        link.batch_since_ns = now_ns
    link.batch.append(record)
    if now_ns - link.batch_since_ns >= BATCH_NS or len(link.batch) >= BATCH_RECORDS:
        flush()


def send_records(kind, records):
    """Send packed ``wire.DEVICE`` or ``wire.COMM`` structs at once, or queue them. Never blocks, never raises."""
    try:
        with S.lock:
            _enqueue(kind + records, 0)
            _drain()
    except Exception:
        guard.failed("send_records")


def send_event(type_, **fields):
    """Send one event; adds ``type`` and, unless given, ``t_ns``. Never blocks, never raises."""
    try:
        fields.setdefault("t_ns", unix_ns(_monotonic_ns()))
        message = _encode(type_, fields)
        with S.lock:
            if type_ == "hello":  # says who we are, so it goes before all that has been waiting
                if S.connected:
                    _send(message)
                return
            _enqueue(message, 0)
            _drain()
    except Exception:
        if type_ != "agent_error":
            guard.failed("send_event")


def _encode(type_, fields):
    fields["type"] = type_
    message = wire.MSG_EVENT + json.dumps(fields, separators=(",", ":"), default=repr).encode()
    if len(message) <= wire.MAX_MESSAGE_BYTES:
        return message
    short = {"type": type_, "t_ns": fields["t_ns"], "cut": len(message)}
    return wire.MSG_EVENT + json.dumps(short).encode()


def flush():
    """Turn the batch into a message and send what can be sent. Call under ``S.lock``."""
    link = _link
    if link.batch:
        records, link.batch = link.batch, []
        _enqueue(wire.MSG_STEPS + b"".join(records), len(records))
    _drain()


def flush_if_stale(now_ns):
    """For the agent's own thread, every tick: reconnect when due, send a batch that waits too long.

    After a reconnect the hello goes first (``on_reconnect`` sends it and sets ``S.hello_sent``), then what has waited.
    """
    try:
        link = _link
        if link.socket is None:
            if now_ns >= link.next_attempt_ns and connect():
                on_reconnect()
            return
        on_tick(now_ns)
        if not S.hello_sent:
            return
        with S.lock:
            if link.queue or (link.batch and now_ns - link.batch_since_ns >= BATCH_NS):
                flush()
    except Exception:
        guard.failed("flush_if_stale")


def _enqueue(message, n_records):
    link = _link
    link.queue.append((message, n_records))
    link.queued_records += n_records
    while link.queued_records > QUEUE_RECORDS or len(link.queue) > QUEUE_MESSAGES:
        _, lost = link.queue.popleft()
        link.queued_records -= lost
        S.dropped += lost


def _drain():
    link = _link
    while link.queue and S.connected and S.hello_sent:
        message, n_records = link.queue[0]
        if not _send(message):
            return
        link.queue.popleft()
        link.queued_records -= n_records


def _send(message):
    """Hand one message to the kernel. Returns whether it took it (or, on a STREAM socket, its beginning)."""
    link = _link
    try:
        if not link.stream:
            link.socket.send(message, _FLAGS)
            return True
        if link.tail:
            link.tail = link.tail[link.socket.send(link.tail, _FLAGS) :]
            if link.tail:
                return False
        framed = _LENGTH.pack(len(message)) + message
        link.tail = framed[link.socket.send(framed, _FLAGS) :]
        return True
    except BlockingIOError:
        return False
    except OSError:
        _disconnect()
        return False


# ------------------------------------------------------------------ receiving


def poll_command():
    """One command of the recorder as a dict, or None. Never blocks; for the agent's own thread only."""
    link = _link
    if link.socket is None:
        return None
    try:
        data = link.socket.recv(wire.MAX_MESSAGE_BYTES, getattr(socket, "MSG_DONTWAIT", 0))
    except BlockingIOError:
        data = None
    except OSError:
        with S.lock:
            _disconnect()
        return None
    if data == b"":
        with S.lock:
            _disconnect()
        return None
    if link.stream:
        data = _next_frame(data or b"")
    if not data or data[:1] != wire.MSG_COMMAND:
        return None
    try:
        command = json.loads(data[1:].decode())
    except ValueError:
        return None
    return command if isinstance(command, dict) else None


def _next_frame(data):
    link = _link
    link.incoming += data
    if len(link.incoming) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(link.incoming)[0]
    if len(link.incoming) < end:
        return None
    frame, link.incoming = link.incoming[_LENGTH.size : end], link.incoming[end:]
    return frame


def close(wait_s=0.0):
    """At the end of the process: send all that waits, trying for ``wait_s`` seconds, and let go of the socket."""
    deadline = time.monotonic() + wait_s
    with S.lock:
        flush()
        while _link.queue and S.connected and time.monotonic() < deadline:
            time.sleep(0.005)
            _drain()
        S.dropped += _link.queued_records
        _disconnect()
