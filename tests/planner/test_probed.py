"""`gputop plan --probe`: what was measured here takes the place of what a kind usually reaches."""

import sys

import numpy as np
import pytest

from gputop.cli import main
from gputop.doctor import hardware
from gputop_analysis.planner import collectives, gemm
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.probed import GEMM_SIZE, Probed, applied

DEVICES = {
    "cuda:0": {"gpu": "NVIDIA H100 80GB HBM3", "gemm_tflops": 540.0, "memory_gbs": 2400.0},
    "cuda:1": {"gpu": "NVIDIA H100 80GB HBM3", "gemm_tflops": 500.0, "memory_gbs": 2500.0},
}
ASKED = ("plan", "--model", "llama-3-8b", "--gpu", "H100", "--gpus", "8", "--global-batch", "64")


def test_predictions_reproduce_what_was_measured():
    found = Probed.of(DEVICES, {"all_reduce_gbs": 300.0})
    assert (found.gemm_tflops, found.memory_gbs) == (500.0, 2400.0)
    place = applied(cluster("H100", 8), found)
    edge = np.array([float(GEMM_SIZE)])
    took = float(gemm.seconds(place.device, edge, edge, edge, "bf16")[0])
    assert 2 * GEMM_SIZE**3 / took / 1e12 == pytest.approx(500.0, rel=1e-6)
    message = np.array([4e9])
    spent = float(collectives.all_reduce(place, collectives.group(place, 8, 1), message)[0])
    assert 2 * 4e9 * 7 / 8 / spent / 1e9 == pytest.approx(300.0, rel=0.02)
    usual = cluster("H100", 8)
    ratio = place.gather_bytes_per_s / place.link_bytes_per_s
    assert ratio == pytest.approx(usual.gather_bytes_per_s / usual.link_bytes_per_s)


def test_what_was_not_measured_stays_as_usual():
    usual = cluster("H100", 8)
    assert applied(usual, Probed("H100")) == usual


def test_a_plan_says_what_was_measured_and_is_slower_for_it(capsys, monkeypatch):
    slow = Probed("NVIDIA H100 80GB HBM3", gemm_tflops=250.0, memory_gbs=2400.0)
    monkeypatch.setattr(hardware, "probe_here", lambda python: slow)
    assert main([*ASKED]) == 0
    usual = capsys.readouterr().out
    assert main([*ASKED, "--probe"]) == 0
    measured = capsys.readouterr()
    assert "measured on H100-SXM5-80GB: 250 TFLOP/s" in measured.err
    assert _tokens(measured.out) < 0.6 * _tokens(usual)
    assert main([*ASKED[:4], "A100", *ASKED[5:], "--probe"]) == 2
    assert "says nothing of" in capsys.readouterr().err


def _tokens(text):
    line = next(line for line in text.splitlines() if "tokens/s, MFU" in line)
    return float(line.split(" tokens/s")[0].split()[-1].replace(",", ""))


def test_without_a_gpu_one_line_says_so(monkeypatch):
    answer = {"host": "here", "figures": {}, "devices": {"cpu": {"gemm_tflops": 0.04}}}
    monkeypatch.setattr(hardware, "_probe", lambda *_: None)
    monkeypatch.setattr(hardware, "_answer", lambda _: answer)
    with pytest.raises(hardware.HardwareError, match="no GPU here to measure"):
        hardware.probe_here(sys.executable)
