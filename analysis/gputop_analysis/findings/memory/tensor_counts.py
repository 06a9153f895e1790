"""What the guest's counts of live tensors say of memory that grows: how many more there are, and
what keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gputop_analysis.findings.told import told
from gputop_analysis.model import Input
from gputop_analysis.view import RunView

MIN_TENSORS, MIN_TENSORS_SHARE, MIN_TENSORS_PER_STEP = 20, 0.2, 0.02
"""For a leak, so many more tensors than at the first count, and so many more each step."""
ANONYMOUS = 0.3
"""Part of a growth with no file behind it: a mapped data set's pages can be dropped."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Tensors that are alive, counted at two times by the guest."""

    first: int
    last: int
    graphs: int
    """How many more of them hold a graph than before."""
    steps: int
    """Between the two counts."""

    @property
    def more(self) -> int:
        """So many came and stayed."""
        return self.last - self.first


def tensors_kept(view: RunView, rank: int) -> Kept | None:
    """Tensors that came and stayed; None where none did, or where they were not counted twice."""
    counts = told(view, "tensors").get(rank, [])
    if len(counts) < 2:
        return None
    first, last = counts[0], counts[-1]
    kept = Kept(
        first["tensors"],
        last["tensors"],
        last["with_graph"] - first["with_graph"],
        last["step"] - first["step"],
    )
    enough = kept.more >= max(
        MIN_TENSORS, MIN_TENSORS_SHARE * kept.first, MIN_TENSORS_PER_STEP * kept.steps
    )
    return kept if enough else None


HOLDERS = {"kept_in": "kept_site", "grown_in": "grown_site", "chain_kept_as": "chain_site"}
"""Fields with the name of what keeps the memory, and with the line that fills it."""


def last_count(view: RunView, rank: int) -> Mapping[str, Any]:
    """The newest count of the tensors that are alive, of another rank of the same script where that
    alone has found what holds them; empty where none was made.
    """
    counts = told(view, "tensors")
    own_count = next(reversed(counts.get(rank, [])), {})
    other_counts = [events[-1] for other, events in counts.items() if other != rank and events]
    finders = (count for count in (own_count, *other_counts) if any(map(count.get, HOLDERS)))
    return own_count if own_count.get("gc_off") else next(finders, own_count)


def kept_in(view: RunView, rank: int) -> str:
    """``; most of them are in history, filled at train.py:88``; empty where that is not known."""
    count, site = last_count(view, rank), filled_at(view, rank)
    at = f", filled at {site}" if site else ""
    if waits_for_collector(count):
        off_at = f" at {count['gc_off_at']}" if count.get("gc_off_at") else ""
        return f"; Python's garbage collector is switched off{off_at}"
    if count.get("kept_in"):
        return f"; most of those looked at are in {count['kept_in']}{at}"
    if count.get("grown_in"):
        return f"; {count['grown_in']} gets longer by as much{at}"
    if count.get("chain_kept_as"):
        made_at = f" at {site}" if site else ""
        return f"; {count['chain_kept_as']} is made from itself{made_at} and keeps all its graphs"
    return ""


def filled_at(view: RunView, rank: int) -> str | None:
    """The line that fills what keeps the memory."""
    count = last_count(view, rank)
    if waits_for_collector(count):
        return count.get("gc_off_at") or None
    return next(filter(None, map(count.get, HOLDERS.values())), None)


def waits_for_collector(count: Mapping[str, Any]) -> bool:
    """Whether what grows may be objects that refer to each other, which nobody gives back: the
    garbage collector is off, and no container was found.
    """
    return bool(count.get("gc_off")) and not (count.get("kept_in") or count.get("grown_in"))


def tensors_told(kept: Kept | None) -> str:
    if kept is None:
        return ""
    if kept.graphs > 0:
        graphs = f", {kept.graphs:,} of the new ones with a graph"
    else:
        graphs = ""
    return (
        f"; {kept.last:,} tensors are alive, {kept.first:,} were {kept.steps:,} steps "
        f"before{graphs}"
    )


def tensor_inputs(kept: Kept | None, rank: int) -> tuple[Input, ...]:
    if kept is None:
        return ()
    source = f"tensors events, rank {rank}"
    return (
        Input("tensors alive, first count", kept.first, "", source),
        Input("tensors alive, last count", kept.last, "", source),
        Input("more with a graph", kept.graphs, "", source),
    )


def on_gpu(view: RunView, rank: int) -> bool:
    """Whether memory at the steps' ends is a GPU's, and the counts' memory with it."""
    return bool((view.per_rank[rank].rows["allocated_bytes"][-1:] > 0).any())


def from_files(view: RunView, rank: int) -> bool:
    """Whether the growth is mostly file pages, as of a mapped data set; False: not counted."""
    counts = [
        event
        for event in told(view, "tensors").get(rank, [])
        if event.get("anonymous_bytes", -1) >= 0
    ]
    if len(counts) < 2 or on_gpu(view, rank):
        return False
    grown = counts[-1]["memory_bytes"] - counts[0]["memory_bytes"]
    return counts[-1]["anonymous_bytes"] - counts[0]["anonymous_bytes"] < ANONYMOUS * grown
