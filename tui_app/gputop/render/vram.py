"""An estimate as rows, for the command line and the estimator screen alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gputop import palette
from gputop.render import numbers
from gputop.render.bars import bar, spark, stacked_bar, stacked_columns
from gputop.render.rows import Row, left, right, row_width, shorten, wrap
from gputop_analysis.units import GIB

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.setup import Setup

NAME, FIGURES = 18, 8


def gib(size: float) -> str:
    """Bytes as GiB."""
    return numbers.gib(size / GIB)


def parts(estimate: Estimate) -> dict[str, int]:
    """Bytes of the device total by ``palette.MEMORY``: the breakdown at the peak, what is cached, the context."""
    found = {name: size for name, size in estimate.peak.breakdown.items() if size}
    found["cached"] = max(estimate.peak.reserved - estimate.peak.allocated, 0)
    found["context"] = estimate.context + estimate.nccl
    return {name: found[name] for name in palette.MEMORY if found.get(name)}


def manner(estimate: Estimate) -> str:
    """How it is trained; what of that is guessed comes first."""
    if not estimate.guessed:
        return words(estimate.setup)
    known = f"; {words(estimate.setup)}" if estimate.setup.model.hidden else ""
    return "guessed: " + "; ".join(estimate.guessed) + known


def words(setup: Setup) -> str:
    """How it is trained, in a line: ``bf16, seq 4096, micro-batch 2, adamw, full checkpointing``."""
    if not setup.model.hidden:
        return "as the script trains it"
    said = [setup.dtype if not setup.weights else f"{setup.dtype} on {setup.weights} weights"]
    if setup.lora is not None:
        said.append(f"{f'QLoRA {setup.quantized}' if setup.quantized else 'LoRA'} r{setup.lora.rank}")
    said += [f"seq {setup.seq}", f"micro-batch {setup.micro_batch}", setup.optimizer]
    if setup.images:
        said.append(f"{setup.images} x {setup.image_size} px")
    if setup.checkpointing != "none":
        said.append(f"{setup.checkpointing} checkpointing")
    if setup.loss != "plain":
        said.append(f"{setup.loss} loss")
    if setup.attention != "sdpa":
        said.append(f"{setup.attention} attention")
    return ", ".join([*said, *_parallel_words(setup)])


def _parallel_words(setup: Setup) -> list[str]:
    parallel = setup.parallel
    said = [f"{name} {size}" for name in ("tp", "pp", "cp", "ep") if (size := getattr(parallel, name)) > 1]
    if parallel.dp > 1:
        kind = parallel.sharding if parallel.sharding != "none" else "dp"
        said.append(f"{kind} x{parallel.dp}")
    if parallel.offload != "none":
        said.append(f"{parallel.offload} on the host")
    return said


def bounds(estimate: Estimate) -> tuple[int, int]:
    """Device total, bytes, between which nine of ten measurements of this kind lay."""
    low, high = estimate.interval_pct
    besides = estimate.context + estimate.nccl
    reserved = estimate.peak.reserved
    return round(reserved * (1 + low / 100)) + besides, round(reserved * (1 + high / 100)) + besides


def headline(estimate: Estimate) -> Row:
    """``79.1 GiB  (76.2 to 82.0)  by formula``."""
    low, high = bounds(estimate)
    return [
        (f"{gib(estimate.device_total)} GiB", "bold text"),
        (f"  {gib(low)} to {gib(high)}", "text"),
        (f"   {estimate.peak.tier} tier", "accent"),
    ]


def figures(estimate: Estimate, width: int = 80) -> Row:
    """Allocated, reserved and what is not PyTorch's."""
    peak = estimate.peak
    row: Row = [("allocated ", "muted"), (gib(peak.allocated), "text"), ("  reserved ", "muted")]
    context = "  CUDA context " if width >= 64 else "  CUDA "
    row += [(gib(peak.reserved), "text"), (context, "muted"), (gib(estimate.context), "text")]
    return [*row, ("  NCCL ", "muted"), (gib(estimate.nccl), "text")] if estimate.nccl else row


def total_bar(estimate: Estimate, width: int, mono: bool = False, most: int = 0) -> Row:
    """The device total as one bar; on a scale of ``most`` bytes where that is more."""
    found = parts(estimate)
    scale = max(most, estimate.device_total)
    cells = max(1, min(width, round(width * estimate.device_total / scale)))
    looks = [palette.MEMORY[name] for name in found]
    row = stacked_bar(list(found.values()), [o.style for o in looks], [o.letter for o in looks], cells, mono)
    return [*row, ("░" * (width - cells), "track")] if cells < width else row


