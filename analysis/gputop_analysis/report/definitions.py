"""Definitions of the report's numbers. A star stands for any rank, GPU or phase."""

from __future__ import annotations

from typing import NamedTuple

from gputop_analysis.budget import LINES
from gputop_analysis.goodput import PARTS

STEPS = "steps"
"""Read from the step records: the report says how many."""


class Definition(NamedTuple):
    """Meaning and origin of one number."""

    unit: str
    text: str
    source: str
    table: str = STEPS
    """``steps``, or how much was read in words."""


_ALL_HOSTS = "the last state that each host wrote"
_HELLOS = "the hello of each rank"
_SAMPLES = "the newest 50,000 samples of the device"
_AVERAGED = (
    "steps of the last attempt past the warm-up of 10 (all steps where fewer than 20 are "
    "left), evaluation and "
    "checkpoints included"
)
_FOLDED = "a record of n folded steps counts n times, each with 1/n of its time"
_FIRST = "the finding named in verdict.finding; its proof: --explain with its id"

_GOODPUT = (
    (
        "steps.t_end_ns, wall_ns; events rank_start, checkpoint, hang_suspected, hang_over, "
        "resumed; host.json"
    ),
    "every record of the first rank",
)
_STARTUP = (
    "startup events, the first step record, host.json",
    "the first process of the rank",
)
_WAITS = (
    "comm.wait_ns (DDP's timers), else arrivals in the flight recorder, else steps.comm_ns",
    "all steady steps that the ranks have in common",
)
_ENERGY = ("gpu.energy_mj_total", "the newest 50,000 samples of each host's GPUs")
_TREND = (
    "steps.loss, device.loss",
    "the newest half of the run, at least 1000 steps, at most 3000 points",
)
_TREND_PARTS = {
    "first_step": ("", "first step of the window"),
    "last_step": ("", "last step of the window"),
    "first_loss": ("", "median of the window's first quarter of blocks"),
    "last_loss": ("", "median of its last quarter"),
    "change": ("", "Theil-Sen slope over medians of blocks x length of the window"),
    "p": (
        "",
        (
            "how likely as strong a trend is by chance: Mann-Kendall over the medians of "
            "blocks, two-sided"
        ),
    ),
    "blocks": ("", "blocks of at least five autocorrelation times"),
    "noise": ("", "robust standard deviation of the blocks around the fitted line"),
}


def _budget_lines() -> dict[str, Definition]:
    """Two numbers for each line of the efficiency budget."""
    lines = {}
    for name, line in LINES.items():
        lines[f"budget.ms_per_step.{name}"] = Definition(
            "ms", f"{line.text}; mean over the steps", line.source
        )
        lines[f"budget.share.{name}"] = Definition(
            "0 to 1", f"{line.text}; part of the wall time", line.source
        )
    return lines


