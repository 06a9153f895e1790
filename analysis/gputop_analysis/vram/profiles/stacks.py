"""Profiles of models with two stacks of layers: each stack has four layers in the trace and is
repeated by itself.

A storage's stack and its place there are read off the path of the module that it belongs to.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gputop_analysis.vram.deepen import deepen
from gputop_analysis.vram.eventlog import EventLog
from gputop_analysis.vram.setup import ModelShape

STACKS: dict[str, tuple[str, str]] = {
    "t5": ("encoder.block", "decoder.block"),
    "clip": ("text_model.encoder.layers", "vision_model.encoder.layers"),
}
"""Where transformers keeps the two stacks of a family: that of ``layers``, then the other one."""


def depths_of(shape: ModelShape) -> tuple[int, ...]:
    """Layers of each stack; a decoder is as deep as its encoder."""
    if shape.family in STACKS:
        return (shape.layers, shape.vision_layers or shape.layers)
    return (shape.layers,)


def deepened(log: EventLog, family: str, depths: tuple[int, ...]) -> EventLog:
    """The log with all layers of a model, from one of four layers a stack.

    Raises:
        ValueError: the layers of a stack cannot be repeated.
    """
    if family not in STACKS:
        return deepen(log, *depths)
    stacks = dict(zip(STACKS[family], depths, strict=True))
    for stack, layers in stacks.items():
        log = _named(deepen(replace(log, layer=_layers(log, (stack,))), layers), stack)
    return replace(log, layer=_layers(log, tuple(stacks)))


def _layers(log: EventLog, stacks: tuple[str, ...]) -> list[int]:
    """The layer of each storage within one of these stacks; -1: in none."""
    pattern = re.compile(rf"(?:^|\.)(?:{'|'.join(map(re.escape, stacks))})\.(\d+)(?:\.|$)")
    matches = [pattern.search(path) for path in log.strings]
    of_path = [int(match[1]) if match else -1 for match in matches]
    return [of_path[module] for module in log.module]


def _named(log: EventLog, stack: str) -> EventLog:
    """With the module of each layer's copy called by its own number."""
    strings, index_of = list(log.strings), {path: index for index, path in enumerate(log.strings)}
    pattern = re.compile(rf"((?:^|\.){re.escape(stack)}\.)\d+")
    numbers: dict[tuple[int, int], int] = {}
    for module, layer in set(zip(log.module, log.layer, strict=True)):
        if layer >= 0:
            path = pattern.sub(rf"\g<1>{layer}", strings[module])
        else:
            path = strings[module]
        if path not in index_of:
            index_of[path] = len(strings)
            strings.append(path)
        numbers[module, layer] = index_of[path]
    module = [numbers[pair] for pair in zip(log.module, log.layer, strict=True)]
    return replace(log, module=module, strings=tuple(strings))
