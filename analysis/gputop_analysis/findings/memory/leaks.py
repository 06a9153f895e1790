"""Memory: what grows without end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gputop_analysis.findings.advice import LOADER, Option
from gputop_analysis.findings.dialect import loader_place, loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.memory.steady_growth import (
    MIN_GROWTH_BYTES,
    MIN_GROWTH_SHARE,
    SOON_S,
    Growth,
    per_step,
    rank_growth,
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
from gputop_analysis.view import Array, RunView

MIN_TENSORS, MIN_TENSORS_SHARE, MIN_TENSORS_PER_STEP = 20, 0.2, 0.02
"""For a leak, so many more tensors than at the first count, and so many more each step."""
MIN_GRAPH_STEPS, GRAPHS_A_STEP = 80, 0.5
"""Steps between two counts, and tensors with a graph that stay from each of them."""
GRAPHS_IN_A_PILE = 0.1
"""The same where the container that they are in is known, and has grown."""
MIN_CHAIN_STEPS, MIN_CHAIN_NODES = 50, 10
"""Over so many steps, and by so many nodes, a tensor's graph goes back at least, to be kept and not
of this step.
"""
IN_USE, IN_USE_OF_TENSORS, COUNTED = 0.35, 0.2, 0.4
"""Part of a growth that is in use at least, for something to be kept, and where more tensors are
alive; and the part of it that has to have been counted for that.
"""
NAMED_BYTES, NAMED_SHARE, GOES_ON = 24 << 20, 0.5, 0.3
"""More that is in use, and the part of the rise that it is, for what a name is known of; and the
part of this rate that must last to the end.
"""
ALIKE = 0.5
"""Part of one rank's growth that the others must have, for it to be no matter of that rank."""
ANONYMOUS = 0.3
"""Part of a growth with no file behind it: a mapped data set's pages can be dropped."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Tensors that are alive, counted at two times by the guest."""

    first: int
    last: int
    graphs: int
    """How many more of them hold a graph than before."""
    steps: int
    """Between the two counts."""

    @property
    def more(self) -> int:
        """So many came and stayed."""
        return self.last - self.first


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
        return _small_leak(view, spec) or _chained(view, spec) or _named(view, spec, "kept_in")
    rank, growth = max(growths.items(), key=lambda item: item[1].bytes_per_s)
    kept_tensors, a_step = _kept(view, rank), per_step(view, growth)
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
    elif _waits_for_collector(_last_count(view, rank)):
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
        f"Mann-Kendall p = {growth.p:.2g})" + _tensors_told(kept_tensors) + _kept_in(view, rank),
        fix=fix,
        rank=rank if len(growths) == 1 else everybody(view),
        site=_filled_at(view, rank),
        confidence=1 - growth.p,
        proof=growth.proof(a_step, *_tensor_inputs(kept_tensors, rank)),
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
        if min(one["with_graph"] - least_a_step * one["step"] for one in counts) < 0:
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
            + _kept_in(view, rank),
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
    if growth is None or not _kept(view, rank) or _from_files(view, rank):
        return None
    return None if _is_freed(view, rank, growth) else growth


def _kept(view: RunView, rank: int) -> Kept | None:
    """Tensors that came and stayed; None where none did, or where they were not counted twice."""
    counts = told(view, "tensors").get(rank, [])
    if len(counts) < 2:
        return None
    first, last = counts[0], counts[-1]
    kept_ = Kept(
        first["tensors"],
        last["tensors"],
        last["with_graph"] - first["with_graph"],
        last["step"] - first["step"],
    )
    enough = kept_.more >= max(
        MIN_TENSORS, MIN_TENSORS_SHARE * kept_.first, MIN_TENSORS_PER_STEP * kept_.steps
    )
    return kept_ if enough else None


_HOLDERS = ("kept_in", "grown_in", "chain_kept_as")


def _last_count(view: RunView, rank: int) -> Mapping[str, Any]:
    """The newest count of the tensors that are alive, of another rank of the same script where that
    alone has found what holds them; empty where none was made.
    """
    counts = told(view, "tensors")
    own = next(reversed(counts.get(rank, [])), {})
    others = [events[-1] for other, events in counts.items() if other != rank and events]
    finders = (count for count in (own, *others) if any(map(count.get, _HOLDERS)))
    return own if own.get("gc_off") else next(finders, own)


