"""What the formula says of single mechanisms, against traces of the same training and against
sources.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gputop.tracing import trace
from gputop_analysis import catalog
from gputop_analysis.parallelism.split import Split
from gputop_analysis.vram.adapters import adapters
from gputop_analysis.vram.allocator import Allocator
from gputop_analysis.vram.formula import peak
from gputop_analysis.vram.formula.activations import mlp_kept
from gputop_analysis.vram.formula.dims import dims
from gputop_analysis.vram.formula.habits import habits
from gputop_analysis.vram.formula.loss import loss
from gputop_analysis.vram.formula.reserved import VARIED
from gputop_analysis.vram.formula.unread import unread_gradients
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.replay import peak as replayed
from gputop_analysis.vram.setup import Lora, ModelShape, Setup

DEEP = ModelShape("deep", "llama", 512, 16, 8, 8, 64, 512, 256, max_position=8192)
FSDP1 = Split(dp=4, sharding="fsdp1")
ATTENTION = Lora(8, ("q_proj", "k_proj", "v_proj", "o_proj"), dtype="bf16")
SHARDED = Setup(
    DEEP, 4096, 4, checkpointing="full", attention="flash", autocast=True, parallel=FSDP1
)
PLAIN = Setup(
    ModelShape("wide", "gpt2", 256, 2, 4, 4, 64, 1024, 50_000, max_position=512, gated_mlp=False),
    512,
    8,
    recipe="plain",
)
LLAMA = catalog.model("llama-3-8b")
QLORA = Setup(LLAMA, lora=Lora(targets=("all-linear",), dropout=0.05), quantized="nf4")


def test_fsdp1_keeps_inputs_and_their_gradients_of_frozen_units_until_the_backward_ends():
    """One boundary of a layer is tokens x hidden x 2 bytes: by the end of the backward frozen units
    hold two of each.
    """
    boundary = SHARDED.tokens * DEEP.hidden * 2
    frozen = SHARDED.but(lora=ATTENTION, transformers="4.48")
    in_units = frozen.but(transformers="4.52")
    by_phase = dict(peak(frozen).timeline)
    ends = [dict(peak(one).timeline)[0.95] for one in (frozen, frozen.but(sharding="fsdp2"))]
    assert ends[0] - ends[1] == pytest.approx(2 * boundary * (DEEP.layers - 1), rel=0.05)
    assert by_phase[0.95] == peak(frozen).allocated > peak(in_units).allocated


def test_gradients_of_several_micro_batches_wait_whole_under_no_sync():
    """Those of frozen weights, too, where FSDP1 flattens them with adapters: as a trace has it."""
    pytest.importorskip("transformers")
    setup = SHARDED.but(seq=512, lora=ATTENTION, recipe="plain", autocast=False, accumulation=2)
    traced = replayed(trace(setup, progress=lambda _: None))
    assert traced.allocated == pytest.approx(peak(setup).allocated, rel=0.08)
    weights = 2 * peak(setup.but(sharding="none", dp=1)).breakdown["weights"] / 2
    more = peak(setup).allocated - peak(setup.but(recipe="torchtitan")).allocated
    assert more == pytest.approx(weights, rel=0.2)


def test_batches_of_varying_length_cut_the_segments_of_the_loss():
    """A replay of 20 steps whose logits have a length of their own reserves some three times as
    much as one of the longest.
    """
    assert _segments(lengths=[2048] * 20) < 16 * 2048 * 50_000
    lengths = [random.Random(seed).randint(64, 2048) for seed in range(20)]
    ratio = _segments(lengths=[*lengths, 2048]) / _segments(lengths=[2048])
    assert ratio == pytest.approx(VARIED, rel=0.35)
    setup = Setup(LLAMA, lora=ATTENTION, checkpointing="full", lengths="varied")
    fixed = setup.but(lengths="fixed")
    assert peak(setup).allocated == peak(fixed).allocated
    assert peak(setup).reserved > peak(fixed).reserved + 2 * 12 * setup.tokens * LLAMA.vocab


def _segments(lengths: list[int], vocabulary: int = 50_000) -> int:
    """Bytes reserved after steps of a causal loss in fp32, each over so many tokens."""
    allocator = Allocator()
    for tokens in lengths:
        entries = tokens * vocabulary
        low, logits = (allocator.malloc(width * entries, 0) for width in (2, 4))
        allocator.free(low)
        shifted, softmax = (allocator.malloc(4 * entries, 0) for _ in range(2))
        for block in (shifted, logits):
            allocator.free(block)
        likelihood, gradient = (allocator.malloc(4 * entries, 0) for _ in range(2))
        for block in (likelihood, softmax):
            allocator.free(block)
        whole = allocator.malloc(4 * entries, 0)
        allocator.free(gradient)
        low = allocator.malloc(2 * entries, 0)
        for block in (whole, low):
            allocator.free(block)
    return allocator.stats.peak_reserved


def test_experts_that_are_modules_come_one_after_the_other():
    mixtral = Setup(catalog.model("mixtral-8x7b"), 4096, 4, checkpointing="full", loss="fused")
    grouped, single = (
        peak(mixtral.but(lora=ATTENTION, transformers=one)) for one in ("5.0", "4.48")
    )
    gradients = 3 * 2 * 2 * 14336 * mixtral.tokens
    assert grouped.allocated - single.allocated == pytest.approx(7 / 8 * gradients, rel=0.02)


def test_weights_that_are_not_resharded_stay_gathered():
    kept = Setup(LLAMA, parallel=Split(dp=8, sharding="fsdp2"), checkpointing="full")
    stays = kept.but(reshard_after_forward=False)
    gathered = [peak(one).breakdown["communication"] for one in (kept, stays)]
    assert gathered[1] >= 0.8 * 7 / 8 * 2 * LLAMA.params > 2 * gathered[0]


def test_an_old_bitsandbytes_keeps_the_inputs_of_four_bit_layers():
    """Two inputs of the width of the model and one of the MLP's, of 16 bits, for each layer and
    token.
    """
    more = peak(QLORA.but(bitsandbytes="0.41")).allocated - peak(QLORA).allocated
    expected = 2 * (2 * LLAMA.hidden + LLAMA.ffn) * QLORA.tokens * LLAMA.layers
    assert more == pytest.approx(expected, rel=0.15)
    assert peak(QLORA.but(bitsandbytes="0.43.1")).allocated > peak(QLORA).allocated
    for release in ("0.43.2", "0.43", "0.44"):
        assert peak(QLORA.but(bitsandbytes=release)).allocated == peak(QLORA).allocated


def test_one_quantisation_of_constants_keeps_fp32_ones():
    """4 bytes a block of 64 weights, instead of 1 and 4 a block of 256 blocks."""
    once = QLORA.but(double_quant=False)
    weights = [peak(one).breakdown["weights"] for one in (once, QLORA)]
    linear = LLAMA.params - 2 * LLAMA.vocab * LLAMA.hidden
    expected = linear * (3 / 64 - 4 / (64 * 256))
    assert weights[0] - weights[1] == pytest.approx(expected, rel=0.01)


SMALL = ModelShape("small", "llama", 1024, 6, 8, 8, 128, 2048, 64_000, max_position=8192)
LITGPT = Setup(
    SMALL,
    1024,
    lora=Lora(8, ("q_proj", "k_proj", "v_proj", "o_proj"), "bf16", 0.05),
    loss="chunked",
    recipe="litgpt",
)


@pytest.mark.parametrize(
    "setup",
    [
        LITGPT,
        LITGPT.but(micro_batch=4),
        LITGPT.but(lora=None, loss="plain"),
        LITGPT.but(quantized="nf4", double_quant=False),
        LITGPT.but(quantized="nf4", double_quant=False, bitsandbytes="0.42.0"),
    ],
    ids=["lora", "rows", "full", "nf4", "inputs kept"],
)
def test_litgpt_holds_fp32_logits_and_what_its_last_step_left(setup: Setup):
    """Fabric raises what a model gives back, quantises the head as well and dequantises through
    fp16; the loop holds the last step's logits, and what 4-bit layers of their graph kept.
    """
    pytest.importorskip("transformers")
    traced = replayed(trace(setup, progress=lambda _: None))
    assert peak(setup).allocated == pytest.approx(traced.allocated, rel=0.02)


def test_what_a_last_step_left_is_none_where_its_batch_was_longer():
    old = LITGPT.but(quantized="nf4", bitsandbytes="0.42.0")
    held = peak(old).allocated - peak(old.but(lengths="varied")).allocated
    inputs = 2 * (2 * SMALL.hidden + SMALL.ffn) * old.tokens * SMALL.layers
    assert held == pytest.approx(inputs, rel=0.05)


@pytest.mark.parametrize("name", [shape.name for shape in catalog.models() if shape.heads])
def test_lora_finds_its_layers_in_every_family(name: str):
    """Named as in Llama or by a family's own names: queries and the last matrix of an MLP are
    adapted everywhere.
    """
    shape = catalog.model(name)
    attention = adapters(shape, Lora(8, ("q_proj", "k_proj", "v_proj", "o_proj")))
    mlp = adapters(shape, Lora(8, ("gate_proj", "up_proj", "down_proj")))
    everything = adapters(shape, Lora(8, ("all-linear",)))
    assert attention and mlp and attention + mlp <= everything
    if not shape.mla_kv_rank:
        assert attention + mlp == everything


def test_modules_to_save_are_trained_in_full():
    """A copy, its gradient, two moments and AdamW's one temporary, 2 bytes each: 10 for each
    parameter.
    """
    plain = Setup(LLAMA, 512, checkpointing="full", lora=ATTENTION, loss="fused")
    saved = plain.but(modules_to_save=("embeddings", "head"))
    more = peak(saved).phases["optimizer"] - peak(plain).phases["optimizer"]
    assert more == pytest.approx(10 * 2 * LLAMA.vocab * LLAMA.hidden, rel=0.01)


def test_a_loop_of_ones_own_takes_its_softmax_as_it_is():
    """Scores, their dropped copy and its mask in 16 bits; autocast runs their softmax in fp32, and
    that of the loss.
    """
    setup = Setup(catalog.model("gpt2"), 1024, recipe="plain", attention="eager", dropout=0.1)
    values = setup.seq**2 * 12 * 12  # of all heads and layers
    scores = peak(setup).allocated - peak(setup.but(attention="sdpa")).allocated
    assert scores == pytest.approx(5 * values, rel=0.05)
    cast = peak(setup.but(autocast=True)).allocated - peak(setup).allocated
    of_loss = 4 * setup.seq * setup.model.vocab
    assert cast == pytest.approx(4 * values + of_loss, rel=0.05)


@pytest.mark.parametrize(
    ("setup", "each"),
    [
        (PLAIN, 8),
        (PLAIN.but(autocast=True), 12),
        (PLAIN.but(weights="fp32"), 12),
        (PLAIN.but(dtype="fp32"), 16),
    ],
    ids=["16 bits", "autocast", "fp32 weights", "fp32"],
)
def test_a_loss_over_whole_logits_in_a_loop_of_ones_own(setup: Setup, each: int):
    """The logits, their log softmax and two gradients, each in its type: bytes of an entry."""
    logits = setup.seq * setup.micro_batch * setup.model.vocab
    assert peak(setup).breakdown["logits_loss"] == pytest.approx(each * logits, rel=0.01)


@pytest.mark.parametrize(
    ("name", "gib", "tokens"),
    [
        ("llama-3.1-8b", 12, 21_848),
        ("llama-3.1-8b", 24, 78_475),
        ("llama-3.1-8b", 80, 342_733),
        ("llama-3.3-70b", 80, 89_389),
    ],
)
def test_unsloths_kernels_work_in_place(name, gib, tokens):
    """The longest context of QLoRA r32 on all linear layers that its README (December 2024) gives
    for a GPU of so many GB.
    """
    setup = Setup(
        catalog.model(name),
        tokens,
        quantized="nf4",
        lora=Lora(32, ("all-linear",)),
        optimizer="adamw-8bit",
        attention="flash",
        checkpointing="full",
        offload_activations=True,
        recipe="unsloth",
    )
    found = estimate(setup, "formula")
    assert found.device_total == pytest.approx(gib * 1e9, rel=0.08)
    plain = estimate(setup.but(recipe="transformers", kernels=True, loss="fused"), "formula")
    assert plain.peak.allocated > 1.2 * found.peak.allocated


@pytest.mark.parametrize(("sharding", "gradients"), [("zero1", 2), ("zero2", 0), ("zero3", 0)])
def test_deepspeed_sends_its_share_of_the_gradients_to_the_host(sharding, gradients):
    """With the optimizer offloaded, of all parameters on one GPU; stage 1 keeps them for its
    reduction.
    """
    split = Split(sharding=sharding, offload="optimizer")
    found = peak(Setup(LLAMA, 256, checkpointing="full", recipe="deepspeed", parallel=split))
    held = found.breakdown.get("gradients", 0)
    assert held == pytest.approx(gradients * LLAMA.params, rel=0.01)


def test_deepspeeds_stage_2_takes_its_bucket_whatever_is_trained():
    setup = Setup(LLAMA, lora=ATTENTION, recipe="deepspeed", parallel=Split(dp=8, sharding="zero2"))
    buffers = {
        one: peak(setup.but(sharding=one, checkpointing="full")).breakdown.get("communication", 0)
        for one in ("zero1", "zero2")
    }
    assert buffers["zero1"] < 1e8 and (buffers["zero2"] >= 1e9 or buffers["zero2"] < 1e8)


@pytest.mark.parametrize("layers", [2, 40])
def test_deepspeeds_stage_3_keeps_what_is_near_its_next_use_and_a_bucket(layers):
    """30 and 230 million values: both whole at the turn from forward to backward."""
    pytest.importorskip("transformers")
    model = ModelShape("wide", "llama", 768, layers, 12, 12, 64, 2048, 8192, max_position=4096)
    zero3 = Split(dp=4, sharding="zero3")
    setup = Setup(model, 256, attention="sdpa", recipe="deepspeed", parallel=zero3)
    traced = replayed(trace(setup, progress=lambda _: None))
    assert peak(setup).allocated == pytest.approx(traced.allocated, rel=0.06)
    assert peak(setup).breakdown["communication"] > 1e9


def test_linear_inputs_are_kept_in_8_bits_under_fp8():
    """Transformer Engine: 1 byte in place of 2 for the inputs of qkv, fc1 and fc2, one more for
    proj's.
    """
    setup = Setup(LLAMA, 4096, recipe="megatron", attention="flash")
    less = peak(setup).allocated - peak(setup.but(dtype="fp8")).allocated
    width = 2 * LLAMA.hidden + LLAMA.ffn - LLAMA.heads * LLAMA.head_dim
    assert less == pytest.approx(width * setup.tokens * LLAMA.layers, rel=0.2)


def test_fsdp2_adds_gradients_up_whole_in_the_type_that_it_reduces_them_in():
    """Where several micro-batches wait: PyTorch's ``to_accumulated_grad_if_needed``."""
    split = Split(dp=32, sharding="fsdp2")
    setup = Setup(LLAMA, 2048, accumulation=4, recipe="plain", weights="bf16", parallel=split)
    weights = catalog.total(LLAMA)
    wider = peak(setup.but(grad_dtype="fp32")).allocated - peak(setup).allocated
    assert wider == pytest.approx(2 * weights, rel=0.1)
    alone = setup.but(accumulation=1)
    more = peak(alone.but(grad_dtype="fp32")).allocated - peak(alone).allocated
    assert more < 0.2 * weights


