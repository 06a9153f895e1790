"""Runs that stand still, and runs that died of memory, on built records."""

import pytest
from analysis_support import T0, Builder

from gputop_analysis.findings import evaluate
from gputop_analysis.summary import summarise
from gputop_analysis.verdict import verdict
from gputop_probes.record.layout import PROCESS_RANK, PROCESS_WORKER

SILENT_S = 31
OOM = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in "
    "use. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 16.50 GiB is reserved by "
    "PyTorch but unallocated."
)


STACK = ("train.py:77 read", "train.py:50 main")


def silent(
    tmp_path,
    phase="backward",
    ranks=1,
    waiting=(),
    state="S",
    cpu=0.0,
    queued=0.0,
    workers=(),
    gpu_util=None,
    loader=0,
    frames=STACK,
):
    """A run whose ranks stop after 40 steps; ``cpu`` and ``workers`` are the cores in use while it
    is silent, ``queued`` what the training thread waits for one.
    """
    build = Builder(tmp_path / "r")
    for rank in range(ranks):
        build.hello(
            rank, world_size=ranks, dataloader={"num_workers": loader, "site": "train.py:41"}
        )
        build.steps(40, rank, forward=6.0, backward=12.0)
    stopped = build.clock[0]
    for tick in range(2 * SILENT_S):
        at = stopped + tick * 500_000_000
        for rank in range(ranks):
            used = {"cpu_ns_total": int(cpu * tick * 5e8), "pid": 100 + rank, "rank": rank}
            used["run_wait_ns_total"] = int(queued * tick * 5e8)
            build.sample("process", t_ns=at, kind=PROCESS_RANK, state=ord(state), **used)
        for number, share in enumerate(workers):
            used = {"cpu_ns_total": int(share * tick * 5e8), "pid": 200 + number, "rank": 0}
            build.sample("process", t_ns=at, kind=PROCESS_WORKER, state=ord("S"), **used)
        if gpu_util is not None:
            build.sample("gpu", t_ns=at, index=0, util_pct=gpu_util, memory_total_bytes=80 << 30)
    at = stopped + SILENT_S * 10**9
    thread = {
        "rank": 0,
        "pid": 100,
        "state": state,
        "wchan": "rpc_wait_bit_killable",
        "path": "/data/a.bin",
    }
    build.event(
        "hang_suspected",
        t_ns=at,
        ranks=list(range(ranks)),
        silent_s=SILENT_S,
        limit_s=30.0,
        threads=[thread | {"mount": "/data (nfs4)"}],
    )
    for rank in range(ranks):
        threads = [{"name": "MainThread", "training": True, "frames": list(frames)}]
        collective = {
            "seq": 40,
            "op": "nccl:all_reduce",
            "state": "started" if rank in waiting else "completed",
        }
        where = "backward" if rank in waiting else phase
        build.event(
            "stack_dump",
            t_ns=at + 10,
            rank=rank,
            phase=where,
            step=40,
            threads=threads,
            collective=collective,
        )
    return build


def found(build):
    return {one.id: one for one in evaluate(build.open())}


def test_workers_that_do_nothing(tmp_path):
    hang = found(silent(tmp_path, "data", workers=(0.0, 0.001), loader=2))
    assert list(hang) == ["HC02"]
    assert "2 of 2 workers live" in hang["HC02"].title
    assert "timeout=60" in hang["HC02"].fix and "forkserver" in hang["HC02"].fix
    assert (hang["HC02"].rank, hang["HC02"].site, hang["HC02"].severity) == (
        0,
        "train.py:41",
        "critical",
    )
    proof = hang["HC02"].proof
    assert proof is not None and proof.value == SILENT_S


def test_workers_that_are_gone(tmp_path):
    assert (
        "none of the 2 workers is left" in found(silent(tmp_path, "data", loader=2))["HC02"].title
    )


def test_workers_that_work_are_no_loader_hang(tmp_path):
    assert list(found(silent(tmp_path, "data", workers=(0.7, 0.0), loader=2))) == ["HC01"]


def test_storage_that_does_not_answer(tmp_path):
    hang = found(silent(tmp_path, "data", state="D"))
    assert list(hang) == ["HC03"]
    assert "/data/a.bin" in hang["HC03"].title and "/data (nfs4)" in hang["HC03"].fix


def test_busy_without_a_step(tmp_path):
    assert list(found(silent(tmp_path, "other", cpu=1.0))) == ["HC08"]
    busy = found(silent(tmp_path / "b", gpu_util=100.0))
    assert list(busy) == ["HC08"]
    assert "GPU 100 % utilised" in busy["HC08"].evidence


