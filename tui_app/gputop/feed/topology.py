"""What the topology screen lists: this machine if it has GPUs, and known servers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_analysis.topology.model import Topology

HERE = "this machine"


@dataclass(frozen=True, slots=True)
class Server:
    """One line of the list. ``name`` is that of a preset, or ``HERE``."""

    name: str
    gpu: str
    topology: Topology


def this_machine() -> Topology | None:
    """As the driver tells it, which can take a while; None without a driver or without GPUs."""
    from gputop.this_machine import NoDriverError, node_topology

    try:
        topology = node_topology()
    except NoDriverError:
        return None
    return topology if topology.gpus else None


def servers(machine: Topology | None) -> tuple[Server, ...]:
    """The machine first, where there is one."""
    if machine is not None:
        here = (Server(HERE, _catalogued(machine.gpu_model), machine),)
    else:
        here = ()
    return here + _known()


@lru_cache(maxsize=1)
def _known() -> tuple[Server, ...]:
    from gputop_analysis.topology.presets import PRESETS, topology

    return tuple(Server(preset.name, preset.gpu, topology(preset)) for preset in PRESETS)


def place_of(gpu: str, listed: tuple[Server, ...]) -> int | None:
    """Where the first server with a GPU is, by any of the GPU's names; None if none has it."""
    name = _catalogued(gpu)
    return next((index for index, server in enumerate(listed) if name and server.gpu == name), None)


def _catalogued(gpu: str) -> str:
    from gputop_analysis import catalog

    try:
        return catalog.gpu(gpu).name if gpu else ""
    except LookupError:
        return gpu
