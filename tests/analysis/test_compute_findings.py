"""Findings about what is computed. Those about a GPU are judged on synthetic samples."""

import numpy as np
import pytest
from analysis_support import T0, Builder
from device_samples import gpu_run, gpu_samples

from gputop_analysis.findings import evaluate
from gputop_analysis.level import level_change, ramp
from gputop_probes.record.layout import PROCESS_RANK

FP32 = {"by_dtype": {"float32": 10_000_000}, "parameters": 10_000_000, "modules": {}}


def found(build):
    return {one.id: one for one in evaluate(build.open())}


def proved(one):
    """The statistic that a finding rests on."""
    assert one.proof is not None
    return one.proof.value


# ---- level_change


def wandering(seed, rho, n=600, sigma=0.05):
    random = np.random.default_rng(seed)
    noise = random.standard_t(3, n) / np.sqrt(3) if seed % 2 else random.standard_normal(n)
    values = np.empty(n)
    values[0] = noise[0]
    for i in range(1, n):
        values[i] = rho * values[i - 1] + np.sqrt(1 - rho * rho) * noise[i]
    return sigma * values


@pytest.mark.parametrize("rho", [0.0, 0.9, 0.98])
def test_autocorrelated_noise_is_no_change_of_level(rho):
    alarms = sum(level_change(wandering(seed, rho)) is not None for seed in range(200))
    assert alarms <= 2, f"{alarms} false alarms in 200 clean series"


@pytest.mark.parametrize(("rho", "at_least"), [(0.0, 0.99), (0.9, 0.90)])
def test_a_step_time_that_grows_by_30_percent_is_found_where_it_grows(rho, at_least):
    hits = 0
    for seed in range(60):
        values = wandering(seed, rho)
        values[300:] += np.log(1.3)
        change = level_change(values)
        hits += change is not None and abs(change.index - 300) <= 30
    assert hits >= at_least * 60


def test_a_passing_bump_and_a_constant_are_no_lasting_change():
    values = wandering(1, 0.0)
    values[200:300] += 0.5
    assert level_change(values) is None
    assert level_change(np.ones(500)) is None
    assert level_change(np.ones(5)) is None


def test_a_step_between_two_constants_is_certain():
    change = level_change(np.repeat([1.1, 2.3], [90, 200]))
    assert change is not None and change.index == 90 and change.tau == 1.0


# ---- CE11: a steady climb


@pytest.mark.parametrize(("rho", "sigma"), [(0.0, 0.05), (0.9, 0.05), (0.98, 0.05), (0.98, 0.2)])
def test_few_wandering_series_climb(rho, sigma):
    clean = [np.exp(wandering(seed, rho, sigma=sigma)) for seed in range(200)]
    alarms = sum(ramp(series, np.arange(len(series))) is not None for series in clean)
    assert alarms <= 3, f"{alarms} false alarms in 200 clean series"


def test_a_climb_is_a_ramp_and_a_step_is_none():
    noise, at = wandering(2, 0.9), np.arange(600)
    climb = ramp(10 + noise + np.linspace(0, 4, 600), at)
    assert climb is not None and climb.end - climb.begin == pytest.approx(4, abs=0.3)
    assert ramp(10 + noise + 4 * (at >= 300), at) is None
    assert ramp(10 + noise, at) is None and ramp(at[:20], at[:20]) is None


def test_a_climb_that_is_looked_at_more_often_in_its_second_half_is_a_ramp():
    at = np.concatenate([np.arange(0, 3000, 30), np.arange(3000, 6000, 2)])
    climb = ramp(1 + 10 * at / 6000 + 0.1 * wandering(3, 0.5, n=len(at)), at)
    assert climb is not None and climb.end - climb.begin == pytest.approx(10, rel=0.1)


def test_a_sharp_change_is_sure_although_few_values_are_independent():
    folded = np.repeat(np.random.default_rng(0).normal(0.3, 0.05, 5), 10)  # five records of ten
    change = level_change(np.concatenate([folded, folded + 2.3]))
    assert change is not None and change.index == 50
    assert level_change(np.concatenate([folded, folded + 0.15])) is None


