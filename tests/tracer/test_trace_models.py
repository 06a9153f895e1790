"""Traces of small models: what is held, for what, for how long, against what the sizes of their
tensors say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from libraries import needs

from gputop_analysis.vram.deepen import deepen
from gputop_analysis.vram.eventlog import EventLog, parse
from gputop_analysis.vram.replay import peak

pytestmark = needs("torch", "transformers")

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCAB, SEQ, ROWS = 256, 6, 4, 2, 512, 4000, 128, 2
TOKENS = SEQ * ROWS
SHAPE = {
    "name": "small",
    "family": "llama",
    "hidden": HIDDEN,
    "layers": LAYERS,
    "heads": HEADS,
    "kv_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS,
    "ffn": FFN,
    "vocab": VOCAB,
    "max_position": SEQ,
}
WEIGHTS = VOCAB * HIDDEN * 2 + HIDDEN + LAYERS * (HIDDEN * (3 * HIDDEN + 3 * FFN) + 2 * HIDDEN)
"""Values: two embeddings, the last norm, and in a layer q, o, half of k and v each, the MLP's
three, two norms.
"""
Trace = Callable[..., EventLog]


@pytest.fixture(scope="module")
def traced() -> Trace:
    from gputop_tracer import model_trace

    known: dict[str, EventLog] = {}

    def trace(full: bool = False, **options: Any) -> EventLog:
        setup = {
            "model": SHAPE,
            "seq": SEQ,
            "micro_batch": ROWS,
            "dtype": "bf16",
            "optimizer": "adamw",
            **options,
        }
        key = repr((full, sorted(options.items())))
        if key not in known:
            tracker = model_trace.trace(setup, full=full)
            known[key] = parse(tracker.log.document(tracker.meta))
        return known[key]

    return trace


def initial(log):
    """The storages that are made before the first step: what holds the weights."""
    first = next(at for at, phase, _ in log.marks if phase != "init")
    return [event for event in log.events[:first] if event > 0]


def live(log: EventLog, phase: str, step: int = 1) -> Counter[str]:
    """Bytes by category when a phase of a step begins."""
    position = next(at for at, name, number in log.marks if (name, number) == (phase, step))
    found: Counter[str] = Counter()
    for index in log.live(position):
        found[log.strings[log.category[index]]] += log.bytes[index]
    return found


def test_every_storage_is_made_once_and_freed_at_most_once(traced: Trace) -> None:
    log = traced()
    assert [event for event in log.events if event > 0] == list(range(1, len(log.bytes)))
    freed = [-event for event in log.events if event < 0]
    assert len(set(freed)) == len(freed)
    born = {storage: at for at, storage in enumerate(log.events) if storage > 0}
    assert all(born[-event] < at for at, event in enumerate(log.events) if event < 0)


def test_weights_gradients_and_states_are_as_large_as_the_parameters(traced: Trace) -> None:
    log = traced(full=True)
    assert log.meta["parameters"] == WEIGHTS
    held = live(log, "clip")
    assert held["gradients"] == 2 * WEIGHTS
    assert held["optimizer"] == pytest.approx(2 * 2 * WEIGHTS, rel=0.001)
    assert held["weights"] == pytest.approx(2 * WEIGHTS, rel=0.001)


def test_foreach_adamw_peaks_at_five_times_the_weights(traced: Trace) -> None:
    held = peak(traced(full=True, checkpointing="full", seq=8))
    assert held.operation.startswith("optimizer: ")
    assert held.allocated - 2 * 8_519_680 == pytest.approx(5 * 2 * WEIGHTS, rel=0.01)


def test_checkpointing_keeps_the_input_of_each_layer_and_no_more(traced: Trace) -> None:
    log = traced(full=True, checkpointing="full")
    begins = next(at for at, name, step in log.marks if (name, step) == ("loss", 1))
    alive = log.live(begins)
    kept = [i for i in alive if log.strings[log.category[i]] == "activations" and log.layer[i] >= 0]
    # A layer's output is the next one's input; the first one's is the embedding's, the last one's
    # goes to the norm.
    assert sorted(log.bytes[i] for i in kept) == [2 * TOKENS * HIDDEN] * (LAYERS - 1)


def test_unfused_loss_takes_twelve_bytes_a_token_and_vocabulary_entry(traced: Trace) -> None:
    log = traced(
        full=True, optimizer="none", checkpointing="full", lora={"rank": 4, "targets": ["q_proj"]}
    )
    held = peak(log)
    assert held.operation == "backward: loss: _log_softmax_backward_data"
    assert held.breakdown["logits_loss"] == pytest.approx(12 * TOKENS * VOCAB, rel=0.02)


def test_older_transformers_copy_the_shifted_logits(traced: Trace) -> None:
    options = {
        "full": True,
        "optimizer": "none",
        "checkpointing": "full",
        "lora": {"rank": 4, "targets": ["q_proj"]},
    }
    older = peak(traced(transformers="4.48.1", **options))
    assert older.operation.startswith("loss: loss:")
    assert older.allocated > peak(traced(**options)).allocated
    assert older.breakdown["logits_loss"] == pytest.approx(14 * TOKENS * VOCAB, rel=0.02)


@pytest.mark.parametrize("kind", ["fused", "chunked"])
def test_other_losses_need_less_than_the_plain_one(traced: Trace, kind: str) -> None:
    plain, other = (
        max(
            size
            for phase, size in peak(traced(loss=loss, checkpointing="full")).phases.items()
            if phase == "loss"
        )
        for loss in ("plain", kind)
    )
    assert other < plain


def test_a_trace_of_four_layers_stands_for_all(traced: Trace) -> None:
    for options in (
        {},
        {"checkpointing": "full"},
        {"lora": {"rank": 4, "targets": ["q_proj", "v_proj"]}},
    ):
        few, all_layers = traced(**options), traced(full=True, **options)
        assert few.meta["layers"] == 4 and few.meta["depth"] == LAYERS
        assert peak(deepen(few, LAYERS)).allocated == peak(all_layers).allocated


def test_adapters_alone_are_trained(traced: Trace) -> None:
    rank = 4
    log = traced(full=True, lora={"rank": rank, "targets": ["q_proj", "o_proj"], "dtype": "fp32"})
    values = LAYERS * 2 * rank * 2 * HIDDEN
    assert log.meta["trained"] == values
    assert live(log, "clip")["gradients"] == 4 * values
    assert live(log, "clip")["optimizer"] == pytest.approx(2 * 4 * values, rel=0.05)


def test_nf4_holds_half_a_byte_and_its_constants(traced: Trace) -> None:
    log = traced(full=True, quantized="nf4", lora={"rank": 4, "targets": ["q_proj"]})
    linear = LAYERS * HIDDEN * (3 * HIDDEN + 3 * FFN)
    rest = WEIGHTS - linear
    adapters = 4 * log.meta["trained"]
    expected = linear // 2 + linear // 64 + linear // 64 // 256 * 4 + 2 * rest + adapters
    assert live(log, "forward")["weights"] == pytest.approx(expected, rel=0.02)


def test_the_layers_of_gpt2_are_quantised_and_adapted_by_the_names_that_it_has(
    traced: Trace,
) -> None:
    shape = {**SHAPE, "family": "gpt2", **FAMILIES["gpt2"]}
    log = traced(model=shape, quantized="nf4", lora={"rank": 4, "targets": ["q_proj", "v_proj"]})
    traced_layers = log.meta["layers"]
    of_a_layer = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN
    packed = [
        log.bytes[i]
        for i in initial(log)
        if log.strings[log.category[i]] == "weights" and log.layer[i] >= 0
    ]
    assert sum(packed) == pytest.approx(traced_layers * of_a_layer * (1 / 2 + 1 / 64), rel=0.1)
    assert log.meta["trained"] == traced_layers * 4 * (HIDDEN + 3 * HIDDEN)


def test_what_a_model_keeps_in_fp32_is_not_quantised(traced: Trace) -> None:
    shape = {**SHAPE, "family": "t5", **FAMILIES["t5"]}
    log = traced(model=shape, quantized="nf4", lora={"rank": 4, "targets": ["q", "v"]})
    weights = [i for i in initial(log) if log.strings[log.category[i]] == "weights"]
    of_wo = [log.bytes[i] for i in weights if log.strings[log.module[i]].endswith(".wo")]
    assert of_wo == [2 * HIDDEN * FFN] * 4  # in each layer of both stacks


def test_adapters_for_layers_that_a_model_has_not_are_refused(traced: Trace) -> None:
    with pytest.raises(ValueError, match="no layer of LlamaForCausalLM is called c_fc"):
        traced(lora={"rank": 4, "targets": ["c_fc"]})


def test_eager_attention_holds_the_scores_and_sdpa_does_not(traced: Trace) -> None:
    squares = {
        attention: max(
            int(log.bytes[i])
            for i in range(1, len(log.bytes))
            if "self_attn" in log.strings[log.module[i]]
        )
        for attention in ("eager", "sdpa")
        for log in [traced(attention=attention, seq=512, micro_batch=1)]
    }
    assert squares["eager"] == HEADS * 512 * 512 * 4  # the softmax runs in fp32
    assert squares["sdpa"] <= 512 * HIDDEN * 4  # the backward of FlashAttention sums dq in fp32


def test_autocast_keeps_weights_in_fp32_and_products_in_bf16(traced: Trace) -> None:
    log = traced(full=True, weights="fp32")
    assert live(log, "clip")["weights"] == pytest.approx(4 * WEIGHTS, rel=0.001)
    logits = [i for i in range(1, len(log.bytes)) if log.strings[log.module[i]] == "lm_head"]
    assert 2 * TOKENS * VOCAB in [log.bytes[i] for i in logits]


def test_master_weights_are_an_fp32_copy(traced: Trace) -> None:
    held = live(traced(master_weights=True, full=True), "clip")
    assert held["master_weights"] == 4 * WEIGHTS
    assert held["optimizer"] == pytest.approx(2 * 4 * WEIGHTS, rel=0.001)


def test_an_update_in_the_backward_never_holds_all_gradients(traced: Trace) -> None:
    log = traced(full=True, optimizer_in_backward=True)
    assert (
        live(log, "clip" if any(name == "clip" for _, name, _ in log.marks) else "optimizer")[
            "gradients"
        ]
        == 0
    )
    assert peak(log).allocated < peak(traced(full=True)).allocated


@pytest.mark.parametrize(
    ("name", "bytes_a_value"),
    [("adamw-8bit", 2.0), ("lion", 4.0), ("sgd", 0.0), ("sgd-momentum", 2.0), ("muon", 2.0)],
)
def test_states_of_optimizers(traced: Trace, name: str, bytes_a_value: float) -> None:
    log = traced(full=True, optimizer=name)
    embedding = VOCAB * HIDDEN
    expected = bytes_a_value * WEIGHTS
    if name == "adamw-8bit":
        expected += (8 - 2) * embedding + 2 * 4 * (WEIGHTS - embedding) / 256
    if name == "muon":
        expected += 2 * 2 * embedding - 0
    assert live(log, "clip")["optimizer"] == pytest.approx(expected, rel=0.02, abs=4096)


def test_an_unknown_optimizer_is_named(traced: Trace) -> None:
    with pytest.raises(ValueError, match="no optimizer adamax"):
        traced(optimizer="adamax")


def test_what_has_no_signature_is_refused(traced: Trace) -> None:
    with pytest.raises(ValueError, match="Megatron-LM runs modules of its own"):
        traced(recipe="megatron")
    gpt2 = traced(kernels=True, full=True, model={**SHAPE, "family": "gpt2", **FAMILIES["gpt2"]})
    assert any("no fused norms fit GPT2LMHeadModel" in note for note in gpt2.meta["notes"])
    assert any("torch.compile" in note for note in traced(full=True, compile=True).meta["notes"])


def test_fused_kernels_keep_the_inputs_of_products_and_little_else(traced: Trace) -> None:
    """Of a layer: its input and the sum after attention; of q, k, v, o, gate, up and down what they
    are given and give where attention or the gated product needs it; and one fp32 value a row of
    each norm and of attention.
    """
    log = traced(full=True, kernels=True)
    layer = 2 * TOKENS * (2 * HIDDEN + 2 * HIDDEN + (HIDDEN + 2 * HIDDEN // 2) + HIDDEN + 3 * FFN)
    rows = 4 * TOKENS * (2 + HEADS) + 24  # and the seed and offset of attention's dropout
    first = next(at for at, name, step in log.marks if (name, step) == ("loss", 1))
    alive = log.live(first)
    kept = [i for i in alive if log.strings[log.category[i]] == "activations" and log.layer[i] == 2]
    assert sum(log.bytes[i] for i in kept) == layer + rows


def test_a_fused_cross_entropy_holds_one_fp32_copy_of_the_logits(traced: Trace) -> None:
    options = {
        "full": True,
        "optimizer": "none",
        "checkpointing": "full",
        "lora": {"rank": 4, "targets": ["q_proj"]},
    }
    held = peak(traced(kernels=True, **options))
    assert held.breakdown["logits_loss"] == pytest.approx((2 + 4) * TOKENS * VOCAB, rel=0.05)


def test_offloaded_activations_are_not_held(traced: Trace) -> None:
    plain, offloaded = (
        live(traced(full=True, offload_activations=flag), "backward") for flag in (False, True)
    )
    assert offloaded["activations"] < plain["activations"] / 2


FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": {},
    "mixtral": {"experts": 4, "top_k": 2, "moe_ffn": FFN},
    "gpt2": {"kv_heads": HEADS, "gated_mlp": False},
    "bert": {"kv_heads": HEADS, "token_types": 2},
    "t5": {"kv_heads": HEADS, "layers": 2},
    "vit": {"kv_heads": HEADS, "layers": 2},
    "clip": {"layers": 2},
    "qwen2_5_vl": {
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 128,
        "vision_layers": 2,
        "vision_hidden": 64,
        "vision_heads": 2,
        "vision_ffn": 128,
        "vision_patch": 14,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_trace(traced: Trace, family: str) -> None:
    log = traced(
        model={**SHAPE, "family": family, **FAMILIES[family]},
        images=1,
        image_size=112,
        checkpointing="full",
    )
    held = peak(log)
    assert held.breakdown["weights"] >= 2 * log.meta["parameters"]
    assert sum(held.breakdown.values()) == held.allocated
    assert {"forward", "backward", "optimizer"} <= set(held.phases)


def test_experts_that_an_older_version_quantised_are_left_to_the_formula() -> None:
    from gputop_tracer import model_trace

    setup = {"quantized": "nf4", "transformers": "4.48.1", "model": {"experts": 8}}
    with pytest.raises(ValueError, match="quantised each expert by itself"):
        model_trace.refuse(setup)
    assert (
        model_trace.refuse({**setup, "transformers": ""})
        == model_trace.refuse({**setup, "quantized": ""})
        == []
    )
