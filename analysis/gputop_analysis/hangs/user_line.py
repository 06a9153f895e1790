"""The line of the user's in a dump of a rank's stacks."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any


def training_frames(dump: Mapping[str, Any]) -> list[str]:
    """Frames of the training thread as ``file:line function``, innermost first."""
    threads = dump.get("threads") or []
    training = next((t for t in threads if t.get("training")), threads[0] if threads else {})
    return [str(frame) for frame in training.get("frames", ())]


def dumped_line(dump: Mapping[str, Any]) -> str | None:
    """The user's innermost ``file:line function`` of the training thread, by the guest, which knows
    whose file it is; of an older guest's dump by the names of its frames. None without frames.
    """
    for place in dump.get("places") or ():
        if place.get("site"):
            return _named(place)
    return user_line(training_frames(dump))


def endless_line(dump: Mapping[str, Any], training_loops: Collection[str]) -> str | None:
    """The innermost such line that a ``while`` is around, other than the training's own loops
    (``train.py:40``): what it calls may end each time and the loop not. None without one.
    """
    for place in dump.get("places") or ():
        file = str(place.get("site") or "").rpartition(":")[0]
        loops = [
            str(block).partition(" ")[0] for block in place.get("blocks") or () if _is_while(block)
        ]
        if any(f"{file}:{line}" not in training_loops for line in loops):
            return _named(place)
    return None


def _is_while(block: object) -> bool:
    return str(block).endswith(" while")


def _named(place: Mapping[str, Any]) -> str:
    return f"{place['site']} {place.get('function') or ''}".rstrip()


def user_line(frames: list[str]) -> str | None:
    """The innermost ``file:line function`` of a dump that is not torch's or the library's."""
    for frame in frames:
        file = frame.partition(":")[0]
        is_library = file.startswith(("torch/", "<")) or (
            "/" not in file and file[:-3] in sys.stdlib_module_names
        )
        if not is_library:
            return frame
    return frames[0] if frames else None