def climbing(tmp_path, by_ms=4.0, phase="forward", pace=None, **hello):
    """A phase that takes ``by_ms`` more in the end; ``pace`` makes all of a step slower or faster
    meanwhile.
    """
    build = Builder(tmp_path / "r")
    build.hello(**hello)
    random = np.random.default_rng(4)
    for step in range(600):
        phases = {"forward": 5.0, "backward": 8.0, "other": 1.0}
        phases[phase] += by_ms * step / 600
        quick = pace(step) if pace else 1.0
        phases = {name: quick * ms * random.gamma(400, 1 / 400) for name, ms in phases.items()}
        cpu = {"cpu_ns": int(14e6 * quick + by_ms * quick * step / 600 * 1e6), "compute_cpu_ns": -1}
        build.step(**phases, **cpu)
    return build


@pytest.mark.parametrize("phase", ["forward", "other", "backward"])
def test_a_phase_that_climbs_steadily_is_no_change_of_level(tmp_path, phase):
    one = found(climbing(tmp_path, phase=phase))["CE11"]
    assert one.title.startswith("steps get slower and slower") and phase in one.title
    assert one.recoverable_ms_per_step == pytest.approx(2.0, rel=0.2)


def test_a_machine_that_slows_down_steadily_is_no_climb_of_one_phase(tmp_path):
    assert "CE11" not in found(
        climbing(tmp_path / "a", by_ms=0.0, pace=lambda step: 1 + 0.4 * step / 600)
    )
    assert "CE11" not in found(climbing(tmp_path / "b", by_ms=0.5))
    larger = {"batches": 100, "distinct": 1, "grew_at": 300, "grown": 4.0}
    assert "CE11" not in found(climbing(tmp_path / "larger", shapes=larger))
    assert "CE11" in found(climbing(tmp_path / "mixed", shapes={**larger, "grew_at": 3}))
    assert "CE11" in found(climbing(tmp_path / "c", pace=lambda step: 1.2 - 0.1 * step / 600))


# ---- CE11


def slowing(tmp_path, phase="forward", by=2.0, samples=(8, 8), fold=1, cpu_ms=None, **hello):
    build = Builder(tmp_path / "r")
    build.hello(**hello)
    random = np.random.default_rng(3)
    for step in range(400):
        late = step >= 200
        phases = {"forward": 5.0, "backward": 10.0, "other": 1.0}
        for slow in phases if phase == "all" else (phase,):
            phases[slow] *= by if late else 1.0
        phases = {name: ms * random.gamma(400, 1 / 400) for name, ms in phases.items()}
        steps = 1 if late else fold
        cpu_ns = cpu_ms[late] * steps * 10**6 if cpu_ms else -1
        build.step(0, steps, None, **{**phases, "samples": samples[late] * steps, "cpu_ns": cpu_ns})
    return build


@pytest.mark.parametrize(("at_step", "said"), [(210, False), (20, True)])
def test_a_student_that_trains_after_its_teacher_is_no_slow_down(tmp_path, at_step, said):
    adam = {"class": "Adam", "parameters": 1000, "others": []}
    build = slowing(tmp_path, "backward", 2.0, optimizer=adam)
    t_ns = T0 + int((at_step * 16 + max(0, at_step - 200) * 10) * 1e6)
    build.event("hello_update", t_ns, rank=0, optimizer={**adam, "others": ["Adam"]})
    assert ("CE11" in found(build)) is said


@pytest.mark.parametrize(("at_step", "said"), [(200, False), (20, True)])
def test_a_student_whose_teachers_optimizer_is_gone_is_none_either(tmp_path, at_step, said):
    build = slowing(tmp_path, "backward", 2.0)
    t_ns = T0 + at_step * 16 * 10**6
    build.event("optimizer_begins", t_ns, rank=0, step=at_step, optimizer="SGD")
    assert ("CE11" in found(build)) is said


