"""The formula tier against what was measured, what papers print, and what must hold whatever the
numbers are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gputop_analysis import catalog
from gputop_analysis.parallelism.split import RECOMPUTES, Split
from gputop_analysis.vram.adapters import adapters
from gputop_analysis.vram.formula import peak, peak_bytes
from gputop_analysis.vram.formula.activations import layer
from gputop_analysis.vram.formula.dims import dims
from gputop_analysis.vram.formula.habits import habits
from gputop_analysis.vram.formula.parts import parts, total
from gputop_analysis.vram.formula.phases import in_flight
from gputop_analysis.vram.setup import ATTENTIONS, LOSSES, OPTIMIZERS, Lora, ModelShape, Setup

GIB = 1 << 30
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MISTRAL = catalog.model("mistral-7b-v0.1")
LLAMA = catalog.model("llama-3-8b")
FINE_TUNING = Setup(
    MISTRAL, 4096, 4, checkpointing="full", attention="flash", transformers="4.48.1"
)
LORA = FINE_TUNING.but(lora=Lora(16, ATTENTION, dropout=0.1))


@pytest.mark.parametrize(
    ("setup", "measured_gib"),
    [
        (FINE_TUNING, 67.460),
        (FINE_TUNING.but(micro_batch=8), 67.461),
        (LORA, 24.871),
        (LORA.but(micro_batch=8), 36.082),
        (LORA.but(quantized="nf4"), 15.249),
        (LORA.but(quantized="nf4", micro_batch=8), 26.461),
    ],
)
def test_mistral_as_measured(setup: Setup, measured_gib: float) -> None:
    """fms-acceleration's runs on an A100, allocated."""
    assert peak(setup).allocated / GIB == pytest.approx(measured_gib, rel=0.015)


def test_full_training_in_16_bits_peaks_at_five_times_the_weights() -> None:
    found = peak(FINE_TUNING)
    assert found.operation.startswith("optimizer")
    assert found.allocated == pytest.approx(5 * 2 * MISTRAL.params, rel=0.002)


def test_a_gpt_layer_keeps_34_sbh_and_5_as2b() -> None:
    """Korthikanti et al. 2022, equation 1: 16 bits, unfused attention, dropout, fused norms."""
    shape = ModelShape(
        "gpt", "gpt2", 1024, 4, 16, 16, 64, 4096, 50_304, gated_mlp=False, max_position=2048
    )
    setup = Setup(shape, 2048, 1, attention="eager", recipe="megatron", dropout=0.1)
    kept = layer(dims(setup), habits(setup), moe=False)
    assert kept.whole == 34 * 1024 + 5 * 16 * 2048


def test_tensor_and_sequence_parallelism_divide_a_layer() -> None:
    """Korthikanti et al. 2022, equations 2 and 4: 10 + 24 / t without, 34 / t with sequence
    parallelism.
    """
    shape = ModelShape(
        "gpt", "gpt2", 1024, 4, 16, 16, 64, 4096, 50_304, gated_mlp=False, max_position=2048
    )
    setup = Setup(
        shape, 2048, 1, attention="eager", recipe="megatron", dropout=0.1, parallel=Split(tp=4)
    )
    scores = 5 * 16 * 2048 / 4
    alone = layer(dims(setup), habits(setup), moe=False)
    assert alone.whole == pytest.approx(10 * 1024 + 24 * 1024 / 4 + scores)
    both = setup.but(sequence_parallel=True)
    assert layer(dims(both), habits(both), moe=False).whole == pytest.approx(34 * 1024 / 4 + scores)


@pytest.mark.parametrize(("pp", "vpp"), [(4, 1), (4, 2), (8, 4)])
def test_the_first_stage_of_an_interleaved_pipeline(pp: int, vpp: int) -> None:
    """Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1) / (p v) times as much as without
    interleaving.
    """
    d = dims(Setup(LLAMA, accumulation=64, parallel=Split(pp=pp, vpp=vpp)))
    assert in_flight(d) == pytest.approx(pp * (1 + (pp - 1) / (pp * vpp) if vpp > 1 else pp / pp))


def test_a_pipeline_holds_no_more_than_there_are_micro_batches() -> None:
    assert in_flight(dims(Setup(LLAMA, accumulation=2, parallel=Split(pp=8)))) == 2
    assert (
        in_flight(dims(Setup(LLAMA, accumulation=64, parallel=Split(pp=8, pipeline_stage=7)))) == 1
    )


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gemma-2-2b", "gpt2", "phi-2"]
)
def test_stages_and_tensor_ranks_hold_the_whole_model(name: str) -> None:
    shape = catalog.model(name)
    stages = [Setup(shape, parallel=Split(pp=2, pipeline_stage=stage)) for stage in (0, 1)]
    halves = sum(float(total(parts(dims(setup)))) for setup in stages)
    twice = catalog.params(shape)["embeddings"] if shape.tied_embeddings else 0
    uneven = shape.layers % 2 and catalog.total(shape) / shape.layers
    assert halves == pytest.approx(catalog.total(shape) + twice + uneven, rel=0.002)