def table(estimate: Estimate, width: int, mono: bool = False, against: Mapping[str, int] | None = None) -> list[Row]:
    """One line a category: GiB, share of the device total and a bar; the difference to ``against`` where given."""
    found = parts(estimate)
    names = [name for name in palette.MEMORY if name in found or (against and against.get(name))]
    total = max(estimate.device_total, 1)
    rows: list[Row] = []
    for name in names:
        look, size = palette.MEMORY[name], found.get(name, 0)
        row: Row = [((look.letter if mono else "■") + " ", look.style), (left(title(name), NAME - 2), "text")]
        row.append((right(_size(size), FIGURES), "text"))
        if against is not None:
            row.append(difference(size - against.get(name, 0)))
        else:
            row.append((right(numbers.percent(size / total), 7), "muted"))
        cells = width - row_width(row) - 2
        rows.append([*row, ("  ", ""), *bar(size / total, cells, look.style)] if cells >= 6 else row)
    return rows


def _size(size: int) -> str:
    """In GiB; what would round to nothing in MiB, with its unit."""
    return gib(size) if size >= GIB // 20 else f"{size / 2**20:.1f} M"


def difference(size: int) -> tuple[str, str]:
    """A change of so many bytes in nine cells: less is good."""
    if abs(size) < GIB // 200:
        return right("·", 9), "muted"
    text = f"{'+' if size > 0 else '-'}{gib(abs(size))}"
    return right(text, 9), "high" if size > 0 else "good"


def title(category: str) -> str:
    """A category as people read it."""
    special = {"logits_loss": "logits and loss", "cached": "cached, idle", "context": "CUDA and NCCL"}
    return special.get(category, category.replace("_", " "))


def peak_rows(estimate: Estimate, width: int, height: int = 1) -> list[Row]:
    """Which operation is the peak, and the course of one step in ``height`` rows."""
    peak = estimate.peak
    rows: list[Row] = [[("peak in ", "muted"), (shorten(peak.operation, width - 8), "text")]]
    if peak.oom:
        rows.append([("✖ runs out of memory in ", "critical"), (shorten(peak.oom, width - 24), "text")])
    elif peak.retries:
        rows.append([(f"≈ runs, after giving its cache back {peak.retries} times", "medium")])
    if peak.phases:
        row: Row = []
        for name, size in peak.phases.items():
            row += [(("  " if row else "") + name + " ", "muted"), (gib(size), "text")]
        rows += [row] if row_width(row) <= width else []
    return rows + (_timeline(peak.timeline, width, height) if peak.timeline else [])


def _timeline(timeline: Sequence[tuple[float, int]], width: int, height: int) -> list[Row]:
    """Allocated bytes over one step: a line of blocks, or columns with the scale at the left."""
    values = resampled([size for _, size in timeline], width - 8)
    if height < 3:
        return [[("a step  ", "muted"), *spark(values, width - 8, max(values), "allocated")]]
    drawn = stacked_columns([[value] for value in values], ["allocated"], ["a"], height, max(values), False)
    labels = [gib(max(values)), *[""] * (height - 2), "a step"]
    return [[(left(label, 8), "muted"), *row] for label, row in zip(labels, drawn, strict=True)]


def resampled(values: list[int], count: int) -> list[float]:
    """``values`` in ``count`` columns, each the highest of its part."""
    found = []
    for x in range(count):
        first = x * len(values) // count
        found.append(float(max(values[first : max((x + 1) * len(values) // count, first + 1)])))
    return found


def lever_rows(estimate: Estimate, width: int, chosen: int | None = None) -> list[Row]:
    """One line a lever: what it saves, what it is, what is left and where that fits."""
    rows: list[Row] = []
    for index, lever in enumerate(estimate.levers):
        ground = "/cursor" if index == chosen else ""
        then = f"{gib(lever.reserved)} GiB" + (f", fits {short_gpu(lever.gpu)}" if lever.gpu else "")
        room = width - 10 - len(then) - 2
        if room < 16:
            then, room = f"{gib(lever.reserved)}", width - 10 - 8
        row: Row = [
            (right("-" + gib(lever.saves), 8) + "  ", "good" + ground),
            (left(lever.change, room), "text" + ground),
        ]
        rows.append([*row, (right(then, width - 10 - room), "muted" + ground)])
    return rows


def short_gpu(name: str) -> str:
    """Without the name of the family: ``RTX 5080``."""
    return name.removeprefix("GeForce ")


def notes(estimate: Estimate, width: int) -> list[Row]:
    """What was assumed or left out, and where the numbers come from."""
    rows: list[Row] = []
    for note in (*estimate.peak.notes, *estimate.notes):
        rows += [
            [("· " if index == 0 else "  ", "muted"), (line, "text")]
            for index, line in enumerate(wrap(note, width - 2))
        ]
    for source in (*estimate.peak.sources, *estimate.sources):
        rows += [[("  ", ""), (line, "muted")] for line in wrap(source, width - 2)]
    return rows
