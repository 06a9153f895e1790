"""``PYTORCH_CUDA_ALLOC_CONF``: the options of the caching allocator that change how much it
reserves.

After ``c10/core/AllocatorConfig.cpp`` of PyTorch. Options that concern the host or only speed are
accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

MIB = 1 << 20
LARGE_SEGMENT = 20 * MIB
_INTERVALS = 16
"""Of ``roundup_power2_divisions``: from 1 MiB to 64 GiB by powers of two, the last for more."""
_IGNORED = (
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "pinned_reserve_segment_size_mb",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
)


class AllocatorConf(NamedTuple):
    """Sizes in bytes."""

    expandable_segments: bool = False
    max_split_size: int | None = None
    """Blocks of at least this are not split, and kept for requests as large; None: no limit."""
    max_non_split_rounding: int = LARGE_SEGMENT
    """How much larger than the request an oversize block may be."""
    garbage_collection_threshold: float = 0.0
    """Share of allowed memory above which old segments are freed; needs ``memory_fraction``."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    large_segment: int = LARGE_SEGMENT
    memory_fraction: float | None = None
    """Share of the GPU's memory that the process may reserve; None: no limit was set."""

    def round_size(self, size: int) -> int:
        """What a request takes: a multiple of 512, or the next nth between powers of two."""
        if size < 512:
            return 512
        floor = size.bit_length() - 1
        divisions = self.roundup_power2_divisions[min(max(floor - 20, 0), _INTERVALS - 1)]
        if divisions <= 1 or size <= 512 * divisions:
            return -(-size // 512) * 512
        part = (1 << floor) >> (divisions.bit_length() - 1)
        return -(-size // part) * part


DEFAULT = AllocatorConf()


def parse(text: str) -> AllocatorConf:
    """The options in a value of ``PYTORCH_CUDA_ALLOC_CONF``.

    Raises:
        ValueError: an unknown option or a value that PyTorch would refuse, in one line.
    """
    conf = DEFAULT
    for name, value in _options(text):
        if name in _READERS:
            conf = _READERS[name](conf, name, value)
        elif name not in _IGNORED:
            option_names = ", ".join(sorted(_READERS))
            raise ValueError(
                f"the allocator has no option '{name}'; those "
                f"that matter for memory: {option_names}"
            )
    return conf


def _options(text: str) -> list[tuple[str, str]]:
    """(name, value) of each ``name:value``; commas inside brackets belong to the value."""
    options, depth, part = [], 0, ""
    for letter in text.replace(" ", "") + ",":
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            if part:
                options.append(_pair(part))
            part = ""
        else:
            part += letter
    if depth:
        raise ValueError(f"allocator options '{text}': a bracket is not closed")
    return options


def _pair(part: str) -> tuple[str, str]:
    name, colon, value = part.partition(":")
    if not colon or not value:
        raise ValueError(f"allocator option '{part}': expected name:value")
    return name, value


def _megabytes(name: str, value: str, least: int) -> int:
    if not value.isdigit() or int(value) < least:
        raise ValueError(
            f"allocator option {name}:{value}: expected a whole number of MiB, at least {least}"
        )
    return int(value) * MIB


def _fraction(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0.0 < number <= 1.0:
        raise ValueError(
            f"allocator option {name}:{value}: expected a number above 0 and at most 1"
        )
    return number


def _max_split(conf: AllocatorConf, name: str, value: str) -> AllocatorConf:
    return conf._replace(max_split_size=_megabytes(name, value, 20))


def _non_split(conf: AllocatorConf, name: str, value: str) -> AllocatorConf:
    return conf._replace(max_non_split_rounding=_megabytes(name, value, 20))


def _large_segment(conf: AllocatorConf, name: str, value: str) -> AllocatorConf:
    return conf._replace(large_segment=_megabytes(name, value, 2))


def _threshold(conf: AllocatorConf, name: str, value: str) -> AllocatorConf:
    number = _fraction(name, value)
    if number == 1.0:
        raise ValueError(f"allocator option {name}:{value}: expected a number between 0 and 1")
    return conf._replace(garbage_collection_threshold=number)


def _memory_fraction(conf: AllocatorConf, name: str, value: str) -> AllocatorConf:
    return conf._replace(memory_fraction=_fraction(name, value))


def _expandable(conf: AllocatorConf, name: str, value: str) -> AllocatorConf:
    if value not in ("True", "False"):
        raise ValueError(f"allocator option {name}:{value}: expected True or False")
    return conf._replace(expandable_segments=value == "True")


def _backend(conf: AllocatorConf, name: str, value: str) -> AllocatorConf:
    if value != "native":
        raise ValueError(
            f"allocator option {name}:{value}: only the native allocator can be simulated"
        )
    return conf


def _divisions(conf: AllocatorConf, name: str, value: str) -> AllocatorConf:
    """One number for all sizes, or ``[256:1,512:2,1024:4,>:8]`` by lower ends of intervals, MiB."""
    if not value.startswith("["):
        return conf._replace(roundup_power2_divisions=(_power(name, value),) * _INTERVALS)
    divisions = [0] * _INTERVALS
    last, first = 0, True
    for start, count in (_pair(part) for part in value.strip("[]").split(",")):
        parts = 0 if count == "0" else _power(name, count)
        if start == ">":
            divisions[last:] = [parts] * (_INTERVALS - last)
            continue
        last = min(_power(name, start).bit_length() - 1, _INTERVALS - 1)
        if first:
            divisions[:last], first = [parts] * last, False
        divisions[last] = parts
    return conf._replace(roundup_power2_divisions=tuple(divisions))


def _power(name: str, value: str) -> int:
    if not value.isdigit() or int(value).bit_count() != 1:
        raise ValueError(f"allocator option {name}: '{value}' is not a power of two")
    return int(value)


_READERS: dict[str, Callable[[AllocatorConf, str, str], AllocatorConf]] = {
    "expandable_segments": _expandable,
    "max_split_size_mb": _max_split,
    "max_non_split_rounding_mb": _non_split,
    "large_segment_size_mb": _large_segment,
    "garbage_collection_threshold": _threshold,
    "roundup_power2_divisions": _divisions,
    "per_process_memory_fraction": _memory_fraction,
    "backend": _backend,
}
