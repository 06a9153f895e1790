"""Memory of the GPU: too little ahead, too much unused, badly cut, or taken by others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.findings.advice import (
    CHECKPOINTED,
    FSDP,
    NOT_CHECKPOINTED,
    NOT_EXPANDABLE,
    OFFLOADED,
    SPLIT_MODEL,
    TOKENS,
    MovedSetting,
    Option,
)
from gputop_analysis.findings.memory.steady_growth import SOON_S, per_step, rank_growth
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import spread, told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import duration, percent
from gputop_analysis.units import GIB
from gputop_analysis.view import RunView

NEARLY_FULL = 0.95
ENOUGH_STEPS = 100


@dataclass(frozen=True, slots=True)
class Card:
    """A rank's GPU memory over the steady steps of the window, in bytes."""

    rank: int
    total: float
    peak: float
    """Largest allocated memory."""
    reserved: float
    """What the allocator holds now."""
    steps: int

    def inputs(self, *more: Input) -> tuple[Input, ...]:
        """For a proof."""
        read = f"rank {self.rank}, {self.steps:,} steps"
        return (
            Input("peak allocated", self.peak / GIB, "GiB", f"steps.peak_allocated_bytes, {read}"),
            Input("reserved", self.reserved / GIB, "GiB", f"steps.reserved_bytes, {read}"),
            Input(
                "memory of the GPU",
                self.total / GIB,
                "GiB",
                f"hello.device_memory_bytes, rank {self.rank}",
            ),
            *more,
        )


def cards(view: RunView) -> dict[int, Card]:
    """The GPUs of the ranks that tell their size and have 100 steps behind them."""
    if "cards" not in view.known:
        view.known["cards"] = {
            rank: card for rank in view.ranks if (card := _card(view, rank)) is not None
        }
    return view.known["cards"]


def _card(view: RunView, rank: int) -> Card | None:
    total = float(view.hello(rank).get("device_memory_bytes") or 0)
    series = view.per_rank[rank]
    if total <= 0 or not series.steady.any() or int(series.rows["step"][-1]) < ENOUGH_STEPS:
        return None
    peak = float(series.rows["peak_allocated_bytes"][series.steady].max())
    reserved = float(series.rows["reserved_bytes"][-1])
    if peak > 0:
        return Card(rank, total, peak, reserved, int(series.n_steps[series.steady].sum()))
    return None


@finding(
    id="ME01",
    name="out of memory ahead",
    family="memory",
    cause="memory",
    trigger=f"peak allocated GPU memory above {percent(NEARLY_FULL)} of the card, or rising "
    "steadily (Mann-Kendall p < 0.01 on maxima of windows) so that the card is full within an hour",
    fix="smaller micro-batch with accumulation, activation checkpointing, "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    no_use=(
        "checkpointing, expandable segments: where they are on; cutting "
        "sequences: where there are none"
    ),
    reads="steps.peak_allocated_bytes, gpu.memory_total_bytes",
    silent=(
        "no GPU (when the host's or the container's memory is full, ME05 says); for the "
        "forecast fewer than five windows"
    ),
    traps="growth by sequence length, which stops at the longest",
)
def out_of_memory_ahead(view: RunView, spec: Spec) -> Finding | None:
    """The next long batch, or the next hour, may end the run."""
    gpu_cards = cards(view)
    if not gpu_cards:
        return None
    growing = {
        rank: growth
        for rank in spread(list(gpu_cards))
        if (growth := rank_growth(view, rank, "peak_allocated_bytes", np.max))
    }
    seconds_left = {
        rank: (gpu_cards[rank].total - grown.last_bytes) / grown.bytes_per_s
        for rank, grown in growing.items()
    }
    rank = min(seconds_left, key=lambda rank: seconds_left[rank], default=-1)
    fix = (
        Option("a smaller micro-batch with more accumulation", lever=MovedSetting("batch", -1)),
        Option(
            "activation checkpointing",
            needs=(NOT_CHECKPOINTED,),
            lever=MovedSetting("activation checkpointing", 1),
        ),
        Option("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", needs=(NOT_EXPANDABLE,)),
        Option("cut or bucket the longest sequences", needs=(TOKENS,)),
    )
    if rank in seconds_left and seconds_left[rank] < SOON_S:
        card, grown = gpu_cards[rank], growing[rank]
        return spec.make(
            severity="high",
            title=f"GPU memory of rank {rank} is full in {duration(max(0.0, seconds_left[rank]))} "
            "at this rate",
            evidence=f"the peak rose from {grown.first_bytes / GIB:.2f} to "
            f"{grown.last_bytes / GIB:.2f} GiB in {duration(grown.span_s)} (Mann-Kendall p = "
            f"{grown.p:.2g}); the card has {card.total / GIB:.1f} GiB",
            fix=fix,
            rank=rank,
            confidence=0.8,
            proof=grown.proof(
                per_step(view, grown),
                *card.inputs(),
                formula="time left = (memory of the GPU - last window) / Theil-Sen slope; a "
                "window's value is its maximum",
            ),
        )
    card = max(gpu_cards.values(), key=lambda card: card.peak / card.total)
    share = card.peak / card.total
    if share < NEARLY_FULL:
        return None
    return spec.make(
        severity="medium",
        title=f"GPU memory of rank {card.rank} peaks at {100 * share:.0f} % of the card",
        evidence=f"{card.peak / GIB:.2f} of {card.total / GIB:.2f} GiB allocated at the peak of "
        f"the last {card.steps:,} steps: a longer sequence or a larger batch ends the run",
        fix=fix,
        rank=card.rank,
        proof=Proof(
            statistic="peak allocated memory / memory of the GPU",
            value=100 * share,
            threshold=100 * NEARLY_FULL,
            unit="%",
            formula="share = largest peak_allocated_bytes / device_memory_bytes",
            inputs=card.inputs(),
        ),
    )


