"""Logs of GPUs: ``nvidia-smi --query-gpu=... --format=csv -l 1`` and ``dcgmi dmon``."""

from __future__ import annotations

import csv
import io
import math
import re
from statistics import mean

from gputop_analysis.evidence.model import Evidence, EvidenceError

_ROWS_AT_MOST = 2_000_000
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_FIELDS = {
    "utilization": ("utilization.gpu", "GPUTL", "DCGM_FI_DEV_GPU_UTIL"),
    "clock": ("clocks.sm", "clocks.current.sm", "SMCLK", "DCGM_FI_DEV_SM_CLOCK"),
    "power": ("power.draw", "POWER", "DCGM_FI_DEV_POWER_USAGE"),
    "temperature": ("temperature.gpu", "TMPTR", "DCGM_FI_DEV_GPU_TEMP"),
    "memory": ("memory.used", "FBUSD", "DCGM_FI_DEV_FB_USED"),
}
_UNITS = {"utilization": "%", "clock": "MHz", "power": "W", "temperature": "C", "memory": "MiB"}
_SLOWER = 0.9
"""Of the other GPUs' clock, below which one is called slow."""
_WORKING = 50.0
"""Percent of utilization at which a GPU counts as working."""

Samples = dict[str, dict[str, list[float]]]


def is_log(head: str) -> bool:
    """Whether the beginning of a file is of such a log."""
    first = head.lstrip().splitlines()[:1]
    line = first[0] if first else ""
    return "utilization.gpu" in line or "clocks.sm" in line or line.startswith("#Entity")


def judge_log(path: str, text: str) -> Evidence:
    """Which GPU stands out.

    Raises:
        EvidenceError: no sample can be read.
    """
    is_dmon = text.lstrip().startswith("#Entity")
    samples = _dmon(text) if is_dmon else _smi(text)
    samples = {gpu: fields for gpu, fields in samples.items() if fields}
    if not samples:
        raise EvidenceError(f"{path} has no sample that can be read: log at least utilization.gpu")
    evidence = Evidence("DCGM log" if is_dmon else "nvidia-smi log", (path,))
    for gpu, fields in sorted(samples.items()):
        figures = ", ".join(
            f"{name} {mean(values):,.0f} {_UNITS[name]} (least {min(values):,.0f}, most "
            f"{max(values):,.0f})"
            for name, values in fields.items()
        )
        evidence.findings.append(f"{gpu}: {figures}")
    _stands_out(evidence, samples)
    evidence.unknown.append("what the GPUs ran: steps, kernels and ranks are not in such a log")
    return evidence


def _stands_out(evidence: Evidence, samples: Samples) -> None:
    clocks = {gpu: _working(fields, "clock") for gpu, fields in samples.items()}
    mean_mhz = {gpu: mean(values) for gpu, values in clocks.items() if values}
    if len(mean_mhz) > 1:
        slowest = min(mean_mhz, key=lambda gpu: mean_mhz[gpu])
        other_mhz = mean(value for gpu, value in mean_mhz.items() if gpu != slowest)
        if other_mhz > 0 and mean_mhz[slowest] < _SLOWER * other_mhz:
            evidence.cause = f"slow clock of {slowest}"
            evidence.slowdown = other_mhz / mean_mhz[slowest] if mean_mhz[slowest] > 0 else None
            evidence.findings.append(
                f"{slowest} runs at {mean_mhz[slowest]:,.0f} MHz, the others at {other_mhz:,.0f}"
            )
            return
    used = [value for fields in samples.values() for value in fields.get("utilization", ())]
    if used and mean(used) < _WORKING:
        evidence.cause = f"GPUs are busy for {mean(used):.0f} % of the time only"


def _working(fields: dict[str, list[float]], name: str) -> list[float]:
    """Values of the samples at which the GPU worked."""
    values, used = fields.get(name, []), fields.get("utilization", [])
    if len(used) != len(values):
        return values
    return [value for value, share in zip(values, used, strict=True) if share >= _WORKING]


def _smi(text: str) -> Samples:
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    try:
        header = [cell.split(" [")[0].strip() for cell in next(rows)]
        columns = _columns(header)
        name = next((i for i, cell in enumerate(header) if cell in ("index", "uuid", "name")), None)
        samples: Samples = {}
        for _, row in zip(range(_ROWS_AT_MOST), rows, strict=False):
            gpu = f"GPU {row[name].strip()[:60]}" if name is not None and len(row) > name else "GPU"
            _add(samples.setdefault(gpu, {}), columns, row)
    except (csv.Error, StopIteration):
        return {}
    return samples


def _dmon(text: str) -> Samples:
    """Columns of ``dcgmi dmon``: the header says their names, each row begins with ``GPU 0``."""
    samples: Samples = {}
    columns: dict[str, int] = {}
    for line in text.splitlines()[:_ROWS_AT_MOST]:
        words = line.split()
        if line.startswith("#"):
            columns = _columns(["", *words]) or columns  # the entity takes two words in a row
        elif len(words) > 2 and words[0] == "GPU":
            _add(samples.setdefault(f"GPU {words[1][:20]}", {}), columns, words)
    return samples


def _columns(header: list[str]) -> dict[str, int]:
    columns = {}
    for name, titles in _FIELDS.items():
        column = next((index for index, cell in enumerate(header) if cell in titles), None)
        if column is not None:
            columns[name] = column
    return columns


def _add(fields: dict[str, list[float]], columns: dict[str, int], row: list[str]) -> None:
    for name, column in columns.items():
        number = _NUMBER.match(row[column].strip()) if column < len(row) else None
        if number is not None and math.isfinite(float(number[0])):
            fields.setdefault(name, []).append(float(number[0]))
