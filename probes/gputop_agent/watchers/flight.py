"""torch's flight recorder: the last collectives of this rank, with the time each was started from
Python.

It is on by default (gloo and NCCL). Called from the agent's thread only: a full dump of 2000
entries takes 14-38 ms. Gloo's has no messages between two ranks: those are noted by ``messages``.
"""

import json
import pickle
import sys

from gputop_agent import wire
from gputop_agent.runtime import frames, transport
from gputop_agent.watchers import messages

NEWEST = 200
_PER_EVENT = 100
_MOST_GROUPS = 64
_MOST_MEMBERS = 1024
_LIMIT_BYTES = wire.MAX_MESSAGE_BYTES - 4096

_ITEM_BYTES = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
}  # fmt: skip


def send(reason="", until_ns=None):
    """Send the newest entries, or those up to a time, as ``flight_recorder`` events, oldest first,
    each below the message limit.

    For the reason ``hang`` with the line of each call: torch resolves the lines in a second the
    first time, which only a training that stands still has to spare. For it and for ``standing``,
    a silence that may yet end, with what the groups are.
    """
    newest = _in_order(sites=reason == "hang")
    with_groups = reason in ("hang", "standing")
    if until_ns is not None:
        newest = [entry for entry in newest if entry["created_ns"] <= until_ns]
    newest = newest[-NEWEST:]
    chunks = [newest[i : i + _PER_EVENT] for i in range(0, len(newest), _PER_EVENT)] or [[]]
    for part, chunk in enumerate(chunks):
        while len(json.dumps(chunk)) > _LIMIT_BYTES:
            chunk = chunk[len(chunk) // 2 :]
        transport.send_event(
            "flight_recorder",
            reason=reason,
            part=part,
            parts=len(chunks),
            entries=chunk,
            groups=groups() if with_groups and part == 0 else None,
        )


def _in_order(sites=False):
    """Collectives and messages by time."""
    entries_ = entries(sites)
    if not any(entry["p2p"] for entry in entries_):
        entries_ += messages.entries()
    return sorted(entries_, key=lambda entry: entry["created_ns"])


def entries(sites=False):
    """Compact entries ``{group, seq, op, bytes, created_ns, state, p2p, site}``; [] where torch has
    no flight recorder.

    ``state`` is ``scheduled`` or ``started`` while the collective runs, ``completed`` after.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    entries_ = []
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):  # gloo and others; NCCL has its own
        dump = getattr(c10d, name, None)
        if dump is not None:
            entries_ += pickle.loads(dump(True, sites, False)).get("entries", [])
    return [compact(entry) for entry in entries_]


def groups():
    """``[{name, description, ranks}]`` of the process groups that this rank knows, the first
    64.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is None:
        return []
    groups_ = []
    for group, members in list(world.pg_group_ranks.items())[:_MOST_GROUPS]:
        name = world.pg_names.get(group)
        if not name:  # a group of others
            continue
        groups_.append(
            {
                "name": str(name),
                "description": str(getattr(group, "group_desc", "")),
                "ranks": sorted(members)[:_MOST_MEMBERS],
            }
        )
    return groups_


def last_collective():
    """The collective this rank waits in, else the last one it started; None if it knows of none."""
    by_time = _in_order()
    running = [entry for entry in by_time if entry["state"] not in ("completed", "issued")]
    if running:
        return running[0]
    return by_time[-1] if by_time else None


def compact(entry):
    """One raw entry of torch's JSON, reduced to what a comparison between ranks needs."""
    is_p2p = bool(entry.get("is_p2p"))
    group = entry.get("process_group") or [entry.get("pg_id", 0)]
    return {
        "group": str(group[0]),
        "seq": entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", -1),
        "op": entry.get("profiling_name", ""),
        "bytes": _bytes(entry.get("input_sizes") or [], entry.get("input_dtypes") or []),
        "shapes": _shapes(entry.get("input_sizes") or []),
        "created_ns": entry.get("time_created_ns", 0),
        "state": "completed" if entry.get("retired") else entry.get("state", ""),
        "p2p": is_p2p,
        "site": _site(entry.get("frames") or []),
    }


def _site(stack):
    """The user's innermost line that called, ``train.py:40 step``; empty where none is known."""
    for wanted in (frames.USER, frames.LIBRARY):
        for frame in stack:
            if frames.origin(frame["filename"]) == wanted:
                where = frames.short_name(frame["filename"]), frame["line"], frame["name"]
                return "%s:%d %s" % where
    return ""


def _shapes(sizes):
    """``4x3 7`` for the first inputs."""
    return " ".join("x".join(map(str, size)) or "1" for size in sizes[:4])


def _bytes(sizes, dtypes):
    total = 0
    for index, shape in enumerate(sizes):
        count = 1
        for size in shape:
            count *= size
        dtype = dtypes[index] if index < len(dtypes) else "Float"
        total += count * _ITEM_BYTES.get(dtype, 1)
    return total