FRAGMENTED, SPLIT = 0.20, 0.10


@finding(
    id="ME03",
    name="fragmented GPU memory",
    family="memory",
    cause="memory",
    trigger=f"reserved minus peak allocated memory above {percent(FRAGMENTED)} of the card, and "
    f"inactive split blocks above {percent(SPLIT)} of it",
    fix="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    no_use="where segments are expandable already",
    reads="steps.reserved_bytes less allocated_bytes, inactive split blocks",
    silent="no CUDA allocator figures",
    traps="what is left over after a larger evaluation",
)
def fragmentation(view: RunView, spec: Spec) -> Finding | None:
    """The allocator holds memory in pieces that nothing fits into."""
    for rank, card in cards(view).items():
        events = told(view, "allocator").get(rank)
        gap = (card.reserved - card.peak) / card.total
        if events:
            split = (events[-1].get("inactive_split_bytes") or 0) / card.total
        else:
            split = 0.0
        if gap <= FRAGMENTED or split <= SPLIT:
            continue
        retries = int(events[-1].get("retries") or 0) if events else 0
        tight = card.reserved > 0.8 * card.total or retries > 0
        return spec.make(
            severity="medium" if tight else "info",
            title=f"{gap * card.total / GIB:.1f} GiB of rank {rank}'s GPU memory are held but "
            "unused",
            evidence=f"{card.reserved / GIB:.1f} GiB reserved, {card.peak / GIB:.1f} GiB "
            f"allocated at the peak, {split * card.total / GIB:.1f} GiB in split blocks that are "
            f"free; {retries} retries after a flush",
            fix=(
                Option(
                    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the start; no "
                    "empty_cache() helps against this",
                    needs=(NOT_EXPANDABLE,),
                ),
                Option("let shapes repeat (bucket or pad lengths)", last=True),
            ),
            rank=rank,
            confidence=0.8,
            proof=Proof(
                statistic="(reserved - peak allocated) / memory of the GPU",
                value=100 * gap,
                threshold=100 * FRAGMENTED,
                unit="%",
                formula="and inactive split blocks / memory of the GPU above 10 %",
                inputs=card.inputs(
                    Input(
                        "inactive split blocks",
                        split * card.total / GIB,
                        "GiB",
                        "allocator event, the last",
                    )
                ),
            ),
        )
    return None


IMBALANCED, HALF = 1.2, 0.5


