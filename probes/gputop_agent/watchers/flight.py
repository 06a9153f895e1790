"""torch's flight recorder: the last collectives of this rank, with the time each was started from
Python.

It is on by default (gloo and NCCL) and read through the same C++ call in every torch that has it.
Called from the agent's thread only: a full dump of 2000 entries takes 14-38 ms.
"""

import json
import sys

from gputop_agent import wire
from gputop_agent.runtime import transport

NEWEST = 200
_PER_EVENT = 100
_LIMIT_BYTES = wire.MAX_MESSAGE_BYTES - 4096

_ITEM_BYTES = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
}  # fmt: skip


def send(reason=""):
    """Send the newest entries as ``flight_recorder`` events, oldest first, each below the message
    limit.
    """
    found = entries()[-NEWEST:]
    chunks = [found[i : i + _PER_EVENT] for i in range(0, len(found), _PER_EVENT)] or [[]]
    for part, chunk in enumerate(chunks):
        while len(json.dumps(chunk)) > _LIMIT_BYTES:
            chunk = chunk[len(chunk) // 2 :]
        transport.send_event(
            "flight_recorder", reason=reason, part=part, parts=len(chunks), entries=chunk
        )


def entries(only_active=False):
    """Compact entries ``{group, seq, op, bytes, created_ns, state, p2p}``; [] where torch has no
    flight recorder.

    ``state`` is ``scheduled`` or ``started`` while the collective runs, ``completed`` after.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_fr_trace_json", None) or getattr(
        c10d, "_dump_nccl_trace_json", None
    )
    if dump is None:
        return []
    return [compact(entry) for entry in json.loads(dump(True, only_active)).get("entries", [])]


def last_collective():
    """The collective this rank waits in, else the last one it started; None if it knows of none."""
    found = sorted(entries(), key=lambda entry: entry["created_ns"])
    running = [entry for entry in found if entry["state"] != "completed"]
    if running:
        return running[0]
    return found[-1] if found else None


def compact(entry):
    """One raw entry of torch's JSON, reduced to what a comparison between ranks needs."""
    is_p2p = bool(entry.get("is_p2p"))
    group = entry.get("process_group") or [entry.get("pg_id", 0)]
    return {
        "group": str(group[0]),
        "seq": entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", -1),
        "op": entry.get("profiling_name", ""),
        "bytes": _bytes(entry.get("input_sizes") or [], entry.get("input_dtypes") or []),
        "created_ns": entry.get("time_created_ns", 0),
        "state": "completed" if entry.get("retired") else entry.get("state", ""),
        "p2p": is_p2p,
    }


def _bytes(sizes, dtypes):
    total = 0
    for index, shape in enumerate(sizes):
        count = 1
        for size in shape:
            count *= size
        dtype = dtypes[index] if index < len(dtypes) else "Float"
        total += count * _ITEM_BYTES.get(dtype, 1)
    return total
