"""A probe's comparison as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_analysis.vram.probed import Compared

_GPU = "kept: later estimates of this model start from it"
_CPU = "kept: later estimates of this model start from the difference in weights, gradients and optimizer states"
_NONE = "nothing is kept: no size was both estimated and measured"
_OF_A_CPU = (
    "A CPU has no caching allocator, and its kernels keep other activations and make other temporaries than CUDA's:\n"
    "the peak is not measured there, and what is kept for the backward is shown and not taken over."
)


def print_table(found: Compared) -> None:
    """Estimated, measured and how far off; GiB, what is small in MiB with its unit."""
    print(f"{found.model} on {found.gpu or 'CPU'}, against the {found.tier} tier\n")
    print(f"{'GiB':<22}{'estimated':>12}{'measured':>12}{'off':>10}")
    for row in found.rows:
        off = f"{row.difference_pct:+.1f} %" if row.difference_pct is not None else "–"
        what = f"{row.what} kept" if row.what == "activations" else row.what
        print(f"{what:<22}{_gib(row.estimated):>12}{_gib(row.measured):>12}{off:>10}")
    print()
    print((_CPU if found.device == "cpu" else _GPU) if found.stored else _NONE)
    if found.device == "cpu":
        print(_OF_A_CPU)


def _gib(size: int | None) -> str:
    if size is None:
        return "–"
    return f"{size / 2**30:.3f}" if size >= 2**26 else f"{size / 2**20:.1f} M"
