"""Nodes that one can buy or rent, as their makers describe them."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from gputop_analysis.topology.model import Topology


class Preset(NamedTuple):
    """One kind of node. ``nic_gbit`` is all of its network cards together, one direction."""

    name: str
    gpu: str
    gpus: int
    nvlinks: int
    """Between each two GPUs; 0: PCIe."""
    nic_gbit: float
    nics: int
    network: str
    source: str
    domain: int = 0


PRESETS = (
    Preset("dgx-v100", "V100-SXM2-32GB", 8, 0, 400, 4, "InfiniBand", "NVIDIA DGX-1 (V100) user guide"),
    Preset("dgx-a100", "A100-SXM4-80GB", 8, 12, 1600, 8, "InfiniBand", "NVIDIA DGX A100 user guide"),
    Preset("dgx-h100", "H100-SXM5-80GB", 8, 18, 3200, 8, "InfiniBand", "NVIDIA DGX H100/H200 user guide"),
    Preset("dgx-h200", "H200-SXM-141GB", 8, 18, 3200, 8, "InfiniBand", "NVIDIA DGX H100/H200 user guide"),
    Preset("dgx-b200", "B200-SXM-180GB", 8, 18, 3200, 8, "InfiniBand", "NVIDIA DGX B200 user guide"),
    Preset("hgx-a100-4", "A100-SXM4-80GB", 4, 12, 800, 4, "InfiniBand", "NVIDIA HGX A100 4-GPU datasheet; cards vary"),
    Preset("hgx-h100", "H100-SXM5-80GB", 8, 18, 3200, 8, "InfiniBand", "NVIDIA HGX H100 datasheet; cards vary"),
    Preset("hgx-h200", "H200-SXM-141GB", 8, 18, 3200, 8, "InfiniBand", "NVIDIA HGX H200 datasheet; cards vary"),
    Preset("hgx-b200", "B200-SXM-180GB", 8, 18, 3200, 8, "InfiniBand", "NVIDIA HGX B200 datasheet; cards vary"),
    Preset("gb200-nvl72", "GB200-186GB", 4, 18, 1600, 4, "InfiniBand", "NVIDIA GB200 NVL72: 18 trays of 4 GPUs", 72),
    Preset("aws-p3.16xlarge", "V100-SXM2-16GB", 8, 0, 25, 1, "Ethernet", "AWS EC2 P3 page"),
    Preset("aws-p3dn.24xlarge", "V100-SXM2-32GB", 8, 0, 100, 1, "EFA", "AWS EC2 P3 page"),
    Preset("aws-p4d.24xlarge", "A100-SXM4-40GB", 8, 12, 400, 4, "EFA", "AWS EC2 P4 page"),
    Preset("aws-p4de.24xlarge", "A100-SXM4-80GB", 8, 12, 400, 4, "EFA", "AWS EC2 P4 page"),
    Preset("aws-p5.48xlarge", "H100-SXM5-80GB", 8, 18, 3200, 32, "EFA", "AWS EC2 P5 page"),
    Preset("aws-p5en.48xlarge", "H200-SXM-141GB", 8, 18, 3200, 16, "EFA", "AWS EC2 P5 page"),
    Preset("aws-p6-b200.48xlarge", "B200-SXM-180GB", 8, 18, 3200, 8, "EFA", "AWS EC2 P6 page"),
    Preset("aws-g5.48xlarge", "A10G", 8, 0, 100, 1, "EFA", "AWS EC2 G5 page"),
    Preset("aws-g6e.48xlarge", "L40S", 8, 0, 400, 4, "EFA", "AWS EC2 G6e page"),
    Preset("gcp-a2-highgpu-8g", "A100-SXM4-40GB", 8, 12, 100, 1, "Ethernet", "Google Cloud A2 machine series"),
    Preset("gcp-a2-ultragpu-8g", "A100-SXM4-80GB", 8, 12, 100, 1, "Ethernet", "Google Cloud A2 machine series"),
    Preset("gcp-a3-highgpu-8g", "H100-SXM5-80GB", 8, 18, 1000, 5, "Ethernet", "Google Cloud A3 machine series"),
    Preset("gcp-a3-megagpu-8g", "H100-SXM5-80GB", 8, 18, 1800, 9, "Ethernet", "Google Cloud A3 machine series"),
    Preset("gcp-a3-ultragpu-8g", "H200-SXM-141GB", 8, 18, 3600, 10, "RoCE", "Google Cloud A3 machine series"),
    Preset("azure-nd96asr-v4", "A100-SXM4-40GB", 8, 12, 1600, 8, "InfiniBand", "Azure ND A100 v4 series"),
    Preset("azure-nd96amsr-a100-v4", "A100-SXM4-80GB", 8, 12, 1600, 8, "InfiniBand", "Azure NDm A100 v4 series"),
    Preset("azure-nd96isr-h100-v5", "H100-SXM5-80GB", 8, 18, 3200, 8, "InfiniBand", "Azure ND H100 v5 series"),
    Preset("azure-nd96isr-h200-v5", "H200-SXM-141GB", 8, 18, 3200, 8, "InfiniBand", "Azure ND H200 v5 series"),
    Preset("pcie-8", "", 8, 0, 100, 1, "Ethernet", "eight cards in two NUMA nodes, no NVLink"),
)
_HYBRID_CUBE = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
"""NVLinks between the eight V100 of a DGX-1 and of AWS P3: a hybrid cube mesh, six links a GPU (DGX-1 white paper)."""
_MESHED = ("dgx-v100", "aws-p3.16xlarge", "aws-p3dn.24xlarge")


def find(name: str) -> Preset:
    """The preset of that name.

    Raises:
        LookupError: there is none; the message names the nearest.
    """
    for preset in PRESETS:
        if preset.name == name.lower():
            return preset
    names = [preset.name for preset in PRESETS]
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.4) or names[:3]
    raise LookupError(f"no preset {name!r}: did you mean {', '.join(near)}? `gputop topo --presets` lists all")


def topology(preset: Preset) -> Topology:
    """The preset as a matrix. Its NUMA nodes are two halves, as in all of these servers but the GB200 tray."""
    half = max(preset.gpus // 2, 1)
    nics = tuple(f"NIC{i}" for i in range(preset.nics))
    side = [gpu // half for gpu in range(preset.gpus)] + [nic * 2 // max(preset.nics, 1) for nic in range(preset.nics)]
    count = preset.gpus + preset.nics
    links = tuple(tuple(_link(preset, side, a, b) for b in range(count)) for a in range(count))
    return Topology(
        gpus=tuple(f"GPU{i}" for i in range(preset.gpus)),
        nics=nics,
        links=links,
        numa=tuple(side[: preset.gpus]),
        gpu_model=preset.gpu,
        domain=preset.domain or (preset.gpus if preset.nvlinks else 0),
        nic_gbit=preset.nic_gbit,
        network=preset.network,
        source=f"preset {preset.name}: {preset.source}",
        notes=("the NVLinks and the network are the maker's; PCIe places of the cards are assumed",),
    )


def _link(preset: Preset, side: list[int], a: int, b: int) -> str:
    if a == b:
        return "X"
    if a < preset.gpus and b < preset.gpus:
        links = _HYBRID_CUBE[a][b] if preset.name in _MESHED else preset.nvlinks
        if links:
            return f"NV{links}"
    first, second = min(a, b), max(a, b)
    if second == first + preset.gpus and preset.nics == preset.gpus:
        return "PXB"  # one card for each GPU, behind the same switch
    return "SYS" if side[a] != side[b] else "NODE"
