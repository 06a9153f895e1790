"""What the allocator would have reserved with other settings, by play of the recorded requests."""

from __future__ import annotations

from typing import NamedTuple

from gputop_analysis.snapshots.frames import is_empty_cache
from gputop_analysis.snapshots.history import RETURNED, GpuHistory
from gputop_analysis.snapshots.play import play_with
from gputop_analysis.vram.conf import AllocatorConf, parse

AS_RECORDED = "as recorded"
REPLAYED = "as recorded, replayed"
"""Where the model of the allocator reserves other than was recorded: what other settings are to be
compared with, since they are played too.
"""
NO_EMPTY_CACHE = "empty_cache left out"
WORDS = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:8",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.8",
)
"""Values of ``PYTORCH_CUDA_ALLOC_CONF`` that are tried."""


class AllocatorSetting(NamedTuple):
    """One way to run the allocator."""

    name: str
    """What to put into ``PYTORCH_CUDA_ALLOC_CONF``, or in words what else is changed."""
    peak_reserved: int | None
    """Bytes; None: the requests do not fit into the GPU."""


def other_settings(
    history: GpuHistory, recorded: AllocatorConf, capacity: int | None
) -> tuple[AllocatorSetting, ...]:
    """The recorded peak, that of the same settings where their replay has another one, then that of
    each other setting.

    Args:
        history: the requests; without any there is nothing to play.
        recorded: settings of the recording.
        capacity: bytes of the GPU; None: not known. Collection counts its threshold of it, or of
            the recorded peak.
    """
    if not any(event.action == "alloc" for event in history.events):
        return ()
    peak = max(history.reserved)
    settings = [AllocatorSetting(AS_RECORDED, peak)]
    replayed = play_with(history, recorded, recorded, capacity).peak_reserved
    if replayed not in (peak, None):
        settings.append(AllocatorSetting(REPLAYED, replayed))
    for words in WORDS:
        conf = parse(words)
        room = capacity
        if conf.garbage_collection_threshold:
            conf, room = conf._replace(memory_fraction=1.0), capacity or peak
        settings.append(
            AllocatorSetting(words, play_with(history, conf, recorded, room).peak_reserved)
        )
    if any(_by_program(event.action, event.frames) for event in history.events):
        played = play_with(history, recorded, recorded, capacity, keeps_cache=True)
        settings.append(AllocatorSetting(NO_EMPTY_CACHE, played.peak_reserved))
    return tuple(settings)


def _by_program(action: str, frames: object) -> bool:
    return action in RETURNED and is_empty_cache(frames) is not False
