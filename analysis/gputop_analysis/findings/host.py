"""Host and Python: what keeps the training thread from its work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import (
    Share,
    device_share,
    everybody,
    on_device,
    only_on,
    run_queue,
    typical,
    whole_share,
    worst,
)
from gputop_analysis.findings.sites import top_site
from gputop_analysis.model import Finding
from gputop_analysis.view import Array, RunView

RARER = 10
"""Checkpoints and evaluations are asked to happen so many times less often; that wins 1 - 1/10 of their time."""


@finding(
    id="HO03",
    name="garbage collection",
    family="host",
    cause="host",
    trigger="Python's garbage collector takes more than 1 % of the time (lower end of the 95 % interval)",
    fix="gc.freeze() after the set-up, or gc.disable() and gc.collect() every N steps on all ranks",
)
def garbage_collection(view: RunView, spec: Spec) -> Finding | None:
    """The collector walks over many live objects, again and again."""
    shares = [whole_share(view, rank, lambda rows: rows["gc_ns"]) for rank in view.ranks]
    gc = worst(shares)
    if gc is None or not gc.surely_above(0.01) or gc.mean_ms < 0.05:
        return None
    pauses = list(view.events("gc", rank=gc.rank))
    longest = max(pauses, key=lambda event: event.get("duration_ms", 0), default=None)
    seen = (
        f"; {len(pauses)} pauses above 10 ms, the longest {longest.get('duration_ms', 0):.0f} ms at step "
        f"{longest.get('step', '?')} (generation {longest.get('generation', '?')})"
        if longest
        else ""
    )
    return spec.make(
        "high" if gc.share.low > 0.10 else "medium",
        f"garbage collection takes {gc.share.value * 100:.1f} % of the time",
        f"{gc.ms.value:.2f} ms of {gc.wall_ms:.1f} ms a step, {gc.percent}{seen}",
        "call gc.collect(); gc.freeze() once after the set-up, so that long-lived objects are not walked again; on "
        "several ranks gc.disable() and one gc.collect() every 1000 steps, at the same step on all",
        rank=only_on(gc, shares),
        recoverable_ms_per_step=gc.ms.value,
        interval_ms_per_step=(gc.ms.low, gc.ms.high),
    )


@finding(
    id="HO06",
    name="host code between steps",
    family="host",
    cause="host",
    trigger="time outside the named phases above 10 % of the step (lower end of the 95 % interval)",
    fix="take the named line out of the loop, or do it less often",
)
def unattributed_host_time(view: RunView, spec: Spec) -> Finding | None:
    """The user's own code in the loop: logging, metrics, preprocessing, sleeping."""
    other = typical(_between_phases(view, rank) for rank in view.ranks)
    if other is None or not other.surely_above(0.10) or other.mean_ms < 0.5:
        return None
    queue = run_queue(view, other.rank)
    if queue and other.mean_ms > other.wall_ms * (1 - queue.share.value):
        return None  # more than the thread had: it is the wait for a core, which IN04 reports
    site = top_site(view, "other", rank=other.rank)
    if site:
        other = replace(other, values_ms=other.values_ms * (1 - site.torch_share))
    if not other.surely_above(0.10):
        return None
    return spec.make(
        "high" if other.share.low > 0.25 else "medium",
        f"host code takes {other.share.value * 100:.0f} % of each step, {other.ms.value:.1f} ms"
        + (f": {site.site}" if site else ""),
        f"{other.ms.value:.1f} ms of {other.wall_ms:.1f} ms a step are neither data, forward, backward nor optimizer: "
        f"{other.percent}, {other.clock} clock" + (f"; most often at {site}" if site else ""),
        f"look at {site.site if site else 'the code between the optimizer step and the next batch'}: do it every N "
        "steps, in a background process, or not at all",
        rank=everybody(view),
        site=site.site if site else None,
        confidence=0.9 if site else 0.7,
        recoverable_ms_per_step=other.ms.value,
        interval_ms_per_step=(other.ms.low, other.ms.high),
    )


