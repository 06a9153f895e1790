"""Devices that run slower than they could: heat, power, locked clocks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gputop_analysis import gpu_samples as gpu
from gputop_analysis.findings.pictures import CLOCK, POWER, device_columns
from gputop_analysis.findings.ranks.stragglers import straggler
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.thermal.per_device import device_finding, per_device
from gputop_analysis.gpu_samples import ENOUGH_SAMPLES, SampledDevice, devices, reason_names
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

MIN_DROP = 0.03
"""A lower clock than this share counts: boost bins differ by 1 to 2 %."""
SLOWED = 0.02
POWER_BRAKE = 0.005
UNDER_PEERS = 0.10
LOCKED_BELOW = 0.90
CULPRIT_BELOW, CULPRIT_S = 0.97, 60.0
HOT_MEMORY_C, HOT_S = 95.0, 60.0
_STRAGGLERS = ("CR01", "CR02")


@finding(
    id="TP01",
    name="thermal slowdown",
    family="thermal",
    cause="throttle",
    trigger=f"clock event reasons 0x20 or 0x40 (thermal) in over {percent(SLOWED)} of the busy "
    f"samples, with a clock {percent(MIN_DROP)} lower",
    fix="airflow, fans, inlet temperature; or a lower power cap, which costs less than throttling",
    explains=(*_STRAGGLERS, "TP02", "TP05"),
    no_use="where the machine is not yours to mend: whoever runs it must",
    reads="gpu.clock_event_reasons 0x20 and 0x40 in busy samples, sm_clock_mhz",
    silent="no NVIDIA driver; the driver does not tell",
    traps="idle samples, which are left out",
    pictures=(
        CLOCK,
        device_columns(("temperature_c", "temperature", "°C")),
    ),
)
@per_device
def thermal_slowdown(view: RunView, spec: Spec) -> Iterator[Finding]:
    """The device is too hot for its clock."""
    for device in devices(view):
        share, drop = device.share(gpu.THERMAL), device.clock_drop(gpu.THERMAL)
        if not (share > SLOWED and drop > MIN_DROP):
            continue
        celsius = device.known("temperature_c", device.busy)
        lost = _lost_ms(view, device, share * drop)
        yield device_finding(
            spec,
            device,
            "high" if share > 0.10 else "medium",
            title=f"{device.label} is too hot: {100 * drop:.0f} % lower clock in "
            f"{100 * share:.0f} % of its busy time",
            evidence=f"thermal slowdown in {100 * share:.0f} % of {len(device.busy):,} busy "
            f"samples, SM clock {100 * drop:.0f} % lower then, {celsius:.0f} C",
            fix="look at airflow, fans and inlet temperature of that node; until then lower the "
            f"power cap (`nvidia-smi -i {device.index} -pl W`): a cool GPU at a lower cap keeps "
            "an even clock",
            proof=_proof(
                device, "busy samples with thermal slowdown", share, threshold=SLOWED, drop=drop
            ),
            lost_ms=lost,
        )


@finding(
    id="TP02",
    name="power capped",
    family="thermal",
    cause="throttle",
    trigger="software power cap (0x4) with a limit below the board's default, or with a clock "
    f"{percent(UNDER_PEERS)} below its peers",
    fix="nvidia-smi -pl with the default limit",
    explains=(*_STRAGGLERS, "TP05"),
    no_use="where the limit was set on purpose, or without the rights to change it",
    reads="gpu.clock_event_reasons 0x4, power_limit_w, clocks of the peers",
    silent="no NVIDIA driver; the driver does not tell; the default limit is not known",
    traps="0x4 alone is normal at full load",
    pictures=(
        POWER,
        CLOCK,
    ),
)
@per_device
def power_capped(view: RunView, spec: Spec) -> Iterator[Finding]:
    """Less power than the board was made for. The cap alone is normal at full load."""
    everybody = devices(view)
    for device in everybody:
        share = device.share(gpu.SW_POWER_CAP)
        limit, clock = device.known("power_limit_w"), device.known("sm_clock_mhz", device.busy)
        peers = _median_clock(
            [peer for peer in everybody if peer is not device and peer.name == device.name]
        )
        below_default = limit < 0.98 * device.power_default_w
        below_peers = clock < (1 - UNDER_PEERS) * peers
        if not (share > 0.5 and (below_default or below_peers)):
            continue
        drop = 1 - clock / peers if below_peers else float("nan")
        limit_text = f"limit {limit:.0f} W" + (
            f" of {device.power_default_w:.0f} W by default" if below_default else ""
        )
        yield device_finding(
            spec,
            device,
            "medium",
            title=f"{device.label} is capped at {limit:.0f} W"
            + (f", {100 * drop:.0f} % below its peers" if drop > 0 else ""),
            evidence=f"power cap in force in {100 * share:.0f} % of "
            f"{len(device.busy):,} busy samples, {limit_text}"
            + (f"; SM clock {clock:.0f} MHz, peers {peers:.0f} MHz" if below_peers else ""),
            fix=f"nvidia-smi -i {device.index} -pl "
            + (f"{device.power_default_w:.0f}" if below_default else "LIMIT_OF_ITS_PEERS")
            + "; if somebody set the cap to save energy, leave it and say so",
            proof=_proof(
                device, "busy samples under the power cap", share, threshold=0.5, drop=drop
            ),
            lost_ms=_lost_ms(view, device, drop) if drop > 0 else None,
        )


@finding(
    id="TP03",
    name="power brake",
    family="thermal",
    cause="throttle",
    trigger="hardware slowdown (0x8) or power brake (0x80) without a thermal reason in over "
    f"{percent(POWER_BRAKE)} of the busy samples",
    fix="power supply, cables, the node's power cap in its BMC",
    explains=(*_STRAGGLERS, "TP05"),
    no_use="where the machine is not yours to mend: whoever runs it must",
    reads="gpu.clock_event_reasons 0x8 and 0x80 in busy samples",
    silent="no NVIDIA driver; the driver does not tell",
    traps="0x8 is also set with the thermal bits: TP01 speaks then",
)
@per_device
def power_brake(view: RunView, spec: Spec) -> Iterator[Finding]:
    """The board or the node asks for less power at once."""
    for device in devices(view):
        rows = device.told(device.busy)
        reasons = rows["clock_event_reasons"]
        braked = ((reasons & (gpu.HW_SLOWDOWN | gpu.HW_POWER_BRAKE)) != 0) & (
            (reasons & gpu.THERMAL) == 0
        )
        share = float(braked.mean()) if len(rows) >= ENOUGH_SAMPLES else 0.0
        if not (share > POWER_BRAKE and braked.sum() >= 2):
            continue
        drop = device.clock_drop(gpu.HW_SLOWDOWN | gpu.HW_POWER_BRAKE)
        names = reason_names(int(np.bitwise_or.reduce(reasons[braked])))
        yield device_finding(
            spec,
            device,
            "high" if share > 0.05 else "medium",
            title=f"{device.label}: {names} in {100 * share:.1f} % of its busy time",
            evidence=f"{int(braked.sum())} of {len(rows):,} busy samples with {names} and no "
            "thermal reason" + (f", SM clock {100 * drop:.0f} % lower then" if drop > 0 else ""),
            fix="check the power supplies, the GPU's power cables and the power cap "
            "that the node's BMC sets",
            proof=_proof(
                device,
                "busy samples with hardware slowdown and no thermal reason",
                share,
                threshold=POWER_BRAKE,
                drop=drop,
            ),
            lost_ms=_lost_ms(view, device, share * drop) if drop > 0 else None,
        )


@finding(
    id="TP04",
    name="low clocks",
    family="thermal",
    cause="throttle",
    trigger="application clocks (0x2) or a P-state above 2 in over half of the busy samples, and "
    f"below {percent(LOCKED_BELOW)} of the top clock",
    fix="nvidia-smi -rgc, nvidia-smi -rac, persistence mode",
    explains=(*_STRAGGLERS, "TP05"),
    no_use="where clocks were locked on purpose, or without the rights to change them",
    reads="gpu.clock_event_reasons 0x2, pstate, sm_clock_max_mhz",
    silent="no NVIDIA driver; the driver does not tell",
    traps="clocks locked on purpose, as for a benchmark",
)
@per_device
def low_clocks(view: RunView, spec: Spec) -> Iterator[Finding]:
    """Somebody locked the clocks, or the device does not leave its idle state."""
    for device in devices(view):
        rows = device.busy
        clock, top = device.known("sm_clock_mhz", rows), device.known("sm_clock_max_mhz", rows)
        if len(rows) < ENOUGH_SAMPLES or not clock < LOCKED_BELOW * top:
            continue
        locked = device.share(gpu.APPLICATION_CLOCKS)
        lazy = float((rows["pstate"] > 2).mean())
        share = lazy if math.isnan(locked) else max(locked, lazy)
        if not share > 0.5:
            continue
        if locked > 0.5:
            why = "application clocks are set"
        else:
            why = f"it stays in P{int(np.median(rows['pstate']))}"
        yield device_finding(
            spec,
            device,
            "medium",
            title=f"{device.label} runs at {clock:.0f} of {top:.0f} MHz: {why}",
            evidence=f"SM clock {clock:.0f} MHz in {len(rows):,} busy samples, {top:.0f} "
            f"MHz are possible; {why}",
            fix=f"nvidia-smi -i {device.index} -rgc && nvidia-smi -i {device.index} -rac && "
            f"nvidia-smi -i {device.index} -pm 1; clocks that were locked for a benchmark may "
            "stay",
            proof=_proof(
                device,
                "busy samples with locked clocks or a P-state above 2",
                share,
                threshold=0.5,
                drop=1 - clock / top,
            ),
            lost_ms=None,
        )


@finding(
    id="TP05",
    name="clock skew between ranks",
    family="thermal",
    cause="throttle",
    trigger=f"the busy clock of the slow rank's GPU is under {percent(CULPRIT_BELOW)} of the "
    f"ranks' median for over {CULPRIT_S:g} s",
    fix="cool or swap that GPU",
    explains=_STRAGGLERS,
    no_use="where the machine is not yours to mend: whoever runs it must",
    reads="gpu.sm_clock_mhz of all ranks' GPUs while busy",
    silent="no NVIDIA driver; the driver does not tell; fewer than two GPUs; less than 60 s",
    traps="boost bins of 1 to 2 %, ranks that idle",
)
def clock_skew(view: RunView, spec: Spec) -> Finding | None:
    """The straggler's device is the one with the low clock."""
    slow = straggler(view)
    if slow is None:
        return None
    ours = [device for device in devices(view) if device.rank is not None]
    own_device = next((device for device in ours if device.rank == slow.rank), None)
    other_devices = [device for device in ours if device.rank != slow.rank]
    if own_device is None or not other_devices:
        return None
    typical = _median_clock(other_devices)
    busy = own_device.busy
    low = busy[busy["sm_clock_mhz"] < CULPRIT_BELOW * typical]
    clock = own_device.known("sm_clock_mhz", busy)
    seconds = len(low) / max(len(own_device.rows), 1) * own_device.seconds
    if not (seconds > CULPRIT_S and clock < CULPRIT_BELOW * typical):
        return None
    drop = 1 - clock / typical
    return device_finding(
        spec,
        own_device,
        "high" if drop > 0.10 else "medium",
        title=f"rank {slow.rank} is slow because {own_device.label} runs {100 * drop:.0f} % below "
        "the others' clock",
        evidence=f"SM clock {clock:.0f} MHz on {own_device.label}, {typical:.0f} MHz on the other "
        f"ranks' GPUs, for {seconds:.0f} s; rank {slow.rank} is the one that the others wait for "
        f"({slow.cost_ms.value:.1f} ms a step)",
        fix="cool that GPU, look at its power cap and event reasons (`nvidia-smi -q -d "
        "PERFORMANCE`), or leave it out",
        proof=_proof(
            own_device,
            "time with a clock under 97 % of the ranks' median",
            seconds,
            threshold=CULPRIT_S,
            drop=drop,
            unit="s",
        ),
        lost_ms=slow.recoverable_ms.value,
    )


