"""Places in the batches that hold no token."""

from __future__ import annotations

from gputop_analysis.findings.advice import (
    MAP_STYLE,
    ONE_SHAPE,
    OWN_LOOP,
    SEVERAL_SHAPES,
    TRAINERS_BATCHES,
    TRANSFORMERS_5,
    Option,
)
from gputop_analysis.findings.dialect import loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import Share, everybody, steady_share, typical
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.padded import ENOUGH_BATCHES, PaddedRows, padded_rows
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

LEAST_TOKENS = 0.70
MUCH_BESIDE = 2
"""Values of other inputs for each place of a text: from there on much of the model works on them.
Weights of the tokens, or targets of their own, are one for each place at most.
"""


@finding(
    id="IN14",
    name="padding waste",
    family="input",
    cause="input",
    trigger=f"under {percent(LEAST_TOKENS)} of the places in the batches hold a token "
    "(attention_mask; without one, rows that end with one value), over "
    f"{ENOUGH_BATCHES} batches or more",
    fix="group samples by length, pack sequences, or attention over variable lengths",
    no_use="grouping: with an IterableDataset; where every row has the same length",
    reads="attention_mask, or whole numbers in two dimensions, every 50 steps",
    silent="no mask and no such numbers; fewer than 8 batches looked at; without a mask where the "
    "script packs sequences or nests tensors",
    traps="packed sequences and prefix masks",
    seen_on=CPU,
)
def padding_waste(view: RunView, spec: Spec) -> Finding | None:
    """Short samples are padded to their batch's longest, and the model computes on the filling."""
    rows = padded_rows(view)
    if rows is None or rows.tokens >= LEAST_TOKENS * rows.places:
        return None
    forward, backward = _typical_share(view, "forward"), _typical_share(view, "backward")
    if forward is None or backward is None:
        return None
    wasted = 1 - rows.tokens / rows.places
    model_ms = forward.mean_ms + backward.mean_ms
    won: float | None = model_ms * wasted
    takes = f"forward and backward take {model_ms:.1f} ms of {forward.wall_ms:.1f} ms a step"
    if rows.beside > MUCH_BESIDE * rows.places:
        won = None
        takes += (
            ", of which the part that reads these texts is not known: the batches have other "
            "inputs, too, such as pictures or sound"
        )
    run = Facts(view, forward.rank)
    return spec.make(
        severity="high" if wasted > 0.5 and won is not None else "medium",
        title=f"{wasted * 100:.0f} % of the places in the batches are padding",
        evidence=f"{rows.told}; {takes}",
        fix=_shorter_rows(run, rows),
        rank=everybody(view),
        site=_site(run, rows),
        confidence=0.7 if rows.filling is None else 0.5,
        recoverable_ms_per_step=won,
        interval_ms_per_step=(0.5 * won, won) if won is not None else None,
        proof=_proof(forward, backward, rows, won),
    )


def _site(run: Facts, rows: PaddedRows) -> str | None:
    """The line that fills rows up, where it goes beyond the longest; else the loader's, which says
    what goes together.
    """
    is_of_collator = rows.is_cut_short or run.shapes == 1
    return (is_of_collator and rows.padded_at) or loader_site(run) or rows.padded_at


def _shorter_rows(run: Facts, rows: PaddedRows) -> tuple[str | Option, ...]:
    """Ways to fewer places without a token, that this run has."""
    collate = run.loader.get("collate_fn") or "not known"
    to_longest = (
        "pad each batch only to its longest: padding=True in place of 'max_length' where the "
        f"texts are tokenised, or in the collate_fn (now {collate})"
    )
    shorter: tuple[str | Option, ...] = (Option(to_longest, needs=(ONE_SHAPE,)),)
    if rows.is_cut_short:
        shorter = (to_longest,)
    elif rows.ends_with_longest:
        shorter = ()
    return (
        *shorter,
        Option(
            "group_by_length=True in TrainingArguments",
            needs=(TRAINERS_BATCHES, MAP_STYLE, SEVERAL_SHAPES),
        ),
        Option(
            "train_sampling_strategy='group_by_length' in TrainingArguments",
            needs=(TRANSFORMERS_5, TRAINERS_BATCHES, MAP_STYLE, SEVERAL_SHAPES),
        ),
        Option("group samples of similar length", needs=(OWN_LOOP, MAP_STYLE, SEVERAL_SHAPES)),
        "pack several samples into one sequence",
    )


def _typical_share(view: RunView, phase: str) -> Share | None:
    return typical(steady_share(view, rank, phase) for rank in view.ranks)


def _proof(forward: Share, backward: Share, rows: PaddedRows, won: float | None) -> Proof:
    clock = "device" if forward.clock == "device" else "steps"
    formula = "recoverable: not known, as part of forward and backward is of other inputs"
    if won is not None:
        formula = (
            f"recoverable = (forward + backward) x (1 - tokens / places) = {won:.3f} ms per "
            "step, where the model's work grows with the places; half of it at least where "
            "grouping leaves some"
        )
    return Proof(
        statistic="tokens / places in the batches",
        value=100 * rows.tokens / rows.places,
        threshold=100 * LEAST_TOKENS,
        unit="%",
        formula=formula,
        inputs=(
            Input("tokens", rows.tokens, "", f"padding events, {rows.batches} batches"),
            Input("places", rows.places, "", f"padding events, {rows.batches} batches"),
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
