"""A recorder that only listens, and scripts run as guests, for the tests of the guest's
satellites.
"""

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

from gputop_agent import wire

PROBES = Path(wire.__file__).resolve().parents[1]
TUI_APP = PROBES.parent / "tui_app"

_TABLES = {
    wire.MSG_COMM: (wire.COMM, wire.COMM_FIELDS),
    wire.MSG_DEVICE: (wire.DEVICE, wire.DEVICE_FIELDS),
}


class Listener:
    """A Unix SEQPACKET server: keeps what guests send, sends them commands."""

    def __init__(self, folder):
        self.path = str(folder / "sock")
        self.messages = []  # (pid, kind, dict)
        self._peers = {}  # pid -> connection
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(self.path)
        self._server.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._server.close()
        for connection in self._peers.values():
            connection.close()

    def events(self, type_, pid=None):
        return [
            m
            for p, k, m in list(self.messages)
            if k == "event" and m["type"] == type_ and pid in (None, p)
        ]

    def records(self, kind, pid=None):
        return [m for p, k, m in list(self.messages) if k == kind and pid in (None, p)]

    def command(self, pid, **command):
        self._peers[pid].send(wire.MSG_COMMAND + json.dumps(command).encode())

    def wait(self, condition, process=None, timeout_s=60.0):
        """``condition()`` once it is true; fails with what was received, at once if ``process`` has
        ended.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            if process is not None and process.poll() is not None:
                raise AssertionError(f"the script ended: {process.communicate()}")
            time.sleep(0.02)
        raise AssertionError(
            f"nothing came; received {[(k, m.get('type')) for _, k, m in self.messages]}"
        )

    def _accept(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid = int.from_bytes(credentials[:4], "little")
            self._peers[pid] = connection
            threading.Thread(target=self._receive, args=(pid, connection), daemon=True).start()

    def _receive(self, pid, connection):
        while True:
            try:
                data = connection.recv(wire.MAX_MESSAGE_BYTES + 1)
            except OSError:
                return
            if not data:
                return
            if data[:1] == wire.MSG_EVENT:
                self.messages.append((pid, "event", json.loads(data[1:])))
            elif data[:1] in _TABLES:
                packed, fields = _TABLES[data[:1]]
                for values in packed.iter_unpack(data[1:]):
                    record = dict(zip([name for name, _ in fields], values, strict=True))
                    self.messages.append((pid, data[:1], record))


def environment(listener, **more):
    """Environment of a guest whose script imports the guest's package itself."""
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith(("GPUTOP_", "TORCHELASTIC_"))
    }
    environ.update(PYTHONPATH=os.pathsep.join((str(PROBES), str(TUI_APP))), OMP_NUM_THREADS="1")
    environ[wire.ENV_SOCKET] = listener.path
    environ[wire.ENV_CLOCK_OFFSET] = str(time.time_ns() - time.monotonic_ns())
    environ.update(more)
    return environ


def start(folder, script, environ, *arguments, name="train.py"):
    """Start ``script`` (text) as ``folder/train.py`` with its output captured."""
    path = folder / name
    path.write_text(textwrap.dedent(script))
    return subprocess.Popen(
        [sys.executable, str(path), *arguments],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


#: What a guest script starts with: the hooks' part of the work, done by hand so that the satellites
#: are tested alone.
GUEST = """
import os, sys, threading, time
import torch
from gputop_agent import api
from gputop_agent.injection import hello, thread
from gputop_agent.runtime import session as state, transport
from gputop_agent.timing import batch, clock, comm, device
S = state.session

def begin(roots=(), optimizers=(), ddp=(), loader=None):
    import weakref
    S.torch, S.thread_ident, S.native_tid = torch, threading.get_ident(), threading.get_native_id()
    S.last_ns = time.monotonic_ns()
    S.roots = [weakref.ref(root) for root in roots]
    S.optimizers = {id(o): weakref.ref(o) for o in optimizers}
    S.ddp = [weakref.ref(root) for root in ddp]
    S.loader = weakref.ref(loader) if loader is not None else None
    transport.connect()
    hello.on_first_step()

def closed(step):
    now = transport.unix_ns(time.monotonic_ns())
    S.step = step + 1
    comm.on_step_closed(step, now)
    device.on_step_closed(step, now, 0)
    for listener in tuple(S.step_listeners):
        listener(step, now)
"""
