"""Each finding fires on a record that shows it, with the right rank and figures, and stays silent
otherwise.
"""

import re

import numpy as np
import pytest
from analysis_support import T0, Builder, pack

from gputop_agent import wire
from gputop_analysis.findings import CATALOGUE, evaluate
from gputop_analysis.findings.families import FAMILIES
from gputop_analysis.findings.live import LiveFindings
from gputop_analysis.model import Finding
from gputop_analysis.summary import summarise
from gputop_analysis.verdict import verdict
from gputop_probes.record.layout import PROCESS_RANK

LOADER = {"num_workers": 0, "site": "train.py:41", "batch_size": 8}


def found(build, **options):
    """Findings of a record by id."""
    return {one.id: one for one in evaluate(build.open(), **options)}


def healthy(tmp_path, ranks=1, steps=120, **given):
    build = Builder(tmp_path / "r")
    for rank in range(ranks):
        build.hello(rank, world_size=ranks, dataloader=LOADER, total_steps=10_000)
        build.steps(
            steps, rank, forward=6.0, backward=12.0, optimizer=2.0, data=0.3, other=0.3, **given
        )
    return build


def processes(build, rank=0, seconds=5, run_wait=0.0, cpu=1.0, thread_cpu=1.0, switches=0, pid=100):
    """Twice a second: shares of the wall time, and voluntary switches a second."""
    for tick in range(2 * seconds + 1):
        at = tick * 500_000_000
        build.sample(
            "process",
            t_ns=T0 + at,
            run_wait_ns_total=int(run_wait * at),
            cpu_ns_total=int(cpu * at),
            thread_cpu_ns_total=int(thread_cpu * at),
            voluntary_switches_total=int(switches * at / 1e9),
            pid=pid,
            rank=rank,
            kind=PROCESS_RANK,
        )


def test_a_healthy_run_has_no_finding(tmp_path):
    build = healthy(tmp_path)
    processes(build)
    build.end()
    assert found(build) == {}


