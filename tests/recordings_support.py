"""Where recordings of real GPUs lie, and snapshots made up from requests."""

import gzip
import os
import pickle
from pathlib import Path

import pytest

BUNDLED = Path(__file__).parent / "recordings"
_BESIDE = Path(__file__).parent.parent.parent / "shared" / "cases" / "recordings"


def recordings(kind: str) -> Path:
    """The folder of one kind of recordings that are too large to bundle; skips where
    there is none.
    """
    folder = Path(os.environ.get("GPUTOP_RECORDINGS") or _BESIDE) / kind
    if not folder.is_dir():
        pytest.skip(f"no recordings at {folder}: set GPUTOP_RECORDINGS")
    return folder


def frame(name: str, filename: str, line: int = 1) -> dict:
    return {"name": name, "filename": filename, "line": line}


def write_snapshot(path: Path, content: object, packed: bool = False) -> Path:
    data = pickle.dumps(content, protocol=4)
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return path


def event(action: str, addr: int, size: int, frames=(), stream: int = 0) -> dict:
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": stream,
        "time_us": 1,
        "frames": list(frames),
    }


def segment(address: int, total: int, blocks=(), small: bool = False, **more) -> dict:
    """A segment with ``(size, requested or None)`` blocks; None is idle."""
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "stream": 0,
        "segment_type": "small" if small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": [
            {
                "size": size,
                "requested_size": requested or 0,
                "state": "inactive" if requested is None else "active_allocated",
                "frames": [],
            }
            for size, requested in blocks
        ],
    } | more


_MIB = 1 << 20


def two_segments(path: Path, kept: int) -> Path:
    """Two segments of 40 MiB: a weight in one, and ``kept`` of four activations in both."""
    forward = [frame("forward", "model.py", 20), frame("main", "train.py", 7)]
    weight = [frame("__init__", "model.py", 5), frame("main", "train.py", 3)]
    events = [event("segment_alloc", 0, 40 * _MIB), event("segment_alloc", 100 * _MIB, 40 * _MIB)]
    events.append(event("alloc", 0, 10 * _MIB, weight))
    places = [10 * _MIB, 20 * _MIB, 100 * _MIB, 110 * _MIB]
    for place in places:
        events.append(event("alloc", place, 10 * _MIB, forward))
    for place in places[kept:]:
        events.append(event("free_requested", place, 10 * _MIB))
        events.append(event("free_completed", place, 10 * _MIB))
    used = {0: weight, **dict.fromkeys(places[:kept], forward)}
    segments = []
    for start in (0, 100 * _MIB):
        blocks = [10 * _MIB if start + at * _MIB in used else None for at in (0, 10, 20, 30)]
        part = segment(start, 40 * _MIB, [(10 * _MIB, block) for block in blocks])
        for at, block in zip((0, 10, 20, 30), part["blocks"], strict=True):
            block["frames"] = used.get(start + at * _MIB, [])
        segments.append(part)
    return write_snapshot(path, {"segments": segments, "device_traces": [events]})
