"""Results for screens, reports and exports. Plain frozen data, units in the names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from gputop_analysis.proof import Input as Input
from gputop_analysis.proof import Proof

if TYPE_CHECKING:
    from gputop_analysis.findings.option import Option

Severity = Literal["critical", "high", "medium", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "high", "medium", "info")


class Since(NamedTuple):
    """Where a finding is about the newer steps alone: the first of them, and how long they take."""

    step: int
    step_ms: float


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what, where, how sure, what it costs and what to do."""

    id: str
    """Catalogue id, ``IN01``."""
    name: str
    """Short name, ``input-bound``."""
    severity: Severity
    title: str
    """One line, at most about 70 characters, with the figure that matters."""
    evidence: str
    """The numbers behind it, with units."""
    fix: str
    """What to do, as the user would type it."""
    rank: int | None = None
    gpu: int | None = None
    host: str | None = None
    site: str | None = None
    """``file.py:118 function`` where it is known."""
    confidence: float = 1.0
    """0 to 1."""
    recoverable_ms_per_step: float | None = None
    """Wall time per step that the fix would win back; None where none can be (NaN, crash)."""
    since: Since | None = None
    """The steps that it would win it back in; None: in all."""
    interval_ms_per_step: tuple[float, float] | None = None
    """95 % interval of the same."""
    recoverable_hours: float | None = None
    """Over the rest of the run; None while its length is not known."""
    recoverable_usd: float | None = None
    """What those hours cost at the rent of the run's GPUs; None where a price is not known."""
    absorbed: tuple[str, ...] = ()
    """Ids of the findings that this one explains."""
    absorbed_by: str | None = None
    """Id of the finding that explains this one, whose time this one's is a part of."""
    proof: Proof | None = None
    options: tuple[Option, ...] = ()
    """The ways to mend it in ``fix``, without those that cannot help in this run."""

    @property
    def key(self) -> tuple[str, int | None, int | None, str | None]:
        """What makes it the same finding at the next look."""
        return self.id, self.rank, self.gpu, self.host


@dataclass(frozen=True, slots=True)
class PhaseStats:
    """One phase over the window's steps."""

    name: str
    mean_ms: float
    p50_ms: float
    p95_ms: float
    share: float
    """Of the wall time, 0 to 1."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank over the window."""

    rank: int
    host: str
    steps: int
    step_time_p50_ms: float
    step_time_p95_ms: float
    step_time_mean_ms: float
    phases_mean_ms: dict[str, float]
    wait_mean_ms: float
    """Waiting for other ranks per step (``waits.mean_wait_ms``); NaN where not measured."""
    peak_allocated_gib: float
    peak_reserved_gib: float
    peak_rss_gib: float
    allocated_gib: float
    reserved_gib: float
    rss_gib: float
    dropped_records: int
    device: str = ""
    loss: float = float("nan")
    grad_norm: float = float("nan")
    lr: float = float("nan")
    last_step_ns: int = 0
    alive: bool = True
    not_finite: str = ""
    """``NaN`` or ``inf`` where the newest loss is that; empty: a number, or not known."""


@dataclass(frozen=True, slots=True)
class GpuSummary:
    """One device over the window; NaN where the driver does not tell."""

    index: int
    name: str
    host: str
    memory_total_gib: float
    memory_used_gib: float
    peak_used_gib: float
    util_mean_pct: float
    util_pct: float
    power_mean_w: float
    power_w: float
    power_limit_w: float
    temperature_c: float
    sm_clock_mhz: float
    sm_clock_max_mhz: float
    ours: bool = True
    added: bool = False
    """Not measured: added to a recording, for show."""


@dataclass(frozen=True, slots=True)
class HostSummary:
    """One host now."""

    host: str
    cpu_pct: float
    cpu_count: int
    memory_used_gib: float
    memory_total_gib: float
    tree_rss_gib: float
    run_wait_share: float
    """Share of wall time that the training threads waited for a core; NaN: not known."""
    disk_read_mb_s: float
    disk_write_mb_s: float


BottleneckKind = Literal[
    "input",
    "host",
    "compute",
    "comm",
    "straggler",
    "memory",
    "throttle",
    "numerics",
    "hang",
    "crash",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What a run is limited by, and the one thing to do first."""

    kind: BottleneckKind
    confidence: float
    """0 to 1: the finding's own, else how often this kind leads in resampled blocks."""
    why: str
    """One sentence with the figures."""
    do_first: str | None = None
    """The fix as the user would type it; None where nothing is worth a change."""
    finding: Finding | None = None
    """The finding that the judgement rests on."""
