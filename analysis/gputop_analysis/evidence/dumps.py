"""Dumps of the flight recorder of torch 2.2 to 2.13, pickle or JSON: which rank never came to a
collective, and which one called another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gputop_analysis.evidence.model import Evidence
from gputop_analysis.hangs.call_order import Call
from gputop_analysis.hangs.cause import MISMATCHES, judge
from gputop_analysis.hangs.queued_calls import (
    CallDifference,
    each,
    first_difference,
    holding_up,
    is_queued,
)
from gputop_analysis.hangs.standing import UNNAMED, Group, RankStanding
from gputop_analysis.snapshots.load import unpacked
from gputop_analysis.snapshots.values import UnpickleError, plain_values
from gputop_analysis.text import rank_list, ranks_do

_RANK = re.compile(r"(\d{1,6})(?:\.\w+)*$")
_GROUPS_SHOWN = 12
_DEFAULT = "default_pg"
_ALL = "entries_of_all_groups"
"""Key under which a dump without groups tells how many entries it had."""


class Pending(NamedTuple):
    """A collective that has not ended."""

    group: str
    call: Call
    came: tuple[int, ...]
    """Ranks that called it."""
    absent: tuple[int, ...]
    """Members with a dump that never came to it."""


Calls = dict[int, tuple[Call, ...]]
"""Of each rank that wrote a dump, in order of time."""
Groups = dict[str, Group]


def dump_content(path: Path) -> dict[str, Any] | None:
    """The content of a dump, JSON or pickle; None where it is something else.

    In torch 2.2 a dump is the list of its entries. Each process numbers its groups itself and
    none tells their ranks, so that only the default group's entries can be compared.
    """
    data = unpacked(path)
    try:
        if data[:1] == b"{":
            content = json.loads(data)
        else:
            content = plain_values(data)
    except (ValueError, UnpickleError, RecursionError):
        return None
    if isinstance(content, list) and any(
        isinstance(entry, dict) and "profiling_name" in entry for entry in content
    ):
        return {
            "entries": [entry for entry in content if _is_of_default(entry)],
            _ALL: len(content),
        }
    if not isinstance(content, dict):
        return None
    if "pg_config" in content:  # a rank that called nothing writes no entries as JSON
        content.setdefault("entries", [])
    return content if isinstance(content.get("entries"), list) else None


def judge_dumps(dumps: dict[Path, dict[str, Any]]) -> Evidence:
    """Judge the dumps of one job."""
    evidence = Evidence("flight-recorder dumps", tuple(map(str, dumps)))
    calls: Calls = {}
    groups: Groups = {}
    for index, (path, content) in enumerate(dumps.items()):
        rank = _rank_of(path, index)
        config = _configured(content)
        calls[rank] = _calls(content["entries"], config)
        for name, group in config.items():
            before = groups.get(name, group)
            groups[name] = Group(group.description, before.ranks | group.ranks)
    lists = [content for content in dumps.values() if _ALL in content]
    if lists:
        groups.setdefault("0", Group(_DEFAULT, frozenset(calls)))
    if any(content[_ALL] > len(content["entries"]) for content in lists):
        evidence.unknown.append(
            "what other groups than the default one wait for: not in such dumps"
        )
    if is_queued(calls):
        _judge_queued(evidence, calls, groups)
    else:
        _judge_waiting(evidence, calls, groups)
    evidence.findings += _of_groups(calls, groups)
    _say_what_is_unknown(evidence, calls, groups)
    return evidence


def _judge_queued(evidence: Evidence, calls: Calls, groups: Groups) -> None:
    """Where a process goes on while its collectives wait: by how far each rank has come."""
    members = {name: group.ranks for name, group in groups.items()}
    difference = first_difference(calls)
    if difference is not None and difference.odd:
        if difference.by_size:
            evidence.cause = "other size"
        else:
            evidence.cause = "other operation"
        evidence.rank, evidence.ranks = difference.odd[0], difference.odd
        evidence.findings.append(_difference_words(difference, groups))
        return
    if difference is not None:
        evidence.cause = "different collectives"
        evidence.findings.append(_difference_words(difference, groups))
        return
    roots = holding_up(calls, members)
    if roots:
        _name_absent(evidence, tuple(roots))
        evidence.findings += [
            _root_words(rank, calls, awaiting, groups) for rank, awaiting in roots.items()
        ]
        return
    pending = _pending(calls, groups)
    if any(wait.absent for wait in pending):
        evidence.cause = "ranks wait for each other"
    elif any(_is_complete(wait, calls, groups) for wait in pending):
        evidence.cause = "a collective that all its ranks called has not ended"


def _is_complete(wait: Pending, calls: Calls, groups: Groups) -> bool:
    """Whether every member wrote a dump, and called it."""
    return wait.group in groups and groups[wait.group].ranks <= calls.keys() and not wait.absent


def _name_absent(evidence: Evidence, ranks: tuple[int, ...]) -> None:
    who = "a rank" if len(ranks) == 1 else "ranks"
    evidence.cause = f"{who} never came to a collective"
    evidence.rank, evidence.ranks = ranks[0], ranks


def _difference_words(difference: CallDifference, groups: Groups) -> str:
    """``at number 31 of the dp group, rank 2 calls broadcast and ranks 0, 1 call all_reduce``."""
    ranks_by_call: dict[str, list[int]] = {}
    for rank, call in difference.calls.items():
        size = f" of {call.shapes}" if difference.by_size else ""
        ranks_by_call.setdefault(f"{call.name}{size}{_at(call)}", []).append(rank)
    fewest_first = sorted(ranks_by_call.items(), key=lambda item: len(item[1]))
    sentences = [f"{ranks_do(ranks, 'call')} {words}" for words, ranks in fewest_first]
    first = next(iter(difference.calls.values()))
    return f"at number {first.number} of {_label(first.group, groups)}: {'; '.join(sentences)}"


def _root_words(rank: int, calls: Calls, awaiting: list[tuple[int, Call]], groups: Groups) -> str:
    waiting = {other for other, _ in awaiting}
    missed = min((call for _, call in awaiting), key=_began)
    words = (
        f"rank {rank} never came to {missed.name} number {missed.number} of "
        f"{_label(missed.group, groups)}: {ranks_do(waiting, 'wait')} for it"
    )
    last = max(calls[rank], key=_began, default=None)
    if last is None:
        return f"{words}; it has called nothing that has not ended"
    return (
        f"{words}; the last that it called is {last.name} number {last.number} of "
        f"{_label(last.group, groups)}{_at(last)}"
    )


def _began(call: Call) -> int:
    return call.at_ns


def _judge_waiting(evidence: Evidence, calls: Calls, groups: Groups) -> None:
    """Where a process waits in each call: by the one that calls something else than before, or
    than the others; else by who never came.
    """
    standings = {rank: RankStanding(calls=rank_calls) for rank, rank_calls in calls.items()}
    cause = judge(standings, groups)
    if cause is not None and cause.rank is not None and cause.kind in MISMATCHES:
        evidence.cause, evidence.rank = cause.kind, cause.rank
        evidence.findings.append(f"{cause.words}; {cause.waiting}")
        return
    behind = {rank for pending in _pending(calls, groups) for rank in pending.absent}
    if behind:
        _name_absent(evidence, tuple(sorted(behind)))


def _pending(calls: Calls, groups: Groups) -> list[Pending]:
    """The newest collective of each group that has not ended."""
    pending = []
    for name, newest_by_rank in sorted(_newest(calls).items()):
        open_calls = [call for call in newest_by_rank.values() if not call.done]
        if not open_calls:
            continue
        newest = max(open_calls, key=lambda call: call.number)
        came = [rank for rank, call in newest_by_rank.items() if call.number >= newest.number]
        # of a group that no dump describes, its members are those seen in it
        members = groups[name].ranks & calls.keys() if name in groups else newest_by_rank.keys()
        absent = sorted(members - set(came))
        pending.append(Pending(name, newest, tuple(came), tuple(absent)))
    return pending


def _newest(calls: Calls) -> dict[str, dict[int, Call]]:
    """The newest collective of each rank, by group."""
    newest: dict[str, dict[int, Call]] = {}
    for rank, call in each(calls):
        if call.peer is None:
            reached = newest.setdefault(call.group, {})
            if rank not in reached or call.number >= reached[rank].number:
                reached[rank] = call
    return newest


def _of_groups(calls: Calls, groups: Groups) -> list[str]:
    """What each group waits in; those that lack a rank first."""
    pending = _pending(calls, groups)
    if not pending and any(calls.values()):
        return ["every collective that these dumps hold has ended on the ranks that wrote them"]
    lacking = [wait for wait in pending if wait.absent]
    complete = [wait for wait in pending if not wait.absent]
    sentences = [
        f"{_label(wait.group, groups)}: {rank_list(wait.came)} called {wait.call.name} (number "
        f"{wait.call.number}), which has not ended; {rank_list(wait.absent)} never came"
        for wait in lacking[:_GROUPS_SHOWN]
    ]
    if len(lacking) > _GROUPS_SHOWN:
        sentences.append(f"and {len(lacking) - _GROUPS_SHOWN} more groups lack a rank")
    if complete:
        first = complete[0]
        more = f" and {len(complete) - 1} more" if len(complete) > 1 else ""
        sentences.append(
            f"{_label(first.group, groups)}{more}: each member that wrote a dump called the last "
            f"collective ({first.call.name} number {first.call.number}), and it has not ended"
        )
    return sentences


def _say_what_is_unknown(evidence: Evidence, calls: Calls, groups: Groups) -> None:
    if not any(calls.values()):
        evidence.unknown.append(
            "which collectives were called: the dumps hold none that is numbered"
        )
    absent = {rank for group in groups.values() for rank in group.ranks} - set(calls)
    if absent:
        evidence.unknown.append(f"what {rank_list(absent)} did: there is no dump of theirs here")
    if any(call.peer is not None and not call.done for _, call in each(calls)):
        evidence.unknown.append("whether messages between two ranks met: they are not matched")
    evidence.unknown.append("why a rank did not come: its stack tells")


def _calls(entries: list[Any], config: Groups) -> tuple[Call, ...]:
    calls = [_call(entry, config) for entry in entries if isinstance(entry, dict)]
    return tuple(sorted((call for call in calls if call), key=lambda call: call.at_ns))


def _call(entry: dict[str, Any], config: Groups) -> Call | None:
    """A call from an entry of a dump, with the innermost line that is not torch's own.

    Until version 2.0 one number (``seq_id``) counts collectives and messages, and only the name
    tells which it is.
    """
    operation = str(entry.get("profiling_name") or "")[:80]
    peers = re.findall(r"\d{1,7}", operation.partition(" ")[2])
    is_message = bool(entry.get("is_p2p", peers))
    number = entry.get("p2p_seq_id" if is_message else "collective_seq_id", entry.get("seq_id"))
    at_ns = entry.get("time_created_ns") or _in_ns(entry.get("time_created_us"))
    if type(number) is not int or type(at_ns) is not int:
        return None
    peer = None
    if is_message:
        peer = int(peers[-1]) if peers else -1
    return Call(
        group=_group_of(entry, config),
        number=number,
        operation=operation,
        shapes=str(entry.get("input_sizes") or "")[:80],
        site=_line_of(entry.get("frames")),
        peer=peer,
        done=bool(entry.get("retired")) or entry.get("state") == "completed",
        at_ns=at_ns,
    )


def _is_of_default(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("pg_id") == 0


def _in_ns(microseconds: Any) -> int:
    """A time as torch 2.2 tells it; 0 where there is none."""
    return microseconds * 1000 if type(microseconds) is int else 0


def _line_of(stack: Any) -> str:
    for frame in stack if isinstance(stack, list) else ():
        name = ""
        if isinstance(frame, dict):
            name = str(frame.get("filename") or "")
        if name and "/torch/" not in name:
            return f"{name[-80:]}:{frame.get('line')} {str(frame.get('name'))[:40]}"
    return ""


def _at(call: Call) -> str:
    return f" ({call.site.partition(' ')[0]})" if call.site else ""


def _group_of(entry: dict[str, Any], config: Groups) -> str:
    """The group's name, which is the same on all its ranks.

    Until version 2.0 each rank numbers its groups itself; there the members tell them apart.
    """
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and group:
        return str(group[0])[:80]
    if group:
        return str(group)[:80]
    number = str(entry.get("pg_id", ""))[:80]
    for name in config:
        if name.partition(" ")[0] == number:
            return name
    return number


def _label(name: str, groups: Groups) -> str:
    """``the default group``, ``group 74 (EXPERT_MODEL_PARALLEL_GROUP)``."""
    words = groups[name].description if name in groups else ""
    if words == _DEFAULT:
        return "the default group"
    return f"group {name}" + (f" ({words})" if words not in ("", UNNAMED) else "")


def _rank_of(path: Path, index: int) -> int:
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pickle")
    match = _RANK.search(name)
    return int(match[1]) if match else index


def _configured(content: dict[str, Any]) -> Groups:
    """Groups by name, as one dump's configuration tells."""
    config = content.get("pg_config")
    if not isinstance(config, dict):
        return {}
    groups: Groups = {}
    for name, about in config.items():
        if isinstance(about, dict):
            members = _members(about.get("ranks"))
            key, description = str(name), str(about.get("desc") or "")
        else:  # version 1: the members alone
            members = _members(about)
            key, description = f"{name} of {rank_list(members)}", ""
        if members:
            groups[key[:80]] = Group(description[:80], members)
    return groups


def _members(ranks: Any) -> frozenset[int]:
    numbers: Iterable[Any] = ()
    if isinstance(ranks, str):
        numbers = re.findall(r"\d{1,7}", ranks[:1_000_000])
    elif isinstance(ranks, list):
        numbers = ranks
    return frozenset(int(number) for number in numbers if str(number).isdigit())
