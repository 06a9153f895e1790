"""Memory that the script's own habits waste: the allocator flushed, gradients kept, graphs built in
evaluation, and other programs on the same GPU.
"""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.advice import NOT_EXPANDABLE, Option
from gputop_analysis.findings.compute.device_samples import samples
from gputop_analysis.findings.memory.gpu_memory import cards
from gputop_analysis.findings.note import CPU, H200
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.sites import trainers_call
from gputop_analysis.findings.told import Event, on_ranks, told
from gputop_analysis.mend import ByRule
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.units import GIB
from gputop_analysis.view import RunView

STEADY_FROM_STEP, ENOUGH_STEPS = 50, 50
ALLOCS_PER_STEP, FLUSHES_PER_STEP = 0.05, 0.02
NEWEST = 12
"""Allocator events that are looked at; between two of them lie 2 to 30 s."""


@finding(
    id="ME04",
    name="allocator churn",
    family="memory",
    cause="memory",
    trigger=f"after step {STEADY_FROM_STEP} the driver is asked for memory in more than 1 of "
    f"{1 / ALLOCS_PER_STEP:g} steps, or empty_cache() is called in more than 1 of "
    f"{1 / FLUSHES_PER_STEP:g}",
    fix="no torch.cuda.empty_cache() in the loop; shapes that repeat",
    no_use="expandable segments: where they are on",
    reads="device allocations per step, calls of empty_cache",
    silent="neither counter is there",
    traps="the first epoch, in which the pool still grows",
    seen_on=H200,
)
def allocator_churn(view: RunView, spec: Spec) -> Finding | None:
    """cudaMalloc and cudaFree synchronise the device; in a steady loop the cache serves all."""
    rates = {
        rank: rank_rates
        for rank in view.ranks
        if (rank_rates := _rates(told(view, "allocator").get(rank, [])))
    }
    if not rates:
        return None
    rank = max(rates, key=lambda rank: (rates[rank]["flushes"], rates[rank]["allocs"]))
    rate = rates[rank]
    flushed = rate["flushes"] > FLUSHES_PER_STEP
    if not flushed and rate["allocs"] <= ALLOCS_PER_STEP:
        return None
    site = None
    if flushed:
        site = told(view, "allocator")[rank][-1].get("empty_cache_site")
        value, threshold = rate["flushes"], FLUSHES_PER_STEP
        title = f"empty_cache() is called {rate['flushes']:.2g} times a step, {rate['ms']:.1f} ms"
        fix = Option(
            f"remove torch.cuda.empty_cache() at {site}: the memory goes back to the driver and is "
            "fetched again at once",
            mend=ByRule("empty-cache"),
        )
    else:
        value, threshold = rate["allocs"], ALLOCS_PER_STEP
        title = f"the driver is asked for memory {rate['allocs']:.2g} times a step"
        fix = (
            "let shapes repeat (bucket or pad lengths)",
            Option("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", needs=(NOT_EXPANDABLE,)),
        )
    lost_ms = _lost_ms(view, rank, rate["ms"]) if flushed else None
    return spec.make(
        severity="medium",
        title=title,
        evidence=f"{rate['allocs']:.3g} cudaMalloc a step, {rate['flushes']:.3g} empty_cache() a "
        f"step taking {rate['ms']:.2f} ms, over {rate['steps']:,.0f} steps of rank {rank}",
        fix=fix,
        rank=rank if len(rates) == 1 else everybody(view),
        site=site,
        confidence=0.9,
        recoverable_ms_per_step=lost_ms,
        interval_ms_per_step=(0.0, rate["ms"]) if flushed else None,
        proof=Proof(
            statistic="calls of empty_cache() per step"
            if flushed
            else "driver allocations per step",
            value=value,
            threshold=threshold,
            unit="a step",
            formula="recoverable = time inside empty_cache() / steps, at most "
            "the time in which the GPU idles: the call waits for the GPU's "
            "own work first (what the new allocations cost comes on top)",
            inputs=(
                Input(
                    "driver allocations", rate["allocs"], "a step", f"allocator events, rank {rank}"
                ),
                Input("empty_cache()", rate["flushes"], "a step", f"allocator events, rank {rank}"),
                Input(
                    "time in empty_cache()",
                    rate["ms"],
                    "ms per step",
                    f"allocator events, rank {rank}",
                ),
                Input("steps between first and last event", rate["steps"], "", "allocator events"),
            ),
        ),
    )


