"""A probe's comparison: as a table for the terminal, and kept for later estimates."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gputop.cli.notices import notice
from gputop_analysis.units import GIB

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.eventlog import EventLog
    from gputop_analysis.vram.probed import Compared

_GPU = "kept: later estimates of this model start from it"
_CPU = (
    "kept: later estimates of this model start from the difference in weights, gradients "
    "and optimizer states"
)
_NONE = "nothing is kept: no size was both estimated and measured"
_OF_A_CPU = (
    "A CPU has no caching allocator, and its kernels keep other activations and make other "
    "temporaries than CUDA's:\nthe peak is not measured there, and what is kept for the backward "
    "is shown and not taken over."
)


def print_table(compared: Compared) -> None:
    """Estimated, measured and how far off; GiB, what is small in MiB with its unit."""
    print(f"{compared.model} on {compared.gpu or 'CPU'}, against the {compared.tier} tier\n")
    print(f"{'GiB':<22}{'estimated':>12}{'measured':>12}{'off':>10}")
    for row in compared.rows:
        off = "–"
        if row.difference_pct is not None:
            off = f"{row.difference_pct:+.1f} %"
        label = f"{row.what} kept" if row.what == "activations" else row.what
        print(f"{label:<22}{_gib(row.estimated):>12}{_gib(row.measured):>12}{off:>10}")
    print()
    if compared.stored:
        print(_CPU if compared.device == "cpu" else _GPU)
    else:
        print(_NONE)
    if compared.device == "cpu":
        print(_OF_A_CPU)


def _gib(size: int | None) -> str:
    if size is None:
        return "–"
    return f"{size / GIB:.3f}" if size >= 2**26 else f"{size / 2**20:.1f} M"


def show(
    estimate: Estimate,
    log: EventLog | None,
    measured: dict[str, Any],
    as_json: bool,
    known_as: str = "",
) -> None:
    """Print measured beside estimated, and keep the difference, under a name if given."""
    from gputop_analysis.vram.probed import compared, record

    comparison = compared(estimate, log, measured)
    entry = record(comparison, estimate.setup)
    comparison = replace(
        comparison,
        stored=entry is not None and _keep({**entry, "model": known_as or comparison.model}),
    )
    print(json.dumps(comparison.to_json(), indent=2)) if as_json else print_table(comparison)


def _keep(record: dict[str, Any]) -> bool:
    import time

    from gputop.calibration import remember

    try:
        remember({**record, "t_ns": time.time_ns()})
    except OSError as error:
        notice(f"the difference was not kept: {error.strerror or error}")
        return False
    return True
