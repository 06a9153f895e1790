"""Where a training's numbers jump, and where several of them jump together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gputop_analysis.stats import MAD_TO_SIGMA, mad_sigma
from gputop_analysis.text import step_time
from gputop_analysis.view import Array

if TYPE_CHECKING:
    from gputop_analysis.training_series import Series

WINDOW, STRIDE = 100, 10
"""A point is compared with a window of so many before it, moved by so many at a time."""
EARLY = ((30, 50), (50, 70), (70, 100))
"""Before there are 100: points between both numbers are compared with all before the first."""
TOGETHER_STEPS = 5
"""Jumps no further apart than this many steps (or than neighbouring points) belong together."""
NUMERIC = ("loss", "grad_norm", "loss_scale", "lr")
"""Quantities that can make an instability; step time and memory only go along with one."""
LR_JUMP = 2.001
"""More than twofold: a linear warm-up's second step has twice the first one's rate."""


@dataclass(frozen=True, slots=True)
class Spike:
    """One point of one quantity that stands out from the 100 before it."""

    axis: str
    """``loss``, ``grad_norm``, ``loss_scale``, ``lr``, ``step_time`` or ``memory``."""
    index: int
    """Into the series."""
    first_step: int
    step: int
    """The spike lies in first_step to step; they are equal where steps are not folded."""
    value: float
    level: float
    """Median of the points before it."""
    sigmas: float
    """How far above the level, in robust standard deviations; infinite for a loss not finite."""
    unit: str = ""

    def told(self) -> str:
        """``loss 8.1 at step 130 (was 1.2)``."""
        name = self.axis.replace("_", " ")
        value, level = self._with_unit(self.value, digits=4), self._with_unit(self.level, digits=4)
        return f"{name} {value} at {steps_named(self.first_step, self.step)} (was {level})"

    def label(self) -> str:
        """``8.1``, ``813 ms``, ``2.05 s``, ``not a number``: how high, beside a mark."""
        if self.axis == "loss" and not np.isfinite(self.value):
            return "not a number"
        return self._with_unit(self.value, digits=3)

    def _with_unit(self, value: float, digits: int) -> str:
        if self.unit == "ms" and value >= 1000:
            return step_time(value / 1000)
        return f"{value:.{digits}g} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Instability:
    """Two quantities or more that jump within a few steps."""

    first_step: int
    last_step: int
    spikes: tuple[Spike, ...]
    """One for each quantity, the largest, in the order of steps."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The quantities, in the order in which they jumped."""
        return tuple(spike.axis for spike in self.spikes)

    def told(self) -> str:
        """All of it in one line."""
        return "; ".join(spike.told() for spike in self.spikes)


def steps_named(first: int, last: int) -> str:
    """``step 130`` or, where steps are folded, ``steps 120 to 139``."""
    return f"step {last}" if first == last else f"steps {first} to {last}"


def spikes_of(series: Series) -> tuple[Spike, ...]:
    """All jumps of a series, in the order of steps."""
    spikes = [
        Spike("loss", *_at(series, i), float("nan"), _last_known(series.loss, i), np.inf)
        for i in _first_bad(series)
    ]
    spikes += _upwards(series, "loss", series.loss_max)
    spikes += _upwards(series, "grad_norm", series.grad_norm)
    spikes += _upwards(series, "step_time", series.step_time_max_ms, "ms", min_relative=0.5)
    spikes += _upwards(series, "memory", series.memory_gib, "GiB")
    spikes += _changes(
        series, "loss_scale", series.loss_scale, lambda before, after: after <= before / 2
    )
    spikes += _changes(
        series, "lr", series.lr, lambda before, after: (after >= LR_JUMP * before) & (before > 0)
    )
    return tuple(sorted(spikes, key=lambda spike: (spike.step, spike.axis)))


def instabilities(spikes: tuple[Spike, ...]) -> tuple[Instability, ...]:
    """Groups of close jumps of at least two quantities, one of them numeric."""
    groups: list[list[Spike]] = []
    for spike in spikes:
        last = groups[-1][-1] if groups else None
        near = last and (
            spike.first_step - last.step <= TOGETHER_STEPS or spike.index - last.index <= 1
        )
        if near:
            groups[-1].append(spike)
        else:
            groups.append([spike])
    candidates = (_instability(group) for group in groups)
    return tuple(
        spike for spike in candidates if len(spike.axes) > 1 and set(spike.axes) & set(NUMERIC)
    )


def _instability(group: list[Spike]) -> Instability:
    largest: dict[str, Spike] = {}
    for spike in group:
        if spike.axis not in largest or spike.sigmas > largest[spike.axis].sigmas:
            largest[spike.axis] = spike
    largest_spikes = sorted(largest.values(), key=lambda spike: (spike.step, spike.axis))
    return Instability(
        largest_spikes[0].first_step,
        max(spike.step for spike in largest_spikes),
        tuple(largest_spikes),
    )


