"""Rules, the search and its front, explanations, and calibration by measured runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_analysis.catalog import model
from gputop_analysis.planner import intervals, memory, search
from gputop_analysis.planner.calibrate import Calibration, by_phases, calibrate, with_memory
from gputop_analysis.planner.choices import choices, ranked
from gputop_analysis.planner.cost import cost
from gputop_analysis.planner.hardware import cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.pareto import front
from gputop_analysis.planner.preference import NEAR, preferred, split, with_tight_dearer
from gputop_analysis.planner.rules import RULES, allowed, broken
from gputop_analysis.planner.space import Limits, configurations

LLAMA = Job(model("llama-3-8b"), seq=4096, global_batch=256)
JOBS = (
    LLAMA,
    Job(model("deepseek-v2"), seq=4096, global_batch=512),
    Job(model("llama-3-70b"), seq=32768, global_batch=64),
    Job(model("gpt2"), seq=1024, global_batch=96),
)


@pytest.fixture(scope="module")
def plan():
    return search.plan(LLAMA, cluster("H100", 64))


@settings(max_examples=12)
@given(st.sampled_from(JOBS), st.sampled_from([1, 8, 12, 64, 256]))
def test_every_configuration_keeps_every_rule_in_plain_arithmetic(job, gpus):
    found = configurations(job, cluster("H100", gpus))
    for i in np.unique(np.linspace(0, max(len(found) - 1, 0), 40, dtype=int)) if len(found) else ():
        row = found.row(int(i))
        tp, pp, cp, dp, ep = (int(row[name]) for name in ("tp", "pp", "cp", "dp", "ep"))
        assert tp * pp * cp * dp == gpus
        assert job.model.heads % tp == 0
        chunks = pp * int(row["vpp"])
        assert -(-job.model.layers // chunks) * chunks - job.model.layers < pp
        assert job.global_batch % (int(row["micro_batch"]) * dp) == 0
        assert cp == 1 or job.seq % (2 * cp) == 0
        assert ep == 1 or (job.model.experts % ep == 0 and (dp * cp * tp) % ep == 0)
        assert int(row["vpp"]) == 1 or pp > 1
        assert not row["sequence_parallel"] or tp > 1


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"tp": 3, "dp": 2}, "heads"),
        ({"pp": 35, "dp": 2}, "chunks"),
        ({"dp": 6}, "batch"),
        ({"vpp": 2, "dp": 4}, "interleaving"),
        ({"dp": 4, "ep": 2}, "no experts"),
        ({"dp": 4, "sequence_parallel": True}, "sequence"),
        ({"pp": 2, "dp": 2, "zero": 2}, "sharding in a pipeline"),
        ({"tp": 2, "zero": 1}, "sharding"),
    ],
)
def test_a_broken_rule_is_named(values, rule):
    layouts = Layouts.of(**values)
    names = [rule.name for rule, _ in broken(LLAMA, layouts, int(layouts.world[0]))]
    assert rule in names
    assert not allowed(LLAMA, layouts, int(layouts.world[0]))[0]


def test_rules_have_different_names_and_a_reason():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(len(rule.reason.split()) > 3 for rule in RULES)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40))
def test_the_front_is_what_nothing_beats(points):
    first, second = (np.array(axis, float) for axis in zip(*points, strict=True))
    kept = front(first, second)
    for i, point in enumerate(points):
        beaten = any(a <= point[0] and b <= point[1] and (a, b) != point for a, b in points)
        assert kept[i] == (not beaten)


def test_the_first_is_fastest_fits_and_is_on_the_front(plan):
    charged = with_tight_dearer(plan.seconds, plan.tight)
    first = plan.order[0]
    assert charged[first] == charged[plan.fits].min()
    assert plan.allocated_bytes[first] < plan.cluster.device.usable_bytes
    faster = plan.seconds[plan.pareto] < plan.seconds[first]
    assert np.all(plan.tight[plan.pareto[faster]]) or plan.tight[first]
    lean = search.plan(LLAMA, cluster("H100", 64), objective="memory")
    assert lean.order[0] in lean.pareto and lean.pick == lean.order[0]
    assert lean.allocated_bytes[lean.order[0]] == lean.allocated_bytes.min()


def test_the_pick_is_nearly_the_fastest_and_splits_the_model_least(plan):
    charged = with_tight_dearer(plan.seconds, plan.tight)
    near = plan.order[charged[plan.order] <= charged[plan.order[0]] * (1 + NEAR)]
    assert plan.pick in near
    assert split(plan.layouts)[plan.pick] == split(plan.layouts)[near].min()
    slow, wide, fast = 1.2, 1.0, 1.05
    seconds, degrees = np.array([slow, wide, fast]), np.array([1, 8, 2])
    assert preferred(np.arange(3), seconds, degrees, np.array([False, False, False])) == 2
    assert preferred(np.arange(3), seconds, degrees, np.array([False, False, True])) == 1
    assert preferred(np.arange(3), np.array([2.0, 2.0, 1.0]), degrees, np.arange(3) == 2) == 2
    assert preferred(np.arange(3), seconds, degrees, np.array([True, True, True])) == 2


def test_a_run_that_is_described_recomputes_nothing_that_fits():
    """Tight memory is a risk to somebody who seeks a split, not a reason to doubt a run's."""
    job, place = Job(model("llama-3-8b"), 8192, 16), cluster("H100", 8)
    split_given = Limits(tp=(1,), pp=(1,), cp=(1,), micro_batch=(1,), zero=(3,), replicas=(1,))
    described = search.plan(job, place, split_given)
    row = described.layouts.row(described.pick)
    assert described.tight[described.pick] and row["recompute"] == 0
    sought = search.plan(job, place, replace(split_given, micro_batch=(1, 2)))
    assert sought.charged[sought.tight].all()


