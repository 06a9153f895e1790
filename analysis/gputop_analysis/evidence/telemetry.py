"""Logs of GPUs: ``nvidia-smi --query-gpu=... --format=csv -l 1``, ``nvidia-smi dmon``, ``dcgmi dmon``
and what DCGM's exporter serves.
"""

from __future__ import annotations

import csv
import io
import math
import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import mean

from gputop_analysis.evidence.model import Evidence, EvidenceError

_ROWS_AT_MOST = 2_000_000
_GPUS_AT_MOST = 4096
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?", re.IGNORECASE)
_TITLES = {
    "utilization": ("utilization.gpu", "GPUTL", "sm", "DCGM_FI_DEV_GPU_UTIL"),
    "clock": (
        "clocks.sm",
        "clocks.current.sm",
        "clocks.gr",
        "clocks.current.graphics",
        "SMCLK",
        "pclk",
        "DCGM_FI_DEV_SM_CLOCK",
    ),
    "power": (
        "power.draw",
        "power.draw.instant",
        "power.draw.average",
        "POWER",
        "pwr",
        "DCGM_FI_DEV_POWER_USAGE",
    ),
    "temperature": ("temperature.gpu", "TMPTR", "gtemp", "temp", "DCGM_FI_DEV_GPU_TEMP"),
    "memory": ("memory.used", "FBUSD", "fb", "DCGM_FI_DEV_FB_USED"),
}
"""Titles of columns, those that are preferred first."""
_NAMES = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "name", "gpu_name")
"""Columns of nvidia-smi that tell which GPU, those that are preferred first."""
_UNITS = {"utilization": "%", "clock": "MHz", "power": "W", "temperature": "C", "memory": "MiB"}
_SLOWER = 0.9
"""Of the other GPUs' clock, below which one is called slow."""
_WORKING = 50.0
"""Percent of utilization at which a GPU counts as working."""
_ENTITY = re.compile(r"(?:^|\s)(GPU|GPU-I|GPU-CI|vGPU) (\d{1,6})(?=\s)")
_EXPORTED = re.compile(r"(DCGM_FI_\w{1,60})\{([^}]{1,2000})\} +(\S{1,40})")
_EXPORTED_GPU = re.compile(r"""(?:^|,)gpu="(\d{1,6})\"""")
_DCGMI, _DMON, _EXPORTER, _SMI = "dcgmi", "nvidia-smi dmon", "exporter", "nvidia-smi"
_SAID_TO_BE = {_DCGMI: "DCGM log", _EXPORTER: "DCGM log"}

Samples = dict[str, dict[str, "array[float]"]]
"""By GPU and field; a sample that lacks a field has NaN there."""


def is_log(head: str) -> bool:
    """Whether the beginning of a file is of such a log."""
    return _form(head) is not None


def _form(text: str) -> str | None:
    """Which log it is, by its first lines."""
    for line in text[:4000].splitlines()[:20]:
        words = line.replace("#", " # ").split()
        if "#" in words and "Entity" in words:
            return _DCGMI
        if words[:1] == ["#"] and "gpu" in words and _columns(words):
            return _DMON
        if _EXPORTED.match(line):
            return _EXPORTER
        header = _header(line.split(","))
        if any("." in cell for cell in header) and _columns(header):
            return _SMI
    return None


def judge_log(path: str, text: str) -> Evidence:
    """Which GPU stands out.

    Raises:
        EvidenceError: no sample can be read.
    """
    form = _form(text)
    readers = {_DCGMI: _tables, _DMON: _tables, _EXPORTER: _exported, _SMI: _smi}
    samples = readers[form](text) if form is not None else {}
    samples = {gpu: fields for gpu, fields in samples.items() if any(map(_known, fields.values()))}
    if not samples:
        raise EvidenceError(f"{path} has no sample that can be read: log at least utilization.gpu")
    evidence = Evidence(_SAID_TO_BE.get(form or "", "nvidia-smi log"), (path,))
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
    if used and mean(used) < _WORKING:
        evidence.cause = f"GPUs are busy for {mean(used):.0f} % of the time only"


