"""An estimate as rows, for the command line and the estimator screen alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gputop import palette
from gputop.render import numbers
from gputop.render.bars import bar, spark, stacked_bar, stacked_columns
from gputop.render.rows import Row, hanging, left, right, row_width, shorten, whole
from gputop_analysis.catalog.denoisers import is_denoiser
from gputop_analysis.catalog.other_kinds import TIMM, takes_tokens
from gputop_analysis.units import GIB
from gputop_analysis.vram.peft_config import kind

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.setup import Lora, Setup

NAME, FIGURES = 18, 8
WITH_LIKELY = 34
"""Columns from which on a range says what it is."""


def gib(size: float) -> str:
    """Bytes as GiB."""
    return numbers.gib(size / GIB)


def parts(estimate: Estimate) -> dict[str, int]:
    """Bytes of the device total by ``palette.MEMORY``: the peak's parts, cache, context."""
    sizes = {}
    for name, size in estimate.peak.breakdown.items():
        if size:
            sizes[name] = size
    sizes["cached"] = max(estimate.peak.reserved - estimate.peak.allocated, 0)
    sizes["context"] = estimate.context + estimate.nccl
    return {name: sizes[name] for name in palette.MEMORY if sizes.get(name)}


def manner(estimate: Estimate) -> str:
    """Rows on how it is trained; guesses come first."""
    if not estimate.guessed:
        return words(estimate.setup)
    recipe = ""
    if estimate.setup.model.hidden:
        recipe = f"; {words(estimate.setup)}"
    return "guessed: " + "; ".join(estimate.guessed) + recipe


def words(setup: Setup) -> str:
    """Recipe of the training in a line: ``bf16, seq 4096, micro-batch 2, adamw, full
    checkpointing``.
    """
    if not setup.model.hidden and not _is_configured(setup):
        return "as the script trains it"
    pieces = [setup.dtype]
    if setup.weights:
        pieces = [f"{setup.dtype} on {setup.weights} weights"]
    if setup.lora is not None:
        pieces.append(_adapter(setup.lora, setup.quantized))
    if takes_tokens(setup.model.family):
        pieces.append(f"seq {setup.seq}")
    steps = f" x {setup.accumulation}" if setup.accumulation > 1 else ""
    pieces += [f"micro-batch {setup.micro_batch}{steps}", setup.optimizer]
    if setup.images:
        pieces.append(f"{setup.images} x {setup.image_size} px")
    elif setup.image_size and _has_images_alone(setup):
        pieces.append(f"{setup.image_size} px")
    if setup.cached:
        pieces.append(f"cached {' and '.join(setup.cached)}")
    if setup.checkpointing != "none":
        pieces.append(f"{setup.checkpointing} checkpointing")
    if setup.loss != "plain":
        pieces.append(f"{setup.loss} loss")
    if setup.attention != "sdpa":
        pieces.append(f"{setup.attention} attention")
    return ", ".join([*pieces, *_parallel_words(setup)])


def _adapter(lora: Lora, quantized: str) -> str:
    if lora.peft:
        return kind(lora.peft)
    name = "DoRA" if lora.dora else "LoRA"
    if quantized:
        name = f"Q{name} {quantized}"
    return f"{name} r{lora.rank}"


def _is_configured(setup: Setup) -> bool:
    """Whether a model without dimensions came from a configuration, so that options train it."""
    return setup.model.source.endswith(".json") or setup.model.source.startswith("hub:")


def _has_images_alone(setup: Setup) -> bool:
    """Whether the size of an image says how much goes through the model."""
    return is_denoiser(setup.model.family) or setup.model.family == TIMM


def _parallel_words(setup: Setup) -> list[str]:
    parallel = setup.parallel
    pieces = []
    for name in ("tp", "pp", "cp", "ep"):
        if (size := getattr(parallel, name)) > 1:
            pieces.append(f"{name} {size}")
    if parallel.dp > 1:
        if parallel.sharding != "none":
            sharding = parallel.sharding
        else:
            sharding = "dp"
        pieces.append(f"{sharding} x{parallel.dp}")
    if parallel.offload != "none":
        pieces.append(f"{parallel.offload} on the host")
    return pieces


