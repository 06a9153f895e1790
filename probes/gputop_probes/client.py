"""Sends a command to a running recorder: ping, dump, profile, stop."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

from gputop_agent import wire
from gputop_probes.errors import StartError

_LENGTH = struct.Struct("<I")


def send_command(
    run_dir: Path, command: dict[str, Any], timeout_s: float = 2.0
) -> dict[str, Any] | None:
    """Send one command to the recorder of a run on this machine.

    Args:
        run_dir: the run's directory.
        command: ``{"cmd": "ping" | "dump" | "profile" | "stop", ...}``, see docs/records.md.
        timeout_s: how long to wait for the answer.

    Returns:
        The recorder's answer, ``{"ok": True, ...}``; None when no recorder answers.
    """
    from gputop_probes import runs

    try:
        _, state = runs.local_state(run_dir)
    except StartError:
        return None
    return send_to(
        str(state.get("socket", "")), command, timeout_s, stream=state.get("transport") == "stream"
    )


def send_to(
    path: str,
    command: dict[str, Any],
    timeout_s: float = 2.0,
    *,
    stream: bool = False,
    answer: bool = True,
) -> dict[str, Any] | None:
    """Send one command to the recorder that listens at ``path``. Never raises on a dead one."""
    message = wire.MSG_COMMAND + json.dumps(command).encode()
    socket_type = socket.SOCK_STREAM if stream else socket.SOCK_SEQPACKET
    try:
        with socket.socket(socket.AF_UNIX, socket_type) as connection:
            connection.settimeout(timeout_s)
            _connect(connection, path)
            connection.send(_LENGTH.pack(len(message)) + message if stream else message)
            return _read_answer(connection, stream) if answer else None
    except (OSError, ValueError):
        return None


def _connect(connection: socket.socket, path: str) -> None:
    """Connect; a path too long for a socket address goes by way of its directory's descriptor."""
    if len(os.fsencode(path)) < 108:
        connection.connect(path)
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)


def _read_answer(connection: socket.socket, stream: bool) -> dict[str, Any] | None:
    data = connection.recv(wire.MAX_MESSAGE_BYTES)
    if stream:
        while len(data) >= 4 and len(data) < 4 + _LENGTH.unpack_from(data)[0]:
            part = connection.recv(wire.MAX_MESSAGE_BYTES)
            if not part:
                return None
            data += part
        data = data[4:]
    if data[:1] != wire.MSG_COMMAND:
        return None
    answer = json.loads(data[1:])
    return answer if isinstance(answer, dict) else None
