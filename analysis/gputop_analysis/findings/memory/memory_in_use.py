"""How much of a rise of memory is in use, by the C library's own account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gputop_analysis.findings.memory.steady_growth import Growth, rank_growth
from gputop_analysis.findings.memory.tensor_counts import (
    HOLDERS,
    on_gpu,
    tensors_kept,
    waits_for_collector,
)
from gputop_analysis.findings.registry import Spec
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import spread, told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import Array, RunView

IN_USE, IN_USE_OF_TENSORS, COUNTED = 0.35, 0.2, 0.4
"""Part of a growth that is in use at least, for something to be kept, and where more tensors are
alive; and the part of it that has to have been counted for that.
"""
NAMED_BYTES, NAMED_SHARE = 24 << 20, 0.5
"""More that is in use, and the part of the rise that it is, for what a name is known of."""
GOES_ON, TOO_LITTLE_BYTES = 0.3, NAMED_BYTES / 4
"""Part of that rate that must last to the end, where so much at least is to come till then."""
ALIKE = 0.5
"""Part of one rank's growth that the others must have, for it to be no matter of that rank."""


def whose(view: RunView, rank: int, grown: Mapping[int, Any]) -> int | None:
    """The rank whose memory grows; of all where others do, or where that of the others has risen
    by half as much at least, though not as steadily.
    """
    risen = {other: _risen(view.per_rank[other].rows["rss_bytes"]) for other in spread(view.ranks)}
    alike_bytes = ALIKE * risen.get(rank, 0.0)
    alone = len(grown) == 1 and all(
        more < alike_bytes for other, more in risen.items() if other != rank
    )
    return rank if alone else everybody(view)


def _risen(sizes: Array) -> float:
    """From the first quarter's end to the last tenth; the last record may be of a process that has
    given its memory back.
    """
    if not len(sizes):
        return 0.0
    return float(sizes[-1 - len(sizes) // 10 :].max() - sizes[len(sizes) // 4])


def named_growth(view: RunView, spec: Spec, holder: str) -> Finding | None:
    """What has a name and grows by less than a rise of all memory takes to be sure: more and more
    is in use at two counts, and it goes on to the end.
    """
    if any(rank_growth(view, rank, "rss_bytes") for rank in spread(view.ranks)):
        return None  # told as growth of all memory
    pairs = {rank: pair for rank in spread(view.ranks) if (pair := _more_in_use(view, rank))}
    named = {rank: pair for rank, pair in pairs.items() if pair[1].get(holder)}
    if not named:
        return None
    rank, (first, last) = max(named.items(), key=lambda item: item[1][1]["in_use_bytes"])
    name, site = last[holder], last.get(HOLDERS[holder])
    steps, more = last["step"] - first["step"], last["in_use_bytes"] - first["in_use_bytes"]
    source = f"tensors events, rank {rank}"
    return spec.make(
        severity="medium",
        title=f"{name} gets longer with the steps: {more / steps / 1e6:.2f} MB a step",
        evidence=f"{last['in_use_bytes'] / 1e6:,.0f} MB more than at step 20 are in use at step "
        f"{last['step']}, {first['in_use_bytes'] / 1e6:,.0f} MB at step {first['step']}, by the C "
        f"library's account, and memory rises on to the end; {name} is what has grown by as much"
        + (f", filled at {site}" if site else ""),
        fix=f"keep less in {name}, such as the newest few; of tensors keep numbers: loss.item()",
        rank=whose(view, rank, pairs),
        site=site or None,
        confidence=0.9,
        proof=Proof(
            statistic="bytes that are in use beyond those of step 20",
            value=last["in_use_bytes"] / 1e6,
            threshold=NAMED_BYTES / 1e6,
            unit="MB",
            formula="mallinfo2's uordblks and hblkhd, and 64 bytes a block of Python's; at least "
            "half of what resident memory rose by",
            inputs=(
                Input("first count", first["in_use_bytes"] / 1e6, "MB", source),
                Input("last count", last["in_use_bytes"] / 1e6, "MB", source),
                Input("steps between", steps, "", source),
            ),
        ),
    )


def _more_in_use(view: RunView, rank: int) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The first and the last count of memory that is in use, where it grows and goes on to grow;
    None: it does not, or nobody can tell.
    """
    counts = [count for count in told(view, "tensors").get(rank, []) if "in_use_bytes" in count]
    if len(counts) < 2 or on_gpu(view, rank):
        return None
    first, last = counts[0], counts[-1]
    steps, more = last["step"] - first["step"], last["in_use_bytes"] - first["in_use_bytes"]
    if last["in_use_bytes"] < max(NAMED_BYTES, NAMED_SHARE * last["risen_bytes"]):
        return None
    if steps <= 0 or more <= 0 or waits_for_collector(last):
        return None
    goes_on = _goes_on(view.per_rank[rank].rows, last, more / steps)
    return (first, last) if goes_on else None


def _goes_on(rows: Array, last: Mapping[str, Any], bytes_per_step: float) -> bool:
    """Whether resident memory rises on after the last count at a good part of that rate, or too
    few steps came after it to tell.
    """
    after = rows[rows["step"] > last["step"]]
    expected = bytes_per_step * float(after["n_steps"].sum())
    if expected <= TOO_LITTLE_BYTES:
        return True
    came = float(np.percentile(after["rss_bytes"], 90)) - last["memory_bytes"]
    return came >= GOES_ON * expected


def is_freed(view: RunView, rank: int, growth: Growth) -> bool:
    """Whether little of what memory has risen by is in use, and nothing is known to keep more."""
    count = next(reversed(told(view, "tensors").get(rank, [])), {})
    if "in_use_bytes" not in count or any(map(count.get, HOLDERS)) or on_gpu(view, rank):
        return False
    if count["risen_bytes"] < COUNTED * (growth.last_bytes - growth.first_bytes):
        return False
    least_share = IN_USE if tensors_kept(view, rank) is None else IN_USE_OF_TENSORS
    return count["in_use_bytes"] < least_share * count["risen_bytes"]


def freed_pieces(view: RunView, spec: Spec, grown: Mapping[int, Growth]) -> Finding:
    """Memory that the C library holds back, as where batches have many sizes."""
    rank, growth = max(grown.items(), key=lambda item: item[1].bytes_per_s)
    count = told(view, "tensors")[rank][-1]
    risen, in_use = count["risen_bytes"] / 1e6, count["in_use_bytes"] / 1e6
    source = f"tensors event of step {count['step']}, rank {rank}"
    return spec.make(
        severity="info",
        title=f"host memory of rank {rank} grows, but little more of it is in use",
        evidence=f"resident memory rose by {risen:,.0f} MB from step 20 to step {count['step']}, "
        f"and {in_use:,.0f} MB more are in use by glibc's account: the rest are freed pieces that "
        "do not fit what is asked for next, as where batches have many sizes",
        fix="nothing to mend while memory is enough; else batches of few sizes, or another "
        "allocator: jemalloc by LD_PRELOAD",
        rank=rank if len(grown) == 1 else everybody(view),
        confidence=0.8,
        proof=Proof(
            statistic="bytes more in use / bytes that resident memory rose by",
            value=in_use / risen,
            threshold=IN_USE,
            unit="",
            formula="in use: mallinfo2's uordblks and hblkhd, and 64 bytes a block of Python's",
            inputs=(
                Input("risen", risen, "MB", source),
                Input("in use", in_use, "MB", source),
                Input("growth per second", growth.bytes_per_s / 1e6, "MB/s", growth.column),
            ),
        ),
    )
