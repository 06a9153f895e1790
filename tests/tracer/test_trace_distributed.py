"""Sharded trainings of a small model, traced as rank 0 of a world that is not there."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path

import pytest
from libraries import needs
from vram_log import storages

from gputop_analysis.parallelism.split import Split
from gputop_analysis.vram import deepen, eventlog, replay
from gputop_analysis.vram.setup import Lora, ModelShape, Setup

pytestmark = needs("torch", "transformers")
PROBES = Path(__file__).parents[2] / "probes"
SHAPE = ModelShape("small", "llama", 128, 6, 4, 4, 32, 256, 1000, max_position=512)
LAYER = 4 * 128 * 128 + 3 * 128 * 256 + 2 * 128
PARAMETERS = 6 * LAYER + 2 * 1000 * 128 + 128
WORLD = 4
WIDE = ModelShape("wide", "llama", 512, 6, 4, 4, 128, 512, 1000, max_position=512)
"""Of matrices that are large enough for ZeRO-3 to share them."""
WIDE_PARAMETERS = 6 * (7 * 512 * 512 + 2 * 512) + 2 * 1000 * 512 + 512
EXPERTS = ModelShape(
    "moe",
    "qwen3_moe",
    128,
    6,
    4,
    4,
    32,
    256,
    1000,
    max_position=512,
    experts=8,
    top_k=2,
    moe_ffn=64,
)
EXPERTS_PARAMETERS = (
    6 * (4 * 128 * 128 + 8 * 3 * 128 * 64 + 8 * 128 + 2 * 128 + 2 * 32) + 2 * 1000 * 128 + 128
)
TRACE = """
import json, sys
from gputop_tracer import model_trace
for name, job in json.load(sys.stdin).items():
    try:
        tracker = model_trace.trace(job["setup"], full=job["full"])
        tracker.log.save(sys.argv[1] + "/" + name, tracker.meta)
    except ValueError as error:
        open(sys.argv[1] + "/" + name + ".error", "w").write(str(error))
