"""Findings about ranks and communication on built records, and the statistics behind
the straggler.
"""

import math

import numpy as np
import pytest
from analysis_support import T0, Builder

from gputop_analysis.culprit import LEAST_P, find_culprit, student_tail, typical
from gputop_analysis.findings import evaluate
from gputop_analysis.findings.ranks import exposed_comm
from gputop_analysis.pipeline import (
    expected_bubble,
    measured_bubble,
    micro_batches_for,
)
from gputop_probes.record.layout import PROCESS_RANK


def drifting(random, steps, ranks, rho):
    noise = random.standard_normal((steps, ranks))
    for step in range(1, steps):
        noise[step] = rho * noise[step - 1] + math.sqrt(1 - rho**2) * noise[step]
    return noise


def judged(own_ms):
    slowest = own_ms.max(axis=1, keepdims=True)
    return find_culprit(slowest - own_ms, float(slowest.mean()))


@pytest.mark.parametrize("rho", [0.0, 0.9, 0.98])
@pytest.mark.parametrize(("steps", "ranks"), [(60, 2), (200, 8), (1000, 8)])
def test_few_clean_runs_have_a_culprit(rho, steps, ranks):
    random = np.random.default_rng(5)
    runs = [100 + 3 * drifting(random, steps, ranks, rho) for _ in range(60)]
    assert sum(judged(own) is not None for own in runs) <= 4


@pytest.mark.parametrize(("steps", "rho"), [(60, 0.0), (1000, 0.9)])
def test_a_rank_five_percent_slow_is_found(steps, rho):
    random = np.random.default_rng(6)
    for _ in range(20):
        own = 100 + 3 * drifting(random, steps, 8, rho)
        own[:, 3] += 5
        found = judged(own)
        assert found is not None and found.column == 3
        assert found.lead_ms == pytest.approx(5, abs=2.5)


def test_an_outlier_is_no_straggler():
    own = 100 + np.random.default_rng(7).standard_normal((100, 4))
    own[50, 1] += 2000  # 20 ms a step on average, in one step
    assert judged(own) is None


def test_small_leads_and_few_steps_are_not_judged():
    assert judged(np.tile([10.0, 11.9], (100, 1))) is None
    assert judged(np.tile([10.0, 20.0], (9, 1))) is None
    certain = judged(np.tile([10.0, 20.0], (100, 1)))
    assert certain is not None and certain.p == LEAST_P


def test_typical_shrugs_off_one_rank():
    assert typical(np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0])) == 1.0
    assert typical(np.array([3.0])) == 3.0


@pytest.mark.parametrize(
    ("t", "dof", "p"), [(2.015, 5, 0.05), (3.365, 5, 0.01), (2.764, 10, 0.01), (2.326, 1e6, 0.01)]
)
def test_student_tail_agrees_with_tables(t, dof, p):
    assert student_tail(t, dof) == pytest.approx(p, rel=0.03)


def schedule(stages, micro_batches, times=None):
    """Busy and wall time of each stage of a simulated GPipe step: a stage begins a part when the
    one before is done.
    """
    times = [1.0] * stages if times is None else times
    done = np.zeros((2 * micro_batches, stages))
    for part in range(2 * micro_batches):  # forwards, then backwards in the opposite direction
        order = range(stages) if part < micro_batches else range(stages - 1, -1, -1)
        arrived = 0.0
        for stage in order:
            free = done[:part, stage].max(initial=0.0)
            done[part, stage] = max(arrived, free) + times[stage]
            arrived = done[part, stage]
    return np.array(times) * 2 * micro_batches, np.full(stages, done.max())


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 1), (2, 8), (4, 8), (8, 32)])
def test_even_stages_idle_as_the_formula_says(stages, micro_batches):
    busy, wall = schedule(stages, micro_batches)
    assert measured_bubble(busy, wall) == pytest.approx(expected_bubble(stages, micro_batches))


def test_uneven_stages_idle_more():
    busy, wall = schedule(4, 8, [1.0, 1.0, 2.0, 1.0])
    assert measured_bubble(busy, wall) > expected_bubble(4, 8) + 0.2


