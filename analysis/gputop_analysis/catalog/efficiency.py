"""How much of a GPU's peaks real programs reach, from the packaged calibration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gputop_analysis.catalog.gpus import GpuSpec
from gputop_analysis.data import table


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peaks, each between 0 and 1."""

    matmul_share: float
    matmul_share_fp8: float
    tile: tuple[int, int]
    """Rows and columns of a product that one multiprocessor works on."""
    k_half: float
    """Inner size at which the prologue of a tile costs as much as its main loop."""
    flash_share: float
    memory_share: float
    all_reduce_share: float
    """Bus bandwidth of large collectives over the link's one-way rate."""
    all_gather_share: float
    watts: float
    """Power limit of the card that the shares were measured on; 0: not known."""
    source: str


def efficiency_of(spec: GpuSpec) -> Efficiency:
    """The row of the chip; else of architecture and form factor, of the architecture, of all."""
    return _row_of(spec.architecture, spec.form_factor, spec.chip)


@cache
def _row_of(architecture: str, form_factor: str, chip: str) -> Efficiency:
    architectures = ("", architecture, architecture.split()[0])
    row = next(
        row
        for row in table("calib/devices.csv")
        if row["architecture"] in architectures
        and row["form_factor"] in ("", form_factor)
        and row["chip"] in ("", chip)
    )
    return Efficiency(
        matmul_share=float(row["matmul_share"]),
        matmul_share_fp8=float(row["matmul_share_fp8"] or row["matmul_share"]),
        tile=(int(row["tile_m"]), int(row["tile_n"])),
        k_half=float(row["k_half"]),
        flash_share=float(row["flash_share"]),
        memory_share=float(row["memory_share"]),
        all_reduce_share=float(row["all_reduce_share"]),
        all_gather_share=float(row["all_gather_share"]),
        watts=float(row["watts"] or 0),
        source=row["source"],
    )
