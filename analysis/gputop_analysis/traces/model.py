"""A trace analysed. Times in milliseconds; parts of a window add up to the nanosecond."""

from __future__ import annotations

from dataclasses import dataclass, field

COMPUTE, COMM, COPY = "compute", "communication", "copy"
KERNEL_WAIT, HOST_WAIT, IDLE, HOST = "kernel_wait", "host_wait", "idle", "host"

MEANING = {
    COMPUTE: "a kernel, or on the CPU an operator, computes",
    COMM: "only communication runs: the exposed part of it",
    COPY: "only copies run",
    KERNEL_WAIT: (
        "the device is idle though work was launched: it waits for other streams or for itself"
    ),
    HOST_WAIT: "the device is idle and nothing was launched: it waits for the host",
    IDLE: "the device is idle; the trace does not tell when work was launched",
    HOST: "no operator and no collective runs: Python, data loading, waiting",
}


@dataclass(frozen=True, slots=True)
class Collective:
    """All calls of one collective under one name."""

    name: str
    """Name as in the trace: the kernel's or ``gloo:all_reduce``."""
    operation: str
    """``all_reduce``."""
    count: int
    total_ms: float
    exposed_ms: float
    """The part during which nothing computed on the same device or thread."""
    bytes: int | None
    """Sum over the calls; None where the trace does not tell for all of them."""


@dataclass(frozen=True, slots=True)
class Hot:
    """A kernel or operator by the time that it took itself."""

    name: str
    count: int
    total_ms: float
    share: float
    """Share of the lane's busy time, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Step:
    """One training step on one lane."""

    name: str
    """The number in ``ProfilerStep#7``."""
    wall_ms: float
    parts_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Lane:
    """A device, or where the trace has none a training thread."""

    name: str
    """``GPU 0 NVIDIA H200`` or ``thread 28851 (python)``."""
    kind: str
    """``device`` or ``thread``."""
    wall_ms: float
    parts_ms: dict[str, float]
    """Exclusive: the first of compute, communication, copy that runs, else why none does."""
    communication_ms: float
    """Any communication, exposed or not."""
    collectives: tuple[Collective, ...]
    """The most exposed first."""
    hot: tuple[Hot, ...]
    """The most expensive first."""
    steps: tuple[Step, ...]

    @property
    def overlapped(self) -> float | None:
        """Share of the communication that is hidden behind compute; None without communication."""
        if self.communication_ms:
            return 1 - self.parts_ms[COMM] / self.communication_ms
        return None


@dataclass(frozen=True, slots=True)
class TracedCall:
    """Calls of the device runtime in the host's threads, by name."""

    name: str
    count: int
    total_ms: float


@dataclass(frozen=True, slots=True)
class TraceReport:
    """Result of ``analyse_trace``."""

    path: str
    events: int
    torn: str | None
    """Why the file ended early; None for a whole one."""
    lanes: tuple[Lane, ...]
    operators: tuple[Hot, ...]
    """Host operators by self time, over all threads; a thread lane has its own in ``hot``."""
    calls: tuple[TracedCall, ...]
    """Runtime calls that wait for the device (``cudaStreamSynchronize``) by time."""
    attention: dict[str, int] = field(default_factory=dict)
    """``scaled_dot_product_attention`` calls by kind: math, flash, memory-efficient, cuDNN."""
    rank: int | None = None
    world_size: int | None = None

    @property
    def math_attention(self) -> bool:
        """Whether attention fell back to math, which keeps the whole score matrix (CE06)."""
        return self.attention.get("math", 0) > 0