def test_a_loop_that_spins_among_other_programs_gets_half_a_core_and_wants_all_of_it(tmp_path):
    spins = found(silent(tmp_path, "other", cpu=0.5, queued=0.48))
    assert "HC01" not in spins
    assert "0.98 cores in use or waited for" in spins["HC08"].evidence
    assert "HC08" not in found(silent(tmp_path / "b", "other", cpu=0.5, queued=0.1))


def test_ranks_that_spin_in_a_collective_are_not_busy(tmp_path):
    hang = found(silent(tmp_path, "other", ranks=3, waiting=(0, 2), cpu=0.3, gpu_util=100.0))
    assert (list(hang), hang["HC01"].rank) == (["HC01"], 1)


def test_a_rank_whose_loader_hangs_holds_up_the_others(tmp_path):
    hang = found(silent(tmp_path, "data", ranks=2, waiting=(1,), loader=1, workers=(0.0,)))
    assert (list(hang), hang["HC02"].rank) == (["HC02"], 0)


@pytest.mark.parametrize(
    ("phase", "cpu", "severity"),
    [
        ("other", 1.0, "info"),
        ("eval", 0.6, "info"),
        ("other", 0.0, "high"),
        ("eval", 0.0, "high"),
    ],
)
def test_steps_that_came_again_after_work_are_no_hang_and_after_a_wait_one_that_is_over(
    tmp_path, phase, cpu, severity
):
    build = silent(tmp_path, phase, cpu=cpu)
    build.event("hang_over", t_ns=build.clock[0] + 40 * 10**9)
    (hang,) = found(build).values()
    assert hang.severity == severity and hang.title.startswith(
        "hung" if severity == "high" else "a long pause"
    )


@pytest.mark.parametrize(("exit_code", "severity"), [(0, "info"), (1, "critical")])
def test_a_last_evaluation_that_ends_well_is_no_hang(tmp_path, exit_code, severity):
    build = silent(tmp_path, "eval")
    build.event("hang_over", t_ns=build.clock[0] + 40 * 10**9, ranks=[0], reason="gone")
    build.end(exit_code)
    assert next(one for one in found(build).values() if one.id == "HC01").severity == severity


def test_a_debugger_is_no_hang(tmp_path):
    build = silent(tmp_path, "other", frames=("pdb.py:320 interaction", *STACK))
    (hang,) = found(build).values()
    assert (hang.severity, "debugger" in hang.evidence) == ("info", True)


def failing(tmp_path, kind="RuntimeError", message="", exit_code=1, **last):
    build = Builder(tmp_path / "r")
    build.hello(dataloader={"num_workers": 4})
    for step in range(40):
        build.step(forward=6.0, peak_allocated_bytes=(40 << 30) + step * (1 << 28))
    head = {
        "class": kind,
        "message": message,
        "site": "train.py:12 step",
        "phase": "forward",
        "step": 39,
    }
    build.event("exception", rank=0, **head, **last)
    build.end(exit_code=exit_code)
    return build


def test_synthetic_out_of_gpu_memory(tmp_path):
    only = found(failing(tmp_path, "OutOfMemoryError", OOM))
    assert "HC04" in only and not {"HC06", "HC09"} & set(only)
    oom = only["HC04"]
    assert "2.50 GiB" in oom.title and "expandable_segments" in oom.fix and "grows" in oom.fix
    assert (oom.site, oom.rank, set(oom.absorbed) >= {"HC06", "HC09"}) == (
        "train.py:12 step",
        0,
        True,
    )
    assert oom.proof is not None and (oom.proof.value, oom.proof.threshold) == (2.5, 1.2)


def test_shared_memory(tmp_path):
    message = "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that ..."
    assert list(found(failing(tmp_path, message=message))) == ["HC07"]


@pytest.mark.parametrize(("used_mib", "total_mib"), [(63, 64), (3, 64), (30_000, 30_720)])
def test_shared_memory_that_is_full_or_small(tmp_path, used_mib, total_mib):
    build = failing(tmp_path, message="DataLoader worker (pid 7) is killed by signal: Bus error.")
    used = {"shm_used_bytes": used_mib << 20, "shm_total_bytes": total_mib << 20}
    build.sample("host", t_ns=T0, **used)
    assert list(found(build)) == ["HC07"]


def test_a_bus_error_beside_much_free_shared_memory_is_of_a_mapped_file(tmp_path):
    build = failing(tmp_path, message="DataLoader worker (pid 7) is killed by signal: Bus error.")
    build.sample("host", t_ns=T0, shm_used_bytes=3 << 20, shm_total_bytes=24_000 << 20)
    (crash,) = found(build).values()
    assert crash.id == "HC06" and "os.replace()" in crash.fix


