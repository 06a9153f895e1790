"""Every common family has profiles, and they hold the weights that its models have."""

from __future__ import annotations

import pytest

from gputop_analysis.catalog import model
from gputop_analysis.vram import profiles, question, tiers
from gputop_analysis.vram.setup import Lora, Setup

LORA = {"lora": Lora(targets=("all-linear",))}
BLOCKS = 1.03
"""A block may be up to 1 MiB larger than the weight in it, which shows in models of a few hundred
MB.
"""
MODELS = (
    "llama-2-7b",
    "llama-3.2-1b",
    "mistral-7b-v0.1",
    "qwen2-7b",
    "qwen2.5-0.5b",
    "qwen3-8b",
    "gemma-2b",
    "gemma-2-2b",
    "gemma-3-4b",
    "phi-2",
    "phi-3-mini",
    "gpt2",
    "pythia-1b",
    "opt-1.3b",
    "olmo-2-7b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "t5-large",
    "bert-large",
    "vit-large",
    "clip-vit-h",
)


@pytest.mark.parametrize("name", MODELS)
def test_a_common_family_is_answered_by_a_profile(name: str):
    setup = Setup(model(name), seq=min(2048, model(name).max_position), optimizer="sgd")
    found = profiles.peak(setup)
    assert found is not None
    assert 0.9999 < found.breakdown["weights"] / (2 * setup.model.params) < BLOCKS
    checkpointed, adapted = (
        profiles.peak(setup.but(**change)) for change in ({"checkpointing": "full"}, LORA)
    )
    assert checkpointed is not None and checkpointed.allocated <= 1.01 * found.allocated
    assert adapted is not None and adapted.breakdown["weights"] >= found.breakdown["weights"]
    assert adapted.breakdown.get("gradients", 0) < found.breakdown["weights"] / 4


def test_what_a_profile_would_get_wrong_is_left_to_the_formula():
    """Four layers cannot stand for three dense ones and those with experts, nor for
    other lengths.
    """
    with pytest.raises(tiers.NotCoveredError, match="no event profile covers deepseek-v3"):
        question.estimate(Setup(model("deepseek-v3"), seq=1024), "profile")
    assert profiles.events(Setup(model("gemma-3-1b"), seq=400)) is None  # no longer than its window


def test_the_reserved_peak_alone_is_that_of_the_whole_answer():
    setup = Setup(model("llama-3.2-1b"), seq=1024, micro_batch=2)
    found = profiles.peak(setup)
    assert found is not None
    assert profiles.reserved(setup) == found.reserved