def _kept_in(view: RunView, rank: int) -> str:
    """``; most of them are in history, filled at train.py:88``; empty where that is not known."""
    count, site = _last_count(view, rank), _filled_at(view, rank)
    at = f", filled at {site}" if site else ""
    if _waits_for_collector(count):
        off_at = f" at {count['gc_off_at']}" if count.get("gc_off_at") else ""
        return f"; Python's garbage collector is switched off{off_at}"
    if count.get("kept_in"):
        return f"; most of those looked at are in {count['kept_in']}{at}"
    if count.get("grown_in"):
        return f"; {count['grown_in']} gets longer by as much{at}"
    if count.get("chain_kept_as"):
        made_at = f" at {site}" if site else ""
        return f"; {count['chain_kept_as']} is made from itself{made_at} and keeps all its graphs"
    return ""


def _filled_at(view: RunView, rank: int) -> str | None:
    """The line that fills what keeps the memory."""
    count = _last_count(view, rank)
    if _waits_for_collector(count):
        return count.get("gc_off_at") or None
    places = (count.get(name) for name in ("kept_site", "grown_site", "chain_site"))
    return next(filter(None, places), None)


def _waits_for_collector(count: Mapping[str, Any]) -> bool:
    """Whether what grows may be objects that refer to each other, which nobody gives back: the
    garbage collector is off, and no container was found.
    """
    return bool(count.get("gc_off")) and not (count.get("kept_in") or count.get("grown_in"))


def _tensors_told(kept: Kept | None) -> str:
    if kept is None:
        return ""
    if kept.graphs > 0:
        graphs = f", {kept.graphs:,} of the new ones with a graph"
    else:
        graphs = ""
    return (
        f"; {kept.last:,} tensors are alive, {kept.first:,} were {kept.steps:,} steps "
        f"before{graphs}"
    )


def _tensor_inputs(kept: Kept | None, rank: int) -> tuple[Input, ...]:
    if kept is None:
        return ()
    source = f"tensors events, rank {rank}"
    return (
        Input("tensors alive, first count", kept.first, "", source),
        Input("tensors alive, last count", kept.last, "", source),
        Input("more with a graph", kept.graphs, "", source),
    )


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
        rank: growth_
        for rank in spread(view.ranks)
        if (growth_ := rank_growth(view, rank, "rss_bytes"))
    }
    grown = {rank: growth_ for rank, growth_ in grown.items() if not _from_files(view, rank)}
    in_use = {
        rank: growth_ for rank, growth_ in grown.items() if not _is_freed(view, rank, growth_)
    }
    if grown and not in_use:
        return _in_workers(view, spec) or _freed_pieces(view, spec, grown)
    grown = in_use
    if not grown:
        return _in_workers(view, spec) or _named(view, spec, "grown_in")
    rank, growth = max(grown.items(), key=lambda item: item[1].bytes_per_s)
    a_step = per_step(view, growth)
    left_s, limit = _until_full(view, rank, growth, sum(g.bytes_per_s for g in grown.values()))
    if np.isfinite(left_s):
        full = f"{limit} is full in {duration(left_s)}"
    else:
        full = ""
    soon = left_s < SOON_S
    if _waits_for_collector(_last_count(view, rank)):
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
        + _kept_in(view, rank),
        fix=(
            keeps_less,
            Option(
                "in the dataset keep NumPy arrays instead of lists of Python objects",
                needs=(LOADER,),
            ),
        ),
        rank=_whose(view, rank, grown),
        site=_filled_at(view, rank),
        confidence=1 - growth.p,
        proof=growth.proof(
            a_step, Input("time until full", left_s, "s", limit or "host.memory_available_bytes")
        ),
    )


def _whose(view: RunView, rank: int, grown: Mapping[int, Any]) -> int | None:
    """The rank whose memory grows; of all where others do, or where that of the others has risen
    by half as much at least, though not as steadily.
    """
    risen = {other: _risen(view.per_rank[other].rows["rss_bytes"]) for other in spread(view.ranks)}
    least = ALIKE * risen.get(rank, 0.0)
    alone = len(grown) == 1 and all(more < least for other, more in risen.items() if other != rank)
    return rank if alone else everybody(view)


