"""The tree of layers as rows of text."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.render import numbers
from gputop.render.rows import (
    Row,
    clip,
    left,
    right,
    row_width,
    shorten,
    shorten_middle,
    text_width,
)
from gputop_analysis.layers import FoldedLayers, Layer, Layers, fold, sort_key
from gputop_analysis.units import GIB

DEEPEST = 12
_COLUMNS = (
    ("forward", 8),
    ("backward", 9),
    ("share", 7),
    ("calls", 6),
    ("activ.", 9),
    ("params", 9),
    ("grads", 9),
    ("optim.", 9),
    ("GFLOP", 8),
    ("peak", 6),
    ("type", 10),
)
_LEAST_NAME = 24
_GAP = 4
"""Cells between the longest name and the figures, where there is room."""
_TELLING = 0.005
"""Share of the time that the model's own code takes, from which on it has a row."""
_BESIDE_WIDTH = 11
"""Cells of the column with another rank's time."""
_STEPS_SHOWN = 4
_WORDS = ("type",)

Line = tuple[int, Layer | FoldedLayers, str]
"""Level, what stands there, and a note on it."""


def table(
    layers: Layers,
    width: int,
    *,
    sort: str = "order",
    search: str = "",
    folded: bool = True,
    depth: int = DEEPEST,
    beside: Layers | None = None,
    only: list[Layer] | None = None,
) -> list[Row]:
    """A heading and a row a layer; ``beside``: the same layers of another rank, their time in a
    column; ``only``: these layers, by their paths.
    """
    lines = _lines(layers, sort, search, folded, depth)
    if only is not None:
        lines = [(0, layer, "") for layer in only]
    other: dict[str, Layer] = {}
    beside_width = 0
    if beside:
        other = {layer.path: layer for layer in beside.root.walk()}
        beside_width = _BESIDE_WIDTH
    columns = _columns(width - beside_width, layers)
    by_path = bool(search) or only is not None
    room = width - sum(cells for _, cells in columns) - beside_width
    longest = max((text_width(_name(*line, by_path)) for line in lines), default=0)
    name_width = min(room, max(longest + _GAP, _LEAST_NAME))
    heading: Row = [(left("layer", name_width), "muted")]
    if beside:
        heading.append((right(f"rank {beside.rank}", beside_width), "muted"))
    heading += [(right(name, cells), "muted") for name, cells in columns]
    rows = [heading]
    for level, row, note in lines:
        name = _name(level, row, note, by_path, name_width - 1)
        cells: Row = [(left(shorten_middle(name, name_width - 1), name_width), "text")]
        if beside:
            cells.append((right(_beside(row, other), beside_width), "text"))
        values = _values(layers, row)
        cells += [(right(values[name], size), _style(name)) for name, size in columns]
        rows.append(clip(cells, width))
    return rows


def summary(layers: Layers, width: int) -> list[Row]:
    """Sentences above the table: what was watched, and how its parts add up."""
    count = len(layers.steps)
    steps = ", ".join(map(str, layers.steps[-_STEPS_SHOWN:]))
    earlier = "… " if count > _STEPS_SHOWN else ""
    if layers.clock == "device":
        clock = "the device's clock"
    else:
        clock = "the host's clock"
    watched = f"{'step' if count == 1 else 'steps'} {earlier}{steps}"
    if count > 1:
        watched = f"median of {count}: {watched}"
    text = f"rank {layers.rank}, {watched}, ms by {clock}"
    parts = (
        f"forward {numbers.ms(layers.root.forward_ms)} ms"
        f" + {numbers.ms(layers.outside_forward_ms)} outside layers,"
        f" backward {numbers.ms(layers.root.backward_ms)}"
        f" + {numbers.ms(layers.outside_backward_ms)}; share: of all"
    )
    rows: list[Row] = [
        [(shorten(text, width), "bold text")],
        [(shorten(parts, width), "muted")],
    ]
    if any(layer.compiled for layer in layers.root.walk()):
        words = "what torch.compile has compiled is timed as one layer: its graph"
        rows.append([(shorten(words, width), "muted")])
    assert all(row_width(row) <= width for row in rows)
    return rows


def standing_out(layers: Layers) -> list[Layer]:
    """Layers that take far longer than their like, the slowest first."""
    slow: dict[str, Layer] = {}
    for parent in layers.root.walk():
        for row in fold(parent.children):
            if isinstance(row, FoldedLayers):
                slow |= {layer.path: layer for layer in row.outliers}
    return sorted(slow.values(), key=lambda layer: -layer.ms)


def _lines(layers: Layers, sort: str, search: str, folded: bool, depth: int) -> list[Line]:
    if search:
        hits = [layer for layer in layers.root.walk() if _matches(layer, search)]
        if sort != "order":
            hits.sort(key=sort_key(sort))
        return [(0, layer, "") for layer in hits]
    lines: list[Line] = []
    _add(lines, [layers.root], 0, (sort, folded, depth))
    rest = _rest(layers.root)
    if layers.share(rest) >= _TELLING:
        lines.append((1, rest, ""))
    return lines