def test_micro_batches_for_a_bubble():
    assert (
        expected_bubble(4, micro_batches_for(4, 0.1))
        <= 0.1
        < expected_bubble(4, micro_batches_for(4, 0.1) - 1)
    )
    assert expected_bubble(4, 8, chunks=2) < expected_bubble(4, 8)
    with pytest.raises(ValueError, match="at least 1"):
        expected_bubble(0, 1)


def synchronous(tmp_path, wait_ms=0.3, ranks=2, steps=60, micro=1, **hello):
    build = Builder(tmp_path / "r")
    for rank in range(ranks):
        build.hello(
            rank,
            world_size=ranks,
            parallel={"backend": "gloo", "ddp": {"bucket_bytes": [4_000_000]}},
            **hello,
        )
    for _ in range(steps):
        for rank in range(ranks):
            build.step(
                rank,
                forward=6.0,
                backward=12.0,
                optimizer=1.0,
                wait_ms=wait_ms,
                micro_batches=micro,
            )
    return build


def found(build):
    return {one.id: one for one in evaluate(build.open()) if one.id[:2] in ("CR", "HC")}


def test_exposed_communication_is_the_least_wait(tmp_path):
    comm = found(synchronous(tmp_path, wait_ms=8.0))
    assert list(comm) == ["CR06"]
    assert (comm["CR06"].rank, comm["CR06"].recoverable_ms_per_step) == (
        None,
        pytest.approx(8.0, rel=0.01),
    )
    assert comm["CR06"].proof is not None
    assert comm["CR06"].proof.value == pytest.approx(100 * 8 / 27, rel=0.02)
    assert found(synchronous(tmp_path / "b", wait_ms=1.5)) == {}


def reports(build, per_step, unused=0):
    for step in (16, 32, 64, 512):
        counts = {"iterations": int(per_step * step), "unused_parameter_bytes": unused}
        build.event("ddp_progress", t_ns=T0 + step, rank=0, step=step, **counts)
    return build


@pytest.mark.parametrize(("micro", "per_step", "ids"), [(4, 4, ["CR07"]), (4, 1, []), (1, 1, [])])
def test_no_sync_missing(tmp_path, micro, per_step, ids):
    only = found(reports(synchronous(tmp_path, micro=micro), per_step))
    assert list(only) == ids
    if ids:
        assert only["CR07"].recoverable_ms_per_step == pytest.approx(3 * 0.3, rel=0.05)


@pytest.mark.parametrize(
    ("unused", "flag", "ids"), [(0, True, ["CR08"]), (64, True, []), (0, False, [])]
)
def test_needless_search(tmp_path, unused, flag, ids):
    build = synchronous(tmp_path)
    build.event(
        "ddp", rank=0, find_unused_parameters=flag, static_graph=False, parameter_tensors=12
    )
    assert list(found(reports(build, 1, unused))) == ids


def test_gloo_on_gpus_is_only_a_finding_there(tmp_path):
    assert found(synchronous(tmp_path, device="cuda:0"))["CR10"].severity == "high"
    assert found(synchronous(tmp_path / "b")) == {}


def entries(build, rank, *said):
    build.event(
        "exception",
        rank=rank,
        **{"class": "RuntimeError"},
        message="op.preamble.length <= op.nbytes",
    )
    sent = [
        {"group": "0", "seq": i, "op": f"gloo:{op}", "bytes": size}
        for i, (op, size) in enumerate(said)
    ]
    build.event("flight_recorder", rank=rank, entries=sent)


@pytest.mark.parametrize(
    ("second", "ids"),
    [(("broadcast", 32), ["CR12"]), (("all_reduce", 64), ["CR12"]), (("all_reduce", 32), [])],
)
def test_collectives_that_differ(tmp_path, second, ids):
    build = synchronous(tmp_path)
    entries(build, 0, ("all_reduce", 8), ("all_reduce", 32), ("barrier", 0))
    entries(build, 1, ("all_reduce", 8), second, ("barrier", 0))
    only = found(build)
    assert list(only) == (ids or ["HC06"])
    if ids:
        assert "number 1" in only["CR12"].title


def test_uneven_gathers_are_no_mismatch(tmp_path):
    build = synchronous(tmp_path)
    entries(build, 0, ("all_to_all", 8), ("gather", 100))
    entries(build, 1, ("all_to_all", 16), ("gather", 300))
    assert list(found(build)) == ["HC06"]


