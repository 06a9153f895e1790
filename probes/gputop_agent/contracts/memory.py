"""Events of memory: live tensors, CUDA's allocator, its snapshots."""

from typing import Annotated, TypedDict

from gputop_agent.contracts.kinds import NEEDED, Amount, Count, Line, Step, Whole


class Tensors(TypedDict, total=False):
    """Live tensors; each time memory has grown by 24 MB or doubled its growth, at most 6, and up to
    3 times while there is more in Python's memory or on the C heap with each step.
    """

    step: Annotated[Step, NEEDED]
    memory_bytes: Annotated[Whole, NEEDED]
    anonymous_bytes: Annotated[Whole, NEEDED]
    tensors: Annotated[Whole, NEEDED]
    with_graph: Annotated[Whole, NEEDED]
    graph_kind: Line
    """What made most of them, and their shape."""
    risen_bytes: Whole
    """Memory since step 20; where the C library tells how much of it is in use."""
    in_use_bytes: Whole
    """How much more of it is in use, in Python's blocks and on the C heap."""
    chain_nodes: Whole
    """Of one tensor's graph that goes back to before the last count: nodes since then."""
    chain_steps: Whole
    """Steps since then."""
    chain_kept_as: Line
    """Name or key that this tensor is kept by."""
    chain_site: Line
    """The line that makes it from itself."""
    kept_in: Line
    """Name of the container that most of the tensors are in, where they are many."""
    kept_site: Line
    """The line that fills it."""
    grown_in: Line
    """Name of the collection of anything that has grown most since the count before, where that is
    a good part of what memory has.
    """
    grown_site: Line
    """The line that fills it."""
    gc_off: bool
    """The garbage collector is switched off."""
    gc_off_at: Line
    """The line that does it, where it is the only one."""


class AllocatorEvent(TypedDict, total=False):
    """CUDA's caching allocator, cumulative; every 2 s, later every 30 s."""

    step: Annotated[Step, NEEDED]
    device_allocs: Whole
    device_frees: Whole
    retries: Whole
    ooms: Whole
    inactive_split_bytes: Count
    empty_cache_calls: Whole
    empty_cache_ms: Amount
    empty_cache_site: Line


class MemorySnapshotEvent(TypedDict, total=False):
    """A snapshot of CUDA's allocator was written, or why not."""

    step: Step
    reason: Line
    """``out of memory`` or ``asked``."""
    path: Line
    """In ``RUN/memory/``."""
    bytes: Count
    """Of the file."""
    recorded: bool
    """With what the allocator did before: ``run --memory-history``."""
    error: Line
