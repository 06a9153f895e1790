"""From allocated to reserved: what PyTorch's caching allocator holds beyond what is in use.

A cached block is split for smaller ones, and a segment with a part in use is not given back. From
one step to the next three kinds of blocks therefore hardly share segments: logits, whose free
blocks the next forward pass splits for its activations; activations; and what the optimizer needs
for all parameters at once. The reserved memory comes near the sum of the three, though they are
never all in use. The shares below, but for one, were read off replays of traced steps in a model of
that allocator (Llama, Qwen, Phi and OPT, one GPU, and FSDP1 over two); none off a measured run.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.elementwise import most, up
from gputop_analysis.vram.formula.habits import FSDP
from gputop_analysis.vram.formula.states import flat_partitions

FRAGMENTS = 0.04
"""Of activations, in blocks that no other tensor fits, beside a loss on whole logits; one GPU."""
WITHOUT_LOGITS = 0.15
"""The same of activations and a layer's work, where no whole logits leave room for the work: 0.06
to 0.24 in replays of LoRA and QLoRA of five models with a fused loss.
"""
RECORDED_STREAM = 0.05
"""The same under FSDP1, whose gathered weights wait for another stream (``record_stream``)."""
RECORDED_FULL = 0.2
"""The same where memory is short: fms-acceleration's FSDP1 runs out of memory, and not."""
SHARED = 0.35
"""How much of gradients and update finds room in freed activations and logits, by how much of these
there is; under FSDP and DeepSpeed, in flat blocks or pools of their own, nothing.
"""
EXPANDABLE = 0.02
"""Of activations with ``expandable_segments``, which grow and shrink by pages."""
WORKED = 0.7
"""Of a layer's passing needs in backward, what finds no room in the loss's freed blocks."""
VARIED = 3.0
"""How much more the segments of the loss come to where each batch has a length of its own: a block
of one length is cut for another's, and the next longest finds none whole. Replays of 20 steps over
lengths spread evenly come to 3 to 4, of 200 steps to 4 to 6.
"""
SEGMENT = 2 << 20
RELEASED = 0.02
"""Of what comes and goes, what stays in split segments after the allocator has given its cache
back; all of it under FSDP1.
"""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Bytes by what keeps to its own segments."""

    states: Number
    """Weights, optimizer states, libraries' workspaces: what is there all the time."""
    activations: Number
    """Of all layers, with the communication of one."""
    work: Number
    """The working set of one layer's backward pass."""
    loss: Number
    early: Number
    """Gradients that are there before the backward pass."""
    rising: Number
    """Gradients that come with it."""
    update: Number
    passes: Number
    """Most that is allocated in the forward and backward pass."""
    pools: Number
    """The same of each stream's pool at its worst: no other stream uses what it has free."""


def reserved(d: Dims, blocks: Blocks, allocated: Number) -> tuple[Number, Number]:
    """Reserved bytes where memory is plenty, and the least with which the step still runs (the
    allocator then gives its cache back and asks again, but keeps what a split segment still holds).
    """
    needed = most(allocated + RELEASED * blocks.update, _crowded(d, blocks))
    if "expandable_segments:True" in d.setup.allocator.replace(" ", ""):
        held_blocks = most(allocated, blocks.pools)
        return _whole(
            held_blocks + EXPANDABLE * (blocks.activations + blocks.work + blocks.loss)
        ), _whole(held_blocks)
    sharded = d.setup.parallel.sharding
    whole_logits = d.setup.loss == "plain"
    if sharded == "fsdp1":
        share = RECORDED_STREAM
    elif whole_logits:
        share = FRAGMENTS
    else:
        share = WITHOUT_LOGITS
    after = blocks.rising + blocks.update
    activations = blocks.activations + blocks.work * (WORKED if whole_logits else 1)
    loss = blocks.loss * (VARIED if d.setup.lengths == "varied" else 1.0)
    room = (activations + blocks.loss) / most(after, 1)
    if sharded in FSDP or flat_partitions(d):
        apart = 1.0
    else:
        apart = most(0, 1 - SHARED * room)
    passes = blocks.states + blocks.early + activations * (1 + share) + loss
    return _whole(most(passes + apart * after, needed)), _whole(needed)


def _crowded(d: Dims, blocks: Blocks) -> Number:
    """The least for the forward and backward pass."""
    if d.setup.parallel.sharding == "fsdp1":
        share = RECORDED_FULL
    else:
        share = RELEASED
    return blocks.passes + share * (blocks.passes - blocks.states)


def _whole(size: Number) -> Number:
    """In segments."""
    return up(size / SEGMENT) * SEGMENT
