"""Files of NCCL Inspector: which rank is slow in collectives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gputop_analysis.evidence.model import Evidence, EvidenceError
from gputop_analysis.snapshots.load import unpacked

_LINES_AT_MOST = 2_000_000


def is_inspector(head: bytes) -> bool:
    """Whether the beginning of a file is of NCCL Inspector."""
    marks = (b'"coll_perf"', b'"inspector_output_format_version"')
    return head.lstrip()[:1] in (b"{", b"[") and any(mark in head for mark in marks)


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
        for entry in _entries(unpacked(path).decode("utf-8", "replace")):
            marker = _take(entry, times, hosts, marker)
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
    return f"{path} has no entry of NCCL Inspector that can be read: one JSON object a line"


def _entries(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a file: one a line, over several lines, or in one list."""
    decoder = json.JSONDecoder()
    at = 0
    for _ in range(_LINES_AT_MOST):
        begin = text.find("{", at)
        if begin < 0:
            return
        try:
            entry, at = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):  # cut off or damaged: the next line may be whole
            at = text.find("\n", begin)
            if at < 0:
                return
            continue
        yield entry


def _take(
    entry: dict[str, Any],
    times: dict[tuple[str, int], dict[int, float]],
    hosts: dict[int, str],
    marker: dict[str, Any],
) -> dict[str, Any]:
    """Take in an entry. Returns the marker that the entries after it belong to.

    Until 2025 each says who wrote it, also without a header of its own; in later formats a marker
    (``dump_stats``) does for all up to the next, so that a collective's has no header.
    """
    try:
        if "header" not in entry and "rank" in entry:
            entry = {**entry, "header": entry, "metadata": entry}
        headed = entry if "header" in entry else marker
        if "coll_perf" not in entry:
            return headed
        header, call = headed["header"], entry["coll_perf"]
        rank, number = int(header["rank"]), int(call["coll_sn"])
        taken = float(call["coll_exec_time_us"]) / 1e3
        key = f"{header.get('id', '')} {call['coll']}", number
        host = (headed.get("metadata") or {}).get("hostname")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
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
