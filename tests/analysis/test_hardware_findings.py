"""Findings about devices, on synthetic NVML samples: none of these was seen on hardware."""

import numpy as np
import pytest
from analysis_support import T0, Builder

from gputop_analysis.findings import evaluate
from gputop_analysis.gpu_samples import (
    HW_POWER_BRAKE,
    HW_SLOWDOWN,
    HW_THERMAL,
    SW_POWER_CAP,
    reason_names,
)
from gputop_analysis.xid import TABLE, decode

NORMAL = {
    "memory_total_bytes": 80 << 30,
    "memory_used_bytes": 40 << 30,
    "util_pct": 98.0,
    "sm_clock_mhz": 1900.0,
    "sm_clock_max_mhz": 1980.0,
    "temperature_c": 62.0,
    "power_limit_w": 700.0,
    "power_w": 650.0,
    "clock_event_reasons": SW_POWER_CAP,
    "pcie_gen": 5,
    "pcie_width": 16,
    "memory_temperature_c": 80.0,
}


def synthetic(tmp_path, gpus=4, seconds=120, slow_rank=None, **columns):
    """Steps of one rank a GPU, and samples twice a second; a column is a value or a function of
    (gpu, tick).
    """
    build = Builder(tmp_path / "r")
    infos = [
        {"index": i, "name": "H100", "uuid": f"GPU-{i}", "power_limit_default_w": 700.0}
        for i in range(gpus)
    ]
    build.state["gpus"] = infos
    build.writer.write_state(build.state)
    own = 100 + np.random.default_rng(0).random((60, gpus))
    if slow_rank is not None:
        own[:, slow_rank] += 20
    for rank in range(gpus):
        build.hello(rank, world_size=gpus, device=f"cuda:{rank}", device_uuid=f"GPU-{rank}")
    for row in own:
        for rank in range(gpus):
            build.step(rank, forward=20.0, backward=row[rank] - 20, wait_ms=row.max() - row[rank])
    for tick in range(2 * seconds + 1):
        for gpu in range(gpus):
            given = {k: v(gpu, tick) if callable(v) else v for k, v in columns.items()}
            build.sample(
                "gpu", **{"t_ns": T0 + tick * 500_000_000, "index": gpu, **NORMAL, **given}
            )
    return build


def found(build):
    """Findings about hardware and stragglers above info, by id."""
    return {
        one.id: one
        for one in evaluate(build.open())
        if one.id[:2] in ("TP", "CR") and one.severity != "info"
    }


def on_gpu_2(value, otherwise):
    return lambda gpu, tick: value if gpu == 2 else otherwise


def test_synthetic_healthy_devices(tmp_path):
    assert found(synthetic(tmp_path)) == {}


def test_synthetic_heat_explains_the_slow_rank(tmp_path):
    hot = on_gpu_2(HW_THERMAL | SW_POWER_CAP, SW_POWER_CAP)
    only = found(
        synthetic(
            tmp_path, slow_rank=2, clock_event_reasons=hot, sm_clock_mhz=on_gpu_2(1500.0, 1900.0)
        )
    )
    assert list(only) == ["TP01"]
    heat = only["TP01"]
    assert (heat.rank, heat.gpu, heat.severity) == (2, 2, "high")
    assert {"CR01", "TP05"} <= set(heat.absorbed)
    assert heat.recoverable_ms_per_step == pytest.approx((1 - 1500 / 1980) * 121, rel=0.05)
    assert heat.proof is not None and heat.proof.value > heat.proof.threshold


def test_synthetic_clock_skew_without_a_reason(tmp_path):
    only = found(synthetic(tmp_path, slow_rank=2, sm_clock_mhz=on_gpu_2(1760.0, 1900.0)))
    assert list(only) == ["TP05"]
    assert (only["TP05"].rank, only["TP05"].absorbed) == (2, ("CR01",))
    assert only["TP05"].recoverable_ms_per_step == pytest.approx(20, rel=0.1)


def test_synthetic_boost_bins_are_no_skew(tmp_path):
    assert list(found(synthetic(tmp_path, slow_rank=2, sm_clock_mhz=on_gpu_2(1870.0, 1900.0)))) == [
        "CR01"
    ]


def test_synthetic_power_cap_below_the_default(tmp_path):
    capped = found(synthetic(tmp_path, power_limit_w=on_gpu_2(400.0, 700.0)))["TP02"]
    assert (capped.rank, "-pl 700" in capped.fix) == (2, True)