def _lost_ms(view: RunView, rank: int, spent_ms: float) -> float:
    """Of the time in ``empty_cache()`` a step, what the GPU idles; all of it where that is not
    known.
    """
    gpu_samples, series = samples(view, rank), view.per_rank[rank]
    busy = gpu_samples.busy_share()[0] if gpu_samples else None
    if busy is None:
        return spent_ms
    return min(spent_ms, (1 - busy) * series.mean_ms("wall_ns"))


def _rates(events: list[Event]) -> dict[str, float] | None:
    """Per step between the first event past the warm-up and the last; None for too few steps."""
    steady = [event for event in events[-NEWEST:] if event.get("step", 0) >= STEADY_FROM_STEP]
    if not steady or (steps := steady[-1]["step"] - steady[0]["step"]) < ENOUGH_STEPS:
        return None

    def a_step(name: str) -> float:
        return ((steady[-1].get(name) or 0) - (steady[0].get(name) or 0)) / steps

    return {
        "steps": steps,
        "allocs": a_step("device_allocs"),
        "flushes": a_step("empty_cache_calls"),
        "ms": a_step("empty_cache_ms"),
    }


FOREIGN_BYTES, FOREIGN_SHARE, MIN_SAMPLES = 256 << 20, 0.8, 5


@finding(
    id="ME07",
    name="other processes on the GPU",
    family="memory",
    cause="memory",
    trigger=f"processes outside the run hold more than {FOREIGN_BYTES >> 20} MB of a GPU that it "
    f"uses, in {percent(FOREIGN_SHARE)} of the samples",
    fix="end them, or choose another GPU by CUDA_VISIBLE_DEVICES",
    no_use="where the other program is yours to keep",
    reads="gpu.memory_foreign_bytes and the processes on the GPU",
    silent="the driver does not tell processes",
    traps="MPS, ranks of the same job",
)
def foreign_process(view: RunView, spec: Spec) -> list[Finding]:
    """Somebody else's memory and time."""
    findings = []
    for name, host in view.record.hosts.items():
        ours = {gpu.index for gpu in host.state.gpus if gpu.ours}
        rows = host.gpu.rows[-2000:]
        rows = rows[(rows["t_ns"] >= view.from_ns) & (rows["memory_foreign_bytes"] >= 0)]
        for index in sorted(ours & set(np.unique(rows["index"]).tolist())):
            foreign = rows["memory_foreign_bytes"][rows["index"] == index]
            share = float((foreign > FOREIGN_BYTES).mean())
            if len(foreign) >= MIN_SAMPLES and share > FOREIGN_SHARE:
                findings.append(
                    _foreign(
                        spec,
                        name,
                        index,
                        held=float(np.median(foreign)),
                        share=share,
                        samples=len(foreign),
                    )
                )
    return findings


def _foreign(
    spec: Spec, host: str, gpu: int, *, held: float, share: float, samples: int
) -> Finding:
    source = f"gpu.memory_foreign_bytes, GPU {gpu} of {host}, {samples:,} samples"
    return spec.make(
        severity="medium",
        title=f"other processes hold {held / GIB:.1f} GiB of GPU {gpu}",
        evidence=f"median of {samples:,} samples; above 256 MB in {100 * share:.0f} % of them",
        fix=f"nvidia-smi -i {gpu} shows who it is; end it, or choose another GPU by "
        "CUDA_VISIBLE_DEVICES",
        gpu=gpu,
        host=host,
        confidence=0.9,
        proof=Proof(
            statistic="share of samples in which processes outside the run hold more than 256 MB",
            value=100 * share,
            threshold=100 * FOREIGN_SHARE,
            unit="%",
            formula="share = samples above 256 MB / samples",
            inputs=(Input("held by others, median", held / GIB, "GiB", source),),
        ),
    )


HELD_SHARE, CARD_FULL = 0.05, 0.8