def test_the_odd_rank_of_three_is_named(tmp_path):
    build = synchronous(tmp_path, ranks=3)
    for rank in range(3):
        entries(build, rank, ("all_reduce", 8 + 8 * (rank == 2)))
    assert found(build)["CR12"].rank == 2


@pytest.mark.parametrize(("waits", "ids"), [((3.0, 3.0), []), ((3.0, 11.0), ["CR13"])])
def test_pipeline_bubble_beyond_the_schedule(tmp_path, waits, ids):
    build = Builder(tmp_path / "r")
    for rank, wait in enumerate(waits):
        build.hello(rank, world_size=2, parallel={"mesh": {"names": ["pp"], "shape": [2]}})
        for _ in range(60):
            build.step(rank, forward=15.0 - wait, comm=wait, micro_batches=4)
    assert [i for i in found(build) if i == "CR13"] == ids


@pytest.mark.parametrize(
    ("name", "ids"), [("expert_tokens/", ["CR14"]), ("expert_loss/", []), ("layer_", [])]
)
def test_uneven_experts(tmp_path, name, ids):
    build = synchronous(tmp_path, ranks=1)
    for step in range(40, 80):
        build.event(
            "log", rank=0, step=step, values={f"{name}{i}": [90, 4, 3, 3][i] for i in range(4)}
        )
    assert list(found(build)) == ids


@pytest.mark.parametrize(
    ("tokens", "finding"), [((512, 1024), "CR15"), ((512, 512), "CR02"), ((512, 540), "CR02")]
)
def test_a_rank_with_larger_batches_is_named_with_what_they_hold(tmp_path, tokens, finding):
    build, random = Builder(tmp_path / "r"), np.random.default_rng(8)
    for rank in range(2):
        build.hello(rank, world_size=2, parallel={"ddp": True})
        for _ in range(150):
            slow = 2.0 if rank == 1 else 1.0
            work = {"forward": 8.0 * slow * random.gamma(400, 1 / 400), "backward": 8.0 * slow}
            build.step(rank, **work, wait_ms=1.0 if rank else 17.0, tokens=tokens[rank])
    one = next(one for one in evaluate(build.open()) if one.id.startswith("CR"))
    assert (one.id, one.rank) == (finding, 1)
    assert finding != "CR15" or ("1,024 tokens a step for 512" in one.title)


@pytest.mark.parametrize(("spread", "finding"), [(10, "CR15"), (300, "CR02")])
def test_texts_of_random_length_are_no_larger_batches_by_chance(tmp_path, spread, finding):
    """A tenth more tokens over 150 steps: far beyond chance where lengths hardly differ, and 1.4
    standard errors where they differ by more than half.
    """
    build, random = Builder(tmp_path / "r"), np.random.default_rng(8)
    for rank in range(2):
        build.hello(rank, world_size=2, parallel={"ddp": True})
        for step in range(150):
            longer = 1.1 if rank == 1 else 1.0
            work = {
                "forward": 80.0 * longer * random.gamma(400, 1 / 400),
                "backward": 80.0 * longer,
            }
            tokens = round(500 * longer) + (spread if step % 2 else -spread)
            build.step(rank, **work, wait_ms=1.0 if rank else 17.0, tokens=tokens)
    one = next(one for one in evaluate(build.open()) if one.id.startswith("CR"))
    assert (one.id, one.rank) == (finding, 1)


@pytest.mark.parametrize(
    ("mine", "theirs", "finding"),
    [([[24, 40]], [[24, 20]], "CR15"), ([[24, 31], [24, 12]], [[24, 17], [24, 19]], "CR01")],
)
def test_a_few_shapes_of_random_length_are_no_larger_batches(tmp_path, mine, theirs, finding):
    build = Builder(tmp_path / "r")
    for rank, examples in enumerate((theirs, mine)):
        shapes = {"batches": 90, "distinct": len(examples), "examples": examples}
        build.hello(rank, world_size=2, parallel={"ddp": True}, shapes=shapes)
        slow = 2.0 if rank == 1 else 1.0
        for _ in range(150):
            build.step(rank, forward=8.0 * slow, backward=8.0 * slow, wait_ms=1.0 if rank else 17.0)
    assert finding in found(build)


