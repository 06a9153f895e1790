"""One GPU record a device and tick, for the devices that the run uses."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from gputop_probes import procfs
from gputop_probes.record import layout
from gputop_probes.samplers.gpm import Gpm
from gputop_probes.samplers.inbox import Inbox
from gputop_probes.samplers.nvml import Nvml, NvmlMissing, text_of

_PCIE_EVERY_TICKS = 4
"""PCIe counters are read through GPM only: without it each one blocks the driver call for 20 ms."""
_MB_PER_KB = 1e-3
_XID = 8  # nvmlEventTypeXidCriticalError


class GpuSampler:
    """This machine's devices that the run may use; once known, those that it does use."""

    def __init__(self, inbox: Inbox, run_pids: Callable[[], list[int]], now_ns: Callable[[], int]):
        self.give_up: Callable[[], None] = lambda: None
        """Called when there is nothing to sample."""
        self._inbox = inbox
        self._run_pids = run_pids
        self._now_ns = now_ns
        self._nvml: Nvml | None = None
        self._devices: list[_Device] = []
        self._ours: set[int] = set()
        self._events: Any = None
        self._tick = 0

    def sample(self) -> None:
        """One tick; the first one looks what there is."""
        if self._nvml is None and not self._open():
            self.give_up()
            return
        pids = set(self._run_pids())
        used = set()
        for device in self._devices:
            if device.note_processes(pids):
                used.add(device.index)
        if used - self._ours:
            self._ours |= used
            self._tell_devices()
        shown = []
        for device in self._devices:
            if not self._ours or device.index in self._ours:
                shown.append(device)
        now_ns = self._now_ns()
        full = self._tick % _PCIE_EVERY_TICKS == 0
        self._inbox.records.append(("gpu", b"".join(device.pack(now_ns, full) for device in shown)))
        self._tick += 1
        self._take_xids()

    def _open(self) -> bool:
        try:
            self._nvml = Nvml()
        except NvmlMissing as error:
            self._inbox.state.append({"gpu_note": str(error)})
            return False
        count = _call(self._nvml.module, "nvmlDeviceGetCount", default=0)
        handles = []
        for index in range(count):
            handles.append(_call(self._nvml.module, "nvmlDeviceGetHandleByIndex", index))
        devices = []
        for index, handle in enumerate(handles):
            if handle is not None:
                devices.append(_Device(self._nvml, index, handle))
        self._devices = visible(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if not self._devices:
            self._inbox.state.append({"gpu_note": "the driver shows no GPU to this run"})
            return False
        self._tell_devices()
        self._watch_xids()
        return True

    def _tell_devices(self) -> None:
        self._inbox.state.append(
            {"gpus": [device.describe(self._ours) for device in self._devices]}
        )

    def _watch_xids(self) -> None:
        assert self._nvml is not None
        nvml = self._nvml.module
        self._events = _call(nvml, "nvmlEventSetCreate")
        if self._events is not None:
            for device in self._devices:
                _call(nvml, "nvmlDeviceRegisterEvents", device.handle, _XID, self._events)

    def _take_xids(self) -> None:
        """Critical errors since the last tick, without waiting for one."""
        if self._events is None or self._nvml is None:
            return
        for _ in range(len(self._devices)):
            data = _call(self._nvml.module, "nvmlEventSetWait_v2", self._events, 0)
            if data is None:
                return
            if int(data.eventType) & _XID:
                uuid = _call(self._nvml.module, "nvmlDeviceGetUUID", data.device, default="")
                index = next(
                    (device.index for device in self._devices if device.uuid == text_of(uuid)), -1
                )
                self._inbox.events.append(("xid", {"gpu": index, "code": int(data.eventData)}))


class _Device:
    """One GPU."""

    def __init__(self, nvml: Nvml, index: int, handle: Any):
        self.index = index
        self.handle = handle
        self.name = nvml.name(handle)
        self.uuid = text_of(nvml.ask("nvmlDeviceGetUUID", handle, default=""))
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle, default=None)
        self.memory_total_bytes = -1
        if memory:
            self.memory_total_bytes = int(memory.total)
        self._nvml = nvml
        self._gpm = Gpm(nvml, handle)
        self._ours_bytes = self._foreign_bytes = -1
        self._pcie = (math.nan, math.nan)
        self._power_limit_w = nvml.ask("nvmlDeviceGetEnforcedPowerLimit", handle) / 1e3
        self._power_default_w = nvml.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle) / 1e3
        self._sm_clock_max_mhz = float(nvml.ask("nvmlDeviceGetMaxClockInfo", handle, 1))

    def describe(self, ours: set[int]) -> dict[str, Any]:
        """Description as ``manifest.GpuInfo``. Before any process was seen on a device, all devices
        count as the run's.
        """
        return {
            "index": self.index,
            "name": self.name,
            "uuid": self.uuid,
            "memory_total_bytes": self.memory_total_bytes,
            "ours": not ours or self.index in ours,
            "gpm": self._gpm.supported,
            "power_limit_default_w": None
            if math.isnan(self._power_default_w)
            else self._power_default_w,
        }

    def note_processes(self, run_pids: set[int]) -> bool:
        """Split the memory by whose processes hold it. Returns whether the run uses this device."""
        processes = self._nvml.ask(
            "nvmlDeviceGetComputeRunningProcesses", self.handle, default=None
        )
        if processes is None:
            self._ours_bytes = self._foreign_bytes = -1
            return False
        ours = []
        for process in processes:
            if process.pid in run_pids:
                ours.append(process)
        foreign = []
        for process in processes:
            if process.pid not in run_pids:
                foreign.append(process)
        self._ours_bytes = _sum_memory(ours)
        # another pid namespace, as in a container
        hidden = any(procfs.stat(process.pid) is None for process in foreign)
        if hidden:
            self._foreign_bytes = -1
        else:
            self._foreign_bytes = _sum_memory(foreign)
        return bool(ours)

    def pack(self, now_ns: int, full: bool) -> bytes:
        """One packed GPU record; ``full`` reads also what is slow to read."""
        ask, handle = self._nvml.ask, self.handle
        memory = ask("nvmlDeviceGetMemoryInfo", handle, default=None)
        utilisation = ask("nvmlDeviceGetUtilizationRates", handle, default=None)
        activity = self._gpm.read()
        if not self._gpm.supported and full:
            self._pcie = tuple(
                ask("nvmlDeviceGetPcieThroughput", handle, way) * _MB_PER_KB for way in (0, 1)
            )
        if self._gpm.supported:
            tx, rx = (activity.pcie_tx_mb_s, activity.pcie_rx_mb_s)
        else:
            tx, rx = self._pcie
        return layout.GPU.pack(
            now_ns,
            int(memory.used) if memory else -1,
            int(memory.total) if memory else -1,
            self._ours_bytes,
            self._foreign_bytes,
            self._event_reasons(),
            int(ask("nvmlDeviceGetTotalEnergyConsumption", handle, default=-1)),
            int(ask("nvmlDeviceGetTotalEccErrors", handle, 0, 0, default=-1)),
            int(ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0, default=-1)),
            int(ask("nvmlDeviceGetPcieReplayCounter", handle, default=-1)),
            self._nvlink_errors(),
            self.index,
            int(ask("nvmlDeviceGetPerformanceState", handle, default=-1)),
            int(ask("nvmlDeviceGetCurrPcieLinkGeneration", handle, default=-1)),
            int(ask("nvmlDeviceGetCurrPcieLinkWidth", handle, default=-1)),
            float(utilisation.gpu) if utilisation else math.nan,
            float(utilisation.memory) if utilisation else math.nan,
            ask("nvmlDeviceGetPowerUsage", handle) / 1e3,
            self._power_limit_w,
            float(ask("nvmlDeviceGetTemperature", handle, 0)),
            self._memory_temperature(),
            float(ask("nvmlDeviceGetClockInfo", handle, 1)),
            self._sm_clock_max_mhz,
            float(ask("nvmlDeviceGetClockInfo", handle, 2)),
            float(ask("nvmlDeviceGetFanSpeed", handle)),
            activity.sm_pct,
            activity.occupancy_pct,
            activity.tensor_pct,
            activity.dram_pct,
            tx,
            rx,
            activity.nvlink_tx_mb_s,
            activity.nvlink_rx_mb_s,
        )

    def _event_reasons(self) -> int:
        """Why the clocks are where they are; older drivers know the call by its old name."""
        reasons = self._nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", self.handle, default=-1)
        if reasons == -1:
            reasons = self._nvml.ask(
                "nvmlDeviceGetCurrentClocksThrottleReasons", self.handle, default=-1
            )
        return int(reasons)

    def _memory_temperature(self) -> float:
        celsius = self._nvml.field(self.handle, "NVML_FI_DEV_MEMORY_TEMP")
        if celsius > 0:
            return float(celsius)
        return math.nan

    def _nvlink_errors(self) -> int:
        """Replays, recoveries and CRC errors of all links since the driver was loaded."""
        names = (
            "CRC_FLIT_ERROR_COUNT_TOTAL",
            "REPLAY_ERROR_COUNT_TOTAL",
            "RECOVERY_ERROR_COUNT_TOTAL",
        )
        counts = []
        for name in names:
            counts.append(self._nvml.field(self.handle, f"NVML_FI_DEV_NVLINK_{name}"))
        supported = [count for count in counts if count >= 0]
        if supported:
            return sum(supported)
        return -1


def visible(devices: list[_Device], variable: str | None) -> list[_Device]:
    """The devices that ``CUDA_VISIBLE_DEVICES`` lets the run see (indices or beginnings of UUIDs;
    None: all).

    Indices follow PCI order only under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; until processes are seen
    this is a guess.
    """
    if variable is None:
        return devices
    chosen = []
    for word in (part.strip() for part in variable.split(",")):
        matches = []
        for device in devices:
            if _is_named(device, word):
                matches.append(device)
        if not matches:  # CUDA stops at the first entry that names no device
            break
        chosen += matches
    return chosen


def _is_named(device: _Device, word: str) -> bool:
    if word.isdigit():
        return device.index == int(word)
    return bool(word) and device.uuid.startswith(word)


def _sum_memory(processes: list[Any]) -> int:
    """Their memory in bytes; -1 when the driver hides the size of one."""
    sizes = [process.usedGpuMemory for process in processes]
    if any(size is None for size in sizes):
        return -1
    return sum(int(size) for size in sizes)


def _call(module: Any, function: str, *arguments: Any, default: Any = None) -> Any:
    try:
        return getattr(module, function)(*arguments)
    except Exception:
        return default
