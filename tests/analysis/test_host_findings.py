"""Findings about Python and the host. Those about a GPU are judged on synthetic samples."""

import numpy as np
import pytest
from analysis_support import T0, Builder
from device_samples import gpu_run, gpu_samples

from gputop_agent import wire
from gputop_analysis.findings import evaluate
from gputop_analysis.findings.host.launches import SYNCHRONISES
from gputop_analysis.findings.host.periodic import strongest_period
from gputop_probes.record.layout import PROCESS_RANK


def found(build):
    return {one.id: one for one in evaluate(build.open())}


def plain(tmp_path, steps=150, **hello):
    build = Builder(tmp_path / "r")
    build.hello(**hello)
    build.steps(steps, forward=6.0, backward=12.0, optimizer=1.0, other=0.3)
    return build


# ---- HO15


def test_slow_steps_at_equal_distances_are_one_rhythm():
    at = np.array([19, 39, 59, 79, 99, 119, 63])
    period, members, p = strongest_period(np.sort(at))
    assert period == 20 and len(members) == 6 and p < 0.001


def test_random_slow_steps_have_no_rhythm():
    for seed in range(50):
        at = np.sort(np.random.default_rng(seed).choice(2000, 30, replace=False))
        period, members, p = strongest_period(at)
        assert p > 0.001 or len(members) < 0.7 * 2000 / period


def periodic(tmp_path, period=25, phase="other", lines=True, **extra):
    build = Builder(tmp_path / "r")
    build.hello()
    random = np.random.default_rng(0)
    for step in range(300):
        late = step % period == period - 1
        phases = {
            "forward": 6.0 * random.gamma(400, 1 / 400),
            "backward": 12.0,
            "other": 0.2,
            "data": 0.1,
        }
        phases[phase] += 30.0 * late
        build.step(**phases, **{name: value if late else 0 for name, value in extra.items()})
    samples = [{"site": "train.py:90", "function": "draw", "inside": "", "count": 9}]
    if lines:
        build.event("stacks", rank=0, phase="other", period_ms=50, total=9, samples=samples)
    return build


def test_a_stall_without_a_line_may_be_the_trainings_own_work(tmp_path):
    assert found(periodic(tmp_path, lines=False))["HO15"].severity == "info"


@pytest.mark.parametrize("periods", [12, 9])
def test_a_fast_loop_that_stalls_in_every_second_record_has_a_rhythm(tmp_path, periods):
    """Records of 15 and 5 steps, the last one of which stalls: half of all records have one, which
    are 18 where 180 steps were seen.
    """
    build = Builder(tmp_path / "r")
    build.hello()
    samples = [{"site": "train.py:90", "function": "draw", "inside": "", "count": 9}]
    build.event("stacks", rank=0, phase="other", period_ms=50, total=9, samples=samples)
    random = np.random.default_rng(0)
    for _ in range(periods):
        walls = random.gamma(400, 1.4 / 400, 20)
        walls[-1] += 60.0
        for part, stall_ms in ((walls[:15], 0.0), (walls[15:], 60.0)):
            forward_ms, other_ms = (part.sum() - stall_ms) / len(part), stall_ms / len(part)
            longest_ns = int(part.max() * 1e6)
            build.step(
                n_steps=len(part), forward=forward_ms, other=other_ms, wall_max_ns=longest_ns
            )
    stall = found(build)["HO15"]
    assert stall.title.startswith("every 20th step")
    assert stall.recoverable_ms_per_step == pytest.approx(3.0, rel=0.05)


def test_a_stall_every_25_steps_is_named_with_its_line(tmp_path):
    stall = found(periodic(tmp_path))["HO15"]
    assert stall.title.startswith("every 25th step") and stall.site == "train.py:90 draw"
    assert stall.recoverable_ms_per_step == pytest.approx(30 / 25, rel=0.05)
    assert stall.proof is not None and stall.proof.value < stall.proof.threshold