"""


def _setup(sharding, **more):
    base = Setup(SHAPE, seq=64, micro_batch=2, parallel=Split(dp=WORLD, sharding=sharding))
    return asdict(base.but(**more))


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    jobs = {
        name: {"setup": _setup(name), "full": False}
        for name in ("ddp", "fsdp1", "fsdp2", "zero1", "zero2")
    }
    jobs["zero3"] = {"setup": _setup("zero3", model=WIDE), "full": False}
    jobs["tp"] = {"setup": _setup("none", dp=1, tp=2, recipe="torchtitan"), "full": False}
    jobs["sp"] = {
        "setup": _setup("none", dp=1, tp=2, recipe="torchtitan", sequence_parallel=True),
        "full": False,
    }
    stage = {"dp": 1, "pp": 3, "accumulation": 4}
    jobs |= {
        f"stage{i}": {"setup": _setup("none", **stage, pipeline_stage=i), "full": False}
        for i in (0, 2)
    }
    jobs["cp"] = {"setup": _setup("fsdp2", dp=1, cp=WORLD, seq=64 * WORLD), "full": False}
    jobs["ep"] = {"setup": _setup("fsdp2", model=EXPERTS, ep=2), "full": False}
    jobs["no_experts"] = {"setup": _setup("none", ep=2), "full": False}
    chunked = {"dp": 1, "pp": 3, "vpp": 2, "accumulation": 6}
    jobs |= {
        f"chunked{i}": {"setup": _setup("none", **chunked, pipeline_stage=i), "full": False}
        for i in (0, 2)
    }
    adapted = {"lora": Lora(targets=("all-linear",)), "checkpointing": "full"}
    jobs |= {
        name: {"setup": _setup("fsdp1", **adapted, transformers=name), "full": False}
        for name in ("4.48", "4.52")
    }
    jobs["fp16"] = {
        "setup": _setup("fsdp1", **adapted, quantized="nf4", dtype="fp16"),
        "full": False,
    }
    jobs |= {f"{name}_full": {**jobs[name], "full": True} for name in ("fsdp1", "fp16", "zero3")}
    environment = {**os.environ, "PYTHONPATH": str(PROBES)}
    command = [sys.executable, "-c", TRACE, str(folder)]
    subprocess.run(
        command, input=json.dumps(jobs), text=True, env=environment, check=True, capture_output=True
    )
    read = {name: eventlog.load(folder / name) for name in jobs if (folder / name).exists()}
    deep = {name: deepen.deepen(log, log.meta["depth"]) for name, log in read.items()}
    return deep, (folder / "no_experts.error").read_text()


def held(log, category):
    """Bytes of the storages of a category that are never freed."""
    index = log.strings.index(category)
    return sum(log.bytes[one] for one in log.live(len(log.events)) if log.category[one] == index)


def test_ddp_holds_all_and_buckets_of_the_same_size(logs):
    log = logs[0]["ddp"]
    assert held(log, "weights") == pytest.approx(2 * PARAMETERS, rel=0.01)
    assert held(log, "communication") == 2 * PARAMETERS


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_fsdp_holds_a_share_of_weights_and_states(logs, name):
    log = logs[0][name]
    assert held(log, "weights") == pytest.approx(2 * PARAMETERS / WORLD, rel=0.02)
    assert held(log, "optimizer") == pytest.approx(4 * PARAMETERS / WORLD, rel=0.02)


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_weights_are_gathered_on_a_stream_of_their_own(logs, name):
    log = logs[0][name]
    assert storages(log, "communication")
    assert len(set(log.stream[1:])) > 1


@pytest.mark.parametrize("name", ["zero1", "zero2"])
def test_zero_holds_all_weights_and_a_share_of_fp32_copies_and_states(logs, name):
    log = logs[0][name]
    assert held(log, "weights") == pytest.approx(2 * PARAMETERS, rel=0.01)
    assert held(log, "master_weights") == pytest.approx(4 * PARAMETERS / WORLD, rel=1e-4)
    assert held(log, "optimizer") == pytest.approx(8 * PARAMETERS / WORLD, rel=1e-4)


def test_zero3_holds_a_share_of_all_and_a_bucket(logs):
    log = logs[0]["zero3"]
    norms = 13 * 512 * 2  # stay whole
    assert held(log, "weights") == pytest.approx(2 * WIDE_PARAMETERS / WORLD + norms, rel=0.01)
    assert held(log, "gradients") == pytest.approx(2 * WIDE_PARAMETERS / WORLD, rel=1e-3)
    assert held(log, "master_weights") == pytest.approx(4 * WIDE_PARAMETERS / WORLD, rel=1e-4)
    assert held(log, "communication") == 2 * 500_000_000


def test_zero3_gathers_weights_on_a_stream_of_their_own(logs):
    log = logs[0]["zero3"]
    gathered = storages(log, "communication", of_layers=True)
    assert {log.stream[one] for one in gathered} == {1}
    assert {log.bytes[one] for one in gathered} == {2 * 512 * 512}


def test_zero_takes_a_whole_bucket_and_gives_it_back(logs):
    for name in ("zero1", "zero2"):
        log = logs[0][name]
        assert 2 * 500_000_000 in [log.bytes[one] for one in storages(log, "communication")]
        assert held(log, "communication") == 0


def test_gradients_wait_for_the_update_in_zero_1_and_not_in_zero_2(logs):
    most = {name: _most(logs[0][name], "gradients", "backward") for name in ("zero1", "zero2")}
    assert most["zero1"] == pytest.approx(2 * PARAMETERS, rel=0.01)
    assert most["zero2"] < 2 * PARAMETERS / 2


def _most(log, category, phase):
    """The most bytes of a category alive at once while the last step's phase runs."""
    start = next(at for at, name, step in log.marks if (name, step) == (phase, 1))
    end = min(at for at, _, _ in log.marks if at > start)
    wanted = log.strings.index(category)
    sizes = [
        size if own == wanted else 0 for size, own in zip(log.bytes, log.category, strict=True)
    ]
    held = accumulate(sizes[event] if event > 0 else -sizes[-event] for event in log.events)
    return max(list(held)[start:end])


@pytest.mark.parametrize("name", ["tp", "sp"])
def test_tensor_parallelism_halves_matrices_and_not_norms(logs, name):
    norms = 13 * 128
    assert held(logs[0][name], "weights") == pytest.approx(
        2 * ((PARAMETERS - norms) / 2 + norms), rel=0.02
    )


def test_sequence_parallelism_keeps_less_between_the_split_regions(logs):
    kept = {name: _most(logs[0][name], "activations", "backward") for name in ("tp", "sp")}
    assert kept["sp"] < 0.9 * kept["tp"]


def test_an_earlier_stage_waits_for_more_micro_batches(logs):
    kept = [_most(logs[0][f"stage{i}"], "activations", "backward") for i in (0, 2)]
    assert kept[0] == pytest.approx(3 * kept[1], rel=0.1)


def test_stages_hold_their_layers_and_the_ends_embedding_and_head(logs):
    weights = [held(logs[0][f"stage{i}"], "weights") for i in (0, 2)]
    ends = [1000 * 128, 1000 * 128 + 128]
    assert weights == pytest.approx([2 * (2 * LAYER + end) for end in ends], rel=0.01)
    assert not replay.peak(logs[0]["stage0"]).breakdown.get("logits_loss")


def test_context_parallelism_shards_as_data_parallelism_and_cuts_the_sequence(logs):
    cp, dp = (replay.peak(logs[0][name]) for name in ("cp", "fsdp2"))
    assert (cp.allocated, cp.reserved) == (dp.allocated, dp.reserved)


