"""Nodes that one can buy or rent, as their makers describe them."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from gputop_analysis.topology.model import Topology


class WiringPreset(NamedTuple):
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
    WiringPreset(
        "dgx-v100",
        "V100-SXM2-32GB",
        gpus=8,
        nvlinks=0,
        nic_gbit=400,
        nics=4,
        network="InfiniBand",
        source="NVIDIA DGX-1 (V100) user guide",
    ),
    WiringPreset(
        "dgx-a100",
        "A100-SXM4-80GB",
        gpus=8,
        nvlinks=12,
        nic_gbit=1600,
        nics=8,
        network="InfiniBand",
        source="NVIDIA DGX A100 user guide",
    ),
    WiringPreset(
        "dgx-h100",
        "H100-SXM5-80GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=8,
        network="InfiniBand",
        source="NVIDIA DGX H100/H200 user guide",
    ),
    WiringPreset(
        "dgx-h200",
        "H200-SXM-141GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=8,
        network="InfiniBand",
        source="NVIDIA DGX H100/H200 user guide",
    ),
    WiringPreset(
        "dgx-b200",
        "B200-SXM-180GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=8,
        network="InfiniBand",
        source="NVIDIA DGX B200 user guide",
    ),
    WiringPreset(
        "hgx-a100-4",
        "A100-SXM4-80GB",
        gpus=4,
        nvlinks=12,
        nic_gbit=800,
        nics=4,
        network="InfiniBand",
        source="NVIDIA HGX A100 4-GPU datasheet; cards vary",
    ),
    WiringPreset(
        "hgx-h100",
        "H100-SXM5-80GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=8,
        network="InfiniBand",
        source="NVIDIA HGX H100 datasheet; cards vary",
    ),
    WiringPreset(
        "hgx-h200",
        "H200-SXM-141GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=8,
        network="InfiniBand",
        source="NVIDIA HGX H200 datasheet; cards vary",
    ),
    WiringPreset(
        "hgx-b200",
        "B200-SXM-180GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=8,
        network="InfiniBand",
        source="NVIDIA HGX B200 datasheet; cards vary",
    ),
    WiringPreset(
        "gb200-nvl72",
        "GB200-186GB",
        gpus=4,
        nvlinks=18,
        nic_gbit=1600,
        nics=4,
        network="InfiniBand",
        source="NVIDIA GB200 NVL72: 18 trays of 4 GPUs",
        domain=72,
    ),
    WiringPreset(
        "aws-p3.16xlarge",
        "V100-SXM2-16GB",
        gpus=8,
        nvlinks=0,
        nic_gbit=25,
        nics=1,
        network="Ethernet",
        source="AWS EC2 P3 page",
    ),
    WiringPreset(
        "aws-p3dn.24xlarge",
        "V100-SXM2-32GB",
        gpus=8,
        nvlinks=0,
        nic_gbit=100,
        nics=1,
        network="EFA",
        source="AWS EC2 P3 page",
    ),
    WiringPreset(
        "aws-p4d.24xlarge",
        "A100-SXM4-40GB",
        gpus=8,
        nvlinks=12,
        nic_gbit=400,
        nics=4,
        network="EFA",
        source="AWS EC2 P4 page",
    ),
    WiringPreset(
        "aws-p4de.24xlarge",
        "A100-SXM4-80GB",
        gpus=8,
        nvlinks=12,
        nic_gbit=400,
        nics=4,
        network="EFA",
        source="AWS EC2 P4 page",
    ),
    WiringPreset(
        "aws-p5.48xlarge",
        "H100-SXM5-80GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=32,
        network="EFA",
        source="AWS EC2 P5 page",
    ),
    WiringPreset(
        "aws-p5en.48xlarge",
        "H200-SXM-141GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=16,
        network="EFA",
        source="AWS EC2 P5 page",
    ),
    WiringPreset(
        "aws-p6-b200.48xlarge",
        "B200-SXM-180GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=8,
        network="EFA",
        source="AWS EC2 P6 page",
    ),
    WiringPreset(
        "aws-g5.48xlarge",
        "A10G",
        gpus=8,
        nvlinks=0,
        nic_gbit=100,
        nics=1,
        network="EFA",
        source="AWS EC2 G5 page",
    ),
    WiringPreset(
        "aws-g6e.48xlarge",
        "L40S",
        gpus=8,
        nvlinks=0,
        nic_gbit=400,
        nics=4,
        network="EFA",
        source="AWS EC2 G6e page",
    ),
    WiringPreset(
        "gcp-a2-highgpu-8g",
        "A100-SXM4-40GB",
        gpus=8,
        nvlinks=12,
        nic_gbit=100,
        nics=1,
        network="Ethernet",
        source="Google Cloud A2 machine series",
    ),
    WiringPreset(
        "gcp-a2-ultragpu-8g",
        "A100-SXM4-80GB",
        gpus=8,
        nvlinks=12,
        nic_gbit=100,
        nics=1,
        network="Ethernet",
        source="Google Cloud A2 machine series",
    ),
    WiringPreset(
        "gcp-a3-highgpu-8g",
        "H100-SXM5-80GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=1000,
        nics=5,
        network="Ethernet",
        source="Google Cloud A3 machine series",
    ),
    WiringPreset(
        "gcp-a3-megagpu-8g",
        "H100-SXM5-80GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=1800,
        nics=9,
        network="Ethernet",
        source="Google Cloud A3 machine series",
    ),
    WiringPreset(
        "gcp-a3-ultragpu-8g",
        "H200-SXM-141GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3600,
        nics=10,
        network="RoCE",
        source="Google Cloud A3 machine series",
    ),
    WiringPreset(
        "azure-nd96asr-v4",
        "A100-SXM4-40GB",
        gpus=8,
        nvlinks=12,
        nic_gbit=1600,
        nics=8,
        network="InfiniBand",
        source="Azure ND A100 v4 series",
    ),
    WiringPreset(
        "azure-nd96amsr-a100-v4",
        "A100-SXM4-80GB",
        gpus=8,
        nvlinks=12,
        nic_gbit=1600,
        nics=8,
        network="InfiniBand",
        source="Azure NDm A100 v4 series",
    ),
    WiringPreset(
        "azure-nd96isr-h100-v5",
        "H100-SXM5-80GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=8,
        network="InfiniBand",
        source="Azure ND H100 v5 series",
    ),
    WiringPreset(
        "azure-nd96isr-h200-v5",
        "H200-SXM-141GB",
        gpus=8,
        nvlinks=18,
        nic_gbit=3200,
        nics=8,
        network="InfiniBand",
        source="Azure ND H200 v5 series",
    ),
    WiringPreset(
        "pcie-8",
        "",
        gpus=8,
        nvlinks=0,
        nic_gbit=100,
        nics=1,
        network="Ethernet",
        source="eight cards in two NUMA nodes, no NVLink",
    ),
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
"""NVLinks of the eight V100 of DGX-1 and AWS P3: a hybrid cube mesh (DGX-1 white paper)."""
_MESHED = ("dgx-v100", "aws-p3.16xlarge", "aws-p3dn.24xlarge")


def find(name: str) -> WiringPreset:
    """The preset of that name.

    Raises:
        LookupError: there is none; the message names the nearest.
    """
    for preset in PRESETS:
        if preset.name == name.lower():
            return preset
    names = [preset.name for preset in PRESETS]
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.4) or names[:3]
    raise LookupError(
        f"no preset {name!r}: did you mean {', '.join(near)}? `gputop topo --presets` lists all"
    )


def topology(preset: WiringPreset) -> Topology:
    """The preset as a matrix. Its NUMA nodes are two halves, but for the GB200 tray."""
    half = max(preset.gpus // 2, 1)
    nics = tuple(f"NIC{i}" for i in range(preset.nics))
    side = [gpu // half for gpu in range(preset.gpus)] + [
        nic * 2 // max(preset.nics, 1) for nic in range(preset.nics)
    ]
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
        notes=(
            "the NVLinks and the network are the maker's; PCIe places of the cards are assumed",
        ),
    )


def _link(preset: WiringPreset, side: list[int], a: int, b: int) -> str:
    if a == b:
        return "X"
    if a < preset.gpus and b < preset.gpus:
        if preset.name in _MESHED:
            links = _HYBRID_CUBE[a][b]
        else:
            links = preset.nvlinks
        if links:
            return f"NV{links}"
    first, second = min(a, b), max(a, b)
    if second == first + preset.gpus and preset.nics == preset.gpus:
        return "PXB"  # one card for each GPU, behind the same switch
    if side[a] != side[b]:
        return "SYS"
    return "NODE"
