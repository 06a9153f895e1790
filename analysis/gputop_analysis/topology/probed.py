"""The topology out of what `gputop_probes.topology.read` found on a machine."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gputop_analysis.topology.model import Topology, code


def from_probe(probe: dict[str, Any], host: str = "") -> Topology:
    """One node as it was read from NVML and sysfs."""
    gpus, nics = probe["gpus"], probe["nics"]
    kinds = Counter(nic["kind"] for nic in nics)
    names = {gpu["name"] for gpu in gpus}
    return Topology(
        gpus=tuple(f"GPU{index}" for index in range(len(gpus))),
        nics=tuple(nic["name"] for nic in nics),
        links=tuple(tuple(code(cell) for cell in row) for row in probe["links"]),
        numa=tuple(gpu["numa"] for gpu in gpus),
        cpus=tuple(gpu["cpus"] for gpu in gpus),
        gpu_model=names.pop() if len(names) == 1 else "",
        nic_gbit=sum(nic["gbit"] for nic in nics),
        network=kinds.most_common(1)[0][0] if kinds else "",
        source="NVML and sysfs" + (f" of {host}" if host else ""),
        notes=tuple(_notes(probe)),
    )


def _notes(probe: dict[str, Any]) -> list[str]:
    notes = []
    if fabric := probe.get("fabric"):
        notes.append(
            f"the GPUs belong to an NVLink fabric over several nodes (clique {fabric['clique']} of "
            f"{fabric['cluster'][:8]}): its other nodes are not seen from here"
        )
    if pairs := probe.get("p2p"):
        listed = ", ".join(f"{a}-{b}" for a, b in pairs[:6])
        notes.append(
            f"no peer-to-peer reads between GPUs {listed}: copies go through the host's memory"
        )
    if len({gpu["name"] for gpu in probe["gpus"]}) > 1:
        notes.append(
            "the GPUs differ: " + ", ".join(sorted({gpu["name"] for gpu in probe["gpus"]}))
        )
    if any(gpu["c2c"] for gpu in probe["gpus"]):
        notes.append("the CPU is joined by NVLink-C2C: offloading to it is faster than over PCIe")
    if probe["gpus"] and all(gpu["numa"] is None for gpu in probe["gpus"]):
        notes.append("NUMA nodes are not told, as in most virtual machines")
    return notes