@pytest.mark.parametrize(
    ("faults", "theirs", "said"), [(1500, 10, True), (1500, 400, False), (100, 1, False)]
)
def test_a_slow_rank_whose_memory_is_mapped_anew_each_time(tmp_path, faults, theirs, said):
    build = Builder(tmp_path / "r")
    for rank in range(2):
        build.hello(rank, world_size=2, parallel={"ddp": True})
        slow = 1.2 if rank == 1 else 1.0
        for _ in range(150):
            build.step(rank, forward=20.0 * slow, backward=20.0, wait_ms=1.0 if rank else 5.0)
        for second in range(7):
            many = (faults if rank else theirs) * second * 1000 // 44
            t_ns = T0 + second * 10**9
            process = {"pid": 100 + rank, "rank": rank, "kind": PROCESS_RANK}
            build.sample("process", t_ns=t_ns, minor_faults_total=1000 + many, **process)
    slow_rank = found(build)["CR02"]
    assert slow_rank.rank == 1
    assert ("page faults a step" in slow_rank.evidence) is said
    assert ("MALLOC_TRIM_THRESHOLD_" in slow_rank.fix) is said


UNCERTAIN = (
    (6.4, 1.0), (8.2, 1.0), (13.3, 2.5), (11.2, 0.6), (12.3, 0.6), (11.8, 1.4), (12.4, 0.6),
    (11.2, 0.7), (14.5, 2.4), (14.3, 0.7), (15.7, 2.0), (5.7, 0.1), (6.6, 0.1), (8.7, 0.1),
    (7.9, 0.1), (7.2, 1.9), (2.6, 6.4), (2.9, 3.9), (14.0, 0.5), (12.5, 2.3), (11.7, 2.8),
    (3.5, 3.1), (12.6, 0.7), (9.6, 1.7), (10.9, 2.1), (11.6, 2.4), (13.9, 0.7), (15.1, 0.6),
    (15.8, 1.5), (20.4, 5.3), (20.3, 6.7), (13.4, 5.4), (9.4, 0.5), (9.6, 4.3), (11.4, 0.5),
    (8.5, 0.4),
)  # fmt: skip
"""Waits of two ranks in a run of 300 steps on a busy machine, ms a step: the second rank's batches
were four times as large.
"""


@pytest.mark.parametrize(("tokens", "ids"), [((192, 860), ["CR15"]), ((192, 192), [])])
def test_larger_batches_are_evidence_where_drift_leaves_the_lead_uncertain(tmp_path, tokens, ids):
    build = Builder(tmp_path / "r")
    for rank in range(2):
        build.hello(rank, world_size=2, parallel={"ddp": True})
        for waits in (*UNCERTAIN[:10], *UNCERTAIN):
            forward, backward = (2.4, 3.1) if rank == 0 else (7.8, 6.7)
            build.step(
                rank,
                forward=forward,
                backward=backward + waits[rank],
                wait_ms=waits[rank],
                tokens=tokens[rank],
            )
    assert [one.id for one in evaluate(build.open()) if one.id.startswith("CR")] == ids
    for rank in range(2):
        calls = [{"group": "0", "seq": 1, "op": "send", "p2p": True}]
        build.event("flight_recorder", rank=rank, entries=calls)
    assert "CR15" not in found(build), "what a stage is called with is no batch"


@pytest.mark.parametrize(("comm", "ids"), [(9.0, ["CR06"]), (0.5, [])])
def test_collectives_of_the_script_beside_ddps_are_exposed_communication(tmp_path, comm, ids):
    build = Builder(tmp_path / "r")
    for rank in range(2):
        build.hello(rank, world_size=2, parallel={"backend": "gloo", "ddp": True})
        for _ in range(80):
            build.step(rank, forward=6.0, backward=12.0, comm=comm, wait_ms=0.3)
        line = {"site": "train.py:57", "function": "reduce_metrics", "count": 30}
        build.event("stacks", rank=rank, phase="comm", samples=[line])
    comms = found(build)
    assert list(comms) == ids
    for one in comms.values():
        assert one.site == "train.py:57 reduce_metrics" and "one message a step" in one.fix
        assert one.recoverable_ms_per_step == pytest.approx(8.1, rel=0.02)


def exchanging(path, calls):
    """Two ranks whose steps of 27 ms call these collectives: (operation, bytes)."""
    return found(exchanged(path, calls))["CR06"]


