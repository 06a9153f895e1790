"""The class of a run's bottleneck: from its first finding, else from the phases."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.registry import CATALOGUE, Cause
from gputop_analysis.findings.shares import ENOUGH_STEPS
from gputop_analysis.model import Bottleneck, BottleneckKind, Finding
from gputop_analysis.stats import block_length, block_sums
from gputop_analysis.view import Array, RunView
from gputop_analysis.waits import hidden_wait_ms

_KIND_OF_CAUSE: dict[Cause, BottleneckKind] = {
    "hang": "hang",
    "crash": "crash",
    "nan": "numerics",
    "throttle": "throttle",
    "straggler": "straggler",
    "input": "input",
    "comm": "comm",
    "host": "host",
    "compute": "compute",
    "memory": "memory",
}
_PHASES_OF_KIND: dict[BottleneckKind, tuple[str, ...]] = {
    "compute": ("forward", "backward", "optimizer"),
    "input": ("data", "h2d"),
    "comm": ("comm",),
    "host": ("other", "eval", "checkpoint", "compile"),
}
_WORDS: dict[BottleneckKind, str] = {
    "compute": "forward, backward and optimizer",
    "input": "waiting for data",
    "comm": "waiting for other ranks",
    "host": "host code, evaluation, checkpoints and compilation",
}
RESAMPLES = 400
RANKS_READ = 16
"""Of more ranks so many are read, evenly spread: phases of a synchronous run are alike."""


def bottleneck(view: RunView, findings: list[Finding]) -> Bottleneck:
    """Judge by the first finding above ``info``, else by the kind that takes most of the step."""
    serious = next((finding for finding in findings if finding.severity != "info"), None)
    if serious is not None:
        return _of_finding(serious)
    shares = _shares(view)
    if shares is None:
        return Bottleneck(
            "unknown", 0.0, f"fewer than {ENOUGH_STEPS} steady steps: too few to judge"
        )
    kinds, totals, confidence = shares
    largest = int(np.argmax(totals))
    share = 100 * totals[largest] / max(totals.sum(), 1e-9)
    waits = any(hidden_wait_ms(view, rank) > 0 for rank in view.ranks[:RANKS_READ])
    if kinds[largest] == "compute" and waits:
        without = " without the waiting in it"
    else:
        without = ""
    description = _WORDS[kinds[largest]] + without
    why = (
        f"{description} take {share:.0f} % of the time, "
        "and no check found anything that is worth a change"
    )
    return Bottleneck(kinds[largest], confidence, why)


def _of_finding(finding: Finding) -> Bottleneck:
    spec = CATALOGUE.get(finding.id)
    kind_of_cause: BottleneckKind = _KIND_OF_CAUSE[spec.cause] if spec else "unknown"
    return Bottleneck(kind_of_cause, finding.confidence, finding.title, finding.fix, finding)


def _shares(view: RunView) -> tuple[list[BottleneckKind], Array, float] | None:
    """Kinds, their time over the steps of the phases' table, and how often the largest stays it."""
    ranks = view.ranks[:: max(1, len(view.ranks) // RANKS_READ)]
    parts = [part for rank in ranks if (part := _blocks(view, rank)) is not None]
    if not parts:
        return None
    blocks = np.concatenate(parts)
    totals = blocks.sum(axis=0)
    drawn = np.random.default_rng(0).multinomial(
        len(blocks), np.full(len(blocks), 1 / len(blocks)), RESAMPLES
    )
    same_kind = np.argmax(drawn @ blocks, axis=1) == np.argmax(totals)
    return list(_PHASES_OF_KIND), totals, float(same_kind.mean())


def _blocks(view: RunView, rank: int) -> Array | None:
    """Steps' blocks x kinds, milliseconds; what DDP hides in backward is moved to communication."""
    series = view.per_rank[rank]
    rows, counts = series.averaged_rows, series.n_steps[series.averaged]
    if counts.sum() < ENOUGH_STEPS:
        return None
    kinds = list(_PHASES_OF_KIND)
    times_of_kinds = [
        sum(rows[f"{phase}_ns"] for phase in phases) / 1e6 for phases in _PHASES_OF_KIND.values()
    ]
    times = np.stack(times_of_kinds, axis=1)
    hidden = hidden_wait_ms(view, rank)
    if np.isfinite(hidden):
        moved = np.minimum(hidden * counts, rows["backward_ns"] / 1e6)
        times[:, kinds.index("compute")] -= moved
        times[:, kinds.index("comm")] += moved
    return block_sums(times, block_length(times.sum(axis=1)))