def test_the_pick_stands_first_in_a_table_however_short():
    """DeepSeek-V3's own split: the pick is charged for tight memory and the third of ``order``."""
    job = Job(model("deepseek-v3"), 4096, 15360, "fp8")
    solved = search.plan(job, cluster("H800", 2048), Limits(pp=(16,), ep=(64,)))
    assert solved.pick not in solved.order[:2]
    shown = ranked(solved, 3)
    assert [choice_.index for choice_ in shown] == [solved.pick, *solved.order[:2]]
    nothing = search.plan(Job(model("llama-3-70b"), 4096, 8), cluster("4090", 1))
    assert ranked(nothing, 3) == []


def test_mfu_of_the_pick_is_one_that_people_see(plan):
    assert 0.3 < plan.mfu(plan.pick) < 0.65


def test_nothing_fits_is_told_with_the_nearest():
    tight = search.plan(Job(model("llama-3-70b"), 4096, 8), cluster("4090", 1))
    assert len(tight.order) == 0
    assert len(tight.pareto) == 0
    assert len(tight.nearest) == 3
    assert np.all(tight.allocated_bytes[tight.nearest] > tight.cluster.device.usable_bytes)


def test_an_impossible_world_and_an_unknown_objective_are_said_in_words():
    with pytest.raises(ValueError, match="keeps the rules"):
        search.plan(
            Job(model("llama-3-8b"), 4096, 7), cluster("H100", 64), Limits(tp=(1,), pp=(1,))
        )
    with pytest.raises(ValueError, match="no objective"):
        search.plan(LLAMA, cluster("H100", 8), objective="beauty")


def test_scaling_out_loses_efficiency_and_hours_follow_the_step(plan):
    found = search.scaling(LLAMA, cluster("H100", 8), (8, 32, 128))
    assert list(found) == [8, 32, 128]
    assert found[8] >= 0.95 * found[128]  # more ranks leave memory for larger micro-batches
    pick = int(plan.order[0])
    hours = search.training_hours(plan, pick, 1e12)
    assert hours == pytest.approx(1e12 / float(plan.tokens_per_s_per_gpu[pick]) / 64 / 3600)
    price = search.cost_per_million_tokens(plan, 2.0)[pick]
    assert price == pytest.approx(hours * 64 * 2.0 / 1e6)


def _runs(factors: dict[str, float], noise: tuple[float, ...]):
    """Predictions of unlike configurations, and what a machine with those factors would have
    measured.
    """
    layouts = Layouts.of(
        tp=[1, 2, 8, 1, 2, 4],
        pp=[1, 1, 1, 8, 4, 2],
        dp=[8, 4, 1, 1, 1, 1],
        micro_batch=[4, 4, 2, 1, 1, 2],
    )
    parts = [cost(LLAMA, cluster("H100", 8), layouts.take([i])) for i in range(len(layouts))]
    truth = Calibration(tuple(factors.values()))
    return parts, [float(truth.seconds(one)[0]) * n for one, n in zip(parts, noise, strict=True)]


