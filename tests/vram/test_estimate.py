"""What follows from a peak: fits, levers, the largest micro-batch, JSON, calibration, impossible
combinations.
"""

import json
from dataclasses import replace

import pytest
from vram_log import MIB, LogBuilder, training

from gputop_analysis import catalog
from gputop_analysis.vram import overhead
from gputop_analysis.vram.advice import max_micro_batch
from gputop_analysis.vram.answer import Peak
from gputop_analysis.vram.deepen import deepen
from gputop_analysis.vram.estimate import calibrated, gib
from gputop_analysis.vram.fits import Need, fits, smallest
from gputop_analysis.vram.intervals import LEAST, PICTURES, UNKNOWN, case, interval, kind
from gputop_analysis.vram.levers import changes, levers
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.rules import check
from gputop_analysis.vram.setup import Lora, ModelShape, Setup
from gputop_analysis.vram.tiers import NotCoveredError

GIB = 1 << 30
LLAMA = Setup(catalog.model("llama-3.1-8b"), seq=4096, micro_batch=4)
NAMES = [
    "tier",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "device_total_gib",
    "breakdown_gib",
    "peak_operation",
    "interval_pct",
    "fits",
    "levers",
    "max_micro_batch",
    "sources",
]


@pytest.fixture(scope="module")
def found():
    return estimate(LLAMA, "formula")


def test_json_has_the_stable_names_and_adds_up(found):
    answer = json.loads(json.dumps(found.to_json()))
    assert [name for name in answer if name in NAMES] == NAMES
    assert sum(answer["breakdown_gib"].values()) == answer["peak_allocated_gib"]
    assert set(answer["fits"][0]) == {"gpu", "memory_gib", "fits", "headroom_gib"}
    assert {"change", "peak_reserved_gib", "saves_gib"} <= set(answer["levers"][0])
    total = answer["peak_reserved_gib"] + answer["cuda_context_gib"] + answer["nccl_gib"]
    assert answer["device_total_gib"] == total
    assert answer["tier"] == "formula"
    low, high = answer["interval_pct"]
    assert low < high


def test_fits_are_the_gpus_with_room_for_the_device_total(found):
    memory = [fit.memory for fit in found.fits]
    assert memory == sorted(memory)
    assert {fit.fits for fit in found.fits} == {True, False}
    able = [fit.fits for fit in found.fits]
    assert able == sorted(able)
    for fit in found.fits:
        assert fit.headroom == fit.memory - found.device_total
        assert fit.fits or fit.headroom < 0
        assert not fit.fits or fit.memory >= found.peak.allocated + found.context


def test_levers_are_in_the_order_of_what_they_save_and_name_what_they_open(found):
    totals = [
        lever.reserved + overhead.CONTEXT + overhead.nccl(lever.setup) for lever in found.levers
    ]
    assert totals == sorted(totals)
    assert max(totals) < found.device_total
    for lever in found.levers:
        assert lever.reserved + lever.saves == found.peak.reserved
    checkpointing = next(lever for lever in found.levers if lever.change == "checkpointing")
    assert checkpointing.setup == LLAMA.but(checkpointing="full")
    assert catalog.gpu(checkpointing.gpu).usable_bytes >= checkpointing.reserved
    assert (
        estimate(checkpointing.setup, "formula", advice=False).peak.reserved
        == checkpointing.reserved
    )


def test_the_largest_micro_batch_fits_and_one_more_does_not():
    found = estimate(LLAMA.but(checkpointing="full"), "formula", gpu="H200")
    room = catalog.gpu("H200").usable_bytes
    most = found.max_micro_batch
    assert most is not None
    assert most > 4
    for size, fitting in ((most, True), (most + 1, False)):
        again = estimate(LLAMA.but(checkpointing="full", micro_batch=size), "formula", advice=False)
        assert (again.device_total <= room) == fitting


def test_no_micro_batch_fits_a_small_gpu():
    assert estimate(LLAMA, "formula", gpu="T4").max_micro_batch == 0


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 64, 100, 4096])
@pytest.mark.parametrize("flat", [0, 30, 1000])
def test_the_search_finds_the_last_that_fits_in_a_few_looks(most, flat):
    """Of a line that may begin flat, as where the update needs more than a small batch."""
    looks = []

    def needs(setup):
        looks.append(setup.micro_batch)
        return max(flat, 10 * setup.micro_batch)

    room = 10 * most + 5
    assert max_micro_batch(LLAMA, needs, room) == (most if room >= flat else 0)
    assert len(looks) <= 20