def _working(fields: dict[str, array[float]]) -> list[float]:
    """Clocks of the samples at which the GPU worked; all, where utilization was not logged."""
    clocks, used = fields["clock"], fields["utilization"]
    if not _known(used):
        return _known(clocks)
    working = (clock for clock, share in zip(clocks, used, strict=True) if share >= _WORKING)
    return _known(working)


def _smi(text: str) -> Samples:
    samples: Samples = {}
    columns: dict[str, int] = {}
    names: list[str] = []
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    try:
        for row in islice(rows, _ROWS_AT_MOST):
            header = _header(row)
            if found := _columns(header):  # also where a log goes on after a restart
                columns, names = found, header
            elif columns:
                _add(samples, _smi_name(names, row), columns, row)
    except csv.Error:  # a cell without end: what came before it counts
        pass
    return samples


def _header(row: Iterable[str]) -> list[str]:
    return [cell.split(" [")[0].strip() for cell in row]


def _smi_name(header: list[str], row: list[str]) -> str:
    for name in _NAMES:
        if name in header and header.index(name) < len(row):
            return f"GPU {row[header.index(name)].strip()[:60]}"
    return "GPU"


def _tables(text: str) -> Samples:
    """Rows below headers that begin with ``#`` and come again every some rows.

    In dcgmi's a row begins with ``GPU 0``, or an instance such as ``GPU-I 3``, in others a column
    says which GPU. What was not measured is ``N/A`` or ``-``.
    """
    samples: Samples = {}
    columns: dict[str, int] = {}
    starts: list[int] = []
    gpu_column: int | None = None
    for line in islice(io.StringIO(text), _ROWS_AT_MOST):
        if "#" in line:
            begin = line.index("#")
            titles = [*re.finditer(r"[^\s#]+", line[begin:])]
            words = [title[0] for title in titles]
            if found := _columns(words):
                columns, starts = found, [title.start() for title in titles]
                gpu_column = words.index("gpu") if "gpu" in words else None
            continue
        if gpu_column is not None:
            cells = line.split()
            if gpu_column < len(cells) and cells[gpu_column].isdigit():
                _add(samples, f"GPU {cells[gpu_column][:6]}", columns, cells)
        elif starts and (entity := _ENTITY.search(line)):
            row = line[entity.start(1) :]
            _add(samples, f"{entity[1]} {entity[2]}", columns, _cells(row, starts))
    return samples


def _cells(row: str, starts: list[int]) -> list[str]:
    """One for the entity and one for each other column; by their places where a text has blanks."""
    first, second, *values = row.split()
    if len(values) + 1 == len(starts):
        return [f"{first} {second}", *values]
    ends = [*starts[1:], len(row)]
    return [row[start:end] for start, end in zip(starts, ends, strict=True)]


def _exported(text: str) -> Samples:
    """Lines such as ``DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="..."} 98``; each a sample of its own."""
    samples: Samples = {}
    for line in islice(io.StringIO(text), _ROWS_AT_MOST):
        match = _EXPORTED.match(line)
        gpu = _EXPORTED_GPU.search(match[2]) if match else None
        if match and gpu:
            _add(samples, f"GPU {gpu[1]}", _columns([match[1]]), [match[3]])
    return samples


def _columns(header: Sequence[str]) -> dict[str, int]:
    columns = {}
    for name, titles in _TITLES.items():
        title = next((title for title in titles if title in header), None)
        if title is not None:
            columns[name] = header.index(title)
    return columns


def _add(samples: Samples, gpu: str, columns: dict[str, int], row: Sequence[str]) -> None:
    if gpu not in samples and len(samples) >= _GPUS_AT_MOST:
        return
    fields = samples.setdefault(gpu, {name: array("d") for name in _TITLES})
    for name, values in fields.items():
        column = columns.get(name, len(row))
        match = _NUMBER.match(row[column].strip()) if column < len(row) else None
        number = float(match[0]) if match else math.nan
        values.append(number if math.isfinite(number) else math.nan)
