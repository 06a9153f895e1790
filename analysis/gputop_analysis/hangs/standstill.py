"""A run that stands still: which rank holds it up, and what that rank is doing there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gputop_analysis.hangs.cause import BUSY_SHARE, MISMATCHES
from gputop_analysis.hangs.episodes import newest_episode
from gputop_analysis.hangs.facts import BEFORE_NS, ENOUGH_NS, cause_of, wanted_share
from gputop_analysis.hangs.standing import Cause
from gputop_analysis.view import RunView, once_per_view
from gputop_probes.record.layout import PROCESS_RANK, PROCESS_WORKER

Array = npt.NDArray[Any]
Event = dict[str, Any]

Kind = Literal["collective", "loader", "storage", "busy"]

IDLE_SHARE = 0.02
"""Of a core: a process that uses less does nothing."""
BUSY_GPU_PCT = 95.0
_KIND_OF_CAUSE: dict[str, Kind] = {
    "endless loop": "busy",
    "storage": "storage",
    **dict.fromkeys(("stopped", "ended early", "died", "raised", *MISMATCHES), "collective"),
}
"""``Cause.kind`` where it says more than phase and load."""


@dataclass(frozen=True)
class Standstill:
    """The newest silence that the recorder suspects to be a hang."""

    suspected: Event
    over: bool
    """Steps came again."""
    dumps: dict[int, Event]
    """Stack dump of each rank, the first after the suspicion."""
    rank: int | None
    """The rank that holds the others up; None where that is unclear."""
    kind: Kind
    cpu_share: float
    """Of a core, used or waited for by the rank's process while it was silent; NaN: not sampled."""
    gpu_util_pct: float
    """Mean of the run's devices meanwhile; NaN: none, or not sampled."""
    workers: Array
    """DataLoader workers of the rank: newest sample of each (``layout.PROCESS_FIELDS``)."""
    workers_cpu_share: float
    """Of a core, used by the busiest worker meanwhile; NaN: no workers."""
    thread: Event
    """The training thread in ``/proc``: ``{pid, state, wchan, path, mount}``; empty: not told."""
    cause: Cause | None = None
    """Of several ranks, why they stand still."""
    departed: Event | None = None
    """How ``rank`` left before the others stood still (``rank_lost`` or ``goodbye``); None: it is
    still there.
    """

    @property
    def dump(self) -> Event:
        """Stack dump of the rank that holds the others up."""
        if self.rank is not None:
            return self.dumps.get(self.rank, {})
        return {}

    @property
    def phase(self) -> str:
        """Phase in which that rank stands."""
        return str(self.dump.get("phase") or "")

    @property
    def silent_s(self) -> float:
        """How long there was no step when the suspicion arose."""
        return float(self.suspected.get("silent_s") or 0)

    @property
    def limit_s(self) -> float:
        """Silence from which a hang is suspected."""
        return float(self.suspected.get("limit_s") or 0)


@once_per_view
def standstill(view: RunView) -> Standstill | None:
    """The newest suspected hang of a run as it was judged before anybody stopped it, or None."""
    episode = newest_episode(view.record)
    if episode is None:
        return None
    suspected, until = episode.suspected, int(episode.suspected["t_ns"])
    dumps = _dumps_between(view, until - BEFORE_NS, episode.stopped_ns)
    departed = _peer(view, episode.departed)
    cause = cause_of(view)
    rank = cause.rank if cause is not None else None
    if rank is None:
        if departed is None:
            rank = _holding_up(dumps, suspected)
        else:
            rank = int(departed["rank"])
    since = until - int(1e9 * float(suspected.get("silent_s") or 0))
    workers, workers_cpu = _workers(view, rank, since, until)
    thread = next((t for t in suspected.get("threads") or () if t.get("rank") == rank), {})
    cpu, gpu = _cpu_share(view, rank, since, until), _gpu_util(view, since, until)
    dump = dumps.get(rank, {}) if rank is not None else {}
    standstill_kind = _kind(
        dump, thread, cpu, gpu, any(is_waiting(other) for other in dumps.values())
    )
    if standstill_kind == "loader" and workers_cpu > IDLE_SHARE:  # they are at work, if slowly
        standstill_kind = "collective"
    if departed is not None:
        standstill_kind = "collective"
    else:
        standstill_kind = standstill_kind
    if cause is not None and cause.rank is not None:
        standstill_kind = _KIND_OF_CAUSE.get(cause.kind, standstill_kind)
    return Standstill(
        suspected=suspected,
        over=episode.over,
        dumps=dumps,
        rank=rank,
        kind=standstill_kind,
        cpu_share=cpu,
        gpu_util_pct=gpu,
        workers=workers,
        workers_cpu_share=workers_cpu,
        thread=thread,
        cause=cause,
        departed=departed,
    )


