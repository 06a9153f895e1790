"""How the GPUs and network cards of this machine hang together: NVML for the GPUs, sysfs for the
cards.

NVML's common ancestor describes PCIe only, so NVLink is asked for link by link: what is at the
other end is another GPU, or a switch that reaches all of them.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

from gputop_probes.samplers.nvml import Nvml, text_of

_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML_TOPOLOGY_INTERNAL (two GPUs of one board), SINGLE, MULTIPLE, HOSTBRIDGE, NODE, SYSTEM."""
_MOST_LINKS = 36
_TO_GPU, _TO_SWITCH = 0, 2
_FABRIC_COMPLETED = 3


def read(nvml: Nvml, root: Path = Path("/sys")) -> dict[str, Any]:
    """``{"gpus": [{name, pci, numa, cpus, c2c}], "nics": [{name, kind, gbit, pci, numa}], "links",
    "fabric", "p2p"}``.

    Raises:
        OSError: NVML does not tell how many GPUs there are.
    """
    try:
        devices = nvml.devices()
    except Exception as error:
        raise OSError(f"the NVIDIA driver does not list its GPUs: {error}") from None
    gpus = [_gpu(nvml, device, root) for device in devices]
    nics = network_cards(root)
    return {
        "gpus": gpus,
        "nics": nics,
        "links": _links(nvml, devices, gpus, nics, root),
        "fabric": _fabric(nvml, devices),
        "p2p": _without_p2p(nvml, devices),
    }


def _gpu(nvml: Nvml, device: Any, root: Path) -> dict[str, Any]:
    pci = nvml.ask("nvmlDeviceGetPciInfo", device, default=None)
    c2c = nvml.ask("nvmlDeviceGetC2cModeInfoV", device, default=None)
    bus, numa, cpus = "", None, ""
    if pci is not None:
        bus = _bus_id(pci)
    if bus:
        folder = root / "bus/pci/devices" / bus
        numa, cpus = _numa(folder), _read(folder / "local_cpulist")
    return {
        "name": nvml.name(device),
        "pci": bus,
        "numa": numa,
        "cpus": cpus,
        "c2c": bool(getattr(c2c, "isC2cEnabled", 0)),
    }


def _bus_id(pci: Any) -> str:
    """As sysfs spells it: a four-digit domain and lower case."""
    bus = text_of(getattr(pci, "busId", "")).lower()
    return re.sub(r"^0{4}([0-9a-f]{4}:)", r"\1", bus)


def _links(
    nvml: Nvml, devices: list[Any], gpus: list[Any], nics: list[Any], root: Path
) -> list[list[str]]:
    joined = [_nvlinks(nvml, device) for device in devices]
    count = len(devices) + len(nics)
    codes = [["X"] * count for _ in range(count)]
    for a in range(count):
        for b in range(a + 1, count):
            if b < len(devices):
                link = _between_gpus(nvml, devices, gpus, joined=joined, a=a, b=b)
            else:
                link = _between(_place(gpus, nics, a), _place(gpus, nics, b), root)
            codes[a][b] = codes[b][a] = link
    return codes


def _nvlinks(nvml: Nvml, device: Any) -> dict[str, int]:
    """Active links by what they lead to: the bus id of a GPU, or ``switch``."""
    links: dict[str, int] = {}
    for link in range(_MOST_LINKS):
        if nvml.ask("nvmlDeviceGetNvLinkState", device, link, default=0) != 1:
            continue
        link_type = nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", device, link, default=None)
        remote = nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", device, link, default=None)
        if link_type == _TO_SWITCH:
            links["switch"] = links.get("switch", 0) + 1
        elif remote is not None and link_type in (_TO_GPU, None):
            bus = _bus_id(remote)
            links[bus] = links.get(bus, 0) + 1
    return links


def _between_gpus(
    nvml: Nvml, devices: list[Any], gpus: list[Any], *, joined: list[dict[str, int]], a: int, b: int
) -> str:
    direct = joined[a].get(gpus[b]["pci"], 0)
    through = min(joined[a].get("switch", 0), joined[b].get("switch", 0))
    if direct or through:
        return f"NV{direct or through}"
    level = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", devices[a], devices[b], default=50)
    return _ANCESTORS.get(int(level), "SYS")


def _place(gpus: list[Any], nics: list[Any], index: int) -> dict[str, Any]:
    return gpus[index] if index < len(gpus) else nics[index - len(gpus)]


