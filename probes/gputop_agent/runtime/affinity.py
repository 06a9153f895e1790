"""Cores that the training thread may use and does use, against those near its GPU."""

import os

from gputop_agent.runtime import descriptors, interrupts, transport
from gputop_agent.runtime.session import session

_FLUSH_AFTER = 10  # looks

_near = set()  # cores of the GPU's own socket; empty: not known, or all there are


def describe(properties):
    """``{"allowed_cpus", "device_cpus"}`` as the kernel writes lists of cores (``0-15,32-47``).

    ``properties`` are torch's of the CUDA device, None without one. What is not known is None.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
    else:
        allowed = frozenset()
    device = _device_cpus(properties)
    near = parse(device or "")
    _near.clear()
    if len(near) < (os.cpu_count() or 0):
        _near.update(near)
    return {"allowed_cpus": spell(allowed) or None, "device_cpus": device}


class AffinityWatch:
    """Looks once a second on which core the training thread ran last; one ``placement`` event in
    ten looks.
    """

    def __init__(self):
        self._looks = self._near = 0

    def look(self):
        """Count one look; nothing to do where the GPU's cores are not known."""
        if not _near or not session.native_tid:
            return
        try:
            fields = descriptors.stat_fields("/proc/self/task/%d/stat" % session.native_tid)
            last = int(fields[36])
        except (OSError, ValueError, IndexError):
            interrupts.pass_on()
            return
        self._looks += 1
        self._near += last in _near
        if self._looks >= _FLUSH_AFTER:
            transport.send_event("placement", looks=self._looks, near=self._near)
            self._looks = self._near = 0


def parse(cpus):
    """The set that a list such as ``0-3,8`` stands for."""
    cpus_ = set()
    for part in cpus.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            cpus_.update(range(int(first), int(last or first) + 1))
    return cpus_


def spell(cpus):
    """``0-3,8`` for a set of cores."""
    parts = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(
        str(first) if first == last else "%d-%d" % (first, last) for first, last in parts
    )


def _device_cpus(properties):
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return None
    pci_address = "%04x:%02x:%02x.0" % (
        getattr(properties, "pci_domain_id", 0),
        bus,
        getattr(properties, "pci_device_id", 0),
    )
    try:
        return (
            descriptors.read("/sys/bus/pci/devices/%s/local_cpulist" % pci_address).decode().strip()
            or None
        )
    except OSError:
        interrupts.pass_on()
        return None


@session.after_fork
def reset():
    """In a forked child."""
    _near.clear()
