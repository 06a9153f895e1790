"""GPUs, network cards, and what lies between each two of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from typing import Any

CODES = {
    "X": "itself",
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges, no CPU",
    "PHB": "the PCIe host bridge, so the CPU",
    "NODE": "several host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}
"""Link codes as `nvidia-smi topo -m` prints them, nearest first; ``NV#``: so many NVLinks."""
_OLD_CODES = {"SOC": "SYS"}
"""Drivers of 2017 and before."""
_NVLINK = re.compile(r"^NV(\d+)$")


def code(text: str) -> str:
    """A link's code as today's drivers print it.

    Raises:
        ValueError: it is none.
    """
    text = _OLD_CODES.get(text.upper(), text.upper())
    if text in CODES or _NVLINK.match(text):
        return text
    raise ValueError(
        f"{text!r} is no link that nvidia-smi topo -m prints ({', '.join(CODES)}, NV1, NV2, ...)"
    )


def nvlinks(text: str) -> int:
    """Bonded NVLinks that a code stands for; 0 for PCIe."""
    match = _NVLINK.match(text)
    if match:
        return int(match.group(1))
    return 0


@dataclass(frozen=True, slots=True)
class Topology:
    """One node. ``links[i][j]`` : code between devices i and j, GPUs first, then network cards."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]
    numa: tuple[int | None, ...] = ()
    """NUMA node of each GPU; None where the machine does not tell (virtual machines say -1)."""
    cpus: tuple[str, ...] = ()
    """CPU affinity of each GPU as a list of ranges."""
    gpu_model: str = ""
    domain: int = 0
    """GPUs that one NVLink fabric joins, over nodes; 0: not told. 72 in an NVL72 rack."""
    nic_gbit: float = 0.0
    """All network cards of the node together, Gbit/s, one direction; 0: not told."""
    network: str = ""
    """``InfiniBand``, ``RoCE``, ``EFA``, ``Ethernet``; empty: not told."""
    source: str = ""
    notes: tuple[str, ...] = ()

    def between(self, first: int, second: int) -> str:
        """The code between two devices."""
        return self.links[first][second]

    def islands(self) -> tuple[tuple[int, ...], ...]:
        """GPUs that reach each other over NVLink, directly or not; largest first."""
        groups: list[set[int]] = [{gpu} for gpu in range(len(self.gpus))]
        for first, second in combinations(range(len(self.gpus)), 2):
            if nvlinks(self.between(first, second)):
                joined = []
                for group in groups:
                    if first in group or second in group:
                        joined.append(group)
                groups = [group for group in groups if group not in joined] + [set().union(*joined)]
        return tuple(
            sorted(
                (tuple(sorted(group)) for group in groups),
                key=lambda island: (-len(island), island),
            )
        )

    @property
    def switched(self) -> bool:
        """Whether every two GPUs have the same number of links: a switch, or as good a mesh."""
        codes = {self.between(a, b) for a, b in combinations(range(len(self.gpus)), 2)}
        return len(codes) == 1 and nvlinks(next(iter(codes))) > 0

    def nearest_nic(self, gpu: int) -> str | None:
        """The network card that the fewest hops lie before; None without one."""
        order = list(CODES)
        first = len(self.gpus)
        near = []
        for i in range(len(self.nics)):
            near.append((order.index(self.between(gpu, first + i)), i))
        if near:
            return self.nics[min(near)[1]]
        return None

    def to_json(self) -> dict[str, Any]:
        """The same with stable names and units."""
        return {
            "gpus": list(self.gpus),
            "gpu_model": self.gpu_model or None,
            "nics": list(self.nics),
            "links": [list(row) for row in self.links],
            "numa_nodes": list(self.numa),
            "cpu_affinity": list(self.cpus),
            "nvlink_islands": [list(island) for island in self.islands()],
            "nvlink_switched": self.switched,
            "nvlink_domain_gpus": self.domain or None,
            "network": self.network or None,
            "network_gbit_per_s": self.nic_gbit or None,
            "advice": advice(self),
            "source": self.source,
            "notes": list(self.notes),
        }


def advice(topology: Topology) -> list[str]:
    """Sentences on what the matrix means for the split of a training."""
    count = len(topology.gpus)
    if count < 2:
        return ["one GPU: nothing to split over"]
    islands = topology.islands()
    sentences = []
    if topology.domain > count:
        sentences.append(
            f"one NVLink domain of {topology.domain} GPUs reaches over nodes: "
            "tensor and expert parallelism may too"
        )
    if len(islands[0]) == 1:
        sentences.append(
            "no NVLink: prefer data parallelism (DDP, FSDP) to tensor parallelism, "
            "which would go over PCIe"
        )
        if any(topology.between(a, b) == "SYS" for a, b in combinations(range(count), 2)):
            sentences.append(
                "some pairs cross the link between NUMA nodes: "
                "keep groups that talk much on one side"
            )
    elif len(islands) == 1 and topology.switched:
        sentences.append(
            f"all {count} GPUs are joined alike by NVLink: tensor parallelism up to {count}"
        )
    elif len(islands) == 1:
        sentences.append(
            f"NVLink joins all {count} GPUs, but not alike: collectives run at the speed of "
            "the weakest pair"
        )
    else:
        groups = ", ".join("{" + ", ".join(str(gpu) for gpu in island) + "}" for island in islands)
        sentences.append(
            f"NVLink joins {groups}: tensor parallelism up to {len(islands[0])}, "
            "data parallelism across them"
        )
    return sentences
