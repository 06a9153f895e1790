"""Logs of GPUs: which one stands out, and what each did."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from statistics import mean

from gputop_analysis.evidence.gpu_samples import Samples
from gputop_analysis.evidence.logs import read_log
from gputop_analysis.evidence.model import Evidence, EvidenceError

_UNITS = {"utilization": "%", "clock": "MHz", "power": "W", "temperature": "C", "memory": "MiB"}
_BY = {"heat": "heat", "power limit": "the power limit"}
"""What lowers a clock, by field."""
_HOT = 0.1
"""Share of the samples with work from which on heat that lowers the clock is the cause."""
_SLOWER = 0.9
"""Of the other GPUs' clock, below which one is called slow."""
_WORKING = 50.0
"""Percent of utilization at which a GPU counts as working."""


def judge_log(path: str, text: str) -> Evidence:
    """Which GPU stands out.

    Raises:
        EvidenceError: no sample can be read.
    """
    kind, samples = read_log(text)
    samples = {gpu: fields for gpu, fields in samples.items() if any(map(_known, fields.values()))}
    if not samples:
        raise EvidenceError(f"{path} has no sample that can be read: log at least utilization.gpu")
    evidence = Evidence(kind, (path,))
    for gpu, fields in sorted(samples.items(), key=lambda item: (len(item[0]), item[0])):
        logged = {name: numbers for name in _UNITS if (numbers := _known(fields[name]))}
        figures = ", ".join(
            f"{name} {mean(numbers):,.0f} {_UNITS[name]}{_range(numbers)}"
            for name, numbers in logged.items()
        )
        evidence.findings.append(f"{gpu}: {figures}{_lowered(fields)}")
    _stands_out(evidence, samples)
    evidence.unknown.append("what the GPUs ran: steps, kernels and ranks are not in such a log")
    return evidence


def _range(numbers: list[float]) -> str:
    """``(least 96, most 98)``; empty for one number."""
    if len(numbers) == 1:
        return ""
    return f" (least {min(numbers):,.0f}, most {max(numbers):,.0f})"


def _lowered(fields: dict[str, array[float]]) -> str:
    """``; its clock is lowered by heat in 12 % of the samples with work``, or nothing."""
    shares = {name: mean(_working(fields, name) or [0.0]) for name in _BY}
    words = [f"{_BY[name]} in {100 * share:.0f} %" for name, share in shares.items() if share > 0]
    if not words:
        return ""
    return f"; its clock is lowered by {' and by '.join(words)} of the samples with work"


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _stands_out(evidence: Evidence, samples: Samples) -> None:
    """The first of these that is so: one slow clock, heat, idle GPUs."""
    heat = {gpu: mean(_working(fields, "heat") or [0.0]) for gpu, fields in samples.items()}
    if _has_slow_clock(evidence, samples, heat):
        return
    if max(heat.values()) >= _HOT:
        evidence.cause = _heat_words(heat)
        return
    used = [value for fields in samples.values() for value in _known(fields["utilization"])]
    if used and len(used) <= len(samples):
        evidence.unknown.append("how it went on: there is one sample of a GPU")
    elif used and mean(used) < _WORKING:
        evidence.cause = f"GPUs are busy for {mean(used):.0f} % of the time only"


def _has_slow_clock(evidence: Evidence, samples: Samples, heat: dict[str, float]) -> bool:
    """Whether one GPU's clock is below those of the others, which is then told."""
    clocks = {gpu: _working(fields, "clock") for gpu, fields in samples.items()}
    mean_mhz = {gpu: mean(values) for gpu, values in clocks.items() if values}
    if len(mean_mhz) < 2:
        return False
    slowest = min(mean_mhz, key=lambda gpu: mean_mhz[gpu])
    slowest_mhz = mean_mhz.pop(slowest)
    other_mhz = mean(mean_mhz.values())
    if other_mhz <= 0 or slowest_mhz >= _SLOWER * other_mhz:
        return False
    evidence.cause = f"slow clock of {slowest}{': heat' if heat[slowest] >= _HOT else ''}"
    evidence.slowdown = other_mhz / slowest_mhz if slowest_mhz > 0 else None
    evidence.findings.append(
        f"{slowest} runs at {slowest_mhz:,.0f} MHz, the others at {other_mhz:,.0f}"
    )
    return True


def _heat_words(heat: dict[str, float]) -> str:
    """``heat lowers the clock of GPU 3 and of 2 more (in 40 % of its samples with work)``.

    Args:
        heat: of each GPU, the share of its samples with work in which heat lowered the clock.
    """
    hot_gpus = [gpu for gpu, share in heat.items() if share >= _HOT]
    hottest = max(hot_gpus, key=lambda gpu: heat[gpu])
    more = f" and of {len(hot_gpus) - 1} more" if len(hot_gpus) > 1 else ""
    return (
        f"heat lowers the clock of {hottest}{more} (in {100 * heat[hottest]:.0f} % of its "
        "samples with work)"
    )


def _working(fields: dict[str, array[float]], name: str) -> list[float]:
    """A field's samples at which the GPU worked; all, where utilization was not logged."""
    values, used = fields[name], fields["utilization"]
    if not _known(used):
        return _known(values)
    return _known(value for value, share in zip(values, used, strict=True) if share >= _WORKING)