def _rest(root: Layer) -> Layer:
    """What is of the whole model and of none of its layers, so that these and it add up."""
    within = root.children
    return Layer(
        root.path,
        f"in {root.kind} itself",
        forward_ms=root.own_forward_ms,
        backward_ms=root.own_backward_ms,
        parameter_bytes=root.parameter_bytes - sum(layer.parameter_bytes for layer in within),
        calls=root.calls,
    )


def _add(
    lines: list[Line],
    layers: list[Layer],
    level: int,
    how: tuple[str, bool, int],
) -> None:
    sort, folded, depth = how
    rows = fold(layers) if folded else list(layers)
    if sort != "order":
        rows = sorted(rows, key=sort_key(sort))
    for row in rows:
        lines.append((level, row, ""))
        if level >= depth:
            continue
        if isinstance(row, Layer):
            _add(lines, row.children, level + 1, how)
        elif row.members[0].children:
            if row.outliers:
                note = " (stands out)"
            else:
                note = f" (one of {len(row.members)})"
            for layer in row.outliers[:1] or row.members[:1]:
                lines.append((level + 1, layer, note))
                _add(lines, layer.children, level + 2, how)


def _matches(layer: Layer, search: str) -> bool:
    wanted = search.lower()
    return wanted in layer.path.lower() or wanted in layer.kind.lower()


def _columns(width: int, layers: Layers) -> list[tuple[str, int]]:
    columns = [
        (name, cells)
        for name, cells in _COLUMNS
        if (name != "GFLOP" or layers.counted_flops) and (name != "peak" or layers.peak_flops)
    ]
    while columns and sum(cells for _, cells in columns) > width - _LEAST_NAME:
        columns.pop()
    return columns


def _name(
    level: int, row: Layer | FoldedLayers, note: str, by_path: bool, width: int | None = None
) -> str:
    indent = "  " * level
    if isinstance(row, FoldedLayers):
        return indent + row.told(None if width is None else width - len(indent))
    marks = " (compiled)" * row.compiled + " (recomputed)" * row.recomputed
    name = row.path if by_path and row.path else row.name
    text = row.kind if name == row.kind else f"{name}  {row.kind}"
    return f"{indent}{text}{note}{marks}"


def _values(layers: Layers, row: Layer | FoldedLayers) -> dict[str, str]:
    """The text of each column."""
    members = _members(row)
    flops = sum(layer.flops for layer in members)
    peak = layers.of_peak(row) if isinstance(row, Layer) else None
    return {
        **_times(layers, members),
        "calls": str(sum(layer.calls for layer in members)),
        "activ.": _bytes(sum(layer.activation_bytes for layer in members)),
        "params": _bytes(sum(layer.parameter_bytes for layer in members)),
        "grads": _bytes(sum(layer.gradient_bytes for layer in members)),
        "optim.": _bytes(sum(layer.optimizer_bytes for layer in members)),
        "GFLOP": f"{flops / 1e9:.3g}" if flops else numbers.NONE,
        "peak": numbers.NONE if peak is None else numbers.percent(peak),
        "type": members[0].dtype or numbers.NONE,
    }


def _times(layers: Layers, members: Sequence[Layer]) -> dict[str, str]:
    forward_ms = sum(layer.forward_ms for layer in members)
    backward_ms = sum(layer.backward_ms for layer in members)
    if not (forward_ms or backward_ms or any(layer.calls for layer in members)):
        # of a layer that was never called, such as one whose weights others read, no time is known
        return dict.fromkeys(("forward", "backward", "share"), numbers.NONE)
    return {
        "forward": numbers.ms(forward_ms),
        "backward": numbers.ms(backward_ms),
        "share": numbers.percent(sum(map(layers.share, members)), 1),
    }


def _members(row: Layer | FoldedLayers) -> Sequence[Layer]:
    return row.members if isinstance(row, FoldedLayers) else (row,)


def _bytes(value: float) -> str:
    if not value:
        return numbers.NONE
    for unit, size in (("GiB", GIB), ("MiB", 2**20)):
        if value >= size:
            return f"{_figures(value / size)} {unit}"
    if value >= 2**10:
        return f"{_figures(value / 2**10)} KiB"
    return f"{value:.0f} B"


def _figures(value: float) -> str:
    """Three figures, and never an exponent."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _beside(row: Layer | FoldedLayers, other: dict[str, Layer]) -> str:
    times_ms = [other[layer.path].ms for layer in _members(row) if layer.path in other]
    return numbers.ms(sum(times_ms)) if times_ms else numbers.NONE


def _style(name: str) -> str:
    if name in ("forward", "backward"):
        return name
    if name in _WORDS:
        return "muted"
    return "text"
