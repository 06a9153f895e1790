"""What the recorder writes into ``events.jsonl``; guests: ``gputop_agent/contracts``."""

from typing import Annotated, Any, TypedDict

from gputop_agent.contracts.kinds import (
    NEEDED,
    Amount,
    Count,
    Line,
    Pid,
    Range,
    Rank,
    Scalar,
    Signed,
    Step,
    Time,
    Whole,
)


class EveryEvent(TypedDict, total=False):
    """Every event; the recorder adds rank, pid and host to those that come from a guest."""

    t_ns: Annotated[Time, NEEDED]
    """Unix epoch."""
    type: Annotated[Line, NEEDED]
    rank: Rank
    pid: Pid
    host: Line
    step: Step


class RunStart(TypedDict, total=False):
    """The command has begun."""

    command: list[Line]
    pid: Pid


class RunEnd(TypedDict, total=False):
    """The command has ended."""

    exit_code: Signed
    signal: Signed
    duration_s: Amount
    oom_kills: Whole
    """By the kernel, on the whole machine, meanwhile."""


class RankStart(TypedDict, total=False):
    """A process of the run trains."""

    rank: Annotated[Rank, NEEDED]
    record_index: Whole
    attempt: Whole


class RankLost(TypedDict, total=False):
    """A rank's connection is gone."""

    rank: Annotated[Rank, NEEDED]
    reason: Line
    step: Step


class NoAgent(TypedDict, total=False):
    """A process of the run trains and never said hello."""

    pid: Pid
    reason: Line


class Neighbour(TypedDict, total=False):
    """A program outside the run."""

    pid: Pid
    name: Line
    cores: Amount


class Neighbours(TypedDict, total=False):
    """Programs outside the run that use a fifth of a core or more; looked at every 10 s or so."""

    processes: list[Neighbour]


class StandingThread(TypedDict, total=False):
    """A training thread as ``/proc`` shows it."""

    rank: Annotated[Rank, NEEDED]
    pid: Pid
    state: Line
    wchan: Line
    call: Line
    """System call that it waits in, in short: ``futex``, ``sleep``, ``read``."""
    path: Line
    mount: Line


class Standing(TypedDict, total=False):
    """Ranks have made no step for three times their longest one: all were asked where they are.

    It is no suspicion of a hang. Fields as those of ``hang_suspected``.
    """

    ranks: list[Rank]
    silent_s: Amount
    limit_s: Amount
    threads: list[StandingThread]


class HangSuspected(TypedDict, total=False):
    """Ranks have been silent for longer than a step ever took."""

    ranks: list[Rank]
    silent_s: Amount
    limit_s: Amount
    threads: list[StandingThread]


class HangOver(TypedDict, total=False):
    """They go on."""

    ranks: list[Rank]
    reason: Line
    """``steps`` came again, or the ranks are ``gone``."""


class Interrupt(TypedDict, total=False):
    """The command was asked to end."""

    signal: Scalar
    pids: list[Pid]
    by: Line
    """``user``; ``signal`` (from outside, passed on); ``calibrate``; ``recorder`` (what a stopped
    command left).
    """
    why: Line


class Suspended(TypedDict, total=False):
    """Ctrl-Z stopped every process of the run."""

    by: Line


class Resumed(TypedDict, total=False):
    """They go on; it is taken out of STEP and COMM records, goodput out of the session."""

    stopped_ms: Amount


class Orphans(TypedDict, total=False):
    """Processes that a command left behind when it ended by itself."""

    pids: list[Pid]


class OutputLost(TypedDict, total=False):
    """Bytes of the command's output that are not in the log, or not on gputop's own streams.

    The running sums are in ``host.json`` (``output_losses``, in words ``output_note``).
    """

    missing: Count
    given_up: Count
    not_passed_on: Count


class RecorderStart(TypedDict, total=False):
    """A recorder begins."""

    adopted: bool
    """Whether it took over a run whose recorder was gone."""


class XidEvent(TypedDict, total=False):
    """An error of the NVIDIA driver."""

    gpu: Annotated[int, Range(-1, 4096), NEEDED]
    code: Annotated[int, Range(0, 10_000), NEEDED]


EVENTS: dict[str, Any] = {
    "run_start": RunStart,
    "run_end": RunEnd,
    "rank_start": RankStart,
    "rank_lost": RankLost,
    "no_agent": NoAgent,
    "neighbours": Neighbours,
    "standing": Standing,
    "hang_suspected": HangSuspected,
    "hang_over": HangOver,
    "interrupt": Interrupt,
    "suspended": Suspended,
    "resumed": Resumed,
    "orphans": Orphans,
    "output_lost": OutputLost,
    "recorder_start": RecorderStart,
    "xid": XidEvent,
}
"""By the event's type."""
