"""Events of steps that were looked at closer, on request: operations, layers, operators."""

from typing import Annotated, Any, TypedDict

from gputop_agent.contracts.kinds import NEEDED, Amount, Count, Line, OfClass, Step, Text, Whole


class Flops(TypedDict, total=False):
    """Counted operations of one step of one rank, or why not; once with ``run --count-flops``."""

    step: Step
    flops: Amount
    samples: Whole
    tokens: Whole
    operators: Any
    error: Text


class LayerRow(OfClass, total=False):
    """A module of the model, with what is its own."""

    path: Annotated[Line, NEEDED]
    """Names from the model down; wrappers' own names are left out."""
    parameter_bytes: Count
    """On this rank."""
    dtype: Line
    trainable: bool
    compiled: bool


class LayerTable(TypedDict, total=False):
    """The modules of the model, outermost first; before the first ``layers``, and where they
    changed.
    """

    first: Annotated[Count, NEEDED]
    """Index of the first row here: large models come in parts."""
    count: Count
    """Rows of the whole table."""
    rows: list[LayerRow]


class LayersEvent(TypedDict, total=False):
    """One step watched layer by layer. Columns of figures that are a layer's own, in the order of
    the table.
    """

    step: Step
    first: Annotated[Count, NEEDED]
    """Row of the table that the columns begin with."""
    forward_us: list[Amount]
    backward_us: list[Amount]
    calls: list[Count]
    activation_bytes: list[Count]
    """Of the calls' results, each storage once."""
    gradient_bytes: list[Count]
    optimizer_bytes: list[Count]
    dtypes: list[Line]
    """Of the first result."""
    flops: list[Amount]
    """Forward and backward; the last entry lies outside of modules. In an event of its own."""
    recomputed: list[Count]
    """Rows of layers that ran again in the backward."""
    clock: Line
    """``host`` or ``device``."""
    outside_forward_ms: Amount
    outside_backward_ms: Amount
    forward_ms: Amount
    """Of the phase, by the host's clock."""
    backward_ms: Amount
    hook_ms: Amount
    """Time of the hooks in both phases, which is no layer's."""
    graph_nodes: Count


class ProfileRow(TypedDict, total=False):
    """An operator in a profile."""

    op: Line
    calls: Count
    cpu_ms: Amount
    device_ms: Amount


class ProfileEvent(TypedDict, total=False):
    """A profile of a few steps, or why there is none; on command. Its steps carry ``F_AGENT``."""

    steps: Whole
    first_step: Step
    table: list[ProfileRow]
    trace_path: Line
    """In ``RUN/traces/``; steps are marked ``ProfilerStep#N``."""
    error: Line
