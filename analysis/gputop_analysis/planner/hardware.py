"""GPUs and the links between them, with the share of each peak that real programs reach."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from gputop_analysis.catalog import Efficiency, GpuSpec, efficiency_of, gpu
from gputop_analysis.data import table

GPUS_PER_NODE = 8
UNKNOWN_BANDWIDTH_GB_S = 1000.0
UNKNOWN_MULTIPROCESSORS = 100
POWER_EXPONENT = 0.6
"""Clocks rise with about the cube root of the power at fixed voltage and less where voltage falls
too: between 0.5 and 0.7.
"""
MOST_SHARE = 0.9
"""Of its peak no library exceeds, whatever the power."""
CUT_WATTS_PER_TFLOP, CUT_SHARE = 2.25, 0.88
"""Power limit over dense 16-bit peak from which power does not bound large products, as on cards
whose tensor cores are cut down, and the share that they reach in a training: nine tenths of what
products alone do. Measured: RTX 4090 151 to 165 of 165 TFLOP/s
(zzc0721/torch-performance-test-data, issue 78), L20 105 to 115 of 119.5 (DefTruth/CUDA-Learn-Notes,
hgemm/README.md), RTX 5060 Ti 47.0 of 47.4 (QuantumDrizzy/BLACKWALL); the A100 SXM 268 of 312, the
H100 SXM 792 of 989 (mag-/gpu_benchmark), in trainings 0.77 and 0.68.
"""
CUT_ARCHITECTURES = ("Ampere", "Ada", "Hopper", "Blackwell")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of the catalog and how much of its peaks programs reach."""

    spec: GpuSpec
    efficiency: Efficiency
    watts: float = 0.0
    """Power limit in force; 0: that of the catalog."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def usable_bytes(self) -> int:
        """What the driver offers to processes."""
        return self.spec.usable_bytes

    @property
    def bytes_per_s(self) -> float:
        """Peak of the memory."""
        return (self.spec.bandwidth_gb_s or UNKNOWN_BANDWIDTH_GB_S) * 1e9

    @property
    def multiprocessors(self) -> int:
        return self.spec.multiprocessors or UNKNOWN_MULTIPROCESSORS

    def flops(self, dtype: str) -> float:
        """Dense peak of matrix products, FLOP/s; a type the chip does not have runs in the next
        wider one.

        Raises:
            ValueError: no peak of any type is known.
        """
        wider = {"fp4": ("fp8", "bf16"), "fp8": ("bf16",)}.get(dtype, ())
        for precision in (dtype, *wider, "fp16", "fp32"):
            if self.spec.dense_flops.get(precision):
                return self.spec.dense_flops[precision]
        raise ValueError(f"no peak is known for {self.name}")

    def matmul_share(self, dtype: str) -> float:
        """Share of that peak that large products reach, 0 to 1."""
        narrow = dtype in ("fp8", "fp4") and bool(self.spec.dense_flops.get(dtype))
        if narrow:
            share = self.efficiency.matmul_share_fp8
        else:
            share = self.efficiency.matmul_share
        return min(share * self.power_factor, MOST_SHARE)

    @property
    def flash_share(self) -> float:
        """Share of the 16-bit peak that fused attention reaches, 0 to 1."""
        return self.efficiency.flash_share * (self.power_factor if self.is_cut else 1.0)

    @property
    def is_cut(self) -> bool:
        """Whether its tensor cores are cut down below what its power could feed."""
        rates = self.spec.dense_flops
        tflops = (rates.get("bf16") or rates.get("fp16") or 0.0) / 1e12
        watts = self.watts or self.spec.power_w or 0.0
        is_known = self.spec.architecture.startswith(CUT_ARCHITECTURES)
        return is_known and watts > CUT_WATTS_PER_TFLOP * tflops > 0

    @property
    def power_factor(self) -> float:
        """Speed of large products, which power bounds, over that on the calibrated card."""
        if self.is_cut:
            return CUT_SHARE / self.efficiency.matmul_share
        limit = self.watts or self.spec.power_w
        if not (limit and self.efficiency.watts):
            return 1.0
        return float((limit / self.efficiency.watts) ** POWER_EXPONENT)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes of equal GPUs. Rates in bytes/s, one direction, of large collectives."""

    device: Device
    gpus: int
    gpus_per_node: int = GPUS_PER_NODE
    link_bytes_per_s: float = 227e9
    """Per GPU inside the node (or the NVLink domain)."""
    gather_bytes_per_s: float = 227e9
    """The same for all-gather and reduce-scatter, which a switch does not shorten."""
    switched: bool = True
    node_bytes_per_s: float = 100e9
    """All NICs of a node together."""
    network: str = "infiniband"

    def but(self, **changes: Any) -> Cluster:
        return replace(self, **changes)


