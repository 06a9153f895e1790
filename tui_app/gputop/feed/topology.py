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


@dataclass(frozen=True, slots=True)
class Start:
    """What is listed, where the cursor stands at first, and why, where it needs words."""

    listed: tuple[Server, ...]
    index: int
    note: str = ""


def start_at(gpu: str, machine: Topology | None) -> Start:
    """The first server with a GPU; without one this machine, or the server of the plan's example.

    Args:
        gpu: of the run or the entry that the screen is opened from; empty for none.
        machine: this one, where it has GPUs.
    """
    listed = servers(machine)
    if gpu:
        index = place_of(gpu, listed)
        if index is not None:
            return Start(listed, index)
        note = (
            f"no server with the {gpu} is known here; `gputop topo --from FILE` reads "
            "`nvidia-smi topo -m`"
        )
        return Start(listed, _example(listed), note)
    if machine is not None:
        return Start(listed, 0)
    index = _example(listed)
    return Start(
        listed, index, f"no GPU in this machine or run: {listed[index].name} as an example"
    )


def _example(listed: tuple[Server, ...]) -> int:
    """Where the first server with the GPU is that a plan starts from."""
    from gputop.feed.planning import first_ask

    return place_of(first_ask().gpu, listed) or 0


def _catalogued(gpu: str) -> str:
    from gputop_analysis import catalog

    try:
        return catalog.gpu(gpu).name if gpu else ""
    except LookupError:
        return gpu