@finding(
    id="TP10",
    name="hot memory",
    family="thermal",
    cause="throttle",
    trigger=f"GPU memory above {HOT_MEMORY_C:g} C for {HOT_S:g} s",
    fix="airflow, or a lower power cap",
    no_use="where the machine is not yours to mend: whoever runs it must",
    reads="gpu.memory_temperature_c over 60 s",
    silent="no NVIDIA driver; the driver does not tell; a card without that sensor",
    traps="a short peak",
    pictures=(device_columns(("memory_temperature_c", "memory temperature", "°C")),),
)
@per_device
def hot_memory(view: RunView, spec: Spec) -> Iterator[Finding]:
    """Memory near the temperature at which it slows down and wears."""
    for device in devices(view):
        celsius = device.rows["memory_temperature_c"]
        hot = celsius > HOT_MEMORY_C
        seconds = float(hot.mean()) * device.seconds if len(hot) else 0.0
        if not seconds >= HOT_S:
            continue
        worst = float(np.nanmax(celsius))
        yield device_finding(
            spec,
            device,
            "medium",
            title=f"{device.label}: memory at up to {worst:.0f} C, {seconds:.0f} s above "
            f"{HOT_MEMORY_C:.0f} C",
            evidence=f"memory temperature above {HOT_MEMORY_C:.0f} C for {seconds:.0f} of "
            f"{device.seconds:.0f} s",
            fix=f"look at airflow; nvidia-smi -i {device.index} -pl with a lower limit cools it at "
            "once",
            proof=_proof(
                device,
                f"time above {HOT_MEMORY_C:.0f} C",
                seconds,
                threshold=HOT_S,
                drop=float("nan"),
                unit="s",
            ),
            lost_ms=None,
        )