@pytest.mark.parametrize(
    ("recipe", "gathered"), [("transformers", True), ("plain", True), ("torchtitan", False)]
)
def test_logits_of_tensor_parallel_ranks_are_gathered_but_where_the_loss_is_parallel(
    recipe, gathered
):
    alone = Setup(LLAMA, 2048, recipe=recipe)
    split = alone.but(tp=8)
    of_token = [loss(dims(setup), habits(setup)).backward for setup in (alone, split)]
    assert (of_token[0] == of_token[1]) is gathered


MEGATRON = Setup(LLAMA, 4096, recipe="megatron", attention="flash")


def test_megatrons_gated_product_is_one_kernel_that_keeps_its_input_alone():
    """Of megatron-core 0.9's ``GPTModel`` the saved tensors of a layer are 6 bytes for each value
    of the MLP's width, 8 where its fusion is off (counted by ``saved_tensors_hooks``).
    """
    kept = {}
    for gated in (True, False):
        d = dims(MEGATRON.but(model=replace(LLAMA, gated_mlp=gated)))
        kept[gated] = mlp_kept(d, habits(d.setup), LLAMA.ffn) / LLAMA.ffn
    assert kept == {True: 6, False: 4}
    sharded = Split(dp=8, sharding="fsdp2")
    for by_hand in (MEGATRON.but(recipe="transformers"), MEGATRON.but(parallel=sharded)):
        d = dims(by_hand)
        assert mlp_kept(d, habits(by_hand), LLAMA.ffn) == 8 * LLAMA.ffn