def _between(first: dict[str, Any], second: dict[str, Any], root: Path) -> str:
    """PCIe distance of two devices from their paths in sysfs: how many bridges lie between them."""
    paths = [_pci_path(root, gpu["pci"]) for gpu in (first, second)]
    if not all(paths):
        return "SYS"
    if paths[0][0] != paths[1][0]:
        same = first.get("numa") is not None and first.get("numa") == second.get("numa")
        return "NODE" if same else "SYS"
    shared = _shared(*paths)
    if shared <= 1:
        return "PHB"
    ports = len(paths[0]) + len(paths[1]) - 2 * shared - 2
    return "PIX" if ports <= 2 else "PXB"  # two ports: both hang below one switch


def _shared(first: list[str], second: list[str]) -> int:
    """How many parts two paths begin with alike."""
    count = 0
    for part, other in zip(first, second, strict=False):
        if part != other:
            break
        count += 1
    return count


def _pci_path(root: Path, bus: str) -> list[str]:
    """``[host bridge, bridge, ..., device]`` of a device; empty where sysfs does not know it."""
    link = root / "bus/pci/devices" / bus if bus else None
    if link is None or not link.exists():
        return []
    parts = link.resolve().parts
    for index, part in enumerate(parts):
        if part.startswith("pci"):
            return list(parts[index:])
    return []


def network_cards(root: Path = Path("/sys")) -> list[dict[str, Any]]:
    """InfiniBand and RoCE cards, else physical interfaces that are up; ``gbit`` 0: not told."""
    fabric = map(_infiniband, sorted((root / "class/infiniband").glob("*")))
    ethernet = map(_ethernet, sorted((root / "class/net").glob("*")))
    return list(filter(None, fabric)) or list(filter(None, ethernet))


def _infiniband(card: Path) -> dict[str, Any] | None:
    ports = sorted((card / "ports").glob("*"))
    up = [port for port in ports if "ACTIVE" in _read(port / "state")]
    if not up:
        return None
    layers = {_read(port / "link_layer") for port in up}
    if card.name.startswith(("efa", "rdmap")):
        fabric_kind = "EFA"
    elif "InfiniBand" in layers:
        fabric_kind = "InfiniBand"
    else:
        fabric_kind = "RoCE"
    gbit = sum(_number(_read(port / "rate")) for port in up)
    return {"name": card.name, "kind": fabric_kind, "gbit": gbit, **_where(card / "device")}


def _ethernet(interface: Path) -> dict[str, Any] | None:
    device = interface / "device"
    if not device.exists() or _read(interface / "operstate") != "up":
        return None
    mbit = _number(_read(interface / "speed"))
    return {
        "name": interface.name,
        "kind": "Ethernet",
        "gbit": max(mbit, 0.0) / 1000,
        **_where(device),
    }


def _where(device: Path) -> dict[str, Any]:
    name = device.resolve().name
    return {"pci": name if re.match(r"^[0-9a-f]{4}:", name) else "", "numa": _numa(device)}


def _fabric(nvml: Nvml, devices: list[Any]) -> dict[str, Any] | None:
    """The NVLink domain of a multi-node fabric; None where there is none or it is not set up."""
    make = getattr(nvml.module, "c_nvmlGpuFabricInfoV_t", None)
    if not devices or make is None:
        return None
    state = make()
    answered = nvml.ask("nvmlDeviceGetGpuFabricInfoV", devices[0], state, default=None)
    if answered is not None and not isinstance(answered, int):
        state = answered  # other bindings fill in what they are given
    if int(getattr(state, "state", 0)) != _FABRIC_COMPLETED:
        return None
    uuid = bytes(getattr(state, "clusterUuid", b"")).hex()
    if not uuid.strip("0"):
        return None
    return {"cluster": uuid, "clique": int(getattr(state, "cliqueId", 0))}


def _without_p2p(nvml: Nvml, devices: list[Any]) -> list[list[int]]:
    """Pairs of GPUs that cannot read each other's memory."""
    capability = getattr(nvml.module, "NVML_P2P_CAPS_INDEX_READ", 0)
    without = []
    for (a, first), (b, second) in combinations(enumerate(devices), 2):
        if nvml.ask("nvmlDeviceGetP2PStatus", first, second, capability, default=0) != 0:
            without.append([a, b])
    return without


def _numa(device: Path) -> int | None:
    text = _read(device / "numa_node")
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str) -> float:
    match = re.match(r"^-?\d+(\.\d+)?", text)
    return float(match.group()) if match else 0.0
