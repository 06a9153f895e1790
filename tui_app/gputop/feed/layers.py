"""What the Layers screen shows: one rank's tree of modules."""

from __future__ import annotations

from dataclasses import dataclass

from gputop.feed.plots import Trouble
from gputop.feed.snapshot import Snapshot
from gputop_agent.contracts import Hello
from gputop_analysis.layers import Layers, layers_of, watched_ranks
from gputop_probes.record.reader import RunRecord

NOT_WATCHED = "No layer was watched. `gputop run --layers` watches them from the start on."
NOT_YET_WATCHED = (
    "No layer was watched so far: l watches three steps where the training was started, and"
    " `gputop layers RUN` anywhere."
)
BEING_WATCHED = "Three steps are being watched, layer by layer: the table comes with them."


@dataclass(frozen=True, slots=True)
class LayersPageData:
    """One rank's layers."""

    layers: Layers
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class LayersLoader:
    """Reads the layers of one rank, of the first one where none is named."""

    rank: int | None = None
    asked: bool = False
    """Whether the training was asked for them."""

    def __call__(self, record: RunRecord, snapshot: Snapshot) -> LayersPageData | Trouble:
        layers = layers_with_peak(record, self.rank)
        if layers is None:
            return Trouble(self._nothing(snapshot))
        return LayersPageData(layers, tuple(watched_ranks(record)))

    def _nothing(self, snapshot: Snapshot) -> str:
        if snapshot.ended or snapshot.position is not None:
            return NOT_WATCHED
        return BEING_WATCHED if self.asked else NOT_YET_WATCHED


def layers_with_peak(record: RunRecord, rank: int | None) -> Layers | None:
    """The layers of a rank, with the peak of its device where that is known."""
    ranks = watched_ranks(record)
    if not ranks:
        return None
    chosen = ranks[0] if rank is None else rank
    return layers_of(record, chosen, _peak_flops(record.hello(chosen)))


def _peak_flops(hello: Hello | None) -> float | None:
    from gputop_analysis.catalog.gpu_names import find_gpu
    from gputop_analysis.flops import TABLE_KINDS, precision

    if hello is None:
        return None
    gpu = find_gpu(str(hello.get("device_name") or ""))
    if gpu:
        return gpu.dense_flops.get(TABLE_KINDS.get(precision(hello), ""))
    return None
