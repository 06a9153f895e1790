"""What profiles are composed of and what formulas count, against traces of the same trainings."""

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from libraries import needs

from gputop_analysis.catalog import model
from gputop_analysis.parallelism.split import Split
from gputop_analysis.vram import eventlog, formula, profiles, replay
from gputop_analysis.vram.setup import Lora, ModelShape, Setup

pytestmark = needs("torch", "transformers", "peft")
TRACE = """
import json, sys
from gputop_tracer import model_trace
for name, setup in json.load(sys.stdin).items():
    tracker = model_trace.trace(setup, full=True)
    tracker.log.save(sys.argv[1] + "/" + name, tracker.meta)
"""


def shallow(name):
    """A model of the catalog, cut to two layers."""
    return replace(model(name), layers=2, params=0)


LLAMA = ModelShape("small", "llama", 1024, 4, 16, 8, 64, 2816, 32000, max_position=4096)
ADAPTERS = Lora(16, ("q_proj", "k_proj", "v_proj", "o_proj"), dropout=0.05)
ALL = Lora(16, ("all-linear",), dropout=0.05)
BASE = Setup(LLAMA, 1024, 4, checkpointing="full", attention="flash")
FSDP1, FSDP2 = Split(dp=4, sharding="fsdp1"), Split(dp=4, sharding="fsdp2")
LORA = BASE.but(lora=ADAPTERS, autocast=True)
SHARDED = {
    "full-fsdp1": BASE.but(parallel=FSDP1),
    "full-fsdp2": BASE.but(parallel=FSDP2),
    "mixed-fsdp1": BASE.but(parallel=FSDP1, weights="fp32", transformers="4.48"),
    "lora-fsdp1": LORA.but(parallel=FSDP1, transformers="4.48"),
    "qlora-fsdp1": LORA.but(parallel=FSDP1, quantized="nf4"),
}
GPT2 = BASE.but(model=shallow("gpt2"), transformers="4.48")
PHI = BASE.but(model=shallow("phi-2"), seq=512, lora=ALL, autocast=True, quantized="nf4")
COUNTED = {
    "16-bit-loss": GPT2.but(micro_batch=16, optimizer="sgd"),
    "fp32-stream": PHI,
    "fused-projection": BASE.but(model=shallow("phi-3-mini"), checkpointing="none", lora=ALL),
    "no-logits": LORA.but(loss="fused", quantized="nf4", micro_batch=8),
}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The peak of each training, from one process that traces them all."""
    folder = tmp_path_factory.mktemp("traces")
    setups = {name: asdict(setup) for name, setup in {**SHARDED, **COUNTED}.items()}
    done = subprocess.run(
        [sys.executable, "-c", TRACE, str(folder)],
        input=json.dumps(setups),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: replay.peak(eventlog.load(folder / name)) for name in setups}


@pytest.mark.parametrize("name", SHARDED)
def test_a_composed_profile_says_what_a_trace_of_fsdp_says(traced, name):
    found = profiles.peak(SHARDED[name])
    assert found is not None
    assert found.allocated == pytest.approx(traced[name].allocated, rel=0.03)
    assert found.reserved == pytest.approx(traced[name].reserved, rel=0.12)
    for category in ("weights", "optimizer"):
        expected = traced[name].breakdown.get(category, 0)
        assert found.breakdown.get(category, 0) == pytest.approx(expected, rel=0.03, abs=2**22)


def test_the_number_of_ranks_is_a_dimension_of_a_composed_profile():
    """States of mixed precision: weights, gradients and two moments of 4 bytes over the ranks."""
    short = SHARDED["mixed-fsdp1"].but(seq=128, micro_batch=1)
    sizes = [profiles.peak(short.but(dp=ranks)).breakdown for ranks in (2, 8)]
    assert sizes[0]["optimizer"] == pytest.approx(4 * sizes[1]["optimizer"], rel=0.02)
    assert profiles.peak(short.but(dp=8, replicas=2, sharding="hsdp")) is not None


@pytest.mark.parametrize("name", COUNTED)
def test_a_formula_counts_what_a_trace_finds(traced, name):
    found = formula.peak(COUNTED[name])
    assert found.allocated == pytest.approx(traced[name].allocated, rel=0.06)
    assert found.reserved == pytest.approx(traced[name].reserved, rel=0.12)
