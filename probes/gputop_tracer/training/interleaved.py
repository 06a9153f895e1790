"""The interleaved schedule of a pipeline: a rank holds several chunks of layers, and a micro-batch
comes by that often.

Narayanan et al. 2021, section 2.2, as ``forward_backward_pipelining_with_interleaving`` of
Megatron-LM (``megatron/core/pipeline_parallel/schedules.py``) and ``ScheduleInterleaved1F1B`` of
torch run it: rank ``r`` of ``p`` with ``v`` chunks begins with ``2 (p - r - 1) + (v - 1) p``
forwards, then takes turns, and so holds one more of them.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import nn

from gputop_tracer.parallel import pipeline
from gputop_tracer.tracking.place import repeated_layers

from .steps import Loop

Setup = Dict[str, Any]
Turn = Tuple[bool, int, int]
"""(whether it is a forward, chunk, micro-batch)"""


def chunks(setup: Setup) -> int:
    return int((setup.get("parallel") or {}).get("vpp") or 1)


def warm_up(stages: int, stage: int, of: int, micro_batches: int) -> int:
    """Forwards of chunks before the first backward; ``of`` chunks a rank."""
    if micro_batches == stages:
        return micro_batches * of
    return min(2 * (stages - stage - 1) + (of - 1) * stages, micro_batches * of)


def schedule(stages: int, stage: int, of: int, micro_batches: int) -> Iterator[Turn]:
    """A rank's turns in a step; micro-batches go in groups of ``stages`` through the chunks."""
    first = warm_up(stages, stage, of, micro_batches)
    total = micro_batches * of
    for turn in range(total + first):
        if turn < total:
            yield (True, *_work(turn, stages, of))
        if turn >= first:
            chunk, micro = _work(turn - first, stages, of)
            yield False, of - 1 - chunk, micro


def _work(turn: int, stages: int, of: int) -> Tuple[int, int]:
    """(chunk, micro-batch) of the ``turn``-th forward."""
    group, within = divmod(turn, stages * of)
    return within // stages, group * stages + within % stages


def enough(stages: int, stage: int, of: int, micro_batches: int) -> int:
    """As many micro-batches as show the most that is held; those after them are like them."""
    first = warm_up(stages, stage, of, micro_batches)
    return min(micro_batches, stages * (-(-first // (stages * of)) + 2))


def cut(model: Any, setup: Setup, notes: List[str]) -> Chunked:
    """A stage's model, taken apart into its chunks.

    Raises:
        ValueError: the schedule does not go with the micro-batches, or it is not known where the
            model begins or ends.
    """
    stages, number, of = pipeline.stages(setup), pipeline.number(setup), chunks(setup)
    micro_batches = int(setup.get("accumulation") or 1)
    if micro_batches % stages:
        words = (
            "the interleaved schedule takes micro-batches in groups of pp %d: "
            "--accumulation %d does not divide so"
        )
        raise ValueError(words % (stages, micro_batches))
    base, norm = pipeline.ends(model)
    in_flight = min(warm_up(stages, number, of, micro_batches) + 1, micro_batches * of)
    words = (
        "stage %d of %d in %d chunks of layers; %d times a chunk holds a micro-batch's activations"
    )
    notes.append(words % (number, stages, of, in_flight))
    if number:
        base.set_input_embeddings(nn.Identity())
    return Chunked(model, base, norm, of, pipeline.is_last(setup))


class Chunked(nn.Module):
    """The layers of a stage in chunks; the last stage's last chunk ends in norm, head, loss."""

    def __init__(self, model: Any, base: Any, norm: str, of: int, is_last: bool) -> None:
        super().__init__()
        container = next(iter(repeated_layers(base))).rpartition(".")[0]
        layers = list(base.get_submodule(container))
        layers_per_chunk = len(layers) // of
        self.parts: Tuple[
            Any, ...
        ] = ()  # a tuple is no module: weights are known by their paths in the whole
        for at in range(of):
            containers: Dict[str, nn.Module] = {
                container: nn.ModuleList(
                    layers[at * layers_per_chunk : (at + 1) * layers_per_chunk]
                )
            }
            if is_last and at == of - 1:
                self.parts += (_with(model, {model.base_model_prefix: _with(base, containers)}),)
            else:
                self.parts += (_with(base, {**containers, norm: nn.Identity()}),)
        if not is_last:
            setattr(base, norm, nn.Identity())
        self.whole = model if is_last else base
        self.ends = is_last

    def get_output_embeddings(self) -> Any:
        return self.whole.get_output_embeddings() if self.ends else None

    def forward(self, chunk: int = 0, **inputs: Any) -> Any:
        outputs = self.parts[chunk](**inputs)
        return outputs if "labels" in inputs else outputs.last_hidden_state


def _with(module: nn.Module, children: Dict[str, nn.Module]) -> Any:
    """A module that shares all with ``module`` but these children."""
    copied = copy.copy(module)
    copied.__dict__["_modules"] = {**module._modules, **children}
    return copied


class InterleavedLoop(Loop):
    """A rank's steps in the turns of its schedule; the first only makes optimizer states."""

    def __init__(self, setup: Setup, *given: Any) -> None:
        super().__init__(*given)
        self.setup = setup
        self.chunk = 0
        self._waiting: Dict[Tuple[int, int], torch.Tensor] = {}

    def _micro_batches(self, step: int) -> None:
        stages, number, of = (
            pipeline.stages(self.setup),
            pipeline.number(self.setup),
            chunks(self.setup),
        )
        accumulation = int(self.setup.get("accumulation") or 1)
        if step == 0:
            count = stages
        else:
            count = enough(stages, number, of, accumulation)
        for forward, chunk, micro in schedule(stages, number, of, count):
            self.chunk = chunk
            self.passes_on = not (pipeline.is_last(self.setup) and chunk == of - 1)
            if forward:
                self._waiting[chunk, micro] = self._forward(step)
            else:
                self._backward(self._waiting.pop((chunk, micro)), step)

    def _call(self, args: Any, inputs: Dict[str, Any]) -> Any:
        return self.model(*args, chunk=self.chunk, **inputs)