@pytest.mark.parametrize(
    ("kills", "code", "ids"), [(1, 137, ["HC05"]), (0, 137, ["HC09"]), (1, 0, [])]
)
def test_host_memory_needs_a_kill_and_a_sigkill(tmp_path, kills, code, ids):
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(40, forward=6.0)
    for tick in range(3):
        build.sample(
            "host", t_ns=T0 + tick, cgroup_oom_kill_total=5, cgroup_memory_max_bytes=4 << 30
        )
    build.event("run_end", exit_code=code, oom_kills=kills)
    build.end(exit_code=code)
    assert [i for i in found(build) if i.startswith("HC")] == ids


GLOO_SAYS = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 552 vs 4.\n"
)


@pytest.mark.parametrize("printed", [GLOO_SAYS, "Killed\n"], ids=["gloo", "killed"])
def test_a_rank_that_died_of_what_another_one_sent(tmp_path, printed):
    """Rank 1 leaves out a collective, and gloo ends rank 0, which receives the next one instead."""
    build = Builder(tmp_path / "r")
    for rank in (0, 1):
        build.hello(rank, world_size=2)
        build.steps(20, rank, forward=6.0, backward=12.0)
    at = build.clock[1]
    calls = [(number, "552" if number % 2 else "1") for number in range(40)] + [(40, "552")]
    entries = [
        {"group": "0", "seq": number, "op": "gloo:all_reduce", "shapes": shapes, "bytes": 4,
         "state": "completed", "created_ns": at - 10**6 * (41 - number)}
        for number, shapes in calls
    ]  # fmt: skip
    build.event(
        "exception", t_ns=at, rank=1, message="Connection closed by peer", step=20,
        phase="backward", site="train.py:80 main", thread=None, traceback=[],
        **{"class": "RuntimeError"},
    )  # fmt: skip
    # what was told for other reasons is of a moment before
    for reason, told in (("", entries[:-7]), ("exception", entries)):
        build.event("flight_recorder", t_ns=at + len(reason), rank=1, reason=reason, part=0,
                    parts=1, entries=told)  # fmt: skip
    build.event("goodbye", t_ns=at + 2, rank=1, steps=20, reason="exception")
    build.event("rank_lost", t_ns=at + 3, rank=0, pid=100, reason="process gone", step=19)
    (build.path / "hosts" / "box" / "output.log").write_text(printed)
    build.end(1)
    hang = found(build)
    if printed is not GLOO_SAYS:
        assert "rank 0 vanished first" in hang["HC06"].title and "CR12" not in hang
        return
    assert "HC06" not in hang
    assert (hang["CR12"].rank, hang["CR12"].site) == (1, "train.py:80 main")
    assert hang["CR12"].title == "rank 1 skipped all_reduce [1] of the default group"
    assert "rank 0 ended of it: it received 552 bytes and waited for 4" in hang["CR12"].evidence


# ---- before it counts as a hang

LOOK_S = 9.0
SECOND = 10**9


def standing(
    tmp_path, waiting=(0,), answered=(0, 1), line="train.py:92 evaluate", other=0.1, phase="other"
):
    """Two ranks that stop after 40 steps, and were looked at ``LOOK_S`` later. Rank 0 waits."""
    build = Builder(tmp_path / "r")
    for rank in (0, 1):
        build.hello(rank, world_size=2)
        build.steps(40, rank, forward=6.0, backward=12.0, other=other)
    at = max(build.clock.values()) + int(LOOK_S * SECOND)
    threads = [{"rank": rank, "pid": 100 + rank, "state": "S", "call": "sleep"} for rank in (0, 1)]
    build.event("standing", t_ns=at, ranks=[0, 1], silent_s=LOOK_S, limit_s=8.0, threads=threads)
    for rank in answered:
        waits = rank in waiting
        frames = ["torch/distributed/x.py:9 all_reduce", "train.py:80 main"] if waits else [line]
        collective = {"group": "0", "seq": 41 if waits else 40, "op": "gloo:all_reduce"}
        build.event(
            "stack_dump",
            t_ns=at + SECOND // 2,
            reason="standing",
            rank=rank,
            phase="comm" if waits else phase,
            step=40,
            threads=[{"name": "MainThread", "training": True, "frames": frames}],
            collective=collective | {"state": "started" if waits else "completed"},
        )
    return build, at


def judged_at(build, now_ns):
    record = build.open()
    found = evaluate(record, live=True)
    return verdict(summarise(record, now_ns=now_ns), found), {one.id: one for one in found}


