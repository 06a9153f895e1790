"""The GPUs and network cards of this machine and the links between them, as the driver
tells them; the power that it leaves them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_analysis.topology.model import Topology
    from gputop_probes.samplers.nvml import Nvml

LOWERED = 0.97
"""Share of the data sheet's power below which a limit in force was set by somebody."""


class NoDriverError(Exception):
    """There is no driver, or it does not answer; the message says what to do instead."""


def node_topology() -> Topology:
    """The topology of this node. Asking the driver can take seconds.

    Raises:
        NoDriverError: nobody can be asked.
    """
    import socket

    from gputop_analysis.topology.probed import from_probe
    from gputop_probes import topology
    from gputop_probes.samplers.nvml import Nvml, NvmlMissing

    try:
        nvml = Nvml()
    except NvmlMissing as error:
        raise NoDriverError(
            f"{error}: `gputop topo --from FILE` reads a text of `nvidia-smi topo -m`"
        ) from None
    try:
        return from_probe(topology.read(nvml), socket.gethostname())
    except OSError as error:
        raise NoDriverError(str(error)) from None
    finally:
        nvml.close()


def lowered_limit_w(name: str) -> float:
    """The least power limit in force on the GPUs here of that catalog name, in watts; 0 where there
    are none, nobody can be asked, or no limit is below the data sheet's.
    """
    from gputop_analysis.catalog import find_gpu, gpu
    from gputop_probes.samplers.nvml import Nvml, NvmlMissing

    try:
        nvml = Nvml()
    except NvmlMissing:
        return 0.0
    try:
        here = _limits(nvml)
    except Exception:  # a driver that answers half: the data sheet's limit stands
        return 0.0
    finally:
        nvml.close()
    limits = [watts for written, watts in here if find_gpu(written) is gpu(name) and watts > 0]
    lowest_w = min(limits, default=0.0)
    return lowest_w if lowest_w < LOWERED * gpu(name).power_w else 0.0


def _limits(nvml: Nvml) -> list[tuple[str, float]]:
    """Name and enforced power limit in watts of each GPU."""
    return [
        (nvml.name(device), nvml.ask("nvmlDeviceGetEnforcedPowerLimit", device) / 1e3)
        for device in nvml.devices()
    ]
