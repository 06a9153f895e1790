"""Short measurements on the hardware that is planned for, in place of what its kind usually
reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gputop_analysis.planner import gemm
from gputop_analysis.planner.hardware import MOST_SHARE, Cluster

GEMM_SIZE = 8192
"""Edge of the square product that is measured."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What one node reached; 0 where it was not measured."""

    gpu: str
    """As the driver calls it."""
    gemm_tflops: float = 0.0
    """Of a large product in bf16."""
    memory_gbs: float = 0.0
    """Read and written by a copy."""
    all_reduce_gbs: float = 0.0
    """Bus bandwidth of a large all-reduce of the node's GPUs."""

    @classmethod
    def of(cls, devices: Mapping[str, Mapping[str, Any]], links: Mapping[str, Any]) -> Probed:
        """From the figures of each device and of the links; the slowest device counts, as ranks
        wait for each other.

        Raises:
            ValueError: no GPU was measured.
        """
        gpus = [figures for figures in devices.values() if figures.get("gpu")]
        if not gpus:
            raise ValueError("there is no GPU here to measure")
        return cls(
            gpu=str(gpus[0]["gpu"]),
            gemm_tflops=min(float(figures["gemm_tflops"]) for figures in gpus),
            memory_gbs=min(float(figures["memory_gbs"]) for figures in gpus),
            all_reduce_gbs=float(links.get("all_reduce_gbs", 0.0)),
        )


def applied(hardware: Cluster, probed: Probed) -> Cluster:
    """The cluster with the shares of its peaks that were measured."""
    chip = hardware.device
    shares: dict[str, float] = {}
    if probed.gemm_tflops:
        edge = np.array([float(GEMM_SIZE)])
        predicted = float(gemm.seconds(chip, edge, edge, edge, "bf16")[0])
        ratio = predicted / (2 * GEMM_SIZE**3 / (probed.gemm_tflops * 1e12))
        for name in ("matmul_share", "matmul_share_fp8"):
            shares[name] = min(getattr(chip.efficiency, name) * ratio, MOST_SHARE)
    if probed.memory_gbs:
        shares["memory_share"] = min(probed.memory_gbs * 1e9 / chip.bytes_per_s, 1.0)
    measured = hardware.but(device=replace(chip, efficiency=replace(chip.efficiency, **shares)))
    if not probed.all_reduce_gbs:
        return measured
    rate = probed.all_reduce_gbs * 1e9
    gather = hardware.gather_bytes_per_s * rate / hardware.link_bytes_per_s
    return measured.but(link_bytes_per_s=rate, gather_bytes_per_s=gather)
