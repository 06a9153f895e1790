"""Flight-recorder dumps of NCCL and files of NCCL Inspector: which rank is missing or slow in a
collective.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gputop_analysis.call_order import Call
from gputop_analysis.evidence.model import Evidence, EvidenceError
from gputop_analysis.hang_cause import MISMATCHES, Group, Standing, judge
from gputop_analysis.snapshots.load import unpacked
from gputop_analysis.snapshots.values import UnpickleError, plain_values

_RANK = re.compile(r"(\d{1,6})(?:\.\w+)*$")
_LINES_AT_MOST = 2_000_000


def dump_content(path: Path) -> dict[str, Any] | None:
    """The content of a flight-recorder dump, JSON or pickle; None where it is something else."""
    data = unpacked(path)
    try:
        content = json.loads(data) if data[:1] == b"{" else plain_values(data)
    except (ValueError, UnpickleError, RecursionError):
        return None
    if isinstance(content, dict) and isinstance(content.get("entries"), list):
        return content
    return None


def judge_dumps(dumps: dict[Path, dict[str, Any]]) -> Evidence:
    """Which ranks did not reach the last collective of each group that others began."""
    evidence = Evidence("flight-recorder dumps", tuple(map(str, dumps)))
    reached: dict[str, dict[int, tuple[int, str, str]]] = {}
    members: dict[str, set[int]] = {}
    for index, (path, content) in enumerate(dumps.items()):
        rank = _rank_of(path, index)
        for group, ranks in _members(content).items():
            members.setdefault(group, set()).update(ranks)
        for entry in content["entries"]:
            if isinstance(entry, dict) and not entry.get("is_p2p"):
                _note(reached, rank, entry)
    for group, last in reached.items():
        _missing(evidence, group, last, members.get(group, set()) & _there(dumps))
    _name_the_mismatch(evidence, dumps, members)
    if not evidence.findings:
        evidence.findings.append("every rank that wrote a dump ended the same last collective")
    evidence.unknown.append(
        "what ranks without a dump did, and why one did not come: its stack tells"
    )
    return evidence


def _name_the_mismatch(
    evidence: Evidence, dumps: dict[Path, dict[str, Any]], members: dict[str, set[int]]
) -> None:
    """Where all ranks wait, the one that calls something else than it did before, or than the
    others.
    """
    ranks: dict[int, Standing] = {}
    for index, (path, content) in enumerate(dumps.items()):
        calls = [_call(entry) for entry in content["entries"] if isinstance(entry, dict)]
        ordered = sorted((call for call in calls if call), key=lambda call: call.at_ns)
        ranks[_rank_of(path, index)] = Standing(calls=tuple(ordered))
    words = {name: Group("", frozenset(members_)) for name, members_ in members.items()}
    cause = judge(ranks, words)
    if cause is None or cause.rank is None or cause.kind not in MISMATCHES:
        return
    evidence.cause, evidence.rank = cause.kind, cause.rank
    evidence.findings.insert(0, f"{cause.words}; {cause.waiting}")


def _call(entry: dict[str, Any]) -> Call | None:
    """A call from an entry of a dump, with the innermost line that is not torch's own."""
    is_message = bool(entry.get("is_p2p"))
    number = entry.get("p2p_seq_id" if is_message else "collective_seq_id")
    at_ns = entry.get("time_created_ns") or 0
    if type(number) is not int or type(at_ns) is not int:
        return None
    operation = str(entry.get("profiling_name") or "")[:80]
    peers = re.findall(r"\d{1,7}", operation.partition(" ")[2])
    if is_message:
        peer = int(peers[-1]) if peers else -1
    else:
        peer = None
    return Call(
        group=_group_of(entry),
        number=number,
        operation=operation,
        shapes=str(entry.get("input_sizes") or "")[:80],
        site=_line_of(entry.get("frames")),
        peer=peer,
        done=bool(entry.get("retired")) or entry.get("state") == "completed",
        at_ns=at_ns,
    )


def _line_of(stack: Any) -> str:
    for frame in stack if isinstance(stack, list) else ():
        name = str(frame.get("filename") or "") if isinstance(frame, dict) else ""
        if name and "/torch/" not in name:
            return f"{name[-80:]}:{frame.get('line')} {str(frame.get('name'))[:40]}"
    return ""


def _group_of(entry: dict[str, Any]) -> str:
    group = entry.get("process_group") or [entry.get("pg_id", "")]
    return str(group[0] if isinstance(group, (list, tuple)) and group else group)[:80]


def _there(dumps: dict[Path, dict[str, Any]]) -> set[int]:
    return {_rank_of(path, index) for index, path in enumerate(dumps)}


def _rank_of(path: Path, index: int) -> int:
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pickle")
    match = _RANK.search(name)
    return int(match[1]) if match else index


def _members(content: dict[str, Any]) -> dict[str, set[int]]:
    """Ranks of each group, as the dump's configuration tells."""
    config = content.get("pg_config")
    members: dict[str, set[int]] = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str):
            numbers = re.findall(r"\d{1,7}", ranks[:1_000_000])
        else:
            numbers = ranks
        if isinstance(numbers, list):
            members[str(name)] = {int(member) for member in numbers if str(member).isdigit()}
    return members


