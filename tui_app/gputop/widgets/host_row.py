"""One host in a row: CPU, memory, disk and network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop.feed.snapshot import Resources, Snapshot
from gputop.render import braille, numbers
from gputop.render.bars import bar, fullness
from gputop.render.rows import Row, clip, left, right, row_width, shorten
from gputop.widgets.rank_columns import TREND_DOTS

if TYPE_CHECKING:
    from gputop_analysis.model import HostSummary

LEAST_NET = 0.05
"""MB/s from which on the network is worth a word."""


def host_row(host: HostSummary, snapshot: Snapshot, width: int) -> Row:
    """CPU, memory, disk and network of one host; one that does not fit is left out, never cut."""
    name = host.host if len(snapshot.summary.hosts) > 1 else "host"
    row: Row = [(left(shorten(name, 8), 8), "muted")]
    series = snapshot.history.of(f"cpu {host.host}")
    row += [("CPU ", "muted"), (braille.area(series, 10, 100.0, TREND_DOTS), "meter")]
    row += [(right(numbers.whole(host.cpu_pct), 4), "text"), (f" % of {host.cpu_count}", "muted")]
    if host.memory_total_gib:
        share = host.memory_used_gib / host.memory_total_gib
    else:
        share = 0.0
    memory: Row = [("RAM ", "muted"), (numbers.gib(host.memory_used_gib), "text")]
    memory += [(f"/{host.memory_total_gib:,.0f} GiB ", "muted"), *bar(share, 10, fullness(share))]
    disk: Row = [("disk ", "muted"), (numbers.rate(host.disk_read_mb_s), "text")]
    disk += [
        (" in ", "muted"),
        (numbers.rate(host.disk_write_mb_s), "text"),
        (" out MB/s", "muted"),
    ]
    fields = [memory, disk]
    waits = numbers.known(host.run_wait_share) and host.run_wait_share >= 0.005
    if waits and not snapshot.ended:  # of the last 10 s: findings tell the whole window's
        share_text = numbers.percent(host.run_wait_share)
        fields.insert(0, [("waiting for a core now ", "muted"), (share_text, "text")])
    resources = snapshot.panels.get("history", Resources())
    net = resources.newest("net")
    if net >= LEAST_NET and len(snapshot.summary.hosts) == 1:
        fields.append([("net ", "muted"), (numbers.rate(net), "text"), (" MB/s", "muted")])
    for field in fields:
        if row_width(row) + row_width(field) + 3 <= width:
            row += [("   ", ""), *field]
    return clip(row, width)
