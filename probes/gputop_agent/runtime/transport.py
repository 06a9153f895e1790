"""The way to the recorder: one Unix socket, never blocking, never raising.

Step records are batched for 50 ms. What cannot be sent now (no recorder, or one that does not read)
waits in a bounded queue; what falls out of it is counted in ``session.dropped``. The training
thread connects once, with a short timeout; all later attempts are made by the agent's own thread,
at most one a second.

SEQPACKET keeps message boundaries and a send is all or nothing. Where it does not exist (macOS) a
STREAM socket carries the same messages, each after its length as four little-endian bytes.

The user's code may have closed our number and opened something of its own there. Each use therefore
asks first whether our socket still lies there; if not, the number is let go unclosed, and the next
attempt gets another one.
"""

import json
import os
import socket
import struct
import sys
import time
from collections import deque
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import descriptors, guard, interrupts
from gputop_agent.runtime.session import session

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
        interrupts.pass_on()
        return time.time_ns() - time.monotonic_ns()


_OFFSET_NS = _offset_ns()


def unix_ns(mono_ns):
    """Nanoseconds since the epoch of a ``time.monotonic_ns()``, on the host's one clock."""
    return mono_ns + _OFFSET_NS


class _Link:
    """The socket and what waits for it."""

    def __init__(self):
        self.socket: Any = None
        self.identity: Any = None  # of the socket, see ``descriptors``
        self.stream = False
        self.tail = b""  # rest of a message that a STREAM socket took only in part
        self.incoming = b""  # the same for reading
        self.batch = []  # packed STEP records not yet in a message
        self.batch_since_ns = 0
        self.queue = deque()  # (message, number of step records)
        self.queued_records = 0
        self.next_attempt_ns = 0
        self.is_over = False  # the process ends, and has said so


_link = _Link()


@session.after_fork
def reset():
    """In a forked child: let go of the parent's socket without a word to the other end."""
    _let_go(_link)
    _link.__init__()


def _let_go(link):
    """Close the socket, or only forget its number where something else lies there now."""
    ours, link.socket = link.socket, None
    if ours is not None:
        descriptors.close(ours.detach(), link.identity)


def _is_ours(link):
    """Whether there is a socket, and it still lies at its number."""
    if link.socket is None:
        return False
    if descriptors.identity(link.socket.fileno()) == link.identity:
        return True
    _disconnect()
    return False


# ------------------------------------------------------------------ connecting


def connect():
    """Try to reach the recorder; sets ``session.connected``. Returns whether it is."""
    link = _link
    link.next_attempt_ns = _monotonic_ns() + RETRY_NS
    path = os.environ.get(wire.ENV_SOCKET)
    if not path:
        return False
    try:
        number, stream = _open_socket()
    except OSError:
        interrupts.pass_on()
        return False
    _let_go(link)
    link.identity = descriptors.identity(number)
    link.socket = connection = socket.socket(socket.AF_UNIX, _kind(stream), 0, number)
    link.stream, link.tail, link.incoming = stream, b"", b""
    try:
        _enlarge_buffer(connection)
        connection.settimeout(CONNECT_TIMEOUT_S)
        _connect_path(connection, path)
        connection.setblocking(False)
    except OSError:
        interrupts.pass_on()
        _let_go(link)
        interrupts.pass_on()
        return False
    session.connected = True
    return True


def _open_socket():
    """The number of a new socket, and whether it is a STREAM socket."""
    stream = sys.platform == "darwin" or os.environ.get(wire.ENV_TRANSPORT) == "stream"
    return descriptors.raised(socket.socket(socket.AF_UNIX, _kind(stream)).detach()), stream


def _kind(stream):
    return socket.SOCK_STREAM if stream else socket.SOCK_SEQPACKET


def reach_again():
    """At the end: another attempt for a process so short that a busy recorder missed it."""
    if _link.socket is None and connect():
        on_reconnect()


def _enlarge_buffer(connection):
    for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):
        try:
            return connection.setsockopt(socket.SOL_SOCKET, option, SEND_BUFFER_BYTES)
        except OSError:
            interrupts.pass_on()


def _connect_path(connection, path):
    if len(os.fsencode(path)) < SUN_PATH_BYTES:
        return connection.connect(path)
    folder = descriptors.raised(os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC))
    was = descriptors.identity(folder)
    try:
        connection.connect("/proc/self/fd/%d/%s" % (folder, os.path.basename(path)))
    finally:
        descriptors.close(folder, was)


def _disconnect():
    session.connected = session.hello_sent = False
    _let_go(_link)


# ------------------------------------------------------------------ sending


def send_step(record, now_ns):
    """Add a packed ``wire.STEP`` to the batch, sent when 50 ms old. Call under ``session.lock``."""
    link = _link
    if not link.batch:
        link.batch_since_ns = now_ns
    link.batch.append(record)
    if now_ns - link.batch_since_ns >= BATCH_NS or len(link.batch) >= BATCH_RECORDS:
        flush()


def send_records(kind, records):
    """Send packed ``wire.DEVICE`` or ``wire.COMM`` structs at once, or queue them. Never blocks,
    never raises.
    """
    try:
        with session.lock:
            _enqueue(kind + records, 0)
            _drain()
    except Exception:
        guard.failed("send_records")