def _risen(sizes: Array) -> float:
    """From the first quarter's end to the last tenth; the last record may be of a process that has
    given its memory back.
    """
    if not len(sizes):
        return 0.0
    return float(sizes[-1 - len(sizes) // 10 :].max() - sizes[len(sizes) // 4])


def _named(view: RunView, spec: Spec, holder: str) -> Finding | None:
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
    name, site = last[holder], last.get(holder.replace("_in", "_site"))
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
        rank=_whose(view, rank, pairs),
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
    counts = [one for one in told(view, "tensors").get(rank, []) if "in_use_bytes" in one]
    rows = view.per_rank[rank].rows
    if len(counts) < 2 or (rows["allocated_bytes"][-1:] > 0).any():
        return None
    first, last = counts[0], counts[-1]
    steps, more = last["step"] - first["step"], last["in_use_bytes"] - first["in_use_bytes"]
    if last["in_use_bytes"] < max(NAMED_BYTES, NAMED_SHARE * last["risen_bytes"]):
        return None
    if steps <= 0 or more <= 0 or _waits_for_collector(last):
        return None
    after = rows[rows["step"] > last["step"]]
    expected = more / steps * float(after["n_steps"].sum())
    if expected <= NAMED_BYTES / 4:
        return first, last
    came = float(np.percentile(after["rss_bytes"], 90)) - last["memory_bytes"]
    return (first, last) if came >= GOES_ON * expected else None


def _is_freed(view: RunView, rank: int, growth: Growth) -> bool:
    """Whether little of what memory has risen by is in use, and nothing is known to keep more."""
    counts = told(view, "tensors").get(rank, [])
    if not counts or "in_use_bytes" not in counts[-1] or any(map(counts[-1].get, _HOLDERS)):
        return False
    on_gpu = bool((view.per_rank[rank].rows["allocated_bytes"][-1:] > 0).any())
    risen = counts[-1]["risen_bytes"]
    counted_enough = risen >= COUNTED * (growth.last_bytes - growth.first_bytes)
    least = IN_USE if _kept(view, rank) is None else IN_USE_OF_TENSORS
    is_kept = counts[-1]["in_use_bytes"] >= least * risen
    return not on_gpu and counted_enough and not is_kept


def _freed_pieces(view: RunView, spec: Spec, grown: Mapping[int, Growth]) -> Finding:
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


def _in_workers(view: RunView, spec: Spec) -> Finding | None:
    """The same of a loader's workers, whose memory is none of the training process."""
    grown = {rank: one for rank in spread(view.ranks) if (one := workers_growth(view, rank))}
    if not grown:
        return None
    rank, growth = max(grown.items(), key=lambda item: item[1].bytes_per_s)
    run, a_step = Facts(view, rank), per_step(view, growth)
    left_s, limit = _until_full(view, rank, growth, sum(g.bytes_per_s for g in grown.values()))
    full = f": {limit} is full in {duration(left_s)}" if left_s < SOON_S else ""
    workers = counted(int(run.loader.get("num_workers") or 1), "worker")
    name, filled_at = grows_in(view, rank)
    kept = f"; {name} gets longer by as much" if name else ""
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
        f"{run.loader.get('dataset') or 'a dataset that is not known'}{kept}",
        fix=fix,
        rank=rank if len(grown) == 1 else everybody(view),
        site=filled_at or loader_site(run),
        confidence=1 - growth.p,
        proof=growth.proof(
            a_step, Input("time until full", left_s, "s", limit or "host.memory_available_bytes")
        ),
    )


def _from_files(view: RunView, rank: int) -> bool:
    """Whether the growth is mostly file pages, as of a mapped data set; False: not counted."""
    counts = [
        event
        for event in told(view, "tensors").get(rank, [])
        if event.get("anonymous_bytes", -1) >= 0
    ]
    on_gpu = bool((view.per_rank[rank].rows["allocated_bytes"][-1:] > 0).any())
    if len(counts) < 2 or on_gpu:
        return False
    grown = counts[-1]["memory_bytes"] - counts[0]["memory_bytes"]
    return counts[-1]["anonymous_bytes"] - counts[0]["anonymous_bytes"] < ANONYMOUS * grown


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