def test_a_replay_is_asked_only_between_allocated_and_reserved():
    asked = []

    def runs_in(capacity):
        asked.append(capacity)
        return capacity >= 70 * GIB

    need = Need(60 * GIB, 80 * GIB, runs_in)
    assert not need.within(59 * GIB)
    assert need.within(80 * GIB)
    assert asked == []
    found = {fit.memory for fit in fits(LLAMA, need) if fit.fits}
    assert min(found) >= 70 * GIB + overhead.CONTEXT
    assert len(asked) <= 4
    spec = smallest(LLAMA, need)
    assert spec is not None
    assert spec.usable_bytes == min(found)


def test_fp8_needs_hardware_that_has_it():
    need = Need(GIB, GIB)
    assert "A100" not in " ".join(fit.gpu for fit in fits(LLAMA.but(dtype="fp8"), need))
    assert "A100" in " ".join(fit.gpu for fit in fits(LLAMA, need))


def test_a_trace_answers_where_its_events_are_given():
    log = deepen(training(4, unit=64 * MIB), 32)
    found = estimate(LLAMA, log=log, capacity=80 * GIB)
    assert found.peak.tier == "trace"
    assert found.peak.layers
    assert found.levers
    assert found.runs_in_capacity
    assert sum(found.peak.breakdown.values()) == found.peak.allocated


def test_a_crowded_gpu_gives_its_cache_back():
    """50 and 20 GiB are freed before 75 are wanted: a GPU of 100 GiB has no segment for them until
    it frees those.
    """
    build = LogBuilder().mark("forward")
    build.free(build.make(50 << 30), build.make(20 << 30))
    build.mark("backward").make(75 << 30)
    log = build.log()
    found = estimate(LLAMA, log=log, capacity=100 << 30, advice=False)
    assert (found.peak.retries, found.peak.oom, found.runs_in_capacity) == (1, "", True)
    assert found.peak.reserved == 75 << 30
    by_memory = {fit.memory // GIB: fit.fits for fit in found.fits}
    assert by_memory[max(size for size in by_memory if size < 75)] is False
    assert min(size for size, able in by_memory.items() if able) < 145
    short = estimate(LLAMA, log=log, capacity=70 << 30, advice=False)
    assert short.peak.oom == "forward: mul" or short.peak.oom.startswith("backward")
    assert short.runs_in_capacity is False
    assert short.peak.reserved == 145 << 30


def test_calibration_scales_by_the_latest_measurement_of_the_model(found):
    records = [
        {"model": "Llama-3.1-8B", "kind": "full", "tier": "formula", "ratio": 1.5},
        {
            "model": "llama-3.1-8b",
            "kind": "full",
            "tier": "formula",
            "ratio": 1.013,
            "run": "run-7",
        },
        {"model": "llama-3.1-8b", "kind": "lora", "tier": "formula", "ratio": 3.0},
        {"model": "llama-3.1-8b", "kind": "full", "tier": "profile", "ratio": 4.0},
    ]
    after = calibrated(found, records)
    assert after.peak.allocated == round(found.peak.allocated * 1.013)
    assert sum(after.peak.breakdown.values()) == after.peak.allocated
    assert "run-7" in after.notes[-1]
    assert "+1.3 %" in after.notes[-1]
    assert calibrated(found, records[2:]) == found


def test_kinds_of_cases():
    assert kind(LLAMA) == "full"
    assert kind(LLAMA.but(lora=Lora())) == "lora"
    assert kind(LLAMA.but(lora=Lora(), quantized="nf4")) == "qlora"
    assert kind(LLAMA.but(dp=8, sharding="fsdp2")) == "full sharded"
    assert kind(LLAMA.but(dp=2, tp=4)) == "full model-parallel"


@pytest.mark.parametrize("tier", ["trace", "profile", "formula"])
def test_every_tier_has_an_interval_of_its_own_errors(tier):
    adapted = LLAMA.but(lora=Lora(), quantized="nf4")
    found = {interval(setup, tier) for setup in (LLAMA, adapted, LLAMA.but(tp=2, ep=2))}
    assert UNKNOWN not in found and len(found) > 1
    assert interval(LLAMA, "no such tier") == UNKNOWN
    assert all(low <= 0 <= high for low, high in found)


def test_an_interval_of_few_runs_is_never_narrow():
    low, high = interval(
        LLAMA.but(lora=Lora()), "profile"
    )  # of five runs, within 1.4 % of one another
    assert low <= -LEAST and high >= LEAST


def test_a_kernel_over_whole_logits_is_a_case_of_its_own_and_else_the_kind_speaks_for_it():
    adapted = LLAMA.but(lora=Lora(), quantized="nf4")
    assert case(adapted) == kind(adapted) == case(adapted.but(kernels=True, loss="fused"))
    assert interval(adapted.but(kernels=True), "trace")[1] > interval(adapted, "trace")[1]
    assert interval(adapted.but(kernels=True), "formula") == interval(adapted, "formula")


def test_a_tier_that_does_not_cover_a_setup_says_which_does():
    with pytest.raises(NotCoveredError, match="Python with torch"):
        estimate(LLAMA, "trace")
    with pytest.raises(NotCoveredError, match="formula tier does"):
        estimate(LLAMA.but(dp=8, sharding="zero3"), "profile")
    with pytest.raises(ValueError, match="choose from trace, profile, formula"):
        estimate(LLAMA, "guess")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"tp": 5}, "must divide the 32 attention heads"),
        ({"pp": 5}, "32 layers do not divide into 5 pipeline stages"),
        ({"pp": 64}, "64 pipeline stages are more than the 32 layers"),
        ({"cp": 3}, "cuts a sequence into 6 equal parts"),
        ({"ep": 2}, "no experts to spread"),
        (
            {"tp": 2, "sharding": "zero1", "recipe": "megatron"},
            "ZeRO-1 shards over data-parallel ranks",
        ),
        ({"tp": 2, "sharding": "fsdp2"}, "dp must be above 1"),
        ({"quantized": "nf4"}, "only be trained with LoRA"),
        ({"lora": Lora(rank=0)}, "rank must be at least 1"),
        ({"sequence_parallel": True}, "needs tensor parallelism above 1"),
        ({"vpp": 2}, "need pipeline parallelism above 1"),
        ({"dp": 4, "sharding": "hsdp", "replicas": 3}, "replicas must divide dp 4"),
        ({"dp": 4, "sharding": "zero2", "offload": "all"}, "only ZeRO-3 and FSDP"),
        ({"dp": 4, "pp": 2, "sharding": "zero3"}, "does not go with pipeline parallelism"),
        ({"images": 2}, "has no vision tower"),
        ({"seq": 0}, "seq must be at least 1"),
        ({"pp": 2, "pipeline_stage": 2}, "stages are counted from 0"),
        ({"allocator": "max_split_size_mb:1"}, "at least 20"),
    ],
)
def test_impossible_combinations_name_their_rule(change, rule):
    with pytest.raises(ValueError, match=rule):
        estimate(LLAMA.but(**change), "formula")


