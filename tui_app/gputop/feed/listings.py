"""Pictures made of words: where each rank stands, what was raised, what the command wrote last."""

from __future__ import annotations

from gputop.feed.plots import Listing
from gputop_analysis.hangs.standstill import standstill
from gputop_analysis.hangs.user_line import dumped_line
from gputop_analysis.model import Finding
from gputop_analysis.text import MISSING
from gputop_analysis.view import RunView
from gputop_probes.record.files import tail_text
from gputop_probes.record.layout import OUTPUT_FILES

RANKS_AT_MOST = 64
OUTPUT_BYTES = 4096
OUTPUT_LINES = 14


def stacks(view: RunView, finding: Finding) -> Listing | None:
    """A line a rank of the stack dumps that judge a hang, else the newest; the finding's marked."""
    hang = standstill(view)
    newest = {
        int(e["rank"]): e for e in view.record.events("stack_dump") if e.get("rank") is not None
    }
    newest = hang.dumps if hang is not None and hang.dumps else newest
    lines: list[tuple[str, bool]] = []
    for rank, dump in sorted(newest.items())[:RANKS_AT_MOST]:
        site = dumped_line(dump) or "no stack"
        collective = dump.get("collective") or {}
        waits_in = (
            f", in {collective.get('op')} #{collective.get('seq')}" if collective.get("op") else ""
        )
        phase = dump.get("phase", MISSING)
        lines.append((f"rank {rank:<4} {phase:<10} {site}{waits_in}", rank == finding.rank))
    if len(newest) > RANKS_AT_MOST:
        lines.append((f"and {len(newest) - RANKS_AT_MOST} more", False))
    if lines:
        return Listing("where each rank stands", tuple(lines))
    return None


def traceback(view: RunView, finding: Finding) -> Listing | None:
    """The first exception, of the finding's rank where it names one."""
    raised = [
        e
        for e in view.record.events("exception")
        if finding.rank is None or e.get("rank") == finding.rank
    ]
    if not raised:
        return None
    first = min(raised, key=lambda event: event.get("t_ns", 0))
    head = f"{first.get('class', 'exception')}: {first.get('message', '')}".splitlines()[0]
    frames = [
        line for frame in first.get("traceback") or [] for line in str(frame).rstrip().splitlines()
    ]
    return Listing(
        f"raised on rank {first.get('rank', MISSING)}",
        ((head, True), *((line, False) for line in frames)),
    )


def last_output(view: RunView, finding: Finding) -> Listing | None:
    """The end of what the command wrote: the error that it gave itself."""
    from gputop.output.ansi import resolve_text

    for host in view.record.hosts.values():
        for name in OUTPUT_FILES:
            text = tail_text(host.path / name, OUTPUT_BYTES).rstrip("\0\n")
            lines = [resolve_text(line).rstrip() for line in text.splitlines()[-OUTPUT_LINES:]]
            if any(lines):
                return Listing(f"end of {name}", tuple((line, False) for line in lines))
    return None