def test_a_lasting_slow_down_is_named_with_step_phase_and_cost(tmp_path):
    one = found(slowing(tmp_path, "backward", 2.0))["CE11"]
    assert one.title.endswith("since step 200") and "backward grew" in one.evidence
    assert one.recoverable_ms_per_step == pytest.approx(10, rel=0.05)
    low, high = one.interval_ms_per_step or (0.0, 0.0)
    assert low < 10 < high


def test_folded_steps_are_weighed_as_steps(tmp_path):
    one = found(slowing(tmp_path, "backward", 2.0, fold=3))["CE11"]
    assert one.title.endswith("since step 600")


def test_more_work_in_a_step_is_no_slow_down(tmp_path):
    build = slowing(tmp_path / "samples", "backward", 2.6, samples=(8, 16))
    assert "CE11" not in found(build)
    longer = {"batches": 100, "distinct": 2, "grew_at": 200, "grown": 2.0}
    assert "CE11" not in found(slowing(tmp_path / "longer", "backward", 2.6, shapes=longer))
    assert "CE11" in found(slowing(tmp_path / "other", "other", 12, shapes=longer))


def test_on_a_cpu_a_busy_neighbour_costs_cpu_time_too(tmp_path):
    assert "CE11" not in found(slowing(tmp_path / "unknown", "backward", 1.4))
    assert "CE11" in found(slowing(tmp_path / "gpu", "backward", 1.4, device="cuda"))
    assert "CE11" in found(slowing(tmp_path / "blocked", "backward", 1.4, cpu_ms=(15, 15)))
    assert "CE11" not in found(slowing(tmp_path / "busy", "all", 1.9, cpu_ms=(15, 29)))
    assert "CE11" not in found(slowing(tmp_path / "mostly", "backward", 1.7, cpu_ms=(15, 22)))
    assert "CE11" in found(slowing(tmp_path / "busier", "backward", 3.5, cpu_ms=(15, 40)))


def test_one_phase_that_grows_by_itself_is_no_neighbour(tmp_path):
    one = found(slowing(tmp_path, "forward", 2.8, cpu_ms=(15, 24)))["CE11"]
    assert one.recoverable_ms_per_step == pytest.approx(9, rel=0.1)


def test_a_wait_for_a_core_that_came_with_it_is_taken_off(tmp_path):
    build = slowing(tmp_path, "backward", 2.0, cpu_ms=(15, 15))
    for tick in range(18):  # 400 steps of 16 and 26 ms; from 3.2 s on, 10 of the 26 are queueing
        waited_ns = max(0, tick * 5 * 10**8 - 3_200_000_000) * 10 // 26
        build.sample(
            "process",
            t_ns=T0 + tick * 5 * 10**8,
            pid=9,
            kind=PROCESS_RANK,
            run_wait_ns_total=waited_ns,
        )
    assert "CE11" not in found(build)


# ---- CE07, CE08


