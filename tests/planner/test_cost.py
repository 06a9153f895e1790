"""The cost model: parts that add up, bubbles, and what has to grow or shrink."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_analysis.catalog import model
from gputop_analysis.parallelism.split import chunk_layers
from gputop_analysis.planner import collectives, gemm, layers, memory, pipeline
from gputop_analysis.planner.adapters import adapter_bytes, dequantised_bytes
from gputop_analysis.planner.cost import Cost, cost
from gputop_analysis.planner.hardware import (
    CUT_SHARE,
    cluster,
    device,
    network_gbps,
    network_kind,
)
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.vram.setup import Lora

POWERS = st.sampled_from([1, 2, 4, 8])
LLAMA = Job(model("llama-3-8b"), seq=4096, global_batch=512)
MOE = Job(model("deepseek-v2"), seq=4096, global_batch=512)


@settings(max_examples=40)
@given(
    POWERS,
    POWERS,
    POWERS,
    POWERS,
    st.integers(0, 3),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([LLAMA, MOE]),
)
def test_every_part_is_a_time_and_they_add_up(tp, pp, dp, micro, zero, recompute, moe_split, job):
    ep = dp if moe_split and job is MOE else 1
    layouts = Layouts.of(
        tp=tp, pp=pp, dp=dp, ep=ep, micro_batch=micro, zero=zero, recompute=recompute
    )
    parts = cost(job, cluster("H100", tp * pp * dp), layouts)
    each = [float(getattr(parts, f.name)[0]) for f in fields(Cost)]
    assert all(np.isfinite(one) and one >= 0 for one in each)
    assert float(parts.seconds[0]) == pytest.approx(sum(each))
    assert each[0] > 0


def test_one_gpu_has_neither_communication_nor_bubble():
    parts = cost(LLAMA, cluster("H100", 1), Layouts.of(micro_batch=1))
    silent = (
        "tensor_parallel",
        "context_parallel",
        "expert_parallel",
        "pipeline",
        "bubble",
        "data_parallel",
    )
    assert [float(getattr(parts, name)[0]) for name in silent] == [0.0] * 6


@given(st.integers(1, 64), st.integers(1, 64), st.floats(1e-4, 10))
def test_bubble_of_equal_stages_is_that_of_the_paper(pp, micro, stage_s):
    bubble = pipeline.bubble_seconds(
        np.array([pp]), np.array([1]), pp * stage_s, stage_s, weight_gradient=0.0
    )
    assert float(bubble[0] / (micro * stage_s + bubble[0])) == pytest.approx(
        (pp - 1) / (micro + pp - 1)
    )


@given(st.integers(2, 16), st.integers(1, 8), st.floats(0.1, 1.0))
def test_interleaving_and_zero_bubble_shorten_the_bubble(pp, vpp, weight_share):
    ranks, stage_s = np.array([pp]), 3.0
    plain = pipeline.bubble_seconds(
        ranks, np.array([1]), pp * stage_s, stage_s, weight_gradient=weight_share
    )
    chunks = pipeline.bubble_seconds(
        ranks, np.array([vpp]), pp * stage_s, stage_s, weight_gradient=weight_share
    )
    moved = pipeline.bubble_seconds(
        ranks,
        np.array([1]),
        pp * stage_s,
        stage_s,
        weight_gradient=weight_share,
        zero_bubble="zero-bubble",
    )
    assert chunks[0] == pytest.approx(plain[0] / vpp)
    assert moved[0] == pytest.approx(plain[0] - (pp - 1) * weight_share)


@given(st.integers(1, 120), st.integers(1, 16), st.floats(0, 8))
def test_the_slowest_stage_of_equal_ones_holds_its_share(layer_count, pp, head):
    count, with_head = pipeline.slowest_stage(layer_count, np.array([pp]), np.array([head]), False)
    assert layer_count // pp <= count[0] <= -(-layer_count // pp)
    assert count[0] + with_head[0] * head >= layer_count / pp - 1e-9


@given(st.integers(1, 130), st.integers(1, 16), st.integers(1, 8))
def test_uneven_chunks_hold_every_layer_and_the_ends_lack_one_first(layers, pp, vpp):
    found = chunk_layers(layers, pp * vpp)
    assert sum(found) == layers and len(found) == pp * vpp
    assert max(found) - min(found) <= 1
    lacking = max(found) * pp * vpp - layers
    assert (found[-1] < max(found)) == (lacking >= 1)
    if pp * vpp > 1:
        assert (found[0] < max(found)) == (lacking >= 2)
    count, _ = pipeline.slowest_stage(layers, np.array([pp]), 0.0, False, np.array([vpp]))
    if lacking < pp:
        assert count[0] == -(-layers // pp)


@given(st.integers(1, 120), st.integers(1, 16), st.floats(0, 8))
def test_balanced_stages_are_never_slower_than_equal_ones(layer_count, pp, head):
    ranks = np.array([min(pp, layer_count)])
    took = []
    for balanced in (True, False):
        count, with_head = pipeline.slowest_stage(layer_count, ranks, np.array([head]), balanced)
        took.append(float(count[0] + with_head[0] * head))
    assert took[0] <= took[1] + 1 + 1e-9


@given(
    st.sampled_from(["A100", "H100", "B200", "V100", "4090"]),
    *[st.sampled_from([64, 256, 1024, 8192])] * 3,
)
def test_no_product_beats_the_peak_or_the_memory(name, m, k, n):
    chip = device(name)
    took = float(gemm.seconds(chip, np.array([m]), np.array([k]), np.array([n]), "fp16")[0])
    assert took >= 2 * m * k * n / chip.flops("fp16")
    assert took >= 2 * (m * k + k * n + m * n) / chip.bytes_per_s


def test_unaligned_rows_keep_off_the_tensor_cores():
    chip = device("A100")
    took = [
        gemm.seconds(chip, np.array([4096]), np.array([k]), np.array([4096]), "fp16")[0]
        for k in (4096, 4100)
    ]
    assert took[1] > 5 * took[0]


@given(st.sampled_from(["A100", "H100", "V100", "L40S"]), st.integers(2, 64), st.floats(1e3, 1e10))
def test_collectives_grow_with_the_message_and_never_beat_the_links(name, size, message):
    place = cluster(name, 64)
    group = collectives.group(place, size, 1)
    for kind, volume in ((collectives.all_reduce, 2), (collectives.all_gather, 1)):
        one, two = (float(kind(place, group, np.array([message * n]))[0]) for n in (1, 2))
        assert one < two
        assert one >= volume * message * (size - 1) / size / place.link_bytes_per_s


def test_all_reduce_agrees_with_what_was_measured_on_eight_a100():
    place = cluster("A100", 8)
    took = float(
        collectives.all_reduce(place, collectives.group(place, 8, 1), np.array([2.0**30]))[0]
    )
    assert took == pytest.approx(2 * 7 / 8 * 2**30 / 229.35e9, rel=0.05)


def test_strided_groups_share_the_nics():
    place = cluster("A100", 16)
    rates = [float(collectives.group(place, size, 16 // size).bytes_per_s) for size in (2, 4, 8)]
    assert rates[0] < rates[1] < rates[2]
    assert rates[1] / rates[0] == pytest.approx(2)


def test_a_collective_pays_its_latency_once_and_for_nodes_not_ranks():
    place = cluster("A100", 1024)
    whole = collectives.group(place, 1024, 1)
    rate = float(whole.gather_bytes_per_s)

    def latency(message):
        took = float(collectives.all_gather(place, whole, np.array([message]))[0])
        return took - message * 1023 / 1024 / rate

    assert latency(1e10) == pytest.approx(latency(1e6), rel=1e-6)
    assert 128 * 9e-6 < latency(1e6) < 2 * 128 * 9e-6
    pieces = collectives.all_gather(place, whole, np.array([1e6]), 10.0)
    assert float(pieces[0]) > 9 * latency(1e6)


def test_between_nodes_a_gather_has_the_rate_of_the_nics_but_on_efa():
    for network, share in (("4x NDR IB", 1.0), ("EFA 1600 Gbps", 0.567)):
        group = collectives.group(cluster("H100", 16, 8, network), 16, 1)
        assert float(group.gather_bytes_per_s / group.bytes_per_s) == pytest.approx(share)
    inside = collectives.group(cluster("H100", 8), 8, 1)
    assert inside.gather_bytes_per_s < 0.6 * inside.bytes_per_s


@pytest.mark.parametrize(
    ("name", "is_cut"),
    [("RTX 4090", True), ("RTX 3090", True), ("H20", True), ("L20", True)]
    + [(name, False) for name in ("H100", "A100", "L4", "L40S", "V100", "B200", "MI300X")],
)
def test_power_does_not_bound_tensor_cores_that_are_cut_down(name, is_cut):
    card = device(name)
    assert card.is_cut is is_cut
    if is_cut:
        assert card.matmul_share("bf16") == pytest.approx(CUT_SHARE)
        assert card.flash_share > card.efficiency.flash_share
    else:
        assert card.flash_share == card.efficiency.flash_share


def test_power_bounds_large_products():
    full, capped = device("H100"), device("H100-SXM5-80GB 500W")
    assert full.power_factor == 1
    assert capped.matmul_share("bf16") == pytest.approx(
        full.matmul_share("bf16") * (5 / 7) ** 0.6, rel=1e-9
    )
    assert device("GB200").matmul_share("bf16") > device("B200").matmul_share("bf16")


def test_tokens_that_travel_once_for_each_node_are_faster_and_eight_bits_faster_still():
    layouts = Layouts.of(ep=64, dp=64, micro_batch=1)
    job, place = Job(model("deepseek-v3"), 4096, 64), cluster("H800", 64)
    each, once, narrow = (
        float(cost(changed, place, layouts).expert_parallel[0])
        for changed in (
            job,
            job.but(dispatcher="deepep"),
            job.but(dispatcher="deepep", dtype="fp8"),
        )
    )
    assert narrow < once < 0.6 * each


def test_captured_graphs_take_the_wait_for_the_cpu_away():
    job, layouts = Job(model("deepseek-v2"), 4096, 1), Layouts.of(micro_batch=1)
    eager, partial, full = (
        float(
            layers.layer(job.but(cuda_graphs=graphs), device("H100"), layouts, True).host_forward[0]
        )
        for graphs in ("", "partial", "full")
    )
    assert partial / eager == pytest.approx(31 / 54)
    assert full < 0.05 * partial


def test_groups_of_one_are_silent():
    place = cluster("H100", 8)
    group = collectives.group(place, 1, 8)
    assert float(collectives.all_reduce(place, group, np.array([1e9]))[0]) == 0


@settings(max_examples=20)
@given(POWERS, POWERS, st.integers(0, 2))
def test_more_data_parallel_ranks_never_compute_longer_at_a_fixed_batch(tp, micro, recompute):
    took = []
    for dp in (1, 2, 4, 8):
        layouts = Layouts.of(tp=tp, dp=dp, micro_batch=micro, recompute=recompute)
        parts = cost(LLAMA, cluster("H100", tp * dp), layouts)
        took.append(float(parts.compute[0] + parts.launch[0] + parts.tensor_parallel[0]))
    assert all(later <= sooner + 1e-9 for sooner, later in pairwise(took))


@settings(max_examples=20)
@given(st.sampled_from([LLAMA, MOE]), POWERS, POWERS)
def test_memory_grows_with_the_micro_batch_and_shrinks_with_recomputation_and_sharding(job, tp, dp):
    rising = memory.allocated_bytes(job, Layouts.of(tp=tp, dp=dp, micro_batch=[1, 2, 4, 8]))
    assert np.all(np.diff(rising) > 0)
    falling = memory.allocated_bytes(
        job, Layouts.of(tp=tp, dp=dp, micro_batch=4, recompute=[0, 1, 2])
    )
    assert np.all(np.diff(falling) <= 0)
    sharded = memory.allocated_bytes(job, Layouts.of(tp=tp, dp=8, micro_batch=1, zero=[0, 1, 3]))
    assert np.all(np.diff(sharded) < 0)


def test_recomputing_everything_costs_about_a_forward():
    parts = cost(LLAMA, cluster("H100", 1), Layouts.of(micro_batch=4, recompute=[0, 2])).compute
    assert 1.2 < parts[1] / parts[0] < 1.4


def test_small_models_wait_for_launches_and_large_ones_do_not():
    small, large = (Job(model(name), 1024, 8) for name in ("gpt2", "llama-2-70b"))
    for job, waits in ((small, True), (large, False)):
        parts = cost(job, cluster("H100", 1), Layouts.of(micro_batch=1))
        assert bool(parts.launch[0] > 0.2 * parts.seconds[0]) is waits


def test_adapters_need_no_weight_gradient():
    whole = layers.layer(LLAMA, device("H100"), Layouts.of(micro_batch=4), False)
    adapter = layers.layer(
        replace(LLAMA, trainable_share=0.01), device("H100"), Layouts.of(micro_batch=4), False
    )
    assert adapter.backward[0] < 0.75 * whole.backward[0]
    assert whole.forward[0] < adapter.forward[0] < 1.15 * whole.forward[0]


def test_adapters_move_what_their_kind_of_code_moves():
    """Casts of peft's under autocast cost most, one kernel for scaling and sum least."""
    tuned = replace(LLAMA, trainable_share=0.01)
    kinds = [
        {"fused_elementwise": False},
        {"fused_elementwise": False, "plain_adapters": True},
        {"plain_adapters": True},
    ]
    forward = [adapter_bytes(tuned.but(**kind), False)[0] for kind in kinds]
    assert forward[0] > forward[1] > forward[2] > 0
    assert adapter_bytes(LLAMA, False) == (0.0, 0.0)
    every_layer = tuned.but(lora=Lora(targets=("all-linear",)))
    assert adapter_bytes(every_layer, False)[1] > 2 * adapter_bytes(tuned, False)[1]


