"""Tells what a file or folder is, and hands it to its reader."""

from __future__ import annotations

import codecs
import os
import re
import zlib
from pathlib import Path

from gputop_analysis.evidence.dumps import dump_content, judge_dumps
from gputop_analysis.evidence.fixes import fixes
from gputop_analysis.evidence.folders import files_below, files_in, is_run, plain_files_in
from gputop_analysis.evidence.inspector import is_inspector, judge_inspector
from gputop_analysis.evidence.logs import HEAD, is_log, text_of, without_header
from gputop_analysis.evidence.model import Evidence, EvidenceError
from gputop_analysis.evidence.telemetry import judge_log
from gputop_analysis.snapshots.load import SnapshotError, unpacked
from gputop_analysis.snapshots.values import begins_a_pickle
from gputop_analysis.traces.scan import TraceError
from gputop_probes.record.files import is_regular, open_regular
from gputop_probes.record.layout import MANIFEST_FILE

_HEAD = 65_536
_TAR_AT = 257
_ARRAY = re.compile(rb"\s*\[\s*(?:\{|\]|$)")
"""A list of events, and no line such as ``[12:30] GPU 0``."""
_GRAPH = re.compile(rb'"schema"\s*:\s*"[\d.]+(?:-chakra[\d.]*)?"')
"""The beginning of what ExecutionTraceObserver and Chakra write."""
_LOOKED_INTO = 16
"""Files without a telling name that are read to tell whether a folder is of another tool."""
_KINDS_IN_WORDS = {
    "optimizer": "optimizer states",
    "unknown": "blocks without a recorded stack",
}
KINDS = (
    "a torch.profiler trace, an allocator snapshot, a flight-recorder dump, a file of NCCL "
    "Inspector, a log of nvidia-smi, dcgmi or rocm-smi, or a timeline of operations"
)


def is_evidence(path: Path) -> bool:
    """Whether a path names a file of another tool, or a folder with such files that is no run."""
    try:
        if not path.is_dir():
            return is_regular(path) and path.name != MANIFEST_FILE
        if is_run(path):
            return False
        if files_in(path):
            return True
        unsure = [*plain_files_in(path)[:_LOOKED_INTO], *files_below(path)[:_LOOKED_INTO]]
        return any(_kind(file, alone=False) for file in unsure)
    except OSError:
        return False


def gather(path: Path) -> Evidence:
    """Judge a file of another tool, or the files of one job in a folder.

    Raises:
        EvidenceError: it cannot be read, or is none that is known.
    """
    try:
        paths = _files(path)
        evidence = _judge(paths)
        evidence.fixes = fixes(evidence)
        return evidence
    except EvidenceError:
        raise
    except (TraceError, SnapshotError) as error:
        raise EvidenceError(str(error)) from None
    except OSError as error:
        raise EvidenceError(f"cannot read {path}: {error.strerror or error}") from None


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = [*files_in(path), *plain_files_in(path)]
    if not any(_kind(file, alone=len(files) == 1) for file in files):
        files = files_below(path) or files
    if not files:
        raise EvidenceError(f"{path} has neither a run nor a file that is known: {KINDS}")
    return files


def _judge(paths: list[Path]) -> Evidence:
    """Judge the files of the kind that comes first; others that lie beside them are passed over."""
    by_kind: dict[str, list[Path]] = {}
    for path in paths:
        by_kind.setdefault(_kind(path, alone=len(paths) == 1), []).append(path)
    for source_kind, judge in _JUDGES.items():
        if source_kind in by_kind:
            evidence = judge(by_kind[source_kind])
            if source_kind in _ONE_AT_A_TIME and len(by_kind[source_kind]) > 1:
                first, *others = (path.name for path in by_kind[source_kind])
                evidence.unknown.append(
                    f"what {_named(others)} {'shows' if len(others) == 1 else 'show'}: {first} "
                    "alone was read, name another to see it"
                )
            return evidence
    raise EvidenceError(_why_none(paths[0]))


