"""What is said of a whole run: its figures and the one line on top.

Apart from ``model``, since the live screen needs these two before its first frame and nothing else
of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from gputop_analysis.model import GpuSummary, HostSummary, PhaseStats, RankSummary

Health = Literal[
    "waiting", "looking", "healthy", "attention", "critical", "ended", "stopped", "failed"
]


JUDGED_AFTER = 30
"""Steps after which a run is judged: the warm-up, and the steady ones a statistic needs."""


class Ending(NamedTuple):
    """How a run ended."""

    kind: Literal["running", "finished", "stopped", "terminated", "failed", "lost", "unknown"]
    """``stopped``: by its user; ``terminated``: by a signal from outside, as a scheduler's."""
    words: str
    """``stopped by you``, ``ended, exit 0``."""


class Sampled(NamedTuple):
    """Steps were counted but for random windows: from how many phases are estimated."""

    measured: int
    """Steps whose phases were measured, of all ranks."""
    steps: int
    half_width: float
    """Of the widest 95 % interval of a phase's share of time, 0 to 1; NaN: too little known."""

    @property
    def words(self) -> str:
        """``phases estimated from 240 of 4,000 steps, +- 1.2 % of the step``."""
        text = f"phases estimated from {self.measured:,} of {self.steps:,} steps"
        if math.isfinite(self.half_width):
            text += f", +- {100 * self.half_width:.1f} % of the step"
        return text


class OwnCost(NamedTuple):
    """What gputop itself takes of a step."""

    share: float
    """0 to 1."""
    low: float
    """Lower end of its 95 % interval; NaN without one."""
    high: float
    cost_us: float
    method: str
    """``windows``: hooks in against hooks out; ``clock``: the time inside hooks, always in."""
    thread_share: float | None = None
    """CPU time of the guest's own thread, of a core, since it began; None: not told."""

    @property
    def words(self) -> str:
        """``0.3 % of a step, 0.2 to 0.4``."""
        text = f"{_percent(self.share)} % of a step"
        if math.isfinite(self.low) and math.isfinite(self.high):
            text += f", {_percent(max(0.0, self.low))} to {_percent(self.high)}"
        return text


def _percent(share: float) -> str:
    if abs(share) < 0.001:
        return f"{100 * share:.2f}"
    return f"{100 * share:.1f}"


RATE_WINDOW_S = 10.0
"""How far back the rates of a run look that goes on."""
GPUS_ADDED = "GPU figures added"
"""Said beside figures of devices that were added to a recording."""


class RunSummary(NamedTuple):
    """All that the overview shows, over one window of steps."""

    command: tuple[str, ...]
    state: Literal["starting", "running", "ended", "lost"]
    exit_code: int | None
    started_ns: int
    ended_ns: int | None
    now_ns: int
    world_size: int
    steps: int
    """Steps done by the slowest rank, over all of the run."""
    total_steps: int | None
    """How many there will be, where the trainer or an option of the command says it."""
    steps_per_s: float
    samples_per_s: float
    tokens_per_s: float
    step_time_p50_ms: float
    step_time_p95_ms: float
    phases: tuple[PhaseStats, ...]
    ranks: tuple[RankSummary, ...]
    gpus: tuple[GpuSummary, ...]
    hosts: tuple[HostSummary, ...]
    context: dict[str, Any]
    unseen: tuple[str, ...] = ()
    """Processes that seem to train and that the agent is not in: which, and why."""
    ending: Ending = Ending("running", "running")
    wait_in_backward_ms: float = float("nan")
    """Part of backward spent waiting for other ranks, mean of ranks; NaN: no timer tells."""
    silent_s: float = 0.0
    """Since any rank's newest step, while the run goes on and steps take less; else 0."""
    doing: str = ""
    """What the run does in that silence: ``evaluating``; empty: nothing that is known."""
    sampled: Sampled | None = None
    """None where all steps were measured."""
    own_cost: OwnCost | None = None
    """None while it is not known."""
    steps_left_out: int = 0
    """First steps of each process that means, quantiles and an ended run's rates leave out."""
    padded_share: float = float("nan")
    """Of the tokens, those that are padding by the attention mask; NaN: not known."""

    @property
    def of_padding(self) -> str:
        """`` (41 % padding)``, for the unit of a rate of tokens; empty where it is next to none."""
        share = round(100 * self.padded_share) if self.padded_share > 0 else 0
        return f" ({share} % padding)" if share else ""

    @property
    def averaged_over(self) -> str:
        """Of which steps the means are: ``past the first 10 steps``."""
        if not self.steps_left_out:
            return "of all steps"
        if self.steps_left_out == 1:
            return "past the first step"
        return f"past the first {self.steps_left_out} steps"

    @property
    def duration_s(self) -> float:
        """From the command's start to its end or now; 0: the host's clock was set back."""
        return max(0, (self.ended_ns or self.now_ns) - self.started_ns) / 1e9

    @property
    def stands(self) -> bool:
        """Whether no step comes and nothing is known that the run does instead."""
        return self.silent_s > 0 and not self.doing

    @property
    def gpus_added(self) -> bool:
        """Whether figures of devices were added to the record, not measured."""
        return any(gpu.added for gpu in self.gpus)


class Verdict(NamedTuple):
    """The one line on top: is it healthy, and if not, what first."""

    health: Health
    headline: str