def test_the_rank_that_others_wait_for_is_told_before_it_counts_as_a_hang(tmp_path):
    build, at = standing(tmp_path)
    said, found = judged_at(build, at + 3 * SECOND)
    assert (found["HC11"].rank, found["HC11"].severity) == (1, "high")
    assert said.health == "attention"
    assert said.headline == (
        "no step for 12 s: rank 1 stands at train.py:92 evaluate: it sleeps; rank 0 waits in "
        "all_reduce number 41 of the default group (train.py:80)"
    )


def test_who_is_waited_for_comes_before_what_steps_lost_also_once_the_run_is_stopped(tmp_path):
    build, at = standing(tmp_path, other=30.0)
    for live in (True, False):
        found = evaluate(build.open(), live=live)
        assert [one.id for one in found[:2]] == ["HC11", "HO06"]
    build.event("interrupt", t_ns=at + 3 * SECOND, signal=2, by="user")
    build.end(exit_code=130)
    said, _ = judged_at(build, at + 4 * SECOND)
    assert said.headline.startswith("stopped by you at step 40; rank 1 stands at train.py:92")


@pytest.mark.parametrize(
    "what", [{"waiting": ()}, {"waiting": (0, 1)}, {"answered": (0,)}], ids=["none", "all", "late"]
)
def test_a_silence_in_which_nobody_is_known_to_wait_for_one_is_no_finding(tmp_path, what):
    build, at = standing(tmp_path, **what)
    said, found = judged_at(build, at + 3 * SECOND)
    assert "HC11" not in found and said.headline.startswith("no step for 12 s, where one took 1")


@pytest.mark.parametrize("phase", ["eval", "checkpoint", "compile"])
def test_a_rank_that_does_what_others_are_to_wait_for_is_not_told(tmp_path, phase):
    build, at = standing(tmp_path, phase=phase)
    _, found = judged_at(build, at + 3 * SECOND)
    assert "HC11" not in found


def test_a_step_ends_what_was_told_of_the_silence(tmp_path):
    build, at = standing(tmp_path)
    for rank in (0, 1):
        build.step(rank, forward=LOOK_S * 1000 + 2000)
    _, found = judged_at(build, at + 3 * SECOND)
    assert "HC11" not in found


def test_a_suspected_hang_takes_over_from_the_look(tmp_path):
    build, at = standing(tmp_path)
    build.event("hang_suspected", t_ns=at + 22 * SECOND, ranks=[0, 1], silent_s=31.0, limit_s=30.0)
    _, found = judged_at(build, at + 23 * SECOND)
    assert "HC11" not in found and "HC01" in found


def test_a_rank_that_left_is_told_of_as_surely_as_in_a_hang(tmp_path):
    build, at = standing(tmp_path, answered=(0,))
    build.event("goodbye", t_ns=at - 5 * SECOND, rank=1, steps=40)
    _, found = judged_at(build, at + 3 * SECOND)
    assert found["HC11"].severity == "high" and "ended its training" in found["HC11"].title


def test_what_a_rank_calls_after_its_loop_is_no_mismatch(tmp_path):
    """Rank 0 has fewer batches and waits in the barrier behind the loop."""
    build = Builder(tmp_path / "r")
    for rank in (0, 1):
        build.hello(rank, world_size=2)
        build.steps(20, rank, forward=6.0, backward=12.0)
    at = build.clock[1]
    build.event("hang_suspected", t_ns=at, silent_s=30.0, limit_s=30.0, phase="comm")
    stands = {0: ("barrier", 30, []), 1: ("all_reduce", 12, ["10 for"])}
    for rank, (operation, line, blocks) in stands.items():
        done = [
            {"group": "0", "seq": number, "op": "gloo:all_reduce", "shapes": "1", "bytes": 4,
             "state": "completed", "created_ns": at - 10**6 * (41 - number), "site": "train.py:12"}
            for number in range(20)
        ]  # fmt: skip
        last = {"group": "0", "seq": 20, "op": f"gloo:{operation}", "shapes": "", "bytes": 0,
                "state": "scheduled", "created_ns": at, "site": f"train.py:{line}"}  # fmt: skip
        places = [{"site": f"train.py:{line}", "function": "main", "blocks": blocks, "code": ""}]
        frame = f"torch/distributed/distributed_c10d.py:5 {operation}"
        frames = [frame, f"train.py:{line} main"]
        threads = [{"name": "MainThread", "training": True, "frames": frames}]
        build.event("stack_dump", t_ns=at, rank=rank, reason="hang", phase="comm", step=20,
                    threads=threads, collective=last, places=places)  # fmt: skip
        build.event("flight_recorder", t_ns=at, rank=rank, reason="hang", part=0, parts=1,
                    entries=[*done, last])  # fmt: skip
    hang = found(build)
    assert "CR12" not in hang and hang["HC01"].rank == 0
    assert "rank 0 has left the loop at train.py:10" in hang["HC01"].title
