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