@finding(
    id="ME06",
    name="GPU memory differs between ranks",
    family="memory",
    cause="memory",
    trigger=f"the largest peak is more than {IMBALANCED:g} times the median rank's and above half "
    "of its card",
    fix="spread embeddings, stages or long samples evenly",
    no_use=(
        "another split: where every rank holds the whole model; by length: where "
        "inputs are no tokens"
    ),
    reads="peak_allocated_bytes of each rank",
    silent="fewer than two ranks; less than half of the memory in use",
    traps="the embedding's pipeline stage",
)
def rank_imbalance(view: RunView, spec: Spec) -> Finding | None:
    """One rank is full while others have room."""
    gpu_cards = cards(view)
    if len(gpu_cards) < 2:
        return None
    card = max(gpu_cards.values(), key=lambda other_card: other_card.peak)
    median = float(
        np.median([other_card.peak for other_card in gpu_cards.values() if other_card is not card])
    )
    ratio = card.peak / median
    if ratio <= IMBALANCED or card.peak <= HALF * card.total:
        return None
    return spec.make(
        severity="medium",
        title=f"rank {card.rank} peaks at {card.peak / GIB:.1f} GiB, the others at "
        f"{median / GIB:.1f} GiB",
        evidence=f"{ratio:.2f} times the median of {len(gpu_cards) - 1} other ranks, "
        f"{100 * card.peak / card.total:.0f} % of the card: the batch size is set by this rank",
        fix=(
            Option(
                "put fewer layers on its stage, or shard the embedding and the output layer",
                needs=(SPLIT_MODEL,),
            ),
            "keep logging and evaluation tensors off this rank",
            Option("balance samples by length", needs=(TOKENS,)),
        ),
        rank=card.rank,
        proof=Proof(
            statistic="largest peak allocated / median of the other ranks",
            value=ratio,
            threshold=IMBALANCED,
            unit="times",
            formula="ratio = max(peak) / median(peaks of the others)",
            inputs=card.inputs(
                Input("median of the others", median / GIB, "GiB", "steps.peak_allocated_bytes")
            ),
        ),
    )


UNUSED_STEPS = 500


@finding(
    id="ME08",
    name="GPU memory unused",
    family="memory",
    cause="memory",
    trigger=f"the peak of every rank is below half of its card after {UNUSED_STEPS} steps",
    fix="a larger micro-batch, or less sharding, offload and checkpointing",
    no_use="where the GPU is busy all the time; what is not in use cannot be turned off",
    reads="peak memory after 500 steps",
    silent="fewer than 500 steps; no GPU",
    traps="room that is kept on purpose",
)
def unused_memory(view: RunView, spec: Spec) -> Finding | None:
    """There is room for a larger batch."""
    gpu_cards = cards(view)
    if not gpu_cards or len(gpu_cards) < len(view.ranks):
        return None
    card = max(gpu_cards.values(), key=lambda card: card.peak / card.total)
    share = card.peak / card.total
    last = min(int(view.per_rank[rank].steps[-1]) for rank in view.ranks)
    if share >= HALF or last < UNUSED_STEPS:
        return None
    return spec.make(
        severity="info",
        title=f"the fullest GPU peaks at {100 * share:.0f} % of its memory",
        evidence=f"{card.peak / GIB:.1f} of {card.total / GIB:.1f} GiB after {last:,} "
        f"steps, on rank {card.rank}",
        fix=(
            Option(
                "if the GPU is not busy all the time, raise the micro-batch",
                lever=MovedSetting("batch", 1),
            ),
            Option(
                "turn off activation checkpointing",
                (CHECKPOINTED,),
                lever=MovedSetting("activation checkpointing", -1),
            ),
            Option("turn off offload", needs=(OFFLOADED,)),
            Option(
                "shard less (SHARD_GRAD_OP, reshard_after_forward=False) where FSDP shards",
                needs=(FSDP,),
            ),
        ),
        rank=everybody(view),
        confidence=0.7,
        proof=Proof(
            statistic="largest peak allocated / memory of the GPU; raised below the threshold",
            value=100 * share,
            threshold=100 * HALF,
            unit="%",
            formula="share = max over ranks of peak_allocated_bytes / device_memory_bytes",
            inputs=card.inputs(Input("steps done", last, "", "steps.step, the slowest rank")),
        ),
    )
