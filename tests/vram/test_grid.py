"""The grid of real configurations: every one can be asked about; its mechanics run on a CPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from gputop.models import resolve
from gputop_analysis.vram.options import setup_of
from gputop_analysis.vram.question import estimate

BENCH = Path(__file__).parents[2] / "bench/vram_grid.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("vram_grid", BENCH)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_configuration_is_another_one_that_can_be_trained(bench):
    grid = bench.grid()
    assert len({json.dumps(one) for one in grid}) == len(grid) >= 30
    for model, options in grid:
        setup = setup_of(
            resolve(model), {name: value for name, value in options.items() if value != ""}
        )
        assert estimate(setup, "formula", advice=False).peak.allocated > 0


@pytest.mark.parametrize(
    "tier, allocated_pct, reserved_pct", [("formula", 3.5, 11), ("profile", 1.7, 15)]
)
def test_real_steps_on_an_h200_took_what_is_said(bench, tier, allocated_pct, reserved_pct):
    """26 setups of up to 1.2 billion parameters, measured by the caching allocator's counters."""
    rows = bench._kept(bench.KEPT)
    assert {row["gpu"] for row in rows} == {"NVIDIA H200"} and len(rows) == 26
    for row in rows:
        setup = setup_of(resolve(row["model"]), row["options"])
        row["tiers"] = {tier: bench._estimated(setup, tier)}
    errors = bench.errors(rows, tier)
    assert errors["peak_allocated"]["runs"] >= 25
    assert errors["peak_allocated"]["most_pct"] <= allocated_pct
    assert errors["peak_reserved"]["most_pct"] <= reserved_pct


def test_real_steps_run_on_a_cpu_where_there_is_no_peak_to_measure(bench, tmp_path):
    pytest.importorskip("transformers")
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config |= {"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 128}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    row = bench.measured(str(tmp_path), {"seq": 32, "dtype": "fp32"}, ("formula",), "cpu")
    assert (row["device"], row["peak_allocated"], row["gpu"]) == ("cpu", None, None)
    assert row["versions"]["torch"] and row["tiers"]["formula"]["peak_allocated"] > 0


def test_errors_are_of_what_was_measured(bench):
    rows = [
        {
            "peak_allocated": 10.0,
            "peak_reserved": 11.0,
            "tiers": {"formula": {"peak_allocated": 11.0}},
        },
        {
            "peak_allocated": 20.0,
            "peak_reserved": None,
            "tiers": {"formula": {"failed": "not covered"}},
        },
    ]
    found = bench.errors(rows, "formula")
    assert found == {
        "peak_allocated": {"runs": 1, "median_pct": 10.0, "most_pct": 10.0},
        "peak_reserved": {},
    }
