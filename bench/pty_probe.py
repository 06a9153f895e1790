"""Runs a program in a real pseudo-terminal and measures it from outside: first frame, CPU, bytes,
memory.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from dataclasses import dataclass

import psutil


@dataclass
class Probe:
    """One program in one terminal."""

    pid: int
    fd: int
    started: float
    seen: bytearray
    total: int = 0
    frames: int = 0
    """Synchronised updates (DEC mode 2026) that were begun."""

    def wait_for(self, marker: bytes, timeout_s: float = 20.0) -> float:
        """Seconds from the start until ``marker`` has been written; the time-out if it never is."""
        while (waited := time.perf_counter() - self.started) < timeout_s:
            if marker in self.seen:
                return waited
            if not self.read(0.002):
                break
        return timeout_s

    def read(self, timeout_s: float) -> bool:
        """Take what has been written; False once the program is gone."""
        ready, _, _ = select.select([self.fd], [], [], timeout_s)
        if not ready:
            return True
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            return False
        if b"\x1b[?2026$p" in data:  # the terminal says that it can draw a frame at once
            os.write(self.fd, b"\x1b[?2026;2$y")
        self.seen += data
        self.frames += data.count(b"\x1b[?2026h")
        self.total += len(data)
        return bool(data)

    def measure(self, seconds: float) -> dict[str, float]:
        """CPU in percent of a core, kB/s to the terminal and resident memory over some seconds."""
        process = psutil.Process(self.pid)
        cpu, written, frames, began = _cpu_s(process), self.total, self.frames, time.perf_counter()
        while time.perf_counter() - began < seconds and self.read(0.05):
            pass
        elapsed = time.perf_counter() - began
        return {
            "cpu_pct": round(100 * (_cpu_s(process) - cpu) / elapsed, 2),
            "frames_per_s": round((self.frames - frames) / elapsed, 2),
            "kb_per_s": round((self.total - written) / elapsed / 1000, 1),
            "rss_mb": round(process.memory_info().rss / 1e6, 1),
        }

    def close(self) -> None:
        """End the program and take its last words, so that nothing is left behind."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                break
            deadline = time.perf_counter() + 3
            while time.perf_counter() < deadline:
                self.read(0.02)
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    os.close(self.fd)
                    return
        os.close(self.fd)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def start(command: list[str], columns: int = 200, rows: int = 50) -> Probe:
    """Start ``command`` in a terminal of that size."""
    started = time.perf_counter()
    pid, fd = pty.fork()
    if pid == 0:
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        environment.pop("NO_COLOR", None)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execvpe(command[0], command, environment)
    return Probe(pid, fd, started, bytearray())