def is_waiting(dump: Event) -> bool:
    """Whether a rank stands in a collective that is not done."""
    collective = dump.get("collective")
    return bool(collective) and collective.get("state") != "completed"


def _kind(
    dump: Event, thread: Event, cpu_share: float, gpu_util_pct: float, somebody_waits: bool
) -> Kind:
    """A rank that waits in a collective may spin there, and its device too: that is not busy."""
    phase = str(dump.get("phase") or "")
    if thread.get("state") == "D" and phase in ("data", "checkpoint", "other", "eval"):
        return "storage"
    if (cpu_share > BUSY_SHARE and not is_waiting(dump)) or (
        gpu_util_pct > BUSY_GPU_PCT and not somebody_waits
    ):
        return "busy"
    return "loader" if phase == "data" else "collective"


def _peer(view: RunView, departed: Event | None) -> Event | None:
    """The departure, if it is one of a rank that others may wait for."""
    rank = None if departed is None else departed.get("rank")
    together = rank is not None and int((view.record.hello(rank) or {}).get("world_size") or 0) > 1
    return departed if together else None


def _dumps_between(view: RunView, from_ns: int, until_ns: int) -> dict[int, Event]:
    """First stack dump of each rank in a span of time."""
    dumps: dict[int, Event] = {}
    for event in view.record.events("stack_dump"):
        if from_ns <= event.get("t_ns", 0) <= until_ns and event.get("rank") is not None:
            dumps.setdefault(int(event["rank"]), event)
    return dumps


def _holding_up(dumps: dict[int, Event], suspected: Event) -> int | None:
    """The rank outside a collective while others are in it, or that started the fewest; or None."""
    outside = [rank for rank, dump in dumps.items() if not is_waiting(dump)]
    if len(outside) == 1:
        return outside[0]
    sequence = {
        rank: int((dump.get("collective") or {}).get("seq", -1)) for rank, dump in dumps.items()
    }
    behind = [rank for rank in sequence if sequence[rank] == min(sequence.values())]
    if len(behind) == 1 and len(dumps) > 1:
        return behind[0]
    silent = suspected.get("ranks") or []
    return int(silent[0]) if len(silent) == 1 else None


def _samples(view: RunView, kind: int, rank: int | None, since: int, until: int) -> Array:
    """Process samples of one kind and rank in a span of time."""
    if rank is not None:
        host = view.record.hosts.get(view.host_of(rank))
    else:
        host = None
    if host is None:
        return np.empty(0)
    rows = np.asarray(host.process.rows[-20_000:])
    inside = (rows["t_ns"] >= since + BEFORE_NS) & (rows["t_ns"] <= until + BEFORE_NS)
    return rows[inside & (rows["kind"] == kind) & (rows["rank"] == rank)]


def _cpu_share(view: RunView, rank: int | None, since: int, until: int) -> float:
    rows = _samples(view, PROCESS_RANK, rank, since, until)
    return wanted_share(rows) if _long_enough(rows) else float("nan")


def _long_enough(rows: Array) -> bool:
    return len(rows) >= 2 and rows["t_ns"][-1] - rows["t_ns"][0] >= ENOUGH_NS


def _used_share(rows: Array) -> float:
    """Of a core, used by a process from first to last sample; NaN where they are too close."""
    if not _long_enough(rows):
        return float("nan")
    used_ns = rows["cpu_ns_total"][-1] - rows["cpu_ns_total"][0]
    return float(used_ns) / float(rows["t_ns"][-1] - rows["t_ns"][0])


def _workers(view: RunView, rank: int | None, since: int, until: int) -> tuple[Array, float]:
    rows = _samples(view, PROCESS_WORKER, rank, since, until)
    if len(rows) == 0:
        return rows, float("nan")
    rows_by_pid = [rows[rows["pid"] == pid] for pid in np.unique(rows["pid"])]
    shares = [share for rows_of_pid in rows_by_pid if (share := _used_share(rows_of_pid)) == share]
    return np.array([rows_of_pid[-1] for rows_of_pid in rows_by_pid], rows.dtype), max(
        shares, default=float("nan")
    )


def _gpu_util(view: RunView, since: int, until: int) -> float:
    used: list[float] = []
    for host in view.record.hosts.values():
        other_gpus = [info.index for info in host.state.gpus if not info.ours]
        rows = np.asarray(host.gpu.rows[-20_000:])
        rows = rows[(rows["t_ns"] >= since + BEFORE_NS) & (rows["t_ns"] <= until + BEFORE_NS)]
        used += rows["util_pct"][
            ~np.isin(rows["index"], other_gpus) & np.isfinite(rows["util_pct"])
        ].tolist()
    return float(np.mean(used)) if len(used) >= 4 else float("nan")
