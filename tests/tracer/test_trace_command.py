"""The trace as a command in another interpreter: its log, its progress, and what it says where it
cannot.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from libraries import needs

from gputop.tracing import trace
from gputop_analysis.vram.replay import peak
from gputop_analysis.vram.setup import ModelShape, Setup

pytestmark = needs("torch", "transformers")

SHAPE = ModelShape(
    "small",
    hidden=128,
    layers=6,
    heads=4,
    kv_heads=2,
    head_dim=32,
    ffn=256,
    vocab=500,
    max_position=64,
)
FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        return self.body(x)

def make():
    return Net()
"""


def test_the_log_has_all_layers_and_progress_is_told() -> None:
    lines: list[str] = []
    log = trace(Setup(SHAPE, seq=64), progress=lines.append)
    assert max(log.layer) == SHAPE.layers - 1
    assert log.meta["versions"]["torch"]
    assert lines[0].startswith("importing torch") and "storages" in lines[-1]


def test_a_factory_next_to_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mynet.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    rows = 1000
    setup = Setup(SHAPE, seq=1, micro_batch=rows, dtype="fp32")
    log = trace(setup, factory="mynet:make", progress=lambda _line: None)
    weights = 2 * 64 * 256 + 256 + 64
    assert log.meta["trained"] == weights
    # Kept for the backward: the input of both linear layers and of GELU; the input is a leaf of the
    # batch.
    assert peak(log).allocated > 4 * rows * (64 + 2 * 256)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("nowhere:make", "No module named 'nowhere'"),
        ("make", "written module:callable"),
        ("math:sqrt", "sqrt"),
    ],
)
def test_a_factory_that_cannot_be_taken(factory: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        trace(Setup(SHAPE), factory=factory, progress=lambda _line: None)
    assert "\n" not in str(caught.value)


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    os.chmod(bare, 0o755)
    with pytest.raises(ImportError, match="has no torch"):
        trace(Setup(SHAPE), str(bare), progress=lambda _line: None)


def test_no_such_interpreter() -> None:
    with pytest.raises(ValueError, match="cannot start"):
        trace(Setup(SHAPE), "/no/such/python", progress=lambda _line: None)
