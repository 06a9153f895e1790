"""Which layer takes time and memory: the tree of modules, from the steps watched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gputop_analysis.text import MISSING
from gputop_probes.record.reader import RunRecord

LEAST_ALIKE = 3
"""Siblings of one shape are folded from so many on."""
STANDS_OUT = 1.5
"""Times the median of its like: a layer is named."""
_COLUMNS = {
    "forward_ms": "forward_us",
    "backward_ms": "backward_us",
    "activation_bytes": "activation_bytes",
    "gradient_bytes": "gradient_bytes",
    "optimizer_bytes": "optimizer_bytes",
    "flops": "flops",
}


@dataclass(slots=True)
class Layer:
    """A module. Figures are its own until ``total`` adds those of the modules within."""

    path: str
    kind: str
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    activation_bytes: float = 0.0
    parameter_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    flops: float = 0.0
    calls: int = 0
    dtype: str = ""
    recomputed: bool = False
    compiled: bool = False
    own_forward_ms: float = 0.0
    own_backward_ms: float = 0.0
    children: list[Layer] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2] or self.kind

    @property
    def ms(self) -> float:
        """Forward and backward, milliseconds."""
        return self.forward_ms + self.backward_ms

    def walk(self) -> Iterator[Layer]:
        """This layer and all within, from the top down."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Layers:
    """What one rank's watched steps showed."""

    rank: int
    root: Layer
    steps: tuple[int, ...]
    """Those whose times were taken."""
    forward_ms: float
    """Of the phase; the layers, what lies outside of them and the hooks add up to it."""
    backward_ms: float
    outside_forward_ms: float
    outside_backward_ms: float
    hook_ms: float
    clock: str
    """``host`` or ``device``."""
    counted_flops: bool
    peak_flops: float | None = None
    """Of the device, a second."""

    @property
    def ms(self) -> float:
        """All that is divided among layers, milliseconds."""
        return self.root.ms + self.outside_forward_ms + self.outside_backward_ms

    def share(self, layer: Layer) -> float:
        """Part of forward and backward that a layer takes, with all within."""
        return layer.ms / self.ms if self.ms else 0.0

    def of_peak(self, layer: Layer) -> float | None:
        """Part of the device's peak FLOP/s; None where either is unknown or it took no time."""
        if not self.peak_flops or not layer.flops or not layer.ms:
            return None
        return layer.flops / (layer.ms / 1e3) / self.peak_flops


@dataclass(frozen=True, slots=True)
class FoldedLayers:
    """Siblings of one shape."""

    kind: str
    members: tuple[Layer, ...]

    @property
    def each_ms(self) -> float:
        """The median, milliseconds."""
        return median(layer.ms for layer in self.members)

    @property
    def outliers(self) -> tuple[Layer, ...]:
        """Members that take far longer than their like, the slowest first."""
        limit = STANDS_OUT * self.each_ms
        return tuple(sorted((m for m in self.members if m.ms > limit), key=lambda m: -m.ms))

    def told(self, width: int | None = None) -> str:
        """``32 x LlamaDecoderLayer: 31 at 1.9 ms, layers.17 at 4.1 ms``, of which whole parts are
        left out where ``width`` has no room for them.
        """
        slow = self.outliers
        usual = [layer.ms for layer in self.members if layer not in slow]
        parts = [f"{len(self.members)} x {self.kind}"]
        if slow:
            parts.append(f": {len(usual)} at {_two_figures(median(usual))} ms")
        else:
            parts.append(f", {_two_figures(self.each_ms)} ms each")
        for outlier in slow[:2]:
            within = outlier.path.split(".")[-2:]
            which = ".".join(within) if len(within) > 1 else f"{self.kind} {outlier.name}"
            parts.append(f", {which} at {_two_figures(outlier.ms)} ms")
        text = parts[0]
        for part in parts[1:]:
            if width is not None and len(text) + len(part) > width:
                break
            text += part
        return text


def _two_figures(value: float) -> str:
    """``1.9`` or ``254``, never an exponent."""
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def layers_of(
    record: RunRecord, rank: int | None = None, peak_flops: float | None = None
) -> Layers | None:
    """The layers of one rank, the first that was watched by default; None where none was."""
    events = [event for event in record.events("layers") if "step" in event]
    ranks = sorted({event.get("rank", 0) for event in events if "forward_us" in event})
    if rank is None and ranks:
        rank = ranks[0]
    if rank is None or rank not in ranks:
        return None
    rows = _table(record, rank)
    looks = _looks([event for event in events if event.get("rank", 0) == rank], len(rows))
    timed = [look for look in looks if "forward_us" in look]
    if not rows or not timed:
        return None
    if len(timed) > 2:
        timed = timed[1:]  # caches were cold in the first
    counted = next((look for look in reversed(looks) if "flops" in look), None)
    layers = _own(rows, timed, counted)
    roots = _tree(layers)
    if len(roots) == 1:
        root = roots[0]
    else:
        root = Layer("", "all models", children=roots)
    _total(root)
    return Layers(
        rank=rank,
        root=root,
        steps=tuple(look["step"] for look in timed),
        forward_ms=_median(timed, "forward_ms"),
        backward_ms=_median(timed, "backward_ms"),
        outside_forward_ms=_median(timed, "outside_forward_ms"),
        outside_backward_ms=_median(timed, "outside_backward_ms"),
        hook_ms=_median(timed, "hook_ms"),
        clock=timed[-1].get("clock", "host"),
        counted_flops=counted is not None,
        peak_flops=peak_flops,
    )


