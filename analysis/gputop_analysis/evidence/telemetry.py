"""Logs of GPUs: which one stands out, and what each did."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from statistics import mean

from gputop_analysis.evidence.logs import Samples, read_log
from gputop_analysis.evidence.model import Evidence, EvidenceError

_UNITS = {"utilization": "%", "clock": "MHz", "power": "W", "temperature": "C", "memory": "MiB"}
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
        known = {name: numbers for name in fields if (numbers := _known(fields[name]))}
        figures = ", ".join(
            f"{name} {mean(numbers):,.0f} {_UNITS[name]} (least {min(numbers):,.0f}, most "
            f"{max(numbers):,.0f})"
            for name, numbers in known.items()
        )
        evidence.findings.append(f"{gpu}: {figures}")
    _stands_out(evidence, samples)
    evidence.unknown.append("what the GPUs ran: steps, kernels and ranks are not in such a log")
    return evidence


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _stands_out(evidence: Evidence, samples: Samples) -> None:
    clocks = {gpu: _working(fields) for gpu, fields in samples.items()}
    mean_mhz = {gpu: mean(values) for gpu, values in clocks.items() if values}
    if len(mean_mhz) > 1:
        slowest = min(mean_mhz, key=lambda gpu: mean_mhz[gpu])
        other_mhz = mean(value for gpu, value in mean_mhz.items() if gpu != slowest)
        if other_mhz > 0 and mean_mhz[slowest] < _SLOWER * other_mhz:
            evidence.cause = f"slow clock of {slowest}"
            if mean_mhz[slowest] > 0:
                evidence.slowdown = other_mhz / mean_mhz[slowest]
            else:
                evidence.slowdown = None
            evidence.findings.append(
                f"{slowest} runs at {mean_mhz[slowest]:,.0f} MHz, the others at {other_mhz:,.0f}"
            )
            return
    used = [value for fields in samples.values() for value in _known(fields["utilization"])]
    if used and len(used) <= len(samples):
        evidence.unknown.append("how it went on: there is one sample of a GPU")
    elif used and mean(used) < _WORKING:
        evidence.cause = f"GPUs are busy for {mean(used):.0f} % of the time only"


def _working(fields: dict[str, array[float]]) -> list[float]:
    """Clocks of the samples at which the GPU worked; all, where utilization was not logged."""
    clocks, used = fields["clock"], fields["utilization"]
    if not _known(used):
        return _known(clocks)
    working = (clock for clock, share in zip(clocks, used, strict=True) if share >= _WORKING)
    return _known(working)
