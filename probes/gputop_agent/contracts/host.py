"""Events of the host's side of a step: lines of code, loaders, threads, cores, compilations."""

from typing import Annotated, TypedDict

from gputop_agent.contracts.hello import LoaderFacts
from gputop_agent.contracts.kinds import (
    NEEDED,
    Amount,
    Count,
    Line,
    Pid,
    Step,
    Text,
    Time,
    Whole,
)


class SiteFacts(TypedDict, total=False):
    """A place in the user's code."""

    site: Line
    function: Line
    caller: Line


class StackSample(SiteFacts, total=False):
    """A line, and how often the training thread was seen in it."""

    inside: Text
    """What the line waits in: ``torch/_C mean`` is torch's C code, by the text of the
    instruction.
    """
    path: list[Line]
    """Lines of user code, the outermost first; ``loop train.py:40 fit`` is a loop that the next one
    is in, ``(lightning)`` a package between two.
    """
    code: Text
    count: Whole
    shared_calls: list[Line]
    """Those of its path that call a module's function which other lines call, too; left out where
    there are none.
    """
    after_update: bool
    """Seen between an update and the next forward; left out elsewhere."""


class Stacks(TypedDict, total=False):
    """Which lines spend the time of each phase, those of the model's own more rarely seen; every
    2 s, later up to every 30 s.
    """

    phase: Line
    period_ms: Amount
    """Measured."""
    total: Whole
    samples: list[StackSample]


class LoaderWorker(TypedDict, total=False):
    """Which lines one of a loader's first workers makes its batches in, and its memory; over a
    connection apart, every 2 s, later up to every 30 s.
    """

    parent: Annotated[Pid, NEEDED]
    """The training process; the recorder adds its rank."""
    worker: Whole
    looks: Whole
    idle: Whole
    """Of the looks: it waited for an order."""
    samples: list[StackSample]
    memory_ns: list[Time]
    """When its memory was read."""
    memory_bytes: list[Count]
    """Its part of memory with no file behind it (``Pss_Anon``): a page that it writes to is its
    own from then on.
    """
    grown_in: Line
    """The collection in its data set that gets longer by as much."""
    grown_site: Line
    """The only line that fills it; empty otherwise."""


class WorkerLooks(TypedDict, total=False):
    """How often a fetch was seen to wait for a worker."""

    worker: Annotated[Whole, NEEDED]
    looks: Annotated[Whole, NEEDED]


class EpochStart(TypedDict, total=False):
    """The making of an iterator."""

    step: Step
    end_ms: Amount
    start_ms: Amount
    first_ms: Amount


class LoaderLooks(LoaderFacts, total=False):
    """The loader of worker processes as seen from the agent's thread; every 2 s, later up to every
    30 s.
    """

    looks: Whole
    empty: Whole
    fetching: Whole
    behind: Whole
    unpacking: Whole
    states: dict[str, Whole]
    """R, D, S, ... of the worker that a fetch waits for."""
    waited_for: list[WorkerLooks]
    epochs: Whole
    starts_ms: Amount
    """What it took to end the last iterators and make the next."""
    firsts_ms: Amount
    """Their first fetches."""
    epoch_starts: list[EpochStart]
    """The first of them."""


class PaddingEvent(TypedDict, total=False):
    """Places without a token in the batches looked at, the first 8 and then each 50th; with
    ``loader``.
    """

    batches: Whole
    places: Whole
    tokens: Whole
    kept: Whole
    """Places, if each batch were cut to its longest row."""
    filling: Line
    """The value that rows end or begin with; absent where ``attention_mask`` told."""
    beside: Whole
    """Values of floating-point inputs beside the texts; absent where there are none."""
    padded_at: Line
    """The line of the user's ``collate_fn`` that fills rows up."""
    left_out: bool
    """Whether the script has calls that leave filling out of their work."""


class RepeatsEvent(TypedDict, total=False):
    """Of the first 8 batches and of each 50th and the one after it, by a checksum of their first
    tensor; with ``loader``.
    """

    batches: Whole
    """Compared with the one right before them."""
    same: Whole
    changed: Whole
    """Looks that saw another batch than the look before."""


class Paging(TypedDict, total=False):
    """A period with over 2,000 page faults a second."""

    period_ms: Amount
    faults: Whole
    system_ms: Amount
    """In the kernel, of all threads."""
    thread_system_ms: Amount
    """Of the training thread, to 10 ms."""
    phases: dict[str, Whole]
    """Its faults by phase, in an eighth of a second; with the first few of these events."""


class Placement(TypedDict, total=False):
    """On which cores the training thread ran, where the GPU's own are known."""

    looks: Whole
    near: Whole


class Compilation(TypedDict, total=False):
    """A compilation by torch.compile; site, function and reason are those of the frame compiled
    again last.
    """

    duration_ms: Amount
    step: Step
    function: Line
    site: Line
    reason: Text
    graphs: Whole
    graph_breaks: Whole
    recompiles: Whole


class BusyThread(SiteFacts, total=False):
    """A Python thread beside the training's."""

    name: Line
    cpu_share: Amount
    age_s: Amount


class BusyThreads(TypedDict, total=False):
    """While another Python thread uses over 20 % of a core."""

    period_ms: Amount
    threads: list[BusyThread]


class GarbagePause(TypedDict, total=False):
    """A garbage collection of over 10 ms."""

    duration_ms: Amount
    generation: Whole
    step: Step
