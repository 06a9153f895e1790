"""How long the strategy screen takes to answer a key, in a real pseudo-terminal: from the byte of
the key to the last byte of the picture that follows.

Llama-3-70B is planned on 64 and on 1024 GPUs, at 80x24 and 200x50. Arrows change the global batch,
with which the whole space is searched again, to and fro every third of a second, as a person does;
a figure that is typed asks something that could not be worked out ahead; ``u`` opens what each
optimisation would win. CPU is the whole process's for a key, with what it works out ahead.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator

import psutil
from pty_probe import Probe, start

PAUSE_S = 0.33
"""Without a byte for that long, the picture is complete."""
ROUNDS = 12
RIGHT, LEFT, DOWN, HOME = b"\x1b[C", b"\x1b[D", b"\x1b[B", b"\x1b[H"
TO_BATCH = HOME + DOWN * 2
APP = """
import sys
from gputop.app.strategy import StrategyApp
from gputop.feed.planning import Ask
from gputop_analysis.catalog import model
StrategyApp(Ask(model("llama-3-70b"), seq=8192, global_batch=1024, gpus=int(sys.argv[1]))).run()
"""


def measure() -> dict[str, float]:
    """The median and the 95th percentile of each kind of key, over both jobs and both sizes."""
    arrows: list[float] = []
    typed: list[float] = []
    asked: list[float] = []
    cpu_ms: list[float] = []
    for gpus in ("64", "1024"):
        for columns, rows in ((80, 24), (200, 50)):
            probe = start([sys.executable, "-c", APP, gpus], columns, rows)
            probe.wait_for(b"rc:")
            _settled(probe)
            _answer_ms(probe, TO_BATCH)
            process = psutil.Process(probe.pid)
            before = process.cpu_times()
            arrows += [_answer_ms(probe, key) for key in _to_and_fro(ROUNDS)]
            after = process.cpu_times()
            cpu_ms.append(1e3 * (after.user + after.system - before.user - before.system) / ROUNDS)
            typed += [_typed_ms(probe, batch) for batch in (b"2048", b"512", b"1536")]
            asked += [_answer_ms(probe, b"u")]
            probe.close()
    return {
        "arrow_key_ms_p50": round(statistics.median(arrows), 1),
        "arrow_key_ms_p95": round(statistics.quantiles(arrows, n=20)[-1], 1),
        "arrow_key_cpu_ms": round(statistics.mean(cpu_ms), 1),
        "typed_value_ms_p50": round(statistics.median(typed), 1),
        "what_if_key_ms_p50": round(statistics.median(asked), 1),
        "what_if_key_ms_most": round(max(asked), 1),
    }


def _to_and_fro(count: int) -> Iterator[bytes]:
    """Two up the ladder and two down again."""
    return (RIGHT if i % 4 < 2 else LEFT for i in range(count))


def _typed_ms(probe: Probe, value: bytes) -> float:
    """A global batch typed into its line; the time is that of the enter key."""
    _answer_ms(probe, TO_BATCH)
    _answer_ms(probe, value)
    return _answer_ms(probe, b"\r")


def _answer_ms(probe: Probe, key: bytes) -> float:
    """Milliseconds from writing the key to the last byte before the screen rests."""
    began = time.perf_counter()
    os.write(probe.fd, key)
    return 1e3 * (_settled(probe) - began)


def _settled(probe: Probe) -> float:
    """When the last byte came."""
    last = time.perf_counter()
    while time.perf_counter() - last < PAUSE_S:
        seen = probe.total
        if not probe.read(0.002):
            break
        if probe.total > seen:
            last = time.perf_counter()
    return last