def exchanged(path, calls, comm=9.0):
    """Their record."""
    build = Builder(path)
    for rank in range(2):
        build.hello(rank, world_size=2, parallel={"backend": "gloo"})
        entries = []
        for step in range(80):
            build.step(rank, forward=6.0, backward=12.0, comm=comm)
            for n, (op, size) in enumerate(calls if step < 40 else ()):
                seq, created_ns = len(entries), build.clock[rank] - 8_000_000 + 1000 * n
                entry = {"group": "0", "seq": seq, "op": f"gloo:{op}", "bytes": size}
                entries.append({**entry, "created_ns": created_ns, "p2p": False})
        build.event("flight_recorder", rank=rank, entries=entries)
    return build


@pytest.mark.parametrize(
    ("calls", "by_hand", "severity"),
    [
        ([("all_reduce", 2_500_000)] * 2, True, "info"),
        ([("all_reduce", 2_500_000)] * 2, False, "medium"),
        ([("all_reduce", 250_000)] * 20, True, "medium"),
    ],
)
def test_gradients_that_are_summed_once_by_hand_on_cpus(tmp_path, calls, by_hand, severity):
    build = exchanged(tmp_path / "r", calls, comm=6.0)
    if by_hand:
        for rank in range(2):
            build.event("replica", rank=rank, pid=1, update=10, parameters=7, by_hand=True)
    (comm,) = [one for one in evaluate(build.open()) if one.id == "CR06"]
    assert comm.severity == severity


@pytest.mark.parametrize(
    ("calls", "is_told"),
    [
        ([("all_reduce", 4)] * 24, True),
        ([("all_gather", 4_000_000)], True),
        ([("all_reduce", 70_000)] * 2, False),
        ([("all_reduce", 900_000)], False),
    ],
)
def test_where_the_wait_for_a_core_may_be_the_reason_the_calls_must_explain_it(
    tmp_path, calls, is_told, monkeypatch
):
    """A third of each step is communication, and a third is waiting for a core."""
    monkeypatch.setattr(exposed_comm, "_core_wait", lambda view: 0.3)
    assert ("CR06" in found(exchanged(tmp_path / "r", calls))) is is_told


@pytest.mark.parametrize(
    ("calls", "severity", "advice"),
    [
        ([("all_to_all", 700_000)] * 3 + [("all_reduce", 900_000)], "info", "in 16 bits"),
        ([("all_to_all", 7_000)] * 30, "high", "30 small messages a step"),
        ([("broadcast", 12_000_000)], "high", "in 16 bits half of 12 MB"),
        ([("all_reduce", 4)], "high", "every 10 steps"),
    ],
)
def test_what_the_calls_of_a_step_are_decides_what_helps(tmp_path, calls, severity, advice):
    comm = exchanging(tmp_path / "r", calls)
    assert comm.severity == severity and advice in comm.fix
    assert f"{len(calls)} collective" in comm.evidence
    others = ("small messages", "in 16 bits", "every 10 steps")
    assert [word in comm.fix for word in others].count(True) == 1


def stages(path, p2p=True, times=({}, {})):
    """Two ranks that mostly send to one another, with these times of their steps, in ms."""
    build = Builder(path)
    for rank, own in enumerate(times):
        build.hello(rank, world_size=2, parallel={"backend": "gloo"})
        for _ in range(80):
            build.step(rank, **own)
        calls = [{"group": "0", "seq": seq, "op": "recv", "p2p": p2p} for seq in range(20)]
        build.event("flight_recorder", rank=rank, entries=calls)
    return build


@pytest.mark.parametrize(
    ("p2p", "comm_ms", "severity"),
    [(True, 9.0, "info"), (False, 9.0, "high"), (True, 40.0, "high")],
)
def test_waits_of_stages_are_no_volume_unless_no_bubble_is_so_long(
    tmp_path, p2p, comm_ms, severity
):
    times = {"forward": 6.0, "backward": 12.0, "comm": comm_ms}
    comm = found(stages(tmp_path / "r", p2p, (times, times)))["CR06"]
    assert comm.severity == severity
    assert ("1F1B" in comm.fix, comm.recoverable_ms_per_step is None) == (p2p, p2p)


