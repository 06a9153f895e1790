"""Stacks of all ranks beside each other: ranks that stand at the same place are one column, the odd
one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gputop.feed.snapshot import Notice
from gputop.render.rows import left, wrap
from gputop_analysis.text import counted

COLUMNS = 3
GAP = 3
LEAST = 26
"""Columns of a column at least."""


def text(notices: Sequence[Notice], width: int) -> str:
    """The newest stack of each rank's training thread in ``width`` columns."""
    newest = {notice.rank: notice for notice in notices if notice.kind == "stack_dump"}
    groups: dict[tuple[str, ...], list[Notice]] = {}
    for notice in newest.values():
        groups.setdefault(_frames(notice), []).append(notice)
    ordered = sorted(groups.items(), key=lambda item: len(item[1]))
    odd = len(ordered) > 1 and len(ordered[0][1]) < len(ordered[-1][1])
    columns = max(min(len(ordered), COLUMNS, (width + GAP) // (LEAST + GAP)), 1)
    cells = (width - GAP * (columns - 1)) // columns
    blocks = []
    for index, (frames, members) in enumerate(ordered):
        mark = "▲ " if odd and index == 0 else "  "
        blocks.append(_block(frames, members, mark, cells, many=len(newest)))
    return "\n\n".join(
        _beside(blocks[first : first + columns], cells) for first in range(0, len(blocks), columns)
    )


def _frames(notice: Notice) -> tuple[str, ...]:
    """Frames of the training thread, the innermost first; of the first thread where
    none is marked.
    """
    threads: list[dict[str, Any]] = list(notice.body.get("threads") or [])  # type: ignore[call-overload]
    training = [thread for thread in threads if thread.get("training")] or threads[:1]
    return tuple(str(frame) for thread in training for frame in thread.get("frames") or [])


def _block(
    frames: tuple[str, ...], members: list[Notice], mark: str, cells: int, many: int
) -> list[str]:
    ranks = sorted(notice.rank for notice in members if notice.rank is not None)
    body = members[0].body
    name = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"
    lines = wrap(f"{mark}{name}", cells)
    lines += wrap(f"  {len(members)} of {counted(many, 'rank')}", cells)
    lines += wrap(f"  in {body.get('phase', '?')}, step {body.get('step', '?')}", cells)
    lines.append("")
    for frame in frames or ("no Python frame",):
        lines += wrap(frame, cells)
    return lines


def ranges(ranks: Sequence[int]) -> str:
    """``0-4, 6, 7``."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    words = [f"{p[0]}-{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts]
    return ", ".join(words)


def _beside(blocks: list[list[str]], cells: int) -> str:
    height = max(len(block) for block in blocks)
    padded = [block + [""] * (height - len(block)) for block in blocks]
    rows = zip(*padded, strict=True)
    return "\n".join((" " * GAP).join(left(text, cells) for text in row).rstrip() for row in rows)
