"""A recorder for tests: takes what guests send, decodes it, and starts scripts the way the launcher
does.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gputop_agent
from gputop_agent import wire

AGENT_DIR = Path(gputop_agent.__file__).parent
INJECT_DIR = AGENT_DIR / "inject"
SITE_DIR = Path(__file__).parent / "site"
STEP_NAMES = [name for name, _ in wire.STEP_FIELDS]


APART = ("startup", "loader_worker")


@dataclass
class Guest:
    """What one process sent."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)

    @property
    def n_steps(self) -> int:
        return sum(record["n_steps"] for record in self.steps)

    def of_type(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == name]

    def phase_ms(self, name: str) -> float:
        return sum(record[f"{name}_ns"] for record in self.steps) / 1e6

    @property
    def flags(self) -> int:
        found = 0
        for record in self.steps:
            found |= record["flags"]
        return found

    @property
    def is_apart(self) -> bool:
        """Whether the connection was one of those apart: milestones of the start, workers."""
        return bool(self.events) and all(event["type"] in APART for event in self.events)

    def take(self, message: bytes) -> None:
        self.messages.append(message)
        if message[:1] == wire.MSG_STEPS:
            for values in wire.STEP.iter_unpack(message[1:]):
                self.steps.append(dict(zip(STEP_NAMES, values, strict=True)))
        elif message[:1] == wire.MSG_EVENT:
            self.events.append(json.loads(message[1:]))


class Collector:
    """Listens on a Unix socket in a thread; one ``Guest`` a connection."""

    def __init__(self, path: Path, stream: bool = False):
        self.path = path
        self._all: list[Guest] = []
        self.connections: list[socket.socket] = []
        self.paused = False
        self._stream = stream
        self._stopping = False
        self._listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM if stream else socket.SOCK_SEQPACKET
        )
        _bind(self._listener, path)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def guests(self) -> list[Guest]:
        """Those that train."""
        return [guest for guest in list(self._all) if not guest.is_apart]

    def apart(self, name: str) -> list[dict[str, Any]]:
        """Events of a type that came over connections apart."""
        told = [event for guest in list(self._all) if guest.is_apart for event in guest.events]
        return [event for event in told if event["type"] == name]

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        for connection in [*self.connections, self._listener]:
            connection.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(0.02):
                if key.fileobj is self._listener:
                    self._accept()
                elif not self.paused:
                    self._read(*key.data)
            if self.paused:
                time.sleep(0.02)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        guest = Guest()
        self._all.append(guest)
        self.connections.append(connection)
        self._selector.register(connection, selectors.EVENT_READ, (connection, guest, bytearray()))

    def _read(self, connection: socket.socket, guest: Guest, buffer: bytearray) -> None:
        try:
            data = connection.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
        elif not self._stream:
            guest.take(data)
        else:
            buffer += data
            while len(buffer) >= 4 and len(buffer) >= 4 + (
                size := struct.unpack_from("<I", buffer)[0]
            ):
                guest.take(bytes(buffer[4 : 4 + size]))
                del buffer[: 4 + size]


def _bind(listener: socket.socket, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def guest_env(socket_path: Path | None = None, **extra: str) -> dict[str, str]:
    """The environment that the launcher hands to a training command."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUTOP_", "PYTHON", "COV_"))}
    env.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="", PYTHONPATH=str(SITE_DIR))
    if socket_path is not None:
        env.update(
            {
                "PYTHONPATH": f"{INJECT_DIR}{os.pathsep}{SITE_DIR}",
                wire.ENV_AGENT_DIR: str(AGENT_DIR),
                wire.ENV_SOCKET: str(socket_path),
                wire.ENV_DEBUG: str(socket_path) + ".errors",
            }
        )
    env.update(extra)
    return env


@dataclass
class Outcome:
    """A script that has ended."""

    guests: list[Guest]
    stdout: str
    stderr: str
    exit_code: int
    agent_errors: str
    milestones: list[dict[str, Any]] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def guest(self) -> Guest:
        assert len(self.guests) == 1, [guest.of_type("hello") for guest in self.guests]
        return self.guests[0]

    def by_kind(self, kinds: list[str]) -> dict[str, Guest]:
        """Guests of a script that forks with ``site/each_kind.py``: a kind's number is its seed."""
        by_seed = {guest.of_type("hello")[0]["flags"]["seed"]: guest for guest in self.guests}
        return {kind: by_seed[number] for number, kind in enumerate(kinds, 1)}


@contextlib.contextmanager
def collecting(stream: bool = False):
    """A collector on a socket of its own."""
    with tempfile.TemporaryDirectory(prefix="gputop-test-") as folder:
        collector = Collector(Path(folder) / "sock", stream)
        try:
            yield collector
        finally:
            collector.close()


def run_script(
    command: list[str], timeout: float = 120, stream: bool = False, **env: str
) -> Outcome:
    """Run ``python`` with these arguments under injection and collect until it has ended."""
    with collecting(stream) as collector:
        extra = {"GPUTOP_TRANSPORT": "stream"} if stream else {}
        done = subprocess.run(
            [sys.executable, *command],
            env=guest_env(collector.path, **extra, **env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        time.sleep(0.1)
        errors = Path(str(collector.path) + ".errors")
        text = errors.read_text() if errors.exists() else ""
    return Outcome(
        collector.guests,
        stdout=done.stdout,
        stderr=done.stderr,
        exit_code=done.returncode,
        agent_errors=text,
        milestones=collector.apart("startup"),
        workers=collector.apart("loader_worker"),
    )


def run_plain(
    command: list[str], timeout: float = 120, **env: str
) -> subprocess.CompletedProcess[str]:
    """The same without gputop."""
    return subprocess.run(
        [sys.executable, *command],
        env=guest_env(**env),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
