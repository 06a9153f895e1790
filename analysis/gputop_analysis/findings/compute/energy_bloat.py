"""Compute efficiency: energy that does not become training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.energy import energy
from gputop_analysis.findings.compute.device_samples import samples
from gputop_analysis.findings.pictures import POWER
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import Array, RunView
from gputop_analysis.waits import mean_wait_ms

SAVED = 0.05
LOWER_CAP = 0.95
WAITING, FULL_POWER = 0.20, 0.60
ENOUGH_S = 30.0


@dataclass(frozen=True)
class PowerTrial:
    """The same training under two power limits of one GPU."""

    high_w: float
    low_w: float
    joules_high: float
    """Per step."""
    joules_low: float
    slower: float
    """Step time under the lower limit over that under the higher one."""

    @property
    def saved(self) -> float:
        """Part of the energy per step that the lower limit saves."""
        return 1 - self.joules_low / self.joules_high


@finding(
    id="CE13",
    name="energy bloat",
    family="compute",
    cause="compute",
    trigger=f"a lower power limit, tried in the run, saves over {percent(SAVED)} of the energy "
    "per step; or ranks wait for others for over 20 % of the step at over 60 % of their power "
    "limit",
    fix="nvidia-smi -pl with the lower limit; for waiting ranks what mends the wait",
    no_use="without a GPU of the run; where the power limit may not be changed",
    reads="gpu.energy_mj_total, samples",
    silent="no energy counter; no trial with a lower power cap",
    traps="power caps shared by several",
    pictures=(POWER,),
)
def energy_bloat(view: RunView, spec: Spec) -> Finding | None:
    """Energy per step is higher than the same training needs."""
    for rank in view.ranks:
        trial = _trial(view, rank)
        if trial is not None and trial.saved > SAVED:
            return _capped(spec, view, rank, trial)
    return _waiting(spec, view)


def _capped(spec: Spec, view: RunView, rank: int, trial: PowerTrial) -> Finding:
    return spec.make(
        severity="info",
        title=f"at {trial.low_w:.0f} W a step takes {trial.saved * 100:.0f} % less energy and "
        f"{(trial.slower - 1) * 100:.0f} % "
        "more time",
        evidence=f"rank {rank}: {trial.joules_high:.1f} J a step at {trial.high_w:.0f} W, "
        f"{trial.joules_low:.1f} J at {trial.low_w:.0f} W, both seen in this run for over "
        f"{ENOUGH_S:.0f} s",
        fix=f"nvidia-smi -pl {trial.low_w:.0f}, if energy matters more than "
        f"{(trial.slower - 1) * 100:.0f} % of the time",
        rank=rank if len(view.ranks) == 1 else None,
        confidence=0.8,
        proof=Proof(
            statistic="energy per step that the lower limit saves",
            value=100 * trial.saved,
            threshold=100 * SAVED,
            unit="%",
            formula="1 - (J per step at the lower limit) / (J per step at the higher); no time "
            "is won, it takes longer",
            inputs=(
                Input(
                    "energy per step, higher limit",
                    trial.joules_high,
                    "J",
                    "gpu.energy_mj_total over steps.t_end_ns",
                ),
                Input(
                    "energy per step, lower limit",
                    trial.joules_low,
                    "J",
                    "the same, while gpu.power_limit_w was lower",
                ),
                Input("step time ratio", trial.slower, "", "lower limit over higher limit"),
            ),
        ),
    )


def _trial(view: RunView, rank: int) -> PowerTrial | None:
    """None unless the power limit was changed by 5 % or more and each level was seen for 30 s."""
    gpu_samples = samples(view, rank)
    if gpu_samples is None:
        return None
    rows = gpu_samples.rows[
        (gpu_samples.rows["power_limit_w"] > 0) & (gpu_samples.rows["energy_mj_total"] > 0)
    ]
    if len(rows) < 4 or rows["power_limit_w"].min() > LOWER_CAP * rows["power_limit_w"].max():
        return None
    high, low = float(rows["power_limit_w"].max()), float(rows["power_limit_w"].min())
    ends = view.per_rank[rank].rows["t_end_ns"]
    counted = np.cumsum(view.per_rank[rank].n_steps)
    levels = [
        _per_step(rows[rows["power_limit_w"] == watts], rows, ends, counted)
        for watts in (high, low)
    ]
    if levels[0] is None or levels[1] is None:
        return None
    return PowerTrial(high, low, levels[0][0], levels[1][0], levels[1][1] / levels[0][1])


def _per_step(
    at_limit: Array, rows: Array, ends: Array, counted: Array
) -> tuple[float, float] | None:
    """Joules and seconds per step while one limit held; None where it held for less than 30 s."""
    if len(at_limit) < 2:
        return None
    first, last = int(at_limit["t_ns"][0]), int(at_limit["t_ns"][-1])
    between = rows[(rows["t_ns"] >= first) & (rows["t_ns"] <= last)]
    steps = np.diff(np.interp([first, last], ends, counted))[0]
    if len(between) != len(at_limit) or last - first < ENOUGH_S * 1e9 or steps < 1:
        return None
    joules = float(at_limit["energy_mj_total"][-1] - at_limit["energy_mj_total"][0]) / 1e3
    return joules / float(steps), (last - first) / 1e9 / float(steps)


def _waiting(spec: Spec, view: RunView) -> Finding | None:
    if len(view.ranks) < 2:
        return None
    wasted_w, waits, total_w = 0.0, [], 0.0
    for rank in view.ranks:
        gpu_samples, series = samples(view, rank), view.per_rank[rank]
        if gpu_samples:
            power, limit = (gpu_samples.mean("power_w"), gpu_samples.mean("power_limit_w"))
        else:
            power, limit = (None, None)
        share = mean_wait_ms(view, rank) / max(
            float(series.rows["wall_ns"].sum()) / 1e6 / series.total_steps(), 1e-9
        )
        if power is None or not limit or not np.isfinite(share):
            return None
        total_w += power
        if share > WAITING and power > FULL_POWER * limit:
            wasted_w += share * power
            waits.append(share)
    if not waits:
        return None
    used = energy(view)
    cost = ""
    if used and used.joules_per_sample:
        cost = f"; {used.joules_per_sample:.2f} J a sample in all"
    return spec.make(
        severity="info",
        title=f"{len(waits)} ranks wait for others at full power: {wasted_w:,.0f} of "
        f"{total_w:,.0f} W do no training",
        evidence=f"they wait {min(waits) * 100:.0f} to {max(waits) * 100:.0f} % of each step; "
        f"NCCL's kernels spin while they wait{cost}",
        fix="mend the wait itself (see the findings on ranks); a lower power limit on the waiting "
        "GPUs costs nothing meanwhile",
        confidence=0.6,
        proof=Proof(
            statistic="largest part of a step that a rank waits at full power",
            value=100 * max(waits),
            threshold=100 * WAITING,
            unit="%",
            formula="watts without training = sum over waiting ranks of wait share x mean power",
            inputs=(
                Input(
                    "waiting ranks",
                    len(waits),
                    "",
                    "comm.wait_ns / wall, and gpu.power_w over 60 % of the limit",
                ),
                Input("their power while waiting", wasted_w, "W", "wait share x gpu.power_w"),
                Input("power of all ranks", total_w, "W", "gpu.power_w, means"),
            ),
        ),
    )