def _upwards(
    series: Series, axis: str, values: Array, unit: str = "", min_relative: float = 0.2
) -> list[Spike]:
    indices = stand_outs(values, min_relative, logarithmic=axis == "grad_norm")
    return [
        Spike(axis, *_at(series, int(i)), float(values[i]), float(level), float(sigmas), unit)
        for i, level, sigmas in zip(*indices, strict=True)
    ]


def stand_outs(
    values: Array, min_relative: float = 0.2, k: float = 8.0, logarithmic: bool = False
) -> tuple[Array, Array, Array]:
    """Values far above those before them: ``k`` robust standard deviations above the median of a
    window.

    The window that a value is compared with ends up to ``STRIDE`` values before it. A value must
    exceed the median of the ``STRIDE`` values just before it by ``min_relative`` too: what has
    climbed all through the window did not jump.

    Args:
        values: NaN values are neither judged nor compared with; the first 30 cannot be judged.
        min_relative: a value must exceed the window's median by this share of it, besides ``k``
            standard deviations.
        logarithmic: judge logarithms, for what varies by factors, such as a gradient norm.

    Returns:
        Indices, the medians before them, and how many robust standard deviations they lie above.
    """
    if logarithmic:
        judged = np.log(np.where(values > 0, values, np.nan))
    else:
        judged = np.asarray(values, np.float64)
    valid = np.flatnonzero(np.isfinite(judged))
    series, linear = judged[valid], values[valid]
    centre, sigma = _levels(series, linear > _least_to_stand_out(linear, min_relative))
    level = np.exp(centre) if logarithmic else centre
    above = series - centre
    out = np.flatnonzero((above > k * sigma) & (linear > level + min_relative * np.abs(level)))
    if len(out):
        out = out[[_jumps(linear, int(i), min_relative) for i in out]]
    else:
        out = out
    return valid[out], level[out], above[out] / np.maximum(sigma[out], 1e-12)


def _jumps(values: Array, index: int, min_relative: float) -> bool:
    near = float(np.median(values[index - STRIDE : index]))
    return bool(values[index] > near + min_relative * abs(near))


def _least_to_stand_out(values: Array, min_relative: float) -> float:
    """No value up to this exceeds the median of any window by ``min_relative``: a bound that costs
    one partition.

    Half of a window is at or below its median, so no median lies below the value whose rank is half
    the shortest one.
    """
    half = EARLY[0][0] // 2
    if len(values) <= half:
        return np.inf
    lowest = float(np.partition(values, half - 1)[half - 1])
    return (lowest + min_relative * abs(lowest)) * (1 - 1e-9 * np.sign(lowest))


def _levels(series: Array, wanted: Array) -> tuple[Array, Array]:
    """Median and robust standard deviation of the window before each wanted value; infinite where
    it is too short.

    Windows of values that are not wanted are not looked at, and these are infinite too.
    """
    centre, sigma = np.full(len(series), np.inf), np.zeros(len(series))
    for begin, end in EARLY:
        if wanted[begin:end].any():
            centre[begin:end], sigma[begin:end] = (
                np.median(series[:begin]),
                mad_sigma(series[:begin]),
            )
    blocks = np.unique((WINDOW + np.flatnonzero(wanted[WINDOW:])) // STRIDE)
    if len(blocks):
        windows = np.lib.stride_tricks.sliding_window_view(series, WINDOW)[blocks * STRIDE - WINDOW]
        middle = np.median(windows, axis=1)
        spread = MAD_TO_SIGMA * np.median(np.abs(windows - middle[:, None]), axis=1)
        for block, at, deviation in zip(blocks * STRIDE, middle, spread, strict=True):
            centre[block : block + STRIDE], sigma[block : block + STRIDE] = at, deviation
    return centre, sigma


def _changes(series: Series, axis: str, values: Array, changed) -> list[Spike]:
    valid = np.flatnonzero(np.isfinite(values))
    before, after = values[valid[:-1]], values[valid[1:]]
    is_change = changed(before, after)
    return [
        Spike(axis, *_at(series, int(i)), float(values[i]), float(old), np.inf)
        for i, old in zip(valid[1:][is_change], before[is_change], strict=True)
    ]


def _first_bad(series: Series) -> list[int]:
    """Where the loss stops being a number; not each point after that."""
    bad = series.nonfinite
    if len(bad):
        return np.flatnonzero(bad & ~np.concatenate([[False], bad[:-1]])).tolist()
    return []


def _at(series: Series, index: int) -> tuple[int, int, int]:
    return index, int(series.first_step[index]), int(series.step[index])


def _last_known(values: Array, index: int) -> float:
    before = values[:index][np.isfinite(values[:index])]
    return float(before[-1]) if len(before) else float("nan")
