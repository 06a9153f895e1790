"""From allocated to reserved: what PyTorch's caching allocator holds beyond what is in use.

A cached block is split for smaller ones, and a segment with a part in use is not given back. From one step to the next
three kinds of blocks therefore hardly share segments: logits, whose free blocks the next forward pass splits for its
activations; activations; and what the optimizer needs for all parameters at once. The reserved memory comes near the
sum of the three, though they are never all in use. The shares below were read off runs with both figures known.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.elementwise import least, most, up

FRAGMENTS = 0.06
"""Of activations, in blocks that no other tensor fits; one GPU, without a loss on whole logits."""
RECORDED_STREAM = 0.2
"""The same under FSDP1, whose gathered weights are freed when another stream is done with them (``record_stream``)."""
SHARED = 0.6
"""How much of gradients and update finds room in activations that were freed one by one, where there are as many; under
FSDP, in flat blocks, nothing."""
EXPANDABLE = 0.02
"""Of activations with ``expandable_segments``, which grow and shrink by pages."""
SEGMENT = 2 << 20
RELEASED = 0.02
"""Of what comes and goes, what stays in split segments after the allocator has given its cache back; all of it under
FSDP1."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Bytes by what keeps to its own segments."""

    states: Number
    """Weights, optimizer states, libraries' workspaces: what is there all the time."""
    activations: Number
    """Of all layers, with the working set of one and its communication."""
    loss: Number
    early: Number
    """Gradients that are there before the backward pass."""
    rising: Number
    """Gradients that come with it."""
    update: Number
    passes: Number
    """Most that is allocated in the forward and backward pass."""


def reserved(d: Dims, blocks: Blocks, allocated: Number) -> tuple[Number, Number]:
    """Reserved bytes where memory is plenty, and the least with which the step still runs (the allocator then gives its
    cache back and asks again, but keeps what a split segment still holds)."""
    needed = most(allocated + RELEASED * blocks.update, _crowded(d, blocks))
    if "expandable_segments:True" in d.setup.allocator.replace(" ", ""):
        return _whole(allocated + EXPANDABLE * (blocks.activations + blocks.loss)), _whole(allocated)
    sharded = d.setup.parallel.sharding
    share = RECORDED_STREAM if sharded == "fsdp1" else FRAGMENTS
    after = blocks.rising + blocks.update
    filled = least(1, blocks.activations / most(after, 1))
    apart = 1.0 if sharded in ("fsdp1", "fsdp2", "hsdp") else 1 - SHARED * filled
    passes = blocks.states + blocks.early + blocks.activations * (1 + share) + blocks.loss
    return _whole(most(passes + apart * after, needed)), _whole(needed)


def _crowded(d: Dims, blocks: Blocks) -> Number:
    """The least for the forward and backward pass."""
    share = RECORDED_STREAM if d.setup.parallel.sharding == "fsdp1" else RELEASED
    return blocks.passes + share * (blocks.passes - blocks.states)


def _whole(size: Number) -> Number:
    """In segments."""
    return up(size / SEGMENT) * SEGMENT
