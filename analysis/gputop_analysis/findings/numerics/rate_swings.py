"""A cosine schedule that is stepped beyond its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.wrong_habits import schedule_site
from gputop_analysis.findings.pictures import LOSS, RATE
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import stage_begins
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import Array, RunView

LONGEST, READINGS = 4000, 400
"""Steps of the longest swing, and readings that are fitted."""
ENOUGH_READINGS, FEW_READINGS = 20, 12
MANY_READINGS = 40
"""From which on a rate that came back once is told, too."""
BETWEEN = 0.1
"""Part of the readings half way, from which the rate is no other optimizer's now and then: a third
of a cosine's are.
"""
CANDIDATES = 64
"""Periods that are fitted, of all that were looked at."""
FRACTIONS = np.linspace(-0.5, 0.5, 9)
"""Of a step, beside the best of them."""
LOW = 0.05
"""Of the largest rate: a swing that goes less far down is one of a cyclical schedule."""
EXPLAINED, ALL_EXPLAINED, TRUSTED = 0.995, 0.9999, 0.9
"""Part of the variance that a cosine must explain, of few readings nearly all, over the readings
that fit it best: some lag a few steps. A triangle's is 0.986.
"""


@dataclass(frozen=True, slots=True)
class Swing:
    """A learning rate that follows a cosine over and over."""

    period: int
    """Steps from one largest rate to the next."""
    explained: float
    readings: int


@finding(
    id="NU15",
    name="learning rate swings back",
    family="numerics",
    cause="compute",
    trigger=f"the learning rate follows a cosine down to below {percent(LOW)} of its largest and "
    "up again",
    fix="T_max of CosineAnnealingLR as the number of step() calls of the whole run",
    no_use="where the rate is meant to rise again as slowly as it fell",
    reads="steps.lr",
    silent="schedules that jump back up, as warm restarts do, or go up and down in straight lines",
    traps="a schedule that is cyclical on purpose",
    seen_on=CPU,
    pictures=(
        RATE,
        LOSS,
    ),
)
def rate_swings(view: RunView, spec: Spec) -> Finding | None:
    """CosineAnnealingLR goes back up after T_max calls; often it is stepped by batch, not epoch."""
    for rank in view.ranks[:1]:
        rows = view.record.steps(rank)
        rows = rows[np.searchsorted(rows["step"], stage_begins(view, rank)) :]
        rates = np.asarray(rows["lr"], np.float64)
        swing = swing_of(np.asarray(rows["step"], np.int64), rates)
        if swing is None:
            continue
        largest, least = float(np.nanmax(rates)), float(np.nanmin(rates))
        return spec.make(
            severity="medium",
            title=f"the learning rate swings: every {swing.period} steps down to {least:.2g} and "
            "back up",
            evidence=f"it follows a cosine between {largest:.3g} and {least:.2g} with a period of "
            f"{swing.period} steps, which explains {100 * swing.explained:.1f} % of its variance "
            f"over {int(rows['step'][-1]) + 1:,} steps of rank {rank}: a cosine schedule that is "
            "stepped beyond its end goes up as it came down",
            fix=f"CosineAnnealingLR with T_max={swing.period // 2} comes back up after "
            f"{swing.period // 2} calls of scheduler.step(): set T_max to the calls of the whole "
            "run (epochs x batches), or call step() once an epoch where T_max counts epochs; the "
            "cosine of transformers goes down once with num_cycles=0.5; for restarts on purpose "
            "there are CosineAnnealingWarmRestarts and cosine_with_restarts",
            rank=everybody(view),
            site=schedule_site(view, rank),
            confidence=0.85,
            proof=Proof(
                statistic="variance of the learning rate that a cosine of one period explains",
                value=100 * swing.explained,
                threshold=100 * EXPLAINED,
                unit="%",
                formula=f"least squares over the {percent(TRUSTED)} of the readings that fit best",
                inputs=(
                    Input("period", swing.period, "steps", f"steps.lr, rank {rank}"),
                    Input("readings", swing.readings, "", f"steps.lr, rank {rank}"),
                    Input("largest rate", largest, "", f"steps.lr, rank {rank}"),
                    Input("least rate", least, "", f"steps.lr, rank {rank}"),
                ),
            ),
        )
    return None


def swing_of(steps: Array, rates: Array) -> Swing | None:
    """The period of a learning rate that swings; None where it does not.

    Readings that are equal to the one before are left out: between two looks at the optimizer a
    record repeats the last one.
    """
    fresh = np.isfinite(rates)
    fresh[1:] &= rates[1:] != rates[:-1]
    steps, rates = steps[fresh], rates[fresh]
    if len(rates) < FEW_READINGS or rates.max() <= 0 or rates.min() > LOW * rates.max():
        return None
    rises, begins_high = _rises(rates), rates[0] > rates.max() / 2
    returns = rises if begins_high else rises - 1
    came_back_once = returns == 1 and len(rates) >= MANY_READINGS
    if (returns < 2 and not came_back_once) or _between(rates) < BETWEEN:
        return None
    chosen = np.unique(np.linspace(0, len(rates) - 1, READINGS).astype(int))
    steps, rates = steps[chosen], rates[chosen]
    likely = _likely_periods(steps, rates, once=came_back_once)
    if not len(likely):
        return None
    near = max(likely, key=lambda period: _explained(steps, rates, period))
    # as many swings as somebody asked for need not be whole steps long
    explained, period = max(
        (_explained(steps, rates, period), period) for period in near + FRACTIONS
    )
    sure = len(rates) >= ENOUGH_READINGS and returns > 1
    needed = EXPLAINED if sure else ALL_EXPLAINED
    if explained >= needed:
        return Swing(round(period), explained, len(rates))
    return None


def _likely_periods(steps: Array, rates: Array, *, once: bool) -> Array:
    """Those that are fitted: of all by a periodogram, which has no narrow peak for one swing."""
    span = int(steps[-1] - steps[0])
    if once:
        return np.linspace(span / 2, 1.2 * span, CANDIDATES)
    periods = np.arange(4, min(LONGEST, span // 2) + 1)
    return periods[np.argsort(_strength(steps, rates, periods))[-CANDIDATES:]]


def _between(rates: Array) -> float:
    """Part of the rates that lie in the middle half of their range."""
    low, high = np.quantile((rates.min(), rates.max()), (0.25, 0.75))
    return float(np.mean((rates > low) & (rates < high)))


def _rises(rates: Array) -> int:
    """Times that the rate was in its uppermost quarter again after it had been in its lowest."""
    middle = rates[(rates > 0.75 * rates.max()) | (rates < 0.25 * rates.max())]
    return int(np.count_nonzero(np.diff((middle > 0.5 * rates.max()).astype(int)) > 0))


def _strength(steps: Array, rates: Array, periods: Array) -> Array:
    """Of waves of these periods in the rates, as in a periodogram."""
    angles = 2 * np.pi * steps / periods[:, None]
    centred = rates - rates.mean()
    return (np.cos(angles) @ centred) ** 2 + (np.sin(angles) @ centred) ** 2


def _explained(steps: Array, rates: Array, period: float) -> float:
    """Part of the variance that a cosine of ``period`` steps and any phase explains, 0 to 1."""
    angle = 2 * np.pi * steps / period
    waves = np.stack([np.ones(len(steps)), np.cos(angle), np.sin(angle)], axis=1)
    off = _misfit(waves, rates, np.ones(len(steps), bool))
    off = _misfit(waves, rates, off <= np.quantile(off, TRUSTED))
    keep = off <= np.quantile(off, TRUSTED)
    return 1 - float(np.sum(off[keep] ** 2) / np.sum((rates[keep] - rates[keep].mean()) ** 2))


def _misfit(waves: Array, rates: Array, keep: Array) -> Array:
    """How far each rate is from the waves that fit the kept ones best."""
    factors = np.linalg.lstsq(waves[keep], rates[keep], rcond=None)[0]
    return np.abs(waves @ factors - rates)