def test_quantised_weights_are_unpacked_in_both_passes():
    """3 bytes a value for 8 bits, 2.5 for 4: read packed, written in 16 bits."""
    tuned = replace(LLAMA, trainable_share=0.01)
    four, eight = (dequantised_bytes(tuned.but(quantized=kind), False) for kind in ("nf4", "int8"))
    assert four / eight == pytest.approx(2.5 / 3)
    assert dequantised_bytes(tuned, False) == 0
    one = Layouts.of(micro_batch=1)
    plain = layers.layer(tuned, device("H100"), one, False)
    packed = layers.layer(tuned.but(quantized="nf4"), device("H100"), one, False)
    more = packed.forward[0] - plain.forward[0]
    assert more == pytest.approx(packed.backward[0] - plain.backward[0])
    assert more == pytest.approx(four / (3.35e12 * 0.8), rel=0.02)


@pytest.mark.parametrize(
    ("text", "kind", "gbps"),
    [
        ("8x HDR IB", "infiniband", 1600),
        ("4x Omni-Path 100G inter", "omni-path", 400),
        ("EFA 3200 Gbps class inter", "efa", 3200),
        ("1600 Gbps RoCE", "ethernet", 1600),
        ("", "infiniband", 0),
    ],
)
def test_networks_are_read_from_free_text(text, kind, gbps):
    assert (network_kind(text), network_gbps(text)) == (kind, gbps)


