"""What grows when memory grows: the tensors that are alive are counted, once memory has risen for
the first time.

A run that grows is counted in at most six times, on the training thread, booked as ours: soon after
the first time, as only two counts tell what grows, and then each time after as much growth as all
before.

Graphs whose buffers are freed take little memory each. So Python's own blocks and the C heap are
asked for as well, at a few steps: where they grow with each step, tensors are counted twice or
three times, and not again where few of them hold a graph and none holds one that goes back over
steps.
"""

import gc
import sys
from collections import Counter
from time import monotonic_ns
from typing import Any

from gputop_agent.description import describe_model
from gputop_agent.runtime import heap, source, transport
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session
from gputop_agent.timing import memory, roots
from gputop_agent.watchers.graphs import graph_chain
from gputop_agent.watchers.memory import collections_kept, keepers

FIRST_STEP = 20  # before it, lazy buffers and optimizer state are made
RISE_BYTES, RISE_AGAIN_BYTES = 24 << 20, 12 << 20
MAX_LOOKS = 6
# of passes that take longer there are few: two say what grows, a later one surely
MAX_LOOK_NS = 50_000_000
MAX_SLOW_LOOKS = 3
RISE_SLOWLY_BYTES = 64 << 20  # before the last of them
# steps at which Python's blocks and the heap are asked for; more than at the first make a count
BLOCK_STEPS = (100, 150, 280, 500)
BETWEEN_STEPS = 80
BLOCKS_A_STEP, GRAPHS_A_STEP = 0.9, 0.1
HEAP_BYTES_A_STEP = 600  # three nodes of a graph or so
BLOCK_BYTES = 64  # of one of Python's, in the mean
FREED = 0.25  # part of a rise that is in use, below which nothing keeps it
MIN_PILE = 60  # tensors that are alive
MIN_GRAPHS = 30  # of them with a graph: a training has a few
PILED_EVERY = 8  # steps: what is kept more rarely is no pile yet


class NextCount:
    """Level at which the next count is due."""

    def __init__(self):
        self.base = -1
        self.next_bytes = -1
        self.looks, self.most_looks = 0, MAX_LOOKS
        # Python's blocks and bytes of the heap, at the first step they were asked for
        self.blocks, self.heap_bytes, self.first_step = -1, 0, 0
        self.asked, self.next_ask = 0, 0  # times, and the step of the next one at least
        self.chain = graph_chain.Chain()
        self.keeper = keepers.GrowingContainer()
        self.collections = collections_kept.GrowingCollection()
        self.counted_step = 0
        # bytes of the heap and Python's blocks when memory was ``base``
        self.in_use: Any = (-1, 0)


current = NextCount()


def due(step):
    """Whether memory has reached the next level. Called every few steps."""
    used = memory.last()
    if step < FIRST_STEP or used <= 0 or current.looks >= current.most_looks:
        return False
    if current.base < 0:
        current.base, current.next_bytes = used, used + RISE_BYTES
        current.in_use = heap.in_use(), _blocks()
    return used >= current.next_bytes or _may_keep_graphs(step)


def _may_keep_graphs(step):
    """Whether more and more is in Python's memory or on the heap, at a few steps of a run."""
    if current.asked >= len(BLOCK_STEPS) or step < max(
        BLOCK_STEPS[current.asked], current.next_ask
    ):
        return False
    blocks, heap_bytes = _blocks(), heap.allocated_bytes()
    current.asked, current.next_ask = current.asked + 1, step + BETWEEN_STEPS
    if current.asked == 1:
        current.blocks, current.heap_bytes, current.first_step = blocks, heap_bytes, step
        current.counted_step = step
        current.chain.begin()
        return False
    steps = step - current.first_step
    more_blocks = blocks - current.blocks >= BLOCKS_A_STEP * steps
    return more_blocks or heap_bytes - current.heap_bytes >= HEAP_BYTES_A_STEP * steps


def _blocks():
    """Blocks that Python has handed out; 0 where it does not say."""
    return sys.getallocatedblocks() if hasattr(sys, "getallocatedblocks") else 0


def _risen(used):
    """By how much memory has risen since the first steps, and how much more of it is in use; empty
    where that is not known.
    """
    heap_before, blocks_before = current.in_use
    heap_bytes = heap.in_use() if heap_before >= 0 else -1
    if heap_bytes < 0:
        return {}
    more = heap_bytes - heap_before + BLOCK_BYTES * (_blocks() - blocks_before)
    return {"risen_bytes": max(0, used - current.base), "in_use_bytes": max(0, more)}


