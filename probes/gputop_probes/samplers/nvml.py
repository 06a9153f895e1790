"""NVML behind one function that never raises: what a driver does not tell is a default."""

from __future__ import annotations

import ctypes
import math
from typing import Any

_NEVER_AGAIN = (
    "NVMLError_NotSupported",
    "NVMLError_FunctionNotFound",
    "NVMLError_NoPermission",
    "AttributeError",
)


class NvmlMissing(Exception):
    """No NVIDIA driver or no access to it; the text says so in words."""


class Nvml:
    """The NVML library, initialised."""

    def __init__(self) -> None:
        """Load the driver's library.

        Raises:
            NvmlMissing: there is none, or it does not start.
        """
        self.module = _load()
        self._refused: set[tuple[str, tuple[Any, ...]]] = set()

    def ask(self, function: str, device: Any, *arguments: Any, default: Any = math.nan) -> Any:
        """Call ``nvmlDeviceGet...(device, *arguments)``; the default where it fails.

        A call that this device does not support is not made again.
        """
        key = (function, (id(device), *arguments))
        if key in self._refused:
            return default
        try:
            return getattr(self.module, function)(device, *arguments)
        except Exception as error:
            if type(error).__name__ in _NEVER_AGAIN:
                self._refused.add(key)
            return default

    def devices(self) -> list[Any]:
        """Handles of all devices.

        Raises:
            Exception: the driver does not list them.
        """
        count = int(self.module.nvmlDeviceGetCount())
        return [self.module.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def name(self, device: Any) -> str:
        """What the driver calls it; empty where it does not tell."""
        return text_of(self.ask("nvmlDeviceGetName", device, default=""))

    def field(self, device: Any, name: str) -> int:
        """An integer field value (``NVML_FI_...``); -1 where there is none."""
        number = getattr(self.module, name, None)
        if number is None:
            return -1
        values = self.ask("nvmlDeviceGetFieldValues", device, (number,), default=None)
        if not values or values[0].nvmlReturn != 0:
            return -1
        value, value_type = values[0].value, values[0].valueType
        names = {
            0: "dVal",
            1: "uiVal",
            2: "ulVal",
            3: "ullVal",
            4: "sllVal",
            5: "siVal",
            6: "usVal",
        }
        return int(getattr(value, names.get(value_type, "ullVal")))

    def close(self) -> None:
        """Let the library go."""
        try:
            self.module.nvmlShutdown()
        except Exception:
            pass


def text_of(value: Any) -> str:
    """Text, which some versions of the library give as bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


def _load() -> Any:
    try:
        # 0.1 ms; importing pynvml for nothing would cost 25 ms and some MB
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        raise NvmlMissing("no NVIDIA driver here") from None
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        raise NvmlMissing(f"the NVIDIA driver does not answer: {error}") from None
    return pynvml
