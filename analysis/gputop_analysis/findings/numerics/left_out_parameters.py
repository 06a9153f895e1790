"""Parameters that want a gradient, and that no optimizer was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gputop_agent.contracts import Hello
from gputop_analysis.findings.registry import Spec
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import spread, told, told_optimizers
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView

MUCH_WITHOUT = 0.01
"""Of the values: more without a gradient, or in no optimizer, is worth a finding."""


def left_out(view: RunView, spec: Spec) -> Finding | None:
    """Parameters that want a gradient, and that no optimizer was given: they are never updated."""
    ranks = spread(list(view.ranks))
    leaving = [rank for rank in ranks if _leaves_out_much(view, rank)]
    if not leaving:
        return None
    left_out = _of_no_optimizer(view, spec, leaving[0])
    return replace(left_out, rank=everybody(view)) if leaving == ranks else left_out


def _leaves_out_much(view: RunView, rank: int) -> bool:
    """Whether gradients come back to much that no optimizer ever had."""
    hello = view.hello(rank)
    trainable, given_values = _trainable(hello), _given(hello.get("optimizer") or {})
    if not _comparable(hello) or not given_values:
        return False
    much = MUCH_WITHOUT * trainable
    if trainable - given_values <= much or _once_given(view, rank, trainable):
        return False
    return _gradients_beyond(view, rank, given_values + much)


def _of_no_optimizer(view: RunView, spec: Spec, rank: int) -> Finding:
    hello = view.hello(rank)
    model, optimizer = hello.get("model") or {}, hello.get("optimizer") or {}
    trainable, given_count = _trainable(hello), _given(optimizer)
    other_parameters = optimizer.get("others") or []
    share = 1 - given_count / trainable
    return spec.make(
        severity="high" if share > 0.5 else "medium",
        title=f"{100 * share:.0f} % of the parameters that want a gradient are in no optimizer",
        evidence=f"{model.get('class') or 'the model'} has {trainable:,} values with "
        "requires_grad=True, "
        f"{' and '.join([str(optimizer.get('class')), *other_parameters])} "
        + (f"have {given_count:,} together" if other_parameters else f"has {given_count:,}")
        + ", and no other optimizer steps: the rest stays as it was made",
        fix="give the optimizer model.parameters(); if the rest shall stay as it is, call "
        "requires_grad_(False) on it, which saves its part of the backward pass too",
        rank=rank,
        site=optimizer.get("site"),
        confidence=0.8,
        proof=Proof(
            statistic="values that want a gradient and are in no optimizer / values that want one",
            value=100 * share,
            threshold=100 * MUCH_WITHOUT,
            unit="%",
            formula="",
            inputs=(
                Input("want a gradient", trainable, "values", "hello.model.trainable"),
                Input("in the optimizer", given_count, "values", "hello.optimizer.parameters"),
            ),
        ),
    )


def _trainable(hello: Hello) -> int:
    """Values of the model that want a gradient."""
    return int((hello.get("model") or {}).get("trainable") or 0)


def _given(optimizer: Mapping[str, Any]) -> int:
    """Values that this optimizer was given, or all optimizers together where that is told."""
    return int(optimizer.get("all_parameters") or optimizer.get("parameters") or 0)


def _once_given(view: RunView, rank: int, trainable: int) -> bool:
    """Whether an optimizer of an earlier stage of the script had them, as that of a teacher that is
    trained first.
    """
    optimizers = (event["optimizer"] for event in told_optimizers(view, rank))
    most_given = max(map(_given, optimizers), default=0)
    return most_given >= (1 - MUCH_WITHOUT) * trainable


def _gradients_beyond(view: RunView, rank: int, count: float) -> bool:
    """Whether more values have a gradient than so many, or nobody looked.

    A copy that only answers without a graph, as a target network does, has none and needs no
    optimizer.
    """
    looks = [event for event in told(view, "checkup").get(rank, ()) if "graded" in event]
    return not looks or (looks[-1].get("graded") or 0) > count


def _comparable(hello: Hello) -> bool:
    """Whether model and optimizers count the same parameters: a whole model, torch's optimizers."""
    model, optimizer, parallel = (
        hello.get(key) or {} for key in ("model", "optimizer", "parallel")
    )
    sharded = model.get("sharded") or any(
        parallel.get(wrapper) for wrapper in ("fsdp", "deepspeed", "pipeline")
    )
    counted = "all_parameters" in optimizer or not optimizer.get("others")
    alone = optimizer.get("module") == "torch" and counted
    return (
        alone and not sharded and not model.get("truncated") and len(model.get("roots") or ()) == 1
    )
