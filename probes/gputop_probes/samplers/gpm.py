"""GPM: activity of the SMs, tensor cores, memory and links between samples. Hopper and later."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gputop_probes.samplers.nvml import Nvml

_METRICS = (
    "NVML_GPM_METRIC_SM_UTIL",
    "NVML_GPM_METRIC_SM_OCCUPANCY",
    "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "NVML_GPM_METRIC_DRAM_BW_UTIL",
    "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
    "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
    "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC",
    "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC",
)
_MB_PER_MIB = 1.048576


class Activity(NamedTuple):
    """Averages since the sample before; percent of the peak, and MB/s. NaN: not told."""

    sm_pct: float = math.nan
    occupancy_pct: float = math.nan
    tensor_pct: float = math.nan
    dram_pct: float = math.nan
    pcie_tx_mb_s: float = math.nan
    pcie_rx_mb_s: float = math.nan
    nvlink_tx_mb_s: float = math.nan
    nvlink_rx_mb_s: float = math.nan


class Gpm:
    """Two samples of one device, used in turn."""

    def __init__(self, nvml: Nvml, device: Any):
        self._nvml = nvml
        self._device = device
        self._samples: list[Any] = []
        self._taken = 0
        self.supported = self._set_up()

    def read(self) -> Activity:
        """Activity since the last call; all NaN at the first one and where GPM does not work."""
        if not self.supported:
            return Activity()
        try:
            return self._read()
        except Exception:
            self.supported = False  # for example a MIG device, or a driver that changed under us
            return Activity()

    def _set_up(self) -> bool:
        nvml = self._nvml.module
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(self._device).isSupportedDevice:
                return False
            self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        except Exception:
            return False
        return True

    def _read(self) -> Activity:
        nvml = self._nvml.module
        newest = self._samples[self._taken % 2]
        nvml.nvmlGpmSampleGet(self._device, newest)
        self._taken += 1
        if self._taken < 2:
            return Activity()
        wanted = []
        for name in _METRICS:
            if (number := getattr(nvml, name, None)) is not None:
                wanted.append(number)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        request.sample1 = self._samples[self._taken % 2]
        request.sample2 = newest
        for index, number in enumerate(wanted):
            request.metrics[index].metricId = number
        nvml.nvmlGpmMetricsGet(request)
        values = [_value(request.metrics[index]) for index in range(len(wanted))]
        return Activity(*values[:4], *(value * _MB_PER_MIB for value in values[4:]))


def _value(metric: Any) -> float:
    if metric.nvmlReturn == 0:
        return float(metric.value)
    return math.nan
