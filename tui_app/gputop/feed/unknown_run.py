"""A run without a known architecture as a planner's question: what it tells, at its size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gputop.feed.planning import Ask

if TYPE_CHECKING:
    from gputop_analysis.view import RunView
    from gputop_analysis.vram.setup import ModelShape

FURTHEST = 2.0
"""Ratio of parameters up to which the catalog's model stands for the run's."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A live run of unknown architecture: what else is known of it, with another model."""

    ask: Ask
    text: str
    """What the run tells of its model, and what is shown instead."""


def unknown(view: RunView, example: Ask) -> Unknown:
    """The run's GPUs, tokens of a step, types and optimizer, with the catalog's model that is
    nearest in parameters. Where none is near the example stays as it is on the run's GPUs: a small
    model's batch says nothing of a large one.
    """
    from gputop_analysis.vram.from_run import setup_of

    model = (view.hello() or {}).get("model") or {}
    count = int(model.get("parameters") or 0)
    near = _of_size(count)
    ask = replace(_on_its_gpus(view, example), model=near or example.model)
    if near and _has_tokens(view) and (setup := setup_of(view, instead=ask.model)):
        batch = setup.micro_batch * setup.accumulation * setup.parallel.dp
        ask = replace(
            ask, seq=setup.seq, global_batch=batch, dtype=setup.dtype, optimizer=setup.optimizer
        )
    description = ", ".join(
        part for part in (str(model.get("class") or ""), _parameters(count)) if part
    )
    like = "of its size as an example" if near else "as an example"
    on = "" if _has_gpus(view) else ", and it ran on no GPU"
    if description:
        text = f"the run's model, {description}, is not in the catalog{on}: {ask.model.name} {like}"
    else:
        text = f"the run's model is not known{on}: {ask.model.name} {like}"
    return Unknown(ask, text)


def _has_tokens(view: RunView) -> bool:
    """Whole numbers in its batches are ids; other values features, whose matrix is no sequence."""
    kinds = ((view.hello() or {}).get("batch") or {}).get("dtypes") or {}
    return any("int" in str(dtype) for dtype in kinds.values())


def _has_gpus(view: RunView) -> bool:
    return any(info.ours for host in view.record.hosts.values() for info in host.state.gpus)


def _on_its_gpus(view: RunView, example: Ask) -> Ask:
    from gputop_analysis.catalog import gpu

    names = [
        info.name for host in view.record.hosts.values() for info in host.state.gpus if info.ours
    ]
    try:
        if names:
            return replace(example, gpu=gpu(names[0]).name, gpus=max(view.world_size, 1))
        return example
    except LookupError:
        return example


def _of_size(count: int) -> ModelShape | None:
    """The catalog's model whose parameters are nearest in ratio, where they are near enough."""
    from gputop_analysis.catalog import models

    if not count:
        return None
    apart = {model.name: abs(math.log(model.params / count)) for model in models() if model.params}
    name = min(apart, key=lambda model: apart[model])
    if apart[name] <= math.log(FURTHEST):
        return next(model for model in models() if model.name == name)
    return None


def _parameters(count: int) -> str:
    for size, letter in ((1e9, " B"), (1e6, " M")):
        if count >= size:
            return f"{count / size:.3g}{letter} parameters"
    return f"{count:,} parameters" if count else ""
