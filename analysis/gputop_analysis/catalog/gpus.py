"""The GPUs of the packaged table: what they offer, and how much of their memory a process has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gputop_analysis.data import table
from gputop_analysis.units import GIB

USABLE_SHARE = 0.985
"""Of the data sheet's memory, without ``usable_gib``: the rest is ECC, page tables and firmware."""
COMMON = (
    "T4",
    "L4",
    "A10",
    "A10G",
    "L40S",
    "RTX 4090",
    "RTX 5090",
    "A100-40GB",
    "A100-80GB",
    "H100",
    "H200",
    "B200",
    "GB200",
    "MI300X",
)
"""GPUs that forms step through."""
_DOUBTS = ("low confidence", "not confirmed", "not verified", "unverified", "doubt", "conflict")
_FLOPS = {
    "fp32": "fp32_tflops",
    "tf32": "tf32_tflops_dense",
    "fp16": "fp16_tflops_dense",
    "bf16": "bf16_tflops_dense",
    "fp8": "fp8_tflops_dense",
    "fp4": "fp4_tflops_dense",
}


KERNELS_FROM = 5.0
"""Compute capability below which PyTorch 2 has no kernels."""


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU as one device of PyTorch: half a card where that is two devices (MI250X, K80)."""

    name: str
    chip: str
    """What makers call the chip, in lower case: ``a100`` of the A100-PCIe-80GB."""
    vendor: str
    architecture: str
    form_factor: str
    devices: int
    """Devices of PyTorch on one card."""
    memory_gb: float
    """As its data sheet says."""
    usable_gib: float
    """What the driver offers to processes: the capacity in PyTorch's out-of-memory messages, where
    such were found.
    """
    bandwidth_gb_s: float
    dense_flops: dict[str, float]
    """Matrix FLOP/s: ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``fp4``, without sparsity."""
    power_w: float
    interconnect: str
    interconnect_gb_s: float
    """Both directions together, one GPU."""
    link_kind: str
    """How GPUs are linked: ``switch``, ``direct``, ``bridge`` (pairs), ``torus``; empty: through
    the host only.
    """
    link_domain: int
    """GPUs that the links join beyond a node, as the 72 of an NVL72 rack; 1: none."""
    nic_gbps: float
    """Network of the vendor's own server, Gbit/s for one GPU."""
    pcie: str
    multiprocessors: int
    """Streaming multiprocessors or compute units."""
    compute_capability: str
    l2_mb: float
    release_year: int
    aliases: tuple[str, ...]
    driver_names: tuple[str, ...]
    """Drivers' words that would be read as another part, in lower case and without the maker."""
    source: str
    cross_check: str = ""
    """What other sources say of the figures."""

    @property
    def doubtful(self) -> bool:
        """Whether a figure of it could not be confirmed; ``cross_check`` says which."""
        return any(word in self.cross_check.lower() for word in _DOUBTS)

    @property
    def usable_bytes(self) -> int:
        return int(self.usable_gib * GIB)

    @property
    def runs_torch(self) -> bool:
        """Whether PyTorch's caching allocator serves it: CUDA and ROCm."""
        return self.vendor == "AMD" or (
            self.vendor == "NVIDIA" and float(self.compute_capability) >= KERNELS_FROM
        )


@cache
def gpus() -> tuple[GpuSpec, ...]:
    """All GPUs of the table, in its order."""
    return tuple(_spec(row) for row in table("gpus.csv"))


def _spec(row: dict[str, str]) -> GpuSpec:
    devices = int(row["devices"])
    memory = float(row["memory_gb"]) / devices
    peaks = {
        dtype: 1e12 * float(row[column]) / devices
        for dtype, column in _FLOPS.items()
        if row[column]
    }
    return GpuSpec(
        name=row["name"],
        chip=row["chip"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        form_factor=row["form_factor"],
        devices=devices,
        memory_gb=memory,
        usable_gib=float(row["usable_gib"] or round(memory * USABLE_SHARE, 2)),
        bandwidth_gb_s=_number(row["memory_bw_gbs"]) / devices,
        dense_flops=peaks,
        power_w=_number(row["tdp_w"]) / devices,
        interconnect=row["interconnect"],
        interconnect_gb_s=_number(row["interconnect_gbs_bidir_per_gpu"]),
        link_kind=row["link_kind"],
        link_domain=int(row["link_domain"] or 1),
        nic_gbps=float(row["nic_gbps"]),
        pcie=row["pcie"],
        multiprocessors=int(_number(row["sm_or_cu"])) // devices,
        compute_capability=row["compute_capability"],
        l2_mb=_number(row["l2_mb"]) / devices,
        release_year=int(_number(row["release_year"])),
        aliases=_words(row["aliases"]),
        driver_names=_words(row["driver_names"]),
        source=row["source"],
        cross_check=row["cross_check"],
    )


def _words(cell: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in cell.split(",") if word.strip())


def _number(cell: str) -> float:
    """The leading number of a cell; 0 for none."""
    head = cell.split(" ")[0]
    return float(head) if head.replace(".", "", 1).isdigit() else 0.0