def send_event(type_, **fields):
    """Send one event; adds ``type`` and, unless given, ``t_ns``. Never blocks, never raises."""
    try:
        fields.setdefault("t_ns", unix_ns(_monotonic_ns()))
        message = _encode(type_, fields)
        with session.lock:
            if type_ == "hello":  # says who we are, so it goes before all that has been waiting
                if session.connected:
                    _send(message, [])
                return
            _enqueue(message, 0)
            _drain()
    except Exception:
        interrupts.pass_on()
        if type_ != "agent_error":
            guard.failed("send_event")


def send_apart(events):
    """Send events over a socket that is closed at once, as long as a process does not train. Never
    blocks, never raises.
    """
    try:
        path = os.environ.get(wire.ENV_SOCKET)
        if path:
            messages = [_encode(event["type"], event) for event in events]
            _send_apart(path, messages)
    except Exception:
        interrupts.pass_on()


def _send_apart(path, messages):
    number, stream = _open_socket()
    was = descriptors.identity(number)
    connection = socket.socket(socket.AF_UNIX, _kind(stream), 0, number)
    try:
        connection.setblocking(False)
        _connect_path(connection, path)
        for message in messages:
            connection.send(_LENGTH.pack(len(message)) + message if stream else message, _FLAGS)
    finally:
        descriptors.close(connection.detach(), was)


def _encode(type_, fields):
    fields["type"] = type_
    message = wire.MSG_EVENT + json.dumps(fields, separators=(",", ":"), default=repr).encode()
    if len(message) <= wire.MAX_MESSAGE_BYTES:
        return message
    short = {"type": type_, "t_ns": fields["t_ns"], "cut": len(message)}
    return wire.MSG_EVENT + json.dumps(short).encode()


def flush():
    """Turn the batch into a message and send what can be sent. Call under ``session.lock``."""
    link = _link
    if link.batch:
        records, link.batch = link.batch, []
        _enqueue(wire.MSG_STEPS + b"".join(records), len(records))
    _drain()


def flush_if_stale(now_ns):
    """For the agent's own thread, every tick: reconnect when due, send a batch that waits too long.

    After a reconnect the hello goes first (``on_reconnect`` sends it and sets
    ``session.hello_sent``), then the rest.
    """
    try:
        link = _link
        if link.socket is None:
            if not link.is_over and now_ns >= link.next_attempt_ns and connect():
                on_reconnect()
            return
        on_tick(now_ns)
        if not session.hello_sent:
            return
        with session.lock:
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
        session.dropped += lost


def _drain():
    link = _link
    while link.queue and session.connected and session.hello_sent:
        sent = []
        try:
            if not _send(link.queue[0][0], sent):
                return
        finally:  # a signal's handler may raise between the sending and the next line
            if sent:
                link.queued_records -= link.queue.popleft()[1]


def _send(message, sent):
    """Hand one message to the kernel. Returns whether it took it (or, on a STREAM socket, its
    beginning).

    ``sent`` holds how many bytes it took from the moment that it has: no code of Python's runs in
    between.
    """
    link = _link
    if not _is_ours(link):
        return False
    send = link.socket.send
    try:
        if not link.stream:
            sent.extend(map(send, (message,), (_FLAGS,)))
            return True
        if link.tail:
            link.tail = link.tail[send(link.tail, _FLAGS) :]
            if link.tail:
                return False
        framed = _LENGTH.pack(len(message)) + message
        sent.extend(map(send, (framed,), (_FLAGS,)))
        link.tail = framed[sent[0] :]
        return True
    except BlockingIOError:
        interrupts.pass_on()
        return False
    except OSError:
        interrupts.pass_on()
        _disconnect()
        return False


# ------------------------------------------------------------------ receiving


def poll_command():
    """One command of the recorder as a dict, or None. Never blocks; for the agent's thread."""
    link = _link
    with session.lock:
        if not _is_ours(link):
            return None
        try:
            data = link.socket.recv(wire.MAX_COMMAND_BYTES, getattr(socket, "MSG_DONTWAIT", 0))
        except BlockingIOError:
            interrupts.pass_on()
            data = None
        except OSError:
            interrupts.pass_on()
            data = b""
        if data == b"":
            _disconnect()
            return None
    if link.stream:
        data = _next_frame(data or b"")
    if not data or data[:1] != wire.MSG_COMMAND:
        return None
    try:
        command = json.loads(data[1:].decode())
    except ValueError:
        interrupts.pass_on()
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
    """At the process's end: send all that waits, for ``wait_s`` seconds, and close the socket for
    good.
    """
    deadline = time.monotonic() + wait_s
    with session.lock:
        flush()
        if _link.queue and not session.connected and connect():
            # the script has closed our number, or the recorder is new
            on_reconnect()
            _drain()
        while _link.queue and session.connected and time.monotonic() < deadline:
            time.sleep(0.005)
            _drain()
        session.dropped += _link.queued_records
        _link.is_over = True  # the agent's thread may be in the middle of a tick
        _disconnect()


guard.report = send_event