def test_too_few_steps_are_not_judged(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(dataloader=LOADER)
    build.steps(25, forward=5.0, data=10.0)
    assert found(build) == {}


def test_a_single_process_loader_takes_in_input_bound(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(dataloader=LOADER, total_steps=3_600_200)
    build.steps(200, forward=6.0, backward=12.0, data=10.0)
    only = found(build)
    assert list(only) == ["IN02"]
    loader = only["IN02"]
    assert loader.absorbed == ("IN01",)
    assert (loader.rank, loader.site, loader.severity) == (0, "train.py:41", "high")
    assert loader.recoverable_ms_per_step == pytest.approx(
        9, rel=0.05
    )  # handing a batch over costs 1 ms
    assert loader.interval_ms_per_step[0] < 9.0 < loader.interval_ms_per_step[1]
    assert loader.recoverable_hours == pytest.approx(9, rel=0.05)
    assert "num_workers=2" in loader.fix


def test_workers_are_asked_for_up_to_the_cores(tmp_path):
    build = Builder(tmp_path / "r", cpu_count=4)
    build.hello(dataloader=LOADER)
    build.steps(200, forward=2.0, data=30.0)
    loader = found(build)["IN02"]  # 4 workers make a batch in 7.5 ms, the rest of a step takes 2
    assert "num_workers=4" in loader.fix
    assert loader.recoverable_ms_per_step == pytest.approx(30 - (30 / 4 - 2), rel=0.1)


def test_input_bound_in_spite_of_workers(tmp_path):
    build = Builder(tmp_path / "r", cpu_count=16)
    build.hello(dataloader={**LOADER, "num_workers": 2})
    build.steps(200, forward=6.0, backward=6.0, data=12.0)
    assert found(build)["IN01"].fix.startswith("raise num_workers from 2 to 4")


def test_sub_millisecond_batches_are_not_won_by_workers(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(dataloader=LOADER)
    for _ in range(100):
        build.step(n_steps=20, forward=0.5, backward=0.4, data=0.4)
    assert found(build) == {}


def test_on_a_device_clock_a_hidden_data_wait_is_no_finding(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(device="cuda:0", dataloader=LOADER)
    for step in range(100):
        build.step(forward=3.0, backward=5.0, data=8.0)
        row = {
            "data_ms": 0.1,
            "h2d_ms": 0.1,
            "forward_ms": 5,
            "backward_ms": 10,
            "optimizer_ms": 0.7,
            "other_ms": 0.1,
        }
        build.writer.append_rank(
            "device", 0, pack("device", t_end_ns=build.clock[0], step=step, total_ms=16.0, **row)
        )
    assert found(build) == {}


def test_oversubscribed_cores(tmp_path):
    build = healthy(tmp_path, steps=240)
    processes(build, run_wait=0.5)
    queue = found(build)["IN04"]
    assert queue.severity == "high"
    assert queue.recoverable_ms_per_step == pytest.approx(0.5 * 20.6, rel=0.05)


@pytest.mark.parametrize(("cpu_share", "is_told"), [(0.3, True), (0.05, False)])
def test_a_thread_of_the_runs_own_is_among_what_takes_the_cores(tmp_path, cpu_share, is_told):
    """peft's example polls its memory without a pause: half of its time, under a busy machine."""
    build = healthy(tmp_path, steps=240)
    processes(build, run_wait=0.5)
    for number in range(4):  # one an epoch
        name = f"Thread-{number} (peak_monitor_func)"
        thread = {"name": name, "cpu_share": cpu_share, "site": "train.py:74", "function": "f"}
        build.event("threads", rank=0, period_ms=1200.0, threads=[thread])
    fix = found(build)["IN04"].fix
    assert ("the run's own thread (peak_monitor_func) wait between its looks" in fix) is is_told


def test_the_share_of_host_code_is_of_the_whole_step_though_it_is_judged_without_queueing(
    tmp_path,
):
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(240, forward=3.0, backward=5.0, other=16.0)
    processes(build, run_wait=0.3)
    host = found(build)["HO06"]
    share = float(re.search(r"takes (\d+) %", host.title)[1]) / 100
    assert share == pytest.approx(host.recoverable_ms_per_step / 24.0, abs=0.02)
    assert "of 24.0 ms a step (16.8 ms without waiting for a core)" in host.evidence


@pytest.mark.parametrize(("run_wait", "severity"), [(0.3, "high"), (0.7, "info")])
def test_of_a_run_that_mostly_waits_for_a_core_host_code_is_no_more_than_an_info(
    tmp_path, run_wait, severity
):
    """Six spinning processes beside it: the little CPU time that it got seemed to be a line's."""
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(240, forward=3.0, backward=5.0, other=16.0)
    samples = [{"site": "train.py:88", "function": "log_metrics", "inside": "", "count": 40}]
    build.event("stacks", rank=0, phase="other", period_ms=50, total=40, samples=samples)
    processes(build, run_wait=run_wait)
    assert found(build)["HO06"].severity == severity


def test_no_process_samples_no_verdict_on_cores(tmp_path):
    build = healthy(tmp_path)
    processes(build, run_wait=-1e-9)
    assert "IN04" not in found(build)


def test_garbage_collection(tmp_path):
    build = healthy(tmp_path, steps=10)
    build.event("gc", rank=0, duration_ms=389, step=50)
    for step in range(150):
        build.step(forward=10.0, backward=10.0, gc_ns=5_000_000 if step % 2 else 0)
    gc = found(build)["HO03"]
    assert gc.recoverable_ms_per_step == pytest.approx(2.5, rel=0.1)
    assert "389 ms" in gc.evidence


@pytest.mark.parametrize(("pauses", "flags"), [(2, 0), (40, wire.F_COMPILE)])
def test_pauses_of_the_collector_in_compilation_or_seldom_are_no_habit(tmp_path, pauses, flags):
    build = healthy(tmp_path, steps=10)
    for step in range(150):
        paused = step % (150 // pauses) == 5
        build.step(forward=10.0, gc_ns=900_000_000 * paused, flags=flags * paused)
    assert "HO03" not in found(build)


def died(tmp_path, exit_code, interrupted=False, steps_after=40, thread="Thread-4 (send)"):
    """A run of which a thread raises half way."""
    build = healthy(tmp_path, steps=40)
    head = {
        "class": "ConnectionError",
        "message": "server is away",
        "site": "train.py:9 send",
        "thread": thread,
    }
    build.event("exception", t_ns=build.clock[0], rank=0, phase="other", step=39, **head)
    if steps_after:
        build.steps(steps_after, forward=8.0, backward=12.0, seed=1)
    if interrupted:
        build.event("interrupt", signal=2, by="user")
    build.end(exit_code=exit_code)
    return found(build)


def test_a_thread_that_dies_is_no_failing_rank(tmp_path):
    well = died(tmp_path / "a", 0)
    assert list(well) == ["HC10"] and well["HC10"].severity == "info"
    badly = died(tmp_path / "b", 3)
    assert badly["HC10"].severity == "high" and "HC09" in badly and "HC06" not in badly
    assert died(tmp_path / "c", 130, interrupted=True)["HC10"].severity == "info"


def test_an_exception_that_is_reported_and_survived_fails_nothing(tmp_path):
    assert died(tmp_path / "a", 0, thread=None) == {}
    assert died(tmp_path / "b", 1, thread=None, steps_after=0)["HC06"].severity == "critical"


def contended(tmp_path, switches=600, busy=0.7):
    """A record in which forward and backward of 30 ms use 9 ms of CPU, with another Python thread
    that is busy.
    """
    build = Builder(tmp_path / "r")
    build.hello()
    for _ in range(150):
        build.step(
            forward=10.0, backward=20.0, optimizer=2.0, compute_cpu_ns=9_000_000, cpu_ns=9_600_000
        )
    processes(build, thread_cpu=0.3, cpu=0.3 + busy, switches=switches)
    for second in range(1, 6):
        rival = {"name": "logger", "cpu_share": busy, "site": "train.py:9", "function": "spin"}
        build.event(
            "threads", T0 + second * 10**9, rank=0, period_ms=1000, threads=[rival] if busy else []
        )
    return build


def test_a_thread_that_holds_the_gil(tmp_path):
    gil = found(contended(tmp_path))["HO04"]
    assert gil.recoverable_ms_per_step == pytest.approx(32 * 0.7, rel=0.02)
    assert gil.site == "train.py:9 spin"
    assert "thread logger at train.py:9 spin" in gil.fix


@pytest.mark.parametrize(
    "given", [{"switches": 35}, {"busy": 0.0}], ids=["long waits", "no busy thread"]
)
def test_waiting_for_io_in_forward_is_not_the_gil(tmp_path, given):
    assert "HO04" not in found(contended(tmp_path, **given))


def test_threads_that_share_a_core_while_another_is_free_are_no_lack_of_cores(tmp_path):
    build = healthy(tmp_path)
    processes(build, run_wait=0.5, cpu=1.0)
    for tick in range(6):
        build.sample("host", t_ns=T0 + tick * 500_000_000, cpu_pct=55.0, cpu_count=2)
    queue = found(build)["IN04"]
    assert queue.severity == "info"
    assert "idle" in queue.evidence


def test_host_code_is_named_by_its_line(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(150, forward=6.0, backward=9.0, other=8.0)
    samples = [{"site": "train.py:88", "function": "log_metrics", "inside": "", "count": 40}]
    build.event("stacks", rank=0, phase="other", period_ms=50, total=40, samples=samples)
    host = found(build)["HO06"]
    assert host.site == "train.py:88 log_metrics"
    assert host.recoverable_ms_per_step == pytest.approx(8, rel=0.05)


def test_the_agents_own_set_up_is_not_host_code(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    build.step(other=2000.0, forward=1.0)
    build.step(other=500.0, forward=1.0, flags=wire.F_AGENT, agent_ns=500_000_000)
    build.steps(100, forward=6.0, backward=9.0)
    assert found(build) == {}


@pytest.mark.parametrize(
    ("phase", "flag", "id"),
    [("checkpoint", wire.F_CHECKPOINT, "HO07"), ("eval", wire.F_EVAL, "HO08")],
)
def test_checkpoints_and_evaluation(tmp_path, phase, flag, id):
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(200):
        often = step % 10 == 9
        build.step(
            forward=10.0, flags=flag * often or wire.F_FIRST * (step == 0), **{phase: 50.0 * often}
        )
    assert list(found(build)) == [id]
    rarer, won = {"HO07": (500, 0.98), "HO08": (100, 0.9)}[
        id
    ]  # 50 ms in 500 steps of 10 ms are 1 %
    assert found(build)[id].recoverable_ms_per_step == pytest.approx(5.0 * won, rel=0.05)
    assert f"every {rarer} steps" in found(build)[id].fix


@pytest.mark.parametrize(("exit_code", "every"), [(0, 62), (1, 200), (None, 200)])
def test_of_a_run_that_has_ended_well_two_evaluations_are_left(tmp_path, exit_code, every):
    """It was told to evaluate every 200 steps, of which it has 125."""
    build = Builder(tmp_path / "r")
    build.hello(dataloader={"inside": ["transformers"], "num_workers": 0})
    for step in range(125):
        often = step % 20 == 19
        flags = wire.F_EVAL * often or wire.F_FIRST * (step == 0)
        build.step(forward=10.0, flags=flags, eval=100.0 * often)
    if exit_code is not None:
        build.end(exit_code)
    told = found(build)["HO08"]
    assert f"eval_steps={every} in TrainingArguments" in told.fix
    assert "save_steps must be a multiple of it" in told.fix
    assert told.recoverable_ms_per_step == pytest.approx(4.8 * (1 - 20 / every), rel=0.05)


def test_a_last_checkpoint_beside_regular_ones_does_not_change_their_distance(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(49):
        often = step % 6 == 5 or step == 48
        flags = wire.F_CHECKPOINT * often or wire.F_FIRST * (step == 0)
        build.step(forward=10.0, flags=flags, checkpoint=50.0 * often)
    assert "one every 6 steps or so" in found(build)["HO07"].evidence


def test_evaluations_at_one_step_and_two_in_turn_have_the_mean_distance(tmp_path):
    """Ultralytics' epochs of 12 batches, of which 8 are an update: 1, 2, 1, 2 steps apart."""
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(120):
        often = step % 5 in (0, 1, 2)
        flags = wire.F_EVAL * often or wire.F_FIRST * (step == 0)
        build.step(forward=100.0, flags=flags, eval=60.0 * often)
    told = found(build)["HO08"]
    assert "one every 2 steps or so" in told.evidence and "of every 2" in told.fix


def test_the_code_around_an_evaluation_is_part_of_it(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(200):
        often = step % 10 == 9
        flags = wire.F_EVAL * often or wire.F_FIRST * (step == 0)
        build.step(forward=10.0, flags=flags, eval=12.0 * often, other=0.5 + 20.0 * often)
    told = found(build)["HO08"]
    assert told.recoverable_ms_per_step == pytest.approx(3.2 * 0.9, rel=0.05)
    assert "32 ms each, of which 12 ms in the model" in told.evidence


def test_samples_that_a_policy_draws_now_and_then_are_no_evaluations(tmp_path):
    """Each 16th step has them, and each third of these an evaluation before."""
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(400):
        draws, judges = step % 16 == 15, step % 48 == 47
        flags = wire.F_EVAL * judges or wire.F_FIRST * (step == 0)
        build.step(
            forward=10.0, flags=flags, eval=10.0 * judges, other=0.5 + 100.0 * draws + 2.0 * judges
        )
    assert "HO08" not in found(build)


CALL, HOOK, DECODES = "train.py:5 main", "train.py:20 prediction_step", "train.py:30 decode"


@pytest.mark.parametrize(
    ("path", "site"),
    [
        ((HOOK, "train.py:31 forward"), CALL),
        ((HOOK, "loop train.py:29 decode", DECODES, "train.py:31 forward"), DECODES),
    ],
)
def test_a_loop_that_asks_the_model_again_for_each_word_is_the_evaluations_place(
    tmp_path, path, site
):
    """Else it is the line that asks the trainer."""
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(200):
        often = step % 10 == 9
        flags = wire.F_EVAL * often or wire.F_FIRST * (step == 0)
        build.step(forward=10.0, flags=flags, eval=60.0 * often)
    for phase, below in (("eval", path), ("forward", ("train.py:31 forward",))):
        sample = {"site": "train.py:31", "function": "forward", "count": 60}
        sample["path"] = [CALL, "(transformers)", *below]
        sample["inside"] = "torch/nn/modules/linear.py:134 forward"
        build.event("stacks", rank=0, phase=phase, period_ms=20, total=60, samples=[sample])
    sample = {"site": CALL.split()[0], "function": "main", "count": 9, "path": [CALL]}
    sample["inside"] = "transformers/trainer.py:2000 train"
    build.event("stacks", rank=0, phase="other", period_ms=20, total=9, samples=[sample])
    assert found(build)["HO08"].site == site


@pytest.mark.parametrize(("line", "is_told"), [("rl.py:9 main", True), ("rl.py:7 main", False)])
def test_code_below_the_line_that_evaluates_in_each_step_counts(tmp_path, line, is_told):
    """Its own forwards are a tenth of the step, its simulator's steps a quarter."""
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(200):
        build.step(forward=6.5, flags=wire.F_EVAL, eval=1.0, other=2.5)
        if step % 10 == 9:
            for phase, at in (
                ("forward", "rl.py:7 main"),
                ("eval", "rl.py:9 main"),
                ("other", line),
            ):
                sample = {"site": "rl.py:30", "function": "work", "count": 10}
                sample["path"] = [at, "rl.py:30 work"]
                build.event("stacks", rank=0, phase=phase, period_ms=20, total=10, samples=[sample])
    assert ("HO08" in found(build)) is is_told


def test_one_long_checkpoint_is_only_mentioned(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(400):
        build.step(
            forward=10.0, checkpoint=500.0 * (step == 399), flags=wire.F_CHECKPOINT * (step == 399)
        )
    assert [one.severity for one in found(build).values()] == ["info"]


def ddp(tmp_path, ranks=3, steps=150, culprit=1, noise=0.4, seed=0, **excess):
    """A synchronous run in which ``culprit`` takes ``excess`` milliseconds longer in
    some phases.
    """
    build = Builder(tmp_path / "r")
    random = np.random.default_rng(seed)
    for rank in range(ranks):
        build.hello(rank, world_size=ranks)
    for _ in range(steps):
        base = {"data": 0.5, "forward": 5.0, "backward": 10.0, "optimizer": 1.0, "other": 0.5}
        own = [
            dict(base, backward=base["backward"] + noise * random.exponential())
            for _ in range(ranks)
        ]
        for phase, ms in excess.items():
            own[culprit][phase] += ms
        slowest = max(sum(phases.values()) for phases in own)
        for rank, phases in enumerate(own):
            build.step(rank, wait_ms=slowest - sum(phases.values()) + 0.2, **phases)
    return build


@pytest.mark.parametrize(
    ("phase", "id"),
    [
        ("backward", "CR01"),
        ("forward", "CR02"),
        ("data", "IN11"),
        ("other", "CR04"),
        ("optimizer", "CR04"),
    ],
)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_straggler_is_named_with_rank_phase_and_cost(tmp_path, phase, id, ranks):
    only = found(ddp(tmp_path, ranks, **{phase: 6.0}))
    assert [f.id for f in only.values() if f.severity != "info"] == [id]
    assert only[id].rank == 1
    assert only[id].recoverable_ms_per_step == pytest.approx(6.0, rel=0.2)
    low, high = only[id].interval_ms_per_step
    assert low <= only[id].recoverable_ms_per_step <= high
    if phase == "optimizer":
        assert "optimizer" in only[id].title


@pytest.mark.parametrize(("ranks_on", "ids"), [((1,), ["HO16"]), ((0, 1), ["CR02", "HO16"])])
def test_an_aid_that_one_rank_alone_has_on_is_why_it_is_late(tmp_path, ranks_on, ids):
    build = ddp(tmp_path, 2, forward=6.0)
    for rank in ranks_on:
        build.event("hello_update", rank=rank, debug={"anomaly": 1.0})
    only = found(build)
    assert sorted(one.id for one in only.values() if one.severity != "info") == ids
    assert only["HO16"].rank == (1 if len(ranks_on) == 1 else None)


@pytest.mark.parametrize(("phase", "id"), [("backward", "CR01"), ("data", "IN11")])
def test_the_title_of_a_straggler_says_what_mending_it_wins(tmp_path, phase, id):
    """The others wait 9 ms for a rank that is 6 ms late, since their sums no longer overlap; the
    title said that they lose 9, and the line below it that mending wins 6.
    """
    build = Builder(tmp_path / "r")
    for rank in range(4):
        build.hello(rank, world_size=4)
    for _ in range(200):
        for rank in range(4):
            own = {"data": 0.5, "forward": 5.0, "backward": 10.0}
            own[phase] += 6.0 * (rank == 1)
            build.step(rank, wait_ms=0.2 if rank == 1 else 9.2, **own)
    slow = found(build)[id]
    assert slow.recoverable_ms_per_step == pytest.approx(6.0, rel=0.05)
    assert f"the others lose {slow.recoverable_ms_per_step:.1f} ms a step" in slow.title


@pytest.mark.parametrize("seed", range(5))
def test_no_straggler_among_equal_ranks_with_autocorrelated_noise(tmp_path, seed):
    build = Builder(tmp_path / "r")
    random = np.random.default_rng(seed)
    drift = np.ones(4)
    for rank in range(4):
        build.hello(rank, world_size=4)
    for _ in range(300):
        drift = 1 + 0.97 * (drift - 1) + 0.03 * random.standard_normal(4)
        own = 20 * np.maximum(0.5, drift)
        for rank in range(4):
            build.step(rank, backward=own[rank], wait_ms=own.max() - own[rank])
    assert not {"CR01", "CR02", "CR03", "CR04", "IN11"} & set(found(build))


def test_ranks_without_any_measure_of_waiting_are_not_judged(tmp_path):
    build = Builder(tmp_path / "r")
    for rank in range(2):
        build.hello(rank, world_size=2)
        build.steps(150, rank, forward=5.0, backward=10.0 + 10 * rank)
    assert found(build) == {}


def test_a_straggler_from_arrival_times(tmp_path):
    build = Builder(tmp_path / "r")
    for rank in range(2):
        build.hello(rank, world_size=2)
        for _ in range(120):
            build.step(rank, forward=5.0 + 6 * rank, backward=12.0 - 6 * rank)
        begins = [T0 + step * 17_000_000 for step in range(120)]
        entries = [
            {
                "group": "0",
                "seq": seq,
                "op": "all_reduce",
                "created_ns": at + (5 + 6 * rank) * 1_000_000,
            }
            for seq, at in enumerate(begins)
        ]
        build.event("flight_recorder", rank=rank, entries=entries)
    slow = found(build)["CR02"]
    assert (slow.rank, slow.recoverable_ms_per_step) == (1, pytest.approx(6.0, rel=0.05))


def waiting_for_cores(build, ranks):
    for tick in range(8):
        for rank in range(ranks):
            waited = {
                "run_wait_ns_total": tick * 10**8,
                "pid": 100 + rank,
                "rank": rank,
                "kind": PROCESS_RANK,
            }
            build.sample("process", t_ns=T0 + tick * 5 * 10**8, **waited)


def test_uneven_batches(tmp_path):
    build = Builder(tmp_path / "r")
    random = np.random.default_rng(0)
    truth = []
    for rank in range(3):
        build.hello(rank, world_size=3)
    for _ in range(200):
        tokens = random.integers(100, 1000, 3)
        own = 5 + tokens * 0.02
        truth.append(own.max() - own.mean())
        for rank in range(3):
            build.step(
                rank, forward=own[rank], wait_ms=own.max() - own[rank], tokens=int(tokens[rank])
            )
    waiting_for_cores(build, 3)  # it does not explain what follows the lengths
    uneven = found(build)["CR05"]
    assert uneven.recoverable_ms_per_step == pytest.approx(np.mean(truth), rel=0.1)
    assert "correlation 1.00" in uneven.evidence


@pytest.mark.parametrize("by_cpu_time", [True, False])
def test_sizes_that_nothing_counts_are_uneven_where_cpu_time_is(tmp_path, by_cpu_time):
    """Pictures of two sizes, drawn on each rank by itself."""
    build, random = Builder(tmp_path / "r"), np.random.default_rng(0)
    for rank in range(2):
        build.hello(rank, world_size=2)
    for _ in range(200):
        own = np.where(random.random(2) < 0.5, 12.0, 45.0)
        for rank in range(2):
            cpu_ns = int(1e6 * (own[rank] if by_cpu_time else 30.0))
            build.step(rank, forward=own[rank], wait_ms=own.max() - own[rank], cpu_ns=cpu_ns)
    waiting_for_cores(build, 2)
    assert ("CR05" in found(build)) is by_cpu_time


@pytest.mark.parametrize("by_cpu_time", [True, False])
def test_little_unevenness_counts_where_cpu_time_follows_it(tmp_path, by_cpu_time):
    """A layer that is passed through two or three times, as each rank draws for itself."""
    build, random = Builder(tmp_path / "r"), np.random.default_rng(0)
    for rank in range(2):
        build.hello(rank, world_size=2)
    for _ in range(200):
        own = np.where(random.random(2) < 0.5, 36.0, 46.0)
        for rank in range(2):
            cpu_ns = int(1e6 * (own[rank] if by_cpu_time else 36.0))
            build.step(rank, forward=own[rank], wait_ms=own.max() - own[rank], cpu_ns=cpu_ns)
        waiting_for_cores(build, 2)
    line = {
        "site": "train.py:12",
        "function": "main",
        "inside": "torch/nn/modules/module.py:1 _call",
    }
    line.update(path=["train.py:12 main"], code="out = net(x)", count=40)
    back = dict(line, site="train.py:13", path=["train.py:13 main"], code="loss.backward()")
    back.update(inside="torch/autograd/graph.py:1 _engine_run_backward")
    for phase, sample in (("forward", line), ("backward", back)):
        build.event("stacks", rank=0, phase=phase, period_ms=50, total=40, samples=[sample])
    uneven = found(build).get("CR05")
    assert (uneven is not None) is by_cpu_time
    assert uneven is None or "uneven work" in uneven.title
    assert uneven is None or uneven.site == "train.py:12 main"


def test_nan_loss_with_step_rank_and_lr(tmp_path):
    build = healthy(tmp_path, ranks=2, steps=50)
    for rank in (0, 1):
        for step in range(20):
            flags = wire.F_NONFINITE if rank == 1 or step > 3 else 0
            build.step(
                rank, forward=20.0, flags=flags, loss=float("nan") if flags else 1.5, lr=3e-4
            )
    build.event("nonfinite", rank=1, step=50, value="nan")
    nan = found(build)["NU01"]
    assert (nan.rank, nan.severity) == (1, "critical")
    assert "NaN at step 50 on rank 1" in nan.title
    assert "lr 0.0003" in nan.evidence


def test_a_nan_inside_a_folded_record_is_one_step_that_passed(tmp_path):
    build = healthy(tmp_path, ranks=1, steps=50)
    for _ in range(3):
        build.step(forward=0.5, n_steps=17, flags=wire.F_NONFINITE, loss=0.5)
    build.event("nonfinite", rank=0, step=53, value="nan")
    nan = found(build)["NU01"]
    assert nan.title.endswith("finite again since")
    assert "about 3 steps" in nan.evidence


def test_loss_spike_and_its_step(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    random = np.random.default_rng(0)
    for step in range(300):
        build.step(forward=5.0, loss=2.0 + 0.05 * random.standard_normal() + 6 * (step == 211))
    spike = found(build)["NU02"]
    assert (spike.severity, spike.rank) == ("medium", 0)
    assert "step 211" in spike.title


def test_a_loss_of_both_signs_may_jump(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    random = np.random.default_rng(0)
    for step in range(300):
        build.step(forward=5.0, loss=-0.1 + 0.3 * random.standard_normal() + 6 * (step == 211))
    spike = found(build)["NU02"]
    assert spike.severity == "info" and "rewards" in spike.fix


def test_a_spike_inside_folded_steps_is_found(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    random = np.random.default_rng(0)
    for record in range(100):
        loss = 2.0 + 0.05 * random.standard_normal()
        build.step(n_steps=5, forward=4.0, loss=loss, loss_max=loss + 6 * (record == 70))
    spike = found(build)["NU02"]
    assert "steps 350 to 354" in spike.title
    assert spike.title.startswith("loss jumps to 8")


def test_unknown_losses_are_no_spikes(tmp_path):
    assert "NU02" not in found(healthy(tmp_path, steps=300))


def rss(tmp_path, curve):
    build = Builder(tmp_path / "r")
    build.hello()
    for size_mb in curve:
        build.step(forward=20.0, rss_bytes=int(size_mb * 1e6))
    return found(build)


def test_growing_host_memory(tmp_path):
    leak = rss(tmp_path, 400 + 1.0 * np.arange(300))["ME05"]
    assert "1.00 MB a step" in leak.evidence
    assert leak.rank == 0


def test_memory_that_fills_up_and_then_stands_still(tmp_path):
    assert rss(tmp_path, 400 + 300 * (1 - np.exp(-np.arange(400) / 40))) == {}


def test_a_saw_tooth_is_no_growth(tmp_path):
    assert rss(tmp_path, 400 + np.arange(400) % 50 * 4.0) == {}


def test_a_hang_names_the_rank_that_is_not_in_the_collective(tmp_path):
    build = healthy(tmp_path, ranks=3, steps=40)
    at = build.clock[0] + 31 * 10**9
    build.event("hang_suspected", t_ns=at, ranks=[0, 1, 2], silent_s=31.0, limit_s=30.0)
    for rank in range(3):
        frames = ["torch/autograd/graph.py:9 _engine", "train.py:50 main"]
        if rank == 2:
            frames = ["threading.py:300 wait", "train.py:77 sync_files", "train.py:50 main"]
        threads = [{"name": "MainThread", "training": True, "frames": frames}]
        state = {
            "seq": 39 if rank == 2 else 40,
            "op": "gloo:all_reduce",
            "state": "completed" if rank == 2 else "started",
        }
        build.event(
            "stack_dump",
            t_ns=at + 10,
            rank=rank,
            phase="backward",
            step=40,
            threads=threads,
            collective=state,
        )
    hang = found(build)["HC01"]
    assert (hang.rank, hang.severity, hang.site) == (2, "critical", "train.py:77 sync_files")
    assert "ranks 0, 1 wait in all_reduce number 40 of the default group" in hang.evidence
    build.event("hang_over", t_ns=at + 10**9)
    assert found(build)["HC01"].severity == "high"


def test_the_first_exception_is_the_cause(tmp_path):
    build = healthy(tmp_path, ranks=2, steps=40)
    build.event(
        "exception",
        t_ns=T0 + 900,
        rank=0,
        **{"class": "RuntimeError"},
        message="Connection closed by peer",
    )
    head = {
        "class": "ValueError",
        "message": "a shard is missing\nmore",
        "site": "train.py:12 load",
    }
    build.event("exception", t_ns=T0 + 500, rank=1, phase="data", step=39, **head)
    build.end(exit_code=1)
    first = found(build)
    assert list(first) == ["HC06"]
    assert (first["HC06"].rank, first["HC06"].absorbed, first["HC06"].site) == (
        1,
        ("HC09",),
        "train.py:12 load",
    )


@pytest.mark.parametrize(("code", "said"), [(3, "exit 3"), (137, "SIGKILL"), (139, "SIGSEGV")])
def test_exit_codes_are_decoded(tmp_path, code, said):
    build = healthy(tmp_path, steps=40)
    build.end(exit_code=code)
    ended = found(build)["HC09"]
    assert said in ended.title
    assert ended.severity == "critical"
    assert "after at least 40 steps" in ended.evidence
    build.event("goodbye", rank=0, steps=40)
    assert "after 40 steps" in found(build)["HC09"].evidence


def test_a_run_that_the_user_stopped_needs_no_mending(tmp_path):
    build = healthy(tmp_path, steps=40)
    build.event("interrupt", signal=2, by="user")
    build.end(exit_code=130)
    assert found(build)["HC09"].severity == "info"


def test_live_findings_neither_flicker_nor_linger(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(dataloader={**LOADER, "num_workers": 4})
    build.steps(100, forward=5.0, data=10.0)
    record = build.open()
    live = LiveFindings(record, window_steps=50)
    shown = []
    for tick in range(12):
        if tick == 5:
            build.steps(60, forward=5.0)
        record.refresh()
        shown.append(bool(live.tick()))
    assert shown == [False, False, True, True, True, True, True, True, True, False, False, False]


def test_a_run_is_called_healthy_only_after_three_looks_at_enough_steps(tmp_path):
    build = healthy(tmp_path, steps=25)
    record = build.open()
    live = LiveFindings(record)
    live.tick()
    build.steps(95, forward=6.0, backward=12.0, optimizer=2.0, data=0.3, other=0.3)
    settled = []
    for _ in range(4):
        record.refresh()
        found = live.tick()
        settled.append(live.settled)
        said = verdict(summarise(record, now_ns=T0 + 10**10), found, live.settled)
        assert said.health == ("healthy" if live.settled else "looking")
    assert settled == [False, False, True, True]


def test_a_run_with_a_candidate_is_not_called_healthy(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(dataloader={**LOADER, "num_workers": 4})
    build.steps(100, forward=5.0)
    record = build.open()
    live = LiveFindings(record, window_steps=50)
    live.tick()
    build.steps(60, forward=5.0, data=10.0)
    looks = []
    for _ in range(6):
        record.refresh()
        looks.append((bool(live.tick()), live.settled))
    assert set(looks) == {(False, False), (True, True)} and looks == sorted(looks)


def test_facts_are_shown_at_once(tmp_path):
    build = healthy(tmp_path, steps=40)
    record = build.open()
    live = LiveFindings(record)
    assert live.tick() == []
    build.event("nonfinite", rank=0, step=39, value="inf")
    record.refresh()
    assert [one.id for one in live.tick()] == ["NU01"]


def test_the_catalogue_is_complete_and_speaks():
    expected = (
        "IN01 IN02 IN04 HO03 HO04 HO06 HO07 HO08 CR01 CR02 CR03 CR04 CR05 NU01 NU02 "
        "ME05 HC01 HC06 HC09"
    )
    assert set(expected.split()) <= set(CATALOGUE)
    for spec in CATALOGUE.values():
        assert spec.trigger and spec.fix and spec.name
        assert {*spec.explains, *spec.explained_by} <= set(CATALOGUE)
        assert spec.family in FAMILIES


def test_every_finding_of_a_bad_record_is_plain_data(tmp_path):
    build = ddp(tmp_path, 2, forward=6.0)
    build.event("nonfinite", rank=0, step=5, value="nan")
    build.end(exit_code=1)
    for one in evaluate(build.open()):
        assert isinstance(one, Finding)
        assert len(one.title) <= 140
        assert "{" not in one.fix + one.evidence + one.title
        assert type(one.confidence) is float


def test_a_loss_function_between_forward_and_backward_is_no_host_code(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(150, forward=6.0, backward=9.0, other=4.0)
    inside = {
        "site": "train.py:30",
        "function": "main",
        "inside": "torch/nn/functional.py:3500 cross_entropy",
        "count": 30,
    }
    build.event("stacks", rank=0, phase="other", period_ms=50, total=30, samples=[inside])
    assert found(build) == {}


def test_waiting_for_the_device_is_no_host_code(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(device="cuda:0")
    build.steps(
        150, forward=2.0, backward=2.0, other=12.0
    )  # .item() waits for the device, whose clock nobody read
    assert found(build) == {}
