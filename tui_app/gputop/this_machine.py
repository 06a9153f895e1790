"""The GPUs and network cards of this machine and the links between them, as the driver
tells them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_analysis.topology.model import Topology


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
