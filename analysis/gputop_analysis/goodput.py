"""Goodput of the session: how much of the time since the command's start went into steps that
count.

One rank stands for the run, the first one that stepped: ranks of a synchronous run start, hang and
restart together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

from gputop_analysis.findings.shares import run_queue
from gputop_analysis.series import Array
from gputop_analysis.split import split_of
from gputop_analysis.summary import run_state
from gputop_analysis.text import counted
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord

Span = tuple[int, int]
_NEVER = 1 << 62
"""In the far future, ns since the epoch."""

PARTS: dict[str, str] = {
    "productive": "steps whose work was kept",
    "core_wait": "of those steps, the time in which the training thread was ready and "
    "other threads had the cores",
    "init": "from the command's start to the first step: imports, model, data, process groups",
    "first_step": "the first step of each attempt: lazy set-up, kernels chosen, caches filled",
    "restart": "from the last step of an attempt to the first one of the next",
    "lost_work": "steps after the last checkpoint of an attempt that another one "
    "follows, which does them again; all of its steps where no checkpoint was seen",
    "hang": "no step of any rank for longer than the hang limit, counted from the last step",
    "shutdown": "from the last step to the end of the command, or to now",
}
"""What the parts count. They add up to the session's time exactly."""
NAMES = {
    "core_wait": "waiting for a core",
    "init": "until the first step",
    "first_step": "first step",
    "restart": "restarting",
    "lost_work": "lost work",
    "hang": "long without a step",
    "shutdown": "after the last step",
}
TELLING = 0.05
"""Of the session, from which a part is named beside the goodput."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """The session's time by part."""

    session_ns: int
    parts_ns: dict[str, int]
    attempts: int
    rank: int
    source: str = (
        "steps.t_end_ns, wall_ns; events rank_start, checkpoint, hang_suspected, "
        "hang_over, resumed; host.json"
    )

    @property
    def goodput(self) -> float:
        """Productive time / session time, 0 to 1."""
        if self.session_ns:
            return self.parts_ns["productive"] / self.session_ns
        return 0.0

    def told(self) -> str:
        """``goodput of the session 71.2 % (restarting 20.4 %, lost work 5.0 %; 1 restart)``."""
        shares = {
            NAMES[name]: ns / self.session_ns for name, ns in self.parts_ns.items() if name in NAMES
        }
        large = sorted(
            (name for name, share in shares.items() if share >= TELLING),
            key=lambda name: -shares[name],
        )
        shares_text = ", ".join(f"{name} {100 * shares[name]:.1f} %" for name in large)
        restarts = ""
        if self.restarts:
            restarts = counted(self.restarts, "restart")
        beside = "; ".join(filter(None, (shares_text, restarts)))
        return f"goodput of the session {100 * self.goodput:.1f} %" + (
            f" ({beside})" if beside else ""
        )

    @property
    def restarts(self) -> int:
        """Attempts after the first."""
        return self.attempts - 1


def goodput(record: RunRecord, now_ns: int | None = None) -> Goodput | None:
    """The session so far; None before any rank has stepped, or if a clock was set back."""
    ranks = record.ranks()
    if not ranks:
        return None
    rank, rows = ranks[0], record.steps(ranks[0])
    now_ns = time.time_ns() if now_ns is None else now_ns
    run = RunningTime(record)
    attempts = [tuple(map(run.at, _attempt(part))) for part in _attempts(record, rank, rows)]
    starts = [run.at(h.state.started_ns) for h in record.hosts.values() if h.state.started_ns]
    started = min([*starts, attempts[0][0]])
    state, _, ended = run_state(record, now_ns)
    last = max(attempts[-1][2], run.at(ended or 0 if state in ("ended", "lost") else now_ns))
    hangs = [(run.at(a), run.at(b)) for a, b in _hangs(record)]
    hangs = [(a, min(b, last)) for a, b in hangs]
    parts = dict.fromkeys(PARTS, 0)
    parts["init"] = attempts[0][0] - started
    for number, (began, first_end, end) in enumerate(attempts):
        parts["first_step"] += first_end - began
        hung = _within(hangs, (first_end, end))
        resumed = (end, end)
        if number + 1 < len(attempts):
            parts["restart"] += attempts[number + 1][0] - end
            resumed = (max(first_end, _last_checkpoint(record, run, (began, end))), end)
        lost = resumed[1] - resumed[0] - _length(_within(hung, resumed))
        parts["hang"] += _length(hung)
        parts["lost_work"] += lost
        parts["productive"] += end - first_end - _length(hung) - lost
    tail = (attempts[-1][2], last)
    parts["hang"] += _length(_within(hangs, tail))
    parts["shutdown"] = last - attempts[-1][2] - _length(_within(hangs, tail))
    parts["core_wait"] = round(parts["productive"] * _queued_share(record, rank))
    parts["productive"] -= parts["core_wait"]
    if min(parts.values()) < 0 or last <= started:
        return None
    return Goodput(last - started, parts, len(attempts), rank)


