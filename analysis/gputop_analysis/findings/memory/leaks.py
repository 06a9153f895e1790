"""Memory: what grows without end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gputop_analysis.findings.advice import LOADER, Option
from gputop_analysis.findings.dialect import loader_place, loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.memory.memory_in_use import (
    IN_USE,
    NAMED_BYTES,
    freed_pieces,
    is_freed,
    named_growth,
    whose,
)
from gputop_analysis.findings.memory.steady_growth import (
    MIN_GROWTH_BYTES,
    MIN_GROWTH_SHARE,
    SOON_S,
    Growth,
    per_step,
    rank_growth,
)
from gputop_analysis.findings.memory.tensor_counts import (
    filled_at,
    from_files,
    kept_in,
    last_count,
    tensor_inputs,
    tensors_kept,
    tensors_told,
    waits_for_collector,
)
from gputop_analysis.findings.memory.workers_memory import grows_in, workers_growth
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import spread, told
from gputop_analysis.mend import ByRule
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import counted, duration, percent
from gputop_analysis.trend import SURE_P
from gputop_analysis.view import RunView

MIN_GRAPH_STEPS, GRAPHS_A_STEP = 80, 0.5
"""Steps between two counts, and tensors with a graph that stay from each of them."""
GRAPHS_IN_A_PILE = 0.1
"""The same where the container that they are in is known, and has grown."""
MIN_CHAIN_STEPS, MIN_CHAIN_NODES = 50, 10
"""Over so many steps, and by so many nodes, a tensor's graph goes back at least, to be kept and not
of this step.
"""


@finding(
    id="ME02",
    name="memory leak",
    family="memory",
    cause="memory",
    trigger="allocated GPU memory at the steps' ends (on a CPU resident memory, with more and "
    f"more tensors alive) rises by more than {MIN_GROWTH_BYTES >> 20} MB and "
    f"{percent(MIN_GROWTH_SHARE)}, steadily: Mann-Kendall p < {SURE_P:g} on minima of windows of "
    "time; or one more tensor with a graph stays alive with every second step or more, with every "
    "tenth where what keeps it is known; or a "
    "tensor's graph goes back over the steps since the count before, 50 or more; or "
    f"{NAMED_BYTES >> 20} MB more are in use on a CPU, at two counts and on to the end, and a "
    "container of tensors that has grown by as much is known (medium)",
    fix="keep numbers and not tensors: loss.item() or loss.detach()",
    explains=("ME01", "ME04", "ME05"),
    no_use="where the memory is needed: then less must be kept, by what the option names first",
    reads=(
        "per-window minima of steps.allocated_bytes, on a CPU rss_bytes and the "
        "number of tensors alive"
    ),
    silent=(
        "fewer than seven windows; growth below the noise, or for less than 2 s (20 s where "
        "backward(create_graph=True) was seen: parameters and gradients then refer to each other "
        "and wait for the garbage collector); growth most of which is one jump"
    ),
    traps="optimizer state made in the first steps; caches that fill",
    seen_on=CPU,
)
def leak(view: RunView, spec: Spec) -> Finding | None:
    """The training keeps tensors that it should let go."""
    growths = {rank: grown for rank in spread(view.ranks) if (grown := _leak_of(view, rank))}
    if not growths:
        small = _small_leak(view, spec) or _chained(view, spec)
        return small or named_growth(view, spec, "kept_in")
    rank, growth = max(growths.items(), key=lambda item: item[1].bytes_per_s)
    kept_tensors, a_step = tensors_kept(view, rank), per_step(view, growth)
    memory_name = "memory"
    if growth.column == "steps.allocated_bytes":
        memory_name = "GPU memory"
    graphs = kept_tensors is not None and kept_tensors.graphs > 0.5 * kept_tensors.more
    fix: Option | str
    if graphs:
        fix = replace(
            _LOSS_KEPT,
            text=f"a loss or output is kept with the graph that made it: {_LOSS_KEPT.text}",
        )
    elif waits_for_collector(last_count(view, rank)):
        fix = _COLLECT
    else:
        fix = (
            "look for a list or dict of tensors that gets longer each step: keep loss.item() or "
            "x.detach().cpu(), or clear it"
        )
    return spec.make(
        severity="high" if graphs or growth.column == "steps.allocated_bytes" else "medium",
        title=f"{memory_name} of rank {rank} leaks {a_step / 1e6:.2f} MB a step"
        + (": graphs are kept" if graphs else ""),
        evidence=f"{memory_name} rose from {growth.first_bytes / 1e6:,.0f} to "
        f"{growth.last_bytes / 1e6:,.0f} MB in {duration(growth.span_s)} (minima of windows, "
        f"Mann-Kendall p = {growth.p:.2g})" + tensors_told(kept_tensors) + kept_in(view, rank),
        fix=fix,
        rank=rank if len(growths) == 1 else everybody(view),
        site=filled_at(view, rank),
        confidence=1 - growth.p,
        proof=growth.proof(a_step, *tensor_inputs(kept_tensors, rank)),
    )


_COLLECT = (
    "call gc.collect() now and then or leave the garbage collector on: without it objects that "
    "refer to each other are never given back, nor are the tensors that they hold; or let one of "
    "them refer to the other by a weakref"
)
_LOSS_KEPT = Option(
    "append loss.item() or loss.detach() instead of loss", mend=ByRule("loss-keeps-graph")
)


def _small_leak(view: RunView, spec: Spec) -> Finding | None:
    """One more tensor with a graph in each step: little memory, as the buffers are freed."""
    for rank in spread(view.ranks):
        counts = told(view, "tensors").get(rank, [])
        if len(counts) < 2:
            continue
        first, last = counts[0], counts[-1]
        steps, more = last["step"] - first["step"], last["with_graph"] - first["with_graph"]
        least_a_step = GRAPHS_IN_A_PILE if last.get("kept_in") else GRAPHS_A_STEP
        if steps < MIN_GRAPH_STEPS or more < least_a_step * steps:
            continue
        if min(count["with_graph"] - least_a_step * count["step"] for count in counts) < 0:
            continue
        kind = ""
        if last.get("graph_kind"):
            kind = f" (most: {last['graph_kind']})"
        source = f"tensors events, rank {rank}"
        fix = _LOSS_KEPT
        if view.hello(rank).get("create_graph_by_backward"):
            fix = Option(
                "after backward(create_graph=True) each .grad and its tensor hold one another: "
                "backward() without it, gradients by torch.autograd.grad, or .grad = None for "
                "the inputs, too; else " + _LOSS_KEPT.text
            )
        return spec.make(
            severity="medium",
            title=f"{more / steps:.1f} tensors a step are kept with the graphs that made them",
            evidence=f"{last['with_graph']:,} tensors with a graph are alive at step "
            f"{last['step']}, {first['with_graph']:,} were at step {first['step']}{kind}; the "
            "memory of a graph whose backward has run is small, but it is never given back"
            + kept_in(view, rank),
            fix=fix,
            rank=rank if len(view.ranks) > 1 else everybody(view),
            site=last.get("kept_site") or None,
            confidence=0.9,
            proof=Proof(
                statistic="tensors with a graph that came and stayed / steps between two counts",
                value=more / steps,
                threshold=least_a_step,
                unit="a step",
                formula="at each count half as many as steps, at least; a tenth where the "
                "container that holds them is known, and has grown",
                inputs=(
                    Input("first count", first["with_graph"], "", source),
                    Input("last count", last["with_graph"], "", source),
                    Input("steps between", steps, "", source),
                ),
            ),
        )
    return None


def _chained(view: RunView, spec: Spec) -> Finding | None:
    """A sum or an average of tensors with graphs: one tensor that keeps the graphs of all steps."""
    for rank in spread(view.ranks):
        counts = [count for count in told(view, "tensors").get(rank, []) if "chain_nodes" in count]
        last = counts[-1] if counts else {}
        nodes, steps = last.get("chain_nodes", 0), last.get("chain_steps", 0)
        if steps < MIN_CHAIN_STEPS or nodes < MIN_CHAIN_NODES:
            continue
        name = last.get("chain_kept_as") or ""
        source = f"tensors event of step {last['step']}, rank {rank}"
        return spec.make(
            severity="medium",
            title=f"{name or 'a tensor'} keeps the graphs of all steps that it was made from",
            evidence=f"at step {last['step']} a tensor{f' kept as {name}' if name else ''} is "
            f"alive whose graph goes back over {steps:,} steps and more, by {nodes:,} nodes: a "
            "sum or an average of losses that were not detached; no backward needs them, and none "
            "is given back",
            fix="add numbers and not tensors to it: loss.item() or loss.detach(); of a state that "
            "is carried on keep state.detach()",
            rank=rank if len(view.ranks) > 1 else everybody(view),
            site=last.get("chain_site") or None,
            confidence=0.9,
            proof=Proof(
                statistic="nodes of the graph on the way back to before the last count",
                value=nodes,
                threshold=MIN_CHAIN_NODES - 1,
                unit="nodes",
                formula="they were made in eight tenths of the time since then, at least; asked "
                f"for where the heap grows with each step; {MIN_CHAIN_STEPS} steps at least",
                inputs=(Input("nodes", nodes, "", source), Input("steps", steps, "", source)),
            ),
        )
    return None


def _leak_of(view: RunView, rank: int) -> Growth | None:
    on_gpu = rank_growth(view, rank, "allocated_bytes")
    if on_gpu is not None:
        return on_gpu
    growth = rank_growth(view, rank, "rss_bytes")
    if growth is None or not tensors_kept(view, rank) or from_files(view, rank):
        return None
    return None if is_freed(view, rank, growth) else growth


@finding(
    id="ME05",
    name="host memory growth",
    family="memory",
    cause="memory",
    trigger=f"resident memory, or that of a loader's workers together, rises by more than "
    f"{MIN_GROWTH_BYTES >> 20} MB and {percent(MIN_GROWTH_SHARE)}, steadily (Mann-Kendall p < "
    f"{SURE_P:g} on minima of windows), and no file lies behind it; or {NAMED_BYTES >> 20} MB more "
    "are in use, at two counts and on to the end, and a collection that has grown by as much is "
    "known (medium)",
    fix="do not keep tensors that hold a graph; arrays instead of lists of objects in datasets",
    no_use="where the memory is needed: then less must be kept, by what the option names first",
    reads="steps.rss_bytes, loader_worker.memory_bytes, host memory and its limit",
    silent=(
        "fewer than seven windows; growth for less than 2 s (20 s where "
        "backward(create_graph=True) was seen), or most of which is one jump; a file that is "
        f"mapped; an info where less than {percent(IN_USE)} of it is in use by glibc's own account"
    ),
    traps="page cache, which the kernel gives back; freed pieces that the C library keeps",
    seen_on=CPU,
)
def host_memory_growth(view: RunView, spec: Spec) -> Finding | None:
    """A process keeps what it should let go."""
    grown = {
        rank: growth
        for rank in spread(view.ranks)
        if (growth := rank_growth(view, rank, "rss_bytes"))
    }
    grown = {rank: growth for rank, growth in grown.items() if not from_files(view, rank)}
    freed = {rank: growth for rank, growth in grown.items() if is_freed(view, rank, growth)}
    grown = {rank: growth for rank, growth in grown.items() if rank not in freed}
    if not grown:
        of_workers = _in_workers(view, spec)
        if of_workers or freed:
            return of_workers or freed_pieces(view, spec, freed)
        return named_growth(view, spec, "grown_in")
    rank, growth = max(grown.items(), key=lambda item: item[1].bytes_per_s)
    a_step = per_step(view, growth)
    left_s, limit = _until_full(view, rank, growth, sum(g.bytes_per_s for g in grown.values()))
    if np.isfinite(left_s):
        full = f"{limit} is full in {duration(left_s)}"
    else:
        full = ""
    soon = left_s < SOON_S
    if waits_for_collector(last_count(view, rank)):
        keeps_less = _COLLECT
    else:
        keeps_less = (
            "look for a list or dict that gets longer each step; keep loss.item() or "
            "loss.detach() instead of loss"
        )
    return spec.make(
        severity="high" if soon else "medium",
        title=f"host memory of rank {rank} grows by {growth.bytes_per_s / 1e6 * 60:,.0f} MB a "
        "minute" + (f": {full}" if soon else ""),
        evidence=f"resident memory rose from {growth.first_bytes / 1e6:,.0f} to "
        f"{growth.last_bytes / 1e6:,.0f} MB in {duration(growth.span_s)}, {a_step / 1e6:.2f} MB a "
        f"step (Theil-Sen slope of window minima, Mann-Kendall p = {growth.p:.2g})"
        + (f"; at this rate {full}" if full else "")
        + kept_in(view, rank),
        fix=(
            keeps_less,
            Option(
                "in the dataset keep NumPy arrays instead of lists of Python objects",
                needs=(LOADER,),
            ),
        ),
        rank=whose(view, rank, grown),
        site=filled_at(view, rank),
        confidence=1 - growth.p,
        proof=growth.proof(
            a_step, Input("time until full", left_s, "s", limit or "host.memory_available_bytes")
        ),
    )


def _in_workers(view: RunView, spec: Spec) -> Finding | None:
    """The same of a loader's workers, whose memory is none of the training process."""
    grown = {rank: growth for rank in spread(view.ranks) if (growth := workers_growth(view, rank))}
    if not grown:
        return None
    rank, growth = max(grown.items(), key=lambda item: item[1].bytes_per_s)
    run, a_step = Facts(view, rank), per_step(view, growth)
    left_s, limit = _until_full(view, rank, growth, sum(g.bytes_per_s for g in grown.values()))
    full = f": {limit} is full in {duration(left_s)}" if left_s < SOON_S else ""
    workers = counted(int(run.loader.get("num_workers") or 1), "worker")
    name, filled_at = grows_in(view, rank)
    grows_with_it = f"; {name} gets longer by as much" if name else ""
    fix = (
        "in the dataset keep NumPy arrays or tensors instead of lists and dicts of Python "
        "objects, whose pages each worker copies as it counts references; write into no array "
        "that was there before the workers; keep nothing for each item"
    )
    if name:
        fix = f"keep less in {name}, such as the newest few: each worker has one of its own"
    return spec.make(
        severity="high" if full else "medium",
        title=f"the memory of the loader's {workers} grows by "
        f"{growth.bytes_per_s / 1e6 * 60:,.0f} MB a minute{full}",
        evidence=f"what one of them has to itself, no files counted, rose from "
        f"{growth.first_bytes / 1e6:,.0f} to {growth.last_bytes / 1e6:,.0f} MB in "
        f"{duration(growth.span_s)} (minima of windows, Mann-Kendall p = {growth.p:.2g}); all "
        f"together {a_step / 1e6:.2f} MB a step; the loader{loader_place(run)} reads "
        f"{run.loader.get('dataset') or 'a dataset that is not known'}{grows_with_it}",
        fix=fix,
        rank=rank if len(grown) == 1 else everybody(view),
        site=filled_at or loader_site(run),
        confidence=1 - growth.p,
        proof=growth.proof(
            a_step, Input("time until full", left_s, "s", limit or "host.memory_available_bytes")
        ),
    )


def _until_full(view: RunView, rank: int, growth: Growth, bytes_per_s: float) -> tuple[float, str]:
    """Seconds until the container's limit or host's memory is used up, and which it is."""
    host = view.record.hosts.get(view.host_of(rank))
    if host is None or not len(host.host.rows):
        return float("nan"), ""
    newest = host.host.rows[-1]
    room = {"the host's memory": float(newest["memory_available_bytes"])}
    if newest["cgroup_memory_max_bytes"] > 0 and newest["cgroup_memory_bytes"] >= 0:
        room["the container's limit"] = float(
            newest["cgroup_memory_max_bytes"] - newest["cgroup_memory_bytes"]
        )
    limit = min(room, key=lambda name: room[name])
    return max(0.0, room[limit]) / max(bytes_per_s, growth.bytes_per_s, 1.0), limit