@finding(
    id="ME09",
    name="gradients kept through the forward",
    family="memory",
    cause="memory",
    trigger="gradients of the last update still lie in memory when the next forward runs, more "
    f"than {percent(HELD_SHARE)} of the card (on a CPU of the resident memory); medium where the "
    f"card is {percent(CARD_FULL)} full",
    fix="optimizer.zero_grad(set_to_none=True) right after optimizer.step()",
    no_use="where gradients must stay between steps (accumulation); where a trainer clears them",
    reads="whether gradients are still there at forward, their size",
    silent="gradient accumulation",
    traps="accumulation over micro-batches",
    seen_on=CPU,
)
def gradients_kept(view: RunView, spec: Spec) -> Finding | None:
    """Gradients zeroed, or cleared only after the forward, take as much as the parameters."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        held_bytes, total_bytes = _held(view, rank, events)
        if total_bytes <= 0 or held_bytes <= HELD_SHARE * total_bytes:
            return None
        card = cards(view).get(rank)
        tight = card is not None and card.peak > CARD_FULL * card.total
        return spec.make(
            severity="medium" if tight else "info",
            title=f"{held_bytes / 1e6:,.0f} MB of old gradients lie in memory during the forward",
            evidence=f"when the forward after an update begins, {held_bytes / 1e6:,.0f} MB of "
            f"gradients of rank {rank} are still held, {100 * held_bytes / total_bytes:.0f} % of "
            f"{total_bytes / 1e6:,.0f} MB {'of the card' if card else 'resident memory'} "
            f"({events[-1]['alike']} looks)",
            fix=Option(
                "call optimizer.zero_grad(set_to_none=True), torch's default, right after "
                "optimizer.step()",
                mend=ByRule("zero-grad-keeps-memory"),
            ),
            rank=rank,
            proof=Proof(
                statistic="gradients held when a forward begins / memory",
                value=100 * held_bytes / total_bytes,
                threshold=100 * HELD_SHARE,
                unit="%",
                formula="held = size of the gradients that are not None at the first "
                "forward after an update",
                inputs=(
                    Input(
                        "held",
                        held_bytes / 1e6,
                        "MB",
                        f"checkup event of step {events[-1]['step']}, rank {rank}",
                    ),
                    Input(
                        "memory",
                        total_bytes / 1e6,
                        "MB",
                        "hello.device_memory_bytes or steps.rss_bytes",
                    ),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank)


def _held(view: RunView, rank: int, events: list[Event]) -> tuple[float, float]:
    """Bytes of gradients at a forward, at least, in three looks, and the memory to compare."""
    last = events[-1]
    if last.get("alike", 0) < 3 or last.get("stale") or not last.get("held_bytes"):
        return 0.0, 0.0
    total_bytes = view.hello(rank).get("device_memory_bytes")
    rows = view.per_rank[rank].rows
    return float(last["held_bytes"]), float(
        total_bytes or (rows["rss_bytes"][-1] if len(rows) else 0)
    )


MIN_GRAPH_FORWARDS = 3


@finding(
    id="ME10",
    name="evaluation builds graphs",
    family="memory",
    cause="memory",
    trigger="three forwards or more of a model in eval mode, with gradients enabled, that no "
    "backward follows",
    fix="with torch.inference_mode(): around the evaluation",
    no_use="where the evaluation needs gradients",
    reads="forward calls in eval mode with gradients enabled and no backward after them",
    silent="no evaluation seen",
    traps="meta-learning and adversarial training, which differentiate through it",
    seen_on=CPU,
)
def graphs_in_evaluation(view: RunView, spec: Spec) -> Finding | None:
    """Each evaluation forward keeps its activations for a backward that never comes."""
    counted = {rank: view.hello(rank).get("graph_eval") or {} for rank in view.ranks}
    rank = max(counted, key=lambda rank: counted[rank].get("forwards", 0), default=-1)
    forwards = int(counted.get(rank, {}).get("forwards", 0))
    if forwards < MIN_GRAPH_FORWARDS:
        return None
    took_ms = float(counted[rank].get("ms", 0.0))
    site = counted[rank].get("site") or trainers_call(view, rank)
    return spec.make(
        severity="medium",
        title=f"evaluation runs with gradients enabled: {forwards:,} forwards built a graph",
        evidence=f"{forwards:,} forwards of rank {rank} in eval mode kept their activations for a "
        f"backward that never came; they took {took_ms:,.0f} ms in all"
        + (f"; called at {site}" if site else ""),
        fix=Option(
            "put the evaluation under `with torch.inference_mode():` (or torch.no_grad()): less "
            "memory, and faster",
            mend=ByRule("eval-builds-graph"),
        ),
        rank=rank if len(view.ranks) > 1 else everybody(view),
        site=site,
        proof=Proof(
            statistic="forwards in eval mode with gradients enabled and no backward",
            value=forwards,
            threshold=MIN_GRAPH_FORWARDS,
            unit="forwards",
            formula="a forward counts when the next batch is fetched before any backward",
            inputs=(Input("time in them", took_ms, "ms", f"hello.graph_eval, rank {rank}"),),
        ),
    )