def test_adapters_of_queries_and_values() -> None:
    assert adapters(LLAMA, Lora(16)) == 32 * 16 * (4096 + 4096 + 4096 + 1024)


def test_a_fused_projection_is_adapted_by_the_names_of_its_pieces() -> None:
    assert adapters(catalog.model("gpt-neox-20b"), Lora(8)) == 44 * 8 * (6144 + 3 * 6144)


def test_quantised_weights_are_half_a_byte_and_their_constants() -> None:
    found = peak(LORA.but(quantized="nf4"))
    linear = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    rest = 2 * (MISTRAL.params - linear) + 4 * adapters(MISTRAL, Lora(16, ATTENTION))
    assert found.breakdown["weights"] == pytest.approx(
        linear * (0.5 + 1 / 64 + 4 / 64 / 256) + rest, rel=1e-3
    )


def test_offloaded_states_are_not_on_the_gpu() -> None:
    sharded = Setup(LLAMA, 4096, recipe="deepspeed", parallel=Split(dp=4, sharding="zero3"))
    assert "optimizer" in peak(sharded).breakdown
    assert not {"optimizer", "master_weights"} & set(
        peak(sharded.but(offload="optimizer")).breakdown
    )
    assert peak(sharded.but(offload="all")).breakdown.get("weights", 0) == 0


def test_an_optimizer_inside_the_backward_pass_keeps_no_gradients() -> None:
    inside = Setup(
        LLAMA, 2048, checkpointing="full", optimizer="adamw-fused", optimizer_in_backward=True
    )
    saved = peak(inside.but(optimizer_in_backward=False)).allocated - peak(inside).allocated
    assert saved > 0.5 * 2 * LLAMA.params


def test_the_last_stage_has_the_logits_and_the_peak_may_be_there() -> None:
    piped = Setup(LLAMA, 4096, accumulation=8, checkpointing="full", parallel=Split(pp=4))
    found = peak(piped)
    assert found.breakdown.get("logits_loss") and found.notes == ("of pipeline stage 3",)


def test_a_full_gpu_makes_the_allocator_give_back_its_cache() -> None:
    free = peak(LORA)
    assert free.allocated <= free.least < free.reserved
    tight = peak(LORA, (free.least + free.reserved) // 2)
    assert tight.oom == "" and tight.reserved < free.reserved
    assert peak(LORA, free.least - 1).oom == free.operation


def test_expandable_segments_reserve_little_more_than_is_allocated() -> None:
    assert peak(LORA.but(allocator="expandable_segments:True")).reserved < peak(LORA).reserved


def test_a_model_without_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match="dimensions of mine are not known"):
        peak(Setup(ModelShape("mine")))


def test_an_unknown_count_is_refused() -> None:
    with pytest.raises(TypeError, match="pipelines"):
        peak_bytes(LORA, pipelines=2)


MODELS = ("llama-3.2-1b", "qwen3-8b", "mixtral-8x7b", "gpt2", "gemma-2-2b")
COUNTS = st.sampled_from([1, 2, 4, 8])
SETUPS = st.builds(
    Setup,
    model=st.sampled_from(
        [
            catalog.model(name)
            for name in ("llama-3.2-1b", "qwen3-8b", "mixtral-8x7b", "gpt2", "gemma-2-2b")
        ]
    ),
    seq=st.sampled_from([512, 2048, 8192]),
    micro_batch=COUNTS,
    accumulation=COUNTS,
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    optimizer=st.sampled_from(OPTIMIZERS),
    attention=st.sampled_from(ATTENTIONS),
    checkpointing=st.sampled_from(RECOMPUTES),
    loss=st.sampled_from(LOSSES),
    lora=st.one_of(
        st.none(),
        st.builds(Lora, rank=st.sampled_from([8, 64]), dtype=st.sampled_from(["fp32", "bf16"])),
    ),
    recipe=st.sampled_from(["transformers", "torchtitan", "megatron", "deepspeed", "plain"]),
    parallel=st.builds(
        Split, dp=st.sampled_from([2, 8]), tp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2])
    ),
)


SECOND_STAGE_RESERVES_MORE = Setup(
    catalog.model("gpt2"),
    seq=8192,
    dtype="bf16",
    attention="eager",
    checkpointing="selective",
    loss="plain",
    recipe="transformers",
    parallel=Split(dp=2, pp=2),
)