def _note(reached: dict[str, dict[int, tuple[int, str, str]]], rank: int, entry: Any) -> None:
    sequence = entry.get("collective_seq_id")
    if type(sequence) is not int:
        return
    name = _group_of(entry)
    last = reached.setdefault(name, {})
    if rank not in last or sequence >= last[rank][0]:
        operation = str(entry.get("profiling_name") or "a collective")[:80]
        last[rank] = (sequence, operation, str(entry.get("state") or "")[:20])


def _missing(
    evidence: Evidence, group: str, last: dict[int, tuple[int, str, str]], members: set[int]
) -> None:
    newest = max(sequence for sequence, _, _ in last.values())
    ahead = sorted(rank for rank, newest_entry in last.items() if newest_entry[0] == newest)
    behind = sorted((set(last) | members) - set(ahead))
    operation, state = last[ahead[0]][1], last[ahead[0]][2]
    if not behind:
        hanging = [rank for rank in ahead if last[rank][2] != "completed"]
        if hanging and state != "completed":
            evidence.findings.append(
                f"group {group}: all ranks are in {operation} (number {newest}) and it has not "
                "ended"
            )
        return
    listed = ", ".join(map(str, behind[:8])) + (" ..." if len(behind) > 8 else "")
    evidence.findings.append(
        f"group {group}: {len(ahead)} ranks are in {operation} (number {newest}); "
        f"{'rank' if len(behind) == 1 else 'ranks'} {listed} never came"
    )
    if evidence.rank is None:
        evidence.cause, evidence.rank = "a rank never came to a collective", behind[0]


def is_inspector(head: bytes) -> bool:
    """Whether the beginning of a file is of NCCL Inspector."""
    marks = (b'"coll_perf"', b'"inspector_output_format_version"')
    return head.lstrip().startswith(b"{") and any(mark in head for mark in marks)


def judge_inspector(paths: list[Path]) -> Evidence:
    """Whom the others wait for, by how long each rank was in the same collectives.

    Raises:
        EvidenceError: there is no line of NCCL Inspector in them.
    """
    evidence = Evidence("NCCL Inspector files", tuple(map(str, paths)))
    times: dict[tuple[str, int], dict[int, float]] = {}
    hosts: dict[int, str] = {}
    for path in paths:
        marker: dict[str, Any] = {}
        for line in unpacked(path).decode("utf-8", "replace").splitlines()[:_LINES_AT_MOST]:
            marker = _take(line, times, hosts, marker)
    if not times:
        raise EvidenceError(_why_no_times(paths[0]))
    caused: dict[int, float] = {}
    total: dict[int, float] = {}
    for by_rank in times.values():
        if len(by_rank) < 2:
            continue
        last = min(by_rank, key=lambda rank: by_rank[rank])
        excess = sum(value - by_rank[last] for value in by_rank.values())
        caused[last] = caused.get(last, 0.0) + excess / (len(by_rank) - 1)
        for rank, value in by_rank.items():
            total[rank] = total.get(rank, 0.0) + value
    _conclude(evidence, caused, total, hosts)
    evidence.unknown.append(
        "what ran beside the collectives, and whether they were hidden behind it"
    )
    return evidence


def _why_no_times(path: Path) -> str:
    """Why a file of NCCL Inspector tells nothing, and how to mend it."""
    if b'"p2p_perf"' in unpacked(path):
        return (
            f"{path} holds messages between two ranks only (p2p_perf): who waits for whom is "
            "read from collectives (coll_perf); give the files of all ranks"
        )
    return f"{path} has no line of NCCL Inspector that can be read: one JSON object a line"


def _take(
    line: str,
    times: dict[tuple[str, int], dict[int, float]],
    hosts: dict[int, str],
    marker: dict[str, Any],
) -> dict[str, Any]:
    """Take in a line. Returns the marker that the lines after it belong to.

    Until 2025 each line says who wrote it; in later formats a marker (``dump_stats``) does for all
    lines up to the next, so that a collective's line has no header.
    """
    try:
        entry = json.loads(line)
        if not isinstance(entry, dict):
            return marker
        entry_ = entry if "header" in entry else marker
        if "coll_perf" not in entry:
            return entry if "header" in entry else marker
        header, call = entry_["header"], entry["coll_perf"]
        rank, number = int(header["rank"]), int(call["coll_sn"])
        taken = float(call["coll_exec_time_us"]) / 1e3
        key = f"{header.get('id', '')} {call['coll']}", number
        host = (entry_.get("metadata") or {}).get("hostname")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return marker
    if 0 <= taken < 1e12:
        times.setdefault(key, {})[rank] = taken
        if isinstance(host, str):
            hosts[rank] = host[:200]
    return marker


def _conclude(
    evidence: Evidence, caused: dict[int, float], total: dict[int, float], hosts: dict[int, str]
) -> None:
    if not caused:
        evidence.unknown.append("who waits for whom: no collective is there of several ranks")
        return
    for rank in sorted(total):
        evidence.findings.append(
            f"rank {rank}: {total[rank]:,.1f} ms in collectives; the others waited "
            f"{caused.get(rank, 0.0):,.1f} ms each for it"
        )
    culprit = max(caused, key=lambda rank: caused[rank])
    if caused[culprit] >= 0.5 * sum(caused.values()) and caused[culprit] > 0:
        evidence.cause, evidence.rank = "slow rank", culprit
        evidence.host = hosts.get(culprit)