def test_a_gradient_of_each_shape_that_nothing_reads_stays_under_megatron():
    """SimuMax measured four layers of Llama 3 405B with Megatron-LM on B200: 9.8 GiB more than
    states, activations and loss on one rank for the tensors, an eighth of it on eight.
    """
    model = ModelShape(
        "four layers", "llama", 16384, 4, 128, 16, 128, 53248, 128_256, tied_embeddings=False
    )
    setup = MEGATRON.but(model=model)
    alone = unread_gradients(dims(setup))
    assert alone / 2**30 == pytest.approx(9.8, rel=0.02)
    split = dims(setup.but(parallel=Split(tp=8)))
    assert unread_gradients(split) == pytest.approx(alone / 8)
    assert unread_gradients(dims(setup.but(transformer_engine="2.2"))) == 0
    assert unread_gradients(dims(setup.but(transformer_engine="2.3.0"))) == alone
    assert unread_gradients(dims(setup.but(lora=Lora()))) == 0
    assert unread_gradients(dims(setup.but(parallel=Split(dp=8, sharding="zero1")))) == alone
    assert unread_gradients(dims(setup.but(parallel=Split(dp=8, sharding="fsdp2")))) == 0
    assert unread_gradients(dims(setup.but(recipe="transformers"))) == 0


def test_experts_of_a_layer_share_one_such_gradient():
    moe = dims(MEGATRON.but(model=catalog.model("mixtral-8x7b")))
    dense = dims(MEGATRON.but(model=replace(catalog.model("mixtral-8x7b"), experts=0, top_k=0)))
    assert unread_gradients(moe) == unread_gradients(dense)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_configuration_without_dropout_keeps_no_masks(family):
    """GPT-2 and BERT drop by default: masks and masked scores are most of what eager keeps."""
    pytest.importorskip("transformers")
    shape = ModelShape(
        "small", family, 256, 4, 8, 8, 32, 1024, 512, max_position=1024, gated_mlp=False
    )
    drops = Setup(shape, 1024, 1, dtype="fp32", attention="eager", optimizer="sgd")
    without = drops.but(model=replace(shape, dropout=False))
    for setup in (drops, without):
        assert peak(setup).allocated == pytest.approx(replayed(trace(setup)).allocated, rel=0.06)
    assert peak(without).allocated < 0.8 * peak(drops).allocated