def test_a_calibration_finds_a_slower_gpu_and_says_how_sure_it_is():
    parts, measured = _runs(
        {"compute": 1.25, "launch": 1, "communication": 1, "bubble": 1}, (1.0,) * 6
    )
    found = calibrate(parts, measured)
    before = np.mean(
        [abs(float(one.seconds[0]) / t - 1) for one, t in zip(parts, measured, strict=True)]
    )
    after = np.mean(
        [abs(float(found.seconds(one)[0]) / t - 1) for one, t in zip(parts, measured, strict=True)]
    )
    assert after < before / 2
    assert 1.1 < found.factor("compute") < 1.25
    assert found.leave_one_out < 0.08
    low, high = intervals.uncalibrated(0.3, ("no framework named",))
    assert found.interval is not None and low < found.interval[0] < 1 < found.interval[1] < high
    told = found.to_json()
    assert told is not None and told["leave_one_out_error"] == found.leave_one_out


def test_communication_that_was_measured_apart_corrects_the_links_and_not_the_gpu():
    parts = cost(LLAMA, cluster("H100", 8), Layouts.of(tp=8, micro_batch=2))
    communication = float(parts.tensor_parallel[0])
    assert communication / float(parts.seconds[0]) > 0.03
    found = by_phases(parts, float(parts.seconds[0]) + 0.4 * communication, 1.4 * communication)
    assert 1.1 < found.factor("communication") < 1.4
    assert found.factor("compute") == pytest.approx(1.0, abs=0.02)
    without = by_phases(parts, 1.2 * float(parts.seconds[0]), 0.0)
    assert without.factor("compute") > 1.02 and without.interval is None


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8))
def test_a_factor_on_memory_lies_between_none_and_what_runs_measured(ratios):
    found = with_memory(Calibration(), [1e9] * len(ratios), [1e9 * one for one in ratios])
    low, high = min(*ratios, 1.0), max(*ratios, 1.0)
    assert low - 1e-9 <= found.memory_factor <= high + 1e-9
    assert found.memory_rows == len(ratios)
    assert np.isnan(found.memory_leave_one_out) == (len(ratios) == 1)


def test_the_memory_and_the_wait_for_data_of_a_run_go_into_the_plan():
    hardware = cluster("H100", 8)
    plain = search.plan(LLAMA, hardware, Limits(tp=(1,), pp=(1,)))
    by = Calibration(memory_factor=1.1, input_s_per_sample=0.01)
    found = search.plan(LLAMA, hardware, Limits(tp=(1,), pp=(1,)), calibration=by)
    assert found.allocated_bytes == pytest.approx(1.1 * plain.allocated_bytes)
    assert found.seconds == pytest.approx(plain.seconds + 0.01 * 256 / plain.layouts.dp)
    assert plain.parts.input.sum() == 0 < found.parts.input.min()


def test_one_stalled_run_does_not_carry_the_calibration_away():
    parts, measured = _runs(
        {"compute": 1.0, "launch": 1, "communication": 1, "bubble": 1}, (1, 1, 8, 1, 1, 1)
    )
    assert calibrate(parts, measured).factor("compute") == pytest.approx(1.0, abs=0.1)


def test_a_calibration_without_runs_is_refused_and_an_empty_one_changes_nothing():
    with pytest.raises(ValueError, match="at least one"):
        calibrate([], [])
    parts = cost(LLAMA, cluster("H100", 8), Layouts.of(dp=8))
    assert Calibration().seconds(parts) == pytest.approx(parts.seconds)
    assert np.isnan(calibrate([parts], [1.0]).leave_one_out)


def test_copies_on_fewer_nodes_take_more_memory_and_gather_faster():
    """HSDP against FSDP on 16 nodes: parameters, gradients and moments are shared by fewer ranks,
    near each other.
    """
    job = Job(model("llama-3-8b"), seq=8192, global_batch=128)
    place = cluster("H100", 128, 8, "4x 100G RoCE")
    both = Layouts.of(dp=128, zero=3, micro_batch=1, replicas=[1, 16])
    parts, held = cost(job, place, both), memory.allocated_bytes(job, both)
    assert parts.data_parallel[1] < parts.data_parallel[0] and held[1] > held[0]
    assert choices(search.plan(job, place, Limits(replicas=(16,), tp=(1,))), [0])[
        0
    ].name.startswith("DP128 HSDP16x8")
    assert broken(job, Layouts.of(dp=128, zero=1, replicas=2), 128)[0][0].name == "replicas"
    assert (
        broken(job, Layouts.of(dp=128, zero=3, replicas=128), 128)[0][0].name == "shards of a copy"
    )