def watched_ranks(record: RunRecord) -> list[int]:
    """Ranks whose layers were watched."""
    return sorted({e.get("rank", 0) for e in record.events("layers") if "forward_us" in e})


def fold(children: list[Layer]) -> list[Layer | FoldedLayers]:
    """Siblings of one shape, three or more in all, as one; the others as they are."""
    groups: dict[Any, list[Layer]] = {}
    for child in children:
        groups.setdefault(_shape(child), []).append(child)
    rows: list[Layer | FoldedLayers] = []
    for group in groups.values():
        if len(group) >= LEAST_ALIKE:
            rows.append(FoldedLayers(group[0].kind, tuple(group)))
        else:
            rows.extend(group)
    return rows


def sort_key(sort: str) -> Any:
    """A key for layers and folds: the largest first, names from a to z."""

    def value(layer: Layer) -> Any:
        return {
            "time": layer.ms,
            "forward": layer.forward_ms,
            "backward": layer.backward_ms,
            "activation": layer.activation_bytes,
            "parameters": layer.parameter_bytes,
            "flops": layer.flops,
        }[sort]

    def key(row: Layer | FoldedLayers) -> Any:
        members = row.members if isinstance(row, FoldedLayers) else (row,)
        if sort == "name":
            return members[0].path
        return -sum(map(value, members))

    return key


def _shape(layer: Layer) -> Any:
    """What alike layers share: their class, parameters and the shapes of what is within."""
    return (layer.kind, layer.parameter_bytes, tuple(map(_shape, layer.children)))


def _table(record: RunRecord, rank: int) -> list[dict[str, Any]]:
    """The newest whole table of a rank."""
    rows: list[dict[str, Any]] = []
    for event in record.events("layer_table"):
        if event.get("rank", 0) != rank:
            continue
        if event["first"] == 0:
            rows = []
        if event["first"] == len(rows):
            rows = rows + (event.get("rows") or [])
    return rows


def _looks(events: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The watched steps, parts put together; those of an older table are left out."""
    by_step: dict[Any, dict[str, Any]] = {}
    for event in events:
        key = event["step"], "flops" in event
        look = by_step.setdefault(key, {})
        for name, value in event.items():
            if isinstance(value, list) and name != "recomputed":
                look[name] = look.get(name, []) + value
            else:
                look[name] = value
    return [
        look
        for look in by_step.values()
        if len(look.get("forward_us") or look.get("flops") or []) in (count, count + 1)
    ]


def _own(
    rows: list[dict[str, Any]], timed: list[dict[str, Any]], counted: dict[str, Any] | None
) -> list[Layer]:
    layers = []
    last = timed[-1]
    recomputed = set(last.get("recomputed") or ())
    for index, row in enumerate(rows):
        layer = Layer(row["path"], row.get("class", MISSING))
        for name, column in _COLUMNS.items():
            if column == "flops":
                continue
            scale = 1e-3 if column.endswith("_us") else 1.0
            values = [look[column][index] for look in timed if index < len(look.get(column, []))]
            setattr(layer, name, scale * median(values) if values else 0.0)
        layer.own_forward_ms, layer.own_backward_ms = layer.forward_ms, layer.backward_ms
        layer.parameter_bytes = row.get("parameter_bytes", 0)
        layer.flops = counted["flops"][index] if counted else 0.0
        layer.calls = int(last["calls"][index])
        dtypes = last.get("dtypes") or []
        layer.dtype = (dtypes[index] if index < len(dtypes) else None) or row.get("dtype", "")
        layer.recomputed = index in recomputed
        layer.compiled = bool(row.get("compiled"))
        layers.append(layer)
    return layers


def _tree(layers: list[Layer]) -> list[Layer]:
    by_path: dict[str, Layer] = {}
    roots = []
    for layer in layers:
        parent = _parent(by_path, layer.path)
        if layer.path in by_path:
            by_path[layer.path].children.append(layer)  # a wrapper has the name of what it wraps
        elif parent is None:
            roots.append(layer)
        else:
            parent.children.append(layer)
        by_path[layer.path] = layer
    return roots


def _parent(by_path: dict[str, Layer], path: str) -> Layer | None:
    while path:
        path = path.rpartition(".")[0]
        if path in by_path:
            return by_path[path]
    return None


def _total(layer: Layer) -> None:
    for child in layer.children:
        _total(child)
        for name in (*_COLUMNS, "parameter_bytes"):
            setattr(layer, name, getattr(layer, name) + getattr(child, name))


def _median(looks: list[dict[str, Any]], name: str) -> float:
    values = [look[name] for look in looks if name in look]
    return median(values) if values else 0.0