def _queued_share(record: RunRecord, rank: int) -> float:
    """Part of the steps spent waiting for a core, as in the budget; on a host's clock only."""
    view = RunView(record, ranks=[rank])
    if split_of(view, rank).clock == "host":
        queue = run_queue(view, rank)
    else:
        queue = None
    return queue.value if queue is not None else 0.0


def _attempts(record: RunRecord, rank: int, rows: Array) -> list[Array]:
    """The records of each attempt that made a step."""
    starts = record.rank_starts(rank)
    edges = sorted({0, len(rows)} | {start for start in starts if 0 < start < len(rows)})
    return [rows[begin:end] for begin, end in pairwise(edges)]


def _attempt(rows: Array) -> tuple[int, int, int]:
    """Begin, end of the first record (which is the first step alone) and end."""
    first = rows[0]
    return (
        int(first["t_end_ns"] - first["wall_ns"]),
        int(first["t_end_ns"]),
        int(rows[-1]["t_end_ns"]),
    )


class RunningTime:
    """A clock that stood while the run was stopped (Ctrl-Z), to judge the rest by."""

    def __init__(self, record: RunRecord):
        self._stops: list[Span] = []
        for event in record.events("resumed"):
            end = int(event.get("t_ns", 0))
            self._stops.append((end - int(1e6 * float(event.get("stopped_ms", 0))), end))

    def at(self, t_ns: int) -> int:
        """Time since the epoch less what had been stopped by then."""
        return t_ns - sum(min(t_ns, end) - begin for begin, end in self._stops if begin < t_ns)


def _last_checkpoint(record: RunRecord, run: RunningTime, span: Span) -> int:
    """End of the last checkpoint inside ``span``, of any rank; else the span's begin."""
    times = [run.at(int(e.get("t_ns", 0))) for e in record.events("checkpoint")]
    return max((t_ns for t_ns in times if span[0] <= t_ns <= span[1]), default=span[0])


def _hangs(record: RunRecord) -> list[Span]:
    """Disjoint spans without a step, in order."""
    spans: list[Span] = []
    began = None
    for event in sorted(
        record.events("hang_suspected", "hang_over"), key=lambda e: e.get("t_ns", 0)
    ):
        t_ns = int(event.get("t_ns", 0))
        if event["type"] == "hang_suspected" and began is None:
            began = t_ns - int(1e9 * float(event.get("silent_s", 0)))
        elif event["type"] == "hang_over" and began is not None:
            spans.append((began, t_ns))
            began = None
    if began is not None:
        spans.append((began, _NEVER))
    ends_before = [0, *(end for _, end in spans)]
    return [
        (max(start, before), end) for (start, end), before in zip(spans, ends_before, strict=False)
    ]


def _within(spans: list[Span], limits: Span) -> list[Span]:
    clipped = [(max(a, limits[0]), min(b, limits[1])) for a, b in spans]
    return [(a, b) for a, b in clipped if b > a]


def _length(spans: list[Span]) -> int:
    return sum(b - a for a, b in spans)