def test_sharding_needs_less_than_replicating(logs):
    peaks = {name: replay.peak(log).allocated for name, log in logs[0].items()}
    assert max(peaks["fsdp1"], peaks["fsdp2"]) < peaks["ddp"]


@pytest.mark.parametrize("name", ["fsdp1", "zero3"])
def test_four_layers_stand_for_all(logs, name):
    deep, full = (replay.peak(logs[0][one]).allocated for one in (name, f"{name}_full"))
    assert deep == pytest.approx(full, rel=0.01)


def test_experts_are_spread_and_the_rest_of_their_weights_is_sharded(logs):
    """Two ranks hold each half of the experts, and shard it; all four shard the rest."""
    log = logs[0]["ep"]
    assert held(log, "weights") == pytest.approx(2 * EXPERTS_PARAMETERS / WORLD, rel=0.02)
    assert held(log, "optimizer") == pytest.approx(4 * EXPERTS_PARAMETERS / WORLD, rel=0.02)
    gathered = {log.bytes[one] for one in storages(log, "communication", of_layers=True)}
    down_of_four_experts = 2 * 4 * 64 * 128
    assert {down_of_four_experts, 2 * down_of_four_experts} <= gathered


def test_rows_go_to_experts_and_come_back(logs):
    log = logs[0]["ep"]
    rows = 2 * 64 * 2 * 128 * 2  # micro-batch x seq x top-k x hidden, bf16
    of_experts = [
        i for i in range(1, len(log.bytes)) if log.strings[log.module[i]].endswith("mlp.experts")
    ]
    assert rows in [log.bytes[one] for one in of_experts]


@pytest.mark.parametrize(
    ("stages", "of", "micro_batches"), [(2, 2, 4), (4, 2, 4), (4, 3, 16), (8, 2, 24)]
)
def test_interleaved_turns_as_megatron_has_them(stages, of, micro_batches):
    from gputop_tracer.training.interleaved import enough, schedule, warm_up

    for stage in range(stages):
        most = {}
        for count in (micro_batches, enough(stages, stage, of, micro_batches)):
            held: set[tuple[int, int]] = set()
            most[count] = 0
            for forward, chunk, micro in schedule(stages, stage, of, count):
                (held.add if forward else held.remove)(
                    (chunk, micro)
                )  # a backward comes after its forward
                most[count] = max(most[count], len(held))
            assert not held
        first = warm_up(stages, stage, of, micro_batches)
        assert set(most.values()) == {min(first + 1, micro_batches * of)}


def test_chunks_hold_more_micro_batches_than_whole_stages(logs):
    """Of 3 stages with 2 chunks of one layer each the first holds 2 (3 - 1) + 3 + 1 = 8 layers'
    activations.
    """
    kept = {
        name: _most(logs[0][name], "activations", "backward")
        for name in ("chunked0", "chunked2", "stage0")
    }
    assert kept["chunked0"] == pytest.approx(kept["stage0"] * 8 / 6, rel=0.1)
    assert kept["chunked2"] < kept["chunked0"]
    assert replay.peak(logs[0]["chunked2"]).breakdown.get("logits_loss")


def test_what_is_not_traced_is_refused_in_words(logs):
    assert "experts of LlamaForCausalLM are not traced" in logs[1]


def most_at_once(log, size):
    """Storages of so many bytes that are there together."""
    steps = ((event > 0) - (event < 0) for event in log.events if log.bytes[abs(event)] == size)
    return max(accumulate(steps))


def test_a_checkpoint_around_units_of_frozen_weights_keeps_their_inputs_and_gradients(logs):
    """Before transformers 4.52, whose layers recompute themselves inside of their units."""
    deep, _ = logs
    hidden_state = 2 * 64 * SHAPE.hidden * 2
    around, inside = (most_at_once(deep[version], hidden_state) for version in ("4.48", "4.52"))
    assert around - inside >= SHAPE.layers - 2


def test_4_bit_weights_are_sharded_as_what_lies_beside_them(logs):
    log = logs[0]["fp16"]
    assert log.meta["trained"] > 0
    adapters = held(log, "gradients")
    assert 0 < held(log, "weights") - adapters < 0.6 * 2 * PARAMETERS / WORLD


def test_4_bit_weights_that_a_layer_frees_two_layers_on_are_repeated_exactly(logs):
    deep, full = (replay.peak(logs[0][name]) for name in ("fp16", "fp16_full"))
    assert (deep.allocated, deep.reserved) == (full.allocated, full.reserved)


def test_4_bit_weights_are_never_whole_on_the_device(logs):
    """They come to it a unit at a time, when that is sharded."""
    log = logs[0]["fp16"]
    start = next(at for at, phase, _ in log.marks if phase == "forward")
    moved = [
        event for event in log.events[:start] if log.strings[log.operator[abs(event)]] == "detach"
    ]
    at_once = max(accumulate(1 if event > 0 else -1 for event in moved))
    linears = 7 * SHAPE.layers
    assert 0 < at_once < linears / 2