def test_gpus_are_found_by_any_usual_name():
    assert device("A100-SXM4").name.startswith("A100-SXM4")
    assert device("H100 SXM5 80GB").name == "H100-SXM5-80GB"
    assert cluster("GB200", 144, 4).gpus_per_node == 72
    with pytest.raises(LookupError):
        device("Voodoo2")


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3-8b", "qwen3-8b"])
def test_what_pytorch_writes_out_moves_three_times_as_much(name):
    """A layer of Llama with as many keys as queries moves 153 bytes a token and hidden channel in
    Transformers' own operations, counted, and 46 in fused kernels.
    """
    job = Job(model(name), seq=4096, global_batch=64)
    layouts, tokens = Layouts.of(micro_batch=1), np.array([4096.0])
    fused = layers._elementwise_bytes(job, layouts, tokens, False)
    eager = replace(job.habits, fused_elementwise=False, written_out=True)
    written = layers._elementwise_bytes(replace(job, habits=eager), layouts, tokens, False)
    assert 2.4 < float(written[0] / fused[0]) < 3.6
    if name == "llama-2-7b":
        assert float(written[0]) == pytest.approx(152.6 * 4096 * 4096, rel=0.03)
    compiled = replace(eager, fused_elementwise=True)
    again = layers._elementwise_bytes(replace(job, habits=compiled), layouts, tokens, False)
    assert float(again[0]) == float(fused[0])