def test_levers_leave_only_what_can_be_trained():
    for setup in (
        LLAMA,
        LLAMA.but(dp=8, sharding="ddp"),
        LLAMA.but(lora=Lora(), quantized="nf4", attention="eager"),
    ):
        names = [name for name, _ in changes(setup)]
        assert len(set(names)) == len(names)
        for _, changed in changes(setup):
            check(changed)
            assert changed != setup
    zero = dict(changes(LLAMA.but(dp=8, sharding="zero1")))
    assert zero["ZeRO-2"].parallel.sharding == "zero2"


def test_changes_that_save_nothing_are_no_levers():
    asked = list(changes(LLAMA))
    assert levers(10 * GIB, asked, [10 * GIB] * len(asked)) == []


def test_gib_is_exact():
    peak = Peak("formula", 3, 3, {"weights": 1, "gradients": 2}, "")
    assert sum(map(gib, peak.breakdown.values())) == gib(replace(peak).allocated)


def test_two_stacks_that_no_profile_covers_are_for_a_trace():
    model = ModelShape(
        "t5",
        family="t5",
        hidden=512,
        layers=6,
        heads=8,
        kv_heads=8,
        head_dim=64,
        ffn=2048,
        vocab=32128,
    )
    with pytest.raises(NotCoveredError, match="--tier trace"):
        estimate(Setup(model, master_weights=True))


def test_what_megatrons_selective_frees_is_open_and_the_safe_end_counts_it():
    """Its default recomputes attention alone, which keeps nothing beside flash attention."""
    asked = LLAMA.but(recipe="megatron", checkpointing="selective", attention="flash")
    answer, without = (
        estimate(setup, "formula") for setup in (asked, asked.but(checkpointing="none"))
    )
    more = without.peak.reserved - answer.peak.reserved
    assert answer.most_reserved == answer.peak.reserved + more > answer.peak.reserved
    assert any("core_attn, frees next to nothing" in note for note in answer.notes)
    scores = estimate(asked.but(attention="eager"), "formula")
    assert not scores.most_reserved and not any("core_attn" in note for note in scores.notes)


def test_traces_of_networks_without_tokens_are_told_wider():
    network = LLAMA.but(model=replace(LLAMA.model, family="timm"))
    assert interval(network, "trace") == PICTURES