def _is_freed(risen):
    """Whether what memory has risen by is freed pieces, and nothing keeps it."""
    enough = risen.get("risen_bytes", 0) >= RISE_AGAIN_BYTES
    return enough and risen["in_use_bytes"] < FREED * risen["risen_bytes"]


def _kept(all_tensors, with_graph, used, *, search):
    """What keeps the tensors that pile up, or else the collection that has grown.

    The search is the dear part: it goes through all objects several times, 0.3 s where libraries
    have half a million. It is left out where neither memory nor graphs have become more.
    """
    count, piled, enough = len(all_tensors) - _of_training(), all_tensors, MIN_PILE
    if 2 * len(with_graph) > count:
        count, piled, enough = len(with_graph), with_graph, MIN_GRAPHS
    kept = {}
    if search and count >= max(enough, session.step // PILED_EVERY):
        kept = current.keeper.look(piled, beside=(all_tensors, with_graph))
    return kept or current.collections.look(used)


def _of_training():
    """How many tensors a training has anyway: of its model, their gradients, the optimizers' state.

    An Adam's of twenty layers are a hundred, among which a search for what keeps them took 0.3 s.
    """
    count = 0
    for root in alive(session.roots):
        for module in describe_model.modules_of(root):
            parameters = list(vars(module)["_parameters"].values())
            gradients = [value for value in parameters if getattr(value, "grad", None) is not None]
            count += len(parameters) + len(gradients) + len(vars(module)["_buffers"])
    for optimizer in alive(session.optimizers.values()):
        states = [state for state in optimizer.state.values() if isinstance(state, dict)]
        count += sum(map(len, states))
    return count


def reset():
    """In a forked child."""
    current.__init__()


def count():
    """Count the tensors, and those among them that hold a graph; 20-40 ms for 300,000 objects."""
    began, used, torch = monotonic_ns(), memory.last(), session.torch
    has_risen = used >= current.next_bytes
    current.looks += 1
    if current.looks == 1:
        current.next_bytes = used + RISE_AGAIN_BYTES
    else:
        current.next_bytes = used + max(RISE_BYTES, used - current.base)
    kinds = {torch.Tensor, torch.nn.Parameter}
    all_tensors, with_graph, graphs = [], [], Counter()
    for item in roots.of_types(gc.get_objects(), kinds):
        if item.is_nested:
            continue  # of several shapes, and asked for one it raises
        all_tensors.append(item)
        if item.grad_fn is not None:
            with_graph.append(item)
            graphs[f"{type(item.grad_fn).__name__} {list(item.shape)}"] += 1
    nodes, begin = current.chain.look(with_graph)
    has_graphs = bool(len(with_graph) >= GRAPHS_A_STEP * session.step or nodes)
    if not has_graphs:
        current.asked = len(BLOCK_STEPS)
    chain = {}
    if begin is not None:
        name = graph_chain.name_of(begin)
        chain = {
            "chain_nodes": nodes,
            "chain_steps": session.step - current.counted_step,
            "chain_kept_as": name,
            "chain_site": graph_chain.place_of(name),
        }
    current.counted_step = session.step
    if monotonic_ns() - began > MAX_LOOK_NS:
        current.most_looks = MAX_SLOW_LOOKS
        if current.looks > 1:
            current.next_bytes = max(current.next_bytes, used + RISE_SLOWLY_BYTES)
    risen = _risen(used)
    kept = {}
    if has_graphs or not _is_freed(risen):
        is_suspect = has_risen or has_graphs
        kept = _kept(all_tensors, with_graph, used, search=is_suspect)
    collects = {}
    if not gc.isenabled():
        collects = {"gc_off": True, "gc_off_at": source.place_with("gc.disable(")}
    transport.send_event(
        "tensors",
        step=session.step,
        memory_bytes=used,
        anonymous_bytes=memory.anonymous_bytes(),
        tensors=len(all_tensors),
        with_graph=len(with_graph),
        graph_kind=max(graphs, key=lambda kind: graphs[kind], default=""),
        **risen,
        **chain,
        **kept,
        **collects,
    )
