"""A run's steps as blocks to draw anew: the noise inside a run, with its autocorrelation."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from gputop_agent import wire
from gputop_analysis.findings.shares import ENOUGH_STEPS
from gputop_analysis.series import RankSeries, picked
from gputop_analysis.stats import block_length
from gputop_analysis.step_parts import OWN_PHASES, WAIT
from gputop_analysis.view import Array, RunView
from gputop_analysis.waits import hidden_wait_ms, with_wait

COLUMNS = (*OWN_PHASES, WAIT)
"""Phases of a step; ``wait`` is exposed waiting for other ranks, taken out of backward."""
RESAMPLES = 1000
FIFTHS = 5


@dataclass(frozen=True)
class StepBlocks:
    """Sums over blocks of steps. The same block is the same range of steps on every rank."""

    ranks: tuple[int, ...]
    ms: Array
    """Ranks x blocks x ``COLUMNS``, milliseconds."""
    steps: Array
    """Ranks x blocks."""
    samples: float
    """Per step of a rank; 0: not counted."""

    @property
    def fewest_steps(self) -> int:
        """Steps of the rank with the fewest."""
        return int(self.steps.sum(axis=1).min())

    def resampled(self) -> tuple[Array, Array]:
        """Blocks drawn with replacement, the same on all ranks: milliseconds per step, draws x
        ranks x ``COLUMNS``.

        Beside it the same of the blocks as they are, ranks x ``COLUMNS``. Non-overlapping block
        bootstrap (Carlstein 1986). Which blocks are drawn follows from the run alone: it is the
        same on either side of a comparison.
        """
        count, seed = self.ms.shape[1], zlib.crc32(self.ms.tobytes())
        drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), RESAMPLES)
        steps = np.maximum(drawn @ self.steps.T, 1e-9)
        sums = np.einsum("db,rbc->drc", drawn, self.ms)
        return sums / steps[:, :, None], self.ms.sum(axis=1) / self.steps.sum(axis=1)[:, None]

    def drift(self, values: Array) -> float:
        """Standard deviation of the means over fifths of the run of one value per block.

        Machines change over seconds and minutes, which blocks inside a short run do not show in
        full. Two runs are taken to differ by as much as fifths of one run do, however many steps
        they have.
        """
        fifths = [float(part.mean()) for part in np.array_split(values, FIFTHS)]
        return float(np.std(fifths, ddof=1))


def blocks_of(view: RunView) -> StepBlocks | None:
    """Steps of the last attempt past the warm-up, with evaluation and checkpoints; or None."""
    masks = {rank: view.per_rank[rank].past_warm_up for rank in view.ranks}
    if not masks or any(
        s.n_steps[mask].sum() < ENOUGH_STEPS or mask.sum() < 10 for s, mask in _pairs(view, masks)
    ):
        return None
    first = max(int(s.steps[mask][0]) for s, mask in _pairs(view, masks))
    last = min(int(s.steps[mask][-1]) for s, mask in _pairs(view, masks))
    longest, mask = next(_pairs(view, masks))
    records = int(((longest.steps >= first) & (longest.steps <= last) & mask).sum())
    if records < 10:
        return None
    size = block_length(longest.wall_ms[mask])
    edges = np.linspace(first, last + 1, max(5, min(50, records // size)) + 1)
    ms, steps = zip(*(_sums(view, s, mask, edges) for s, mask in _pairs(view, masks)), strict=True)
    return StepBlocks(tuple(view.ranks), np.stack(ms), np.stack(steps), _samples(view, masks))


def _pairs(view: RunView, masks: dict[int, Array]):
    return ((view.per_rank[rank], mask) for rank, mask in masks.items())


def _sums(view: RunView, series: RankSeries, mask: Array, edges: Array) -> tuple[Array, Array]:
    """Blocks x ``COLUMNS`` and steps per block of one rank; a record is of its last step's."""
    rows, counts, count = picked(series.rows, mask), series.n_steps[mask], len(edges) - 1
    block = np.searchsorted(edges, series.steps[mask], side="right") - 1
    inside = (block >= 0) & (block < count)
    rows, counts, block = picked(rows, inside), counts[inside], block[inside]
    hidden_ms = hidden_wait_ms(view, series.rank) if len(view.comm(series.rank)) else 0.0
    times = with_wait({name: rows[f"{name}_ns"] / 1e6 for name in wire.PHASES}, hidden_ms * counts)
    summed = np.stack([np.bincount(block, times[name], count) for name in COLUMNS], axis=1)
    return summed, np.bincount(block, counts, count)


def _samples(view: RunView, masks: dict[int, Array]) -> float:
    samples = sum(
        float(s.rows["samples"][mask].sum(dtype=np.float64)) for s, mask in _pairs(view, masks)
    )
    return samples / sum(float(s.n_steps[mask].sum()) for s, mask in _pairs(view, masks))
