"""What the recorder costs at 8 ranks x 1000 steps a second: CPU, memory, and whether a record is
lost.

Eight real processes send through the real socket to a recorder started by the real launcher, in
three ways:

- ``folded``: as the agent does it, 50 records a second and rank, in batches of 50 ms;
- ``unfolded``: 1000 records a second and rank, in batches of 50 ms;
- ``single``: 1000 messages a second and rank, one record each.

Prints one JSON line. CPU is user and system time of the recorder with all its samplers, in percent
of one core.

    python bench/ingest.py [--seconds 10] [--ranks 8]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

from gputop_agent import wire
from gputop_probes import procfs
from gputop_probes.launch import RunSpec, start
from gputop_probes.record import layout

STEPS_PER_S = 1000
BATCH_S = 0.05
WAYS = {
    "folded": (50, BATCH_S),
    "unfolded": (STEPS_PER_S, BATCH_S),
    "single": (STEPS_PER_S, 1 / STEPS_PER_S),
}
"""Way -> records a second, seconds between messages."""
WARM_UP_S = 2.0


def send(rank: int, records_per_s: int, period_s: float, seconds: float) -> None:
    """One rank: say hello, then send on an even beat without ever waiting for the reader."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    link.connect(os.environ[wire.ENV_SOCKET])
    link.setblocking(False)
    hello = {
        "type": "hello",
        "t_ns": time.time_ns(),
        "rank": rank,
        "pid": os.getpid(),
        "tid": os.getpid(),
    }
    link.send(wire.MSG_EVENT + json.dumps(hello).encode())
    per_message = max(1, round(records_per_s * period_s))
    steps_per_record = STEPS_PER_S // records_per_s
    due, sent, refused = time.monotonic(), 0, 0
    end = due + seconds
    while due < end:
        message = b"".join(pack_step(sent + n, steps_per_record) for n in range(per_message))
        try:
            link.send(wire.MSG_STEPS + message)
            sent += per_message
        except BlockingIOError:
            refused += per_message
        due += period_s
        time.sleep(max(0.0, due - time.monotonic()))
    print(f"{rank} {sent} {refused}", flush=True)


def pack_step(index: int, n_steps: int) -> bytes:
    """A STEP record of steps of 1 ms."""
    wall_ns = 1_000_000 * n_steps
    durations = [wall_ns, *[wall_ns // 10] * 10, wall_ns]
    return wire.STEP.pack(
        time.time_ns(), *durations, *[0] * 8, 1.0, 1.0, 0.0, 0.0, 0.0, index, n_steps, *[0] * 7
    )


def send_all(way: str, ranks: int, seconds: float) -> None:
    """The command under the recorder: one process a rank."""
    records_per_s, period_s = WAYS[way]
    children = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            send(rank, records_per_s, period_s, seconds)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def measure(way: str, ranks: int, seconds: float) -> dict[str, float]:
    """Run one way of sending and look at the recorder from outside."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--send", way, "--ranks", str(ranks)]
        command += ["--seconds", str(seconds + WARM_UP_S + 1)]
        handle = start(
            RunSpec(
                command=command,
                run_dir=Path(folder) / "run",
                headless=True,
                quiet=True,
                separate_stderr=False,
            )
        )
        time.sleep(WARM_UP_S)
        before, began = cpu_ns(handle.recorder_pid), time.monotonic()
        time.sleep(seconds)
        used_ns, elapsed_s = cpu_ns(handle.recorder_pid) - before, time.monotonic() - began
        rss_bytes, pss_bytes = memory(handle.recorder_pid)
        exit_code = handle.wait(60)
        sent, refused, written = count(handle.run_dir, handle.host_dir)
    if exit_code != 0:
        raise SystemExit(f"the senders ended with exit code {exit_code}")
    return {
        f"{way}_cpu_pct": round(100 * used_ns / 1e9 / elapsed_s, 2),
        f"{way}_rss_mb": round(rss_bytes / 1e6, 1),
        f"{way}_pss_mb": round(pss_bytes / 1e6, 1),
        f"{way}_records_sent": sent,
        f"{way}_records_refused": refused,
        f"{way}_records_lost": sent - written,
    }


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process."""
    found = procfs.stat(pid)
    return found.cpu_ticks * procfs.NS_PER_TICK if found else 0


def memory(pid: int) -> tuple[int, int]:
    """Resident and proportional set size in bytes."""
    raw = (procfs.read_bytes(f"/proc/{pid}/smaps_rollup") or b"").decode()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in raw.splitlines()[1:]}
    return sizes.get("Rss", 0), sizes.get("Pss", 0)


def count(run_dir: Path, host_dir: Path) -> tuple[int, int, int]:
    """Records sent and refused as the senders say, and written as the files say."""
    lines = [line.split() for line in (host_dir / "output.log").read_text().splitlines()]
    sizes = [layout.rank_file(run_dir, "steps", int(line[0])).stat().st_size for line in lines]
    written = sum(size // wire.STEP.size for size in sizes)
    return sum(int(line[1]) for line in lines), sum(int(line[2]) for line in lines), written


def main() -> None:
    """Measure every way and print one line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--send", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        send_all(options.send, options.ranks, options.seconds)
        return
    result: dict[str, object] = {
        "bench": "ingest",
        "ranks": options.ranks,
        "steps_per_s": STEPS_PER_S,
    }
    for way in WAYS:
        result.update(measure(way, options.ranks, options.seconds))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