def test_a_backward_of_gradients_of_gradients(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(create_graph=True, create_graph_by_backward=True)
    build.steps(150, forward=3.0, backward=15.0)
    one = found(build)["CE07"]
    assert one.severity == "medium" and one.recoverable_ms_per_step == pytest.approx(9, rel=0.05)


@pytest.mark.parametrize(
    ("asked", "call", "told"),
    [
        (30, "torch.autograd.grad(loss, trunk, retain_graph=True)", True),
        (30, "torch.autograd.grad(loss, x, create_graph=True)", False),
        (2, "torch.autograd.grad(loss, trunk, retain_graph=True)", False),
        (40, "torch.autograd.grad(loss, trunk)", False),
    ],
    ids=["besides", "for a penalty", "little", "the update's own"],
)
def test_gradients_that_are_asked_for_besides_the_updates(tmp_path, asked, call, told):
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(150, forward=3.0, backward=8.0)
    lines = [("train.py:9", call, asked), ("train.py:20", "loss.backward()", 40 - asked)]
    samples = [
        {"site": site, "function": "main", "code": code, "count": count}
        for site, code, count in lines
        if count
    ]
    build.event("stacks", rank=0, phase="backward", period_ms=20, total=40, samples=samples)
    besides = found(build).get("CE07")
    assert (besides is not None) is told
    if besides is not None:
        assert (besides.severity, besides.site) == ("medium", "train.py:9 main")
        assert besides.recoverable_ms_per_step == pytest.approx(6.0, rel=0.05)


def test_gradients_of_an_inner_update_are_no_look_besides(tmp_path):
    """First-order MAML adapts weights by gradients whose graph nothing else needs."""
    build = Builder(tmp_path / "r")
    build.hello(inner_gradients=True)
    build.steps(150, forward=3.0, backward=8.0)
    call = "torch.autograd.grad(loss, fast_weights)"
    lines = [("train.py:9", call, 30), ("train.py:20", "loss.backward()", 10)]
    samples = [
        {"site": site, "function": "main", "code": code, "count": count}
        for site, code, count in lines
    ]
    build.event("stacks", rank=0, phase="backward", period_ms=20, total=40, samples=samples)
    assert "CE07" not in found(build)


@pytest.mark.parametrize(("others", "severity"), [(["SGD"], "medium"), ([], "info")])
def test_a_force_is_a_gradient_that_a_loss_is_made_of(tmp_path, others, severity):
    """And so may a penalty be, of a GAN's two optimizers."""
    build = Builder(tmp_path / "r")
    build.hello(create_graph=True, optimizer={"class": "Adam", "others": others})
    build.steps(150, forward=3.0, backward=15.0)
    assert found(build)["CE07"].severity == severity


@pytest.mark.parametrize("purpose", ["meta_gradients", "derivatives"])
def test_some_losses_need_the_gradients_of_their_gradients(tmp_path, purpose):
    build = Builder(tmp_path / "r")
    build.hello(create_graph=True, **{purpose: True})
    build.steps(150, forward=3.0, backward=15.0)
    assert "CE07" not in found(build)


def test_a_long_backward_for_a_reason_not_seen_is_an_info_and_checkpointing_none(tmp_path):
    for checkpointing, severity in ((False, "info"), (True, None)):
        build = Builder(tmp_path / str(checkpointing))
        build.hello(checkpointing=checkpointing)
        build.steps(150, forward=3.0, backward=15.0)
        assert getattr(found(build).get("CE07"), "severity", None) == severity


def test_a_loss_outside_the_model_is_what_a_long_backward_goes_back_through(tmp_path):
    """A Gaussian process: its forward only names what the loss computes."""
    for between_ms, told in ((6.0, False), (0.2, True)):
        build = Builder(tmp_path / str(between_ms))
        build.hello()
        build.steps(150, forward=2.0, backward=12.0, other=between_ms)
        assert ("CE07" in found(build)) is told


def test_the_wait_for_other_ranks_is_no_backward(tmp_path):
    build = Builder(tmp_path / "r")
    for rank in range(2):
        build.hello(rank, world_size=2, create_graph=True)
        for _ in range(150):
            build.step(rank, forward=5.0, backward=9.0, wait_ms=20.0)
    assert "CE07" not in found(build)


def test_checkpointing_that_saves_memory_nobody_needs_synthetic(tmp_path):
    for used_gib, expected in ((20.0, True), (60.0, False)):
        build = gpu_run(
            tmp_path / str(used_gib), hello={"checkpointing": True}, forward=5.0, backward=15.0
        )
        gpu_samples(build, used_gib=used_gib)
        one = found(build).get("CE08")
        assert (one is not None) == expected
        assert one is None or one.recoverable_ms_per_step == pytest.approx(5, rel=0.05)


# ---- CE09, CE10


def shapes(distinct):
    return {"batches": 100, "distinct": distinct, "examples": [[8, 17], [8, 31]]}


def test_many_shapes_cost_little_on_a_cpu_and_more_on_a_gpu(tmp_path):
    for device, severity in (("cpu", "info"), ("cuda", "medium")):
        build = Builder(tmp_path / device)
        build.hello(device=device, shapes=shapes(63))
        build.steps(30, forward=3.0)
        assert found(build)["CE10"].severity == severity
    build = Builder(tmp_path / "buckets")
    build.hello(device="cuda", shapes=shapes(6))
    build.steps(30, forward=3.0)
    assert "CE10" not in found(build)


def test_convolutions_of_one_shape_without_benchmark_synthetic(tmp_path):
    model = {**FP32, "modules": {"Conv2d": 20}}
    flags = {"cudnn_benchmark": False, "cudnn_deterministic": False}
    for distinct, expected in ((1, True), (30, False)):
        hello = {"model": model, "flags": flags, "shapes": shapes(distinct)}
        assert ("CE09" in found(gpu_run(tmp_path / str(distinct), hello=hello))) == expected


# ---- CE01 to CE05 (synthetic samples)


def test_tensor_cores_idle_takes_in_tf32_off_synthetic(tmp_path):
    hello = {"model": FP32, "flags": {"matmul_precision": "highest", "cuda_matmul_tf32": False}}
    build = gpu_run(tmp_path, hello=hello)
    gpu_samples(build, sm_active_pct=90.0, tensor_active_pct=1.0)
    one = found(build)["CE01"]
    assert one.severity == "medium" and "bfloat16" in one.fix and one.absorbed == ("CE02",)


def test_tf32_off_alone_without_counters_synthetic(tmp_path):
    flags = {"matmul_precision": "highest", "cuda_matmul_tf32": False}
    ampere = gpu_run(
        tmp_path / "a", hello={"model": FP32, "flags": flags, "device_capability": "8.6"}
    )
    assert "set_float32_matmul_precision" in found(ampere)["CE02"].fix
    turing = gpu_run(
        tmp_path / "t", hello={"model": FP32, "flags": flags, "device_capability": "7.5"}
    )
    assert "CE02" not in found(turing)
    amp = gpu_run(
        tmp_path / "amp", hello={"model": FP32, "flags": flags, "amp": {"autocast": True}}
    )
    assert "CE02" not in found(amp)


@pytest.mark.parametrize(
    ("device", "capability", "dtype", "expected"),
    [
        ("cuda", "9.0", "float16", True),
        ("cuda", "9.0", None, True),
        ("cuda", "7.5", "float16", False),
        ("cuda", "9.0", "bfloat16", False),
        ("cpu", None, "float16", True),
        ("cpu", None, None, False),
    ],
)
def test_float16_with_a_scaler(tmp_path, device, capability, dtype, expected):
    build = Builder(tmp_path / "r")
    amp = {"autocast": dtype is not None, "dtype": dtype, "grad_scaler": True}
    build.hello(device=device, device_capability=capability, amp=amp)
    build.steps(30, forward=3.0)
    assert ("CE03" in found(build)) == expected


def test_a_batch_too_small_synthetic(tmp_path):
    small = {"util_pct": 90.0, "sm_active_pct": 30.0, "sm_occupancy_pct": 18.0}
    build = gpu_run(tmp_path / "small", hello={"dataloader": {"batch_size": 4, "num_workers": 2}})
    gpu_samples(build, **small)
    assert "batch_size=16" in found(build)["CE04"].fix
    build = gpu_run(tmp_path / "full")
    gpu_samples(build, used_gib=75.0, **small)
    assert "CE04" not in found(build)


def test_low_occupancy_of_matrix_products_that_fill_the_gpu_is_no_small_batch_synthetic(tmp_path):
    """As on an H200: 24 % occupancy where 81 % of the SMs are active, the tensor cores 46 %."""
    build = gpu_run(tmp_path)
    gpu_samples(
        build, util_pct=100.0, sm_active_pct=81.0, sm_occupancy_pct=24.0, tensor_active_pct=46.0
    )
    assert "CE04" not in found(build)


def test_bound_by_bandwidth_synthetic(tmp_path):
    build = gpu_run(tmp_path, hello={"compile": {"used": True}})
    gpu_samples(build, sm_active_pct=95.0, tensor_active_pct=12.0, dram_active_pct=88.0)
    one = found(build)["CE05"]
    assert "torch.compile(model)" not in one.fix and one.gpu == 0


def test_without_counters_nothing_is_said_of_kernels_synthetic(tmp_path):
    build = gpu_run(tmp_path)
    gpu_samples(build, util_pct=99.0)
    assert not set(found(build)) & {"CE01", "CE04", "CE05", "HO01", "HO02"}


# ---- CE06, CE12, CE13 (synthetic)


def test_attention_in_its_math_form_synthetic(tmp_path):
    table = [
        {"op": "aten::mm", "calls": 100, "cpu_ms": 1.0, "device_ms": 50.0},
        {"op": "aten::_softmax", "calls": 36, "cpu_ms": 1.0, "device_ms": 20.0},
        {
            "op": "aten::_scaled_dot_product_attention_math",
            "calls": 36,
            "cpu_ms": 1.0,
            "device_ms": 0.0,
        },
    ]
    build = gpu_run(tmp_path / "math")
    build.event("profile", T0 + 10**9, rank=0, steps=3, first_step=50, table=table)
    assert "12 calls a step" in found(build)["CE06"].evidence
    build = gpu_run(tmp_path / "flash")
    build.event("profile", T0 + 10**9, rank=0, steps=3, first_step=50, table=table[:2])
    assert "CE06" not in found(build)


def test_low_mfu_synthetic(tmp_path):
    hello = {"amp": {"autocast": True, "dtype": "bfloat16"}, "model": FP32}
    for flops, expected in ((1e12, True), (1e13, False)):
        build = gpu_run(tmp_path / str(flops), hello=hello)
        build.event("flops", rank=0, flops=flops, step=5)
        one = found(build).get("CE12")
        assert (one is not None) == expected
        assert one is None or proved(one) == pytest.approx(
            100 * 1e12 / (989.4e12 * 0.020), rel=0.02
        )


def limited(tmp_path, joules_low):
    """100 s at 700 W and 100 s at 600 W, steps of 20 ms and 20.6 ms."""
    build = gpu_run(tmp_path, steps=0)
    energy_mj = 0.0
    for watts, step_ms, joules in ((700.0, 20.0, 14.0), (600.0, 20.6, joules_low)):
        for step in range(int(100_000 / step_ms)):
            build.step(forward=step_ms / 3, backward=step_ms * 2 / 3)
            energy_mj += joules * 1e3
            if step % 50 == 25:
                build.sample(
                    "gpu",
                    t_ns=build.clock[0],
                    index=0,
                    power_limit_w=watts,
                    energy_mj_total=int(energy_mj),
                )
    return build


def test_a_lower_power_limit_that_was_tried_synthetic(tmp_path):
    one = found(limited(tmp_path / "saves", 11.0))["CE13"]
    assert "600 W" in one.title and proved(one) == pytest.approx(100 * (1 - 11 / 14), rel=0.05)
    assert "CE13" not in found(limited(tmp_path / "saves_nothing", 13.8))


def test_ranks_that_wait_at_full_power_synthetic(tmp_path):
    build = gpu_run(tmp_path, ranks=2, steps=0)
    for rank, wait_ms in ((0, 10.0), (1, 0.5)):
        for _ in range(150):
            build.step(rank, forward=6.0, backward=12.0, wait_ms=wait_ms)
    for rank in range(2):
        gpu_samples(build, rank, power_w=600.0, power_limit_w=700.0)
    one = found(build)["CE13"]
    assert one.title.startswith("1 ranks wait") and one.severity == "info"
