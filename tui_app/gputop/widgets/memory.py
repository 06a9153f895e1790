"""Memory: per GPU what is allocated, reserved, used and the peak; without a GPU the resident set of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop.feed.prediction import Prediction
from gputop.feed.snapshot import Snapshot
from gputop.render import numbers
from gputop.render.bars import layered_bar
from gputop.render.rows import Row, clip, left, right, row_width, say
from gputop.widgets.scrolling import ScrollingPanel

if TYPE_CHECKING:
    from gputop_analysis.model import GpuSummary, RankSummary

LABEL = 11
WIDE = 76
NO_GPU = "no GPU in use here"
DOCTOR = "GPU panels are off; `gputop doctor` tells more"


def draw(snapshot: Snapshot, width: int, height: int, first: int = 0) -> list[Row]:
    """A heading, then one line a GPU, or a rank where there is no GPU; ``first`` lines are scrolled away."""
    run = snapshot.summary
    if run.gpus:
        head, *lines = gpu_lines(snapshot, width)
        shown = [head, *lines[first : first + height - 1]]
    elif run.ranks:
        shown = rank_lines(snapshot, width, run.ranks[first : first + height - 1])
    else:
        return say("Known once a rank has trained its first step.", width)
    if snapshot.prediction is not None and not run.gpus and len(shown) < height:
        shown.append(predicted(snapshot.prediction, width))
    if not run.gpus and len(shown) < height:
        room = height - len(shown)
        shown += say(why_no_gpu(snapshot), width)[:room]
    return shown


def predicted(found: Prediction, width: int) -> Row:
    """``predicted 41.2, measured 41.0 (-0.5 %)``, peak allocated of one GPU; on a CPU what a GPU would need."""
    by = f"{found.tier} tier" + (", calibrated" if found.calibrated else "")
    off = found.off_pct
    if off is None or found.measured_gib is None:
        row: Row = [
            ("on a GPU ", "muted"),
            (f"{numbers.gib(found.device_total_gib)} GiB", "text"),
            (f" predicted, {by}", "muted"),
        ]
        return clip(row, width)
    row = [
        ("predicted ", "muted"),
        (numbers.gib(found.allocated_gib), "text"),
        (", measured ", "muted"),
    ]
    row += [
        (numbers.gib(found.measured_gib), "text"),
        (f" ({off:+.1f} %)", "muted" if abs(off) < 10 else "high"),
    ]
    return clip([*row, (f", {by}", "muted")], width)


def why_no_gpu(snapshot: Snapshot) -> str:
    """What is missing and where to learn more."""
    note = snapshot.gpu_note or NO_GPU
    return note if "doctor" in note else f"{note}: {DOCTOR}"


def gpu_lines(snapshot: Snapshot, width: int) -> list[Row]:
    """Each device with what the ranks on it hold: allocated and reserved by PyTorch, used and total by the driver."""
    on: dict[tuple[str, int], list[RankSummary]] = {}
    for rank in snapshot.summary.ranks:
        if rank.rank in snapshot.devices:
            on.setdefault(snapshot.devices[rank.rank], []).append(rank)
    columns = (
        ["alloc", "reserved", "used", "peak", "total"]
        if width >= WIDE
        else ["alloc", "used", "peak", "total"]
    )
    rows = [_heading("GPU", columns, width)]
    for gpu in snapshot.summary.gpus:
        rows.append(_gpu_line(gpu, on.get((gpu.host, gpu.index), []), columns, width))
    return rows


def _gpu_line(gpu: GpuSummary, ranks: list[RankSummary], columns: list[str], width: int) -> Row:
    nan = float("nan")
    allocated = sum(r.allocated_gib for r in ranks) if ranks else nan
    reserved = sum(r.reserved_gib for r in ranks) if ranks else nan
    peak = sum(r.peak_allocated_gib for r in ranks) if ranks else gpu.peak_used_gib
    held = reserved if reserved == reserved else 0.0
    parts = [
        (allocated, "allocated", "━"),
        (held - allocated, "reserved", "━"),
        (gpu.memory_used_gib - held, "foreign", "━"),
    ]
    if not numbers.known(allocated):
        parts = [(gpu.memory_used_gib, "allocated", "━")]
    values = {"alloc": allocated, "reserved": reserved, "used": gpu.memory_used_gib, "peak": peak}
    values["total"] = gpu.memory_total_gib
    name = f"{gpu.index}" + ("" if len(ranks) != 1 else f"  rank {ranks[0].rank}")
    return _line(name, parts, peak, gpu.memory_total_gib, [values[c] for c in columns], width)


def rank_lines(snapshot: Snapshot, width: int, ranks: tuple[RankSummary, ...]) -> list[Row]:
    """A heading, then the resident memory of these ranks against what their hosts have."""
    totals = {host.host: host.memory_total_gib for host in snapshot.summary.hosts}
    rows = [_heading("rank", ["rss", "peak", "host"], width)]
    for rank in ranks:
        total = totals.get(rank.host, float("nan"))
        figures = [rank.rss_gib, rank.peak_rss_gib, total]
        rows.append(
            _line(
                f"{rank.rank:>4}",
                [(rank.rss_gib, "allocated", "━")],
                rank.peak_rss_gib,
                total,
                figures,
                width,
            )
        )
    return rows


def figure_width(width: int) -> int:
    """Cells of one column of figures."""
    return 9 if width >= WIDE else 8


def _heading(name: str, columns: list[str], width: int) -> Row:
    each = figure_width(width)
    cells = width - LABEL - len(columns) * each
    return [
        (
            left(name, LABEL) + " " * max(cells, 0) + "".join(right(c, each) for c in columns),
            "muted",
        )
    ]


def _line(
    name: str,
    parts: list[tuple[float, str, str]],
    peak: float,
    total: float,
    figures: list[float],
    width: int,
) -> Row:
    each = figure_width(width)
    cells = width - LABEL - len(figures) * each
    row: Row = [(left(name, LABEL), "text"), *layered_bar(parts, peak, total, cells)]
    for index, value in enumerate(figures):
        row.append((right(numbers.gib(value), each), "text" if index == 0 else "muted"))
    return row


class Memory(ScrollingPanel):
    """Panel 2."""

    def item_count(self, snapshot: Snapshot) -> int:
        return len(snapshot.summary.gpus) or len(snapshot.summary.ranks)

    def visible_items(self) -> int:
        return max(1, self.size.height - 2)

    def note(self, snapshot: Snapshot) -> Row:
        if not snapshot.summary.gpus:
            return [("GiB", "muted")]
        row: Row = [
            ("━ ", "allocated"),
            ("allocated  ", "muted"),
            ("━ ", "reserved"),
            ("reserved  ", "muted"),
        ]
        row += [("━ ", "foreign"), ("other  ", "muted"), ("┃ ", "accent"), ("peak  GiB", "muted")]
        if snapshot.prediction is None:
            return row
        told = predicted(snapshot.prediction, self.size.width - 14)
        both: Row = [*told, ("   ", ""), *row]
        return both if row_width(both) + 14 <= self.size.width else told

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        return draw(snapshot, width, height, self.first)