def _median_clock(devices: list[SampledDevice]) -> float:
    """Median over devices of their busy SM clock; NaN for none."""
    clocks = [
        clock for device in devices if (clock := device.known("sm_clock_mhz", device.busy)) == clock
    ]
    return float(np.median(clocks)) if clocks else float("nan")


def _lost_ms(view: RunView, device: SampledDevice, slower: float) -> float | None:
    """Per step, by a clock lower by ``slower`` on average: 1 - f / f_ref of the device's rank."""
    ranks = [device.rank] if device.rank is not None else view.ranks
    walls = [
        float(np.median(rank_series.wall_ms[rank_series.steady]))
        for rank in ranks
        if (rank_series := view.per_rank[rank]).steady.any()
    ]
    if walls and slower > 0:
        return slower * float(np.median(walls))
    return None


def _proof(
    device: SampledDevice,
    what: str,
    value: float,
    *,
    threshold: float,
    drop: float,
    unit: str = "%",
) -> Proof:
    scale = 100 if unit == "%" else 1
    source = f"gpu.bin, {device.label}, {len(device.busy):,} busy of {len(device.rows):,} samples"
    inputs = [
        Input("SM clock while busy", device.known("sm_clock_mhz", device.busy), "MHz", source),
        Input("highest SM clock", device.known("sm_clock_max_mhz"), "MHz", source),
        Input(
            "clock lower by",
            100 * drop,
            "%",
            "medians of samples with and without the reason, or of the peers",
        ),
        Input("power limit", device.known("power_limit_w"), "W", source),
        Input("temperature while busy", device.known("temperature_c", device.busy), "C", source),
    ]
    inputs_shown = tuple(
        figure for figure in inputs if isinstance(figure.value, str) or math.isfinite(figure.value)
    )
    formula = (
        "recoverable = share of the time x (1 - f / f_ref) x median step, where the step "
        "follows the clock"
    )
    return Proof(
        statistic=what,
        value=scale * value,
        threshold=scale * threshold,
        unit=unit,
        formula=formula,
        inputs=inputs_shown,
    )