def _named(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"


def _why_none(path: Path) -> str:
    """One line on a file of no known kind, and how to mend it where that is known."""
    head = _head(path)
    if not head:
        return f"{path} is empty"
    if head[_TAR_AT : _TAR_AT + 5] == b"ustar" or head.startswith(b"PK\x03\x04"):
        return f"{path} is an archive: unpack it and name the file or folder in it"
    if _GRAPH.search(head[:2000]):
        return (
            f"{path} is an execution trace of operators, which has no times: give what "
            "torch.profiler's export_chrome_trace writes"
        )
    if without_header(text_of(head)):
        return f"{path} has no header: log with --format=csv, without noheader"
    return f"{path} is none of these: {KINDS}"


def _kind(path: Path, alone: bool) -> str:
    """What a file is by its beginning; empty where it is none that is known.

    Raises:
        EvidenceError: it is the only one, and damaged.
    """
    try:
        head = _head(path)
    except EvidenceError:
        if alone:
            raise
        return ""
    if head[_TAR_AT : _TAR_AT + 5] == b"ustar":
        return ""
    if b"optype" in head[:500] and b"start_ts" in head[:500]:
        return "timeline"
    if is_inspector(head):
        return "inspector"
    if is_log(text_of(head[: 2 * HEAD])):
        return "log"
    if b'"traceEvents"' in head or b'"schemaVersion"' in head or _ARRAY.match(head):
        return "trace"
    if begins_a_pickle(head):
        return "dump" if b"pg_config" in head or b"profiling_name" in head else "snapshot"
    return _kind_of_object(head, alone)


def _kind_of_object(head: bytes, alone: bool) -> str:
    """The same of a JSON object that begins with none of a trace's own keys."""
    if head.lstrip()[:1] != b"{" or _GRAPH.search(head[:2000]):
        return ""
    if b'"entries"' in head or b'"pg_config"' in head:
        return "dump"
    return "trace" if alone else ""


def _dumps(paths: list[Path]) -> Evidence:
    dumps = {path: content for path in paths if (content := dump_content(path)) is not None}
    if not dumps:
        raise EvidenceError(f"{paths[0]} is a damaged flight-recorder dump: it has no entries")
    return judge_dumps(dumps)


def _log(paths: list[Path]) -> Evidence:
    return judge_log(str(paths[0]), text_of(unpacked(paths[0])))


def _head(path: Path) -> bytes:
    """The first bytes of a file, unpacked; of a damaged one what can be read."""
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(_HEAD).removeprefix(codecs.BOM_UTF8)
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return zlib.decompressobj(wbits=31).decompress(data, _HEAD)
    except zlib.error:
        raise EvidenceError(f"{path} is damaged: its compressed data cannot be read") from None


def _traces(paths: list[Path]) -> Evidence:
    from gputop_analysis.evidence.traces import judge_traces

    return judge_traces(paths)


def _snapshot(paths: list[Path]) -> Evidence:
    from gputop_analysis.snapshots import load
    from gputop_analysis.snapshots.analyse import analyse
    from gputop_analysis.snapshots.text import size

    path = paths[0]
    memory = analyse(load(path))
    evidence = Evidence("allocator snapshot", (str(path),), memory=memory)
    if memory.failed_bytes is not None:
        evidence.cause = f"out of memory: {size(memory.failed_bytes)} more were asked for"
    else:
        peak = size(memory.peak_allocated)
        if memory.has_history:
            moment = f"the peak of {peak}"
        else:
            moment = f"the {peak} in use"
        evidence.cause = largest_kind(memory.categories, moment)
    evidence.unknown.append("how long steps took: a snapshot holds memory alone")
    return evidence


def largest_kind(categories: dict[str, int], moment: str) -> str:
    """What holds most at a moment, with its share of all that was allocated then."""
    allocated_bytes = sum(categories.values())
    if not allocated_bytes:
        return "nothing was allocated"
    kind = max(categories, key=lambda name: categories[name])
    percent = 100 * categories[kind] / allocated_bytes
    return f"{_KINDS_IN_WORDS.get(kind, kind)} hold {percent:.0f} % of {moment}"


def _timeline(paths: list[Path]) -> Evidence:
    from gputop_analysis.stragglers import TimelineError, judge, load

    path = paths[0]
    try:
        judged = judge(load(path))
    except TimelineError as error:
        raise EvidenceError(str(error)) from None
    evidence = Evidence(
        "timeline of operations",
        (str(path),),
        cause=judged.cause,
        rank=judged.rank,
        slowdown=judged.slowdown,
        what_if=judged,
    )
    evidence.findings = [
        f"a step takes {judged.step_s:.2f} s, without "
        f"stragglers it would take {judged.ideal_s:.2f} s",
        f"the slowest workers explain {100 * judged.worker_share:.0f} % of that, the last stage "
        f"{100 * judged.last_stage_share:.0f} %",
    ]
    evidence.findings += [
        f"stage {stage} computes nothing for {100 * share:.0f} % of the step: its bubble"
        for stage, share in enumerate(judged.bubbles)
    ]
    evidence.unknown.append("which host a worker ran on: such timelines name ranks alone")
    return evidence


_JUDGES = {
    "trace": _traces,
    "timeline": _timeline,
    "dump": _dumps,
    "inspector": judge_inspector,
    "snapshot": _snapshot,
    "log": _log,
}
"""By kind; a folder with several is judged by the first of these."""
_ONE_AT_A_TIME = ("timeline", "snapshot", "log")
