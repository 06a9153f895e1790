"""The GPUs of the packaged table: what they offer and how much of their memory a process can have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from gputop_analysis.catalog.models import nearest
from gputop_analysis.data import table
from gputop_analysis.peaks import DRIVER_NAMES, plain

USABLE_SHARE = 0.985
"""Of the memory on the data sheet, where ``usable_gib`` is not known: the rest is ECC, page tables and firmware."""
TWO_DEVICES = ("MI250", "MI250X")
"""Each half of these is a device of its own to PyTorch."""
_DOUBTS = ("low confidence", "not confirmed", "unverified", "doubt", "conflict")
_FLOPS = {
    "fp32": "fp32_tflops",
    "tf32": "tf32_tflops_dense",
    "fp16": "fp16_tflops_dense",
    "bf16": "bf16_tflops_dense",
    "fp8": "fp8_tflops_dense",
    "fp4": "fp4_tflops_dense",
}


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One model of GPU, as one device of PyTorch."""

    name: str
    vendor: str
    architecture: str
    memory_gb: float
    """As its data sheet says."""
    usable_gib: float
    """What the driver offers to processes: the capacity in PyTorch's out-of-memory messages, where such were found."""
    bandwidth_gb_s: float
    dense_flops: dict[str, float]
    """FLOP/s of matrix products by ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``fp4``, without sparsity."""
    power_w: float
    interconnect: str
    interconnect_gb_s: float
    """Both directions together, one GPU."""
    pcie: str
    multiprocessors: int
    """Streaming multiprocessors or compute units."""
    compute_capability: str
    l2_mb: float
    release_year: int
    aliases: tuple[str, ...]
    source: str
    cross_check: str = ""
    """What other sources say of the figures."""

    @property
    def doubtful(self) -> bool:
        """Whether a figure of it could not be confirmed; ``cross_check`` says which."""
        return any(word in self.cross_check.lower() for word in _DOUBTS)

    @property
    def usable_bytes(self) -> int:
        return int(self.usable_gib * 2**30)

    @property
    def runs_torch(self) -> bool:
        """Whether PyTorch's caching allocator serves it: CUDA and ROCm."""
        return self.vendor in ("NVIDIA", "AMD")


def gpus() -> tuple[GpuSpec, ...]:
    """All GPUs of the table, in its order."""
    return _all()


def gpu(name: str) -> GpuSpec:
    """The GPU of that name, alias or driver name, whatever maker and letter case it is written with.

    Raises:
        LookupError: none of that name; the message lists the five nearest.
    """
    found = _by_name().get(plain(name)) or _by_letters().get(_letters(name))
    if found is None:
        near = ", ".join(nearest(name, tuple(_short(spec) for spec in _all())))
        raise LookupError(f"no GPU {name!r} in the catalog; the nearest names are {near}")
    return found


def _short(spec: GpuSpec) -> str:
    return spec.aliases[0] if spec.aliases else spec.name


@cache
def _all() -> tuple[GpuSpec, ...]:
    return tuple(_spec(row) for row in table("gpus.csv"))


@cache
def _by_name() -> dict[str, GpuSpec]:
    found: dict[str, GpuSpec] = {}
    for spec in _all():
        for name in (spec.name, *spec.aliases):
            found.setdefault(plain(name), spec)
    named = {spec.name: spec for spec in _all()}
    return found | {driver: named[name] for driver, name in DRIVER_NAMES.items()}


@cache
def _by_letters() -> dict[str, GpuSpec]:
    found: dict[str, GpuSpec] = {}
    for name, spec in _by_name().items():
        found.setdefault(_letters(name), spec)
    return found


def _letters(name: str) -> str:
    """Without maker and separators."""
    return re.sub(r"[-_ ]+", "", plain(re.sub(r"[-_]+", " ", name)))


def _spec(row: dict[str, str]) -> GpuSpec:
    devices = 2 if row["name"] in TWO_DEVICES else 1
    memory = float(row["memory_gb"]) / devices
    peaks = {kind: 1e12 * float(row[column]) / devices for kind, column in _FLOPS.items() if row[column]}
    return GpuSpec(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        memory_gb=memory,
        usable_gib=float(row["usable_gib"] or round(memory * USABLE_SHARE, 2)),
        bandwidth_gb_s=_number(row["memory_bw_gbs"]) / devices,
        dense_flops=peaks,
        power_w=_number(row["tdp_w"]),
        interconnect=row["interconnect"],
        interconnect_gb_s=_number(row["interconnect_gbs_bidir_per_gpu"]),
        pcie=row["pcie"],
        multiprocessors=int(_number(row["sm_or_cu"])) // devices,
        compute_capability=row["compute_capability"],
        l2_mb=_number(row["l2_mb"]),
        release_year=int(_number(row["release_year"])),
        aliases=tuple(alias.strip() for alias in row["aliases"].split(",") if alias.strip()),
        source=row["source"],
        cross_check=row["cross_check"],
    )


def _number(text: str) -> float:
    """The leading number of a cell; 0 for none."""
    head = text.split(" ")[0]
    return float(head) if head.replace(".", "", 1).isdigit() else 0.0
