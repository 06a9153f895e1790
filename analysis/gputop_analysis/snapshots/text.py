"""A judged snapshot as text, and the difference of two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputop_analysis.snapshots.analyse import Memory
from gputop_analysis.snapshots.difference import changes
from gputop_analysis.text import bar, counted, cut_middle, paragraphs, sparkline, wrap

_SHOWN = 12
_SHOWN_CULPRITS = 5


def as_text(memory: Memory, width: int, fancy: bool = False) -> str:
    """The whole judgement, at most ``width`` columns wide."""
    parts = [
        wrapped(head(memory), width),
        list(_course(memory, width, fancy)),
        list(_categories(memory, width, fancy)),
        list(_holders(memory, width)),
        list(_layers(memory, width)),
        list(_fragmentation(memory, width)),
        list(_settings(memory)),
        wrapped(remarks(memory), width),
    ]
    return paragraphs(parts, width)


def difference_text(before: Memory, after: Memory, width: int) -> str:
    """What changed at the peak from one snapshot to another."""
    allocated = after.peak_allocated - before.peak_allocated
    reserved = after.peak_reserved - before.peak_reserved
    lines = [
        f"against {before.path}",
        f"  allocated peak {size(before.peak_allocated)} to {size(after.peak_allocated)} "
        f"({_signed(allocated)})",
        f"  reserved peak  {size(before.peak_reserved)} to {size(after.peak_reserved)} "
        f"({_signed(reserved)})",
    ]
    changed = changes(before, after)
    room = max(20, width - 46)
    for change in changed[:_SHOWN]:
        name = cut_middle(change.site, room)
        lines.append(
            f"  {name:<{room}} {change.category:<16}{_signed(change.bytes):>12} "
            f"{change.blocks:>+8,}"
        )
    if len(changed) > _SHOWN:
        lines.append(f"  and {len(changed) - _SHOWN} more lines")
    if not changed:
        lines.append("  the same lines hold the same bytes at both peaks")
    return "\n".join(line[:width] for line in lines)


def wrapped(sentences: Iterable[str], width: int) -> list[str]:
    """Sentences in lines of at most ``width`` columns; each but its first indented."""
    return [
        line for sentence in sentences for line in wrap(sentence, width, subsequent_indent="  ")
    ]


def size(count: int) -> str:
    """Bytes for people: ``12.7 GiB``, ``512 MiB``, ``96 KiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:,.2f} GiB"


def head(memory: Memory) -> Iterator[str]:
    """File, GPU, peaks."""
    other_devices = ""
    if memory.others:
        other_devices = f"; also GPU {', '.join(map(str, memory.others))} (--device)"
    events = counted(memory.events, "event")
    yield f"snapshot {memory.path}: GPU {memory.device}, {events}{other_devices}"
    when = "peak" if memory.has_history else "when it was taken"
    allocated = f"allocated {when} {size(memory.peak_allocated)}"
    if memory.moment and memory.has_history:
        allocated += f" in {memory.moment}"
    yield allocated
    idle = memory.peak_reserved - memory.fragmentation.used
    share = idle / memory.peak_reserved if memory.peak_reserved else 0.0
    yield (
        f"reserved {when}  {size(memory.peak_reserved)}, of it {size(idle)} idle "
        f"({100 * share:.1f} %)"
    )
    if memory.failed_bytes is not None:
        yield f"out of memory: {size(memory.failed_bytes)} were asked for and not to be had"


def _moment(memory: Memory, words: str) -> str:
    return words if memory.has_history else "when it was taken"


def _course(memory: Memory, width: int, fancy: bool) -> Iterator[str]:
    if len(memory.course) < 2 or not memory.has_history:
        return
    room = max(20, width - 14)
    yield f"  allocated   {sparkline([point[0] for point in memory.course], room, fancy)}"
    yield f"  reserved    {sparkline([point[1] for point in memory.course], room, fancy)}"
    yield (
        f"  {counted(memory.events, 'event')} from left to right; each line from its lowest to "
        "its highest"
    )