def test_synthetic_power_brake_is_told_from_heat(tmp_path):
    brake = on_gpu_2(HW_SLOWDOWN | HW_POWER_BRAKE, 0)
    assert list(found(synthetic(tmp_path, clock_event_reasons=brake))) == ["TP03"]
    both = on_gpu_2(HW_SLOWDOWN | HW_THERMAL, 0)
    assert "TP03" not in found(synthetic(tmp_path / "b", clock_event_reasons=both))


def test_synthetic_locked_clocks(tmp_path):
    low = found(synthetic(tmp_path, gpus=1, sm_clock_mhz=1200.0, clock_event_reasons=2))
    assert list(low) == ["TP04"]
    lazy = found(
        synthetic(tmp_path / "b", gpus=1, sm_clock_mhz=1200.0, clock_event_reasons=0, pstate=5)
    )
    assert "P5" in lazy["TP04"].title


def test_synthetic_ecc_counts_only_what_is_new(tmp_path):
    assert found(synthetic(tmp_path, ecc_uncorrected_total=7, ecc_corrected_total=900)) == {}
    new = found(
        synthetic(
            tmp_path / "b", ecc_uncorrected_total=lambda gpu, tick: int(gpu == 1 and tick > 100)
        )
    )
    assert (new["TP06"].rank, new["TP06"].severity) == (1, "critical")


def test_synthetic_link_errors_by_rate(tmp_path):
    grows = found(
        synthetic(tmp_path, pcie_replay_total=lambda gpu, tick: tick // 10 if gpu == 3 else 50)
    )
    assert (list(grows), grows["TP08"].rank) == (["TP08"], 3)


@pytest.mark.parametrize(
    ("code", "severity", "ids"), [(31, "medium", ["TP07"]), (48, "critical", ["TP07"])]
)
def test_synthetic_xid_codes(tmp_path, code, severity, ids):
    build = synthetic(tmp_path, gpus=2, seconds=12)
    build.event("xid", gpu=1, code=code)
    build.event("xid", gpu=1, code=45)
    only = found(build)
    assert (list(only), only["TP07"].severity, only["TP07"].gpu) == (ids, severity, 1)
    assert "after it XID 45" in only["TP07"].evidence


def test_synthetic_lost_device_takes_in_its_xid(tmp_path):
    build = synthetic(tmp_path, gpus=2, seconds=12)
    build.event("xid", gpu=0, code=79)
    assert {one.id: one.absorbed for one in found(build).values()} == {"TP09": ("TP07",)}
    silent = {"memory_total_bytes": lambda gpu, tick: -1 if gpu == 0 and tick > 18 else 80 << 30}
    assert found(synthetic(tmp_path / "b", gpus=2, seconds=12, **silent))["TP09"].gpu == 0


def test_synthetic_memory_temperature(tmp_path):
    assert list(found(synthetic(tmp_path, memory_temperature_c=on_gpu_2(99.0, 80.0)))) == ["TP10"]
    assert found(synthetic(tmp_path / "b", memory_temperature_c=float("nan"))) == {}


def test_synthetic_slow_link_and_idle_gpus(tmp_path):
    assert found(synthetic(tmp_path, pcie_width=on_gpu_2(4, 16)))["CR09"].rank == 2
    idle = found(
        synthetic(tmp_path / "b", seconds=310, util_pct=lambda gpu, tick: 0.0 if gpu == 3 else 98.0)
    )
    assert "1 of 4 visible GPUs" in idle["CR11"].title


def test_synthetic_devices_of_unknown_ranks_are_one_finding(tmp_path):
    build = synthetic(tmp_path, power_limit_w=400.0)
    for rank in range(4):
        build.event("hello_update", rank=rank, device_uuid="")
    found_here = [one for one in evaluate(build.open()) if one.id == "TP02"]
    assert len(found_here) == 1
    assert "the same on GPU 1, GPU 2, GPU 3" in found_here[0].evidence


def test_xid_table_and_reasons_speak():
    assert decode(79).action == "reboot the node" and not decode(31).hardware
    assert "not in the table" in decode(9999).meaning
    assert all(line.meaning and line.action for line in TABLE.values())
    assert (
        reason_names(HW_THERMAL | SW_POWER_CAP) == "software power cap, hardware thermal slowdown"
    )
