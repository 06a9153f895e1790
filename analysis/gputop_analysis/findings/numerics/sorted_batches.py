"""Batches that hold one class each: the order of the data is that of their classes."""

from __future__ import annotations

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import LOSS
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import Event, on_ranks
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView

LEAST_LOOKS, MOST = 4, 0.9
SEVERAL = 3
"""Classes that alone make sure; two may take turns on purpose, as real and made up pictures do."""


@finding(
    id="NU22",
    name="batches of one class",
    family="numerics",
    cause="nan",
    trigger=f"in nine of ten looks, {LEAST_LOOKS} or more, one class has nine of ten targets of "
    f"the batch, and not always the same: {SEVERAL} classes or more, or two of which the second "
    "follows the first for good",
    fix="shuffle the data",
    explains=("NU07", "NU02"),
    no_use="where each batch is meant to hold one class",
    reads="the targets that cross_entropy has saved for its backward, at the looks of NU08",
    silent="fewer than 8 targets a batch; targets of tokens or points, which lie beside each "
    "other; another loss; a loss inside a compiled graph",
    traps="one class that nearly all of the data have",
    seen_on=CPU,
    pictures=(LOSS,),
)
def one_class(view: RunView, spec: Spec) -> Finding | None:
    """The model forgets each class as it learns the next one."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        class_events = [event for event in events if event.get("class_looks")]
        if not class_events:
            return None
        last = class_events[-1]
        looks, of_one_class = last["class_looks"], last.get("one_class_looks", 0)
        in_turn = last.get("one_class_in_turn", [])
        if looks < LEAST_LOOKS or of_one_class < MOST * looks or not _is_sorted(in_turn):
            return None
        loader = view.hello(rank).get("dataloader") or {}
        in_order = loader.get("sampler") == "SequentialSampler" and not loader.get("iterable")
        return spec.make(
            severity="high",
            title="each batch holds one class: the data come sorted by class",
            evidence=f"in {of_one_class} of {looks} looks up to step {last['step']} of rank {rank} "
            "one class had nine of ten targets of the batch or more, in turn "
            + ", ".join(map(str, in_turn))
            + ("; the loader takes its samples in order (SequentialSampler)" if in_order else ""),
            fix=_fix(in_order, bool(loader.get("iterable"))),
            rank=everybody(view),
            site=loader.get("site") or last.get("backward_at"),
            confidence=0.9,
            proof=Proof(
                statistic="looks at a batch of which one class has nine tenths, of all looks",
                value=of_one_class / looks,
                threshold=MOST,
                unit="",
                formula="and the class is another one later on",
                inputs=(
                    Input("looks", looks, "", f"checkup events, rank {rank}"),
                    Input("classes in turn", ", ".join(map(str, in_turn)), "", "the same"),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank)


def _is_sorted(in_turn: list[int]) -> bool:
    several = len(set(in_turn))
    return several >= SEVERAL or (several == 2 and len(in_turn) == 2)


def _fix(in_order: bool, is_stream: bool) -> str:
    if in_order:
        return "DataLoader(shuffle=True): each batch is then drawn from all classes"
    if is_stream:
        return "mix the stream: write its files in random order, or draw from a buffer of samples"
    return "draw each batch from all classes: shuffle the samples before they are cut into batches"
