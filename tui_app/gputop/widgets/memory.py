"""Memory: per GPU what is used, allocated, reserved and the peak; without a GPU the resident set of each rank."""

from __future__ import annotations

from gputop.feed.snapshot import Snapshot
from gputop.render import numbers
from gputop.render.rows import Row, left, right, wrap
from gputop.widgets.panel import Panel
from gputop_analysis.model import GpuSummary, RankSummary

LABEL = 9
FIGURES = 28
NO_GPU = "no GPU in use here: GPU panels are off; `gputop doctor` tells more"


def draw(snapshot: Snapshot, width: int, height: int, first: int = 0) -> list[Row]:
    """One line a GPU and one a rank, ``first`` lines scrolled away."""
    run = snapshot.summary
    if not run.gpus and not run.ranks:
        return [[("Known once a rank has trained its first step.", "muted")]]
    lines = gpu_lines(snapshot, width) if run.gpus else host_lines(snapshot, width)
    shown = lines[first : first + height]
    if not run.gpus and len(shown) < height:
        text = snapshot.gpu_note or NO_GPU
        shown += [[(line, "muted")] for line in wrap(text, width)[: height - len(shown)]]
    return shown


def gpu_lines(snapshot: Snapshot, width: int) -> list[Row]:
    """Each device, and below it the ranks that hold memory on it."""
    rows: list[Row] = []
    for gpu in snapshot.summary.gpus:
        rows.append(_gpu_line(gpu, width))
    devices = {gpu.index: gpu for gpu in snapshot.summary.gpus}
    for rank in snapshot.summary.ranks:
        total = _total_of(rank, devices)
        if numbers.known(rank.allocated_gib) and total > 0:
            rows.append(_rank_line(rank, total, width))
    return rows


def _total_of(rank: RankSummary, devices: dict[int, GpuSummary]) -> float:
    digits = "".join(c for c in rank.device if c.isdigit())
    gpu = devices.get(int(digits)) if digits else None
    return (gpu or next(iter(devices.values()))).memory_total_gib


def _gpu_line(gpu: GpuSummary, width: int) -> Row:
    cells = width - LABEL - FIGURES
    row = memory_bar([(gpu.memory_used_gib, "meter")], gpu.peak_used_gib, gpu.memory_total_gib, cells)
    return [
        (left(f"GPU {gpu.index}", LABEL), "text"),
        *row,
        *_figures(gpu.memory_used_gib, gpu.memory_total_gib, gpu.peak_used_gib),
    ]


def _rank_line(rank: RankSummary, total: float, width: int) -> Row:
    cells = width - LABEL - FIGURES
    parts = [(rank.allocated_gib, "allocated"), (rank.reserved_gib - rank.allocated_gib, "reserved")]
    row = memory_bar(parts, rank.peak_allocated_gib, total, cells)
    return [
        (left(f"rank {rank.rank}", LABEL), "muted"),
        *row,
        *_figures(rank.allocated_gib, rank.reserved_gib, rank.peak_allocated_gib),
    ]


def host_lines(snapshot: Snapshot, width: int) -> list[Row]:
    """Resident memory of each rank against what its host has."""
    totals = {host.host: host.memory_total_gib for host in snapshot.summary.hosts}
    rows: list[Row] = []
    for rank in snapshot.summary.ranks:
        total = totals.get(rank.host, float("nan"))
        row = memory_bar([(rank.rss_gib, "meter")], rank.peak_rss_gib, total, width - LABEL - FIGURES)
        rows.append(
            [(left(f"rank {rank.rank}", LABEL), "text"), *row, *_figures(rank.rss_gib, total, rank.peak_rss_gib)]
        )
    return rows


def _figures(value: float, total: float, peak: float) -> Row:
    return [
        (right(numbers.gib(value), 7), "text"),
        (" / " + right(numbers.gib(total), 5), "muted"),
        (right("peak", 6) + right(numbers.gib(peak), 7), "muted"),
    ]


def memory_bar(parts: list[tuple[float, str]], peak: float, total: float, width: int) -> Row:
    """Parts one after another on a track of ``total``, with a mark at ``peak``."""
    if width < 3 or not total > 0:
        return [(" " * max(width, 0), "")]
    cells: list[tuple[str, str]] = [("·", "track")] * width
    start = 0.0
    for value, style in parts:
        end = start + (value if value == value and value > 0 else 0.0)
        low, high = round(start / total * width), round(end / total * width)
        if end > start:
            high = max(high, low + 1)
        for x in range(low, min(high, width)):
            cells[x] = ("█", style)
        start = end
    if peak == peak and peak > 0:
        x = min(width - 1, int(peak / total * width))
        if cells[x][0] == "·":
            cells[x] = ("▏", "accent")
    return cells


class Memory(Panel):
    """Panel 2."""

    number = "2"
    title = "Memory"

    def note(self, snapshot: Snapshot) -> str:
        run = snapshot.summary
        if any(numbers.known(rank.allocated_gib) for rank in run.ranks) and run.gpus:
            return "GPU: used / total · rank: allocated / reserved · GiB"
        return "used / total, GiB" if run.gpus else "resident / host, GiB"

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        return draw(snapshot, width, height)
