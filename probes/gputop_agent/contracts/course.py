"""Events of a process's course: its start, what is written and logged on the way, what gputop costs
it, its end.
"""

from typing import Annotated, TypedDict, Union

from gputop_agent.contracts.kinds import (
    NEEDED,
    Amount,
    Count,
    Line,
    Rank,
    Real,
    Scalar,
    Step,
    Text,
    Time,
    Whole,
)


class Startup(TypedDict, total=False):
    """A milestone before the first step: once where it begins, if that may take long, and once
    where it is reached; the later one of the same name and begin counts.
    """

    name: Annotated[Line, NEEDED]
    """``python``, ``import torch``, ``CUDA``, ``process group``, ``model`` (first parameter to
    last), ``weights``, ``torch.load``, ``first batch``, ``first forward``,
    ``first update`` (of an optimizer that asks its closure again and again).
    """
    began_ns: Annotated[Time, NEEDED]
    ended_ns: Time
    """Null while it is under way."""
    site: Line
    """The user's line."""


class Checkpoint(TypedDict, total=False):
    """A checkpoint was written."""

    duration_ms: Amount
    step: Step
    path: Line
    bytes: Count
    via: Line
    site: Line


class WeightsLoaded(TypedDict, total=False):
    """``load_state_dict`` of a module has returned; the first 32 of a process."""

    step: Annotated[Step, NEEDED]
    into: Annotated[Line, NEEDED]
    """Class of the module."""
    site: Line
    """The user's line; null where a trainer loads."""


class OptimizerBegins(TypedDict, total=False):
    """Beside others that have stepped, an optimizer has made its first update; the first 16."""

    step: Annotated[Step, NEEDED]
    optimizer: Annotated[Line, NEEDED]
    """Its class."""


class PlateauEvent(TypedDict, total=False):
    """A ``ReduceLROnPlateau`` was given a metric, for the first time."""

    step: Annotated[Step, NEEDED]
    site: Annotated[Line, NEEDED]
    """The user's line."""


class DdpProgress(TypedDict, total=False):
    """At steps 16, 32, 64, ..."""

    step: Annotated[Step, NEEDED]
    iterations: Annotated[Whole, NEEDED]
    """Those with an all-reduce."""
    unused_parameter_bytes: Whole
    """Most seen."""


class LogEvent(TypedDict, total=False):
    """Values given to ``gputop.log``; at most 10 events a second."""

    step: Step
    values: dict[str, Union[Real, Scalar]]


class NamedPhase(TypedDict, total=False):
    """Time in ``gputop.phase``; cumulative, the last one counts."""

    name: Annotated[Line, NEEDED]
    phase: Line
    total_ns: Count
    count: Whole


class OwnCostEvent(TypedDict, total=False):
    """What gputop itself costs a step, every 2 s at first, every 10 s later."""

    rank: Annotated[Rank, NEEDED]
    step: Step
    method: Line
    """``windows``: steps with the hooks in against those without; ``clock``: the hooks'
    own time.
    """
    cost_us: Annotated[Real, NEEDED]
    """Microseconds of a step, in the mean over all steps."""
    low_us: Real
    high_us: Real
    """Ends of its 95 % interval."""
    step_us: Annotated[Amount, NEEDED]
    measured_steps: Whole
    counted_steps: Whole
    thread_share: Amount
    """CPU time of the guest's own thread over the time since it began."""


class MovingEvent(TypedDict, total=False):
    """Every 2 s while no step ends but hooks are passed, or an evaluation, a checkpoint or a
    compilation gets on.

    The recorder takes it for progress and does not write it down.
    """

    phase: Line
    step: Step


class AgentError(TypedDict, total=False):
    """Something of the guest failed and was left out from then on."""

    where: Line
    message: Text
    disabled: bool


class Goodbye(TypedDict, total=False):
    """The process ends."""

    steps: Step
    dropped: Whole
    errors: Scalar
    reason: Line
