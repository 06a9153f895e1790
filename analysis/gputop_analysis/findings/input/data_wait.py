"""How long the training waits for its batches."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.input.loader_looks import epoch_starts
from gputop_analysis.findings.shares import Share, device_share, share_over, some_ranks, typical
from gputop_analysis.model import Severity
from gputop_analysis.view import RunView, once_per_view

WAITING = 0.1
"""Share of the step that waits for data: the input bounds the run."""
MOST_OF_IT = 0.25
"""Of the step: so much waiting for data is more than workers that starve can make of it."""


@once_per_view
def data_wait(view: RunView) -> Share | None:
    """Waiting for batches on the typical rank; on a device's clock it is the gap in which the
    device idles.

    Without the steps in which an epoch begins: workers that start have their own finding (IN05).
    """
    return typical(
        device_share(view, rank, "data") or _fetch_wait(view, rank) for rank in some_ranks(view)
    )


def _fetch_wait(view: RunView, rank: int) -> Share | None:
    series, starts = view.per_rank[rank], epoch_starts(view).get(rank)
    mask = series.steady
    if starts is not None and (view.hello(rank).get("dataloader") or {}).get("num_workers"):
        upto, before = (
            np.searchsorted(starts[0], series.steps - n, "right") for n in (0, series.n_steps)
        )
        mask = mask & (upto == before)
    return share_over(series, mask, lambda rows: rows["data_ns"])


def wait_source(wait: Share) -> str:
    """The column that a data wait was read from."""
    return "device.data_ms" if wait.clock == "device" else "steps.data_ns"


def per_batch_ms(view: RunView, wait: Share) -> float:
    """Waiting for one batch: with gradient accumulation a step takes several.

    Backward passes are counted where the size of a batch is not known; a GAN makes several for one
    batch.
    """
    series = view.per_rank[wait.rank]
    steps = max(int(series.n_steps[series.steady].sum()), 1)
    batches = float(series.rows["micro_batches"][series.steady].sum()) / steps
    samples = float(series.rows["samples"][series.steady].sum()) / steps
    size = (view.hello(wait.rank).get("dataloader") or {}).get("batch_size")
    if isinstance(size, int) and size > 0 and samples > 0:
        batches = min(batches, samples / size)
    return wait.mean_ms / max(1.0, batches)


def severity_of(wait: Share) -> Severity:
    if wait.share.low > MOST_OF_IT:
        return "high"
    if wait.share.low > WAITING:
        return "medium"
    return "info"
