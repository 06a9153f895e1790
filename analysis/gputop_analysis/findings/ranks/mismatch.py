"""Ranks that call different collectives at the same place in their sequence."""

from __future__ import annotations

from typing import Any

from gputop_analysis.findings.advice import Fix
from gputop_analysis.findings.crash.hang_advice import advice_on
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.hangs.cause import MISMATCHES
from gputop_analysis.hangs.facts import cause_of
from gputop_analysis.hangs.standing import Cause
from gputop_analysis.hangs.user_line import dumped_line
from gputop_analysis.model import Finding, Input, Proof
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
    entries = _entries_of_ranks(view)
    place = _first_difference(entries)
    cause, of_standstill = _cause_of_a_mismatch(view), cause_of(view)
    if of_standstill is not None and of_standstill.kind == "ended early":
        return None  # what it calls after its loop differs, and is not what is wrong
    if place is None:
        stands_still = next(view.record.events("hang_suspected"), None) is not None
        if of_standstill is None or of_standstill.kind not in MISMATCHES or stands_still:
            return None
        return _of_one_side(view, spec, of_standstill)
    group, number = place
    here = {rank: table[place] for rank, table in sorted(entries.items()) if place in table}
    calls = "; ".join(f"rank {rank}: {_said(entry)}" for rank, entry in list(here.items())[:4])
    compared = sum(key[0] == group for key in entries[min(here)])
    title = f"ranks call different collectives: number {number}, {calls}"
    fix: Fix = _ADVICE
    odd, site = _odd_one(here), None
    if cause is not None:
        title, fix = cause.words, advice_on(cause, {})
        odd, site = cause.rank, cause.site
    return spec.make(
        severity="critical",
        title=title[:140],
        evidence=f"collective {number} of group {group}: {calls}; all before it agree "
        f"({compared} compared)",
        fix=fix,
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
                Input(f"rank {rank}", _said(entry), "", "flight_recorder event")
                for rank, entry in list(here.items())[:8]
            ),
        ),
    )


def _cause_of_a_mismatch(view: RunView) -> Cause | None:
    """What holds up the run, where that is one rank that called something else."""
    cause = cause_of(view)
    if cause is None or cause.rank is None or cause.kind not in MISMATCHES:
        return None
    return cause


def _of_one_side(view: RunView, spec: Spec, cause: Cause) -> Finding:
    """A rank left its program, and the one that it met died of it with its flight recorder."""
    who = "ranks" if cause.rank is None else f"rank {cause.rank}"
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
            inputs=(Input(who, cause.words[:80], "", "flight_recorder event"),),
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
            line = dumped_line(event)
        if line:
            places.setdefault(rank, str(line))
    if odd in places:
        return places.get(odd)
    return next(iter(places.values()), None)


def _entries_of_ranks(view: RunView) -> dict[int, dict[Key, Entry]]:
    """Collectives by group and number, of each rank with a flight recorder."""
    tables: dict[int, dict[Key, Entry]] = {}
    for event in view.record.events("flight_recorder"):
        for entry in event.get("entries", ()):
            number = int(entry.get("seq", -1))
            if not entry.get("p2p") and number >= 0:
                table = tables.setdefault(int(event.get("rank", -1)), {})
                table[str(entry.get("group")), number] = entry
    return {rank: tables[rank] for rank in view.ranks if rank in tables}


def _first_difference(entries: dict[int, dict[Key, Entry]]) -> Key | None:
    """The earliest number of any group at which two ranks disagree."""
    if len(entries) < 2:
        return None
    shared = {key for table in entries.values() for key in table}
    wrong = [key for key in shared if _differ(_entries_of(key, entries))]
    return min(wrong, key=lambda key: key[1]) if wrong else None


def _entries_of(key: Key, entries: dict[int, dict[Key, Entry]]) -> list[Entry]:
    """What ranks called under that number of that group."""
    return [table[key] for table in entries.values() if key in table]


def _differ(entries: list[Entry]) -> bool:
    operations = {_operation(entry) for entry in entries}
    if len(operations) > 1:
        return True
    operation = next(iter(operations), "")
    if not any(name in operation for name in _SAME_SIZE):
        return False
    return len({int(entry.get("bytes") or 0) for entry in entries}) > 1


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
