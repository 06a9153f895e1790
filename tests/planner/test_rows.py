"""Benchmark rows as questions, and the scores of answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_scores import errors, regrets, spearman

from gputop_analysis.catalog.params import total
from gputop_analysis.planner.answers import answers
from gputop_analysis.planner.pipeline import balanced_ends
from gputop_analysis.planner.rows import Unreadable, dtype_of, read

ROW = {
    "model": "gpt-made-up", "params": "1.3e9", "hidden": "2048", "layers": "24", "heads": "16",
    "ffn": "8192", "vocab": "50257", "seq": "2048", "micro_batch": "4", "global_batch": "512",
    "gpus": "8", "gpus_per_node": "8", "gpu_model": "A100-SXM4-80GB", "dtype": "fp16", "tp": "1",
    "pp": "1", "dp": "8", "act_ckpt": "full", "tokens_per_s_per_gpu": "9000",
    "framework": "Megatron-LM", "status": "ok",
}  # fmt: skip


def test_a_row_is_read_and_answered_with_all_its_parts():
    case = read(ROW)
    assert case.step_s == pytest.approx(512 * 2048 / 9000 / 8)
    assert (case.job.habits.attention, case.job.dtype) == ("eager", "fp16")
    assert not case.job.model.gated_mlp
    (answer,) = answers([case])
    assert 0.5 < answer.seconds / case.step_s < 2
    assert answer.layout["recompute"] == 2
    assert answer.fits


def test_a_measurement_is_never_part_of_an_answer():
    slow = {
        **ROW,
        "tokens_per_s_per_gpu": "1",
        "step_time_s": "1e6",
        "mfu": "0.01",
        "peak_mem_gib": "3",
    }
    one, other = answers([read(ROW), read(slow)])
    assert one.seconds == other.seconds
    assert one.allocated_gib == other.allocated_gib


def test_what_a_row_leaves_open_is_chosen_fast_and_fitting():
    said, left_open = (
        read({**ROW, "gpu_model": "H100"}),
        read({**ROW, "gpu_model": "H100", "act_ckpt": "", "micro_batch": ""}),
    )
    one, other = answers([said, left_open])
    assert len(left_open.layouts) > 10
    assert other.fits
    assert other.seconds <= one.seconds


def test_what_a_framework_keeps_of_its_gradients():
    """Each parameter: nanotron 2 (weight) + 4 + 2 (its fp32 and bf16 gradient) + 2 (DDP's bucket) +
    12 over the ranks with ZeRO-1; DeepSpeed's optimizer for bf16 2 + 4 + 2 + 12 over the ranks, and
    one bucket of 5e8 in fp32.
    """
    one_layer = {
        **ROW,
        "dtype": "bf16",
        "zero": "1",
        "seq": "64",
        "micro_batch": "1",
        "vocab": "256",
        "params": "",
    }
    kinds = (
        ("nanotron", 10 + 12 / 8, 0),
        ("DeepSpeed 3D", 8 + 12 / 8, 2e9),
        ("Megatron-Core", 6 + 12 / 8, 0),
    )
    for framework, bytes_each, bucket in kinds:
        case = read({**one_layer, "framework": framework})
        (answer,) = answers([case])
        expected = bytes_each * total(case.job.model) + bucket
        assert answer.allocated_gib * 2**30 == pytest.approx(expected, rel=0.07), framework


@pytest.mark.parametrize(
    ("notes", "copies"),
    [("", 1), ("HSDP", 4), ("HYBRID_SHARD", 4), ("dp_replicate=2", 2), ("dp_replicate: 5", 1)],
)
def test_copies_of_hsdp_are_read(notes, copies):
    row = {
        **ROW,
        "gpus": "32",
        "dp": "32",
        "framework": "torchtitan FSDP2",
        "notes": notes,
        "micro_batch": "4",
    }
    assert read(row).layouts.replicas.tolist() == [copies]


def test_what_plain_pytorch_fuses_is_read():
    row = {
        **ROW,
        "gpu_model": "H100",
        "dtype": "bf16",
        "act_ckpt": "selective",
        "framework": "torchtitan FSDP",
    }
    eager, compiled, tuned = answers([read({**row, **more}) for more in (
        {}, {"notes": "torch.compile"}, {"framework": "Megatron-Core", "zero": "3"},
    )])  # fmt: skip
    assert eager.seconds > compiled.seconds > tuned.seconds


@given(st.integers(1, 128), st.sampled_from([1, 2, 4, 8, 16]), st.floats(0, 8))
def test_balanced_stages_give_the_first_the_most(layers, pp, head):
    first, last = (float(one) for one in balanced_ends(layers, np.array(pp), head))
    assert layers / pp <= first <= layers
    assert 0 <= last <= first
    assert pp > 1 or first == last == layers


def test_a_model_known_by_name_needs_no_dimensions():
    row = {key: ROW[key] for key in ("seq", "global_batch", "gpus", "tokens_per_s_per_gpu")}
    case = read(
        {**row, "model": "Llama-3-8B", "gpu_model": "H100", "dtype": "fp8", "framework": "NeMo"}
    )
    assert (case.job.model.hidden, case.job.model.kv_heads, case.job.dtype) == (4096, 8, "fp8")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seq": ""}, "no sequence"),
        ({"global_batch": ""}, "no global batch"),
        ({"gpus": ""}, "no number of GPUs"),
        ({"gpu_model": "Abacus"}, "Abacus"),
        ({"hidden": "", "model": "nobody-knows-it"}, "dimensions"),
        ({"tokens_per_s_per_gpu": ""}, "neither step time"),
        ({"notes": "SOURCE INCONSISTENT: x"}, "contradicts"),
        ({"tp": "3"}, "number of GPUs"),
        ({"heads": ""}, "number of heads"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(change, reason):
    with pytest.raises(Unreadable, match=reason):
        read({**ROW, **change})


def test_regret_is_what_the_pick_took_longer_and_ties_share():
    measured, cells = np.array([1.0, 2.0, 4.0, 5.0, 5.0]), ["a", "a", "b", "b", "c"]
    assert regrets(np.array([2.0, 1.0, 1.0, 2.0, 1.0]), measured, cells) == {"a": 1.0, "b": 0.0}
    assert regrets(np.array([1.0, 1.0, 1.0, 1.0, 1.0]), measured, cells) == {"a": 0.5, "b": 0.125}


def test_errors_are_of_the_prediction_over_the_measurement():
    found = errors(np.array([1.1, 0.8]), np.array([1.0, 1.0]))
    assert found == pytest.approx({"mape_pct": 15, "median_error_pct": 15, "bias_pct": -5})
    assert errors(np.array([]), np.array([])) == {}


@given(st.lists(st.integers(0, 20), min_size=3, max_size=30))
def test_rank_correlation_is_one_with_itself_and_turns_with_the_order(values):
    a = np.array(values, float)
    if np.ptp(a) == 0:
        assert np.isnan(spearman(a, a))
    else:
        assert spearman(a, np.exp(a / 10)) == pytest.approx(1)
        assert spearman(a, -a) == pytest.approx(-1)


ODD = {
    "seq": ("", "NaN", "inf", "4k", "-1"),
    "gpus": ("", "nan", "0"),
    "gpu_model": ("", "FOO-100"),
    "dtype": ("int8", "tf32"),
    "tp": ("-1", "two", "1.5", "3"),
    "step_time_s": ("nan", "-3", "0", ""),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in ODD.items() for value in values]
)
def test_an_odd_cell_is_a_reason_and_no_failure(key, value):
    row = {
        "model": "llama-3-8b",
        "seq": "4096",
        "gpus": "8",
        "global_batch": "64",
        "gpu_model": "H100-SXM",
    }
    row |= {"step_time_s": "3.0", "tp": "1", "pp": "1", "dp": "8", "micro_batch": "1"}
    assert read(row).step_s == 3.0
    with pytest.raises(Unreadable) as reason:
        read(row | {key: value})
    assert str(reason.value)


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        ("BF16-mixed", "bf16"),
        ("float32", "fp32"),
        ("FP8 hybrid", "fp8"),
        ("", "bf16"),
        ("half", "fp16"),
    ],
)
def test_precisions_have_many_names(said, dtype):
    assert dtype_of({"dtype": said}) == dtype