@pytest.mark.parametrize(
    ("p2p", "more_ms", "severity"),
    [
        (True, 4.5, "info"),
        (False, 3.0, "info"),
        (False, 4.5, "medium"),
        (True, 20.0, "high"),
    ],
)
def test_a_stage_with_a_little_more_work_is_an_info(tmp_path, p2p, more_ms, severity):
    usual = {"forward": 20.0, "backward": 20.0}
    first = {**usual, "other": 2 + more_ms, "comm": 5.0}
    second = {**usual, "other": 2.0, "comm": 5.0 + more_ms}
    assert found(stages(tmp_path / "r", p2p, (first, second)))["CR04"].severity == severity


def test_a_rank_that_the_others_wait_for_before_backward_is_slow_under_ddp_too(tmp_path):
    """Its batches come late, and the others wait in an ``all_gather`` that the loss begins with:
    DDP's own timers find next to nothing.
    """
    random, build = np.random.default_rng(3), Builder(tmp_path / "r")
    for rank in range(2):
        build.hello(rank, world_size=2, parallel={"backend": "gloo", "ddp": True})
    for _ in range(80):
        late = random.normal(50, 3)
        timer = random.uniform(0.2, 3, 2)
        build.step(0, forward=4, data=1, comm=late, backward=12 + timer[0], wait_ms=timer[0])
        build.step(1, forward=4, data=1 + late, comm=1, backward=12 + timer[1], wait_ms=timer[1])
    (straggler, *_) = evaluate(build.open())
    assert (straggler.id, straggler.rank) == ("IN11", 1)
    assert straggler.recoverable_ms_per_step == pytest.approx(49, abs=2)


@pytest.mark.parametrize("left_out", [None, 75])
def test_a_slow_rank_of_a_short_run_whose_timers_tell_of_every_fourth_step(tmp_path, left_out):
    random = np.random.default_rng(8)
    build = Builder(tmp_path / "r")
    for rank in range(3):
        parallel = {"backend": "gloo", "ddp": {"bucket_bytes": [4_000_000]}}
        build.hello(rank, world_size=3, parallel=parallel)
    for step in range(120):
        for rank in range(3):
            told = step % 4 == 3 and not (rank == 2 and step == left_out)
            waited = 4.0 if rank == 1 else 9.0
            build.step(
                rank,
                forward=6.0 if rank == 1 else 3.0,
                backward=14.0 - (3.0 if rank == 1 else 0.0),
                optimizer=3.0,
                wait_ms=max(0.1, waited + 3.0 * random.standard_normal()) if told else None,
            )
    assert found(build)["CR02"].rank == 1


@pytest.mark.parametrize(("longer_ms", "ids"), [(5.0, ["CR04"]), (0.0, [])])
def test_a_rank_that_takes_longer_at_nothing_is_no_straggler(tmp_path, longer_ms, ids):
    """On cores that others use its waits are shorter, and no phase is longer."""
    build = Builder(tmp_path / "r")
    random = np.random.default_rng(0)
    for rank in range(2):
        build.hello(rank, world_size=2, parallel={"backend": "gloo"})
        for _ in range(150):
            spread_ms = 0.1 * random.random()
            build.step(
                rank,
                forward=6.0,
                backward=12.0,
                other=1.0 + longer_ms * (rank == 0),
                comm=(1.0 if rank == 0 else 6.0) + spread_ms,
            )
    assert [one.id for one in evaluate(build.open()) if one.id in ("CR01", "CR03", "CR04")] == ids


@pytest.mark.parametrize(
    ("more", "advice"),
    [
        ({"other": 2.5, "backward": 2.0, "optimizer": 1.5}, "slower in all that it does"),
        ({"other": 6.0}, "work in its loop that the others do not"),
    ],
    ids=["all over", "host code"],
)
def test_a_rank_that_is_slow_in_all_it_does_is_no_matter_of_its_loop(tmp_path, more, advice):
    build = Builder(tmp_path / "r")
    usual = {"forward": 14.0, "backward": 24.0, "optimizer": 5.0, "other": 3.0}
    for rank in range(2):
        build.hello(rank, world_size=2, parallel={"backend": "gloo"})
        for _ in range(150):
            own = {phase: ms + more.get(phase, 0) * (rank == 0) for phase, ms in usual.items()}
            build.step(rank, **own, comm=1.0 if rank == 0 else 7.0)
    slow = found(build)["CR04"]
    assert slow.rank == 0 and advice in slow.fix
