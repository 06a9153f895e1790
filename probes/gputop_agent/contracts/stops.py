"""Events of what stops a training: exceptions, stacks of threads, calls that ranks wait in."""

from typing import TypedDict

from gputop_agent.contracts.kinds import (
    Amount,
    Count,
    Line,
    OfClass,
    Rank,
    Scalar,
    Signed,
    Step,
    Text,
    Whole,
)


class Raised(OfClass, total=False):
    """An exception; for lack of device memory also where a process has not trained a step yet."""

    message: Text
    traceback: list[Text]
    site: Line
    phase: Line
    step: Step
    thread: Line
    """Name of the one that it ended; null: it ended the process."""
    module: Line
    """Whose forward was going on; only for lack of device memory."""
    bad_weight: Line
    """A weight in the CPU's memory that is no number by then: what it says may follow from it."""
    module_class: Line
    memory: dict[str, Amount]
    """weights_bytes, gradients_bytes, optimizer_bytes, buffers_bytes, allocated_bytes,
    reserved_bytes, peak_allocated_bytes.
    """


class FrozenThread(TypedDict, total=False):
    """The stack of a thread."""

    name: Line
    training: bool
    frames: list[Text]
    """Innermost first."""
    rank: Rank


class CollectiveFacts(TypedDict, total=False):
    """A collective operation: the oldest that runs, else the last."""

    group: Scalar
    seq: Signed
    op: Line
    state: Line
    bytes: Amount


class Place(TypedDict, total=False):
    """A line of the user's that the training thread is in."""

    site: Line
    function: Line
    code: Line
    """Text of the line."""
    blocks: list[Line]
    """Branches and loops around it, the innermost last: ``205 for``, ``211 else``."""


class Handled(OfClass, total=False):
    """An exception that is being handled."""

    message: Text
    site: Line


class StackDump(TypedDict, total=False):
    """The stacks of all threads, the training's first; on command."""

    reason: Text
    phase: Line
    step: Step
    threads: list[FrozenThread]
    collective: CollectiveFacts
    places: list[Place]
    """Of the training thread, innermost first."""
    handling: Handled
    """The exception whose handler the training thread is in."""
    root: Rank
    """Whom the collective that the training thread stands in takes from or gives to."""


class FlightEntry(TypedDict, total=False):
    """One entry of torch's flight recorder."""

    group: Scalar
    seq: Signed
    op: Line
    bytes: Amount
    shapes: Line
    """Of the first inputs: ``4x3 7``."""
    state: Line
    p2p: bool
    peer: Rank
    """Of a message, whom it is for or from."""
    site: Line
    """Line of the user's that called; in a hang."""
    created_ns: Count


class GroupFacts(TypedDict, total=False):
    """A process group."""

    name: Line
    description: Line
    """As given by the script, or ``mesh_tp`` for a dimension of a device mesh."""
    ranks: list[Rank]


class FlightRecorder(TypedDict, total=False):
    """The newest 200 entries, and messages between two ranks, in parts; on command."""

    part: Whole
    parts: Whole
    reason: Line
    entries: list[FlightEntry]
    groups: list[GroupFacts]
    """Those of this rank; in a hang."""