def device(name: str) -> Device:
    """The GPU that a name means, with a power limit that it says (``H100 500W``).

    Raises:
        LookupError: the catalog does not have it.
    """
    spec = gpu(name)
    return Device(spec, efficiency_of(spec), watts_of(name))


def watts_of(name: str) -> float:
    """The power limit that a name says; 0 for none."""
    match = re.search(r"\b(\d{2,4})\s*W(?:atts?)?\b", name)
    return float(match[1]) if match else 0.0


def cluster(
    gpu_name: str, gpus: int, gpus_per_node: int = 0, network: str = "", gbps_per_node: float = 0.0
) -> Cluster:
    """A cluster of that many GPUs; what is not told is as in the vendor's own server.

    ``network`` is free text such as ``8x HDR IB`` or ``1600 Gbps RoCE``; ``gbps_per_node`` is
    Gbit/s.
    """
    chip = device(gpu_name)
    spec, efficiency = chip.spec, chip.efficiency
    tray = gpus_per_node or GPUS_PER_NODE
    domain = max(tray, spec.link_domain)
    gbps = (gbps_per_node or network_gbps(network) or spec.nic_gbps * tray) * domain / tray
    kind = network_kind(network)
    share = float(_network(kind)["bandwidth_share"])
    one_way = spec.interconnect_gb_s / 2 * 1e9 if spec.link_kind else 0.0
    through_host = _through_host(spec.pcie)
    return Cluster(
        device=chip,
        gpus=gpus,
        gpus_per_node=domain,
        link_bytes_per_s=one_way * efficiency.all_reduce_share if one_way else through_host,
        gather_bytes_per_s=one_way * efficiency.all_gather_share if one_way else through_host,
        switched=spec.link_kind in ("", "switch"),
        node_bytes_per_s=gbps / 8 * 1e9 * share,
        network=kind,
    )


def network_kind(text: str) -> str:
    """``infiniband``, ``ethernet`` (RoCE, TCP), ``efa`` or ``omni-path``; by default the first."""
    text = text.lower()
    if "omni" in text:
        return "omni-path"
    if re.search(r"\befa\b", text):
        return "efa"
    if re.search(r"roce|ethernet|gbe|tcp", text):
        return "ethernet"
    return "infiniband"


def network_gbps(text: str) -> float:
    """Gbit/s of a node from ``8x HDR IB``, ``4x Omni-Path 100G``, ``EFA 3200 Gbps``; else 0."""
    rates = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
    if match := re.search(r"(\d+)\s*x\s*(edr|hdr|ndr|xdr)", text.lower()):
        return int(match[1]) * rates[match[2]]
    if match := re.search(r"(\d+)\s*x\s*[a-z -]*?(\d+)\s*g", text.lower()):
        return int(match[1]) * int(match[2])
    match = re.search(r"(\d+)\s*gb(?:ps|it)", text.lower())
    return float(match[1]) if match else 0.0


def hop_seconds(network: str) -> float:
    """Latency of one hop of a ring between nodes."""
    return float(_network(network)["hop_us"]) / 1e6


def gather_share(network: str) -> float:
    """Rate of an all-gather between nodes over that of an all-reduce: a NIC serves both alike, but
    where a sweep showed otherwise.
    """
    return float(_network(network)["gather_share"])


def hops_by_rank(network: str) -> bool:
    """Whether a ring between nodes was seen to pay a hop for each rank, not for each node."""
    return _network(network)["hops"] == "ranks"


def _network(kind: str) -> dict[str, str]:
    return next(row for row in table("calib/networks.csv") if row["kind"] == kind)


def _through_host(pcie: str) -> float:
    """Bytes/s that NCCL achieves through the host, one direction."""
    rates = {row["generation"]: float(row["gb_per_s"]) * 1e9 for row in table("calib/pcie.csv")}
    return rates.get(pcie[:3], rates["3.0"])