def bounds(estimate: Estimate) -> tuple[int, int]:
    """Device total, bytes, between which nine of ten measurements of this kind lay."""
    low, high = estimate.interval_pct
    besides = estimate.context + estimate.nccl
    reserved = estimate.peak.reserved
    return round(reserved * (1 + low / 100)) + besides, round(reserved * (1 + high / 100)) + besides


def headline(estimate: Estimate, width: int = 80) -> Row:
    """``79.1 GiB  likely 76.2 to 82.0   formula tier``, as much as fits."""
    low, high = bounds(estimate)
    total: Row = [(f"{gib(estimate.device_total)} GiB", "bold text")]
    likely = "likely " if width >= WITH_LIKELY else ""
    span: Row = [(f"  {likely}{gib(low)} to {gib(high)}", "text")]
    return whole([total, span, [(f"   {estimate.peak.tier} tier", "accent")]], width)


def likely(estimate: Estimate) -> str:
    """The typical range and the safe end, in GiB, and what was never measured; empty where the
    tier was measured on too few sources.
    """
    if estimate.typical_pct is None:
        return ""
    besides = estimate.context + estimate.nccl
    low, high = (
        gib(round(estimate.peak.reserved * (1 + part / 100)) + besides)
        for part in estimate.typical_pct
    )
    text = f"typically {low} to {high}, needs at most {gib(estimate.at_most)} in 19 of 20 runs"
    if not estimate.uncalibrated:
        return text
    return f"{text}; wider since never measured: {', '.join(estimate.uncalibrated)}"


def figures(estimate: Estimate, width: int = 80) -> Row:
    """Allocated, reserved and what is not PyTorch's in GiB, as much as fits."""
    peak = estimate.peak
    named = [("allocated ", peak.allocated), ("  reserved ", peak.reserved)]
    named.append(("  CUDA context " if width >= 64 else "  CUDA ", estimate.context))
    if estimate.nccl:
        named.append(("  NCCL ", estimate.nccl))
    parts_shown: list[Row] = [[(name, "muted"), (gib(size), "text")] for name, size in named]
    unit: Row = [(" GiB", "muted")]
    return [*whole(parts_shown, width - row_width(unit)), *unit]


def total_bar(estimate: Estimate, width: int, mono: bool = False, scale_bytes: int = 0) -> Row:
    """The device total as one bar; on a scale of ``scale_bytes`` where that is more."""
    sizes = parts(estimate)
    scale = max(scale_bytes, estimate.device_total)
    cells = max(1, min(width, round(width * estimate.device_total / scale)))
    looks = [palette.MEMORY[name] for name in sizes]
    row = stacked_bar(
        list(sizes.values()),
        [o.style for o in looks],
        letters=[o.letter for o in looks],
        width=cells,
        mono=mono,
    )
    if cells < width:
        return [*row, ("░" * (width - cells), "track")]
    return row


def table(
    estimate: Estimate, width: int, mono: bool = False, against: Mapping[str, int] | None = None
) -> list[Row]:
    """A line a category: GiB, share of the total, a bar; the difference to any ``against``."""
    sizes = parts(estimate)
    names = [name for name in palette.MEMORY if name in sizes or (against and against.get(name))]
    total = max(estimate.device_total, 1)
    rows: list[Row] = []
    for name in names:
        look, size = palette.MEMORY[name], sizes.get(name, 0)
        key = "■"
        if mono:
            key = look.letter
        row: Row = [
            (key + " ", look.style),
            (left(title(name), NAME - 2), "text"),
            (right(_size(size), FIGURES), "text"),
        ]
        if against is not None:
            row.append(difference(size - against.get(name, 0)))
        else:
            row.append((right(numbers.percent(size / total), 7), "muted"))
        cells = width - row_width(row) - 2
        if cells >= 6:
            row += [("  ", ""), *bar(size / total, cells, look.style)]
        rows.append(row)
    return rows


def _size(size: int) -> str:
    """Size in GiB; in MiB, which it says, where GiB would round to nothing."""
    if size >= GIB // 20:
        return gib(size)
    return f"{size / 2**20:.1f} MiB"


