"""Places in the batches that hold no token."""

from __future__ import annotations

from gputop_analysis.findings.advice import (
    MAP_STYLE,
    ONE_SHAPE,
    OWN_LOOP,
    SEVERAL_SHAPES,
    TRANSFORMERS_5,
    Option,
)
from gputop_analysis.findings.dialect import loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import Share, everybody, steady_share, typical
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

LEAST_TOKENS = 0.70
ENOUGH_BATCHES = 8


@finding(
    id="IN14",
    name="padding waste",
    family="input",
    cause="input",
    trigger=f"under {percent(LEAST_TOKENS)} of the places in the batches hold a token "
    f"(attention_mask), over {ENOUGH_BATCHES} batches or more",
    fix="group samples by length, pack sequences, or attention over variable lengths",
    no_use="grouping: with an IterableDataset; where every row has the same length",
    reads="the mean of attention_mask, every 50 steps",
    silent="no attention mask in the batch; fewer than 8 batches looked at",
    traps="packed sequences and prefix masks",
    seen_on=CPU,
)
def padding_waste(view: RunView, spec: Spec) -> Finding | None:
    """Short samples are padded to their batch's longest, and the model computes on the filling."""
    batches = places = tokens = 0
    for event in view.events("padding"):
        batches += int(event.get("batches") or 0)
        places += int(event.get("places") or 0)
        tokens += int(event.get("tokens") or 0)
    if batches < ENOUGH_BATCHES or not places or tokens >= LEAST_TOKENS * places:
        return None
    forward, backward = (
        typical(steady_share(view, rank, phase) for rank in view.ranks) for phase in _COMPUTE
    )
    if forward is None or backward is None:
        return None
    wasted = 1 - tokens / places
    won = (forward.mean_ms + backward.mean_ms) * wasted
    run = Facts(view, forward.rank)
    return spec.make(
        severity="high" if wasted > 0.5 else "medium",
        title=f"{wasted * 100:.0f} % of the places in the batches are padding",
        evidence=f"{tokens:,} of {places:,} places hold a token ({batches} batches looked at); "
        f"forward and backward take {forward.mean_ms + backward.mean_ms:.1f} ms of "
        f"{forward.wall_ms:.1f} ms a step",
        fix=_shorter_rows(run),
        rank=everybody(view),
        site=loader_site(run),
        confidence=0.7,
        recoverable_ms_per_step=won,
        interval_ms_per_step=(0.5 * won, won),
        proof=_proof(forward, backward, batches, places=places, tokens=tokens, won=won),
    )


def _shorter_rows(run: Facts) -> tuple[str | Option, ...]:
    """Ways to fewer places without a token, that this run has."""
    collate = run.loader.get("collate_fn") or "not known"
    return (
        Option(
            "pad each batch only to its longest: padding=True in place of 'max_length' where the "
            f"texts are tokenised, or in the collate_fn (now {collate})",
            needs=(ONE_SHAPE,),
        ),
        Option("group_by_length=True in TrainingArguments", needs=(MAP_STYLE, SEVERAL_SHAPES)),
        Option(
            "train_sampling_strategy='group_by_length' in TrainingArguments",
            needs=(TRANSFORMERS_5, MAP_STYLE, SEVERAL_SHAPES),
        ),
        Option("group samples of similar length", needs=(OWN_LOOP, MAP_STYLE, SEVERAL_SHAPES)),
        "pack several samples into one sequence",
    )


_COMPUTE = ("forward", "backward")


def _proof(
    forward: Share, backward: Share, batches: int, *, places: int, tokens: int, won: float
) -> Proof:
    clock = "device" if forward.clock == "device" else "steps"
    return Proof(
        statistic="tokens / places in the batches",
        value=100 * tokens / places,
        threshold=100 * LEAST_TOKENS,
        unit="%",
        formula=f"recoverable = (forward + backward) x (1 - tokens / places) = {won:.3f} ms per "
        "step, where the model's work grows with the places; half of it at least where grouping "
        "leaves some",
        inputs=(
            Input("tokens", tokens, "", f"padding events, {batches} batches"),
            Input("places", places, "", f"padding events, {batches} batches"),
            Input(
                "forward", forward.mean_ms, "ms per step", f"{clock}.forward, rank {forward.rank}"
            ),
            Input(
                "backward",
                backward.mean_ms,
                "ms per step",
                f"{clock}.backward, rank {backward.rank}",
            ),
        ),
    )