def _categories(memory: Memory, width: int, fancy: bool) -> Iterator[str]:
    if not memory.peak_allocated:
        return
    yield f"{_moment(memory, 'at the allocated peak')}, by kind"
    room = max(6, min(40, width - 46))
    for name, count in memory.categories.items():
        share = count / memory.peak_allocated
        line = f"  {name:<18}{size(count):>12}{share * 100:>7.1f} %  {bar(share, room, fancy)}"
        yield line.rstrip()


def _holders(memory: Memory, width: int) -> Iterator[str]:
    if not memory.holders:
        return
    room = max(20, width - 44)
    yield f"  {'held by':<{room}}{'kind':<18}{'size':>12}{'blocks':>9}"
    for holder in memory.holders[:_SHOWN]:
        name = cut_middle(holder.site, room - 1)
        yield f"  {name:<{room}}{holder.category:<18}{size(holder.bytes):>12}{holder.blocks:>9,}"
    if len(memory.holders) > _SHOWN:
        remaining_bytes = sum(holder.bytes for holder in memory.holders[_SHOWN:])
        yield f"  and {len(memory.holders) - _SHOWN} more lines with {size(remaining_bytes)}"


def _layers(memory: Memory, width: int) -> Iterator[str]:
    if not memory.layers:
        return
    room = max(20, width - 16)
    yield "  in the forward of, from the outermost module inward"
    for lines, count in memory.layers[:_SHOWN_CULPRITS]:
        yield f"  {cut_middle(lines, room - 1):<{room}}{size(count):>12}"


def _fragmentation(memory: Memory, width: int) -> Iterator[str]:
    parts = memory.fragmentation
    yield (
        f"{_moment(memory, 'at the reserved peak')}: {size(parts.used)} used, "
        f"{size(parts.pinned)} idle beside blocks in use, {size(parts.cached)} in idle segments"
    )
    room = max(20, width - 40)
    if parts.pinned < 0.01 * max(1, parts.reserved):
        return
    yield f"  {'keeps it from being given back':<{room}}{'idle beside it':>16}{'segments':>12}"
    for culprit in parts.culprits[:_SHOWN_CULPRITS]:
        name = cut_middle(culprit.site, room - 1)
        yield f"  {name:<{room}}{size(culprit.bytes):>16}{culprit.segments:>12,}"


def _settings(memory: Memory) -> Iterator[str]:
    if not memory.settings:
        return
    yield "the same requests with other settings (PYTORCH_CUDA_ALLOC_CONF) would have reserved"
    for setting in memory.settings:
        if setting.peak_reserved is None:
            yield f"  {setting.name:<54}{'does not fit':>13}"
            continue
        change = ""
        if setting in memory.tried:
            change = _signed(setting.peak_reserved - memory.baseline)
        yield f"  {setting.name:<54}{size(setting.peak_reserved):>13}{change:>14}".rstrip()


def remarks(memory: Memory) -> Iterator[str]:
    """What cannot be told, and how far the replay can be trusted."""
    if not memory.has_history:
        yield (
            "no history was recorded: the figures are of the moment it was taken; the peak, who "
            "held it and what other settings would do cannot be told; "
            "torch.cuda.memory._record_memory_history() before the first step records it"
        )
    elif memory.first_difference is None:
        yield (
            "the replay reserves what was recorded after every event: the figures above rest on it"
        )
    else:
        yield (
            f"the replay parts from the recording at event {memory.first_difference:,}: "
            "what other settings would do is a rough guess"
        )
    if memory.has_history and memory.at_beginning:
        yield (
            f"the history begins with {size(memory.at_beginning)} in use: a higher peak before it "
            "would not be in the file"
        )
    if memory.settings and not memory.conf_known:
        yield "the file does not tell the allocator's settings: the defaults are assumed"
    if any(setting.name.startswith("garbage") for setting in memory.settings):
        yield (
            "collection works only with torch.cuda.set_per_process_memory_fraction; without --gpu "
            "its threshold is of the recorded peak"
        )


def _signed(count: int) -> str:
    return f"{'-' if count < 0 else '+'}{size(abs(count))}"
