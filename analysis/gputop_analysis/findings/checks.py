"""All modules of checks: importing one registers what it holds."""

# ruff: noqa: F401

from gputop_analysis.findings.compute import (
    drawn_texts,
    energy_bloat,
    gpu_counters,
    kernels,
    long_backward,
    precision,
    regression,
    shape_churn,
    undetached,
)
from gputop_analysis.findings.crash import (
    dead_threads,
    exit_code,
    first_failing,
    hangs,
    lack_of_memory,
    standing,
)
from gputop_analysis.findings.host import (
    compilation,
    cpu_share,
    gil,
    launches,
    loops_in_model,
    lost_time,
    page_faults,
    pauses,
    periodic,
    row_by_row,
    slow_settings,
)
from gputop_analysis.findings.input import (
    across_ranks,
    copies,
    epochs,
    late_batches,
    oversubscription,
    padding,
    repeats,
    storage,
    used_up,
    workers,
)
from gputop_analysis.findings.memory import (
    gpu_memory,
    leaks,
    wasteful_habits,
)
from gputop_analysis.findings.numerics import (
    dead_networks,
    divergence,
    large_gradients,
    loss_spikes,
    missing_gradients,
    never_cleared,
    nonfinite_losses,
    rank_losses,
    rate_swings,
    replicas_differ,
    schedules,
    sorted_batches,
    vanishing_updates,
    wrong_habits,
    wrong_mode,
)
from gputop_analysis.findings.ranks import (
    buckets,
    ddp_settings,
    device_links,
    exposed_comm,
    mismatch,
    more_work,
    pipeline_bubble,
    rotating,
    stragglers,
)
from gputop_analysis.findings.reproducibility import (
    drift,
    nondeterminism,
    reseeding,
)
from gputop_analysis.findings.thermal import (
    broken_devices,
    slow_devices,
)
