"""Seconds of a matrix product by its shape: roofline with tiles and waves."""

from __future__ import annotations

import numpy as np

from gputop_analysis.planner.hardware import Device
from gputop_analysis.planner.layout import Floats

WAVE_POWER = 0.5
"""How far a half-empty last wave costs: 0 nothing, 1 as much as a full one. Fitted to SimuMax's
A100 and B200 tables; below 1 since libraries choose smaller tiles or split the inner size where a
wave would be empty.
"""
UNALIGNED_SHARE = 1 / 12
"""Speed with rows that are no multiple of 16 bytes, which keeps libraries from the tensor cores:
BLOOM's chronicles show heads of 108 against 96 and 144 values (bigscience-workshop/bigscience,
chronicles-prequel.md, "NHEADS").
"""
_OPERAND_BYTES = {"fp4": 0.5, "fp8": 1, "bf16": 2, "fp16": 2, "fp32": 4}


def seconds(
    device: Device,
    m: Floats,
    k: Floats,
    n: Floats,
    dtype: str,
    *,
    batch: Floats | float = 1.0,
    output_bytes: float = 2.0,
) -> Floats:
    """Of ``batch`` products (m x k) by (k x n).

    The share of the peak is that of large shapes, times what is used of the tiles and of the last
    wave (Nvidia, "Matrix Multiplication Background", sections 2 to 4), times k / (k + k_half) for
    the fill of a tile's pipeline; never faster than memory delivers operands and takes the output.
    """
    tile_m, tile_n = device.efficiency.tile
    tiles_m, tiles_n = np.ceil(m / tile_m), np.ceil(n / tile_n)
    tiles = tiles_m * tiles_n * batch
    waves = tiles / device.multiprocessors
    wave_use = (waves / np.ceil(waves)) ** WAVE_POWER
    tile_use = np.sqrt(m * n / (tiles_m * tile_m * tiles_n * tile_n))
    share = (
        device.matmul_share(dtype)
        * wave_use
        * tile_use
        * aligned(k, n)
        * k
        / (k + device.efficiency.k_half)
    )
    compute = 2 * batch * m * k * n / (device.flops(dtype) * share)
    moved = batch * (_OPERAND_BYTES.get(dtype, 2) * k * (m + n) + output_bytes * m * n)
    return np.maximum(compute, moved / (device.bytes_per_s * device.efficiency.memory_share))


def aligned(*sizes: Floats | float) -> Floats:
    """1 where all are multiples of 8 values, else ``UNALIGNED_SHARE``."""
    fits = np.logical_and.reduce(np.broadcast_arrays(*(np.mod(size, 8) == 0 for size in sizes)))
    return np.where(fits, 1.0, UNALIGNED_SHARE)