def test_periodic_waits_for_data_and_pauses_of_the_collector_belong_to_other_findings(tmp_path):
    assert "HO15" not in found(periodic(tmp_path / "data", phase="data"))
    assert "HO15" not in found(periodic(tmp_path / "gc", gc_ns=30_000_000))


def test_steps_after_an_evaluation_find_cold_caches_and_are_no_rhythm(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(300):
        flags = wire.F_EVAL if step % 20 == 10 else wire.F_FIRST * (step == 0)
        build.step(forward=60.0 if step % 20 == 11 else 6.0, backward=12.0, flags=flags)
    assert "HO15" not in found(build)


# ---- HO09, HO10


def storm(
    tmp_path, recompilations, reason="tensor 'x' size mismatch at index 0. expected 3, actual 4"
):
    build = Builder(tmp_path / "r")
    build.hello(compile={"used": True})
    for step in range(200):
        now = 60 <= step < 60 + recompilations
        flags = wire.F_COMPILE if now else wire.F_FIRST * (step == 0)
        build.step(forward=6.0, backward=12.0, compile=80.0 * now, flags=flags)
        if now:
            said = {
                "function": "forward",
                "site": "net.py:30",
                "reason": f"0/{step - 60}: {reason}",
            }
            build.event(
                "compile",
                T0 + step,
                rank=0,
                step=step,
                recompiles=step - 59,
                duration_ms=80,
                **said,
            )
    return build


def test_recompilations_are_counted_with_function_reason_and_remedy(tmp_path):
    one = found(storm(tmp_path, 6))["HO09"]
    assert one.site == "net.py:30 forward" and "6 times" in one.title
    assert "mark_dynamic(x, 0)" in one.fix
    assert one.recoverable_ms_per_step == pytest.approx(6 * 80 / 150, rel=0.01)


def test_a_first_evaluation_that_compiles_once_is_no_storm(tmp_path):
    assert "HO09" not in found(storm(tmp_path, 1))


@pytest.mark.parametrize("reason", ["GLOBAL_STATE changed: grad_mode", "L['n'] == 3"])
def test_another_guard_has_another_remedy(tmp_path, reason):
    fix = found(storm(tmp_path, 6, reason))["HO09"].fix
    assert "mark_dynamic" not in fix and ("grad mode" in fix or reason in fix)


def test_graph_breaks_are_listed_and_only_a_launch_bound_gpu_makes_them_matter(tmp_path):
    breaks = [{"site": "net.py:31", "function": "forward", "reason": "call to print"}]
    compiled = {"used": True, "graphs": 3, "graph_breaks": 2, "breaks": breaks}
    one = found(plain(tmp_path / "cpu", compile=compiled))["HO10"]
    assert (one.severity, one.site) == (
        "info",
        "net.py:31 forward",
    ) and "call to print" in one.evidence
    build = gpu_run(tmp_path / "gpu", hello={"compile": compiled})
    gpu_samples(build, sm_active_pct=40.0)
    assert "HO10" in found(build)["HO01"].absorbed


# ---- HO01, HO02 (synthetic samples)


def test_a_gpu_that_idles_while_its_thread_computes_is_launch_bound_synthetic(tmp_path):
    build = gpu_run(tmp_path)
    gpu_samples(build, sm_active_pct=45.0)
    bound = found(build)["HO01"]
    assert bound.recoverable_ms_per_step == pytest.approx(0.55 * 20, rel=0.02)
    assert bound.gpu == 0 and bound.proof is not None


def test_a_backward_is_launched_by_another_thread_of_the_process_synthetic(tmp_path):
    for process_cpu, expected in ((1.1, True), (0.5, False)):
        build = gpu_run(tmp_path / str(process_cpu), thread_cpu=0.4)
        gpu_samples(build, sm_active_pct=45.0)
        for tick in range(7):
            cpu = int(process_cpu * tick * 5e8)
            build.sample(
                "process",
                t_ns=T0 + tick * 5 * 10**8,
                cpu_ns_total=cpu,
                pid=100,
                rank=0,
                kind=PROCESS_RANK,
            )
        assert ("HO01" in found(build)) == expected


def test_threads_that_wait_in_a_loop_launch_nothing_synthetic(tmp_path):
    """Sixteen cores of torch's threads, beside a training thread that mostly sleeps."""
    build = gpu_run(tmp_path, thread_cpu=0.3, forward=13.0, backward=5.0)
    gpu_samples(build, sm_active_pct=45.0)
    for tick in range(7):
        build.sample(
            "process",
            t_ns=T0 + tick * 5 * 10**8,
            cpu_ns_total=16 * tick * 5 * 10**8,
            pid=100,
            rank=0,
            kind=PROCESS_RANK,
        )
    assert "HO01" not in found(build)


def test_a_busy_gpu_or_an_idle_thread_is_not_launch_bound_synthetic(tmp_path):
    build = gpu_run(tmp_path / "busy")
    gpu_samples(build, sm_active_pct=92.0)
    assert "HO01" not in found(build)
    build = gpu_run(tmp_path / "waiting", data=12.0, forward=3.0, backward=5.0)
    gpu_samples(build, sm_active_pct=40.0)
    assert "HO01" not in found(build)
    assert "HO01" not in found(gpu_run(tmp_path / "unsampled"))


def synchronising_run(tmp_path, busy, reports=2):
    build = gpu_run(tmp_path)
    samples = [
        {
            "site": "train.py:88",
            "function": "main",
            "inside": "",
            "code": "running += loss.item()",
            "count": 30 // reports,
        }
    ]
    for _ in range(reports):
        build.event("stacks", rank=0, phase="other", period_ms=20, total=30, samples=samples)
    gpu_samples(build, util_pct=busy)
    return build


def test_a_line_that_synchronises_is_named_and_takes_in_launch_bound_synthetic(tmp_path):
    only = found(synchronising_run(tmp_path, 60.0))
    sync = only["HO02"]
    assert sync.site == "train.py:88 main" and "loss.item()" in sync.fix
    assert sync.recoverable_ms_per_step == pytest.approx(0.4 * 20, rel=0.05)
    assert "HO01" not in only


def test_a_line_that_waited_at_one_moment_is_no_habit_synthetic(tmp_path):
    assert "HO02" not in found(synchronising_run(tmp_path, 60.0, reports=1))


def test_waiting_at_item_while_the_gpu_is_busy_costs_nothing_synthetic(tmp_path):
    assert "HO02" not in found(synchronising_run(tmp_path, 99.0))


@pytest.mark.parametrize(
    "code",
    [
        "loss.item()",
        "print(f'{step} {loss}')",
        "acc = hits.cpu()",
        "float(loss)",
        "losses.append(float(total_loss))",
        "print('{}'.format(loss))",
        "print(step, (loss / n))",
    ],
)
def test_lines_that_synchronise(code):
    assert SYNCHRONISES.search(code)


@pytest.mark.parametrize(
    "code",
    [
        "x = int(line.split()[0])",
        "print('epoch', epoch)",
        "items = list(d.items())",
        "scale(loss * float('nan') if bad else loss).backward()",
        "print(step); loss.backward()",
    ],
)
def test_lines_that_do_not(code):
    assert not SYNCHRONISES.search(code)


# ---- HO11, HO16, HO06


def test_an_optimizer_with_foreach_false_is_worth_a_finding_and_the_default_an_info(tmp_path):
    optimizer = {
        "class": "AdamW",
        "module": "torch",
        "fused": None,
        "foreach": False,
        "tensors": 200,
    }
    build = Builder(tmp_path / "asked")
    build.hello(optimizer=optimizer)
    build.steps(150, forward=6.0, backward=12.0, optimizer=8.0)
    one = found(build)["HO11"]
    assert one.severity == "medium" and "fused=True" in one.fix
    assert one.recoverable_ms_per_step == pytest.approx(0.75 * 8, rel=0.05)
    for foreach, fused, severity in ((None, None, "info"), (False, True, None), (True, None, None)):
        build = Builder(tmp_path / f"{foreach}-{fused}")
        build.hello(optimizer={**optimizer, "foreach": foreach, "fused": fused})
        build.steps(150, forward=6.0, backward=12.0, optimizer=8.0)
        assert getattr(found(build).get("HO11"), "severity", None) == severity


def test_no_time_is_claimed_for_an_optimizer_on_a_gpu_synthetic(tmp_path):
    optimizer = {"class": "AdamW", "module": "torch", "fused": None, "foreach": False}
    one = found(gpu_run(tmp_path, hello={"optimizer": optimizer}))["HO11"]
    assert one.recoverable_ms_per_step is None


@pytest.mark.parametrize(
    ("hello", "title"),
    [
        ({"debug": {"anomaly": 0.6}}, "anomaly mode"),
        ({"debug": {"profiler": 0.9}}, "torch.profiler"),
        ({"debug": {"trace": "coverage.tracer"}}, "coverage.tracer"),
        ({"debug": {"profile": "__main__"}}, "sys.setprofile() of the script"),
        ({"debug": {"tracemalloc": True}}, "tracemalloc"),
        ({"device": "cuda", "env": {"CUDA_LAUNCH_BLOCKING": "1"}}, "CUDA_LAUNCH_BLOCKING=1"),
        (
            {"world_size": 2, "env": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
            "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
    ],
)
def test_debug_aids_that_are_on(tmp_path, hello, title):
    one = found(plain(tmp_path, **hello))["HO16"]
    assert title in one.title and one.severity == "medium" and one.proof is not None


def test_the_line_that_switches_an_aid_on_is_its_place(tmp_path):
    debug = {"anomaly": 0.6, "anomaly_at": "train.py:7", "profiler": 0.1, "profiler_at": "b.py:1"}
    assert found(plain(tmp_path, debug=debug))["HO16"].site == "train.py:7"


@pytest.mark.parametrize(
    "hello",
    [
        {"debug": {"anomaly": 0.0, "profiler": 0.1, "trace": None, "tracemalloc": False}},
        {"env": {"CUDA_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
        {"world_size": 2, "env": {"TORCH_DISTRIBUTED_DEBUG": "INFO"}},
    ],
)
def test_aids_that_are_off_or_change_nothing(tmp_path, hello):
    assert "HO16" not in found(plain(tmp_path, **hello))


@pytest.mark.parametrize(("pauses", "habit"), [(2, False), (40, True)])
def test_pauses_that_came_twice_are_no_habit_of_the_loop(tmp_path, pauses, habit):
    build = Builder(tmp_path / "r")
    build.hello()
    long = np.random.default_rng(0).choice(np.arange(20, 200), pauses, replace=False)
    for step in range(200):
        build.step(forward=6.0, backward=9.0, other=3000.0 if step in long else 0.2)
    assert ("HO06" in found(build)) is habit


def test_host_code_without_a_line_is_an_info(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(150, forward=6.0, backward=9.0, other=8.0)
    assert found(build)["HO06"].severity == "info"


# ---- HO04


def rivalled(tmp_path, cpu_share=0.6, alone=100):
    """Steps of 10 ms, then 200 of 30 ms while another Python thread is busy; looked at once a
    second.
    """
    build = Builder(tmp_path / "r")
    build.hello()
    for step in range(alone + 200):
        late = step >= alone
        build.step(
            forward=10.0 if late else 4.0,
            backward=20.0 if late else 6.0,
            compute_cpu_ns=9_000_000,
            cpu_ns=9_500_000,
        )
    began_s = alone * 0.010
    for tick in range(int(2 * (began_s + 6)) + 1):
        at = tick * 500_000_000
        counters = {"run_wait_ns_total": 0, "voluntary_switches_total": 150 * tick}
        build.sample(
            "process", t_ns=T0 + at, cpu_ns_total=at, pid=100, rank=0, kind=PROCESS_RANK, **counters
        )
    for second in range(1, 7):
        thread = {
            "name": "logger",
            "cpu_share": cpu_share,
            "site": "log.py:5",
            "function": "spin",
            "age_s": float(second),
        }
        build.event(
            "threads", T0 + int((began_s + second) * 1e9), rank=0, period_ms=1500, threads=[thread]
        )
    return build


def test_the_lock_costs_what_a_step_takes_beyond_one_without_the_thread(tmp_path):
    gil = found(rivalled(tmp_path))["HO04"]
    assert gil.recoverable_ms_per_step == pytest.approx(
        20 * 200 / 290, rel=0.03
    )  # the first ten steps are warm-up
    assert "without them a step took 10.0 ms" in gil.evidence and gil.site == "log.py:5 spin"
    assert "CE11" in gil.absorbed


def test_without_steps_alone_cpu_time_tells(tmp_path):
    gil = found(rivalled(tmp_path, alone=0))["HO04"]
    assert gil.recoverable_ms_per_step == pytest.approx(30 - 9.5, rel=0.05)
    assert gil.proof is not None and "cpu_ns" in gil.proof.inputs[0].source


def test_steps_whose_cpu_time_is_not_known_hide_no_thread(tmp_path):
    """Steps that are only counted have none."""
    build = rivalled(tmp_path, alone=0)
    for _ in range(10):
        build.step(forward=10.0, backward=20.0, compute_cpu_ns=-1, cpu_ns=-1)
    assert found(build)["HO04"].site == "log.py:5 spin"


# ---- HO06


def between_steps(tmp_path, **counts):
    """A run that spends a quarter of each step between the phases, with stack samples inside these
    packages.
    """
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(200, forward=6.0, backward=9.0, other=5.0)
    inside = {
        "torch": "torch/functional.py:76 norm",
        "accelerate": "accelerate/accelerator.py:2861 backward",
        "own": "",
    }
    site = {"site": "train.py:14", "function": "<module>"}
    samples = [{**site, "inside": inside[name], "count": count} for name, count in counts.items()]
    build.event(
        "stacks", rank=0, phase="other", period_ms=50, total=sum(counts.values()), samples=samples
    )
    return build


def test_what_a_trainer_does_between_the_phases_is_no_line_of_the_users(tmp_path):
    mixed = found(between_steps(tmp_path / "a", torch=3, accelerate=9))["HO06"]
    assert mixed.severity == "info" and "accelerator.py" in mixed.evidence
    assert found(between_steps(tmp_path / "b", torch=3, accelerate=2, own=9))["HO06"].severity in (
        "medium",
        "high",
    )


@pytest.mark.parametrize(
    ("inside", "code", "host"),
    [
        ("torch/_C operator", "right += scores[row][column].item() > 0", True),
        ("torch/_tensor.py:1215 __iter__", "for score, label in zip(scores, labels):", True),
        (
            "torch/nn/functional.py:3555 cross_entropy",
            "total += F.cross_entropy(scores, labels).item()",
            False,
        ),
        ("", "averaged[name].copy_(0.999 * averaged[name] + 0.001 * value)", False),
        ("", "shadow[name] = 0.001 * p.data + 0.999 * shadow[name]", False),
        ("", "history.append(draw(table))", True),
    ],
)
def test_reading_values_out_is_host_code_and_updating_tensors_is_not(tmp_path, inside, code, host):
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(200, forward=6.0, backward=9.0, other=5.0)
    sample = {
        "site": "train.py:14",
        "function": "step",
        "inside": inside,
        "code": code,
        "count": 30,
    }
    build.event("stacks", rank=0, phase="other", period_ms=50, total=30, samples=[sample])
    assert ("HO06" in found(build)) is host
