"""Ranks that call different collectives at the same place in their sequence."""

from __future__ import annotations

from typing import Any

from gputop_analysis.findings.hang_advice import advice_on
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.hang_cause import MISMATCHES, Cause
from gputop_analysis.hang_facts import cause_of
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.standstill import training_frames
from gputop_analysis.user_line import user_line
from gputop_analysis.view import RunView

Entry = dict[str, Any]
Key = tuple[str, int]

_SAME_SIZE = ("all_reduce", "allreduce", "reduce_scatter", "all_gather", "allgather", "broadcast")
"""Operations whose input has the same size on every rank."""
_ADVICE = (
    "look at what differs between the ranks just there: a condition on the rank, an unequal "
    "number of batches, parameters that only some ranks use; TORCH_DISTRIBUTED_DEBUG=DETAIL "
    "raises at the call"
)


@finding(
    id="CR12",
    name="collective mismatch",
    family="ranks",
    cause="hang",
    trigger="the flight recorders of two ranks hold different operations or sizes under the "
    "same sequence number",
    fix="every rank must call the same collectives with the same sizes in the same order",
    explains=("HC01", "HC06", "HC09"),
    immediate=True,
    no_use="where ranks run different programs on purpose",
    reads="flight recorder: operation and size of the same sequence number on each rank",
    silent="no flight recorder entries of two ranks",
    traps="pipeline stages, which run different collectives",
    seen_on=CPU,
)
def collective_mismatch(view: RunView, spec: Spec) -> Finding | None:
    """Not a slow rank but a different program on it. Such runs stand still or die: others need not
    be looked at.
    """
    if next(view.record.events("hang_suspected", "exception"), None) is None:
        return None
    entries = {rank: entries_ for rank in view.ranks if (entries_ := _entries(view, rank))}
    first = _first_difference(entries)
    cause = cause_of(view)
    judged = cause is not None and cause.rank is not None and cause.kind in MISMATCHES
    if first is None:
        stands = any(True for _ in view.record.events("hang_suspected"))
        if cause and judged and not stands:
            return _of_one_side(view, spec, cause)
        return None
    group, number = first
    here = {rank: table[first] for rank, table in entries.items() if first in table}
    odd, site = _odd_one(here), None
    if cause is not None and judged:
        odd, site = cause.rank, cause.site
    entries_text = "; ".join(
        f"rank {rank}: {_said(entry)}" for rank, entry in sorted(here.items())[:4]
    )
    return spec.make(
        severity="critical",
        title=(
            cause.words
            if cause is not None and judged
            else f"ranks call different collectives: number {number}, {entries_text}"
        )[:140],
        evidence=f"collective {number} of group {group}: {entries_text}; all before it agree "
        f"({sum(key[0] == group for key in entries[next(iter(here))])} compared)",
        fix=advice_on(cause, {}) if cause is not None and judged else _ADVICE,
        rank=odd,
        site=site or _called_at(view, odd),
        confidence=0.9,
        proof=Proof(
            statistic="sequence numbers at which operation or size differ between ranks",
            value=1,
            threshold=0,
            unit="",
            formula="flight recorder entries are compared by group and sequence number, "
            "point-to-point calls left out",
            inputs=tuple(
                Input(f"rank {rank}", _said(e), "", "flight_recorder event")
                for rank, e in sorted(here.items())[:8]
            ),
        ),
    )


def _of_one_side(view: RunView, spec: Spec, cause: Cause) -> Finding:
    """A rank left its program, and the one that it met there died of it with its flight recorder."""
    return spec.make(
        severity="critical",
        title=cause.words[:140],
        evidence=f"{cause.words}; {cause.waiting}",
        fix=advice_on(cause, {}),
        rank=cause.rank,
        site=cause.site or _called_at(view, cause.rank),
        confidence=0.9,
        proof=Proof(
            statistic="calls of a rank that are not those its earlier steps foretell",
            value=1,
            threshold=0,
            unit="",
            formula="the flight recorders of the ranks that failed, up to the call that failed",
            inputs=(Input(f"rank {cause.rank}", cause.words[:80], "", "flight_recorder event"),),
        ),
    )


def _called_at(view: RunView, odd: int | None) -> str | None:
    """The line at which the odd rank called or died, else any; None where none was told."""
    places = {}
    for event in view.record.events("stack_dump", "exception"):
        rank = int(event.get("rank", -1))
        if event["type"] == "exception":
            line = event.get("site")
        else:
            line = user_line(training_frames(event))
        if line:
            places.setdefault(rank, str(line))
    if odd in places:
        return places.get(odd)
    return next(iter(places.values()), None)


def _entries(view: RunView, rank: int) -> dict[Key, Entry]:
    """Collectives of one rank by group and number; empty without its flight recorder."""
    return {
        (str(entry.get("group")), int(entry.get("seq", -1))): entry
        for event in view.record.events("flight_recorder")
        if event.get("rank") == rank
        for entry in event.get("entries", ())
        if not entry.get("p2p") and int(entry.get("seq", -1)) >= 0
    }


def _first_difference(entries: dict[int, dict[Key, Entry]]) -> Key | None:
    """The earliest number of any group at which two ranks disagree."""
    if len(entries) < 2:
        return None
    shared = {key for table in entries.values() for key in table}
    wrong = [
        key for key in shared if _differ([table[key] for table in entries.values() if key in table])
    ]
    return min(wrong, key=lambda key: key[1]) if wrong else None


def _differ(entries: list[Entry]) -> bool:
    operations = {_operation(entry) for entry in entries}
    if len(operations) > 1:
        return True
    if operations:
        same_size = any(name in next(iter(operations)) for name in _SAME_SIZE)
    else:
        same_size = False
    return same_size and len({int(entry.get("bytes") or 0) for entry in entries}) > 1


def _operation(entry: Entry) -> str:
    """``gloo:all_reduce`` and ``nccl:all_reduce`` alike; coalesced calls keep their name."""
    return str(entry.get("op") or "").rpartition(":")[2].lower()


def _odd_one(here: dict[int, Entry]) -> int | None:
    """The rank that differs from all others; None for two ranks, where either may be wrong."""
    operations = {rank: (_operation(e), e.get("bytes")) for rank, e in here.items()}
    values = list(operations.values())
    odd = [rank for rank, value in operations.items() if values.count(value) == 1]
    return odd[0] if len(odd) == 1 and len(operations) > 2 else None


def _said(entry: Entry) -> str:
    return f"{_operation(entry) or 'unnamed'} of {int(entry.get('bytes') or 0):,} bytes"
