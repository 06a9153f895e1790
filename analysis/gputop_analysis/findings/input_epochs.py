"""The pause at the beginning of each epoch, in which the loader's workers end and start anew."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.dialect import loader_change, loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.input import data_wait
from gputop_analysis.findings.input_looks import epoch_starts
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.stats import block_bootstrap
from gputop_analysis.text import counted
from gputop_analysis.view import RunView

TIMES = 10.0
"""A pause is usually at least so many times the usual data wait of a step."""
LEAST_MS, LEAST_SHARE = 100.0, 0.02


@finding(
    id="IN05",
    name="epoch-boundary stall",
    family="input",
    cause="input",
    trigger="two epochs or more begin with pauses, the median over ten times the usual data wait and 100 ms, together "
    "2 % of the time, while workers end and start anew",
    fix="persistent_workers=True",
)
def epoch_boundary_stall(view: RunView, spec: Spec) -> Finding | None:
    """Worker processes are stopped and started for each epoch, and the training waits meanwhile."""
    wait = data_wait(view)
    rank = wait.rank if wait else next(iter(view.ranks), None)
    loader = (view.hello(rank).get("dataloader") or {}) if rank is not None else {}
    starts = epoch_starts(view).get(rank) if rank is not None else None
    if starts is None or rank is None or len(starts[0]) < 2 or not loader.get("num_workers"):
        return None
    series = view.per_rank[rank]
    usual_ms = wait.mean_ms if wait else float(np.median(series.phase_ms("data")))
    stalls_ms = starts[1] - usual_ms
    steps, wall_ms = series.total_steps(), float(series.rows["wall_ns"].sum()) / 1e6
    share = float(stalls_ms.sum()) / wall_ms
    middle_ms = float(np.median(starts[1]))
    long_enough = middle_ms > max(TIMES * usual_ms, LEAST_MS)
    if loader.get("persistent_workers") or not long_enough or share < LEAST_SHARE:
        return None
    won = block_bootstrap(stalls_ms, np.full(len(stalls_ms), steps / len(stalls_ms)), block=1)
    each = float(stalls_ms.mean())
    return spec.make(
        "high" if share > 0.25 else "medium",
        f"each epoch begins with a pause of {each:,.0f} ms: it starts {counted(loader['num_workers'], 'worker')}",
        f"{len(stalls_ms)} epochs began with {starts[1].min():,.0f} to {starts[1].max():,.0f} ms without a batch; "
        f"a step usually waits {usual_ms:.1f} ms; one every {steps / len(stalls_ms):,.0f} steps or so, "
        f"{share * 100:.0f} % of the time; persistent_workers=False"
        + (f", started by {loader['start_method']}" if loader.get("start_method") else ""),
        loader_change(Facts(view, rank), persistent_workers=True)
        + (", or multiprocessing_context='fork'" if loader.get("start_method") == "spawn" else ""),
        rank=everybody(view),
        site=loader_site(Facts(view, rank)),
        recoverable_ms_per_step=won.value,
        interval_ms_per_step=(won.low, won.high),
        proof=Proof(
            "median pause at the beginning of an epoch / usual data wait of a step",
            middle_ms / max(usual_ms, 1e-3),
            TIMES,
            "times",
            f"recoverable = sum(pause - usual data wait) / steps = {won.value:.3f} ms per step",
            (
                Input("epochs that began", len(stalls_ms), "", f"loader events, rank {rank}"),
                Input("pause", each, "ms", "mean of end_ms + start_ms + first_ms - usual data wait"),
                Input("usual data wait", usual_ms, "ms", f"steps.data_ns, rank {rank}, other steps"),
                Input("steps", steps, "", f"steps.n_steps, rank {rank}"),
            ),
        ),
    )