@settings(max_examples=150)
@given(SETUPS)
def test_what_holds_for_every_setup(setup: Setup) -> None:
    found = peak(setup)
    assert sum(found.breakdown.values()) == found.allocated
    assert found.allocated <= found.least <= found.reserved
    assert max(found.phases.values()) == found.allocated
    assert all(size >= 0 for size in found.breakdown.values())


@settings(max_examples=100)
@given(SETUPS, st.sampled_from(["seq", "micro_batch", "accumulation"]))
@example(SECOND_STAGE_RESERVES_MORE, "accumulation")
def test_more_tokens_never_need_less(setup: Setup, what: str) -> None:
    more = setup.but(**{what: 2 * getattr(setup, what)})
    assert peak(more).allocated >= peak(setup).allocated
    assert peak(more).reserved >= peak(setup).reserved


@settings(max_examples=100)
@given(SETUPS)
def test_each_stage_of_zero_needs_no_more_than_the_one_before(setup: Setup) -> None:
    """Of all engines but DeepSpeed, whose second stage copies its bucket of 1 GB, and whose third
    keeps up to 1.1 GB of gathered weights.
    """
    stages = ["zero1", "zero2", "zero3"]
    sizes = [peak(setup.but(sharding=sharding, recipe="megatron")).allocated for sharding in stages]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=100)
@given(SETUPS)
def test_checkpointing_keeps_less(setup: Setup) -> None:
    sizes = [peak(setup.but(checkpointing=kind)).allocated for kind in ("none", "full")]
    assert sizes[1] <= sizes[0] * 1.02


@settings(max_examples=60)
@given(SETUPS.filter(lambda setup: setup.lora is not None))
def test_a_larger_rank_never_needs_less(setup: Setup) -> None:
    assert setup.lora is not None
    larger = Lora(2 * setup.lora.rank, setup.lora.targets, setup.lora.dtype)
    assert peak(setup.but(lora=larger)).allocated >= peak(setup).allocated


@settings(max_examples=40)
@given(SETUPS, st.lists(st.tuples(COUNTS, COUNTS, COUNTS), min_size=1, max_size=6))
def test_arrays_give_what_single_setups_give(
    setup: Setup, rows: list[tuple[int, int, int]]
) -> None:
    setup = setup.but(pp=1)
    micro_batch, tp, dp = (np.array(column) for column in zip(*rows, strict=True))
    found = peak_bytes(setup, micro_batch=micro_batch, tp=tp, dp=dp)
    single = [peak(setup.but(micro_batch=a, tp=b, dp=c)).allocated for a, b, c in rows]
    assert np.allclose(found, single, rtol=1e-9, atol=8)


def test_quantised_experts_come_with_the_version_they_are_true_of() -> None:
    setup = Setup(catalog.model("mixtral-8x7b"), lora=Lora(), quantized="nf4")
    assert any("version 5" in note for note in peak(setup).notes)
    assert not peak(setup.but(quantized="")).notes


@pytest.mark.parametrize(
    ("cells", "replayed_gib"),
    [
        ({"attention": "eager", "micro_batch": 2}, 30.27),
        ({"attention": "eager", "micro_batch": 8}, 94.42),
        ({"attention": "sdpa", "micro_batch": 8}, 47.59),
        ({"attention": "sdpa", "micro_batch": 8, "checkpointing": "full"}, 14.73),
    ],
)
def test_gpt2_as_replayed(cells: dict[str, Any], replayed_gib: float) -> None:
    found = peak(Setup(model=catalog.model("gpt2-xl"), seq=1024, **cells))
    assert found.allocated / 2**30 == pytest.approx(replayed_gib, rel=0.02)


def test_a_loss_over_tensor_ranks_makes_its_gradient_in_fp32() -> None:
    """``torch/distributed/tensor/parallel/loss.py``; Megatron-LM's own writes over its logits."""

    def loss(tp: int) -> float:
        shape = catalog.model("llama-3-8b")
        parallel = Split(tp=tp, sequence_parallel=tp > 1)
        setup = Setup(shape, seq=8192, recipe="torchtitan", attention="flash", parallel=parallel)
        return peak(setup).breakdown["logits_loss"]

    assert loss(1) / 2 < loss(2) < loss(1)


def test_fsdp2_has_pools_of_its_own() -> None:
    """Segments that no other stream fills: more is reserved than is ever allocated at once,
    expandable or not.
    """

    def beyond(sharding: str) -> int:
        found = peak(
            Setup(
                model=catalog.model("llama-3-8b"),
                seq=2048,
                weights="fp32",
                recipe="torchtitan",
                checkpointing="full",
                allocator="expandable_segments:True",
                parallel=Split(dp=8, sharding=sharding),
            )
        )
        return found.reserved - found.allocated

    assert beyond("fsdp2") > 2 * beyond("zero2")
