"""GPUs and the links between them, with the share of each peak that real programs reach."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from gputop_analysis.catalog import gpu
from gputop_analysis.data import table
from gputop_analysis.peaks import find_gpu

GPUS_PER_NODE = 8
_NIC_GBPS = {"Volta": 50, "Ampere": 200, "Hopper": 400, "Blackwell": 400, "Blackwell Ultra": 800, "CDNA3": 400}
"""Network of the vendor's own eight-GPU server, Gbit/s per GPU: DGX-1 (4 x 100 for 8), DGX A100, H100, B200, B300."""
_WITHOUT_SWITCH = ("Pascal", "Volta", "CDNA2", "CDNA3", "CDNA4")
"""GPUs linked to each other directly, so that few of them use few of the links."""
_PCIE_BYTES_PER_S = {"3.0": 12e9, "4.0": 21e9, "5.0": 42e9, "6.0": 80e9}
"""Achieved by NCCL through the host, one direction; 4.0 as measured in calib/collectives.csv."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. FLOP/s dense, bytes, bytes/s; shares of the peak are between 0 and 1."""

    name: str
    architecture: str
    usable_bytes: float
    """What the driver offers to processes."""
    bytes_per_s: float
    peak_flops: dict[str, float]
    multiprocessors: int
    matmul_share: float
    matmul_share_fp8: float
    tile: tuple[int, int]
    k_half: float
    """Inner size at which the prologue of a tile costs as much as its main loop."""
    flash_share: float
    memory_share: float
    all_reduce_share: float
    """Bus bandwidth of large collectives over the link's one-way rate."""
    all_gather_share: float

    def flops(self, dtype: str) -> float:
        """Peak of matrix products; a type the chip does not have runs in the next wider one."""
        wider = {"fp4": ("fp8", "bf16"), "fp8": ("bf16",)}.get(dtype, ())
        for kind in (dtype, *wider, "fp16", "fp32"):
            if self.peak_flops.get(kind):
                return self.peak_flops[kind]
        raise ValueError(f"no peak is known for {self.name}")

    def share(self, dtype: str) -> float:
        return self.matmul_share_fp8 if dtype in ("fp8", "fp4") and self.peak_flops.get(dtype) else self.matmul_share


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes of equal GPUs. Rates in bytes/s, one direction, as large collectives reach them."""

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
    """The GPU of that name or alias. Raises LookupError for one that the catalog does not have."""
    parts = re.split(r"[-_ ]+", name)
    shorter = ("-".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
    for tried in (name, *shorter):
        if found := find_gpu(tried):
            return _device(_row(found.name))
    return _device(_row(gpu(name).name))


def cluster(gpu_name: str, gpus: int, gpus_per_node: int = 0, network: str = "", gbps_per_node: float = 0.0) -> Cluster:
    """A cluster of that many GPUs; what is not told is as in the vendor's own server.

    ``network`` is free text such as ``8x HDR IB`` or ``1600 Gbps RoCE``; ``gbps_per_node`` is Gbit/s.
    """
    chip = device(gpu_name)
    row = _row(chip.name)
    tray = gpus_per_node or GPUS_PER_NODE
    domain = max(tray, _domain(row))
    default = _NIC_GBPS.get(chip.architecture, 100 if _link(row) else 25)
    gbps = (gbps_per_node or network_gbps(network) or default * tray) * domain / tray
    kind = network_kind(network)
    share = float(_network(kind)["bandwidth_share"])
    link = _link(row)
    through_host = _PCIE_BYTES_PER_S.get((row.get("pcie") or "")[:3], 12e9)
    return Cluster(
        device=chip,
        gpus=gpus,
        gpus_per_node=domain,
        link_bytes_per_s=link * chip.all_reduce_share if link else through_host,
        gather_bytes_per_s=link * chip.all_gather_share if link else through_host,
        switched=not (link and (chip.architecture in _WITHOUT_SWITCH or "bridge" in row["interconnect"])),
        node_bytes_per_s=gbps / 8 * 1e9 * share,
        network=kind,
    )


def network_kind(text: str) -> str:
    """``infiniband``, ``ethernet`` (RoCE, EFA, TCP) or ``omni-path``; the first where nothing is said."""
    text = text.lower()
    if "omni" in text:
        return "omni-path"
    return "ethernet" if re.search(r"efa|roce|ethernet|gbe|tcp", text) else "infiniband"


def network_gbps(text: str) -> float:
    """Gbit/s of a node from text like ``8x HDR IB``, ``4x Omni-Path 100G``, ``EFA 3200 Gbps``; 0 where it says none."""
    rates = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
    if found := re.search(r"(\d+)\s*x\s*(edr|hdr|ndr|xdr)", text.lower()):
        return int(found[1]) * rates[found[2]]
    if found := re.search(r"(\d+)\s*x\s*[a-z -]*?(\d+)\s*g", text.lower()):
        return int(found[1]) * int(found[2])
    found = re.search(r"(\d+)\s*gb(?:ps|it)", text.lower())
    return float(found[1]) if found else 0.0


def hop_seconds(network: str) -> float:
    """Latency of one hop of a ring between nodes."""
    return float(_network(network)["hop_us"]) / 1e6


def _network(kind: str) -> dict[str, str]:
    return next(row for row in table("calib/networks.csv") if row["kind"] == kind)


def _row(name: str) -> dict[str, str]:
    return next(row for row in table("gpus.csv") if row["name"] == name)


def _domain(row: dict[str, str]) -> int:
    """GPUs that NVLink joins; 1 where it joins no more than a node."""
    return 72 if "NVL72" in (row.get("interconnect") or "") else 1


def _link(row: dict[str, str]) -> float:
    """One way, bytes/s; 0 without a link of its own."""
    both_ways = row.get("interconnect_gbs_bidir_per_gpu") or ""
    return float(both_ways) / 2 * 1e9 if both_ways and row["interconnect"] != "none" else 0.0


def _device(row: dict[str, str]) -> Device:
    family = next(
        known
        for known in table("calib/devices.csv")
        if known["architecture"] in ("", row["architecture"], row["architecture"].split()[0])
        and known["form_factor"] in ("", row["form_factor"])
    )
    kinds = ("fp16", "bf16", "fp8", "fp4")
    peaks = {kind: 1e12 * float(row[f"{kind}_tflops_dense"]) for kind in kinds if row.get(f"{kind}_tflops_dense")}
    if row.get("fp32_tflops"):
        peaks["fp32"] = 1e12 * float(row["fp32_tflops"])
    units = re.match(r"\d+", row.get("sm_or_cu") or "")
    return Device(
        name=row["name"],
        architecture=row["architecture"],
        usable_bytes=gpu(row["name"]).usable_bytes,
        bytes_per_s=float(row["memory_bw_gbs"] or 1000) * 1e9,
        peak_flops=peaks,
        multiprocessors=int(units[0]) if units else 100,
        matmul_share=float(family["matmul_share"]),
        matmul_share_fp8=float(family["matmul_share_fp8"] or family["matmul_share"]),
        tile=(int(family["tile_m"]), int(family["tile_n"])),
        k_half=float(family["k_half"]),
        flash_share=float(family["flash_share"]),
        memory_share=float(family["memory_share"]),
        all_reduce_share=float(family["all_reduce_share"]),
        all_gather_share=float(family["all_gather_share"]),
    )
