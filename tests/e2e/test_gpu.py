"""The checks of bench/gpu.py, one by one; without a GPU the pack says so in one line."""

import subprocess
import sys
from pathlib import Path

import gpu
import pytest

PACK = Path(__file__).parent.parent.parent / "bench" / "gpu.py"


@pytest.mark.gpu
@pytest.mark.parametrize("name", gpu.CHECKS)
def test_on_hardware(name, tmp_path):
    reason = gpu.missing()
    if reason:
        pytest.skip(reason)
    result = gpu.CHECKS[name](tmp_path)
    assert result["ok"], result


def test_without_a_gpu_the_pack_says_so_in_one_line(tmp_path):
    if not gpu.missing():
        pytest.skip("there is a GPU here")
    words = [sys.executable, str(PACK), "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == gpu.NO_GPU
    assert done.stderr.startswith("bench/gpu.py: no ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_page_names_what_failed():
    checks = {"a": {"ok": True, "seconds": 1}, "b": {"ok": False, "why": "ValueError: x|y"}}
    text = gpu.page({"gpu": "G", "torch": "2", "seconds": 3.0, "checks": checks})
    assert "| a | yes |" in text
    assert '| b | NO | {"why": "ValueError: x/y"} |' in text


def test_phases_of_a_trace_are_those_of_the_kernels_that_their_ranges_launched():
    """Two steps; the device runs behind the host, and works on between the ranges."""
    events = []
    for step in range(2):
        for place, (name, begin) in enumerate(zip(gpu.PHASES, (0, 30, 50), strict=True)):
            at, correlation = 1000 * step + begin, 10 * step + place
            events.append({"cat": "user_annotation", "name": name, "ts": at, "dur": 20, "args": {}})
            call = {"name": "cudaLaunchKernel", "ts": at + 5, "dur": 1}
            events.append(call | {"cat": "cuda_runtime", "args": {"correlation": correlation}})
            kernel = {"name": "gemm", "ts": 1000 * step + (100, 300, 700)[place], "dur": 90}
            events.append(kernel | {"cat": "kernel", "args": {"correlation": correlation}})
    events.append({"cat": "kernel", "name": "before", "ts": 1, "dur": 9, "args": {}})
    times = gpu.traced_phases(events)
    assert times == {"forward": 0.2, "backward": 0.4, "optimizer": 0.09}
