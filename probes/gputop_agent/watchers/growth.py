"""What grows when memory grows: the tensors that are alive are counted, once memory has risen for
the first time.

A run whose memory stands still is never counted in. One that grows is counted in at most six times,
each time after as much growth as all before, on the training thread, booked as ours.
"""

import gc
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


class Growth:
    """Level at which the next count is due."""

    def __init__(self):
        self.base = -1
        self.next_bytes = -1
        self.looks = 0


G = Growth()


def due(step):
    """Whether memory has reached the next level. Called every few steps."""
    used = memory.last()
    if step < FIRST_STEP or used <= 0 or G.looks >= MAX_LOOKS:
        return False
    if G.base < 0:
        G.base, G.next_bytes = used, used + RISE_BYTES
    return used >= G.next_bytes


def reset():
    """In a forked child."""
    G.__init__()


def count():
    """Count the tensors, and those among them that hold a graph; 20-40 ms for 300,000 objects."""
    began, used, torch = monotonic_ns(), memory.last(), session.torch
    G.looks += 1
    G.next_bytes = used + max(RISE_BYTES, used - G.base)
    kinds = (torch.Tensor, torch.nn.Parameter)
    tensors = graphs = 0
    for item in gc.get_objects():
        if type(item) in kinds:
            tensors += 1
            graphs += item.grad_fn is not None
    if monotonic_ns() - began > MAX_LOOK_NS:
        G.looks = MAX_LOOKS - 1 if G.looks == 1 else MAX_LOOKS
    transport.send_event(
        "tensors",
        step=session.step,
        memory_bytes=used,
        anonymous_bytes=memory.anonymous_bytes(),
        tensors=tensors,
        with_graph=graphs,
    )
