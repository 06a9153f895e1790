"""Phases of steps as the device spent them.

On a GPU the host only launches kernels: its own phases say how long that took, and wherever it
waits for a result lies the device's work of the whole step. So where CUDA events have measured
enough steps, the time of each record is divided as the device spent it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_agent import wire

Array = npt.NDArray[Any]

DEVICE_STEPS = 20
"""Steps that must be measured on the device before its clock divides the time."""
ON_DEVICE = ("data", "h2d", "forward", "backward", "optimizer", "other")
_HOSTS_OWN = wire.F_FIRST | wire.F_COMPILE | wire.F_AGENT
"""Steps that are set-up, compilation or gputop's own work: they stay as the host saw them."""


def on_device_clock(rows: Array, device: Array) -> Array | None:
    """Step records with the phases that the device knows of as it measured them; None: it did not.

    A record gets the mean of the samples within it, or the nearest one. What it took longer than
    these, as at a stall, is divided as the host saw it. Sums and all other columns stay as they
    are, to the nanosecond.

    Args:
        rows: ``wire.STEP_FIELDS``, in order of time.
        device: ``wire.DEVICE_FIELDS`` of the same rank, in order of time.
    """
    if len(device) < DEVICE_STEPS or not len(rows):
        return None
    times_ms = np.stack([device[f"{name}_ms"] for name in ON_DEVICE], axis=1).astype(np.float64)
    steady = (device["flags"] & wire.F_UNSTEADY) == 0
    good = steady & np.isfinite(times_ms).all(axis=1) & (times_ms.sum(axis=1) > 0)
    if good.sum() < DEVICE_STEPS:
        return None
    host_ns = np.stack([rows[f"{name}_ns"] for name in ON_DEVICE], axis=1).astype(np.float64)
    a_step_ns = _means_within(rows, device["t_end_ns"][good], 1e6 * times_ms[good])
    steps = np.maximum(rows["n_steps"], 1).astype(np.float64)
    device_ns = np.maximum(a_step_ns, 0.0) * steps[:, None]
    divided = _divided(host_ns, device_ns)
    is_hosts_own = (rows["flags"] & _HOSTS_OWN) != 0
    divided[is_hosts_own] = host_ns[is_hosts_own]
    whole_ns = np.floor(divided).astype(np.int64)
    whole_ns[:, -1] += host_ns.sum(axis=1).astype(np.int64) - whole_ns.sum(axis=1)
    result = np.array(rows)
    for column, name in enumerate(ON_DEVICE):
        result[f"{name}_ns"] = whole_ns[:, column]
    return result


def _means_within(rows: Array, ends_ns: Array, samples: Array) -> Array:
    """For each record the mean of the samples whose steps ended in it, or the sample next to it."""
    begins = np.searchsorted(ends_ns, rows["t_end_ns"] - rows["wall_ns"], side="right")
    ends = np.searchsorted(ends_ns, rows["t_end_ns"], side="right")
    sums = np.concatenate([np.zeros((1, samples.shape[1])), np.cumsum(samples, axis=0)])
    counts = np.maximum(ends - begins, 1)[:, None]
    nearest = samples[np.minimum(begins, len(samples) - 1)]
    return np.where((ends > begins)[:, None], (sums[ends] - sums[begins]) / counts, nearest)


def _divided(host_ns: Array, device_ns: Array) -> Array:
    """The host's time divided as the device's, and what is left of it as it was."""
    host_total = host_ns.sum(axis=1, keepdims=True)
    device_total = device_ns.sum(axis=1, keepdims=True)
    scale = np.minimum(1.0, host_total / np.maximum(device_total, 1.0))
    rest = host_total - scale * device_total
    return scale * device_ns + rest * host_ns / np.maximum(host_total, 1.0)