DEFINITIONS: dict[str, Definition] = {
    "damaged_rows": Definition(
        "rows",
        "rows of the record that cannot be true, and were left out",
        "all tables",
        "all of a file, or its samples",
    ),
    **{
        f"own_work.{name}": Definition(
            "ms",
            f"gputop's own one-off work inside {where}, on the rank where it took longest",
            "steps.agent_ns",
        )
        for name, where in (
            ("set_up_ms", "the first step of a process"),
            ("later_ms", "all other steps"),
        )
    },
    **{
        f"output_lost_bytes.{name}": Definition(
            "bytes", text, "host.json: output_losses", _ALL_HOSTS
        )
        for name, text in (
            ("missing", "output of the command that is not in the log: the disk took no more"),
            (
                "given_up",
                "oldest output that was taken from the log again, by --log-mb or for want of room",
            ),
            ("not_passed_on", "output that could not be written to gputop's own streams"),
        )
    },
    "damaged_events": Definition(
        "",
        "lines of the event files that are no event, and fields of a wrong type",
        "events.jsonl",
        "every line",
    ),
    "exit_code": Definition(
        "", "exit code of the command, 128 + n after signal n", "host.json: exit_code", _ALL_HOSTS
    ),
    "duration_s": Definition(
        "s",
        "from the command's start to its end, or to now",
        "host.json: started_ns, ended_ns",
        _ALL_HOSTS,
    ),
    "world_size": Definition(
        "ranks",
        "what the ranks say it is, at least those that were seen",
        "hello.world_size, steps/",
        _HELLOS,
    ),
    "steps": Definition(
        "steps",
        (
            "steps done by the slowest rank (of trainings apart: the longest): "
            "last step index + 1 of each attempt, added"
        ),
        "steps.step, rank_start.record_index",
        "the last record of each attempt",
    ),
    "total_steps": Definition(
        "steps",
        "steps that there will be, as the trainer says; else an option of the command such as "
        "--max-steps",
        "hello.total_steps, run.command",
        _HELLOS,
    ),
    "step_time_p50_ms": Definition(
        "ms",
        (
            "smallest time t such that half of all ranks' steps took at most t: "
            f"{_AVERAGED}; {_FOLDED}"
        ),
        "steps.wall_ns / steps.n_steps",
    ),
    "step_time_p95_ms": Definition(
        "ms",
        (
            "smallest time t such that 95 % of all ranks' steps took at most t, "
            f"over the same steps; {_FOLDED}"
        ),
        "steps.wall_ns / steps.n_steps",
    ),
    "steps_per_s": Definition(
        "1/s",
        (
            "steps / wall time of the slowest rank, over the steps of step_time_p50_ms; while the "
            "run goes on, of the last 10 s without its first step"
        ),
        "steps.n_steps, steps.wall_ns",
    ),
    "samples_per_s": Definition(
        "1/s",
        "samples / wall time, added up over the ranks, over the steps of steps_per_s",
        "steps.samples, steps.wall_ns",
    ),
    "tokens_per_s": Definition(
        "1/s",
        "tokens, padding among them, / wall time, added up over the ranks, over the steps of "
        "steps_per_s",
        "steps.tokens, steps.wall_ns",
    ),
    "phases_mean_ms.*": Definition(
        "ms",
        (
            f"time of the phase / steps, of all ranks: {_AVERAGED}; "
            "the phases add up to the mean wall time of a step; on the device's clock where CUDA "
            "events measured 20 of the steps"
        ),
        "steps.<phase>_ns, steps.n_steps, device.<phase>_ms",
    ),
    "phases_measured_steps": Definition(
        "steps",
        "steps of all ranks whose phases were measured, where the others were only counted; null "
        "where all were",
        "steps.n_steps, steps.flags",
    ),
    "phases_half_width": Definition(
        "0 to 1",
        "half the 95 % interval of a phase's share of the time, of the phase where it is widest: "
        "ratio of sums with the windows of measured steps as blocks; 0 where "
        "all steps were measured",
        "steps.<phase>_ns, steps.wall_ns, of the windows",
    ),
    "own_cost.thread_share": Definition(
        "0 to 1",
        "CPU time of the guest's thread / time since it began, of one core, mean of the ranks",
        "own_cost events",
    ),
    "own_cost.share": Definition(
        "0 to 1", "time that gputop takes / step time, mean of the ranks", "own_cost events"
    ),
    "own_cost.low": Definition(
        "0 to 1", "lower end of its 95 % interval: order statistics", "own_cost events"
    ),
    "own_cost.high": Definition(
        "0 to 1", "upper end of its 95 % interval: order statistics", "own_cost events"
    ),
    "own_cost.cost_us": Definition(
        "us",
        "time a step that gputop takes: the median step of each window less that of its "
        "neighbours, median of the pairs, in proportion to the steps measured, and what switching "
        "and booking take; with the hooks always in, the time between their first "
        "line and their last",
        "own_cost events",
    ),
    "wait_in_backward_ms": Definition(
        "ms",
        "part of the phase backward that is waiting for other ranks, mean of the ranks; "
        "with the phase comm it is "
        "communication and straggler_wait of the budget",
        "comm.wait_ns",
        "records of the last attempt past the warm-up",
    ),
    "verdict.confidence": Definition(
        "0 to 1",
        "the finding's confidence; without a finding, how often this kind takes most of the "
        "step when blocks of "
        "steady steps are drawn anew (400 draws)",
        "the finding, or steps.<phase>_ns and comm.wait_ns",
    ),
    "verdict.recoverable_ms_per_step": Definition(
        "ms", "wall time a step that the fix would win back", _FIRST, "see there"
    ),
    "verdict.interval_ms_per_step.0": Definition(
        "ms", "lower end of its 95 % interval", _FIRST, "see there"
    ),
    "verdict.interval_ms_per_step.1": Definition(
        "ms", "upper end of its 95 % interval", _FIRST, "see there"
    ),
    "verdict.recoverable_hours": Definition(
        "h",
        "recoverable_ms_per_step x (total_steps - steps done by the slowest rank)",
        _FIRST,
        "see there",
    ),
    **_budget_lines(),
    "budget.mfu": Definition(
        "0 to 1",
        "model FLOPs / (peak x time) over the steady steps, mean of the ranks",
        "hello.model, tokens, GPU table",
    ),
    "budget.hfu": Definition(
        "0 to 1", "the same with recomputed FLOPs counted as well", "hello.model, tokens, GPU table"
    ),
    "goodput.share": Definition("0 to 1", "productive time / time of the session", *_GOODPUT),
    "goodput.session_s": Definition(
        "s", "from the command's start to its end, or to now", *_GOODPUT
    ),
    "goodput.restarts": Definition("", "attempts after the first", *_GOODPUT),
    **{f"goodput.parts_s.{name}": Definition("s", text, *_GOODPUT) for name, text in PARTS.items()},
    "startup.rank": Definition(
        "", "the rank whose start it is: the first one", "file name of the step records", "the file"
    ),
    "startup.seconds": Definition(
        "s", "from the command's start to the end of the first step, or to now", *_STARTUP
    ),
    "startup.parts.*.seconds": Definition(
        "s",
        "time in that milestone and in no other that says more, or between two; of the first step "
        "its phases; together startup.seconds",
        *_STARTUP,
    ),
    "numerics.rank": Definition(
        "",
        "the rank whose loss is judged: the first one",
        "file name of the step records",
        "the file name",
    ),
    **{
        f"numerics.loss_trend.{name}": Definition(unit, text, *_TREND)
        for name, (unit, text) in _TREND_PARTS.items()
    },
    "verdict.recoverable_usd": Definition(
        "USD",
        "recoverable_hours x rent of the run's GPUs an hour, the median of published prices",
        _FIRST,
        "see there",
    ),
    "energy.watts": Definition(
        "W", "mean power of the run's GPUs together: growth of their counters / time", *_ENERGY
    ),
    "energy.joules_per_sample": Definition("J", "watts / samples per second", *_ENERGY),
    "energy.joules_per_token": Definition("J", "watts / tokens per second", *_ENERGY),
    "energy.gpus": Definition("", "GPUs whose counters were read", *_ENERGY),
    "ranks.*.rank": Definition("", "global rank", "file name of the step records", "the file name"),
    "ranks.*.steps": Definition(
        "steps",
        "last step index + 1 of each attempt, added up",
        "steps.step",
        "the last record of each attempt",
    ),
    "ranks.*.step_time_p50_ms": Definition(
        "ms", f"as step_time_p50_ms, of this rank; {_FOLDED}", "steps.wall_ns / n_steps"
    ),
    "ranks.*.step_time_p95_ms": Definition(
        "ms", f"as step_time_p95_ms, of this rank; {_FOLDED}", "steps.wall_ns / n_steps"
    ),
    "ranks.*.phases_mean_ms.*": Definition(
        "ms", "time of the phase / steps, of this rank", "steps.<phase>_ns, n_steps"
    ),
    "ranks.*.step_time_mean_ms": Definition(
        "ms", f"wall time / steps, of this rank: {_AVERAGED}", "steps.wall_ns, n_steps"
    ),
    "ranks.*.wait_mean_ms": Definition(
        "ms",
        "waiting for other ranks a step, mean: what DDP's own timers find inside backward "
        "and the time in collectives "
        "called from Python; without both how much later the last rank comes to its collectives",
        "comm.wait_ns and steps.comm_ns, else arrivals in the flight recorder",
        "records of the last attempt past the warm-up",
    ),
    "ranks.*.peak_allocated_gib": Definition(
        "GiB",
        "largest allocation of PyTorch's allocator at its peak inside any step",
        "steps.peak_allocated_bytes",
    ),
    "ranks.*.peak_reserved_gib": Definition(
        "GiB", "most that PyTorch's allocator held at the end of any step", "steps.reserved_bytes"
    ),
    "ranks.*.peak_rss_gib": Definition(
        "GiB", "most resident memory of the process at the end of any step", "steps.rss_bytes"
    ),
    "ranks.*.dropped_records": Definition(
        "records",
        "records that the rank could not send in time; its last count",
        "steps.dropped",
        "the last record",
    ),
    "ranks.*.slowest_share": Definition(
        "0 to 1",
        "part of the steady steps in which this rank waits least, and so sets the step",
        *_WAITS,
    ),
    "ranks.*.comm_share": Definition("0 to 1", "wait_mean_ms / step_time_mean_ms", *_WAITS),
    "ranks.*.excess_ms": Definition(
        "ms",
        (
            "how much longer than the median rank it takes in excess_phase, "
            "the phase in which it differs most"
        ),
        "steps.<phase>_ns, backward without waiting",
    ),
    "balance.culprit": Definition(
        "", "the rank that waits least all the time, more than chance explains", *_WAITS
    ),
    "balance.load_imbalance": Definition(
        "", "largest / mean own work a step over the ranks, less 1", *_WAITS
    ),
    "balance.exposed_comm_ms": Definition(
        "ms",
        (
            "waiting a step that is left were no rank late, mean of the ranks: "
            "communication of the budget"
        ),
        *_WAITS,
    ),
    "gpus.*.index": Definition("", "the driver's index", "gpu.index", _SAMPLES),
    "gpus.*.memory_total_gib": Definition(
        "GiB", "memory of the device", "gpu.memory_total_bytes", _SAMPLES
    ),
    "gpus.*.peak_used_gib": Definition(
        "GiB", "most memory in use, by whomever", "gpu.memory_used_bytes", _SAMPLES
    ),
    "gpus.*.util_mean_pct": Definition(
        "%",
        "mean of the driver's utilisation: part of the time in which any kernel ran",
        "gpu.util_pct",
        _SAMPLES,
    ),
    "gpus.*.power_mean_w": Definition("W", "mean power draw", "gpu.power_w", _SAMPLES),
}
