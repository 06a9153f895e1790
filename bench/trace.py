"""How fast a trace is analysed, in how much memory: `python bench/trace.py [MEGABYTES]` prints one
JSON line.

The trace is made here: a GPU run in the proportions of a real one, that is four host operators, a
launch, a flow pair and a kernel at a time, every tenth kernel a collective on a stream of its own.
Nothing of it is measured.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
_COLLECTIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_BASE_US = 4_388_017_071_434
_EVENTS = 8


def write_trace(path: Path, megabytes: int) -> int:
    """Write about so many megabytes; returns how many events they are."""
    count, written = 0, 0
    with path.open("w") as file:
        file.write(
            '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "bench"}], '
            '"traceEvents": [\n'
        )
        templates = [_template(comm) for comm in (True, *[False] * 9)]
        index = 0
        while written < megabytes * 1_000_000:
            at = _BASE_US + index * 20
            written += file.write(templates[index % 10] % {"i": index, "at": at, "op": index % 60})
            count += _EVENTS
            index += 1
        file.write('{"ph": "M", "name": "end"}]}\n')
    return count


def _template(comm: bool) -> str:
    """One launch and its kernel as the profiler writes them, with places for what differs."""
    ids = {"External id": "%(i)s", "Record function id": 0, "Ev Idx": "%(i)s"}
    host = {"ph": "X", "pid": 7, "tid": 7}
    ops = [
        {
            **host,
            "cat": "cpu_op",
            "name": f"aten::op%(op)s_{k}",
            "ts": f"%(at)s.{k:03}",
            "dur": 16 - 2 * k,
            "args": ids,
        }
        for k in range(4)
    ]
    device = {
        "External id": "%(i)s",
        "device": 0,
        "context": 1,
        "stream": 20 if comm else 7,
        "correlation": "%(i)s",
    }
    shape = {
        "grid": [640, 1, 1],
        "block": [128, 1, 1],
        "est. achieved occupancy %%": 84,
        "warps per SM": 42.6,
    }
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": _COLLECTIVE if comm else _KERNEL,
        "pid": 0,
        "tid": 7,
    }
    flow = {"id": "%(i)s", "cat": "ac2g", "name": "ac2g"}
    events = [
        *ops,
        {
            **host,
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": "%(at)s.500",
            "dur": 4.5,
            "args": device,
        },
        {**flow, "ph": "s", "pid": 7, "tid": 7, "ts": "%(at)s.500"},
        {**flow, "ph": "f", "pid": 0, "tid": 7, "ts": "%(at)s.900", "bp": "e"},
        {**kernel, "ts": "%(at)s.900", "dur": 17.125, "args": {**device, **shape}},
    ]
    assert len(events) == _EVENTS
    text = ",\n".join(json.dumps(event, indent=1) for event in events) + ",\n"
    return re.sub(r'"(%\(\w+\)s[.\d]*)"', r"\1", text)


def measure(path: Path) -> dict[str, float]:
    """Analyse in this process: seconds and peak resident memory."""
    from gputop_analysis.traces import analyse_trace

    started = time.perf_counter()
    report = analyse_trace(path)
    seconds = time.perf_counter() - started
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": round(seconds, 2),
        "peak_rss_mb": round(peak_mb),
        "events_read": report.events,
    }


def main(megabytes: int) -> None:
    """Write a trace, analyse it in a fresh process, print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        events = write_trace(path, megabytes)
        found = subprocess.run(
            [sys.executable, __file__, "--measure", str(path)], capture_output=True, check=True
        )
        figures = json.loads(found.stdout)
        speed = round(path.stat().st_size / 1e6 / figures["seconds"], 1)
        size = round(path.stat().st_size / 1e6)
    print(
        json.dumps(
            {"bench": "trace", "trace_mb": size, "events": events, "mb_per_s": speed, **figures}
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Path(sys.argv[2]))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