def _between_phases(view: RunView, rank: int) -> Share | None:
    """On the device's clock where one computes: the host's would count its waiting for the device (loss.item())."""
    if on_device(view, rank):
        return device_share(view, rank, "other")
    return whole_share(view, rank, _users_own_ns)


def _users_own_ns(rows: Array) -> Array:
    """Time between the phases without the agent's own work and without garbage collection, which HO03 reports."""
    return np.maximum(rows["other_ns"] - rows["agent_ns"] - rows["gc_ns"], 0)


@finding(
    id="HO07",
    name="checkpoint stall",
    family="host",
    cause="host",
    trigger="checkpoints take more than 3 % of the time (lower end of the 95 % interval), or one takes 20 steps' time",
    fix="save less often, asynchronously, or sharded",
)
def checkpoint_stall(view: RunView, spec: Spec) -> Finding | None:
    """Training stands still while a checkpoint is written."""
    shares = [whole_share(view, rank, lambda rows: rows["checkpoint_ns"]) for rank in view.ranks]
    saved = worst(shares)
    if saved is None or saved.mean_ms <= 0:
        return None
    series = view.per_rank[saved.rank]
    longest_ms = float(series.rows["checkpoint_ns"].max()) / 1e6
    step_ms = float(np.median(series.wall_ms))
    is_share, is_long = saved.surely_above(0.03), longest_ms > max(20 * step_ms, 200.0)
    if not is_share and not is_long:
        return None
    events = list(view.events("checkpoint", rank=saved.rank))
    count = len(events) or int(np.count_nonzero(series.rows["checkpoint_ns"]))
    every = max(1, series.total_steps() // max(1, count))
    kept = 1 - 1 / RARER
    return spec.make(
        ("high" if saved.share.low > 0.20 else "medium") if is_share else "info",
        f"checkpoints take {saved.share.value * 100:.1f} % of the time, the longest {longest_ms:,.0f} ms",
        f"{count} checkpoints, one every {every} steps or so: {saved.ms.value:.1f} ms of {saved.wall_ms:.1f} ms "
        f"a step, {saved.percent}; the longest took {longest_ms / max(step_ms, 1e-9):.0f} times a step"
        + (f"; last one: {events[-1].get('path')} by {events[-1].get('via', 'torch.save')}" if events else ""),
        f"save every {every * RARER} steps instead of every {every}, or with torch.distributed.checkpoint.async_save",
        rank=only_on(saved, shares),
        recoverable_ms_per_step=saved.ms.value * kept,
        interval_ms_per_step=(saved.ms.low * kept, saved.ms.high * kept),
    )


@finding(
    id="HO08",
    name="evaluation share",
    family="host",
    cause="host",
    trigger="evaluation takes more than 15 % of the time (lower end of the 95 % interval)",
    fix="evaluate less often, on fewer batches, or in larger ones",
)
def evaluation_share(view: RunView, spec: Spec) -> Finding | None:
    """A large part of the run is evaluation."""
    shares = [whole_share(view, rank, lambda rows: rows["eval_ns"]) for rank in view.ranks]
    spent = worst(shares)
    if spent is None or not spent.surely_above(0.15):
        return None
    series = view.per_rank[spent.rank]
    count = max(1, int(np.count_nonzero(series.rows["eval_ns"])))
    every = max(1, series.total_steps() // count)
    site = top_site(view, "eval", rank=spent.rank)
    kept = 1 - 1 / RARER
    return spec.make(
        "high" if spent.share.low > 0.50 else "medium",
        f"evaluation takes {spent.share.value * 100:.0f} % of the time",
        f"{count} evaluations, one every {every} steps or so, {spent.ms.value * every:,.0f} ms each: {spent.percent}"
        + (f"; most often at {site}" if site else ""),
        f"evaluate every {every * RARER} steps instead of every {every}, on fewer batches, or with a larger batch size",
        rank=only_on(spent, shares),
        site=site.site if site else None,
        recoverable_ms_per_step=spent.ms.value * kept,
        interval_ms_per_step=(spent.ms.low * kept, spent.ms.high * kept),
    )
