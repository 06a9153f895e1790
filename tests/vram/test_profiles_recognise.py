"""Sizes are recognised as products of dimensions, whatever the product; profiles survive being
packed.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_terms import Terms, UnclearError

from gputop_analysis.catalog import model
from gputop_analysis.parallelism.split import Split
from gputop_analysis.vram.eventlog import parse
from gputop_analysis.vram.profiles import store
from gputop_analysis.vram.profiles.dims import dims
from gputop_analysis.vram.profiles.steps import StepCourse, course
from gputop_analysis.vram.profiles.term import Term
from gputop_analysis.vram.profiles.variant import variant
from gputop_analysis.vram.setup import Lora, Setup

TRACES = [
    {"seq": 32 * 3, "hidden": 64 * 5, "heads": 7, "ffn": 128 * 11},
    {"seq": 32 * 13, "hidden": 64 * 17, "heads": 19, "ffn": 128 * 23},
]
LLAMA = Setup(model=model("llama-3-8b"))


@given(
    st.lists(st.sampled_from(sorted(TRACES[0])), max_size=4), st.sampled_from((1, 2, 3, 4, 8, 12))
)
def test_any_product_is_recognised(factors: list[str], constant: int):
    term = Term(constant, 1, tuple(sorted(factors)))
    assert Terms(TRACES).of([term.bytes(dims) for dims in TRACES]) == term


def test_a_share_of_a_product_is_recognised():
    absmax = Term(4, 64, ("ffn", "hidden"))
    found = Terms(TRACES).of([absmax.bytes(dims) for dims in TRACES])
    assert found is not None
    assert found.bytes({"hidden": 4096, "ffn": 14336}) == absmax.bytes(
        {"hidden": 4096, "ffn": 14336}
    )


def test_a_sum_is_no_product():
    assert Terms(TRACES).of([dims["seq"] * dims["hidden"] + dims["ffn"] for dims in TRACES]) is None


def test_dimensions_that_grow_alike_are_refused():
    with pytest.raises(UnclearError):
        Terms([{"seq": 3, "hidden": 6}, {"seq": 5, "hidden": 10}]).of([6, 10])


def document() -> dict:
    """A weight, then a step: an activation, a gradient made while it lives, both freed."""
    return {
        "format": 1,
        "strings": ["weights", "activations", "gradients", "mm", "model.layers.0.mlp"],
        "storages": [[0, 0, 0, 3, 4, 0], [1, 0, 1, 3, 4, 0], [0, 0, 2, 3, 4, 0]],
        "events": [1, 2, 3, -2, -3],
        "marks": [
            [0, "init", 0],
            [1, "forward", 0],
            [2, "backward", 0],
            [4, "optimizer", 0],
            [4, "zero_grad", 0],
        ],
        "meta": {"layers": 4},
    }


TERMS = [Term(2, 1, ("hidden", "hidden")), Term(2, 1, ("hidden", "seq"))]


def test_a_profile_comes_out_of_the_archive_as_it_went_in():
    encoded = store.encode(TERMS, document())
    profile = store.decode(encoded)
    before = parse(document())
    assert profile.terms == tuple(TERMS)
    assert profile.log.events == before.events
    assert profile.log.bytes == before.bytes
    assert profile.log.marks == before.marks


def test_the_archive_is_the_same_for_the_same_profiles():
    encoded = store.encode(TERMS, document())
    assert store.pack({"a": encoded, "b": encoded}, {}) == store.pack(
        {"b": encoded, "a": encoded}, {}
    )


@pytest.mark.parametrize(
    ("optimizer", "kept", "most"),
    [
        ("sgd", 0, 0),
        ("sgd-momentum", 2, 2),
        ("adamw-fused", 4, 4),
        ("adamw", 4, 6),
        ("adamw-loop", 4, 8),
        ("adamw-8bit", 2 + 2 * 4 / 256, 2 + 2 * 4 / 256),
        ("adafactor", 0, 16),
        ("lion", 4, 4),
    ],
)
def test_an_update_keeps_and_makes_what_it_should(optimizer: str, kept: float, most: float):
    """Bytes a parameter in bf16, besides the weights and gradients."""
    values = 4096 * 4096
    steps = course(parse(document()), StepCourse(optimizer, 2))
    log = steps.sized(sizes(values), 2)
    held = running(log)
    start = max(at for at, phase, _ in log.marks if phase == "optimizer")
    end = max(at for at, phase, _ in log.marks if phase == "zero_grad")
    assert held[-1] == pytest.approx((2 + kept) * values)
    assert max(held[start - 1 : end]) == pytest.approx((4 + most) * values)


def sizes(values: int) -> list[int]:
    return [2 * values, 1024]


def running(log) -> list[int]:
    total, found = 0, []
    for event in log.events:
        total += log.bytes[abs(event)] * (1 if event > 0 else -1)
        found.append(total)
    return found


def test_accumulation_frees_the_second_gradients_at_once():
    once, twice = (
        course(parse(document()), StepCourse("sgd", 2, accumulate)).sized(sizes(4096), 2)
        for accumulate in (False, True)
    )
    assert running(once)[-1] == running(twice)[-1]
    assert max(running(twice)) == max(running(once)) + 2 * 4096
    assert len(twice.events) > len(once.events)


@pytest.mark.parametrize(
    "beyond",
    [
        {"parallel": Split(dp=8, sharding="zero3")},
        {"parallel": Split(dp=8, sharding="fsdp2", reshard_after_forward=False)},
        {"dropout": 0.1},
        {"images": 1},
        {"roles": ("critic",)},
        {"freeze": ("embeddings",)},
        {"grad_dtype": "fp32"},
        {"master_weights": True},
        {"recipe": "megatron"},
        {"dtype": "fp8"},
        {"model": model("mixtral-8x7b"), "lora": Lora(), "quantized": "nf4"},
        {"model": model("llava-1.5-7b")},
    ],
)
def test_what_no_profile_stands_for_has_no_variant(beyond: dict):
    assert variant(LLAMA) is not None
    assert variant(LLAMA.but(**beyond)) is None


def test_all_linear_layers_by_name_are_all_linear():
    named = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert variant(LLAMA.but(lora=Lora(targets=named))) == variant(
        LLAMA.but(lora=Lora(targets=("all-linear",)))
    )


def test_dimensions_are_those_of_the_shape():
    found = dims(LLAMA.but(seq=1000, micro_batch=3))
    assert (found["seq"], found["seq in blocks"], found["micro_batch"]) == (1000, 1024, 3)
    assert (found["heads"], found["kv_heads"], found["head_dim"], found["vocab"]) == (
        32,
        8,
        128,
        128256,
    )
