"""What the shipped profiles answer: as a trace would, never less for more, and nothing that they do
not hold.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_analysis.catalog import model
from gputop_analysis.vram import profiles, replay
from gputop_analysis.vram.deepen import deepen
from gputop_analysis.vram.eventlog import parse
from gputop_analysis.vram.profiles import store
from gputop_analysis.vram.profiles.stacks import STACKS, deepened
from gputop_analysis.vram.setup import Lora, Setup

LLAMA = Setup(model=model("llama-3-8b"))
SMALL = replace(model("llama-3.2-1b"), tied_embeddings=False)
BLOCKS = 4e-3
"""A block may be up to 1 MiB larger than what was asked for, and which one is depends on all before
it; this model has 600 large tensors in 14 GiB.
"""
SMALL_BLOCKS = 1e-2
"""The same of models below 1 GiB."""
QV = Lora(targets=("q_proj", "v_proj"))
AS_TRACED = {
    "full training": LLAMA.but(seq=1500, micro_batch=3),
    "checkpointing, fused kernel of AdamW": LLAMA.but(
        seq=4096, checkpointing="full", optimizer="adamw-fused"
    ),
    "LoRA on another shape": LLAMA.but(model=SMALL, seq=777, micro_batch=5, lora=QV),
    "QLoRA": LLAMA.but(
        seq=2048, lora=Lora(targets=("all-linear",)), quantized="nf4", checkpointing="full"
    ),
    "two stacks": Setup(model=model("t5-small"), seq=400, micro_batch=16),
    "two towers": Setup(
        model=replace(model("clip-vit-base-patch16"), layers=4, vision_layers=5), micro_batch=64
    ),
    "8-bit AdamW, fused loss": LLAMA.but(
        model=SMALL, optimizer="adamw-8bit", loss="fused", micro_batch=8
    ),
}


@pytest.fixture(scope="module")
def tracer():
    """The trace of a model, in this process."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")

    from gputop_tracer import model_trace

    return model_trace


@pytest.mark.parametrize("name", AS_TRACED)
def test_a_profile_says_what_a_trace_of_the_modules_says(tracer, name: str):
    setup = AS_TRACED[name]
    found = profiles.peak(setup)
    assert found is not None
    tracker = tracer.trace(asdict(setup))
    log = parse(tracker.log.document(tracker.meta))
    traced = replay.peak(log if setup.model.family in STACKS else deepen(log, setup.model.layers))
    small = setup.model.family in STACKS
    assert found.allocated == pytest.approx(traced.allocated, rel=SMALL_BLOCKS if small else 1e-3)
    assert found.reserved == pytest.approx(traced.reserved, rel=0.03)
    for category in ("weights", "gradients", "optimizer"):
        traced_bytes = traced.breakdown.get(category, 0)
        assert found.breakdown.get(category, 0) == pytest.approx(
            traced_bytes, rel=SMALL_BLOCKS if small else 2e-3, abs=2**20
        )


def test_every_profile_can_be_read_and_repeated():
    for name in store.index()["profiles"]:
        profile = store.load(name)
        assert profile is not None
        family = name.partition("/")[0]
        log = deepened(profile.log, family, (7, 6) if family in STACKS else (7,))
        allocated = [event for event in log.events if event > 0]
        assert len(set(allocated)) == len(allocated), name
        assert {-event for event in log.events if event < 0} <= set(allocated), name


def test_the_breakdown_adds_up_and_names_where_it_comes_from():
    found = profiles.peak(LLAMA)
    assert found is not None
    assert sum(found.breakdown.values()) == found.allocated <= found.reserved
    assert found.operation.startswith(("optimizer", "backward"))
    assert found.sources[0].startswith("event profile llama/half/full/")
    assert "torch" in found.sources[0]


@settings(max_examples=15)
@given(st.integers(1, 8), st.integers(128, 4096), st.sampled_from(("full", "none")))
def test_more_tokens_never_need_less(micro_batch: int, seq: int, checkpointing: str):
    setup = LLAMA.but(model=SMALL, micro_batch=micro_batch, seq=seq, checkpointing=checkpointing)
    base, longer, wider = (
        profiles.peak(each)
        for each in (setup, setup.but(seq=seq + 128), setup.but(micro_batch=micro_batch + 1))
    )
    assert base and longer and wider
    assert base.allocated <= min(longer.allocated, wider.allocated) * (1 + BLOCKS)


def test_more_layers_and_ranks_never_need_less():
    setup = LLAMA.but(model=SMALL, lora=QV, seq=512)
    deep, high = setup.but(model=replace(SMALL, layers=20)), setup.but(lora=replace(QV, rank=64))
    base, deeper, higher = (profiles.peak(each) for each in (setup, deep, high))
    assert base and deeper and higher
    assert base.allocated < min(deeper.allocated, higher.allocated)


def test_what_is_not_covered_is_not_answered():
    assert profiles.peak(LLAMA.but(optimizer="muon")) is None
    assert profiles.peak(LLAMA.but(lora=Lora(targets=("k_proj",)))) is None
    assert profiles.peak(LLAMA.but(model=replace(SMALL, family="rwkv"))) is None
    assert profiles.peak(LLAMA.but(model=replace(SMALL, layers=2))) is None


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from gputop_analysis.catalog import model; from gputop_analysis.vram import "
        "profiles, setup;profiles.peak(setup.Setup(model=model('llama-3-8b')));"
        "print(sorted({'pydantic', 'torch', 'textual', 'transformers'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.parametrize("changes", [{}, {"accumulation": 3}, {"checkpointing": "full"}])
def test_what_a_step_leaves_for_good_is_made_once(changes: dict):
    log = profiles.events(LLAMA.but(**changes))
    assert log is not None
    made = [log.strings[log.operator[event]] for event in log.events if event > 0]
    assert made.count("cublas_workspace") == 2, (
        "cuBLAS keeps one for the forward's thread and one for the backward's"
    )
    assert sorted(log.marks) == list(log.marks)
    begins = {
        log.strings[log.operator[log.events[at]]]
        for at, phase, _ in log.marks
        if phase == "backward"
    }
    assert begins == {"nll_loss_backward"}
