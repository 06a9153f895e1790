"""The markers of the pytest plugin, in a pytest of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from e2e_support import environment

TESTS = """
import pytest, time, torch
def train(steps, pause=0.0):
    layers = torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(64, 512)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause)
@pytest.mark.limit_vram("24 GiB", gpu="RTX 4090")
def test_fits(): train(1)
@pytest.mark.limit_vram("16 MiB")
def test_too_large(): train(1)
@pytest.mark.limit_vram("16 MiB")
def test_nothing_trained(): pass
@pytest.mark.limit_step("100 s")
def test_fast(): train(12)
@pytest.mark.limit_step("15 ms")
def test_slow(): train(14, 0.05)
@pytest.mark.limit_step("15 ms")
def test_short(): train(3)
@pytest.mark.limit_step("15 furlongs")
def test_no_time(): pass
@pytest.mark.limit_vram("24 GiB", gpus="RTX 4090")
def test_typo(): train(1)
@pytest.mark.limit_vram("24 GiB", "RTX 4090")
def test_two_words(): train(1)
@pytest.mark.limit_step("1 us")
def test_that_fails_by_itself(): assert train(1) == "its own"
"""


@pytest.mark.e2e
def test_limits_hold_where_they_can_and_say_what_is_over(tmp_path):
    (tmp_path / "test_limits.py").write_text(TESTS)
    plugin = [] if _is_installed() else ["-p", "gputop.pytest_plugin"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rA",
            "--strict-markers",
            *plugin,
            "test_limits.py",
        ],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env=environment(tmp_path),
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line[:6] in ("PASSED", "FAILED")]
    verdicts = dict(map(_verdict, lines))
    assert [name for name, (verdict, _) in verdicts.items() if verdict == "PASSED"] == [
        "test_fits",
        "test_fast",
    ], done.stdout
    for name, words in {
        "test_too_large": "GiB (",
        "test_nothing_trained": "no module with weights",
        "test_slow": "ms a step (median of 10",
        "test_short": "3 optimizer steps in this test, 12 are needed",
        "test_no_time": "give an amount such as '15 ms'",
        "test_typo": "does not take gpus=",
        "test_two_words": "does not take 'RTX 4090'",
        "test_that_fails_by_itself": "its own",
    }.items():
        assert words in verdicts[name][1] + done.stdout.partition("short test summary")[0]
    assert "limit_step: 1 optimizer" not in done.stdout


def _verdict(line: str) -> tuple[str, tuple[str, str]]:
    words = line.split(maxsplit=1)
    name, _, reason = words[1].partition(" - ")
    return name.rpartition("::")[2], (words[0], reason)


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "gputop.pytest_plugin" for point in entry_points(group="pytest11"))
