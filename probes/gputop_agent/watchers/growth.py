"""What grows when memory grows: the tensors that are alive are counted, once memory has risen for
the first time.

A run that grows is counted in at most six times, each time after as much growth as all before, on
the training thread, booked as ours.

Graphs whose buffers are freed take little memory each. So Python's own blocks are asked for as well,
which takes microseconds: where they grow by one a step or more, tensors are counted twice or three
times, and not again where few of them hold a graph.
"""

import gc
import sys
from collections import Counter
from time import monotonic_ns

from gputop_agent.runtime import transport
from gputop_agent.runtime.session import session
from gputop_agent.timing import memory

FIRST_STEP = 20  # before it, lazy buffers and optimizer state are made
RISE_BYTES = 48 << 20
MAX_LOOKS = 6
MAX_LOOK_NS = (
    100_000_000  # a pass that took longer is the last one, but one count alone would say nothing
)
# steps at which Python's blocks are asked for; more of them than at the first make a count
BLOCK_STEPS = (100, 150, 280, 500)
BLOCKS_A_STEP, GRAPHS_A_STEP = 0.9, 0.5


class Growth:
    """Level at which the next count is due."""

    def __init__(self):
        self.base = -1
        self.next_bytes = -1
        self.looks = 0
        self.blocks, self.first_step = -1, 0  # Python's, at the first step they were asked for
        self.asked = 0  # times


G = Growth()


def due(step):
    """Whether memory has reached the next level. Called every few steps."""
    used = memory.last()
    if step < FIRST_STEP or used <= 0 or G.looks >= MAX_LOOKS:
        return False
    if G.base < 0:
        G.base, G.next_bytes = used, used + RISE_BYTES
    return used >= G.next_bytes or _may_keep_graphs(step)


def _may_keep_graphs(step):
    """Whether there are more and more Python objects: asked at a few steps of a run."""
    if G.asked >= len(BLOCK_STEPS) or step < BLOCK_STEPS[G.asked]:
        return False
    blocks = sys.getallocatedblocks() if hasattr(sys, "getallocatedblocks") else 0
    G.asked += 1
    if G.asked == 1:
        G.blocks, G.first_step = blocks, step
        return False
    return blocks - G.blocks >= BLOCKS_A_STEP * (step - G.first_step)


def reset():
    """In a forked child."""
    G.__init__()


def count():
    """Count the tensors, and those among them that hold a graph; 20-40 ms for 300,000 objects."""
    began, used, torch = monotonic_ns(), memory.last(), session.torch
    G.looks += 1
    G.next_bytes = used + max(RISE_BYTES, used - G.base)
    kinds = (torch.Tensor, torch.nn.Parameter)
    tensors, graphs = 0, Counter()
    for item in gc.get_objects():
        if type(item) in kinds:
            tensors += 1
            if item.grad_fn is not None:
                graphs[f"{type(item.grad_fn).__name__} {list(item.shape)}"] += 1
    if sum(graphs.values()) < GRAPHS_A_STEP * session.step:
        G.asked = len(BLOCK_STEPS)
    if monotonic_ns() - began > MAX_LOOK_NS:
        G.looks = MAX_LOOKS - 1 if G.looks == 1 else MAX_LOOKS
    transport.send_event(
        "tensors",
        step=session.step,
        memory_bytes=used,
        anonymous_bytes=memory.anonymous_bytes(),
        tensors=tensors,
        with_graph=sum(graphs.values()),
        graph_kind=max(graphs, key=lambda kind: graphs[kind], default=""),
    )