def difference(size: int) -> tuple[str, str]:
    """A change of so many bytes in nine cells: less is good."""
    if abs(size) < GIB // 200:
        return right("·", 9), "muted"
    sign, style = "−", "good"
    if size > 0:
        sign, style = "+", "high"
    return right(sign + gib(abs(size)), 9), style


def title(category: str) -> str:
    """A category as people read it."""
    special = {
        "logits_loss": "logits and loss",
        "cached": "cached, idle",
        "context": "CUDA and NCCL",
    }
    return special.get(category, category.replace("_", " "))


def peak_rows(estimate: Estimate, width: int, height: int = 1) -> list[Row]:
    """Operation at the peak, and the course of memory over one step in ``height`` rows."""
    peak = estimate.peak
    rows: list[Row] = [[("peak in ", "muted"), (shorten(peak.operation, width - 8), "text")]]
    if peak.oom:
        rows.append(
            [("✖ runs out of memory in ", "critical"), (shorten(peak.oom, width - 24), "text")]
        )
    elif peak.retries:
        rows.append([(f"≈ runs, after giving its cache back {peak.retries} times", "medium")])
    if peak.phases:
        row: Row = []
        for name, size in peak.phases.items():
            row += [(("  " if row else "") + name + " ", "muted"), (gib(size), "text")]
        if row_width(row) <= width:
            rows += [row]
    if peak.timeline:
        rows += _timeline(peak.timeline, width, height)
    return rows


def _timeline(timeline: Sequence[tuple[float, int]], width: int, height: int) -> list[Row]:
    """Allocated bytes over one step: a line of blocks, or columns with the scale at the left."""
    values = resampled([size for _, size in timeline], width - 8)
    if height < 3:
        return [[("a step  ", "muted"), *spark(values, width - 8, max(values), "allocated")]]
    drawn = stacked_columns(
        [[value] for value in values],
        ["allocated"],
        letters=["a"],
        height=height,
        top=max(values),
        mono=False,
    )
    labels = [gib(max(values)), *[""] * (height - 2), "a step"]
    return [[(left(label, 8), "muted"), *row] for label, row in zip(labels, drawn, strict=True)]


def resampled(values: list[int], count: int) -> list[float]:
    """``values`` in ``count`` columns, each the highest of its part."""
    points = []
    for x in range(count):
        first = x * len(values) // count
        points.append(float(max(values[first : max((x + 1) * len(values) // count, first + 1)])))
    return points


def lever_rows(estimate: Estimate, width: int, chosen: int | None = None) -> list[Row]:
    """One line a lever: what it saves, what it is, what is left and where that fits; as the total
    above, with what is not the allocator's.
    """
    from gputop_analysis.vram.fits import overhead

    rows: list[Row] = []
    for index, lever in enumerate(estimate.levers):
        ground = ""
        if index == chosen:
            ground = "/cursor"
        total = lever.reserved + overhead(lever.setup)
        then = f"{gib(total)} GiB"
        if lever.gpu:
            then += f", fits {short_gpu(lever.gpu)}"
        room = width - 10 - len(then) - 2
        if room < 16:
            then, room = f"{gib(total)}", width - 10 - 8
        row: Row = [
            (right("−" + gib(estimate.device_total - total), 8) + "  ", "good" + ground),
            (left(lever.change, room), "text" + ground),
        ]
        rows.append([*row, (right(then, width - 10 - room), "muted" + ground)])
    return rows


def short_gpu(name: str) -> str:
    """The catalog's first other name where that is shorter, and without that of the family:
    ``H100``, ``RTX 5080``.
    """
    from gputop_analysis import catalog

    shorter = min([name, *catalog.gpu(name).aliases[:1]], key=len)
    return shorter.removeprefix("GeForce ")


def notes(estimate: Estimate, width: int) -> list[Row]:
    """Assumptions and omissions, and where the numbers come from."""
    rows: list[Row] = []
    for note in (*estimate.peak.notes, *estimate.notes):
        rows += [[(line, "text")] for line in hanging(f"· {note}", width)]
    for source in (*estimate.peak.sources, *estimate.sources):
        rows += [[(line, "muted")] for line in hanging(f"· {source}", width)]
    return rows
